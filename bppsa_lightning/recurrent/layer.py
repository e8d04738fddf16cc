"""Recurrent layers as chains over time: `nn.RNN`, `nn.GRU`, `nn.LSTM`, in all their options.

T steps, B batch, I input, H hidden, P state that is shown (H, or an LSTM's projection), L layers
times directions, N numbers of steps of all samples of a `PackedSequence`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.nn.utils.rnn import PackedSequence

from bppsa_lightning import _overridden, _scripting, ops, planner
from bppsa_lightning._cells import CELLS
from bppsa_lightning._context import is_tracing, recorded
from bppsa_lightning.chain import Chain
from bppsa_lightning.planner import machine
from bppsa_lightning.recurrent import graphs, packed_span, precision, stack, straight, support
from bppsa_lightning.recurrent.config import RecurrentConfig
from bppsa_lightning.recurrent.divided import DividedLayer
from bppsa_lightning.recurrent.engines import LayerEngine
from bppsa_lightning.recurrent.packed import Tensors
from bppsa_lightning.recurrent.rows import padded_steps
from bppsa_lightning.recurrent.windows import Windows, side_by_side


class _Decision(NamedTuple):
    """How calls of one size are computed.

    Attributes:
        plan: here. reason: why by PyTorch, or None.
        windows: whether windows of time may be faster than either, which was not asked for.
    """

    plan: planner.Plan | None = None
    reason: str | None = None
    windows: bool = False


class RecurrentChain(Chain):
    """The forward of an attached recurrent layer: same arguments, same results, backward by scan.

    Each direction of each layer is a scan of its own. What a single call brings that cannot be
    scanned (arguments that PyTorch refuses, a device without kernels), or that PyTorch computes
    faster, goes to PyTorch's own forward, and `explain` says why. Of a class that overrides
    forward, it is the calls of `super().forward` that come here.
    """

    module: nn.RNNBase

    def __init__(self, name: str, module: nn.RNNBase, algorithm: str = "auto") -> None:
        super().__init__(name, module, algorithm)
        base = support.torch_class(module)
        assert base is not None
        self.torch_class = base
        self.config = RecurrentConfig(module)
        self.cell = self.config.cell.label
        self.stack = self.config.stack
        self._windows = Windows(self.config)
        self.divided: DividedLayer | None = None
        self.compiled = False  # whether the last call was part of a graph
        self.refused = False  # whether one was refused that part, which has a reason
        # Of the last tensor: for what, and what. One tuple, as another thread may read it.
        self._decided: tuple[Any, _Decision] = None, _Decision()

    def renew(self, name: str) -> None:
        config = self.config
        super().renew(name)
        if vars(self.config) == vars(config):
            self.config = config  # compiled code looks at the object

    @graphs.only_inlined
    def __call__(
        self, input: Tensor | PackedSequence, hx: Tensor | tuple[Tensor, Tensor] | None = None
    ) -> Any:
        if torch.compiler.is_compiling():
            return self._call(input, hx, True)
        if get_eval_frame_callback() is None:
            return self._call(input, hx, False)
        return self._call_beside_a_graph(input, hx)

    @torch.compiler.disable
    def _call_beside_a_graph(self, input: Any, hx: Any) -> Any:
        """A call by a compiled model's own Python, which is not to be compiled in pieces."""
        return self._call(input, hx, False)

    def _call(self, input: Any, hx: Any, compiling: bool) -> Any:
        if not compiling and (call := straight.call_of(self.module)) is not None:
            return call(self, input, hx)
        config, windows, divided = self.config, False, self._divides(input)
        if divided:
            plan, reason = None, self._undividable(input)
        elif compiling:
            # Sizes may be symbols: the operator plans where they have values.
            plan, kernels = None, self._kernels
            reason = support.unsupported_when_compiled(config, self.module, input, kernels)
        elif torch._C._get_tracing_state() is not None:
            plan, reason = None, recorded()
        else:
            plan, reason, windows = self._decide(input)
            windows = windows and not self._windows.rest(self._steps_and_batch(input)[0])
        faster = reason if windows else None
        if reason is None or windows:
            weights, states = self.weights(), self._states(hx)
            T, B = self._steps_and_batch(input)
            data: Tensor = input.data if isinstance(input, PackedSequence) else input
            batch = (B,) if input is not data or data.dim() == 3 else ()
            if divided and input is not data and self._is_sharded:  # it knows its own steps alone
                batch = (packed_span.samples_known(input, states),)
            reason = support.unsupported_call(config, data, batch, states, weights)
        if divided and self._is_sharded and reason is not None:
            raise ValueError(f"{self.name or 'module'}: found {reason}; that is not divided")
        self.record_call(reason)
        if reason is not None:
            if compiling:
                graphs.leave(reason)
            return self.torch_class.forward(self.module, input, hx)
        if divided:
            return self._over_ranks(input, states, weights)
        scan = partial(self._scan, plan=plan, windows=windows, by_pytorch=faster is not None)
        if not torch.compiler.is_exporting():  # a program that is exported tells nobody its sizes
            self._plan, self.device, self.compiled = plan, weights[0].device, compiling
            self.shape = T, B, config.hidden_size
        if isinstance(input, PackedSequence):
            spread = stack.packed_scan(
                input, config.cell, scan, self._scan, row_work=config.row_work
            )
            return stack.run_rows(input, states, weights, self._layers, spread)
        layers = partial(self._layers, scan=scan)
        return stack.run_dense(input, states, weights, self.module.batch_first, layers)

    def divide(self, group: Any, sharded: bool = False, alike: bool = False) -> None:
        """Divides time over the ranks of a process group, None over none: as `DividedLayer`."""
        self.divided = None
        if group is not None:
            self.divided = DividedLayer(self.config, self.name, group, sharded, alike)

    def _divides(self, input: Any) -> bool:
        """Whether a call is one of all ranks together."""
        divided = self.divided
        if divided is None or is_tracing() or not isinstance(input, Tensor | PackedSequence):
            return False
        return divided.sharded or divided.pays(*self._steps_and_batch(input), self._algorithm)

    @property
    def _is_sharded(self) -> bool:
        return self.divided is not None and self.divided.sharded

    def _undividable(self, input: Any) -> str | None:
        """Why a call cannot be divided, nor scanned; None if it can be."""
        packed = isinstance(input, PackedSequence)
        empty = packed and not len(input.data) and not len(input.batch_sizes)
        if empty and self._is_sharded:  # spans may be empty
            return support.missing_kernels(input.data)
        dense = isinstance(input, Tensor) and input.dim() in (2, 3)
        if dense and input.shape[-1] == self.config.input_size:
            return support.missing_kernels(input)  # spans may be empty
        return support.unsupported_input(self.config, self.module, input)

    def _over_ranks(self, input: Any, states: Tensors, weights: Tensors) -> Any:
        """A call, by all ranks of `divided`."""
        divided, algorithm = self.divided, self._algorithm
        assert divided is not None
        if isinstance(input, PackedSequence) and divided.sharded:
            of_rows = divided.packed_scan(input, states, algorithm)
            result: Any = stack.run_rows(input, states, weights, self._layers, of_rows)
        elif isinstance(input, PackedSequence):
            scan = partial(divided.whole_scan, algorithm=algorithm)
            spread = stack.packed_scan(input, self.config.cell, scan, scan)
            result = stack.run_rows(input, states, weights, self._layers, spread)
        else:
            layers = partial(divided.layers, algorithm=algorithm, run=self._layers)
            result = stack.run_dense(input, states, weights, self.module.batch_first, layers)
        self._plan, self.device = divided.plan(), weights[0].device
        self.shape = divided.spans.T, divided.batch, self.config.hidden_size
        return result

    @property
    def _layers(self) -> Callable[..., tuple[Tensor, list[Tensor]]]:
        """All layers, of x, states, weights and a scan."""
        module, config = self.module, self.config
        drops = module.training and config.layers > 1
        return partial(stack.run_layers, config, module.dropout if drops else 0.0)

    @property
    def _kernels(self) -> str:
        """The algorithm of what the kernels are given: of windows, a walk."""
        return "linear" if self._algorithm == planner.SPECULATIVE else self._algorithm

    @property
    def _is_overridden(self) -> bool:
        return type(self.module).forward is not self.torch_class.forward

    def attach(self) -> None:
        graphs.tell()
        if self._is_overridden:
            _overridden.attach(self, self.torch_class)
        else:
            super().attach()
            _scripting.prepare(self)

    def detach(self) -> None:
        super().detach()
        _scripting.forget(self)
        _overridden.detach(self)

    def details(self) -> list[str]:
        divided = [] if self.divided is None else self.divided.details()
        return divided + self._windows.details() + graphs.details(self) + self._overriding()

    def state_dict(self) -> dict[str, Any]:
        """What its windows, or ranks, have learned, for a checkpoint; empty if nothing."""
        ranks = {} if self.divided is None else self.divided.state_dict()
        return self._windows.state_dict() | ({"ranks": ranks} if ranks else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        of_windows = dict(state)
        ranks = of_windows.pop("ranks", {})
        self._windows.load_state_dict(of_windows)
        if self.divided is not None:
            self.divided.load_state_dict(ranks)

    def _overriding(self) -> list[str]:
        if not self._is_overridden:
            return []
        found = self.calls + self.fallback_calls
        text = f"overrides forward: {_overridden.place_of(type(self.module))}; "
        if found or not self.module_calls:
            return [text + "what is accelerated is its calls of super().forward"]
        called = f"called {self.module_calls} time{'s' * (self.module_calls != 1)}"
        base = self.torch_class.__name__
        parent = f"never called super().forward (nn.{base}.forward by name is not"
        return [f"{text}0 calls accelerated: the layer was {called}, and {parent} seen)"]

    def _decide(self, input: Any) -> _Decision:
        """How a call with an input is computed.

        A call is often short, and like the one before it, which costs a comparison then.
        """
        module, decided_for = self.module, None
        on: Any = None
        if type(input) is Tensor:
            if input.is_cpu:
                on = torch.get_num_threads(), *precision.measured_as(self.config, input)
            elif input.is_cuda:
                on = input.device, precision.of_pytorch(input), torch.backends.cudnn.enabled
        if on is not None:
            options = module.batch_first, module.mode
            decided_for = input.shape, options, self._algorithm, on, machine.generation
            last, decision = self._decided
            if decided_for == last:
                return decision
        reason = support.unsupported_input(self.config, module, input)
        if CELLS.get(module.mode.lower()) != self.config.cell:
            reason = f"its mode has become {module.mode} since it was attached"
        decision = _Decision(reason=reason)
        if decision.reason is None:
            request = self._request(input)
            reason = planner.fallback_reason(request)
            plan = None if reason else planner.plan(request)
            decision = _Decision(plan, reason, self._may_pay(input, request, reason is None))
        if decided_for is not None:
            self._decided = decided_for, decision
        return decision

    def _may_pay(self, input: Any, request: planner.Request, ours: bool) -> bool:
        """Whether "auto" should try windows of time.

        Args:
            ours: whether the walk is our kernels'.
        """
        if self._algorithm != "auto" or not isinstance(input, Tensor):
            return False
        if input.is_cuda:  # by our kernels, of which it is estimated
            ours = ours and planner.windows_pay(request)
            return ours and planner.fallback_reason(side_by_side(request)) is None
        if not input.is_cpu or request.B != 1 or (request.bfloat16 and not ours):
            return False  # (windows of PyTorch's kernels are walked in float32)
        return LayerEngine.may_pay(request.cell, request.H, request.I, request.T)

    @property
    def plan(self) -> planner.Plan | None:
        """The last call's; of a compiled one, which kept none, the one for its sizes."""
        if self._plan is None and self.shape is not None:
            T, B, _ = map(int, self.shape)
            return planner.plan(self._request_of(T, B, self.device))
        return self._plan

    def weights(self) -> Sequence[Any]:
        """The weights that PyTorch would use: `_flat_weights`, once they are up to date.

        functional_call, parametrizations and FSDP swap the parameters, weight dropout either.
        """
        module = self.module
        if torch.compiler.is_compiling():  # of which the module keeps no tensors
            return [getattr(module, name, None) for name in self.config.names]
        parameters, flat = module._parameters, module._flat_weights
        for name, weight in zip(self.config.names, flat, strict=False):
            if parameters.get(name) is not weight:
                module._update_flat_weights()
                return module._flat_weights
        return flat

    def _states(self, hx: Any) -> tuple[Any, ...]:
        """(h0,), (h0, c0), () for zeros, or (None,) for what is none of these."""
        if hx is None:
            return ()
        if len(self.config.state_sizes) == 1:
            return (hx,)
        return tuple(hx) if isinstance(hx, tuple | list) and len(hx) == 2 else (None,)

    def _steps_and_batch(self, input: Tensor | PackedSequence) -> tuple[int, int]:
        if isinstance(input, PackedSequence):
            sizes = input.batch_sizes
            return sizes.shape[0], int(sizes[0]) if len(sizes) else 0
        if input.dim() == 2:
            return input.shape[0], 1
        T, B = input.shape[:2]
        return (B, T) if self.module.batch_first else (T, B)

    def _request(self, input: Any) -> planner.Request:
        """What the planner is asked for a call with a supported input."""
        packed = isinstance(input, PackedSequence)
        data, (T, B) = input.data if packed else input, self._steps_and_batch(input)
        request = self._request_of(T, B, data.device)
        if data.is_cuda:
            request = request._replace(dtype=precision.of_pytorch(data))
        elif data.is_cpu and not packed:
            in_bfloat16, mode = precision.measured_as(self.config, data)
            request = request._replace(bfloat16=in_bfloat16, mode=mode)
        if packed and len(data) != T * B:
            steps = padded_steps(input.batch_sizes) if data.is_cuda else T
            request = request._replace(total_steps=len(data), padded_steps=steps)
        return request

    def _request_of(self, T: int, B: int, device: torch.device) -> planner.Request:
        c = self.config
        return planner.Request(
            c.cell.name, T, B, c.hidden_size, device, self._kernels, None, c.input_size,
            c.output_size if c.projected else 0, c.layers, c.directions,
        )  # fmt: skip

    def _scan(
        self,
        x: Tensor,
        states: Tensors,
        weights: Tensors,
        reverse: bool,
        place: int,
        plan: planner.Plan | None = None,
        windows: bool = False,
        by_pytorch: bool = False,
        ragged: ops.Ragged | None = None,
    ) -> tuple[Tensor, ...]:
        """One direction of one layer: x (T, B, I) -> output (T, B, P), h_n (B, P), c_n (B, H).

        Args:
            plan: of its backward; None to plan it here.
            windows: whether to try windows of time. by_pytorch: else by its kernels.
            ragged: where samples end, as `ops.run_layer` takes it.
        """
        config, asked = self.config, self._algorithm == planner.SPECULATIVE
        if (windows or asked) and not is_tracing():
            found = self._windows.scan(x, states, weights, reverse, place, asked)
            if found is not None:
                self._plan = self._windows.plan
                return found
        if by_pytorch:
            return self._windows.walk_by_pytorch(x, states, weights, reverse)
        return stack.run_direction(config, x, states, weights, reverse, self._kernels, plan, ragged)
