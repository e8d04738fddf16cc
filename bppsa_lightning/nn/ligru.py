"""`bl.nn.LiGRU`: a light gated recurrent unit."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from bppsa_lightning import ops
from bppsa_lightning._cells import CELLS
from bppsa_lightning.nn import by_rows
from bppsa_lightning.nn.base import Weights
from bppsa_lightning.nn.layer_norm import gains_and_shifts
from bppsa_lightning.nn.of_torch import from_state
from bppsa_lightning.nn.operated import OfSums
from bppsa_lightning.recurrent.packed import Tensors


class LiGRU(OfSums):
    """A GRU without a reset gate, with relu for tanh, and batch normalisation of the input's sums.

    ::

        z, n = norm_ih BN(W_ih x_t) + b_ih + W_hh h_{t-1} + b_hh        rows in the order z, n
        h_t  = σ(z) h_{t-1} + (1 - σ(z)) relu(n)

    BN(v) = (v - mean) / sqrt(var + 1e-5), each row by itself: in training mean and variance of all
    steps of all samples of the call (not of padding), and running ones in evaluation, as
    torch.nn.BatchNorm1d.

    Source: Ravanelli et al., arXiv:1803.10225, equations 4. Parameters: `weight_ih` (2H, I),
    `weight_hh` (2H, H), `bias_ih`, `bias_hh` (2H,), and with normalisation `norm_ih` (2H,), and
    the buffers `running_mean`, `running_var` (2H,). Gains begin as 1, shifts as 0, W_hh orthogonal.

    Args:
        normalize: whether there is a BN; else z, n = W_ih x_t + b_ih + ….
        momentum: of the running mean and variance.
        args, kwargs: of `Recurrent`.
    """

    walks_rows: ClassVar[bool] = True
    cell = CELLS["ligru"]

    def __init__(
        self, *args: Any, normalize: bool = True, momentum: float = 0.1, **kwargs: Any
    ) -> None:
        object.__setattr__(self, "normalize", bool(normalize))  # which `shapes` asks for
        if not isinstance(momentum, int | float):
            raise TypeError(f"momentum: found {momentum!r}, wanted a number")
        super().__init__(*args, **kwargs)
        self.normalize, self.momentum = bool(normalize), momentum
        if not normalize:
            return
        for names in self._weights:
            _, _, suffix = names[0].partition("weight_ih")
            weight = self.get_parameter(names[0])
            rows = weight.new_zeros(len(weight))
            self.register_buffer(f"running_mean{suffix}", rows)
            self.register_buffer(f"running_var{suffix}", torch.ones_like(rows))

    def shapes(self, inputs: int) -> dict[str, tuple[int, ...]]:
        norm = {"norm_ih": (2 * self.hidden_size,)} if self.normalize else {}
        return super().shapes(inputs) | norm

    def reset_parameters(self) -> None:
        """Draws all weights; what has been seen of inputs is forgotten."""
        super().reset_parameters()
        for name, buffer in self.named_buffers():
            buffer.fill_(name.startswith("running_var"))
        gains_and_shifts(self)
        for name, parameter in self.named_parameters():
            if name.startswith("weight_hh"):
                drawn = torch.empty_like(parameter, dtype=torch.float32)  # no 16 bits are
                for rows in drawn.chunk(2):
                    nn.init.orthogonal_(rows)
                parameter.detach().copy_(drawn)

    def project(self, x: Tensor, w: Weights, place: int) -> Tensor:
        if not self.normalize:
            return super().project(x, w, place)
        sums, rows = ops.linear(x, w["weight_ih"]), 2 * self.hidden_size
        if not sums.numel():
            return sums
        layer, reverse = divmod(place, self._config.directions)
        suffix = f"_l{layer}{'_reverse' * reverse}"
        kept = [self.get_buffer(f"running_{name}{suffix}") for name in ("mean", "var")]
        mean, var = wide = [buffer.to(sums.dtype) for buffer in kept]
        norm, shift, data = w["norm_ih"], w.get("bias_ih"), sums.reshape(-1, rows)
        normed = batch_norm(data, mean, var, norm, shift, self.training, self.momentum)
        if self.training:
            for buffer, now in zip(kept, wide, strict=True):
                if buffer is not now:
                    buffer.copy_(now)
        return normed.view_as(sums)

    def for_rows(self, w: Weights) -> by_rows.Weights:
        return by_rows.Weights("ligru", w["weight_hh"], w.get("bias_hh"))

    def step(self, w: Weights, x: Tensor, state: Tensors, entering: Tensor) -> tuple[Tensor, ...]:
        z, n = (x + from_state(w, entering)).chunk(2, -1)
        return (torch.lerp(torch.relu(n), state[0], torch.sigmoid(z)),)

    def operate(self, x: Tensor, states: Tensors, w: Weights, reverse: bool) -> tuple[Tensor, ...]:
        h0 = states[0] if states else None
        return ops.ligru(x, h0, None, w["weight_hh"], None, w.get("bias_hh"), reverse=reverse)
