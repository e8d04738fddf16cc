"""Around a call: transforms, tracing, autocast, hooks and overridden forwards."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils.prune import BasePruningMethod
from torch.utils._python_dispatch import _len_torch_dispatch_stack

OVERRIDES_FORWARD = "overrides forward"


def unsupported_transform() -> str | None:
    """The transform around this call that our gradients have no formula for; None if there is none.

    `torch.compile` is no such transform.
    """
    if torch._C._are_functorch_transforms_active():
        return "inside a torch.func transform"
    if forward_ad._current_level >= 0:
        return "inside forward-mode differentiation"
    return None


def is_transformed() -> bool:
    """Whether a transform of torch.func, or forward-mode differentiation, is around this call.

    Not under torch.compile, which has graphs in their place.
    """
    active = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    return active and not torch.compiler.is_compiling()


def is_forward_mode() -> bool:
    """Whether tangents may be on their way: jvp, jacfwd or a dual level, at any level."""
    return forward_ad._current_level >= 0


def is_tracing() -> bool:
    """Whether torch.compile or torch.jit.trace is looking."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def in_modes() -> bool:
    """Whether modes see what operators are called (fake tensors, counters of FLOPs)."""
    return bool(_len_torch_dispatch_stack())


def recorded() -> str | None:
    """Why this call is PyTorch's, if torch.jit.trace or torch.onnx.export looks; None if none does.

    What they write has no operators of ours.
    """
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace records PyTorch's own operators"
    if torch.compiler.is_compiling() and torch.onnx.is_in_onnx_export():
        return "torch.onnx.export translates PyTorch's own operators"
    return None


def own_graph() -> AbstractContextManager[Any]:
    """For a graph that ends before its caller's: nobody's hooks count or move what it saves.

    A checkpoint counts what its forward saves, and must count the same when that runs again.
    """
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


def for_graphs(t: Tensor) -> Tensor:
    """A tensor that a graph may hold: a copy of one that was made in inference mode, else itself.

    Asked outside of that mode: a copy made inside would be such a one again.
    """
    return t.clone() if t.is_inference() else t


def autocast_as_now(device_type: str) -> Callable[[], AbstractContextManager[Any]]:
    """Makes contexts with the autocast of this moment, for a computation that is repeated."""
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext
    return partial(
        torch.autocast, device_type, torch.get_autocast_dtype(device_type),
        torch.is_autocast_enabled(device_type), torch.is_autocast_cache_enabled(),
    )  # fmt: skip


def overrides_forward(module: nn.Module, base: type[nn.Module], *allowed: type[Any]) -> bool:
    """Whether a module runs another forward than that of `base`: its class's, or an instance's own.

    Replacements (see `_replacement`) of the classes `allowed` may stand in the instance.
    """
    forward = module.__dict__.get("forward")
    return type(module).forward is not base.forward or not (
        forward is None or isinstance(forward, allowed)
    )


def masks_written(module: nn.Module, input: Any) -> None:
    """Lets pruning write a module's masked parameters, as a call of it would."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, BasePruningMethod):
            hook(module, (input,))


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks look at a module's calls; pruning's only set its weight or bias."""
    if module._forward_hooks or module._backward_hooks or module._backward_pre_hooks:
        return True
    hooks = module._forward_pre_hooks.values()
    return not all(isinstance(hook, BasePruningMethod) for hook in hooks)
