"""Random recurrences through `bl.scan`, and the loops that they stand for.

T steps, B samples, I input, H hidden.
"""

import copy
import random
from functools import partial

import torch
from torch import nn
from torch.utils import _pytree as pytree

import bppsa_lightning as bl
from bppsa_lightning.steps import scans_of
from experiments.benchmarks.loops import CELLS, first_state, inputs_of
from support import random_inputs as draw
from support.judged import Call, aside
from support.windows import loop

_TORCH = {"RNNCell": nn.RNNCell, "GRUCell": nn.GRUCell, "LSTMCell": nn.LSTMCell}


class Stepped(nn.Module):
    """One of PyTorch's cells in a step of a user's own, which no fused kernels walk."""

    def __init__(self, kind, I, H):
        super().__init__()
        self.cell = kind(I, H)
        self.state = (H, H) if kind is nn.LSTMCell else (H,)

    def forward(self, state, x):
        after = self.cell(x, state if len(state) == 2 else state[0])
        state = after if isinstance(after, tuple) else (after,)
        return state, state[0]


_ALGORITHMS = ("auto", "linear", "chunked", "blelloch", *["speculative"] * 6)

# T * B * S^2, for S numbers of a state: a scan of Jacobians takes some seconds for more.
_MOST_PRODUCTS = 2e7


class RandomScan:
    """A seed's recurrence.

    Attributes:
        options: what was drawn, for people.
        dtype: of all numbers.
    """

    def __init__(self, seed, longest=5000):
        r = self.r = random.Random(seed)
        torch.manual_seed(seed)
        name = r.choice([*CELLS, *_TORCH])
        T, B = draw.steps(r, longest), r.choice([1, 1, 2, 3, 5, 8])
        I, H = r.randint(1, 6), int(draw.log_uniform(r, 1, 65))
        self.algorithm = r.choice(_ALGORITHMS)
        if self.algorithm in ("chunked", "blelloch", "auto"):
            H = min(H, 12)
        if self.algorithm in ("chunked", "blelloch"):
            T = min(T, int(_MOST_PRODUCTS / (B * (2 * H + I) ** 2)))
        self.dtype = torch.float64 if r.random() < 0.25 else torch.float32
        self.options = {
            "cell": name, "T": T, "B": B, "I": I, "H": H, "algorithm": self.algorithm,
            "dtype": str(self.dtype)[6:], "gain": draw.gain(r),
            "gain_of_all": 1.0 if r.random() < 0.75 else round(draw.log_uniform(r, 0.3, 4), 2),
            "reset": r.choice([0, 0, 0, 0.002, 0.03]), "reverse": r.random() < 0.2,
            "frozen": r.choice(draw.FROZEN),
            "loss": r.choice(draw.LOSSES), "of_carry": r.random() < 0.5,
            "blind": r.choice(draw.BLIND), "inputs": r.choice(draw.INPUTS),
            "calls": 2 if r.random() < 0.25 else 1,
        }  # fmt: skip
        # (Not drawn by `r`: seeds have remained the cases that they were.)
        self.options["checkpoint"] = random.Random(f"checkpoint {seed}").random() < 0.25
        # Given to `scan` as it is, or in a step.
        self.options["bare"] = name in _TORCH and r.random() < 0.3
        cell = Stepped(_TORCH[name], I, H) if name in _TORCH else CELLS[name](I, H)
        self.cell = cell.to(self.dtype)
        with torch.no_grad():
            for name, p in self.cell.named_parameters():
                p *= self.options["gain_of_all"]
                if ("hh" in name and p.dim() > 1) or name == "v":
                    p *= self.options["gain"]
                some = self.options["frozen"] == "some" and r.random() < 0.5
                p.requires_grad_(self.options["frozen"] not in ("parameters", "all") and not some)

    def calls(self):
        """One after the other, as a memory learns from them."""
        for _ in range(self.options["calls"]):
            drawn = self._drawn()
            with draw.blind(self.options["blind"]):
                found = self._results(self._scan, self.cell, *drawn)
            how = [str(k) for k in scans_of(self.cell.parameters()) if "windows of" in str(k)]
            kernels = partial(self._walk, drawn, self.dtype, by=self._linear)
            yield Call(found, partial(self._walk, drawn), kernels, how)

    def _walk(self, drawn, dtype, seed, by=None):
        cell, (*numbers, reset, weights) = copy.deepcopy(self.cell), drawn
        if seed is not None:
            generator = torch.Generator().manual_seed(seed)
            numbers = pytree.tree_map(lambda t: aside(t, generator), numbers)
            for p in cell.parameters():
                p.data = aside(p.data, generator)
        numbers = pytree.tree_map(lambda t: t.to(dtype), numbers)
        return self._results(by or self._loop, cell.to(dtype), *numbers, reset, weights)

    def _drawn(self):
        """The first carry, xs, where carries are reset, and the steps that the loss reads."""
        o, r = self.options, self.r
        T, B, cell = o["T"], o["B"], self.cell
        init, xs = first_state(cell, B), inputs_of(cell, T, B, o["I"])
        first, *others = pytree.tree_leaves(xs)
        leaves = [draw.shaped(r, first, o["inputs"]), *others]
        xs = pytree.tree_unflatten(leaves, pytree.tree_structure(xs))
        reset = torch.rand(T, B) < o["reset"] if o["reset"] else None
        weights = draw.read(r, o["loss"], T)
        if o["reverse"]:
            weights = weights.flip(0)
        init, xs = pytree.tree_map(lambda t: t.to(self.dtype), (init, xs))
        return init, xs, reset, weights

    def _results(self, walk, cell, init, xs, reset, weights):
        o = self.options
        given = {"init": init, "xs": xs}
        leaves = {}
        for name, tree in given.items():
            wanted = o["frozen"] not in ("all", "inputs" if name == "xs" else "")
            given[name] = tree = pytree.tree_map(
                lambda t, wanted=wanted: t.detach().clone().requires_grad_(wanted), tree
            )
            leaves |= {f"{name}[{i}]": t for i, t in enumerate(pytree.tree_leaves(tree))}
        leaves |= dict(cell.named_parameters())
        for t in leaves.values():
            t.grad = None
        carry, ys = walk(cell, given["init"], given["xs"], reset)
        generator, loss = torch.Generator().manual_seed(5), torch.zeros(())
        for y in pytree.tree_leaves(ys):
            w = torch.rand(y.shape, generator=generator)
            w = w * weights.reshape(-1, *[1] * (y.dim() - 1))
            loss = loss + (w.to(y.dtype) * y).sum()
        if o["of_carry"]:
            loss = loss + sum(t.square().sum() for t in pytree.tree_leaves(carry))
        if loss.requires_grad:
            loss.backward()
        found = {}
        for name, tree in (("y", ys), ("carry", carry)):
            same = enumerate(pytree.tree_leaves(tree))
            found |= {f"{name}[{i}]": t.detach() for i, t in same}
        return found | {f"gradient of {n}": t.grad for n, t in leaves.items() if t.requires_grad}

    def _scan(self, cell, init, xs, reset, algorithm=None):
        how = {"algorithm": algorithm or self.algorithm, "reverse": self.options["reverse"]}
        how["checkpoint"] = self.options["checkpoint"] and algorithm is None
        if not self.options["bare"]:
            return bl.scan(cell, init, xs, reset=reset, **how)
        carry, y = bl.scan(cell.cell, init if len(init) == 2 else init[0], xs, reset=reset, **how)
        return carry if len(init) == 2 else (carry,), y

    def _linear(self, *arguments):
        return self._scan(*arguments, "linear")

    def _loop(self, cell, init, xs, reset):
        def step(carry, both):
            x, *now = both
            if now:
                carry = tuple(torch.where(now[0][:, None], 0.0, s) for s in carry)
            return cell(carry, x)

        def turned(tree):
            return pytree.tree_map(lambda t: t.flip(0), tree) if self.options["reverse"] else tree

        carry, ys = loop(step, init, turned((xs,) if reset is None else (xs, reset)))
        return carry, turned(ys)
