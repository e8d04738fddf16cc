"""attach with an algorithm for each chain, by name, and what explain says of it."""

import re

import pytest
from support.recurrent_modules import pair, results, tensor
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.chain import named_chains

pytestmark = pytest.mark.usefixtures("accelerate_everything")


def model():
    return nn.ModuleDict(
        {
            "encoder": nn.ModuleDict({"low": nn.GRU(3, 4), "high": nn.GRU(4, 4)}),
            "encoder2": nn.LSTM(3, 4, 2, bidirectional=True),
            "head": nn.Linear(4, 4),
        }
    )


@pytest.mark.parametrize(
    ("algorithm", "wanted"),
    [
        ({}, ["auto", "auto", "auto"]),
        ({"": "linear"}, ["linear", "linear", "linear"]),
        ({"encoder": "linear"}, ["linear", "linear", "auto"]),
        ({"encoder.high": "chunked", "": "linear"}, ["linear", "chunked", "linear"]),
        ({"encoder.low": "chunked", "encoder": "linear"}, ["chunked", "linear", "auto"]),
        ({"encoder2": "blelloch"}, ["auto", "auto", "blelloch"]),
    ],
)
def test_an_algorithm_for_each_chain(algorithm, wanted):
    module = model()
    bl.attach(module, "chunked")
    chains = bl.attach(module, algorithm)
    assert [chain.name for chain in chains] == ["encoder.low", "encoder.high", "encoder2"]
    assert [chain.algorithm for chain in chains] == wanted


def test_a_chain_under_either_of_its_names():
    layer = nn.GRU(3, 4)
    [chain] = bl.attach(nn.ModuleDict({"a": layer, "b": layer}), {"b": "linear"})
    assert chain.algorithm == "linear"


@pytest.mark.parametrize(
    ("algorithm", "error", "message"),
    [
        ({"decoder": "linear"}, ValueError, "found the name 'decoder', .* 'encoder.low', 'enc"),
        ({"head": "linear"}, ValueError, "found the name 'head', wanted '' or the name of a"),
        ({"encoder": "fast"}, ValueError, "algorithm: found 'fast', wanted one of auto"),
        ({"encoder": None}, TypeError, "algorithm: found NoneType, wanted str"),
        ({1: "linear"}, TypeError, "algorithm: found the key 1, wanted the dotted name"),
        (["linear"], TypeError, "algorithm: found list, wanted str"),
    ],
)
def test_an_unknown_name_or_algorithm_attaches_nothing(algorithm, error, message):
    module = model()
    with pytest.raises(error, match=message):
        bl.attach(module, algorithm)
    assert not named_chains(module)


def test_the_algorithm_of_a_chain_may_be_set():
    _, module = pair("LSTM", num_layers=2)
    module.forward.algorithm = "chunked"
    with bl.ops.scan_log() as log:
        results(module, tensor(50, 2, 3), None, {})
    assert [(cell, plan.algorithm) for cell, _, plan in log.scans] == [("LSTM", "chunked")] * 2
    with pytest.raises(ValueError, match="algorithm: found 'fast', wanted one of"):
        module.forward.algorithm = "fast"
    assert module.forward.algorithm == "chunked"


@pytest.mark.parametrize(
    ("cell", "settings", "said"),
    [
        ("RNN-relu", {}, "RNN-relu  1  "),
        ("GRU", {"num_layers": 3}, "GRU   3 "),
        ("LSTM", {"num_layers": 2, "bidirectional": True}, "LSTM  2 both ways  "),
    ],
)
def test_explain_tells_cell_and_layers(cell, settings, said):
    _, module = pair(cell, **settings)
    assert said in bl.explain(module) and "planned at the first call" in bl.explain(module)
    module(tensor(9, 2, 3))
    line = bl.explain(module).splitlines()[2]
    assert said in line and re.search(r"\s9\s+2\s+4\s", line)
