"""torch.export and AOTInductor of models with attached layers: any T and B, saved, loaded, run."""

import copy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from support.recurrent_modules import EXACT, Summed, assert_close, tensor
from torch import nn
from torch.export import Dim

import bppsa_lightning as bl

SIZES = ((7, 5), (11, 4), (1, 1), (2, 9))


def pair(kind, **options):
    torch.manual_seed(1)
    stock = Summed(kind(3, 4, **options).double()).eval()
    ours = copy.deepcopy(stock)
    bl.attach(ours)
    return stock, ours


def export(model, strict=False):
    """A program for any T and B, of which no warning is given."""
    sizes = {"x": {0: Dim("T", min=1, max=4096), 1: Dim("B", min=1, max=512)}}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        return torch.export.export(model, (tensor(7, 5, 3),), dynamic_shapes=sizes, strict=strict)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_exported_saved_and_loaded(kind, strict, tmp_path):
    stock, ours = pair(kind, num_layers=2, bidirectional=True)
    program = export(ours, strict)
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    for p in (program, loaded, program.run_decompositions()):
        nodes = [node for node in p.graph.nodes if "bppsa" in str(node.target)]
        assert [node.args[-2] for node in nodes] == [0] * 4  # nothing is kept for a backward
        module = p.module()
        for T, B in SIZES:
            x = tensor(T, B, 3)
            assert_close({"": module(x).detach()}, {"": stock(x).detach()}, EXACT)
    assert ours.layer.forward.shape is None and "seq_len" in bl.explain(ours)
    assert_close({"": ours(x).detach()}, {"": stock(x).detach()}, EXACT)
    assert not torch._dynamo.config.allow_rnn


RUN = """
import sys, torch
if sys.argv[2] == "package":
    import bppsa_lightning
if sys.argv[2] == "library":
    torch.ops.load_library(sys.argv[3])
model = torch._inductor.aoti_load_package(sys.argv[1] + "/model.pt2")
for x, wanted in torch.load(sys.argv[1] + "/calls.pt"):
    torch.testing.assert_close(model(x), wanted)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_ahead_of_time(tmp_path):
    """A process that loads it needs the package, or its library alone; else torch says so."""
    stock, ours = pair(nn.GRU)
    torch._inductor.aoti_compile_and_package(export(ours), package_path=f"{tmp_path}/model.pt2")
    calls = [(x, stock(x).detach()) for x in (tensor(T, B, 3) for T, B in SIZES)]
    torch.save(calls, tmp_path / "calls.pt")
    library = next(str(path) for f in bl.__path__ if (path := Path(f, "_C.so")).exists())
    for way, runs in (("package", True), ("library", True), ("nothing", False)):
        command = [sys.executable, "-c", RUN, str(tmp_path), way, library]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert (ended.returncode == 0) is runs, ended.stderr
        assert runs or "Could not find schema for bppsa::recurrent" in ended.stderr
