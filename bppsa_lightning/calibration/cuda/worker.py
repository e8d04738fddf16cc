"""A process that runs tasks, of which each may hang or kill it: python -m … RUNNER DEVICE.

Lines of JSON. In: {"limit": seconds, …the task…}. Out: {"ready": true} once; then for each task
{"at": what it has begun}, as often as it says so, and {"done": result} or {"failed": message}.
"""

import importlib
import json
import os
import signal
import sys
from typing import Any

import torch

GRACE = 5  # seconds after which a task that nobody has stopped ends its process itself


def main(runner: str, device: str) -> None:
    # Who prints, prints to stderr: stdout is for the lines.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(**line: Any) -> None:
        answers.write(json.dumps(line) + "\n")

    tasks, on = importlib.import_module(runner), torch.device(device)
    tasks.prepare(on)
    say(ready=True)
    for line in sys.stdin:
        task = json.loads(line)
        # By the kernel of the system: also where its parent is gone and a call does not return.
        signal.alarm(int(task.pop("limit")) + GRACE)
        try:
            say(done=tasks.run(task, on, lambda what: say(at=what)))
        except Exception as error:
            say(failed=f"{type(error).__name__}: {error}".splitlines()[0])
        signal.alarm(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
