"""`bl.scan`: any recurrence, given as the function of one step.

T steps, B samples.
"""

from typing import Any

import torch
from torch import Tensor, nn

from bppsa_lightning._context import unsupported_transform
from bppsa_lightning.steps import cells, checkpoints, jacobians
from bppsa_lightning.steps.checkpoints import Checkpoints
from bppsa_lightning.steps.engine import Step, StepEngine
from bppsa_lightning.steps.frozen import frozen
from bppsa_lightning.steps.known import Known, known_of
from bppsa_lightning.steps.probe import STEPS, Probe, check_result
from bppsa_lightning.steps.trees import Tree, flatten, mapped
from bppsa_lightning.windows import Cut, checkpointed, differentiated, forget_casts, speculate
from bppsa_lightning.windows.cut import Leaves

ALGORITHMS = ("auto", "linear", "chunked", "blelloch", "speculative")

# Below, nothing is worth a look.
_LEAST_STEPS = 128


@torch.compiler.disable
def scan(
    step: Step,
    init: Any,
    xs: Any,
    *,
    algorithm: str = "auto",
    reverse: bool = False,
    reset: Tensor | None = None,
    checkpoint: bool = False,
    memory: int | None = None,
) -> tuple[Any, Any]:
    """Applies a step to one time step after the other: ``carry, y = step(carry, x)``.

    The same results as the loop::

        ys = []
        for x in xs:
            carry, y = step(carry, x)
            ys.append(y)
        ys = torch.stack(ys)

    but where the recurrence forgets, windows of time are walked side by side, as samples of one
    batch, verified, and repaired where they miss: a fraction of the calls of `step`, forward and
    backward. The signature is that of `jax.lax.scan`; trees are those of torch.utils._pytree,
    in which None is an empty one.

    Args:
        step: takes the carry, a tree of tensors (B, ...), and x, of tensors (B, ...); returns the
            next carry, of the same shapes and dtypes, and y, a tree of tensors (B, ...), or None.
            A function, an nn.Module or what torch.compile makes of them (whose Python is walked in
            windows, unless `torch._functorch.config.donated_buffer` is False). It may read
            parameters and other tensors; gradients flow there, too. It is called another number of
            times than there are steps, and with other numbers of samples, so it must be a pure
            function: a step that is seen to mix samples, to draw random numbers, to change tensors
            or variables of its own, to decide by numbers of its arguments or to read a tensor with
            a row for each sample (which belongs into xs) is walked as a loop. An
            nn.RNNCell, nn.GRUCell or nn.LSTMCell may be given as it is: its carry is h, or (h, c),
            y is the new h, and fused kernels compute all steps.
        init: the first carry.
        xs: a tree of tensors (T, B, ...), T >= 1.
        algorithm: "linear" is the loop, "speculative" windows wherever any fit; "auto" takes
            them if they are estimated to be 1.5 times as fast. "chunked" and "blelloch": the loop
            forwards, and a scan of the step's Jacobians for its gradients, whatever it remembers;
            so does "auto" where windows do not pay and the state is small.
        reverse: time runs from T-1 down to 0; ys[t] is of step t.
        reset: (T, B) bool: where it is true, a sample's carry is set to zeros before that step.
        checkpoint: whether, for the backward, only some carries are kept, and the steps between
            them walked again: of T steps about as much memory as of the square root of T, for the
            time of one more forward. Whatever the algorithm; a scan of Jacobians keeps no more
            than the carries anyway.
        memory: bytes that may be kept for the backward beside xs, ys and gradients. Where an
            estimate says that more would be, the scan is checkpointed, as seldom as fits.

    Returns:
        The last carry, and ys, a tree of tensors (T, B, ...), or None. Differentiable as often as
        the step is; once where a scan of its Jacobians gives the gradients.

    Raises:
        TypeError, ValueError: an argument is not as documented, the step returned something
            else, or it is to be checkpointed and cannot be walked again; the message says what was
            found and what was wanted.

    `bl.explain(module)` shows what became of the scans that use a module's parameters.
    """
    if algorithm not in ALGORITHMS:
        wanted = ", ".join(ALGORITHMS)
        raise ValueError(f"algorithm: found {algorithm!r}, wanted one of {wanted}")
    state, inputs = _checked(init, xs)
    budget = _budget(checkpoint, memory)
    if reset is not None:
        step, xs, inputs = _with_resets(step, xs, inputs, reset)
    if reverse:
        inputs = [x.flip(0) for x in inputs]
    if isinstance(step, nn.RNNCellBase):
        fused = cells.scan(step, init, inputs, algorithm, budget)
        if fused is not None:
            carry, y = fused
            return carry, y.flip(0) if reverse else y
        step = cells.as_step(step)
    trees = flatten(init)[1], flatten(xs)[1]
    ys, last = (call := _Call(step, *trees, state, inputs, budget)).run(algorithm)
    if reverse:
        ys = [y.flip(0) for y in ys]
    return call.engine.state_tree.unflatten(last), call.engine.y_tree.unflatten(ys)


class _Call:
    """One scan: how it is walked, and by what."""

    def __init__(
        self, step: Step, state_tree: Tree, x_tree: Tree, state: Leaves, inputs: Leaves,
        budget: int | None,
    ) -> None:  # fmt: skip
        self.step, self.state, self.inputs, self.budget = step, state, inputs, budget
        self.in_python = _in_python(step)
        checked = _checking(step, state_tree, state)
        self.engine = StepEngine(checked, state_tree, x_tree, (), self.in_python)
        self.again: StepEngine | None = None  # where a walk may be repeated

    def run(self, algorithm: str) -> tuple[list[Tensor], list[Tensor]]:
        least = {"linear": float("inf"), "auto": _LEAST_STEPS}.get(algorithm, 2)
        short = len(self.inputs[0]) < least
        if short and self.budget is None:
            return self._loop(None)
        reason = unsupported_transform() or self._unfit()
        if reason is not None:
            return self._loop(reason)
        init = self.engine.state_tree.unflatten(self.state)
        steps = range(min(STEPS, len(self.inputs[0])))
        xs = [self.engine.x_tree.unflatten([x[t] for x in self.inputs]) for t in steps]
        # Several backwards go through one graph, which a compiled one with donated buffers refuses.
        donates = torch._functorch.config.donated_buffer
        step = self.in_python if donates else self.step
        probe = Probe(step, self.in_python, init, xs, self.inputs)
        forget_casts()

        def engine_of(step: Step) -> StepEngine:
            trees = self.engine.state_tree, self.engine.x_tree
            in_python = frozen(self.in_python)
            step = in_python if step is self.in_python else frozen(step)
            return StepEngine(
                step,
                *trees,
                probe.tensors,
                in_python,
                probe.constants,
                probe.detached,
                probe.writes,
                probe.reached,
                probe.places,
            )

        engine = engine_of(step)
        known = known_of(self.in_python, probe.tensors, self.state, self.inputs)
        if probe.repeats:
            self.again = engine_of(self.step)
        if probe.reason is not None or short:
            return self._loop(probe.reason, known)
        if algorithm in ("chunked", "blelloch"):
            return self._jacobians(known, engine, algorithm)
        return self._windows(known, engine, algorithm == "speculative")

    def _jacobians(
        self, known: Known, engine: StepEngine, algorithm: str, because: str = ""
    ) -> tuple[list[Tensor], list[Tensor]]:
        reason = jacobians.unfit(self.state)
        if reason is not None:
            return self._loop(reason, known)
        how = "" if algorithm == "auto" else f"{algorithm} "
        known.note(None, f"{because}gradients by a {how}scan of its Jacobians")
        self.engine = engine
        return jacobians.scan_jacobians(engine, self.inputs, self.state, algorithm)

    def _windows(
        self, known: Known, engine: StepEngine, asked: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        if any(s.is_complex() for s in self.state):  # which are no nearer or farther
            return self._loop("the carry is complex", known)
        memory = known.memory
        plan = memory.plan(engine, self.inputs, self.state, asked)
        if plan is None:
            if not asked and self._scan_pays(engine):
                return self._jacobians(known, engine, "auto", f"{memory.reason}; ")
            return self._loop(memory.reason, known)
        found = self._checkpoints(engine, plan.cut)
        if self.budget and found.kept > self.budget and not asked:
            memory.report = None
            return self._loop("windows would keep more than the given memory", known)
        try:
            results = speculate(engine, self.inputs, self.state, *plan, found.steps)
        except Exception as error:  # in a warm-up; or of the step's own, which the loop will raise
            memory.fail(error)
        else:
            known.note(plan.cut, None, found)
            self.engine = engine
            return results
        return self._loop(memory.reason, known)

    def _scan_pays(self, engine: StepEngine) -> bool:
        if not differentiated(engine, self.inputs, self.state):
            return False
        carries = len(self.inputs[0]) * sum(s.nbytes for s in self.state)
        if self.budget and carries > self.budget:
            return False
        return not jacobians.unfit(self.state) and jacobians.pays(self.state)

    def _loop(
        self, reason: str | None, known: Known | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        found = self._checkpoints_of_loop(reason)
        if known is not None:
            known.note(None, reason, found)
        if not found.steps:
            return self.engine(self.inputs, self.state)
        assert self.again is not None
        self.engine = self.again
        return checkpointed(self.engine, self.inputs, self.state, found.steps)

    def _checkpoints_of_loop(self, reason: str | None) -> Checkpoints:
        """Raises ValueError where they are wanted, and the loop cannot be walked again."""
        if self.again is not None:
            return self._checkpoints(self.again, checkpoints.whole(len(self.inputs[0])))
        if self.budget is not None and torch.is_grad_enabled():
            raise ValueError(
                f"checkpoint, memory: found a step that cannot be walked again ({reason}), wanted "
                "a pure function of its arguments and of tensors that it reads"
            )
        return checkpoints.NONE

    def _checkpoints(self, engine: StepEngine, cut: Cut) -> Checkpoints:
        if self.budget is None or not differentiated(engine, self.inputs, self.state):
            return checkpoints.NONE
        kept = checkpoints.kept_of(engine, self.inputs, self.state)
        return checkpoints.choose(kept, cut, self.budget)

    def _unfit(self) -> str | None:
        """Why these arguments are for a loop."""
        B = self.state[0].shape[0] if self.state[0].dim() else -1
        if any(s.dim() < 1 or s.shape[0] != B for s in self.state) or B < 1:
            return "the carry does not have the samples in dimension 0"
        if any(x.dim() < 2 or x.shape[1] != B for x in self.inputs):
            return "xs do not have the samples in dimension 1"
        return None


def _checked(init: Any, xs: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The leaves of both."""
    trees = {}
    for name, tree in (("init", init), ("xs", xs)):
        trees[name] = leaves = flatten(tree)[0]
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                raise TypeError(f"{name}: found a {type(leaf).__name__} in it, wanted tensors")
        if not leaves:
            raise ValueError(f"{name}: found a tree without tensors, wanted at least one")
    lengths = {x.shape[0] if x.dim() else None for x in trees["xs"]}
    if len(lengths) > 1 or None in lengths or lengths == {0}:
        shapes = ", ".join(str(tuple(x.shape)) for x in trees["xs"])
        raise ValueError(f"xs: found tensors {shapes}, wanted (T, B, ...) with one T >= 1")
    return trees["init"], trees["xs"]


def _budget(checkpoint: bool, memory: int | None) -> int | None:
    """The bytes that may be kept; 0 for as few as can be, None for any number."""
    if memory is None:
        return 0 if checkpoint else None
    if isinstance(memory, bool) or not isinstance(memory, int):
        raise TypeError(f"memory: found {type(memory).__name__}, wanted a number of bytes, or None")
    if memory < 0:
        raise ValueError(f"memory: found {memory}, wanted a number of bytes >= 0")
    return memory


def _with_resets(
    step: Step, xs: Any, inputs: list[Tensor], reset: Tensor
) -> tuple[Step, Any, list[Tensor]]:
    """The same with a step that takes (x, reset)."""
    if not isinstance(reset, Tensor) or reset.dtype != torch.bool:
        found = reset.dtype if isinstance(reset, Tensor) else type(reset).__name__
        raise TypeError(f"reset: found {found}, wanted a tensor of torch.bool")
    if reset.dim() != 2 or reset.shape[0] != len(inputs[0]):
        T = len(inputs[0])
        raise ValueError(f"reset: found {tuple(reset.shape)}, wanted (T, B) with T = {T}")
    inner = cells.as_step(step) if isinstance(step, nn.RNNCellBase) else step

    def resetting(carry: Any, both: tuple[Any, Tensor]) -> tuple[Any, Any]:
        x, now = both
        return inner(mapped(lambda s: _zeros_where(now, s), carry), x)

    resetting.__wrapped__ = step  # type: ignore[attr-defined]
    return resetting, (xs, reset), [*inputs, reset]


def _zeros_where(now: Tensor, state: Tensor) -> Tensor:
    return state.masked_fill(now.reshape(-1, *[1] * (state.dim() - 1)), 0)


def _checking(step: Step, tree: Tree, init: Leaves) -> Step:
    """A step whose first result is checked: a probe, which does so, looks at long scans only."""
    seen = False

    def checking(carry: Any, x: Any) -> Any:
        nonlocal seen
        result = step(carry, x)
        if not seen:
            check_result(result, tree, init)
            seen = True
        return result

    return checking


def _in_python(step: Step) -> Step:
    """A step without what torch.compile made of it."""
    original = getattr(step, "_orig_mod", None) or getattr(step, "_torchdynamo_orig_callable", None)
    return original or step
