"""Random recurrent layers under `bl.attach(layer, "speculative")`, and PyTorch's own.

T steps, B samples, I input, H hidden.
"""

import copy
import random
from functools import partial

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import bppsa_lightning as bl
from support import random_inputs as draw
from support.judged import Call, aside

_KINDS = {
    "tanh": partial(nn.RNN, nonlinearity="tanh"),
    "relu": partial(nn.RNN, nonlinearity="relu"),
    "GRU": nn.GRU,
    "LSTM": nn.LSTM,
}
_BIASES = (*["usual"] * 3, "remembers", "negative", "negative")
_STRIDES = ("", "", "features", "time", "samples")
_CALLS = 3

# T * layers * directions * (H / 64)^2, where that is more than one: PyTorch walks for some seconds.
_MOST_STEPS = 6000


class RandomLayer:
    """A seed's layer, called three times: the second time with inputs of another kind.

    Attributes:
        options: what was drawn, for people.
        dtype: of all numbers.
    """

    def __init__(self, seed, longest=5000):
        r = self.r = random.Random(seed)
        torch.manual_seed(seed)
        kind, B = r.choice([*_KINDS, "LSTM"]), 1 if r.random() < 0.5 else r.randint(2, 8)
        I, H = r.randint(1, 8), int(draw.log_uniform(r, 1, 65))
        H = r.choice([128, 200, 256]) if r.random() < 0.06 else H
        projected = kind == "LSTM" and H > 1 and r.random() < 0.25
        self.made = {
            "num_layers": r.choice([1, 1, 1, 2, 3]), "bidirectional": r.random() < 0.25,
            "proj_size": r.randint(1, H - 1) if projected else 0,
            "batch_first": r.random() < 0.3, "bias": r.random() < 0.85,
        }  # fmt: skip
        both = self.made["num_layers"] * (1 + self.made["bidirectional"])
        most = int(_MOST_STEPS / both / max(1, H / 64) ** 2)
        self.dtype = torch.float64 if r.random() < 0.2 else torch.float32
        self.options = {
            "kind": kind, "T": min(draw.steps(r, longest), most), "B": B, "I": I, "H": H,
            **{name: value for name, value in self.made.items() if value != (name == "bias")},
            "dtype": str(self.dtype)[6:], "gain": draw.gain(r), "biases": r.choice(_BIASES),
            "packed": r.random() < 0.2, "states": r.random() < 0.5,
            "frozen": r.choice(draw.FROZEN),
            "strided": r.choice(_STRIDES), "unbatched": B == 1 and r.random() < 0.15,
            "loss": r.choice(draw.LOSSES), "of_last": r.random() < 0.5,
            "inputs": r.choice(draw.INPUTS), "then": r.choice(draw.INPUTS),
            "blind": r.choice(draw.BLIND),
        }  # fmt: skip
        self.options["unbatched"] &= not self.options["packed"]
        self.stock = self._layer(kind, I, H)
        self.layer = copy.deepcopy(self.stock)
        bl.attach(self.layer, "speculative")

    def calls(self):
        """One after the other, as a memory learns from them."""
        for i in range(_CALLS):
            drawn = self._drawn(self.options["then" if i == 1 else "inputs"])
            with draw.blind(self.options["blind"]):
                found = self._results(self.layer, *drawn)
            how = [line for line in bl.explain(self.layer).splitlines() if "windows of" in line]
            kernels = partial(self._walk, drawn, self.dtype, attached=True)
            yield Call(found, partial(self._walk, drawn), kernels, how)

    def _layer(self, kind, I, H):
        o, r = self.options, self.r
        layer = _KINDS[kind](I, H, **{k: v for k, v in self.made.items() if k != "proj_size" or v})
        layer = layer.to(self.dtype)
        with torch.no_grad():
            for name, p in layer.named_parameters():
                if name.startswith("weight_hh"):
                    p *= o["gain"]
                if name.startswith("bias_ih") and o["biases"] == "negative":
                    p -= r.uniform(1, 8)
                if name.startswith("bias_ih") and o["biases"] == "remembers" and p.numel() > H:
                    p[H : 2 * H] += 10  # forget gates of an LSTM, update gates of a GRU
                some = o["frozen"] == "some" and r.random() < 0.5
                p.requires_grad_(o["frozen"] not in ("parameters", "all") and not some)
        return layer

    def _drawn(self, inputs):
        """x (T, B, I), first states, lengths of samples, and the steps that the loss reads."""
        o, r, both = self.options, self.r, 1 + self.made["bidirectional"]
        T, B, H = o["T"], o["B"], o["H"]
        x = draw.shaped(r, torch.randn(T, B, o["I"]), inputs).to(self.dtype)
        states = []
        if o["states"]:
            sizes = [self.made["proj_size"] or H] + ([H] if o["kind"] == "LSTM" else [])
            of_all = self.made["num_layers"] * both
            states = [torch.randn(of_all, B, size).to(self.dtype) for size in sizes]
        lengths, rows, last = None, T, 1
        if o["packed"]:
            shortest = T if r.random() < 0.2 else max(1, T // 3)
            lengths = torch.tensor([r.randint(shortest, T) for _ in range(B)])
            rows = int(lengths.sum())
            last = int((lengths == lengths.max()).sum())
        return x, states, lengths, draw.read(r, o["loss"], rows, last)

    def _walk(self, drawn, dtype, seed, attached=False):
        """By PyTorch's layer, or by our kernels."""
        layer, (x, states, *rest) = copy.deepcopy(self.stock), drawn
        if seed is not None:
            generator = torch.Generator().manual_seed(seed)
            x, *states = (aside(t, generator) for t in (x, *states))
            for p in layer.parameters():
                p.data = aside(p.data, generator)
        if attached:
            bl.attach(layer, "linear")
        states = [s.to(dtype) for s in states]
        return self._results(layer.to(dtype), x.to(dtype), states, *rest, strided=False)

    def _results(self, layer, x, states, lengths, weights, strided=True):
        o, first = self.options, self.made["batch_first"]
        x = self._laid_out(x, strided).requires_grad_(o["frozen"] not in ("inputs", "all"))
        given, batch = x.squeeze(1) if o["unbatched"] else x, 1 if first else 0
        if first and not o["unbatched"]:
            given = given.transpose(0, 1)
        if lengths is not None:
            given = pack_padded_sequence(given, lengths, first, enforce_sorted=False)
        states = [s.clone().requires_grad_(o["frozen"] != "all") for s in states]
        hx = [s.squeeze(1) if o["unbatched"] else s for s in states]
        hx = (tuple(hx) if len(hx) == 2 else hx[0]) if hx else None
        for p in layer.parameters():
            p.grad = None
        y, last = layer(given, hx)
        y = y.data if lengths is not None else y
        last = last if isinstance(last, tuple) else (last,)
        in_time = y.transpose(0, 1) if batch and lengths is None and y.dim() == 3 else y
        w = torch.rand(in_time.shape, generator=torch.Generator().manual_seed(5))
        w = w * weights.reshape(-1, *[1] * (in_time.dim() - 1))
        loss = (w.to(y.dtype) * in_time).sum()
        if o["of_last"]:
            loss = loss + sum(t.square().sum() for t in last)
        if loss.requires_grad:
            loss.backward()
        leaves = {"x": x, **dict(zip(("h0", "c0"), states)), **dict(layer.named_parameters())}
        found = {"y": y, **dict(zip(("h_n", "c_n"), last))}
        found = {name: t.detach() for name, t in found.items()}
        return found | {f"gradient of {n}": t.grad for n, t in leaves.items() if t.requires_grad}

    def _laid_out(self, x, strided):
        """x (T, B, I) as a leaf, with other strides if they are wanted."""
        x, how = x.detach().clone(), self.options["strided"] if strided else ""
        if how == "features":
            return torch.stack([x, x], -1)[..., 0]
        if how == "time":
            return torch.stack([x, x], 1).flatten(0, 1)[::2]
        return x.transpose(0, 1).contiguous().transpose(0, 1) if how == "samples" else x
