"""Random modules of `bl.nn`, in all their options, against plain loops in float64.

    PYTHONPATH=.:tests python tests/nn/at_random.py 0 1000      # seeds 0 to 999
    PYTHONPATH=.:tests python tests/nn/at_random.py 12 13 -v

Every seed is a case by itself: cell, layers, directions, sizes, layout (time first, batch first,
one sample, packed in any order), initial states, resets, recurrent dropout, zoneout, training or
evaluation. Compared are output, last states, and the gradients of input, initial states and all
parameters. What differs by more than 1e-10 of the largest number is printed, with all that the
seed drew; ends with status 1 then.
"""

import argparse
import random
import sys
import warnings
from unittest.mock import patch

import torch
from support.nn_loops import CELLS, ByUnit, Recorded, loop
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import bppsa_lightning as bl
from bppsa_lightning.nn import by_scan

TOLERANCE = 1e-10


class Case:
    """One seed's module, input and results.

    Attributes:
        options: what was drawn, for people.
    """

    def __init__(self, seed, **fixed):
        self.r = r = random.Random(seed)
        torch.manual_seed(seed)
        cell, H = r.choice(CELLS), r.choice([1, 1, 2, 3, 5, 8])
        noisy = r.random() < 0.4
        o = {
            "cell": cell, "T": r.choice([1, 1, 2, 3, 5, 8, 13, 30]), "B": r.choice([1, 1, 2, 3, 5]),
            "I": r.randint(1, 4), "H": H, "layers": r.choice([1, 1, 2, 3]),
            "both": r.random() < 0.4, "bias": r.random() < 0.85, "states": r.random() < 0.6,
            "proj": r.randint(1, H - 1) if cell == "LSTM" and H > 1 and r.random() < 0.4 else 0,
            "layout": r.choice(["time", "time", "batch", "one", "packed", "unsorted"]),
            "resets": r.choice(["", "none", "all", "first", "last", "some", "some", "many", "few"]),
            "reset_to": r.choice(["zeros", "initial"]), "training": r.random() < 0.7,
            "recurrent_dropout": 0.3 if noisy and cell != "MinGRU" and r.random() < 0.6 else 0.0,
            "zoneout": 0.2 if noisy and r.random() < 0.6 else 0.0,
            "relu": r.random() < 0.4, "normalize": r.random() < 0.6,
        }  # fmt: skip
        if r.random() < 0.03:  # as long as `bl.scan` wants it for windows
            o["T"] = 200
        o |= fixed
        o["proj"] *= o["cell"] == "LSTM"
        self.options = o
        if o["layout"] == "one":
            o["B"] = 1
        elif not o["layout"].endswith(("packed", "sorted")) and r.random() < 0.05:
            o["B"] = 0
        # One row has no variance; in evaluation, running statistics would rule.
        o["normalize"] &= o["cell"] == "LiGRU" and o["T"] * o["B"] != 1
        special = {
            "RNN": {"nonlinearity": "relu" if o["relu"] else "tanh"},
            "IndRNN": {"nonlinearity": "relu" if o["relu"] else "tanh"},
            "LSTM": {"proj_size": o["proj"]},
            "LiGRU": {"normalize": o["normalize"]},
        }
        self.module = getattr(bl.nn, o["cell"])(
            o["I"], o["H"], num_layers=o["layers"], bias=o["bias"],
            batch_first=o["layout"] == "batch", bidirectional=o["both"], dtype=torch.float64,
            reset_to=o["reset_to"], recurrent_dropout=o["recurrent_dropout"], zoneout=o["zoneout"],
            **special.get(o["cell"], {}),
        )  # fmt: skip
        # Whatever begins as 0 or 1 is to count.
        with torch.no_grad():
            for p in self.module.parameters():
                p += 0.3 * torch.randn_like(p)
        o["training"] |= o["normalize"]
        self.module.train(o["training"])
        self._draw()

    def _draw(self):
        o, r = self.options, self.r
        T, B = o["T"], o["B"]
        self.x = torch.randn(T, B, o["I"], dtype=torch.float64, requires_grad=True)
        P, L = o["proj"] or o["H"], o["layers"] * (1 + o["both"])
        sizes = (P, o["H"])[: 1 + self.module.cell.has_c]
        self.states = [
            torch.randn(L, B, size, dtype=torch.float64, requires_grad=True)
            for size in sizes if o["states"]
        ]  # fmt: skip
        self.packed = o["layout"] in ("packed", "unsorted")
        self.lengths = [r.randint(1, T) if self.packed else T for _ in range(B)]
        if self.packed:
            self.lengths[r.randrange(B)] = T
        if o["layout"] == "packed":
            self.lengths.sort(reverse=True)
        self.reset = torch.zeros(T, B, dtype=torch.bool)
        if o["resets"] == "first":
            self.reset[0] = True
        elif o["resets"] == "last":
            self.reset[-1] = True
        else:
            p = {"all": 1.0, "some": 0.3, "many": 0.7, "few": 0.05}.get(o["resets"], 0.0)
            self.reset = torch.rand(T, B) < p
        self.cotangents = [torch.randn(T, B, P * (1 + o["both"]), dtype=torch.float64)]
        self.cotangents += [torch.randn(L, B, size, dtype=torch.float64) for size in sizes]

    def differences(self):
        """{what: how far it is off, of the largest number}."""
        spread = self.packed or bool(self.reset.any())
        masks = ByUnit() if spread else Recorded(by_scan.drawn)
        with patch.object(by_scan, "drawn", masks.draw):
            found = self._results(*self._call())
        wanted = self._results(
            *loop(self.module, self.x, self.states, self.reset, self.lengths, masks)
        )
        return {
            name: float((found[name] - t).abs().max() / t.abs().max().clamp_min(1))
            if t.numel()
            else 0.0
            for name, t in wanted.items()
        }

    def _call(self):
        o, x, reset = self.options, self.x, self.reset if self.options["resets"] else None
        states, one = self.states, o["layout"] == "one"
        if o["layout"] == "batch":
            x, reset = x.transpose(0, 1), None if reset is None else reset.t()
        elif one:
            x, reset = x[:, 0], None if reset is None else reset[:, 0]
            states = [s[:, 0] for s in states]
        elif self.packed:
            x = pack_padded_sequence(x, torch.tensor(self.lengths), False, o["layout"] == "packed")
        hx = None if not states else states[0] if len(states) == 1 else tuple(states)
        output, last = self.module(x, hx, reset)
        last = last if isinstance(last, tuple) else (last,)
        if o["layout"] == "batch":
            output = output.transpose(0, 1)
        elif one:
            output, last = output.unsqueeze(1), [s.unsqueeze(1) for s in last]
        elif self.packed:
            output, _ = pad_packed_sequence(output)
        return output, last

    def _results(self, output, last):
        leaves = {"x": self.x, **{f"state {i}": s for i, s in enumerate(self.states)}}
        leaves |= dict(self.module.named_parameters())
        total = sum((t * c).sum() for t, c in zip((output, *last), self.cotangents, strict=True))
        gradients = [None] * len(leaves)
        if total.requires_grad:  # not of a loop over no samples
            gradients = torch.autograd.grad(total, leaves.values(), allow_unused=True)
        results = {f"result {i}": t.detach() for i, t in enumerate((output, *last))}
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            results[f"gradient of {name}"] = (
                torch.zeros_like(leaf) if gradient is None else gradient
            )
        return results


def wrong(seed, verbose=False, **fixed):
    """{what: how far it is off} of what is wrong in a seed's case, which is printed."""
    case = Case(seed, **fixed)
    differences = case.differences()
    found = {name: d for name, d in differences.items() if not d <= TOLERANCE}
    if found or verbose:
        print(f"seed {seed}: {case.options}: {found or differences}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("-v", "--verbose", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(asked.first, asked.end)
    bad = sum(bool(wrong(seed, asked.verbose)) for seed in seeds)
    print(f"{len(seeds)} cases, {bad} wrong")
    return int(bad > 0)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sys.exit(main())
