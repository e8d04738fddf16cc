"""VGG-11, pruned and retrained."""

from experiments.compare import pruned
from experiments.paper.section import Records, Section


def text(records: Records) -> str:
    return f"```\n{pruned.table(records['pruned_vgg11'])}\n```"


def at_a_glance(records: Records) -> str:
    found = records["pruned_vgg11"]
    return (
        f"{found['sparsity']:.0%} pruned, curves {found['largest_loss_difference']:.0e} apart; "
        f"a step of retraining {found['speed_up']['step']:.1f}x as fast"
    )


SECTION = Section(
    name="pruned_vgg11",
    title="Pruned VGG-11: retraining",
    minutes=2,
    paper="The paper counts FLOPs (figure 10). Here VGG-11 is trained, pruned and retrained, "
    "beside Lightning's own pruning, which multiplies masks in.",
    run="experiments.compare pruned_vgg11",
    quick="--trainer.max_epochs 2",
    full="{images}",
    records=("pruned_vgg11",),
    pictures=("pruned_vgg11",),
    text=text,
    glance=at_a_glance,
)
