"""Whether a kernel's results are right: no further from the truth than twice PyTorch's own are."""

import torch

from bppsa_lightning.calibration.cuda.layers import Tensors

# Relative errors that are rounding's luck, whatever PyTorch's own were: as tests/ops allows them.
_LUCK = {torch.float32: 3e-5, torch.float64: 1e-11, torch.bfloat16: 1e-2, torch.float16: 1e-3}
_VANISHED = 1e-30  # below it a float32 has no digits to be compared


def wrong(found: Tensors, truth: Tensors, pytorch: Tensors) -> str | None:
    """What is wrong with results, for people; None if nothing is.

    Args:
        found: by the kernels. truth: in float64. pytorch: by PyTorch in the dtype of `found`.
    """
    for name, wanted in truth.items():
        have, stock = found[name], pytorch[name].double()
        if have.shape != wanted.shape:
            return f"{name}: of shape {tuple(have.shape)}, expected {tuple(wanted.shape)}"
        if not wanted.numel():
            continue
        if not have[wanted.isfinite()].isfinite().all():
            return f"{name}: not finite, expected up to {wanted.abs().max():.3g}"
        for norm, of in ((torch.inf, "largest number"), (2, "norm")):
            size = max(float(torch.linalg.vector_norm(wanted, norm)), _VANISHED)
            error = float(torch.linalg.vector_norm(have.double() - wanted, norm)) / size
            own = float(torch.linalg.vector_norm(stock - wanted, norm)) / size
            allowed = max(2 * own, _LUCK[have.dtype])
            if error > allowed:
                return (
                    f"{name}: off by {error:.2g} of its {of}, at most {allowed:.2g} expected "
                    f"({_worst(have, wanted)})"
                )
    return None


def differs(first: Tensors, second: Tensors) -> str | None:
    """Which results of the same call are not the same bits; None if all are."""
    names = [name for name, value in first.items() if not torch.equal(value, second[name])]
    return f"{', '.join(names)}: not the same bits when called again" if names else None


def _worst(have: torch.Tensor, wanted: torch.Tensor) -> str:
    at = int((have.double() - wanted).abs().argmax())
    place = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(at), wanted.shape))
    return f"at [{place}] {have.flatten()[at]:.9g}, expected {wanted.flatten()[at]:.9g}"
