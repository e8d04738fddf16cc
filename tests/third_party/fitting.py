"""One training of one model of a package, in the package's environment.

    python -m tests.third_party.fitting PACKAGE MODEL STRATEGY

`STRATEGY` is "default" or "bppsa". Prints a line of JSON: the losses of its steps, the seconds of
the whole fit, what is accelerated, and versions.
"""

import importlib
import importlib.metadata
import json
import logging
import random
import sys
import time
import warnings

import numpy as np
import torch

import bppsa_lightning as bl

LOSSES: list[float] = []
EXPLAINED: list[str] = []


def series(length, seed):
    """A wave with noise."""
    rng = np.random.default_rng(seed)
    return np.sin(np.arange(length) / 12 + seed) + 0.1 * rng.standard_normal(length)


def waves(B, T, I):
    """Series as a tensor (B, T, I)."""
    rows = [series(T, seed) for seed in range(B * I)]
    return (
        torch.from_numpy(np.stack(rows, -1)).float().reshape(T, B, I).transpose(0, 1).contiguous()
    )


def sizes_of(model):
    """Of "GRU-D, 4096 steps, batch 4": its name, T and B."""
    name, steps, batch = model.split(", ")
    return name, int(steps.split()[0]), int(batch.split()[1])


def keeps_losses(namespace):
    """A callback of a tree of Lightning's that notes each step's loss, and the model."""
    Callback = importlib.import_module(f"{namespace}.callbacks").Callback

    class KeepsLosses(Callback):
        def on_train_batch_end(self, trainer, model, outputs, *args):
            LOSSES.append(float(outputs["loss"]))

        def on_train_end(self, trainer, model):
            EXPLAINED[:] = [bl.explain(model)]

    return KeepsLosses()


def seconds_of(training):
    start = time.perf_counter()
    training()
    return time.perf_counter() - start


def own_loop(module, loss, strategy):
    """Twenty steps of Adam where the package has no loop of Lightning's; its seconds."""

    def training():
        if strategy == "bppsa":
            bl.attach(module)
        optimizer = torch.optim.Adam(module.parameters(), 1e-3)
        for _ in range(20):
            value = loss()
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            LOSSES.append(value.item())
        EXPLAINED[:] = [bl.explain(module)]

    return seconds_of(training)


def main():
    package, model, strategy = sys.argv[1:]
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    models = importlib.import_module(f"tests.third_party.{package}_models")
    seconds, losses = models.fit(model, "auto" if strategy == "default" else strategy)
    names = (package.replace("_", "-"), "torch", "lightning", "pytorch-lightning")
    found = {name: importlib.metadata.version(name) for name in names}
    result = {"seconds": seconds, "losses": list(losses), "versions": found}
    print("\n" + json.dumps(result | {"explanation": "".join(EXPLAINED)}))


if __name__ == "__main__":
    sys.modules["tests.third_party.fitting"] = sys.modules["__main__"]
    main()
