"""PipeDream's partition: the stages of a pipeline whose backward is a single task.

Dynamic programming over the slowest stage (Harlap et al., arXiv:1806.03377, section 3.2;
SOSP 2019), with its communication left out, as in LayerPipe's cycles.
"""

from __future__ import annotations

from collections.abc import Sequence

from bppsa_lightning.layerpipe.costs import LayerCost


def partition(costs: Sequence[LayerCost], processors: int) -> tuple[int, ...]:
    """The cuts of a straight pipeline, one processor a stage, that make its slowest stage fastest.

    Args:
        costs: of the layers.
        processors: how many; each gets at least one layer.

    Returns:
        The first layer of every stage but the first.

    Raises:
        ValueError: more processors than layers.
    """
    check_processors(processors, len(costs))
    total = [0.0]
    for cost in costs:
        total.append(total[-1] + cost.total)
    count = len(costs)
    best = [total[: count + 1]]  # best[m - 1][j]: the slowest of m stages over the first j layers
    cut: list[list[int]] = [[0] * (count + 1)]
    for m in range(2, processors + 1):
        row, where = [float("inf")] * (count + 1), [0] * (count + 1)
        for j in range(m, count + 1):
            found = ((max(best[-1][i], total[j] - total[i]), i) for i in range(m - 1, j))
            row[j], where[j] = min(found)
        best.append(row)
        cut.append(where)
    cuts, end = [], count
    for m in range(processors - 1, 0, -1):
        end = cut[m][end]
        cuts.append(end)
    return tuple(reversed(cuts))


def interval(costs: Sequence[LayerCost], cuts: Sequence[int]) -> float:
    """What the slowest stage does for a mini-batch."""
    edges = [0, *cuts, len(costs)]
    return max(
        sum(cost.total for cost in costs[a:b]) for a, b in zip(edges, edges[1:], strict=False)
    )


def replicated(costs: Sequence[LayerCost], processors: int) -> float:
    """The interval if stages may be replicated: m processors share a stage's mini-batches.

    The same programme, with a stage's time divided by its processors; the all-reduce of its
    weights costs nothing here.
    """
    total = [0.0]
    for cost in costs:
        total.append(total[-1] + cost.total)
    count = len(costs)
    best = [[total[j] / m for j in range(count + 1)] for m in range(1, processors + 1)]
    for m in range(2, processors + 1):
        for j in range(1, count + 1):
            for last in range(1, m):
                for i in range(1, j):
                    slowest = max(best[m - last - 1][i], (total[j] - total[i]) / last)
                    best[m - 1][j] = min(best[m - 1][j], slowest)
    return best[processors - 1][count]


def check_processors(processors: int, layers: int) -> None:
    """Raises a ValueError if there are more processors than layers, or none."""
    if not 1 <= processors <= layers:
        raise ValueError(
            f"processors: found {processors}, wanted 1 to {layers}, the number of layers"
        )
