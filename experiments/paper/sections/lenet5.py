"""The training curve of LeNet-5, by a scan over depth."""

from typing import Any

from experiments.paper.section import Records, Section
from experiments.paper.sections.bitstream_rnn import curves, curves_at_a_glance


def text(records: Records) -> str:
    return curves("lenet5")(records) + "\n\n" + who_wins(records["lenet5"])


def who_wins(summary: dict[str, Any]) -> str:
    """Which of the two takes a training step faster, and why."""
    ratio = summary["speed_up"]["step"]
    if ratio >= 1:
        return f"A training step is {ratio:.1f}x as fast as stock PyTorch's."
    return (
        f"**Stock PyTorch is faster:** a training step by scan takes {1 / ratio:.2f} times as long "
        "as its own. On a few cores the products of Jacobians cost more than they save, so the "
        "planner leaves such chains to PyTorch unless you ask for the scan."
    )


SECTION = Section(
    name="lenet5",
    title="LeNet-5: the training curve, by a scan over depth",
    minutes=1,
    paper="On CIFAR-10, the curves of back-propagation and of BPPSA coincide. No speed is claimed.",
    claim="curves coincide",
    run="experiments.compare lenet5",
    quick="--trainer.max_epochs 1 --trainer.limit_train_batches 25",
    full="{images}",
    records=("lenet5",),
    pictures=("lenet5",),
    text=text,
    glance=curves_at_a_glance("lenet5"),
)
