"""What all recurrent modules of `bl.nn` share: everything but the cell.

T steps, B samples, I input, H hidden, P state that is shown (H, or an LSTM's projection), L layers
times directions, D directions, N numbers of steps of all samples of a `PackedSequence`.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import sqrt
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from bppsa_lightning import ops
from bppsa_lightning._cells import Cell
from bppsa_lightning._library import missing_recurrent_kernels
from bppsa_lightning.nn import by_rows, by_scan
from bppsa_lightning.nn.checks import (
    check_data,
    check_options,
    check_own_options,
    check_reset,
    checked_states,
)
from bppsa_lightning.recurrent import stack
from bppsa_lightning.recurrent.packed import PackedScan, Scan, Tensors
from bppsa_lightning.recurrent.resets import ResetScan, Segments
from bppsa_lightning.recurrent.rows import cheapest, lengths_of, of_similar_length

Weights = dict[str, Tensor]

# What a step of a kernel costs beside its rows, in rows.
ROWS_OF_A_KERNEL = 4


class Config(NamedTuple):
    """Sizes of a module, which do not change."""

    cell: Cell
    layers: int
    directions: int
    bias: bool
    projected: bool
    weights_per_direction: int


class Recurrent(nn.Module):
    """Layers of a recurrent cell, in one direction or two, as `torch.nn.RNN`, `GRU` and `LSTM`.

    A plain nn.Module, not an nn.RNNBase: torch.compile takes it as it is. A cell is a subclass,
    which says what it is (`cell`), what weights it has (`shapes`), what it computes of the input
    for all steps at once (`project`), and a step (`step`), or in its place all steps (`walk`).

    Args:
        input_size, hidden_size, num_layers, bias: as of torch.nn.LSTM.
        batch_first, dropout, bidirectional, device, dtype: likewise.
        proj_size: likewise, of LSTM only.
        reset_to: what a state becomes before a step with a reset: "zeros", or "initial", which is
            the state h0 (and c0) of that sample.
        recurrent_dropout: probability with which, in training, a unit of the state does not enter
            W_hh, in all steps of a sequence alike; the others are divided by 1 - p there. What lies
            between two resets is a sequence of its own. (Gal, Ghahramani, arXiv:1512.05287)
        zoneout: probability with which, in training, a unit keeps its old state in a step, each
            part of an LSTM's state by itself; in evaluation the state is the expectation.
            (Krueger et al., arXiv:1606.01305)

    Raises:
        TypeError, ValueError: an argument is not as documented.
    """

    cell: Cell
    projects: ClassVar[bool] = False  # whether it takes proj_size
    walks_rows: ClassVar[bool] = False  # whether there is anything `for_rows`

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        proj_size: int = 0, device: Any = None, dtype: Any = None, *, reset_to: str = "zeros",
        recurrent_dropout: float = 0.0, zoneout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        options = {
            "input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers,
            "bias": bias, "batch_first": batch_first, "dropout": dropout, "proj_size": proj_size,
        }  # fmt: skip
        check_options(type(self).__name__, options, self.projects)
        check_own_options(reset_to, recurrent_dropout, zoneout)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        self.reset_to, self.zoneout = reset_to, float(zoneout)
        self.recurrent_dropout = float(recurrent_dropout)
        self.output_size = P = proj_size or hidden_size
        directions = 2 if bidirectional else 1
        self._weights: list[list[str]] = []  # names of each direction of each layer
        for layer in range(num_layers):
            shapes = self.shapes(directions * P if layer else input_size)
            for reverse in range(directions):
                names = [f"{name}_l{layer}{'_reverse' * reverse}" for name in shapes]
                for name, shape in zip(names, shapes.values(), strict=True):
                    weight = torch.empty(shape, device=device, dtype=dtype)
                    self.register_parameter(name, nn.Parameter(weight))
                self._weights.append(names)
        self._kinds = list(shapes)  # of the weights of one direction
        self._config = Config(
            self.cell, num_layers, directions, bias, bool(proj_size), len(self._kinds)
        )
        self.reset_parameters()

    # What a cell says

    def shapes(self, inputs: int) -> dict[str, tuple[int, ...]]:
        """The weights of a direction of a layer with so many inputs, as PyTorch orders them."""
        rows, P = self.cell.gates * self.hidden_size, self.output_size
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, inputs), "weight_hh": (rows, P)}
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        return shapes

    def project(self, x: Tensor, w: Weights, place: int) -> Tensor:
        """What steps need of the input: x (..., I) -> (..., F), for all steps at once.

        Args:
            place: of this direction of this layer among all.
        """
        return ops.linear(x, w["weight_ih"], w.get("bias_ih"))

    def step(self, w: Weights, x: Tensor, state: Tensors, entering: Tensor) -> tuple[Tensor, ...]:
        """The next state (h, or h and c) from the old one, with x (B, F) of `project`.

        Args:
            entering: h where it enters W_hh, which is not h under recurrent dropout.
        """
        raise NotImplementedError

    def walk(
        self, x: Tensor, states: Tensors, w: Weights, reverse: bool, marked: bool
    ) -> tuple[Tensor, ...]:
        """One direction of a layer, from x (T, B, F): output (T, B, P), h_n, c_n.

        Args:
            x: what `project` makes of the input; or, where `takes_input`, the input.
            states: h0 (B, P), c0 (B, H); () for zeros.
            marked: whether the last feature of x is 1 in padding, where states stand still.
        """
        noise = by_scan.Noise(self.recurrent_dropout, self.zoneout, self.training)
        weights = self.for_rows(w)
        if weights is not None and by_rows.walks(weights, x):
            return by_rows.walk(weights, noise, x, states, reverse, marked)
        step, name = partial(self.step, w), type(self).__name__
        return by_scan.walk(step, name, self._sizes, noise, x, states, reverse, marked)

    def for_rows(self, w: Weights) -> by_rows.Weights | None:
        """Of a cell that one operator walks, with noise and all: what that takes."""
        return None

    def takes_input(self, x: Tensor, w: Weights) -> bool:
        """Whether `walk` takes the input itself: by an operator that has all weights."""
        weights = self.for_rows(w)
        return weights is not None and weights.w_ih is not None and by_rows.walks(weights, x)

    @property
    def is_noisy(self) -> bool:
        """Whether states do not enter, or follow, each other as they are."""
        return bool(self.zoneout or (self.training and self.recurrent_dropout))

    @property
    def marks(self) -> bool:
        """Whether `walk` is to be told where padding is; else weights see to it."""
        return True

    @property
    def step_rows(self) -> int:
        """What a step of `walk` costs on a CPU beside its rows, in rows: in Python, many."""
        return ROWS_OF_A_KERNEL if self.walks_rows else 32

    @property
    def row_work(self) -> int:
        """Multiply-adds of a step of a sample, if there is a `walk_ragged`, and 0 else."""
        return 0

    def walk_ragged(
        self, x: Tensor, states: Tensors, w: Weights, ragged: ops.Ragged
    ) -> tuple[Tensor, ...]:
        """As `walk`, where it may pass over what follows the ends of samples."""
        raise NotImplementedError

    # What PyTorch's modules have

    def reset_parameters(self) -> None:
        """Draws all weights, uniformly between ±1/√H, as PyTorch does."""
        bound = 1 / sqrt(self.hidden_size)
        for weight in self.parameters():
            nn.init.uniform_(weight, -bound, bound)

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The weights, a list for each direction of each layer."""
        return [[getattr(self, name) for name in names] for names in self._weights]

    def flatten_parameters(self) -> None:
        """Does nothing: for programs that call it of PyTorch's modules."""

    def __prepare_scriptable__(self) -> nn.Module:
        """What torch.jit.script compiles in place of this module."""
        raise NotImplementedError(
            f"torch.jit.script: found a bl.nn.{type(self).__name__}, which PyTorch has no layer "
            "for; wanted torch.jit.trace (for one number of steps), torch.export or torch.compile"
        )

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        defaults = {
            "proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0,
            "bidirectional": False, "reset_to": "zeros", "recurrent_dropout": 0.0, "zoneout": 0.0,
        }  # fmt: skip
        for name, default in defaults.items():
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text

    def forward(
        self, input: Tensor | PackedSequence, hx: Any = None, reset: Tensor | None = None
    ) -> Any:
        """All layers over a sequence.

        Args:
            input: (T, B, I), (B, T, I) if batch_first, (T, I) for one sample, or a PackedSequence;
                T >= 1.
            hx: h0 (L, B, P), or of an LSTM (h0, c0), c0 (L, B, H); without B for one sample. None
                is zeros.
            reset: bool, (T, B), (B, T) if batch_first, (T,) for one sample; of a PackedSequence as
                of the padded tensor, in the order of hx. Where it is true, the state becomes zero
                (or initial, see `reset_to`) before that step: the sequence is cut there. Each
                direction walks all pieces, and begins anew in each: backwards, the state becomes
                zero on the way from such a step to the one before. Each direction begins with hx,
                forwards before step 0 (unless there is a reset), backwards after the last one.

        Returns:
            output, like input with D*P features, and h_n (L, B, P), or (h_n, c_n): where each
            direction ends, forwards after the last step, backwards after step 0.

        Raises:
            TypeError, ValueError, RuntimeError: as PyTorch's modules, with their words.
        """
        if isinstance(input, Proxy):  # torch.fx keeps the layer whole, as PyTorch's
            given = {k: v for k, v in (("hx", hx), ("reset", reset)) if v is not None}
            path = input.tracer.path_of_module(self)
            return input.tracer.create_proxy("call_module", path, (input,), given)
        if reset is None and not isinstance(input, PackedSequence):
            return self._run(input, hx, None)
        return self._run_beside_a_graph(input, hx, reset)

    @torch.compiler.disable
    def _run_beside_a_graph(self, input: Any, hx: Any, reset: Any) -> Any:
        """A call whose numbers decide shapes, which torch.compile leaves out."""
        return self._run(input, hx, reset)

    def _run(self, input: Any, hx: Any, reset: Any) -> Any:
        weights = [weight for weights in self.all_weights for weight in weights]
        packed = isinstance(input, PackedSequence)
        data = input.data if packed else input
        check_data(type(self).__name__, data, weights, self.input_size, packed)
        missing = missing_recurrent_kernels(data.device)
        if missing is not None:
            raise RuntimeError(f"input: found on {data.device}: {missing}")
        T, batch = self._steps_and_batch(input)
        if T == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        L = self._config.layers * self._config.directions
        states = checked_states(hx, data, batch, L, self._sizes)
        segments = None if reset is None else self._segments(input, reset, T, batch)
        layers = partial(stack.run_layers, self._config, self.dropout if self.training else 0.0)
        scan = partial(self._projected, self._scan_of(input, segments))
        if packed:
            return stack.run_rows(input, states, weights, layers, scan)
        run = partial(layers, scan=scan)
        return stack.run_dense(input, states, weights, self.batch_first, run)

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Of the parts of a state: P, or P and H."""
        return (self.output_size, self.hidden_size)[: 1 + self.cell.has_c]

    def _steps_and_batch(self, input: Tensor | PackedSequence) -> tuple[int, tuple[int, ...]]:
        """T, and (B,) or ()."""
        if isinstance(input, PackedSequence):
            return len(input.batch_sizes), (int(input.batch_sizes[0]),)
        if input.dim() == 2:
            return input.shape[0], ()
        T, B = input.shape[:2]
        return (B, (T,)) if self.batch_first else (T, (B,))

    def _segments(
        self, input: Tensor | PackedSequence, reset: Any, T: int, batch: tuple[int, ...]
    ) -> Segments | None:
        """What resets leave of the sequences; None if there are none."""
        if self.batch_first and batch:
            check_reset(reset, (*batch, T), "(B, T)")
        else:
            check_reset(reset, (T, *batch), "(T, B)" if batch else "(T,)")
        mask = reset.detach().cpu()
        if not mask.any():
            return None
        mask = mask.unsqueeze(1) if not batch else mask.t() if self.batch_first else mask
        lengths = None
        if isinstance(input, PackedSequence):
            lengths = lengths_of(input.batch_sizes.numpy())
            if input.sorted_indices is not None:
                mask = mask[:, input.sorted_indices.cpu()]
        return Segments.of(mask.numpy(), lengths)

    def _scan_of(self, input: Tensor | PackedSequence, segments: Segments | None) -> Scan:
        """One direction of one layer, over the data of an input and what `project` made of it."""
        padded = partial(self._walk, marked=self.marks)
        device = (input.data if isinstance(input, PackedSequence) else input).device
        grouped, row_work = of_similar_length, 0
        if device.type == "cpu":  # elsewhere nobody has measured it
            row_work = self.row_work
            grouped = partial(cheapest, step_rows=self.step_rows, row_work=row_work)
        how = self.marks, grouped, row_work
        if segments is not None:
            spread = PackedScan(padded, self.cell, segments.sequences, device, *how)
            return ResetScan(spread, segments, self.reset_to == "initial", device)
        if isinstance(input, PackedSequence):
            return stack.packed_scan(input, self.cell, self._walk, padded, *how)
        return self._walk

    def _projected(
        self, scan: Scan, x: Tensor, states: Tensors, weights: Tensors, reverse: bool, place: int
    ) -> tuple[Tensor, ...]:
        with without_autocast(x.device.type):
            named = self._named(weights)
            if not self.takes_input(x, named):
                x = self.project(x, named, place)
            return scan(x, states, weights, reverse, place)

    def _walk(
        self, x: Tensor, states: Tensors, weights: Tensors, reverse: bool, place: int,
        marked: bool = False, ragged: ops.Ragged | None = None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        if ragged is not None:
            return self.walk_ragged(x, states, self._named(weights), ragged)
        return self.walk(x, states, self._named(weights), reverse, marked)

    def _named(self, weights: Tensors) -> Weights:
        return dict(zip(self._kinds, weights, strict=True))


def without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """For what was widened already: 16-bit results are those of a float32 recurrence."""
    if not torch._C._is_any_autocast_enabled():
        return nullcontext()
    return torch.autocast(device_type, enabled=False)
