"""A training step on a busy machine: layers of bl.attach with several threads, beside one thread.

    python -m experiments.benchmarks.busy [--record] [--threads 2 4 16] [--old CHECKOUT]

Forward and backward of one layer, all gradients, on the CPU: first on the idle machine, then beside
busy processes (four, unless --busy says otherwise) that never wait for anything. Each way has a
process of its own; they take turns. For each: median, mean and 95th percentile of its steps in
milliseconds, and mean and median in proportion to those of one thread under the same load.
PyTorch's own layers are measured beside ours; --old adds another version of this library, a
checkout with its build. Writes recurrent_busy_cpu.json.

B samples, T steps, H hidden; one input.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import mean, median, quantiles
from typing import Any

CASES = {
    f"{cell} (B={B}, T={T}, H={H})": (cell, B, T, H)
    for cell, B, T, H in (
        ("RNN", 16, 1000, 20), ("GRU", 16, 1000, 20), ("LSTM", 16, 1000, 20), ("RNN", 16, 100, 20)
    )
}  # fmt: skip
# Ends with the process that started it, whatever ended that.
BUSY = (
    "import os\nstarter = os.getppid()\nwhile os.getppid() == starter:\n for _ in range(10**6): 0"
)

Step = Callable[[], None]


def percentile_95(times: list[float]) -> float:
    return quantiles(times, n=20)[-1]


Statistic = Callable[[list[float]], float]
RATIOS: dict[str, Statistic] = {"median": median, "mean": mean}
STATISTICS: dict[str, Statistic] = RATIOS | {"p95": percentile_95}


def parser() -> argparse.ArgumentParser:
    from experiments import recording  # late: a checkout that is measured may have none

    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    found.add_argument("--threads", type=int, nargs="+", default=[2], help="beside 1 (default: 2)")
    found.add_argument("--busy", type=int, default=4, help="busy processes (default: 4)")
    found.add_argument("--seconds", type=float, default=5, help="for each way (default: 5)")
    found.add_argument("--turns", type=int, default=5, help="that these are divided into")
    found.add_argument("--only", default="", help="cases whose name has this text")
    found.add_argument("--old", metavar="CHECKOUT", help="another version, measured beside ours")
    recording.add_record_argument(found)
    return found


def main(arguments: list[str] | None = None) -> None:
    from experiments import recording

    asked = parser().parse_args(arguments)
    rows = []
    with ExitStack() as stack:
        ways = [
            stack.enter_context(Way(name, threads, asked.old if name == "old" else os.getcwd()))
            for threads in sorted({1, *asked.threads})
            for name in ("ours", *(["old"] if asked.old else []), "stock")
        ]
        for case in (case for case in CASES if asked.only in case):
            for busy in sorted({0, asked.busy}):
                with busy_processes(busy):
                    found = measure(case, ways, asked.seconds, asked.turns)
                rows += [{"case": case, "busy": busy} | row for row in found]
                print(f"\n{case}, beside {busy} busy processes\n{table(found)}", flush=True)
    path = recording.folder(asked.record) / "recurrent_busy_cpu.json"
    recording.write(path, {"rows": rows})
    print(f"\nrecord: {path}")


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Some processes that compute all the time."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


class Way:
    """A process that takes steps: one version of the library, or PyTorch, on some threads."""

    def __init__(self, name: str, threads: int, checkout: str) -> None:
        self.name, self.threads = name, threads
        environment = {**os.environ, "PYTHONPATH": os.path.abspath(checkout)}
        command = [sys.executable, os.path.abspath(__file__), "--serve", name, str(threads)]
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> "Way":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def turn(self, case: str, seconds: float) -> list[float]:
        """Seconds of each step."""
        assert self.process.stdin and self.process.stdout
        print(json.dumps([case, seconds]), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


def serve(name: str, threads: int) -> None:
    """Answers each case and duration from standard input with the seconds of its steps."""
    import torch

    import bppsa_lightning as bl

    torch.set_num_threads(threads)
    steps: dict[str, Step] = {}
    for line in sys.stdin:
        case, seconds = json.loads(line)
        if case not in steps:
            cell, B, T, H = CASES[case]
            torch.manual_seed(0)
            layer = getattr(torch.nn, cell)(1, H)
            if name != "stock":
                bl.attach(layer)
            steps = {case: step_of(layer, torch.rand(T, B, 1), torch.randn(T, B, H))}
            turn(steps[case], seconds / 4)
        print(json.dumps(turn(steps[case], seconds)), flush=True)


def step_of(layer: Any, x: Any, grad: Any) -> Step:
    def step() -> None:
        layer.zero_grad()
        layer(x)[0].backward(grad)

    return step


def turn(step: Step, seconds: float) -> list[float]:
    """Seconds of each step, over some seconds."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        step()
        times.append(time.perf_counter() - start)
    return times


def measure(case: str, ways: list[Way], seconds: float, turns: int) -> list[dict[str, Any]]:
    times: dict[Way, list[float]] = {way: [] for way in ways}
    for i in range(turns):
        for way in ways if i % 2 == 0 else reversed(ways):  # no way always follows the same one
            times[way] += way.turn(case, seconds / turns)
    rows = []
    for way in ways:
        (alone,) = (one for one in ways if one.name == way.name and one.threads == 1)
        rows.append(
            {"way": way.name, "threads": way.threads, "steps": len(times[way])}
            | {name: of(times[way]) * 1e3 for name, of in STATISTICS.items()}
            | {f"{name}_to_1": of(times[way]) / of(times[alone]) for name, of in RATIOS.items()}
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    numbers = [*STATISTICS, *(f"{name}_to_1" for name in RATIOS)]
    head = f"{'way':6} {'threads':>7} {'steps':>6}" + "".join(f" {name:>11}" for name in numbers)
    lines = [
        f"{row['way']:6} {row['threads']:7} {row['steps']:6}"
        + "".join(f" {row[name]:11.3f}" for name in numbers)
        for row in rows
    ]
    return "\n".join([head, *lines])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        main()
