"""Random functions of ours under random transforms of torch.func, beside loops over plain torch.

A function takes tensors, some of which are data, which may be mapped, and the others weights; its
twin is `bppsa_lightning.reference`. What a transform of the function gives is what loops over the
members, `torch.autograd.grad` and `torch.autograd.functional` give of the twin.
"""

import random
from typing import NamedTuple

import torch
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning import ops, reference

CELLS = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}


class Twins(NamedTuple):
    name: str
    ours: object
    twin: object
    arguments: list  # of tensors in float64
    data: int  # how many of them, from the first on


def layer_twin(cell, reverse, h0, c0, x, w):
    """One direction of one layer by the reference: output, h_n and an LSTM's c_n."""
    w_ih, w_hh, b_ih, b_hh, w_hr = w
    h0 = x.new_zeros(x.shape[1], w_hh.shape[1]) if h0 is None else h0
    last = 0 if reverse else -1
    if cell == "lstm":
        c0 = x.new_zeros(x.shape[1], w_hh.shape[0] // 4) if c0 is None else c0
        h, c = reference.lstm(x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, reverse)
        return h, h[last], c[last]
    if cell == "gru":
        h = reference.gru(x, h0, w_ih, w_hh, b_ih, b_hh, reverse)
    else:
        h = reference.rnn(x, h0, w_ih, w_hh, b_ih, b_hh, cell[4:], reverse)
    return h, h[last]


def random_layer(draw, tensor):
    """An operator: `ops.rnn`, `ops.gru` or `ops.lstm`."""
    cell, reverse, starts, bias = (
        draw.choice([*CELLS]), draw.random() < 0.5, draw.random() < 0.6, draw.random() < 0.7,
    )  # fmt: skip
    T, B, I, H = draw.randint(1, 5), draw.randint(1, 3), draw.randint(1, 5), draw.randint(1, 9)
    P = draw.randint(1, H) if cell == "lstm" and draw.random() < 0.4 else 0
    rows, shown = CELLS[cell] * H, P or H
    data = [tensor(T, B, I)] + ([tensor(B, shown)] if starts else [])
    data += [tensor(B, H)] if starts and cell == "lstm" else []
    weights = [tensor(rows, I), tensor(rows, shown)]
    weights += [tensor(rows), tensor(rows)] if bias else []
    weights += [tensor(shown, H)] if P else []

    def take(given):
        given = list(given)
        x, h0 = given.pop(0), given.pop(0) if starts else None
        c0 = given.pop(0) if starts and cell == "lstm" else None
        w_hr = given.pop() if P else None
        return x, h0, c0, (*given, *[None] * (4 - len(given)), w_hr)

    def ours(*given):
        x, h0, c0, w = take(given)
        if cell == "lstm":
            return ops.lstm(x, h0, c0, *w, reverse=reverse)
        run = ops.gru if cell == "gru" else ops.rnn
        options = {} if cell == "gru" else {"nonlinearity": cell[4:]}
        return run(x, h0, *w[:4], reverse=reverse, **options)

    def twin(*given):
        x, h0, c0, w = take(given)
        return layer_twin(cell, reverse, h0, c0, x, w)

    name = f"{cell} T={T} B={B} I={I} H={H} P={P} {reverse=} {starts=} {bias=}"
    return Twins(name, ours, twin, data + weights, len(data))


def random_module(draw, tensor):
    """An attached nn.RNN, nn.GRU or nn.LSTM, by functional_call."""
    kind = draw.choice([nn.RNN, nn.GRU, nn.LSTM])
    T, B, I, H = draw.randint(1, 4), draw.randint(1, 3), draw.randint(1, 4), draw.randint(2, 6)
    options = {
        "num_layers": draw.randint(1, 2), "bidirectional": draw.random() < 0.5,
        "bias": draw.random() < 0.7, "batch_first": draw.random() < 0.5,
    }  # fmt: skip
    if kind is nn.LSTM and draw.random() < 0.3:
        options["proj_size"] = draw.randint(1, H - 1)
    if kind is nn.RNN:
        options["nonlinearity"] = draw.choice(["tanh", "relu"])
    module = kind(I, H, **options).double()
    bl.attach(module)
    names = [name for name, _ in module.named_parameters()]
    directions = 1 + options["bidirectional"]
    L, shown = options["num_layers"] * directions, options.get("proj_size") or H
    starts, first = draw.random() < 0.6, options["batch_first"]
    data = [tensor(B, T, I) if first else tensor(T, B, I)]
    data += [tensor(L, B, shown)] if starts else []
    data += [tensor(L, B, H)] if starts and kind is nn.LSTM else []
    weights = [tensor(*p.shape) for p in module.parameters()]

    def ours(*given):
        x, *states = given[: len(data)]
        hx = None if not states else states[0] if kind is not nn.LSTM else tuple(states)
        parameters = dict(zip(names, given[len(data) :], strict=True))
        output, last = torch.func.functional_call(module, parameters, (x, hx))
        return (output, *last) if kind is nn.LSTM else (output, last)

    def twin(*given):
        x, *states = given[: len(data)]
        parameters = dict(zip(names, given[len(data) :], strict=True))
        x, lasts, outputs = x.transpose(0, 1) if first else x, [], []
        for k in range(L):
            layer, back = divmod(k, directions)
            end = f"_l{layer}" + "_reverse" * back
            kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
            w = [parameters.get(kind + end) for kind in kinds]
            h0, c0 = (*[s[k] for s in states], None, None)[:2]
            output, *last = layer_twin(module.mode.lower(), bool(back), h0, c0, x, w)
            lasts.append(last)
            outputs = [output] if not back else [*outputs, output]
            x = torch.cat(outputs, -1) if back or directions == 1 else x
        last = [torch.stack(same) for same in zip(*lasts, strict=True)]
        return (x.transpose(0, 1) if first else x, *last)

    name = f"attached {kind.__name__} T={T} B={B} I={I} H={H} {starts=} {options}"
    return Twins(name, ours, twin, data + weights, len(data))


def random_scan(draw, tensor):
    """`ops.reverse_scan`, `ops.diagonal_scan` or `ops.linear_recurrence`: all of it is data."""
    name = draw.choice(["reverse_scan", "diagonal_scan", "linear_recurrence"])
    T, B, H = draw.randint(1, 6), draw.randint(1, 3), draw.randint(1, 5)
    jacobians = tensor(T, B, H, H) if name == "reverse_scan" else tensor(T, B, H)
    arguments = [jacobians, tensor(T + (name != "linear_recurrence"), B, H)]
    if name == "linear_recurrence" and draw.random() < 0.5:
        arguments.append(tensor(B, H))

    def of(function):
        return lambda *given: (function(*given),)

    ours, twin = of(getattr(ops, name)), of(getattr(reference, name))
    return Twins(f"{name} T={T} B={B} H={H} of {len(arguments)}", ours, twin, arguments, 2)


FUNCTIONS = {"layer": random_layer, "module": random_module, "scan": random_scan}


def scalar(function):
    """A loss that reads all results, unlike in each number."""

    def loss(*given):
        return sum(
            (o.square() * torch.linspace(0.5, 1.5, o.numel(), dtype=o.dtype).view(o.shape)).sum()
            for o in function(*given)
        )

    return loss


def member(tensors, mapped, v):
    return [t.select(dim, v) if dim is not None else t for t, dim in zip(tensors, mapped)]


def grads(loss, arguments, create_graph=False):
    leaves = [a if create_graph else a.detach().requires_grad_() for a in arguments]
    return torch.autograd.grad(loss(*leaves), leaves, create_graph=create_graph)


def stacked(found):
    return [torch.stack(same) for same in zip(*found, strict=True)]


class Case:
    """What a seed draws; `results` are ours and the truth, two lists of tensors."""

    def __init__(self, seed, kind=None):
        draw = self._draw = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)

        def tensor(*size):
            return torch.randn(*size, generator=generator, dtype=torch.float64) / 2

        kind = kind or draw.choice(["layer", "layer", "module", "module", "scan"])
        self.of = FUNCTIONS[kind](draw, tensor)
        self.transform = draw.choice([*TRANSFORMS])
        self.V, self._tensor = draw.randint(1, 3), tensor
        self.name = f"{self.transform} of {self.of.name} V={self.V}"

    def mapped(self, weights=False):
        """Arguments, some with one more dimension, and where it is."""
        count = len(self.of.arguments) if weights else self.of.data
        chosen = [k < count and self._draw.random() < 0.7 for k in range(len(self.of.arguments))]
        chosen[len(chosen) - 1 if weights else 0] = True
        dims = [self._draw.randint(0, a.dim()) if c else None for a, c in self._each(chosen)]
        return [
            self._tensor(*a.shape[:d], self.V, *a.shape[d:]) if d is not None else a
            for a, d in self._each(dims)
        ], tuple(dims)

    def _each(self, others):
        return zip(self.of.arguments, others, strict=True)

    def results(self):
        return TRANSFORMS[self.transform](self)

    def error(self):
        """The largest difference of all results, in proportion to the largest number of each."""
        ours, truth = self.results()
        assert len(ours) == len(truth) > 0
        return max(
            float((a - b).abs().max() / (1 + b.abs().max())) if a.shape == b.shape else 1.0
            for a, b in zip(ours, truth, strict=True)
            if b.numel()
        )


def _grad(case):
    every = tuple(range(len(case.of.arguments)))
    ours = torch.func.grad(scalar(case.of.ours), every)(*case.of.arguments)
    return ours, grads(scalar(case.of.twin), case.of.arguments)


def _vmap(case, weights=False):
    given, dims = case.mapped(weights)
    ours = torch.func.vmap(case.of.ours, dims)(*given)
    return ours, stacked([case.of.twin(*member(given, dims, v)) for v in range(case.V)])


def _vmap_grad(case, weights=False):
    given, dims = case.mapped(weights)
    every = tuple(range(len(given)))
    ours = torch.func.vmap(torch.func.grad(scalar(case.of.ours), every), dims)(*given)
    loss = scalar(case.of.twin)
    return ours, stacked([grads(loss, member(given, dims, v)) for v in range(case.V)])


def _nested(case):
    """vmap(vmap(grad)): the outer one maps the first argument once more."""
    given, dims = case.mapped()
    outer = torch.stack([given[0], 1 - given[0]])
    every = tuple(range(len(given)))
    inner = torch.func.vmap(torch.func.grad(scalar(case.of.ours), every), dims)
    ours = torch.func.vmap(inner, (0, *[None] * (len(given) - 1)))(outer, *given[1:])
    loss, truth = scalar(case.of.twin), []
    for x in outer:
        each = [grads(loss, member([x, *given[1:]], dims, v)) for v in range(case.V)]
        truth.append(stacked(each))
    return ours, stacked(truth)


def _jacobian(case, transform):
    """Of the first output, in all arguments."""
    every = tuple(range(len(case.of.arguments)))
    ours = transform(lambda *given: case.of.ours(*given)[0], every)(*case.of.arguments)
    twin = lambda *given: case.of.twin(*given)[0]  # noqa: E731
    return ours, torch.autograd.functional.jacobian(twin, tuple(case.of.arguments))


def _jvp(case):
    tangents = tuple(case._tensor(*a.shape) for a in case.of.arguments)
    given = tuple(case.of.arguments)
    ours = torch.func.jvp(case.of.ours, given, tangents)[1]
    return ours, torch.autograd.functional.jvp(case.of.twin, given, tangents)[1]


def _hessian(case):
    """Of the first two arguments at most, which are data."""
    count = min(2, case.of.data)
    rest, given = case.of.arguments[count:], tuple(case.of.arguments[:count])
    losses = [lambda *a, f=f: scalar(f)(*a, *rest) for f in (case.of.ours, case.of.twin)]
    ours = torch.func.hessian(losses[0], tuple(range(count)))(*given)
    truth = torch.autograd.functional.hessian(losses[1], given)
    return [b for row in ours for b in row], [b for row in truth for b in row]


def _grad_of_grad(case):
    """A gradient penalty, sample by sample."""
    given, dims = case.mapped()
    every = tuple(range(len(given)))

    def penalty(*arguments):
        found = torch.func.grad(scalar(case.of.ours), every)(*arguments)
        return sum(g.square().sum() for g in found)

    def twin(*arguments):
        found = grads(scalar(case.of.twin), arguments, create_graph=True)
        return sum(g.square().sum() for g in found)

    ours = torch.func.vmap(torch.func.grad(penalty, every), dims)(*given)
    return ours, stacked([grads(twin, member(given, dims, v)) for v in range(case.V)])


TRANSFORMS = {
    "grad": _grad,
    "vmap": _vmap,
    "vmap(grad)": _vmap_grad,
    "vmap(vmap(grad))": _nested,
    "vmap of members' own weights": lambda case: _vmap(case, True),
    "vmap(grad) of members' own weights": lambda case: _vmap_grad(case, True),
    "jacrev": lambda case: _jacobian(case, torch.func.jacrev),
    "jacfwd": lambda case: _jacobian(case, torch.func.jacfwd),
    "jvp": _jvp,
    "hessian": _hessian,
    "vmap(grad(grad))": _grad_of_grad,
}
