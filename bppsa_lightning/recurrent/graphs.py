"""torch.compile: attached recurrent layers are part of its graph; all others stay beside it.

Dynamo refuses every nn.RNN, nn.GRU and nn.LSTM, as it would unroll PyTorch's kernels: a graph of
all steps, which takes a minute to compile. An attached layer is a node of our operator. Dynamo's
own switch, `torch._dynamo.config.allow_rnn`, is no answer: it lets in the layers that are not
attached too, in every model, and holds for one thread. So the method that refuses is told of the
attached ones, instance by instance: while it looks at one of these, the switch is on. Nothing has
to be restored, as nothing is said of a detached layer.

`VariableBuilder.wrap_module` is no public name of torch's. Without it, or without the switch,
attached layers break the graph as others do, and `explain` says so.
"""

import functools
from types import CodeType
from typing import Any

import torch
from torch import nn

from bppsa_lightning import planner
from bppsa_lightning._replacement import replacement_of
from bppsa_lightning.chain import Chain


def kept_out(chain: Any) -> str | None:
    """Why the calls of an attached recurrent layer are never part of a graph; None if they are."""
    if not tell():
        return f"torch {torch.__version__} lets no recurrent layer into a graph"
    if chain.divided is not None:
        return "its time is divided over ranks"
    if chain.algorithm == planner.SPECULATIVE:
        return "windows of time look at values"
    return None


def details(chain: Any) -> list[str]:
    """Lines for `explain`."""
    reason = kept_out(chain) if chain.refused else None
    if reason is not None:
        return [f"torch.compile breaks its graph here: {reason}"]
    return ["was part of a graph of torch.compile, whose calls are not counted"] * chain.compiled


def leave(reason: str) -> None:
    """Breaks the graph at this call, which then runs beside it; fullgraph=True is told the reason.

    A user who turned the switch on wants PyTorch's layers in the graph, and so does torch.export.
    """
    if not torch._dynamo.config.allow_rnn:
        torch._dynamo.graph_break(msg=f"a recurrent layer is left to PyTorch: {reason}")


_inlined: list[CodeType] = []


def only_inlined(function: Any) -> Any:
    """A function that Dynamo looks into where a graph calls it, and does not compile by itself.

    Else a call beside a graph would be compiled in pieces, again for each size.
    """
    _inlined.append(function.__code__)
    return function


def _is_let_in(module: nn.Module) -> bool:
    chain: Any = replacement_of(module, Chain)
    if chain is None or chain.module is not module:
        return False  # a shallow copy of a module holds the other one's chain
    chain.refused = kept_out(chain) is not None
    return not chain.refused


@functools.cache
def tell() -> bool:
    """Tells Dynamo, once, of the layers that it may take; returns whether that is possible."""
    from torch._dynamo import config  # late: they take a second to import
    from torch._dynamo.eval_frame import skip_code
    from torch._dynamo.variables.builder import VariableBuilder

    for code in _inlined:
        skip_code(code)
    refusing: Any = getattr(VariableBuilder, "wrap_module", None)
    if refusing is None or not hasattr(config, "allow_rnn"):
        return False

    @functools.wraps(refusing)
    def wrap_module(self: Any, value: nn.Module) -> Any:
        if isinstance(value, nn.RNNBase) and _is_let_in(value):
            with config.patch(allow_rnn=True):
                return refusing(self, value)
        return refusing(self, value)

    VariableBuilder.wrap_module = wrap_module  # type: ignore[method-assign]
    return True
