"""A pruned nn.Conv2d or nn.Linear in training: forward and gradients of surviving weights only."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import _pair
from torch.nn.utils.prune import BasePruningMethod

from bppsa_lightning import ops
from bppsa_lightning._context import (
    OVERRIDES_FORWARD,
    masks_written,
    overrides_forward,
    recorded,
    unsupported_transform,
)
from bppsa_lightning._replacement import Replacement
from bppsa_lightning.ops._checks import FLOATS
from bppsa_lightning.planner import cost_pruned as cost
from bppsa_lightning.pruned.lazy_weight import MaskedWeight
from bppsa_lightning.pruned.masks import MaskWatch

_KINDS = (nn.Conv2d, nn.Linear)
_LEAST_POOLED = 8  # samples


class SparseLayer(Replacement):
    """The forward of a pruned layer: same results, at the cost of the weights that survive.

    The gradient reaches ``weight_orig`` as always, exactly 0 where the mask is. The pattern is made
    when the mask is first seen, and again whenever it changes (as autograd counts changes: not by
    way of ``weight_mask.data``), or the module's stride, padding, dilation or groups do. Where
    PyTorch's dense layer is estimated to be faster, or a call brings what the kernels do not take,
    the dense layer runs.

    Attributes:
        size: (B, H, W) of the last call, None before it; H and W of the input image, 1 for a linear
            layer.
        plan: of that size: estimated seconds of both, and the choice.
        followers: classes of the layers that the last call computed in the same pass.
        binary: whether the mask that was last seen is zeros and ones; others are PyTorch's.
        compact: the `CompactWeight` that holds the module's weight now; None of a dense one.
    """

    module: Any

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, module)
        self.size: tuple[int, int, int] | None = None
        self.plan: cost.PrunedPlan | None = None
        self.followers: tuple[str, ...] = ()
        self.binary = True
        self.compact: Any = None
        self._dense_shape: torch.Size | None = None
        self._whole = False  # the mask is ones only: its product need not be made
        self._pattern: ops.SparsePattern | None = None
        self._mask: Tensor | None = None
        self._mask_version = -1
        self._options: tuple[Any, ...] = ()  # of the module, as the pattern has them
        self._watch = MaskWatch()

    def renew(self, name: str) -> None:
        """As one that was just made, but that it knows its mask, as long as that is the same."""
        known = ("_pattern", "_mask", "_mask_version", "_options", "binary", "_whole")
        kept = {key: self.__dict__[key] for key in known}
        super().renew(name)
        self.__dict__.update(kept)

    def __getstate__(self) -> dict[str, Any]:
        """A copy's mask is another one, and counts its versions anew: nothing is known of it."""
        known = ("size", "plan", "_dense_shape", "_pattern", "_mask")
        unknown = dict.fromkeys(known) | {"_mask_version": -1, "binary": True, "_whole": False}
        return {**self.__dict__, **unknown}

    @property
    def kind(self) -> str:
        """Of the module: "Conv2d" or "Linear"."""
        return "Linear" if isinstance(self.module, nn.Linear) else "Conv2d"

    @property
    def pattern(self) -> ops.SparsePattern:
        """Of the mask as it is now; in torch.export, which has no numbers, as it was last."""
        if not torch.compiler.is_compiling():
            return self._current_pattern()
        if torch.compiler.is_exporting() and self._pattern is not None:
            return self._pattern
        return _pattern_uncompiled(self)

    def _current_pattern(self) -> ops.SparsePattern:
        mask: Tensor = self.module.weight_mask
        options = _options_of(self.module)
        # Not by _seen: Dynamo may compile that even where it leaves this function alone.
        same = mask is self._mask and mask._version == self._mask_version
        if self._pattern is None or not same or options != self._options:
            version = mask._version
            with torch.inference_mode(False):  # what it holds is used in training, too
                pattern = _pattern_of(self.module, mask)
                binary = pattern.nnz == int((mask == 1).sum())
            calls = self.calls + self.fallback_calls
            again = self._pattern is not None and not same
            self._watch.saw_another(self.name, self.module, pattern, again, calls)
            self._mask = None  # for other threads: nothing is known until all is
            self._pattern, self.binary = pattern, binary
            self._whole = binary and pattern.nnz == mask.numel()
            self.size = self.plan = self._dense_shape = None
            self._options, self._mask_version, self._mask = options, version, mask
            self._take_hook()  # to prune again is to have another one
        return self._pattern

    def _look_at_mask(self) -> None:
        """Sees changes of the mask that autograd does not count, sooner or later."""
        known = None if torch.compiler.is_compiling() else self._pattern
        if (
            known is not None
            and self._seen()
            and self._watch.differs(self.name, self.module, known)
        ):
            self._mask_version = -1

    def _seen(self) -> bool:
        """Whether the pattern is known to be of the module's mask and options, as they are now."""
        if torch.compiler.is_compiling():  # Dynamo would take the version for a constant
            return False
        mask: Tensor | None = self.module._buffers.get("weight_mask")
        if mask is None or mask is not self._mask:
            return False
        return mask._version == self._mask_version and _options_of(self.module) == self._options

    def known_fallback(self, input: Any) -> str | None:
        """Why the last plan, of this mask and an input of this shape, was the dense layer.

        Asked before anything else: what the checks cost in Python, a call of the dense layer loses.

        Returns:
            The reason; None if it was not, or that is not known without the checks.
        """
        if torch.compiler.is_compiling() or type(input) is not Tensor:
            return None
        plan = self.plan
        if plan is None or plan.sparse or input.shape != self._dense_shape or not self._seen():
            return None
        return plan.reason

    def dense_weight(self) -> Tensor:
        """``weight_orig`` times the mask, with its graph."""
        orig, mask = self.module.weight_orig, self.module.weight_mask
        if orig.shape != mask.shape:  # only the surviving ones, see compact.py
            known = orig.dtype in FLOATS and orig.device.type == "cpu"  # a copy may have been moved
            if not known or recorded() or torch.compiler.is_exporting():  # no operators of ours
                flat, index = orig.new_zeros(mask.numel()), self.pattern.index
                return flat.index_copy(0, index.to(orig.device), orig).view(mask.shape)
            return self.pattern.dense(orig).view(mask.shape)
        return mask.to(orig.dtype) * orig

    def __call__(self, input: Tensor) -> Tensor:
        self.followers = ()
        self._look_at_mask()
        fallback = self.known_fallback(input)
        if fallback is not None:
            self.record_call(fallback)
            return self._dense(input)
        module = self.module
        reason = unsupported(module) or self._unsupported_call(input)
        self.record_call(reason)
        if reason is None:
            return self._run(input)
        plan = self.plan
        if plan is not None and reason is plan.reason:
            self._dense_shape = input.shape
        if "weight_orig" in module._parameters:
            return self._dense(input)
        return type(module).forward(module, input)

    def with_followers(
        self, input: Tensor, followers: Sequence[type[nn.Module]]
    ) -> tuple[Tensor | None, int]:
        """The output of this layer and of what follows it, in one pass.

        Args:
            followers: nn.ReLU, nn.MaxPool2d (over windows of 2 x 2) or both, in order.

        Returns:
            The output and how many layers it is of, this one counted; None where the layer must
            run by itself.
        """
        module = self.module
        self._look_at_mask()
        masks_written(module, input)
        if unsupported(module) is not None or self._unsupported_call(input) is not None:
            return None, 0
        if nn.MaxPool2d in followers and not self._pools(input):
            followers = followers[: followers.index(nn.MaxPool2d)]
        if not followers:
            return None, 0
        self.record_call(None)
        self.followers = tuple(follower.__name__ for follower in followers)
        output = self._run(input, nn.ReLU in followers, nn.MaxPool2d in followers)
        return output, 1 + len(followers)

    def _pools(self, input: Tensor) -> bool:
        """Whether windows fit into the output, and samples fill vectors."""
        images = self.kind == "Conv2d" and input.dim() == 4 and len(input) >= _LEAST_POOLED
        return images and min(self.pattern.output_size(*input.shape[2:])) >= 2

    def _run(self, input: Tensor, relu: bool = False, pool: bool = False) -> Tensor:
        weight, pattern = self.module._parameters["weight_orig"], self.pattern
        if self.kind == "Conv2d":
            image = input if input.dim() == 4 else input.unsqueeze(0)
            output = ops.run_sparse_layer(image, weight, pattern, self.module.bias, relu, pool)
            return output if input.dim() == 4 else output.squeeze(0)
        image = input.reshape(-1, input.shape[-1], 1, 1)
        output = ops.run_sparse_layer(image, weight, pattern, self.module.bias, relu)
        return output.view(*input.shape[:-1], output.shape[1])

    def _dense(self, input: Tensor) -> Tensor:
        """PyTorch's layer."""
        module = self.module
        if isinstance(module.__dict__.get("weight"), MaskedWeight):
            if self._needs_no_product():
                weight = module._parameters["weight_orig"]
                if type(module).forward is nn.Conv2d.forward:
                    return module._conv_forward(input, weight, module.bias)
                return nn.functional.linear(input, weight, module.bias)
            module.weight = self.dense_weight()
        return type(module).forward(module, input)

    def _needs_no_product(self) -> bool:
        """Whether ``weight_orig`` can stand for itself: the mask is known to be ones only."""
        if torch.compiler.is_compiling() or not self._whole:
            return False
        # Autocast would keep the 16 bits of a parameter, which it does not of a product.
        if torch._C._is_any_autocast_enabled():
            return False
        if self.module._parameters.get("weight_orig") is None:  # parametrized since
            return False
        own = type(self.module).forward
        return (own is nn.Conv2d.forward or own is nn.Linear.forward) and self._seen()

    def attach(self) -> None:
        """Takes the place of the module's forward, and the mask's product out of its way."""
        super().attach()
        self._take_hook()

    def detach(self) -> None:
        """The module, its parameter and its pruning hook as they were."""
        super().detach()
        if self.compact is not None:
            self.compact.expand()
        hook = pruning_hook(self.module)
        if hook is not None:
            hook.__dict__.pop("apply_mask", None)
            if isinstance(self.module.__dict__.get("weight"), MaskedWeight):
                self.module.weight = self.dense_weight()

    def _take_hook(self) -> None:
        hook = pruning_hook(self.module)
        if hook is not None and self.module.__dict__.get("forward") is self:
            hook.__dict__["apply_mask"] = self._masked

    def _masked(self, module: nn.Module) -> Tensor:
        """What the pruning hook writes to ``module.weight``."""
        if torch.compiler.is_compiling():
            return self.dense_weight()
        shown = module.__dict__.get("weight")
        if isinstance(shown, MaskedWeight) and shown.is_of(self.dense_weight):
            return shown
        return MaskedWeight.of(self.dense_weight)

    def _unsupported_call(self, input: Any) -> str | None:
        """Why this call is PyTorch's; None if it is not."""
        module = self.module
        if (reason := recorded()) is not None:
            return reason
        if torch.compiler.is_exporting():
            return "torch.export sees no numbers of the mask"
        if not isinstance(input, Tensor) or input.layout != torch.strided:
            return f"input is a {type(input).__name__}, no dense tensor"
        tensors = [t for t in (input, module.weight_orig, module.bias) if t is not None]
        if any(t.device.type != "cpu" for t in tensors):
            return f"input is on {input.device}: the sparse layers have kernels for the CPU only"
        if torch.is_autocast_enabled("cpu"):
            return "under autocast PyTorch multiplies in 16 bits"
        if input.dtype not in FLOATS or any(t.dtype != input.dtype for t in tensors):
            return f"dtypes {', '.join(str(t.dtype).removeprefix('torch.') for t in tensors)}"
        if not torch.compiler.is_compiling() and module.weight_mask.is_inference():
            return "mask created in inference mode, changes cannot be tracked; clone it outside"
        pattern = self.pattern
        if not self.binary:
            return "its mask has other numbers than 0 and 1"
        size = _size(self.kind, input, pattern)
        if size is None:
            return f"shapes nn.{self.kind} rejects; PyTorch raises the error"
        if torch.compiler.is_compiling():  # sizes may be symbols there, and have no cost
            return None
        transform = unsupported_transform()
        if transform is not None:
            return transform
        plan = self.plan
        if plan is None or size != self.size:
            plan = cost.choose(request_of(pattern, *size))
            self.size, self.plan, self._dense_shape = size, plan, None
        return None if plan.sparse else plan.reason


@torch.compiler.disable(reason="a pruned layer looks at its mask in every call")
def _pattern_uncompiled(layer: SparseLayer) -> ops.SparsePattern:
    return layer._current_pattern()


def is_candidate(module: nn.Module) -> bool:
    """Whether a module has a mask on its weight."""
    return "weight_mask" in module._buffers


def unsupported(module: nn.Module) -> str | None:
    """Why a module cannot be a sparse layer; None if it can."""
    kind = next((k for k in _KINDS if isinstance(module, k)), None)
    if kind is None:
        return f"{type(module).__name__} has no sparse kernel"
    if "weight_mask" not in module._buffers or "weight_orig" not in module._parameters:
        return "not pruned"
    if pruning_hook(module) is None:
        return "its mask is not one of torch.nn.utils.prune"
    if overrides_forward(module, kind, SparseLayer):
        return OVERRIDES_FORWARD
    if isinstance(module, nn.Conv2d):
        if module.padding_mode != "zeros":
            return f"padding_mode {module.padding_mode!r}"
        if module.padding == "same" and _pair(module.stride) != (1, 1):
            return "padding 'same' with a stride, which PyTorch refuses"
        if type(module)._conv_forward is not nn.Conv2d._conv_forward:
            return "overrides _conv_forward"
    return None


def pruning_hook(module: nn.Module) -> BasePruningMethod | None:
    """The hook by which `torch.nn.utils.prune` masks a module's weight."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == "weight":
            return hook
    return None


def _pattern_of(module: Any, mask: Tensor) -> ops.SparsePattern:
    if isinstance(module, nn.Linear):
        return ops.SparsePattern.of(mask)
    stride, padding, dilation, groups = _options_of(module)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(_pair(dilation), mask.shape[2:], strict=True)]
        padding = [half for n in total for half in (n // 2, n - n // 2)]
    padding = 0 if padding == "valid" else padding
    return ops.SparsePattern.of(mask, stride, padding, dilation, groups)


def _options_of(module: Any) -> tuple[Any, ...]:
    """What a pattern depends on beside the mask."""
    if isinstance(module, nn.Linear):
        return ()
    return module.stride, module.padding, module.dilation, module.groups


def request_of(pattern: ops.SparsePattern, B: int, H: int, W: int) -> cost.PrunedRequest:
    """What the planner is asked for B samples of H by W pixels."""
    channels, output_size = pattern.in_channels, pattern.output_size(H, W)
    return cost.PrunedRequest(pattern.shape, pattern.nnz, channels, B, H, W, output_size)


def _size(kind: str, input: Tensor, pattern: ops.SparsePattern) -> tuple[int, int, int] | None:
    """(B, H, W) of an input; None if it is none for this layer."""
    shape = input.shape
    if kind == "Linear":
        if not shape or shape[-1] != pattern.shape[1]:
            return None
        return input.numel() // max(shape[-1], 1), 1, 1
    if len(shape) not in (3, 4) or shape[-3] != pattern.in_channels:
        return None
    if min(pattern.output_size(*shape[-2:])) < 1:
        return None
    return (1 if len(shape) == 3 else shape[0]), shape[-2], shape[-1]
