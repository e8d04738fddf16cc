"""explain: the table of chains before and after a call."""

import re
from types import SimpleNamespace

import pytest
from support.helpers import B, H, I, T
from support.rnn_twins import ALGORITHMS, Model, results, tensor, twins
from torch import nn

import bppsa_lightning as bl

pytestmark = pytest.mark.usefixtures("accelerate_everything")


def test_explain_before_and_after_the_first_call():
    model = nn.ModuleDict({"model": Model(), "step": nn.GRUCell(I, H)})
    bl.attach(model, "chunked")
    row = rows(bl.explain(model))["model.rnn"]
    assert row.type == "RNN-tanh" and ("?", "?", str(H)) == (row.seq_len, row.batch, row.hidden)
    assert "planned at the first call" in row.why
    model["model"](tensor(T, B, I).float())
    row = rows(bl.explain(model))["model.rnn"]
    assert (row.seq_len, row.batch, row.hidden) == (str(T), str(B), str(H))
    assert re.fullmatch(r"chunked \(\d+ steps\)", row.backward) and row.why == "as asked"
    assert "step" in bl.explain(model) and "2 Linear" in bl.explain(model)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_explain_tells_the_plan_that_runs(algorithm):
    _, scanned = twins(algorithm=algorithm)
    with bl.ops.scan_log() as log:
        results(scanned, tensor(T, B, I))
    [(_, _, plan)] = log.scans
    row = rows(bl.explain(scanned))["(itself)"]
    assert row.backward.startswith(plan.algorithm) and row.why == plan.reason
    assert scanned.forward.plan == plan


def rows(text):
    """The table of chains as {name: row}; columns are two spaces or more apart."""
    lines = text.splitlines()[1:]
    header = lines[0].split()
    table = {}
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.strip().split("  ") if cell.strip()]
        if len(cells) == len(header):
            table[cells[0]] = SimpleNamespace(**dict(zip(header, cells, strict=True)))
    return table
