"""Random models with attached layers, compiled: one graph, the results and gradients of stock ones?

    PYTHONPATH=.:tests python tests/compiled/at_random.py 0 500      # seeds 0 to 499
    PYTHONPATH=.:tests python tests/compiled/at_random.py 12 13 -v

Every seed is a model by itself: one or two recurrent layers in all their options between linear
ones, algorithms, states given or not, frozen weights, normalised or pruned ones, training or not;
and a way to compile it without a break: for sizes as they come, for dynamic ones, or for marked
dimensions; it is then called for two to four sizes. Wrong is what is further from stock PyTorch
than rounding in float64, and a graph too many. Every such case is printed, `-v` prints all. Ends
with status 1 if there is one.
"""

import argparse
import copy
import random
import sys
import time
from collections import Counter

import torch
import torch.fx.experimental._config
from torch import nn
from torch._guards import CompileContext
from torch.nn.utils import parametrizations, prune

import bppsa_lightning as bl

CELLS = {
    "RNN-tanh": (nn.RNN, {"nonlinearity": "tanh"}),
    "RNN-relu": (nn.RNN, {"nonlinearity": "relu"}),
    "GRU": (nn.GRU, {}),
    "LSTM": (nn.LSTM, {}),
    "LSTM projected": (nn.LSTM, {"proj_size": 2}),
}
WEIGHTS = {
    "": lambda layer: None,
    "norm": lambda layer: parametrizations.weight_norm(layer, "weight_ih_l0"),
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight_hh_l0", 0.5),
    "frozen": lambda layer: layer.weight_hh_l0.requires_grad_(False),
    "all frozen": lambda layer: layer.requires_grad_(False),
}
EXACT = {"rtol": 1e-8, "atol": 1e-10}


class Model(nn.Module):
    """Linear layers around recurrent ones; random numbers of dropout are seeded in every call."""

    def __init__(self, layers, reads_states):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.first = nn.Linear(3, layers[0].input_size)
        self.reads_states = reads_states

    def forward(self, x, hx=None):
        x = self.first(x).tanh()
        states = None
        for layer in self.layers:
            x, states = layer(x, hx)
            hx = None
        if not self.reads_states:
            return x.sin()
        return x.sin() + (states if isinstance(states, torch.Tensor) else states[-1]).sum()


class Case:
    """What a seed draws.

    Attributes:
        options: for people. model: of PyTorch's layers. calls: (x, hx) of each. dtype: float64.
    """

    def __init__(self, seed):
        r = random.Random(seed)
        torch.manual_seed(seed)
        self.options = o = {
            "cell": r.choice(list(CELLS)),
            "layers": r.choice([1, 1, 2, 3]),
            "bidirectional": r.random() < 0.3,
            "bias": r.random() < 0.8,
            "layout": r.choice(["steps first", "batch first", "unbatched"]),
            "dropout": r.choice([0.0, 0.4, 1.0]),
            "training": r.random() < 0.7,
            "two": r.random() < 0.3,
            "weights": r.choice(list(WEIGHTS)),
            "given": r.random() < 0.5,
            "states": r.random() < 0.5,
            "grad": r.random() < 0.8,
            "dynamic": r.choice(["", "all", "marked"]),
            "algorithm": r.choice(["auto", "auto", "linear", "chunked", "blelloch"]),
        }
        drops = o["dropout"] == 0.4 and o["training"] and o["layers"] > 1
        # Other backends draw other random numbers.
        self.backend = "eager" if drops else "aot_eager"
        width, self.hidden = r.randint(1, 5), r.randint(3, 9)
        layers = [self._layer(width)]
        if o["two"]:
            shown = layers[0].proj_size or self.hidden
            layers.append(self._layer(shown * (2 if o["bidirectional"] else 1)))
        self.model = Model(layers, o["states"]).double().train(o["training"])
        least = 2 if r.random() < 0.8 else 1
        sizes = [(r.randint(least, 20), r.randint(least, 6)) for _ in range(r.randint(2, 4))]
        self.sizes = list(dict.fromkeys(sizes))
        self.calls = [self._call(T, B) for T, B in self.sizes]

    def _layer(self, inputs):
        o = self.options
        kind, settings = CELLS[o["cell"]]
        return kind(
            inputs, self.hidden, o["layers"], bias=o["bias"], dropout=o["dropout"],
            batch_first=o["layout"] == "batch first", bidirectional=o["bidirectional"], **settings,
        )  # fmt: skip

    def _call(self, T, B):
        layout = self.options["layout"]
        batch = () if layout == "unbatched" else (B,)
        shape = (B, T, 3) if layout == "batch first" else (T, *batch, 3)
        x = torch.randn(shape, dtype=torch.float64, requires_grad=self.options["grad"])
        if not self.options["given"]:
            return x, None
        first = self.model.layers[0]
        rows = first.num_layers * (2 if first.bidirectional else 1)
        h = torch.randn(rows, *batch, first.proj_size or self.hidden, dtype=torch.float64)
        if not isinstance(first, nn.LSTM):
            return x, h
        return x, (h, torch.randn(rows, *batch, self.hidden, dtype=torch.float64))

    def most_graphs(self):
        """As many graphs as there may be: 0 and 1 are never dynamic, for which Dynamo is known."""
        if any(1 in size for size in self.sizes):
            return len(self.sizes)
        return 1 if self.options["dynamic"] else 3

    def models(self):
        """PyTorch's, and an equal one."""
        both = self.model, copy.deepcopy(self.model)
        for model in both:
            for layer in model.layers:
                WEIGHTS[self.options["weights"]](layer)
        return both


def results(model, call, x, hx, grad):
    """{name: tensor} of a call: its output, and all gradients if they are asked for."""
    torch.manual_seed(0)
    if not grad:
        with torch.no_grad():
            return {"output": call(x, hx)}
    model.zero_grad()
    output = call(x, hx)
    wanted = {n: p for n, p in model.named_parameters() if p.requires_grad} | {"input": x}
    found = torch.autograd.grad(output.square().sum(), list(wanted.values()), allow_unused=True)
    gradients = {f"d {n}": g for n, g in zip(wanted, found, strict=True) if g is not None}
    return {"output": output.detach()} | gradients


def run(case):
    """What is wrong with a case, in lines."""
    torch._dynamo.reset()
    graphs, compiled_as = [], set()
    stock, model = case.models()
    bl.attach(model, case.options["algorithm"])
    inner = torch._dynamo.lookup_backend(case.backend)

    def backend(graph, inputs):
        graphs.append(graph)  # twice, where Dynamo starts again
        compiled_as.add(CompileContext.current_compile_id())
        return inner(graph, inputs)

    dynamic = True if case.options["dynamic"] == "all" else None
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend=backend)
    # A batch of 3 is to be no other than one of 4, where there are 3 features.
    with torch.fx.experimental._config.patch(use_duck_shape=False):
        wrong = differences(case, stock, model, compiled)
    if len(compiled_as) > case.most_graphs():
        wrong.append(f"{len(compiled_as)} graphs for sizes {case.sizes}")
    unrolled = [node for graph in graphs for node in graph.graph.nodes if "_VF" in str(node.target)]
    if unrolled:
        wrong.append(f"PyTorch's own layer is in the graph: {unrolled}")
    return wrong


def differences(case, stock, model, compiled):
    """What is not as stock PyTorch has it."""
    wrong = []
    for i, (x, hx) in enumerate(case.calls):
        wanted = results(stock, stock, x, hx, case.options["grad"])
        if case.options["dynamic"] == "marked":
            mark(case, x, hx)
        found = results(model, compiled, x, hx, case.options["grad"])
        if found.keys() != wanted.keys():
            wrong.append(f"call {i}: {sorted(found.keys() ^ wanted.keys())}")
        for name in found.keys() & wanted.keys():
            if not torch.allclose(found[name], wanted[name], **EXACT):
                error = (found[name] - wanted[name]).abs().max().item()
                wrong.append(f"call {i}: {name} is {error:.1e} off")
    return wrong


def mark(case, x, hx):
    """Steps and samples, where they are not 1, which cannot be marked."""
    batch = 1 if case.options["layout"] != "batch first" else 0
    dimensions = [0] if case.options["layout"] == "unbatched" else [0, 1]
    for dimension in dimensions:
        if x.shape[dimension] > 1:
            torch._dynamo.mark_dynamic(x, dimension)
    for state in (hx,) if isinstance(hx, torch.Tensor) else hx or ():
        if len(dimensions) == 2 and x.shape[batch] > 1:
            torch._dynamo.mark_dynamic(state, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("first", type=int, help="seed")
    parser.add_argument("end", type=int, help="the seed after the last one")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    counts = Counter()
    for seed in range(arguments.first, arguments.end):
        case, start = Case(seed), time.perf_counter()
        try:
            wrong = run(case)
        except Exception as error:
            wrong = [f"{type(error).__name__}: {error}"]
        counts["cases"] += 1
        counts["calls"] += len(case.calls)
        counts["cases wrong"] += bool(wrong)
        if wrong or arguments.verbose:
            options = " ".join(f"{k}={v}" for k, v in case.options.items() if v not in (False, ""))
            print("\n  ".join([f"{seed}: {options} ({time.perf_counter() - start:.1f} s)", *wrong]))
            sys.stdout.flush()
    print(*(f"{number:7,}  {what}" for what, number in counts.items()), sep="\n")
    sys.exit(1 if counts["cases wrong"] else 0)


if __name__ == "__main__":
    main()
