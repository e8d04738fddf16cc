"""What the kernels of a GPU are tested on, and what counts as wrong; without a GPU."""

import itertools
import re

import pytest
import torch
from support import gpus
from support.recurrent_layers import IN_TORCH

from bppsa_lightning.calibration.cuda import (
    cases,
    grid,
    isolated,
    judge,
    layers,
    scans,
    tasks,
    timing,
    verify,
)
from bppsa_lightning.calibration.cuda.fit import fit
from bppsa_lightning.planner import Request, kernels

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
EVERY = cases.of_gpu(clusters=True, processors=132)


def test_every_kernel_that_auto_could_use_has_a_test():
    used = {
        name
        for cell, dtype, H in itertools.product(
            IN_TORCH, (torch.float32, torch.float64), (1, 8, 9, 20, 32, 64, 128, 256, 512, 4096)
        )
        for I, layers_, directions, P, lengths in itertools.product(
            (1, 2), (1, 2), (1, 2), (0, 1) if cell == "lstm" else (0,), (None, 9)
        )
        for plan in (timing.plan_named("linear"), timing.plan_named("c8"))
        for name in kernels.of_call(
            Request(cell, 100, 4, H, CUDA, "auto", None, I, P, layers_, directions, dtype, lengths),
            True,
            plan,
        )
    }
    used |= {f"{cell}.{dtype}.gates_again" for cell in ("gru", "lstm") for dtype in kernels.DTYPES}
    assert used <= EVERY.keys() <= gpus.every_kernel()


@pytest.mark.parametrize("clusters", [True, False])
def test_a_case_runs_what_it_is_a_test_of_and_what_was_tested_before(clusters):
    before = set()
    for kernel, found in cases.of_gpu(clusters, 132).items():
        for case in found:
            assert case.kernel == kernel and before.issuperset(case.needs) and str(case)
            dtype = getattr(torch, case.dtype)
            request = Request(
                case.cell, case.T, case.B, case.H, CUDA, I=case.I, P=case.P, dtype=dtype,
                directions=1 + case.reverse, total_steps=99 if case.lengths else None,
            )  # fmt: skip
            runs = kernels.of_call(request, clusters, case.plan)
            if not case.backward:
                runs = {name for name in runs if not name.endswith(kernels.BACKWARD)}
            elif case.saved == 1:
                runs.add(kernels.option(case.cell, case.dtype, "gates_again"))
            assert runs == {kernel, *case.needs}, case
        before.add(kernel)


def test_cases_are_small_enough_for_a_minute():
    assert sum(map(len, EVERY.values())) < 1100
    assert max(case.T * case.B * case.H for found in EVERY.values() for case in found) < 3e6


QUICK = [next(case for case in EVERY[name] if case.T < 100) for name in EVERY if ".20." in name]
QUICK += [found[-1] for name, found in EVERY.items() if name.count(".") == 2]  # options


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.kernel)
def test_right_kernels_pass(case):
    """The CPU's, through the operators and layers that a GPU would run."""
    assert tasks.tested(case, CPU) is None


def test_scans_pass():
    assert not [case for case in scans.of_gpu() if scans.tested(case, CPU)]


def changed(index, value):
    """`by_kernels` with a number of the last result changed."""

    def by_kernels(*given):
        found = layers_by_kernels(*given)
        last = found[list(found)[-1]].flatten()
        last[index] = value(last[index])
        return found

    return by_kernels


layers_by_kernels = layers.by_kernels
LINEAR = EVERY["gru.float32.20.linear"][0]


@pytest.mark.parametrize(
    "value, why",
    [
        (lambda t: t + 1e-2, r"grad_b_hh: off by .* of its largest number, at most 3e-05 expected"),
        (lambda t: torch.nan, "grad_b_hh: not finite"),
        (lambda t: t * 0 + torch.inf, "grad_b_hh: not finite"),
    ],
)
def test_a_wrong_number_is_seen(value, why, monkeypatch):
    monkeypatch.setattr(layers, "by_kernels", changed(7, value))
    found = tasks.tested(LINEAR, CPU)
    assert re.match(why, found), found


@pytest.mark.parametrize("cell, lucky", [("rnn_relu", True), ("rnn_tanh", False)])
def test_a_relu_on_its_other_side_is_tried_again(cell, lucky, monkeypatch):
    """Rounding can move one past 0, where its gradient jumps; with other numbers it will not."""
    calls = itertools.count()
    monkeypatch.setattr(layers, "by_kernels", changed(7, lambda t: t + 0.1 * (next(calls) < 2)))
    found = tasks.tested(EVERY[f"{cell}.float32.20.linear"][0], CPU)
    assert (found is None) == lucky


def test_other_bits_in_a_second_call_are_seen(monkeypatch):
    calls = itertools.count()
    noise = changed(7, lambda t: torch.nextafter(t, t + next(calls)))
    monkeypatch.setattr(layers, "by_kernels", noise)
    assert tasks.tested(LINEAR, CPU) == "grad_b_hh: not the same bits when called again"


def test_twice_pytorchs_error_is_allowed_and_no_more():
    truth = {"g": torch.ones(4, dtype=torch.float64)}
    own = {"g": torch.full((4,), 1 + 1e-3)}
    assert judge.wrong({"g": torch.full((4,), 1 - 1.9e-3)}, truth, own) is None
    assert "off by 0.0021" in judge.wrong({"g": torch.full((4,), 1 - 2.1e-3)}, truth, own)
    # In the norm of all, where no number is off by much.
    own["g"][1:] = 1
    assert "its norm" in judge.wrong({"g": torch.full((4,), 1 - 1.9e-3)}, truth, own)
    assert judge.wrong({"g": torch.ones(3)}, truth, own).startswith("g: of shape (3,)")


def test_a_layer_that_pytorch_computes_proves_nothing(monkeypatch):
    """Of samples of different lengths the attached layer is tested, which could leave them."""
    case = EVERY["lstm.float32.lengths"][0]
    monkeypatch.setattr(
        "bppsa_lightning.recurrent.support.unsupported_input", lambda *_: "for the test"
    )
    with pytest.raises(RuntimeError, match="left to PyTorch: for the test"):
        tasks.tested(case, CPU)


def test_the_grid_is_what_the_fit_needs():
    """Three long sizes and more at the fitted H, for each cell; and all sizes up to 256 units."""
    row = timing.row({"cell": "LSTM", "B": 2, "T": 20, "H": 5}, ["linear", "c8"], 0.0, CPU, print)
    assert row["plans"].keys() == {"linear", "c8"} and row["H"] == 5
    for times in (row["stock"], *row["plans"].values()):
        assert times["both"] > 0 and times["forward"] > 0 and times["backward"] > 0
    rows = [row | size for size in grid.GRID]
    found = fit(rows, 132)
    assert found.keys() == {"rnn", "gru", "lstm"}
    assert list(found["gru"]["ours"]) == ["8", "20", "32", "64", "128", "256"]


def test_a_gradient_enters_every_output_of_what_is_timed(monkeypatch):
    """From the last one alone "linear" passes over most steps, and is not worth what it seems."""
    seen, grad = [], torch.autograd.grad

    def noted(output, inputs, gradient):
        seen.append((output.shape, gradient.shape, bool((gradient != 0).all())))
        return grad(output, inputs, gradient)

    monkeypatch.setattr(torch.autograd, "grad", noted)
    timing.row({"cell": "GRU", "B": 2, "T": 20, "H": 5}, ["linear", "c8"], 0.0, CPU, print)
    assert set(seen) == {((20, 2, 5), (20, 2, 5), True)}


class Dies(isolated.Isolated):
    """A worker that is lost at every task."""

    def ask(self, task, limit):
        raise isolated.Lost("died", at="stock")


def test_a_failure_of_stock_is_no_kernels_fault():
    verdicts, rows = verify.Verdicts(right=set(gpus.every_kernel())), []
    size = {"cell": "GRU", "B": 16, "T": 1000, "H": 20}
    grid.measure([size], rows, verdicts, True, Dies("", ""), lambda size: None)
    assert not rows and not verdicts.wrong
