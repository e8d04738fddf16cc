"""Newton's method over a recurrence: it is exact, says where it fails, and its record is quoted."""

import copy
import json

import pytest
import torch
from torch import nn
from torch.func import jacrev, vmap

from experiments import recording
from experiments.benchmarks import newton
from experiments.benchmarks.newton_solver import CELLS, forward

KINDS = list(CELLS)
every_cell = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
either_way = pytest.mark.parametrize("diagonal", [False, True], ids=["full", "diagonal"])


def layer(kind, H=5, gain=1.5, dtype=torch.float64):
    torch.manual_seed(0)
    module = kind(2, H).to(dtype)
    with torch.no_grad():
        module.weight_hh_l0.mul_(gain)
    return module, torch.randn(150, 3, 2, dtype=dtype)


@every_cell
def test_jacobians_are_those_of_automatic_differentiation(kind):
    module, x = layer(kind)
    cell = CELLS[kind](module)
    a = cell.inputs(x).detach()
    state = torch.randn(150, 3, cell.parts * cell.H, dtype=x.dtype)
    with torch.no_grad():
        kept = cell.step(a, state)[1]
        found = cell.jacobian(state, kept, diagonal=False)
        diagonal = cell.jacobian(state, kept, diagonal=True)
        again = cell.jacobian(state, kept, diagonal=False, out=cell.jacobian(-state, kept, False))
    wanted = vmap(vmap(jacrev(lambda s, a: cell.step(a, s)[0])))(state, a)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)
    torch.testing.assert_close(diagonal, wanted.diagonal(dim1=-2, dim2=-1), rtol=0, atol=1e-14)
    assert torch.equal(again, found)


@every_cell
@either_way
def test_the_fixed_point_and_its_gradients_are_those_of_the_walk(kind, diagonal):
    module, x = layer(kind)
    walked = copy.deepcopy(module)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    output, solution = forward(module, mine, diagonal, tolerance=1e-13, most=200)
    wanted = walked(theirs)[0]
    assert solution.converged and solution.change < 1e-13
    torch.testing.assert_close(output, wanted, rtol=0, atol=1e-10)
    torch.manual_seed(1)
    weights = torch.rand_like(wanted)
    output.backward(weights)
    wanted.backward(weights)
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-8)
    for (name, p), q in zip(module.named_parameters(), walked.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=1e-8, msg=name)


def test_full_jacobians_take_fewer_iterations():
    module, x = layer(nn.GRU)
    full, diagonal = (forward(module, x, way)[1].iterations for way in (False, True))
    assert full < diagonal


def test_what_does_not_converge_is_said_and_stays_finite():
    """Products of these Jacobians overflow float32 within the sequence."""
    module, _ = layer(nn.RNN, H=16, gain=30, dtype=torch.float32)
    x = torch.randn(600, 1, 2)
    with torch.no_grad():
        output, solution = forward(module, x, most=20)
    assert not solution.converged and solution.iterations == 20
    assert output.isfinite().all() and solution.states.isfinite().all()


def test_the_benchmark(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(newton, "HIDDEN", (16,))
    monkeypatch.setattr(newton, "GAINS", (1.0, 5.0))
    monkeypatch.setattr(newton, "T", 120)
    monkeypatch.setattr(newton, "LONG", ((16, 1.0, 160),))
    newton.main(["--seconds", "0"])
    folder = tmp_path / recording.UNRECORDED
    record = json.loads((folder / "newton_cpu.json").read_text())
    assert (folder / "newton_cpu.png").read_bytes().startswith(b"\x89PNG")
    rows = record["rows"]
    assert len(rows) == 3 * 3
    for row in rows:
        assert row["jacobian_bytes"] == 4 * row["T"] * row["S"] ** 2
        for way in ("newton", "diagonal"):
            assert row[way]["converged"] == ("to_walk" in row[way])
            if row["gain"] == 1:
                assert row[way]["converged"] and row[way]["error"] < 1e-5
                assert row[way]["gradient_error"] < 1e-5
    assert any(not row["newton"]["converged"] for row in rows if row["gain"] == 5)
    assert {(row["cell"], row["S"]) for row in rows} == {("RNN", 16), ("GRU", 16), ("LSTM", 32)}
    assert "> 100" in capsys.readouterr().out


def test_the_page_says_what_was_measured():
    """docs/windows.md: slower than the walk, as exact, faster than PyTorch's RNN and GRU."""
    record = recording.read("newton_cpu")
    timed = [row for row in record["rows"] if row["newton"]["converged"]]
    assert len(timed) > len(record["rows"]) / 2
    assert min(row["newton"]["to_walk"] for row in timed) > 1
    assert all(row["newton"]["error"] <= 4 * row["walk"]["error"] for row in timed)
    of_size = {(r["cell"], r["H"], r["T"]): r["newton"] for r in timed if r["gain"] == 1}
    for own in record["pytorch"]:
        if own["cell"] in ("RNN", "GRU"):
            assert of_size[own["cell"], own["H"], own["T"]]["seconds"] < own["seconds"]
