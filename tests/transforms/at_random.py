"""Random functions under random transforms of torch.func: are the numbers those of plain loops?

    PYTHONPATH=.:tests python tests/transforms/at_random.py 0 1000         # seeds 0 to 999
    PYTHONPATH=.:tests python tests/transforms/at_random.py 7 8 -v

Every seed is a case by itself: an operator, an attached layer in all its options or a scan, and a
transform of it, in float64, beside loops over `bppsa_lightning.reference` (tests/support/
transformed.py). What is further off than 1e-10 of the largest number is printed. At the end stands
how many there were. Ends with status 1 if one is wrong.
"""

import argparse
import sys
from collections import Counter

from support.transformed import Case

TOLERANCE = 1e-10


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("-v", "--verbose", action="store_true")
    arguments = parser.parse_args()
    counts, wrong, worst = Counter(), 0, 0.0
    for seed in range(arguments.first, arguments.end):
        case = Case(seed)
        error = case.error()
        counts[case.transform] += 1
        worst = max(worst, error)
        bad = not error <= TOLERANCE
        wrong += bad
        if bad or arguments.verbose:
            print(f"{seed}: {case.name}: {error:.1e}", flush=True)
    print(", ".join(f"{n} {name}" for name, n in counts.most_common()))
    print(f"{sum(counts.values())} cases, {wrong} wrong; the largest error is {worst:.1e}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
