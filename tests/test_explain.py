"""explain: the table of chains before and after a call."""

import re
from types import SimpleNamespace

import pytest
from support.helpers import B, H, I, T
from support.rnn_twins import ALGORITHMS, Model, results, tensor, twins
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.explain import summary
from bppsa_lightning.planner import machine

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


def test_a_machine_that_no_table_is_near_to_is_told_in_one_line(monkeypatch):
    monkeypatch.delenv("BPPSA_TABLE")
    here = {**machine.this_cpu(), "name": "A new CPU", "cores": 64}
    monkeypatch.setattr(machine, "this_cpu", lambda: here)
    machine.forget()
    rnn = nn.RNN(1, 4)
    try:
        assert "calibrate" not in bl.explain(rnn)  # nothing is planned
        bl.attach(rnn)
        (line,) = [line for line in bl.explain(rnn).splitlines() if "calibrate" in line]
        assert "this machine is A new CPU, 64 cores" in line and "bl.calibrate()" in line
        assert summary(rnn).count("bl.calibrate()") == 1
    finally:
        monkeypatch.undo()
        machine.forget()
    assert "calibrate" not in bl.explain(rnn) + summary(rnn)
