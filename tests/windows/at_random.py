"""Random recurrences in windows of time: are results and gradients as exact as the walk's?

    PYTHONPATH=.:tests python tests/windows/at_random.py scan 0 500         # seeds 0 to 499
    PYTHONPATH=.:tests python tests/windows/at_random.py layers 1234 1235 -v

`scan`: any cell through `bl.scan`, by every algorithm. `layers`: PyTorch's layers under
`bl.attach(layer, "speculative")`, in all their options, three calls each. Every seed is a case by
itself: sizes, gains, biases, inputs, losses; half of them warm up for as long as a look says, the
others for 1, 4 or 16 steps, so that windows miss. What is further
from the float64 truth than twice the worst of two float32 walks is printed, with all that the seed
drew, and whether ten walks, or those of our kernels, are as far apart; `-v` prints every case.

At the end stands how many there were, and how often it is the plain walk that is further off than
ours and another one: as often, where all is luck. Ends with status 1 if a result of more than three
numbers is wrong.
"""

import argparse
import os
import re
import sys
import time
from collections import Counter

import torch
from support.judged import judge
from support.random_layers import RandomLayer
from support.random_scans import RandomScan

KINDS = {"scan": RandomScan, "layers": RandomLayer}


def run(case, counts, verbose=False, name=""):
    """The flags of a case, of all calls; prints those that there are, and adds to the counts."""
    start = time.perf_counter()
    calls = [(call, judge(call, case.dtype)) for call in case.calls()]
    count(counts, calls)
    flags = [
        f"call {i}{' in windows' if call.how else ''}: {flag}"
        for i, (call, judgement) in enumerate(calls)
        for flag in judgement.flags
    ]
    if flags or verbose:
        options = " ".join(
            f"{k}={v}" for k, v in case.options.items() if v not in (False, "", 0, None)
        )
        how = [
            f"call {i}: {line.strip()}" for i, (call, _) in enumerate(calls) for line in call.how
        ]
        seconds = f"{time.perf_counter() - start:.1f} s"
        print("\n  ".join([f"{name}: {options} ({seconds})", *flags, *(how if verbose else [])]))
    return [flag for _, judgement in calls for flag in judgement.flags]


def count(counts, calls):
    """What became of a case's calls."""
    flags = [flag for _, judgement in calls for flag in judgement.flags]
    lines = "\n".join(line for call, _ in calls for line in call.how)
    counts["cases"] += 1
    counts["cases in windows"] += bool(lines)
    counts["cases in which windows missed"] += "did not meet" in lines
    counts["cases in which windows were repaired alone"] += "were repaired" in lines
    counts["cases walked from a window on"] += "walked as one" in lines
    counts["windows"] += sum(map(int, re.findall(r"(\d+) windows of", lines)))
    counts["windows that missed and were repaired"] += sum(
        map(int, re.findall(r"(\d+) did not meet, and were", lines))
    )
    counts["results that no walk has"] += sum(judgement.lost for _, judgement in calls)
    for few, of in ((False, ""), (True, " of 1 to 3 numbers")):
        same = [flag for flag in flags if flag.few == few]
        counts[f"cases wrong{of}"] += any(flag.wrong for flag in same)
        counts[f"results{of} further off than two walks"] += len(same)
        counts[f"results{of} further off than all walks"] += sum(flag.wrong for flag in same)
        counts[f"results{of} of which the plain walk is further off"] += sum(
            judgement.other_way[few] for _, judgement in calls
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("first", type=int, help="seed")
    parser.add_argument("end", type=int, help="the seed after the last one")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every case")
    parser.add_argument("--longest", type=int, default=5000, help="steps at most")
    arguments = parser.parse_args()
    os.environ.setdefault("BPPSA_TABLE", "intel_xeon_2")  # the same kernels on every machine
    torch.set_num_threads(1)
    counts = Counter()
    for seed in range(arguments.first, arguments.end):
        case = KINDS[arguments.kind](seed, arguments.longest)
        run(case, counts, arguments.verbose, f"{arguments.kind} {seed}")
        sys.stdout.flush()
    print(*(f"{number:7,}  {what}" for what, number in counts.items()), sep="\n")
    sys.exit(1 if counts["cases wrong"] else 0)


if __name__ == "__main__":
    main()
