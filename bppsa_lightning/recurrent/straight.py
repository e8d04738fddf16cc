"""Calls of an attached layer that nobody plans: straight to the operator.

Under a transform of torch.func, where sizes are those of one member and windows cannot look at
numbers; and where the gradients of each sample are wanted, which no other way gives.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.nn.utils.rnn import PackedSequence

from bppsa_lightning._context import is_transformed
from bppsa_lightning.recurrent import sampled, stack, support
from bppsa_lightning.recurrent.packed import Scan

# Of a `RecurrentChain`, its input and its hx: as the module's forward.
Call = Callable[[Any, Any, Any], Any]


def call_of(module: nn.Module) -> Call | None:
    """How a call that begins now is computed, if it is one of these."""
    if is_transformed():
        return _transformed
    wants = sampled.wants_of(module)
    return None if wants is None else partial(_sampled, wants=wants)


def _transformed(chain: Any, input: Any, hx: Any) -> Any:
    weights, states = chain.weights(), chain._states(hx)
    reason = _unsupported(chain, input, states, weights)
    chain.record_call(reason)
    if reason is not None:
        return chain.torch_class.forward(chain.module, input, hx)
    return _run(chain, input, states, weights, chain._scan)


def _sampled(chain: Any, input: Any, hx: Any, wants: sampled.Wants) -> Any:
    """PyTorch's own forward would lose the gradients that are wanted: an error instead."""
    weights, states = chain.weights(), chain._states(hx)
    reason = _unsupported(chain, input, states, weights)
    if reason is not None:
        raise NotImplementedError(
            f"{chain.name or 'module'}: found {reason}; wanted a call whose gradients are known "
            "for each sample"
        )
    chain.record_call(None)
    B = chain._steps_and_batch(input)[1]
    order = input.unsorted_indices if isinstance(input, PackedSequence) else None
    scan = sampled.SampledScan(chain.config, chain._kernels, wants, weights, B, order)
    return _run(chain, input, states, weights, scan)


def _run(chain: Any, input: Any, states: Any, weights: Any, scan: Scan) -> Any:
    chain._plan, chain.device = None, weights[0].device
    chain.shape = *chain._steps_and_batch(input), chain.config.hidden_size
    if isinstance(input, PackedSequence):
        spread = stack.packed_scan(input, chain.config.cell, scan, scan)
        return stack.run_rows(input, states, weights, chain._layers, spread)
    layers = partial(chain._layers, scan=scan)
    return stack.run_dense(input, states, weights, chain.module.batch_first, layers)


def _unsupported(chain: Any, input: Any, states: Any, weights: Any) -> str | None:
    """Why the operator cannot compute a call; None if it can."""
    reason = support.unsupported_input(chain.config, chain.module, input)
    if reason is not None:
        return reason
    packed = isinstance(input, PackedSequence)
    data = input.data if packed else input
    batch = (chain._steps_and_batch(input)[1],) if packed or data.dim() == 3 else ()
    return support.unsupported_call(chain.config, data, batch, states, weights)
