"""How old the weights are that a mini-batch sees: the delays of a pipeline that never waits.

S(m) is the number of stages after that of layer m. Update k of every layer uses the gradient of
mini-batch k, taken with every layer m at its own weights after max(k0, k - d_m) updates; k0 is the
number of updates at the last drain. LayerPipe's d_m is 2 S(m): there forward and backward of a
stage are S(m) intervals away from the last stage each (LayerPipe2, arXiv:2512.08160). PipeDream's
(SOSP 2019) is S(m), because its stages do a forward and a backward in turns.
"""

from collections.abc import Sequence

UPDATES_PER_STAGE = {"layerpipe": 2, "pipedream": 1, "gpipe": 0, "zero_bubble": 0}
SCHEDULES = tuple(UPDATES_PER_STAGE)


def spans(cuts: Sequence[int], layers: int) -> list[range]:
    """The layers of each stage.

    Args:
        cuts: the first layer of every stage but the first, rising: (2, 5) means layers 0 and 1,
            2 to 4, and 5 to the last.
        layers: how many there are.

    Raises:
        ValueError: the cuts do not rise, or leave a stage without a layer.
    """
    edges = [0, *cuts, layers]
    if any(a >= b for a, b in zip(edges, edges[1:], strict=False)):
        raise ValueError(
            f"cuts: found {tuple(cuts)}, wanted rising numbers between 1 and {layers - 1}, each "
            f"the first layer of a stage; there are {layers} layers"
        )
    return [range(a, b) for a, b in zip(edges, edges[1:], strict=False)]


def stage_delays(schedule: str, stages: int) -> list[int]:
    """d of each stage, in updates."""
    return [UPDATES_PER_STAGE[schedule] * (stages - 1 - stage) for stage in range(stages)]


def layer_delays(schedule: str, cuts: Sequence[int], layers: int) -> list[int]:
    """d_m of each layer, in updates; arguments as of `spans`."""
    ranges = spans(cuts, layers)
    delays = stage_delays(schedule, len(ranges))
    return [d for span, d in zip(ranges, delays, strict=True) for _ in span]
