"""Recurrent layers on CUDA: the fastest plan, and whether cuDNN is faster than all of them.

An estimate is a sum of terms in the layer's sizes (`walk_terms`, `chunk_terms`) with coefficients
in seconds, from the table of the GPU at hand (gpu_tables.py), else of another one; calibration/
fits them to what was measured there. The number of multiprocessors is the GPU's own.

    walk       a launch, T steps in sequence, and T * B times what each sample adds
    chunked    launches; C steps of composing, in as many turns as the lanes do not fit the device
               at once; the lanes' work; the carry over T/C chunks; T * B times what a sample adds

None takes less than the least that was measured, which is the host's time.

What was not measured is estimated so that cuDNN is rather taken for faster than it is: a layer of
ours takes the time of the next larger H that was measured, one of cuDNN's what lies between its
neighbours, and no more at larger batches than at those measured.

T steps, B batch, I input, H state, C chunk.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from bppsa_lightning._cells import CELLS
from bppsa_lightning.planner import kernels
from bppsa_lightning.planner.cost_dense import MAX_CHUNK
from bppsa_lightning.planner.gpu_tables import DEFAULT, GpuTable
from bppsa_lightning.planner.kernels import MOST_COMPOSED, MOST_RESIDENT, MOST_RESIDENT_ALONE
from bppsa_lightning.planner.plan import Plan, ceil_div, cheapest, chunked_plans, max_levels, units
from bppsa_lightning.planner.request import Request

# Of csrc/cuda/recurrent: threads of a composing block; the H that one compiled size serves.
_LANES = 128
_COMPILED = (8, 20, 32)
# One product of a chunked scan was measured at this H.
_FITTED_H = 20

# Multiply-adds a second of the products for inputs and parameters; reasoned, not measured: a plain
# tiled kernel on our side, cuBLAS at its best on the other.
_OUR_PRODUCTS, _STOCK_PRODUCTS = 5e12, 2e13
# Reasoned too, and rather too long: seconds of the launches that a projection adds to a forward and
# to a backward; the host's of spreading samples of different lengths, for a call, for each row, and
# for each scan.
_PROJECTED_LAUNCHES = (3e-5, 6e-5)
_SPREAD_CALL, _SPREAD_ROW, _SPREAD_SCAN = 5e-4, 2e-8, 5e-4
# Measured on an H200, and rather too short: seconds of a step, forward and backward, where cuDNN
# has no kernel that walks a whole sequence. With different lengths it took 33 to 41 us at every
# size that was tried, with a projection 65 (experiments/records/h200_layers.json).
_STOCK_STEP_OF_LENGTHS, _STOCK_STEP_PROJECTED = 3e-5, 6e-5
# Measured on an H200: seconds of the host for a forward and a backward in windows, whatever the
# size (experiments/records/h200_windows.json: 1.0 to 1.4 ms). A guess: steps of a warm-up.
_WINDOWS_HOST, _WINDOWS_WARM = 1.2e-3, 128
# Numbers of all products of chunks that a plan may hold at a time: 1 GiB of float32.
_MOST_PRODUCTS = 1 << 28


def kind(cell: str) -> str:
    """The measured cell that stands for `cell`: both RNNs take the same time."""
    return CELLS[cell].kind.lower()


def walk_terms(T: int, B: int) -> tuple[float, ...]:
    return (1.0, float(T), float(T) * B)


def chunk_terms(
    T: int, B: int, H: int, chunk: int, states: int, resident: int, processors: int
) -> tuple[float, ...]:
    """`states`: vectors of H numbers in the state. `resident`: blocks on one multiprocessor."""
    inner = max(ceil_div(T, chunk) - 2, 0)
    lanes = B + inner * B * (states * H + 1)
    blocks = ceil_div(lanes, _LANES)
    turns = ceil_div(ceil_div(blocks, processors), resident)
    return (1.0, chunk * turns, chunk * blocks / processors, float(inner), float(T) * B)


def chunks(T: int) -> list[int]:
    """The chunks worth a try: small ones, and near the root of T, where phases balance."""
    root = 2 ** max(round(math.log2(max(T, 1)) / 2), 3)
    return [c for c in sorted({8, 16, 32, MAX_CHUNK, 2 * root, 4 * root}) if c < T]


@dataclass(frozen=True)
class CudaLayerSize:
    """One direction of one recurrent layer; multiprocessors of the GPU, whether it clusters, and
    what was measured on it."""

    cell: str
    T: int
    B: int
    H: int
    I: int = 1
    processors: int = DEFAULT.processors
    clusters: bool = True
    projected: int = 0  # P of an LSTM with a projection
    dtype: str = "float32"  # of the arithmetic
    table: GpuTable = DEFAULT

    @property
    def most_resident(self) -> int:
        alone = kind(self.cell) != "rnn" and not self.clusters
        return MOST_RESIDENT_ALONE if alone else MOST_RESIDENT

    @property
    def _fit(self) -> dict[str, Any]:
        cells = self.table.cells if self.timed else DEFAULT.cells
        fit: dict[str, Any] = cells[kind(self.cell)]
        return fit

    @property
    def timed(self) -> bool:
        """Whether its cell was timed on the GPU of the table."""
        return kind(self.cell) in self.table.cells

    def backward_kernel(self, plan: Plan) -> str:
        """The name (kernels.py) of what computes a plan's backward."""
        return kernels.backward(self.cell, self.dtype, self.T, self.H, self.clusters, plan)

    def backward(self, plan: Plan) -> float:
        """Seconds of the whole backward on the device, parameter gradients included."""
        composed = self.H <= MOST_COMPOSED and plan.chunk < self.T
        if plan.algorithm == "chunked" and composed and self._fit["chunked"]:
            fit, states = self._fit, 1 + CELLS[self.cell].has_c
            terms = chunk_terms(
                self.T, self.B, self.H, plan.chunk, states, fit["resident"], self.processors
            )
            compiled = next(h for h in _COMPILED if h >= self.H) / _FITTED_H
            scales = (1.0, compiled**2, compiled**2, compiled, 1.0)
            seconds = sum(a * b * c for a, b, c in zip(terms, scales, fit["chunked"], strict=True))
        else:
            seconds = self._walk("backward")
        products = self._input_products(2) + self._projections(3)
        return seconds + products / _OUR_PRODUCTS + (self.projected > 0) * _PROJECTED_LAUNCHES[1]

    def forward(self) -> float:
        """Seconds of the forward."""
        products = self._input_products(1) + self._projections(1)
        seconds = self._walk("forward") + products / _OUR_PRODUCTS
        more = (self.projected > 0) * _PROJECTED_LAUNCHES[0]
        return max(self.least("forward"), seconds) + more

    def least(self, part: str) -> float:
        """Seconds that the host takes for our "forward" or "backward"."""
        return float(self._fit["least"][part])

    def stock(self, part: str) -> float:
        """Seconds of cuDNN's "forward" or "backward", without a projection."""
        products = self._input_products(1 if part == "forward" else 2) / _STOCK_PRODUCTS
        measured = self._fit["stock"]
        sizes = sorted(map(int, measured))
        above = next((h for h in sizes if h >= self.H), sizes[-1])
        below = max((h for h in sizes if h <= self.H), default=above)
        times = [self._stock_at(measured[str(h)][part]) for h in (below, above)]
        share = (self.H - below) / (above - below) if above > below else 0.0
        return times[0] + share * (times[1] - times[0]) + products

    def costs_of_windows(self, stock: bool) -> tuple[float, float]:
        """What `choose_cut` (windows/cut.py) asks, of cuDNN's kernels if `stock`, else of ours.

        Returns:
            What a forward and its backward cost beside their steps, in steps of few samples; the
            samples that a step takes twice as long with.
        """
        whose = "stock" if stock else "ours"
        both = [self._measured(whose, part) for part in ("forward", "backward")]
        least = [self.least(part) for part in ("forward", "backward")]
        if stock:
            least, both = [fit["least"] for fit in both], [fit["terms"] for fit in both]
        step, sample = (sum(terms[i] for terms in both) for i in (1, 2))
        # What was measured with one batch size shows nothing of what a sample adds.
        rows = min(step / sample if sample else math.inf, self._side_by_side())
        return sum(least) / step, float(rows)

    def gain_of_windows(self) -> float:
        """How many times as fast as the walk of "auto" our kernels are estimated to be in windows.

        The host waits for each pass, so that its time and the device's add up.
        """
        both = [self._measured("ours", part) for part in ("forward", "backward")]
        step, sample = (sum(terms[i] for terms in both) for i in (1, 2))
        rows = max(self.B, min(step / sample if sample else math.inf, self._side_by_side()))
        steps = self.T * self.B / rows + _WINDOWS_WARM
        walk = self.forward() + choose(self, "auto").seconds
        return walk / (_WINDOWS_HOST + steps * (step + rows * sample))

    def _measured(self, whose: str, part: str) -> Any:
        """Of "ours" or "stock", what was fitted at the next larger H that was measured."""
        measured = self._fit[whose]
        H = next((h for h in sorted(map(int, measured)) if h >= self.H), max(map(int, measured)))
        return measured[str(H)][part]

    def _stock_at(self, fit: dict[str, Any]) -> float:
        seconds = sum(a * b for a, b in zip(walk_terms(self.T, self.B), fit["terms"], strict=True))
        return max(float(fit["least"]), seconds)

    def _walk(self, part: str) -> float:
        turns = ceil_div(self.B, max(self._side_by_side(), 1))
        launch, step, sample = self._measured("ours", part)
        return float(launch + self.T * (turns * step + self.B * sample))

    def _side_by_side(self) -> int:
        """Samples that the device walks at once: a warp each, a multiprocessor, or eight."""
        if self.H <= MOST_COMPOSED:
            return 8 * self.processors
        clusters = self.H > MOST_RESIDENT_ALONE and kind(self.cell) != "rnn"
        return self.processors // 8 if clusters else self.processors

    def _input_products(self, count: int) -> float:
        """Multiply-adds of `count` products of all inputs, which were measured with I = 1."""
        rows = CELLS[self.cell].gates * self.H
        return float(count) * self.T * self.B * rows * (self.I - 1)

    def _projections(self, count: int) -> float:
        """Multiply-adds of `count` products of all states with w_hr, and of w_hh with it."""
        return float(count) * self.projected * self.H * (self.T * self.B + 4 * self.H)


def size_of(
    request: Request, processors: int, clusters: bool, table: GpuTable = DEFAULT
) -> CudaLayerSize:
    """One direction of a requested layer, on a GPU with so many multiprocessors and this table."""
    T, B, H, I, P = request.T, request.B, request.H, request.I, request.P
    dtype = kernels.arithmetic(request.dtype)
    return CudaLayerSize(request.cell, T, B, H, I, processors, clusters, P, dtype, table)


def choose(layer: CudaLayerSize, algorithm: str) -> Plan:
    """The plan of a layer's backward; anything but "auto" is obeyed.

    For "auto" kernels that are known to be right come before all others.
    """
    if algorithm == "blelloch":
        # Its Jacobians are written out, and nobody measured when that pays: it has no estimate.
        return Plan("blelloch", levels=max_levels(layer.T), reason="as asked; not estimated")
    chunk_sizes = [c for c in chunks(layer.T) if _products_fit(layer, c)]
    composed = layer.H <= MOST_COMPOSED and layer.T > 0 and layer.B > 0
    plans = [Plan("linear")]
    if algorithm == "chunked":
        plans = chunked_plans(layer.T, chunk_sizes)
    elif algorithm == "auto" and composed:
        plans += [Plan("chunked", chunk=c) for c in chunk_sizes]
        right = layer.table.right
        plans = [plan for plan in plans if layer.backward_kernel(plan) in right] or plans
    plan, rivals = cheapest(plans, lambda plan: layer.backward(plan) if layer.B else 0.0)
    seconds = max(layer.least("backward"), plan.seconds)
    return replace(plan, seconds=seconds, reason=_reason(layer, algorithm, plan, rivals))


def _products_fit(layer: CudaLayerSize, chunk: int) -> bool:
    """Whether the products of all chunks fit the memory that they are given."""
    N = layer.H * (1 + CELLS[layer.cell].has_c)
    products = ceil_div(layer.T, chunk) * layer.B * N * (N + 1)
    return layer.H > MOST_COMPOSED or products <= _MOST_PRODUCTS


def _reason(layer: CudaLayerSize, algorithm: str, plan: Plan, rivals: dict[str, float]) -> str:
    if algorithm == "chunked" and layer.H > MOST_COMPOSED:
        return f"as asked; walked, as chunks pay up to {MOST_COMPOSED} hidden units"
    if algorithm != "auto":
        return "as asked"
    least = layer.least("backward")
    ratios = ", ".join(
        f"{name} {max(least, seconds) / max(least, plan.seconds):.1f}x"
        for name, seconds in {"cuDNN": layer.stock("backward"), **rivals}.items()
    )
    on = units("cuda", layer.processors)
    return f"fastest on {on}; {ratios} as long (estimated; {layer.table.source})"


def not_resident(layer: CudaLayerSize) -> str | None:
    """Why PyTorch is better for a layer whose recurrent matrix no multiprocessor holds, or None."""
    if layer.most_resident >= layer.H:
        return None
    return (
        f"hidden {layer.H}: above {layer.most_resident} the CUDA kernels would read the recurrent "
        "matrix again in every step, for each sample by itself"
    )


def fallback_reason(
    layer: CudaLayerSize,
    layers: int = 1,
    directions: int = 1,
    lengths: tuple[int, int] | None = None,
) -> str | None:
    """Why cuDNN is the better choice for a forward and a backward of a layer, or None.

    Args:
        layer: one of the `layers` * `directions`, all of about this size. cuDNN is taken to run
            the directions of a layer side by side.
        lengths: of samples of different lengths, all their steps, and the steps of all padded
            tensors that they are spread over. cuDNN is taken to need no more for each of T steps
            than for as many samples as there are on average.
    """
    reason = not_resident(layer)
    if reason is not None:
        return reason
    if layer.T == 0 or layer.B == 0:
        return None
    walked, beside, more = layer, layer, 0.0
    if lengths is not None:
        N, steps = lengths
        walked, beside = replace(layer, T=steps), replace(layer, B=max(N // layer.T, 1))
        more = (_SPREAD_CALL + N * _SPREAD_ROW) / layers + directions * _SPREAD_SCAN
    ours = directions * (walked.forward() + choose(walked, "auto").seconds) + more
    stock = beside.stock("forward") + beside.stock("backward")
    if lengths is not None:
        stock = max(stock, layer.T * _STOCK_STEP_OF_LENGTHS)
    if layer.projected:
        stock = max(stock, layer.T * _STOCK_STEP_PROJECTED)
    if ours <= stock:
        return None
    both = ", bidirectional" if directions == 2 else ""
    times = f"{layers * stock * 1e3:.2f} ms, the scan {layers * ours * 1e3:.2f} ms"
    return (
        f"seq_len {layer.T}, batch {layer.B}, hidden {layer.H}{both}: cuDNN is estimated to take "
        f"{times} ({layer.table.source})"
    )
