"""Random classes that override the forward of nn.RNN, nn.GRU and nn.LSTM, attached and not.

    python tests/support/overridden.py [CASES] [FIRST_SEED]

The judge of an attached module is its twin that is not attached: outputs and all gradients, in
float64. Prints how many of the cases are wrong, and their seeds.
"""

import copy
import pickle
import random
import sys

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import bppsa_lightning as bl


def once(self, super_forward, x, hx):
    return super_forward(x, hx)


def twice(self, super_forward, x, hx):
    """Both ways through the same weights."""
    output, last = super_forward(x, hx)
    again, _ = super_forward(reversed_in_time(self, x), last)
    return combined(output, again), last


def branch(self, super_forward, x, hx):
    data = x.data if isinstance(x, PackedSequence) else x
    return super_forward(x, hx) if data.sum() > 0 else super_forward(scaled(x, -0.5))


def other_arguments(self, super_forward, x, hx):
    output, last = super_forward(input=scaled(x, 2.0), hx=None)
    return output, last if hx is None else super_forward(x, hx)[1]


def chained(self, super_forward, x, hx):
    """The state of one call into the next, step by step groups of a padded input."""
    if isinstance(x, PackedSequence) or x.dim() != 3:
        return super_forward(x, hx)
    outputs = []
    for piece in x.split(3, 1 if self.batch_first else 0):
        output, hx = super_forward(piece, hx)
        outputs.append(output)
    return torch.cat(outputs, 1 if self.batch_first else 0), hx


def decorated(self, super_forward, x, hx):
    output, last = super_forward(x, hx)
    return scaled(output, 0.7), last


BODIES = (once, twice, branch, other_arguments, chained, decorated)


def scaled(x, factor):
    return PackedSequence(x.data * factor, *x[1:]) if isinstance(x, PackedSequence) else x * factor


def reversed_in_time(self, x):
    if isinstance(x, PackedSequence):
        return scaled(x, -1.0)
    return x.flip(1 if self.batch_first and x.dim() == 3 else 0)


def combined(a, b):
    if isinstance(a, PackedSequence):
        return PackedSequence(a.data + b.data, *a[1:])
    return a + b


class Meta(type):
    """A metaclass of a user's."""


def users_class(rng, stock):
    """A class of a user's: its forward written directly, in a mixin, or over another one's."""
    body, shape = rng.choice(BODIES), rng.choice(("direct", "mixin", "meta", "levels"))

    if shape == "mixin":

        class Mixin(nn.RNNBase):
            def forward(self, x, hx=None):
                return body(self, super().forward, x, hx)

        class Users(Mixin, stock):
            pass

    elif shape == "meta":

        class Users(stock, metaclass=Meta):
            def forward(self, x, hx=None, *, unused=None):
                return body(self, lambda *a, **k: super(Users, self).forward(*a, **k), x, hx)

    elif shape == "levels":
        other = rng.choice((once, decorated, branch))

        class Below(stock):
            def forward(self, input, hx=None):
                return other(self, super().forward, input, hx)

        class Users(Below):
            def forward(self, input, hx=None):
                return body(self, super().forward, input, hx)

    else:

        class Users(stock):
            def forward(self, x, hx=None):
                return body(self, super().forward, x, hx)

    return Users


def wrong(seed):
    """What is wrong with a random case; None if nothing is."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    stock = rng.choice((nn.RNN, nn.GRU, nn.LSTM))
    hidden, sizes = rng.choice((1, 2, 5, 8, 20)), rng.choice((1, 3, 8))
    options = {
        "num_layers": rng.choice((1, 1, 2)),
        "bidirectional": rng.random() < 0.3,
        "batch_first": rng.random() < 0.5,
        "bias": rng.random() < 0.8,
    }
    if stock is nn.LSTM and hidden > 1 and rng.random() < 0.3:
        options["proj_size"] = rng.randint(1, hidden - 1)
    if stock is nn.RNN:
        options["nonlinearity"] = rng.choice(("tanh", "relu"))
    P = options.get("proj_size", hidden)
    if P * (1 + options["bidirectional"]) != sizes and rng.random() < 0.3:
        sizes = P * (1 + options["bidirectional"])
    layer = users_class(rng, stock)(sizes, hidden, dtype=torch.float64, **options)
    for parameter in layer.parameters():
        if rng.random() < 0.1:
            parameter.requires_grad_(False)
    twin = copy.deepcopy(layer)
    algorithm = rng.choice(("auto", "linear", "chunked", "blelloch"))
    chains = bl.attach(layer, algorithm)
    if rng.random() < 0.2:
        layer = copy.deepcopy(layer)
        chains = list(bl.chain.named_chains(layer).values())
    T, B = rng.choice((1, 2, 7, 30)), rng.choice((1, 3, 6))
    x, hx = arguments(rng, layer, T, B, sizes, P, hidden, options)
    found, wanted = (outcome(each, x, hx) for each in (layer, twin))
    if [chain.calls > 0 and not chain.fallback_calls for chain in chains] != [True]:
        reasons = {chain.last_fallback for chain in chains}
        if algorithm != "auto" or reasons == {None}:
            return f"was not scanned: {reasons}"
    for name, want in wanted.items():
        have = found[name]
        if (have is None) != (want is None):
            return f"{name}: found {have}, wanted {want}"
        if want is not None:
            if have.shape != want.shape:
                return f"{name}: found {have.shape}, wanted {want.shape}"
            error = (have - want).abs().max().item() if want.numel() else 0.0
            if not error <= 1e-9 * max(1.0, want.abs().max().item() if want.numel() else 1.0):
                return f"{name}: differs by {error:.1e}"
    bl.detach(layer)
    return None if type(layer) is type(twin) else "detach left another class"


def arguments(rng, layer, T, B, sizes, P, hidden, options):
    L = options["num_layers"] * (1 + options["bidirectional"])
    kind = rng.choice(("padded", "padded", "padded", "single", "packed"))
    if kind == "single":
        x = torch.randn(T, sizes, dtype=torch.float64)
        batch = ()
    else:
        x = torch.randn(*((B, T) if layer.batch_first else (T, B)), sizes, dtype=torch.float64)
        batch = (B,)
    x.requires_grad_(rng.random() < 0.7)
    hx = None
    if rng.random() < 0.4:
        hx = torch.randn(L, *batch, P, dtype=torch.float64, requires_grad=rng.random() < 0.7)
        if isinstance(layer, nn.LSTM):
            hx = hx, torch.randn(L, *batch, hidden, dtype=torch.float64, requires_grad=True)
    lengths = [rng.randint(1, T) for _ in range(B)] if kind == "packed" else None
    return (x, lengths), hx


def outcome(layer, x, hx):
    """Outputs and the gradients of everything."""
    x, lengths = x
    x = x.detach().clone().requires_grad_(x.requires_grad)
    states = [] if hx is None else [hx] if isinstance(hx, torch.Tensor) else list(hx)
    states = [s.detach().clone().requires_grad_(s.requires_grad) for s in states]
    hx = None if hx is None else states[0] if len(states) == 1 else tuple(states)
    given = x
    if lengths is not None:
        given = pack_padded_sequence(x, lengths, layer.batch_first, enforce_sorted=False)
    output, last = layer(given, hx)
    output = output.data if isinstance(output, PackedSequence) else output
    last = [last] if isinstance(last, torch.Tensor) else list(last)
    results = [output, *last]
    loss = sum((r * torch.linspace(0.1, 1, r.numel()).to(r).view(r.shape)).sum() for r in results)
    leaves = {"x": x} | {f"hx{i}": s for i, s in enumerate(states)}
    leaves |= dict(layer.named_parameters())
    if loss.requires_grad:
        loss.backward()
    found = {f"result{i}": r.detach() for i, r in enumerate(results)}
    return found | {name: leaf.grad for name, leaf in leaves.items()}


class Picklable(nn.GRU):
    """A user's class that a pickle can name."""

    def forward(self, x, hx=None):
        return decorated(self, super().forward, x, hx)


def unpickled(layer):
    return pickle.loads(pickle.dumps(layer))


def main():
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    found = {}
    for seed in range(first, first + cases):
        problem = wrong(seed)
        if problem:
            found[seed] = problem
            print(seed, problem, flush=True)
    print(f"{len(found)} of {cases} cases are wrong")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
