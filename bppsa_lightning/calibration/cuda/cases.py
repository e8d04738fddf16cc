"""What each recurrent CUDA kernel is tested on: small and odd sizes, either end of its units.

T steps, B batch, I input, H state, P projected.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bppsa_lightning._cells import CELLS
from bppsa_lightning.planner import Plan, Saved, kernels, max_levels

# Of csrc/cuda/recurrent/compose.cuh: so many lanes a multiprocessor, and each takes two columns, of
# 20 units of one state.
_LANES_OF_TWO_COLUMNS = 1024


@dataclass(frozen=True)
class Case:
    """One call, and whose test it is.

    Attributes:
        kernel: the name (planner/kernels.py) of what is tested.
        needs: the names of what else runs, tested before.
        cell, dtype: of `_cells.CELLS`; "float32" or "float64".
        T, B, I, H, P: sizes; P is 0 without a projection.
        backward: whether there is one, under these: algorithm, chunk, levels, saved.
        reverse: whether time runs backwards.
        lengths: whether samples have different ones, up to T.
        initial, bias: whether there are initial states and biases.
        every: whether a gradient flows in at every output, or at the last states alone.
    """

    kernel: str
    needs: tuple[str, ...]
    cell: str
    dtype: str
    T: int
    B: int
    I: int
    H: int
    P: int = 0
    backward: bool = True
    algorithm: str = "linear"
    chunk: int = 0
    levels: int = 0
    saved: int = int(Saved.GATES)
    reverse: bool = False
    lengths: bool = False
    initial: bool = True
    bias: bool = True
    every: bool = True

    @property
    def task(self) -> dict[str, Any]:
        """As tasks.py takes it."""
        return {"case": asdict(self)}

    @property
    def plan(self) -> Plan:
        """The backward's."""
        return Plan(self.algorithm, self.chunk, self.levels, saved=Saved(self.saved))

    def __str__(self) -> str:
        sizes = f"T={self.T}, B={self.B}, I={self.I}, H={self.H}"
        sizes += f", P={self.P}" if self.P else ""
        way = {"chunked": f"chunks of {self.chunk}", "blelloch": f"{self.levels} levels"}
        options = [way.get(self.algorithm, "linear") if self.backward else "forward alone"]
        options += ["reverse"] * self.reverse + ["samples of different lengths"] * self.lengths
        options += ["gates again"] * (self.saved == Saved.STATES)
        options += ["no initial state"] * (not self.initial) + ["no bias"] * (not self.bias)
        options += ["gradient of the last state"] * (not self.every)
        return f"{CELLS[self.cell].label}, {self.dtype}, {sizes}: {', '.join(options)}"


_IN_TORCH = tuple(name for name, cell in CELLS.items() if cell.in_torch)


def of_gpu(
    clusters: bool, processors: int, cells: Sequence[str] = _IN_TORCH
) -> dict[str, list[Case]]:
    """The cases of every kernel, in an order in which what a case needs comes before it.

    Args:
        clusters: whether blocks can share a sample. processors: multiprocessors.
        cells: of `_cells.CELLS`; by default those that layers of PyTorch have.
    """
    found: dict[str, list[Case]] = {}
    for cell in cells:
        for dtype in kernels.DTYPES:
            tests = _Tests(cell, dtype, clusters, processors)
            for case in (*tests.sizes(), *tests.options()):
                found.setdefault(case.kernel, []).append(case)
    return found


@dataclass(frozen=True)
class _Tests:
    """The cases of one cell in one dtype."""

    cell: str
    dtype: str
    clusters: bool
    processors: int

    def sizes(self) -> Iterator[Case]:
        below = 0
        for units in kernels.sizes(self.cell, self.dtype, self.clusters):
            yield from self._of_size(below, units)
            below = units

    def _of_size(self, below: int, units: int) -> Iterator[Case]:
        """Of one compiled size: the least H, an odd one, and the most."""
        most = min(units, below + 50)  # of very large states
        for H in sorted({below + 1, (below + most) // 2 | 1, most}):
            forward = self._case("forward", 7, 3, 3, H, backward=False)
            yield forward
            yield replace(forward, T=1, B=1, I=40, initial=False, bias=False)
            yield self._case("forward_one_input", 9, 2, 1, H, backward=False)
            yield self._case("linear", 9, 3, 2, H)
            yield self._case("linear", 20, 1, 1, H, every=False, initial=False)
            if H > kernels.MOST_COMPOSED:
                continue
            chunked = self._case("chunked", 26, 2, 1, H, algorithm="chunked", chunk=8)
            yield chunked
            yield replace(chunked, T=67, chunk=17, every=False)
            yield self._case(
                "chunked", 30, 3, 3, H, algorithm="chunked", chunk=3, bias=False, initial=False
            )
            if (self.dtype, H) == ("float32", 20) and not CELLS[self.cell].has_c:
                # Chunks enough for the lanes that take two columns each.
                B = _LANES_OF_TWO_COLUMNS * self.processors // (40 * (H + 1)) + 1
                yield replace(chunked, T=320, B=B)
            levels = {"algorithm": "blelloch", "levels": max_levels(13)}
            yield self._case("blelloch", 13, 2, 1, H, **levels)
            yield replace(self._case("blelloch", 13, 1, 2, H, **levels), levels=2)

    def options(self) -> Iterator[Case]:
        cell = CELLS[self.cell]
        for I, H in ((1, 6), (3, 20)):
            plain = self._case("linear", 11, 3, I, H)
            chunked = self._case("chunked", 26, 3, I, H, algorithm="chunked", chunk=8)
            for case in (plain, chunked):
                yield self._with("reverse", case, reverse=True)
                if cell.saved:
                    yield self._with("gates_again", case, saved=int(Saved.STATES))
                if cell.has_c:
                    yield self._with("projection", case, P=H // 2)
            if cell.has_c:
                back = self._with("reverse", plain, T=1, initial=False, bias=False, reverse=True)
                yield self._with("projection", back, P=H - 1)
            # One more input feature, which keeps the states of shorter samples as they were.
            several = replace(plain, I=I + 1, needs=(self._name("forward", H),))
            yield self._with("lengths", several, lengths=True, T=20, B=4)

    def _name(self, part: str, H: int) -> str:
        return kernels.sized(self.cell, self.dtype, H, self.clusters, part)

    def _case(self, part: str, T: int, B: int, I: int, H: int, **more: object) -> Case:
        needs = []
        if part in kernels.BACKWARD:
            needs.append(self._name("forward_one_input" if I == 1 else "forward", H))
        name, size = self._name(part, H), (T, B, I, H)
        return Case(name, tuple(needs), self.cell, self.dtype, *size, **more)  # type: ignore[arg-type]

    def _with(self, option: str, case: Case, **more: object) -> Case:
        """A case as one of an option, which needs what the case was of."""
        name = kernels.option(self.cell, self.dtype, option)
        return replace(case, kernel=name, needs=(*case.needs, case.kernel), **more)  # type: ignore[arg-type]
