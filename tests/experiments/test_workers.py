"""Simulated workers: graphs that compute the gradients, schedules that could be, known times."""

import json
from itertools import combinations
from math import log2

import pytest
import torch

from experiments import recording
from experiments.paper import worker_tasks, workers
from experiments.paper.section import Records
from experiments.paper.sections import workers as section
from experiments.paper.worker_tasks import COMPOSE, Costs
from experiments.paper.worker_times import ALGORITHMS, Parts, Step, divisions, simulate

GRAPHS = {
    "walk": lambda n: worker_tasks.backward_walk(n),
    "chunked, 2": lambda n: worker_tasks.chunked(n, 2),
    "chunked, 3": lambda n: worker_tasks.chunked(n, 3),
    "blelloch, 1": lambda n: worker_tasks.blelloch(n, 1),
    "blelloch, 2": lambda n: worker_tasks.blelloch(n, 2),
    "blelloch, all": lambda n: worker_tasks.blelloch(n, max(1, (n - 1).bit_length())),
}
WARM = 3


def chain(n, size=WARM):
    """Jacobians whose products of `size` in a row are zero, and what each step adds."""
    torch.manual_seed(n)
    jac = torch.randint(1, 4, (n + 1, size, size)).double().triu(1)
    return jac, torch.randint(-3, 4, (n + 1, size)).double()


def compute(graph, given):
    """What each task makes; `given`, what is there before, by the name of the result."""
    values = {}
    for task in graph.tasks:
        needs = [values[need] if need in values else given(*need) for need in task.needs]
        if task.kind == COMPOSE:
            (a1, b1), (a2, b2) = needs
            made = a1 @ a2, a1 @ b2 + b1
        else:
            (a, b), g, *_ = needs
            made = a @ g + (0 if task.result[0] == "handed" else b)
        if task.result in values:  # a replay ends where a carry is known
            assert torch.equal(values[task.result], made)
        values[task.result] = made
    return values


@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 8, 16, 19])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_tasks_compute_every_gradient(name, n):
    jac, u = chain(n, size=2)
    jac = jac + torch.eye(2)

    def given(what, lo, hi):
        assert (what, lo, hi) == ("grad", n, n) or (what == "map" and hi == lo + 1)
        return u[n] if what == "grad" else (jac[hi], u[lo])

    values = compute(GRAPHS[name](n), given)
    g = u[n]
    for t in range(n - 1, -1, -1):
        g = jac[t + 1] @ g + u[t]
        assert torch.equal(values["grad", t, t], g)


@pytest.mark.parametrize(("n", "windows"), [(16, 4), (16, 2), (17, 4), (19, 5)])
def test_windows_of_what_forgets_compute_every_state_and_gradient(n, windows):
    jac, u = chain(n)
    edges = [lo for lo, _ in worker_tasks._segments(n, windows)] + [n]

    states = {}
    for task in worker_tasks.forward_windows(n, windows, WARM).tasks:
        [need] = task.needs
        _, k, t = task.result
        assert need == ("state", k, t - 1)
        if need not in states:  # the first state, or the guess of a window
            assert t == 1 if k == 0 else t - 1 + WARM in edges
            states[need] = torch.full((WARM,), float(k), dtype=torch.double)
        states[task.result] = jac[t].T @ states[need] + u[t]
    h = torch.zeros(WARM).double()
    for t in range(1, n + 1):
        h = jac[t].T @ h + u[t]
        own = min(k for k in range(windows) if ("state", k, t) in states)  # later ones warm up
        assert torch.equal(states["state", own, t], h), t

    def given(what, k, t):
        if what == "map":
            return jac[t], u[k]
        assert what == "own" and t == edges[k + 1]
        return u[n] if t == n else torch.zeros(WARM).double()

    values = compute(worker_tasks.backward_windows(n, windows, WARM), given)
    g = u[n]
    for t in range(n - 1, -1, -1):
        g = jac[t + 1] @ g + u[t]
        [own] = [k for k in range(len(edges) - 1) if edges[k] <= t < edges[k + 1]]
        found = values["own", own, t] + values.get(("handed", own, t), 0)
        assert torch.equal(found, g), t


def all_graphs(n):
    found = {name: make(n) for name, make in GRAPHS.items()}
    found["forward"] = worker_tasks.forward_windows(n, 4, WARM)
    found["windows"] = worker_tasks.backward_windows(n, 4, WARM)
    return found


@pytest.mark.parametrize("compose", [1, 5])
@pytest.mark.parametrize("workers", [1, 2, 3, 7, 64])
def test_a_schedule_could_be_and_leaves_nobody_idle(workers, compose):
    for name, graph in all_graphs(40).items():
        costs = Costs(graph, compose)
        begins = costs.schedule(workers)
        ends = [b + c for b, c in zip(begins, costs.costs, strict=True)]
        ready = [max((ends[o] for o in others), default=0) for others in graph.waits_for]
        assert all(b >= r for b, r in zip(begins, ready, strict=True)), name
        for now in range(max(ends)):
            busy = sum(b <= now < e for b, e in zip(begins, ends, strict=True))
            waiting = sum(r <= now < b for r, b in zip(ready, begins, strict=True))
            assert busy <= workers and (busy == workers or not waiting), name
        assert max(ends) == costs.time(workers) >= costs.least(workers)
        assert max(ends) <= costs.work / workers + costs.depth  # Graham's bound


def shortest(graph, workers):
    """The least time of tasks of one step each: all that could be done, breadth first."""
    before = [sum(1 << other for other in set(others)) for others in graph.waits_for]
    states, steps, everything = {0}, 0, (1 << len(before)) - 1
    while everything not in states:
        later = set()
        for done in states:
            ready = [1 << t for t, b in enumerate(before) if not done >> t & 1 and done & b == b]
            for chosen in combinations(ready, min(workers, len(ready))):
                later.add(done | sum(chosen))
        states, steps = later, steps + 1
    return steps


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_small_schedules_are_the_shortest(workers):
    small = {name: make(7) for name, make in GRAPHS.items()}
    small["forward"] = worker_tasks.forward_windows(8, 2, 2)
    small["windows"] = worker_tasks.backward_windows(8, 2, 2)
    for name, graph in small.items():
        assert Costs(graph, 1).time(workers) == shortest(graph, workers), name


def times(n, p, compose, **parts):
    """Of a forward and a backward."""
    return Step(Parts(**parts), n, compose).times(p)


def test_a_walk_takes_n_steps_each_way_whatever_the_workers():
    for p in (1, 2, 256):
        [row] = simulate("linear", 256, [p], 20, 40)
        assert (row["forward"], row["backward"]) == (256, 256)


@pytest.mark.parametrize("n", [8, 64, 1024])
def test_a_whole_tree_takes_2_log2_n_with_n_workers(n):
    levels = int(log2(n))
    assert times(n, n, 1, levels=levels) == (n, 2 * levels)
    # Of the 2 log2 n, log2 n - 1 compose.
    assert times(n, n, 20, levels=levels)[1] == 20 * (levels - 1) + levels + 1


@pytest.mark.parametrize(("chunk", "compose"), [(8, 1), (8, 20), (32, 20)])
def test_chunks_compose_then_carry_then_replay(chunk, compose):
    n = 512
    chunks = n // chunk
    backward = times(n, chunks, compose, span=chunk)[1]
    composed = max((chunk - 1) * compose, chunk)  # the last is replayed meanwhile
    assert backward == composed + chunks - 2 + chunk
    # With fewer workers the work is divided: all steps, carries, and compositions.
    work = n + (chunks - 2) * (1 + (chunk - 1) * compose)
    assert times(n, 1, compose, span=chunk)[1] == work
    assert work / 4 <= times(n, 4, compose, span=chunk)[1] <= work / 4 + backward


@pytest.mark.parametrize(("windows", "warm"), [(8, 10), (16, 32)])
def test_windows_take_their_span_and_the_warm_up_each_way(windows, warm):
    n = 512
    span = n // windows
    parts = {"span": span, "windows": windows, "warm": warm}
    assert times(n, windows, 20, **parts) == (span + warm, span + warm)
    work = n + (windows - 1) * warm
    assert times(n, 1, 20, **parts) == (work, work)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_fastest_division_is_found_and_more_workers_are_never_slower(algorithm):
    counts = [1 << k for k in range(8)]
    rows = simulate(algorithm, 128, counts, 4, 16)
    all_steps = [Step(parts, 128, 4) for parts in divisions(algorithm, 128, 16)]
    for p, row in zip(counts, rows, strict=True):
        assert row["step"] == min(sum(step.times(p)) for step in all_steps)
        assert row["step"] == sum(times(128, p, 4, **row["parts"]))
    steps = [row["step"] for row in rows]
    assert steps == sorted(steps, reverse=True)


def test_growth_with_as_many_workers_as_steps():
    backward, step = {}, {}
    for n in (256, 1024):
        for algorithm in ALGORITHMS:
            [row] = simulate(algorithm, n, [n], 1, 16)
            backward[algorithm, n], step[algorithm, n] = row["backward"], row["step"]
    assert backward["blelloch", 1024] - backward["blelloch", 256] == 4  # 2 log2 4
    assert 1.9 < backward["chunked", 1024] / backward["chunked", 256] < 2.1  # sqrt(4)
    assert step["blelloch", 1024] > 1024  # the forward is walked
    assert step["speculative", 1024] == step["speculative", 256] == 4 * 16


def test_a_record_a_picture_and_the_page(accelerate_everything, monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra experiments")
    monkeypatch.setattr(recording, "RECORDS", tmp_path)
    threads = torch.get_num_threads()
    workers.main(["--sizes", "64", "512", "--seconds", "0", "--warm", "16", "--record"])
    assert torch.get_num_threads() == threads
    found = json.loads((tmp_path / "workers.json").read_text())
    assert (tmp_path / "workers.png").stat().st_size > 10_000
    measured = {(row["algorithm"], row["threads"]): row for row in found["measured"]}
    assert set(measured) == {(name, count) for name in ALGORITHMS for count in (1, 2)}
    assert measured["linear", 1]["steps"] == measured["linear", 1]["simulated"]["20"] == 1024
    assert measured["chunked", 1]["parts"]["span"] and measured["blelloch", 2]["parts"]["levels"]
    windows = measured["speculative", 1]["parts"]
    assert windows["windows"] > 1 and windows["warm"] > 1
    records: Records = {"workers": found}
    text = section.text(records)
    assert "| 512 | 1,024 (512) |" in text
    assert section.measured(found) in capsys.readouterr().out
    assert "n = p = 512: backward 18 steps" in section.at_a_glance(records)


def test_sizes_that_are_no_powers_of_two_are_refused():
    with pytest.raises(SystemExit, match="wanted powers of two"):
        workers.main(["--sizes", "100"])
