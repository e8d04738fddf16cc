"""Memory that steps free stays with the process for the time of a run, and goes at its end."""

import os
import pickle
import subprocess
import sys

import pytest

from bppsa_lightning import BPPSAStrategy, _memory

SCRIPT = """
import resource
import lightning as L
import torch
import bppsa_lightning as bl

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20

class Frees(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.GRU(2, 3), []
    def training_step(self, batch, index):
        self.seen.append(faults())
        kept = [torch.ones(1_000_000) for _ in range(50)]  # 200 MB
        return self.layer(batch)[0].sum() + kept[-1][0]
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

model = Frees()
trainer = L.Trainer(
    accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, {options}
)
before = resident()
trainer.fit(model, torch.utils.data.DataLoader(torch.randn(12, 5, 2), batch_size=1))
seen = model.seen[2:]
print("found", (seen[-1] - seen[0]) / (len(seen) - 1), resident() - before)
"""
glibc = pytest.mark.skipif(_memory._glibc() is None, reason="the C library is not glibc")


def faults_and_growth(options, **environment):
    """Pages that a step asks the system for, and MiB that the process holds after `fit`."""
    clean = {k: v for k, v in os.environ.items() if k not in (*_memory._CHOSEN, "GLIBC_TUNABLES")}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT.replace("{options}", options)]
    done = subprocess.run(
        command, env=clean | environment, check=True, capture_output=True, text=True
    )
    _, faults, growth = next(line for line in done.stdout.splitlines() if "found" in line).split()
    return float(faults), int(growth)


@glibc
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    ['strategy="bppsa"', 'callbacks=[bl.Attach()], strategy="auto"'],
    ids=["strategy", "callback"],
)
def test_a_step_has_the_pages_of_the_one_before(options):
    faults, growth = faults_and_growth(options)
    assert faults < 2000
    assert growth < 120  # 200 MB were free, and torch and Lightning have imported a little more


@glibc
@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
    ids=["variable", "tunable"],
)
def test_what_the_environment_says_holds(environment):
    faults, _ = faults_and_growth('strategy="bppsa"', **environment)
    assert faults > 20_000  # of some 49,000 pages


class Library:
    """Writes down what it is asked for."""

    def __init__(self):
        self.calls = []

    def mallopt(self, which, value):
        self.calls.append((which, value))

    def malloc_trim(self, pad):
        self.calls.append("trim")


@pytest.fixture
def library(monkeypatch):
    found = Library()
    monkeypatch.setattr(_memory, "_glibc", lambda: found)
    monkeypatch.setattr(_memory, "_runs", 0)
    for name in (*_memory._CHOSEN, "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_a_run_within_a_run_gives_nothing_back(library):
    assert _memory.keep() and _memory.keep()
    begun = [(-3, 32 << 20), (-1, 2**31 - 1)]
    assert library.calls == begun
    _memory.give_back()
    assert library.calls == begun
    _memory.give_back()
    assert library.calls == [*begun, (-1, 64 << 20), "trim"]


@pytest.mark.parametrize(
    ("name", "value", "chosen"),
    [
        ("MALLOC_TOP_PAD_", "1048576", True),
        ("MALLOC_MMAP_MAX_", "0", True),
        ("MALLOC_MMAP_THRESHOLD_", "", False),
        ("GLIBC_TUNABLES", "glibc.rtld.nns=2:glibc.malloc.arena_max=1", True),
        ("GLIBC_TUNABLES", "glibc.rtld.nns=2", False),
    ],
)
def test_what_counts_as_a_choice_of_the_user_s(library, monkeypatch, name, value, chosen):
    monkeypatch.setenv(name, value)
    assert _memory.keep() is not chosen
    assert bool(library.calls) is not chosen


def test_without_glibc_there_is_nothing_to_do(monkeypatch):
    monkeypatch.setattr(_memory, "_glibc", lambda: None)
    assert not _memory.keep()
    monkeypatch.undo()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert _memory._glibc.__wrapped__() is None


def test_a_strategy_that_is_sent_to_another_process_holds_nothing_yet():
    assert pickle.loads(pickle.dumps(BPPSAStrategy()))._keeps_memory is False
