"""Scripts in processes of their own, with torch and Lightning imported already.

They fork from a server that imports both once: each Python by itself takes 3 seconds of a core.
"""

import functools
import multiprocessing
import os
import runpy
import signal
import sys
import time
from contextlib import suppress
from multiprocessing import connection, forkserver
from pathlib import Path
from unittest import mock

from lightning.fabric.plugins.environments.lightning import find_free_network_port

TESTS = Path(__file__).parents[1]
IMPORTED = ("lightning.pytorch", "bppsa_lightning.datasets")
OF_A_RUN = ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "PL_GLOBAL_SEED", "WORLD_SIZE")


def start(output, script, *arguments, folder=TESTS, **variables):
    """A process that does what `python script arguments` does, in a session of its own.

    Args:
        output: a file; what it says is appended.
        script: the path of a file, or the name of a module.
        folder: where it runs.
        variables: of its environment, beside those of `environment()`.
    """
    arguments = [*map(str, arguments)]
    process = server().Process(
        target=_run, args=(output, script, arguments, folder, environment(**variables))
    )
    process.start()
    return process


def run(folder, script, *arguments, ranks=None, timeout=300):
    """Runs a script to its end; what it says.

    With `ranks`, so many processes of one training, as torchrun starts them; what all of them say.
    """
    name = f"{Path(script).stem}_{time.monotonic_ns()}"
    outputs = [folder / f"{name}_{rank}.out" for rank in range(ranks or 1)]
    of_each = [{}] if ranks is None else of_ranks(ranks)
    started = [
        start(output, script, *arguments, **variables)
        for output, variables in zip(outputs, of_each, strict=True)
    ]
    try:
        end = time.monotonic() + timeout
        while any(process.exitcode is None for process in started):
            left = [process.sentinel for process in started if process.exitcode is None]
            if not connection.wait(left, end - time.monotonic()):
                break
            if any(process.exitcode for process in started):
                end = min(end, time.monotonic() + 5)  # the others wait for it
        while any(map(_has_members, started)) and time.monotonic() < end:
            time.sleep(0.02)  # the first process of a training may end before those it started
    finally:
        for process in started:
            kill(process)
    said = "\n".join(output.read_text() for output in outputs if output.exists())
    assert not any(process.exitcode for process in started), said[-8000:]
    return said


def of_ranks(count):
    """The variables by which the processes of one training find each other."""
    port = find_free_network_port()
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
    return [{**shared, "LOCAL_RANK": str(rank)} for rank in range(count)]


def kill(process):
    """Kills a process, if it has not ended, with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # it may not lead its group yet
    process.join()


def _has_members(process):
    """Whether any process of the group that a process led has not ended."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(group) == process.pid and state not in "ZX":
                return True
    return False


def environment(**variables):
    """This process's environment, apart from what is of one run; and tests are found."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_A_RUN}
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}


@functools.cache
def server():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED])
    with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}):
        forkserver.ensure_running()
    return context


def _run(output, script, arguments, folder, variables):
    missing = [name for name in IMPORTED if name not in sys.modules]  # the server is silent of it
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # of loaders' workers
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    assert not missing, f"the server has not imported {missing}"
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    sys.argv[1:] = arguments
    if Path(script).suffix == ".py":
        runpy.run_path(str(script), run_name="__main__")
    else:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
