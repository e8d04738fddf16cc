"""Hashes of what the library computes: two versions that agree in all of them agree in every bit.

    python tests/fingerprints.py before.json            # in the one checkout, with its build
    python tests/fingerprints.py after.json             # in the other
    python tests/fingerprints.py --compare before.json after.json

Each case is hashed at every instruction set that runs here, with one thread and with two: outputs
and all gradients of the recurrent operators (cells, dtypes, algorithms, sizes, options), of
attached layers, of the scans, the Jacobians and their products, of stacks over depth and pruned
layers, and the losses of four short trainings. Only public names are used: old versions run it too.
`--compare` lists the cases that differ and ends with status 1 if there are any; cases that only one
file has are named.

T steps, B batch, I input, H hidden.
"""

import argparse
import hashlib
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

import bppsa_lightning as bl
from bppsa_lightning.datasets import BitstreamDataModule

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
ALGORITHMS = ("auto", "linear", "chunked", "blelloch")
CELLS = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "ligru": 2, "lstm": 4, "lstm_projected": 4}
SIZES = (
    (1, 1, 1, 1),
    (2, 3, 1, 20),
    (65, 1, 3, 7),
    (100, 16, 1, 20),
    (37, 5, 9, 33),
    (24, 2, 64, 130),
)
Case = tuple[str, Callable[[], Iterable]]


def digest(tensors: Iterable) -> str:
    """SHA-256 of tensors' shapes, dtypes and bits; None counts as a value, -0 differs from 0."""
    whole = hashlib.sha256()
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            whole.update(repr(tensor).encode())
            continue
        if tensor.layout is torch.sparse_csr:
            whole.update(
                digest([tensor.crow_indices(), tensor.col_indices(), tensor.values()]).encode()
            )
            continue
        data = tensor.detach().contiguous()
        whole.update(f"{tuple(data.shape)} {data.dtype}".encode())
        whole.update(data.reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def with_gradients(function: Callable, leaves: dict, seed: int = 1) -> list:
    """A function's results, and the gradients of all its named tensors by random ones."""
    leaves = {name: t.detach().requires_grad_() for name, t in leaves.items()}
    results = function(**leaves)
    results = [r for r in (results if isinstance(results, tuple) else (results,)) if r is not None]
    generator = torch.Generator().manual_seed(seed)
    incoming = [torch.randn(r.shape, generator=generator).to(r.dtype) for r in results]
    gradients = torch.autograd.grad(results, list(leaves.values()), incoming, allow_unused=True)
    return [*results, *gradients]


def random(*shape: int, dtype=None, scale: float = 1.0, seed: int = 0):
    generator = torch.Generator().manual_seed(hash((shape, seed)) % 2**31)
    return (torch.randn(*shape, generator=generator) * scale).to(dtype or torch.float32)


def operands(cell: str, size: tuple[int, int, int, int], dtype, bias: bool, state: bool) -> dict:
    """The tensors of a layer, by the names that the operators give them."""
    T, B, I, H = size
    rows, P = CELLS[cell] * H, max(1, H // 2) if "projected" in cell else H
    found = {
        "x": random(T, B, I, dtype=dtype),
        "w_ih": random(rows, I, dtype=dtype, scale=I**-0.5, seed=1),
        "w_hh": random(rows, P, dtype=dtype, scale=P**-0.5, seed=2),
    }
    if bias:
        found |= {f"b_{k}h": random(rows, dtype=dtype, seed=s) for k, s in (("i", 3), ("h", 4))}
    if state:
        found["h0"] = random(B, P, dtype=dtype, seed=5)
        if cell.startswith("lstm"):
            found["c0"] = random(B, H, dtype=dtype, seed=6)
    if "projected" in cell:
        found["w_hr"] = random(P, H, dtype=dtype, scale=H**-0.5, seed=7)
    return found


def recurrent_operators() -> Iterator[Case]:
    def run(cell, tensors, algorithm, reverse):
        kind = cell.split("_")[0]
        settings = {"nonlinearity": cell[4:]} if kind == "rnn" else {}
        absent = dict.fromkeys(("h0", "c0") if kind == "lstm" else ("h0",))

        def layer(**given):
            given = absent | given
            return getattr(bl.ops, kind)(**given, **settings, algorithm=algorithm, reverse=reverse)

        return with_gradients(layer, tensors)

    for cell in CELLS:
        if not hasattr(bl.ops, cell.split("_")[0]):
            continue  # an older version
        for size in SIZES:
            for dtype in (torch.float32, torch.float64):
                for algorithm in ALGORITHMS:
                    for reverse, bias, state in ((False, True, True), (True, False, False)):
                        name = f"ops/{cell}/{size}/{dtype}/{algorithm}/{reverse=}/{bias=}/{state=}"
                        tensors = operands(cell, size, dtype, bias, state)
                        yield name, lambda a=(cell, tensors, algorithm, reverse): run(*a)


OPTIONS = {
    "plain": {}, "batch_first": {"batch_first": True}, "two layers": {"num_layers": 2},
    "bidirectional": {"bidirectional": True, "num_layers": 2}, "no bias": {"bias": False},
    "dropout": {"num_layers": 2, "dropout": 0.3},
}  # fmt: skip


def attached_layers() -> Iterator[Case]:
    """nn.RNN, nn.GRU and nn.LSTM in scan mode: data types, options, packed sequences."""

    def run(kind, settings, dtype, algorithm, packed):
        torch.manual_seed(3)
        module = getattr(nn, kind)(5, 20, **settings).to(dtype)
        bl.attach(module, algorithm)
        data = random(*((12, 80, 5) if settings.get("batch_first") else (80, 12, 5)), dtype=dtype)

        def layer(x):
            if packed:
                lengths = torch.tensor([80, 80, 77, 64, 63, 40, 33, 20, 11, 3, 2, 1])
                x = pack_padded_sequence(x, lengths, module.batch_first)
            output, state = module(x)
            output = output.data if packed else output
            (output.sum() + sum(s.sum() for s in state)).backward(retain_graph=True)
            return (output, *(state if isinstance(state, tuple) else (state,)))

        return [*with_gradients(layer, {"x": data}), *(p.grad for p in module.parameters())]

    kinds = {"RNN": {}, "RNN-relu": {"nonlinearity": "relu"}, "GRU": {}, "LSTM": {}}
    kinds["LSTM-projected"] = {"proj_size": 6}
    for label, cell in kinds.items():
        for option, settings in OPTIONS.items():
            for algorithm in ALGORITHMS[1:]:
                for packed in (False, True):
                    name = f"attached/{label}/{option}/{algorithm}/{packed=}"
                    given = (label.split("-")[0], cell | settings, torch.float32, algorithm, packed)
                    yield name, lambda a=given: run(*a)
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            given = (label.split("-")[0], cell, dtype, "auto", False)
            yield f"attached/{label}/{dtype}", lambda a=given: run(*a)


def scans() -> Iterator[Case]:
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    for T, B, H in ((1, 1, 1), (5, 2, 3), (64, 3, 20), (130, 2, 37), (300, 1, 8)):
        for dtype in dtypes:
            for algorithm in ALGORITHMS:
                given = {
                    "jac_t": random(T, B, H, H, dtype=dtype, scale=H**-0.5),
                    "grad": random(T + 1, B, H, dtype=dtype, seed=1),
                }
                yield (
                    f"reverse_scan/{(T, B, H)}/{dtype}/{algorithm}",
                    lambda g=given, a=algorithm: with_gradients(
                        lambda jac_t, grad: bl.ops.reverse_scan(jac_t, grad, a), g
                    ),
                )
                given = {
                    "decay": random(T, B, H, dtype=dtype, scale=0.9),
                    "x": random(T, B, H, dtype=dtype, seed=1),
                    "initial": random(B, H, dtype=dtype, seed=2),
                }
                yield (
                    f"recurrence/{(T, B, H)}/{dtype}/{algorithm}",
                    lambda g=given, a=algorithm: with_gradients(
                        lambda **k: bl.ops.linear_recurrence(**k, algorithm=a), g
                    ),
                )
        given = {"jac_t": random(T, B, H, H, scale=H**-0.5), "grad": random(T + 1, B, H, seed=1)}
        for levels in (n for n in (0, 1, 3) if n <= (T - 1).bit_length()):
            yield (
                f"reverse_scan/{(T, B, H)}/{levels=}",
                lambda g=given, n=levels: with_gradients(
                    lambda jac_t, grad: bl.ops.reverse_scan(jac_t, grad, "blelloch", levels=n), g
                ),
            )


def jacobians() -> Iterator[Case]:
    J = bl.jacobians
    for dtype in (torch.float32, torch.float64):
        image = random(3, 13, 17, dtype=dtype)
        for stride, padding, dilation, groups in ((1, 1, 1, 1), (2, 0, 1, 1), (1, 2, 2, 3)):
            weight = random(6, 3 // groups, 3, 3, dtype=dtype)
            given = (weight, (13, 17), stride, padding, dilation, groups)
            yield f"jacobians/conv2d/{given[1:]}/{dtype}", lambda g=given: [J.conv2d(*g)]
        yield f"jacobians/linear/{dtype}", lambda d=dtype: [J.linear(random(9, 14, dtype=d))]
        yield f"jacobians/max_pool2d/{dtype}", lambda x=image: [
            J.max_pool2d(x, 2), J.max_pool2d(x, 3, 2, 1)
        ]  # fmt: skip
        yield (
            f"jacobians/avg_pool2d/{dtype}",
            lambda x=image: [J.avg_pool2d((3, 13, 17), 3, 2, dtype=x.dtype)],
        )
        for name in ("relu", "leaky_relu", "tanh", "sigmoid", "silu", "gelu"):
            yield f"jacobians/{name}/{dtype}", lambda n=name, x=image: [getattr(J, n)(x)]


def depth() -> Iterator[Case]:
    """Stacks of layers in scan mode, and pruned ones: losses and gradients of two steps of SGD."""

    def steps(model, x, y):
        optimizer, found = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
        for _ in range(2):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            found += [loss, *(p.grad for p in model.parameters())]
            optimizer.step()
        return found

    def stack(algorithm):
        torch.manual_seed(5)
        model = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 84), nn.GELU(), nn.Linear(84, 10),
        )  # fmt: skip
        bl.attach(model, algorithm)
        return steps(model, random(4, 3, 32, 32), torch.arange(4))

    def vgg(amount, norm, batch):
        torch.manual_seed(7)
        layers, channels = [], 3
        for width in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"):
            if width == "M":
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(channels, width, 3, padding=1)]
            layers += [*([nn.BatchNorm2d(width)] if norm else []), nn.ReLU()]
            channels = width
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))
        for module in model:
            if isinstance(module, nn.Conv2d | nn.Linear):
                prune.l1_unstructured(module, "weight", amount)
        bl.attach(model)
        return steps(model, random(batch, 3, 32, 32), torch.arange(batch) % 10)

    for algorithm in ("linear", "blelloch"):
        yield f"depth/lenet5/{algorithm}", lambda a=algorithm: stack(a)
    for amount in (0.97, 0.9, 0.5):
        for norm in (False, True):
            yield f"pruned/vgg11/{amount}/{norm=}", lambda a=(amount, norm, 16): vgg(*a)


def trainings() -> Iterator[Case]:
    """Losses and weights of short trainings by the strategy: `make train`'s, and others."""

    class Model(pl.LightningModule):
        def __init__(self, body, read_out):
            super().__init__()
            self.body, self.read_out, self.losses = body, read_out, []

        def training_step(self, batch):
            loss = nn.functional.cross_entropy(self.read_out(self.body(batch[0])), batch[1])
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    class LastState(nn.Module):
        def __init__(self, state):
            super().__init__()
            self.state, self.head = state, nn.Linear(20, 10)

        def forward(self, results):
            _, last = results
            return self.head((last[0] if isinstance(last, tuple) else last)[0])

    def fit(body, read_out, data, **settings):
        model = Model(body, read_out)
        trainer = pl.Trainer(
            strategy="bppsa", accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, **settings,
        )  # fmt: skip
        trainer.fit(model, data)
        return [*model.losses, *(p for _, p in sorted(model.named_parameters()))]

    def bitstream(kind, folder):
        torch.manual_seed(0)
        body = getattr(nn, kind)(1, 20, batch_first=True)
        data = BitstreamDataModule(
            data_dir=folder, steps=1000, batch_size=16, num_samples=640, seed=0
        )
        return fit(body, LastState(kind), data, max_steps=20, limit_val_batches=0)

    def pruned():
        torch.manual_seed(0)
        body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()
        )
        x, y = random(64, 3, 16, 16), torch.arange(64) % 10
        callback = bl.SparseJacobianPruning("l1_unstructured", amount=0.95)
        read_out = nn.Sequential(nn.Flatten(), nn.Linear(32 * 14 * 14, 10))
        data = DataLoader(TensorDataset(x, y), batch_size=16)
        return fit(body, read_out, data, max_epochs=3, callbacks=[callback])

    folder = os.environ.get("BPPSA_FINGERPRINT_DATA", "data")
    for kind in ("RNN", "GRU", "LSTM"):
        yield f"training/bitstream/{kind}", lambda k=kind: bitstream(k, folder)
    yield "training/pruned", pruned


def here() -> dict[str, str]:
    """The digests of all cases in this process, by name."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    found, level = {}, bl.ops.cpu_capability()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for family in (recurrent_operators, attached_layers, scans, jacobians, depth, trainings):
            for name, run in family():
                torch.manual_seed(0)
                found[f"{level}/{threads} threads/{name}"] = digest(run())
    return found


def everywhere() -> dict[str, str]:
    """`here`, in a process for each instruction set that this machine has."""
    own, found = bl.ops.cpu_capability().replace("_", "-"), {}
    for level in [level for level in LEVELS if level <= own] or [own]:
        environment = {**os.environ, "BPPSA_CPU_CAPABILITY": level, "PYTHONHASHSEED": "0"}
        command = [sys.executable, __file__, "--here"]
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        found |= json.loads(run.stdout.splitlines()[-1])
        print(f"{level}: {len(found)} cases so far", file=sys.stderr)
    return found


def compare(before: Path, after: Path) -> int:
    old, new = (json.loads(path.read_text()) for path in (before, after))
    both = old.keys() & new.keys()
    different = sorted(name for name in both if old[name] != new[name])
    for name in different:
        print("differs:", name)
    for path, only in ((before, old.keys() - both), (after, new.keys() - both)):
        if only:
            print(f"only in {path}: {len(only)} cases, as {min(only)}")
    print(f"{len(both) - len(different)} of {len(both)} cases are equal in every bit")
    return 1 if different or not both else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--here", action="store_true", help="print those of this process")
    parser.add_argument("output", nargs="?", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if options.compare:
        return compare(*options.compare)
    if options.here:
        print(json.dumps(here()))
        return 0
    if options.output is None:
        parser.error("output: a file to write, or --compare")
    options.output.write_text(json.dumps(everywhere(), indent=0, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
