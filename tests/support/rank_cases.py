"""Random recurrent layers divided over ranks, beside one process' own.

    python rank_cases.py FOLDER RANKS FIRST END

Every rank makes the cases of seeds FIRST to END, each over a group of some of the ranks, and
compares what it has with PyTorch's layer, walked by itself. Writes FOLDER/<rank>.json: what was
wrong, and how the cases were walked.

T steps, B samples, I input, H hidden, P ranks.
"""

import copy
import json
import random
import sys
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import bppsa_lightning as bl
from bppsa_lightning.ranks import Spans
from support.of_ranks import begin

KINDS = {
    "tanh": partial(nn.RNN, nonlinearity="tanh"),
    "relu": partial(nn.RNN, nonlinearity="relu"),
    "GRU": nn.GRU,
    "LSTM": nn.LSTM,
}
SIZES = (1, 2, 3, 4, 8)
LOSSES = ("output", "last step", "states", "both")


class Case:
    """A seed's layer and inputs, the same in every process."""

    def __init__(self, seed):
        r = self.r = random.Random(seed)
        torch.manual_seed(seed)
        kind = r.choice(list(KINDS))
        self.ranks = r.choice(SIZES)
        self.sharded = r.random() < 0.35
        T = r.choice([r.randint(*ends) for ends in ((1, 9), (8, 100), (100, 600), (600, 2500))])
        B, I, H = r.choice([1, 1, 2, 3, 6]), r.randint(1, 5), r.randint(1, 12)
        projected = kind == "LSTM" and H > 1 and r.random() < 0.3
        layers = r.choice([1, 1, 1, 2, 3])
        self.made = {
            "num_layers": layers, "bidirectional": r.random() < 0.3,
            "proj_size": r.randint(1, H - 1) if projected else 0,
            "batch_first": r.random() < 0.3, "bias": r.random() < 0.85,
            "dropout": 0.4 if layers > 1 and not self.sharded and r.random() < 0.3 else 0.0,
        }  # fmt: skip
        self.options = {
            "kind": kind, "T": T, "B": B, "I": I, "H": H, **self.made, "ranks": self.ranks,
            "dtype": r.choice(["float64", "float64", "float32"]), "sharded": self.sharded,
            "algorithm": r.choice(["auto", "linear", "blelloch", "speculative", "speculative"]),
            "gain": r.choice([1.0, 1.0, 0.3, 2.0]), "states": r.random() < 0.5,
            "packed": r.random() < 0.2, "loss": r.choice(LOSSES),
            "frozen": r.choice(["", "", "", "input", "parameters"]),
            "checkpoint": r.random() < 0.15, "unbatched": B == 1 and r.random() < 0.1,
        }  # fmt: skip
        o = self.options
        o["unbatched"] &= not o["packed"] and not self.sharded
        if o["frozen"] == "parameters":
            o["checkpoint"] = False
        self.dtype = getattr(torch, o["dtype"])
        given = {k: v for k, v in self.made.items() if k != "proj_size" or v}
        self.stock = KINDS[kind](I, H, **given).to(self.dtype)
        with torch.no_grad():
            for name, p in self.stock.named_parameters():
                if name.startswith("weight_hh"):
                    p *= o["gain"]
                p.requires_grad_(o["frozen"] != "parameters")
        self.x = torch.randn(T, B, I, dtype=self.dtype)
        both = layers * (1 + self.made["bidirectional"])
        sizes = [self.made["proj_size"] or H] + ([H] if kind == "LSTM" else [])
        self.hx = [torch.randn(both, B, n, dtype=self.dtype) for n in sizes] if o["states"] else []
        self.lengths = torch.tensor([r.randint(max(1, T // 3), T) for _ in range(B)])
        width = sizes[0] * (1 + self.made["bidirectional"])
        self.weights = torch.randn(T, B, width, dtype=self.dtype)
        if o["loss"] == "last step":
            self.weights[:-1] = 0
        self.of_states = torch.randn(both, B, max(sizes), dtype=self.dtype)

    def run(self, layer, x, hx, weights, begin=None):
        """Outputs and gradients of a step; weights (T, B, D*P) are those of the loss.

        Args:
            begin: of x in the whole sequence, if it is a span; None for the whole.
        """
        o, first = self.options, self.made["batch_first"]
        torch.manual_seed(1)  # of dropout
        x = x.clone().requires_grad_(o["frozen"] != "input")
        hx = [s.clone().requires_grad_() for s in hx]
        given = x.squeeze(1) if o["unbatched"] else x.transpose(0, 1) if first else x
        states = [s.squeeze(1) if o["unbatched"] else s for s in hx]
        states = (tuple(states) if len(states) == 2 else states[0]) if states else None
        if o["packed"] and begin is not None:
            given = packed_span(x, self.lengths, begin)
        elif o["packed"]:
            given = pack_padded_sequence(given, self.lengths, first, enforce_sorted=False)
        if o["checkpoint"] and not o["packed"]:
            output, last = checkpoint(layer, given, states, use_reentrant=False)
        else:
            output, last = layer(given, states)
        if o["packed"] and begin is not None:
            output = padded_span(output, *weights.shape[:2])
            output = output.transpose(0, 1) if first else output
        elif o["packed"]:
            output, _ = pad_packed_sequence(output, first, total_length=len(weights))
        output = output.unsqueeze(1) if o["unbatched"] else output
        output = output.transpose(0, 1) if first and not o["unbatched"] else output
        last = [s.unsqueeze(1) if o["unbatched"] else s for s in _several(last)]
        loss = output.sum() * 0
        if o["loss"] != "states":
            loss = loss + (output * weights).sum()
        if o["loss"] in ("states", "both"):
            for s in last:
                loss = loss + (s * self.of_states[..., : s.shape[-1]]).sum()
        if loss.requires_grad:
            loss.backward()
        found = {"output": output, "x": x.grad}
        found |= {f"last {i}": s for i, s in enumerate(last)}
        found |= {f"state {i}": s.grad for i, s in enumerate(hx)}
        found |= {name: p.grad for name, p in layer.named_parameters()}
        return {k: v if v is None else v.detach().clone() for k, v in found.items()}

    def wanted(self):
        """By PyTorch: in float64, in its own precision, and likewise with weights rounded anew."""
        own = self.run(copy.deepcopy(self.stock), self.x, self.hx, self.weights)
        if self.dtype == torch.float64:
            return own, own, own
        aside = copy.deepcopy(self.stock)
        for p in aside.parameters():
            p.data *= 1 + torch.finfo(p.dtype).eps * torch.randn_like(p)
        aside = self.run(aside, self.x, self.hx, self.weights)
        if self.made["dropout"]:
            return own, own, aside  # another dtype, another mask
        wide = copy.copy(self)
        wide.of_states = self.of_states.double()
        of = self.stock, self.x, self.hx, self.weights
        exact = wide.run(
            copy.deepcopy(of[0]).double(), of[1].double(), [s.double() for s in of[2]],
            of[3].double(),
        )  # fmt: skip
        return exact, own, aside

    def divided(self, group):
        """By this rank of a group, in the same terms; and how."""
        layer = copy.deepcopy(self.stock)
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        bl.attach(layer, self.options["algorithm"], group=group, sharded=self.sharded)
        lengths = self.lengths_of(size)
        for _ in range(2 if self.options["algorithm"] in ("auto", "speculative") else 1):
            layer.zero_grad()
            x, weights, begin = self.x, self.weights, None
            if self.sharded:
                span = Spans(lengths).of(rank)
                x, weights, begin = x[span], weights[span], span.start
            found = self.run(layer, x, self.hx, weights, begin)
        return found, bl.explain(layer)

    def lengths_of(self, size):
        """Of sharded spans: any, some of them perhaps 0."""
        r, T = random.Random(self.r.random()), self.options["T"]
        if self.r.random() < 0.5:
            return Spans.equal(T, size).lengths
        cuts = sorted(r.randint(0, T) for _ in range(size - 1))
        return [b - a for a, b in zip([0, *cuts], [*cuts, T], strict=True)]


def packed_span(x, lengths, begin):
    """The steps x (T, B, I) from `begin` on, of samples of these lengths, packed."""
    T, B = x.shape[:2]
    order = lengths.argsort(descending=True)
    has_step = lengths[order] - begin > torch.arange(T)[:, None]
    sizes = has_step.sum(1)
    data = x.index_select(1, order)[has_step]
    return PackedSequence(data, sizes[sizes > 0], order, order.argsort())


def padded_span(packed, T, B):
    """(T, B, F) of the same, with zeros where there is nothing."""
    sizes = torch.zeros(T, dtype=torch.int64)
    sizes[: len(packed.batch_sizes)] = packed.batch_sizes
    has_step = torch.arange(B) < sizes[:, None]
    padded = packed.data.new_zeros(T, B, packed.data.shape[1])
    return padded.masked_scatter(has_step[..., None], packed.data).index_select(
        1, packed.unsorted_indices
    )


def _several(last):
    return list(last) if isinstance(last, tuple) else [last]


def _error(found, truth, whole):
    """As `relative_error`, in proportion to the largest number of all ranks.

    Or of this one, where another's share overflows.
    """
    if not truth.numel():
        return 0.0
    whole = whole if bool(whole.isfinite().all()) else truth
    size = float(whole.abs().max()) or 1e-300
    return float((found.double() - truth.double()).abs().max()) / size


def compare(case, group):
    """What is wrong with this rank's results, in words."""
    state = case.r.getstate()
    exact, own, aside = case.wanted()
    case.r.setstate(state)
    found, how = case.divided(group)
    case.r.setstate(state)
    sizes = {name: t for name, t in exact.items() if t is not None}
    if case.sharded:
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        span = Spans(case.lengths_of(size)).of(rank)
        for side in {id(side): side for side in (exact, own, aside)}.values():
            for name in ("output", "x"):
                side[name] = side[name] if side[name] is None else side[name][span]
        for name, g in found.items():
            if g is not None and not name.startswith(("output", "last", "x")):
                dist.all_reduce(g, group=group)
    wrong = []
    for name, truth in exact.items():
        have, walked = found[name], own[name]
        if truth is None or have is None:
            if (truth is None) != (have is None) and bool(truth is not None and truth.any()):
                wrong.append(f"{name}: found {have is not None}, wanted {truth is not None}")
            continue
        if have.shape != truth.shape:
            wrong.append(f"{name}: shape {tuple(have.shape)}, wanted {tuple(truth.shape)}")
            continue
        if not truth.isfinite().all() or not walked.isfinite().all():
            if bool(have.isfinite().all()):
                wrong.append(f"{name}: finite, PyTorch's overflows")
            continue
        if truth.numel() and float(truth.abs().max()) < 1e4 * torch.finfo(case.dtype).tiny:
            continue  # kernels flush what has faded to denormal numbers
        error = _error(have, truth, sizes[name])
        of_walk = max(_error(w, truth, sizes[name]) for w in (walked, aside[name]))
        most = 1e-10 if case.dtype == torch.float64 else max(5e-6, 3 * of_walk)
        if not error <= most:
            wrong.append(f"{name}: error {error:.1e}, PyTorch's {of_walk:.1e}")
    return wrong, how


def main():
    folder, ranks, first, end = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    # Ranks wait for those that have more cases to make.
    begin(ranks, seconds=300)
    groups = {n: dist.new_group(range(n), timedelta(seconds=300)) for n in SIZES if n <= ranks}

    wrong, hows = {}, Counter()
    for seed in range(first, end):
        case = Case(seed)
        group = groups.get(case.ranks)
        if group is None or dist.get_rank() >= case.ranks:
            continue
        found, how = compare(case, group)
        hows.update(line.split(";")[-1].strip() for line in how.splitlines() if "gradients" in line)
        if found:
            wrong[seed] = {"options": case.options, "wrong": found, "how": how.splitlines()[2:]}
            print(seed, case.options, *found, sep="\n  ", flush=True)
    dist.barrier()
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps({"wrong": wrong, "how": hows}))


if __name__ == "__main__":
    main()
