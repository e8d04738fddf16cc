"""The training curve of the bitstream RNN."""

from collections.abc import Callable

from experiments.compare import summary
from experiments.paper.section import Records, Section


def curves(name: str, note: str = "") -> Callable[[Records], str]:
    """The table of the two runs in the record `name`, and a note."""

    def text(records: Records) -> str:
        return f"```\n{summary.table(records[name])}\n```" + f"\n\n{note}" * bool(note)

    return text


def curves_at_a_glance(name: str) -> Callable[[Records], str]:
    """How far the two curves of the record `name` are apart, and the speed-ups."""

    def glance(records: Records) -> str:
        found = records[name]
        gap = found["largest_relative_loss_difference"]
        ratios = [summary.times(found["speed_up"][part]) for part in ("backward", "training")]
        return f"curves {gap:.0e} apart; backward {ratios[0]}, training {ratios[1]}"

    return glance


SECTION = Section(
    name="bitstream_rnn_80_epochs",
    title="RNN: the training curve",
    minutes=185,
    paper="A vanilla RNN (tanh, 20 states) tells coins apart by 1000 tosses, 16 samples a "
    "batch, for 80 epochs: its loss by back-propagation and by BPPSA. Up to 2.75x overall, on "
    "RTX 2070 and 2080 Ti beside cuDNN 7.",
    claim="up to 2.75x overall",
    run="experiments.compare bitstream_rnn --name bitstream_rnn_80_epochs",
    resumes=True,
    quick="--trainer.limit_train_batches 200 --data.num_samples 3200 --data.num_val_samples 320 "
    "--trainer.max_epochs 1 --model.lr 1e-5",
    full="--trainer.max_epochs 80 --trainer.limit_train_batches 1.0 --model.lr 1e-5",
    records=("bitstream_rnn_80_epochs",),
    pictures=("bitstream_rnn_80_epochs",),
    text=curves(
        "bitstream_rnn_80_epochs",
        "Trained one after the other, beside other work that slowed both, and not alike. Training "
        "time leaves out when a run was stopped. The largest difference is that of one batch; the "
        "running means lie on each other.",
    ),
    glance=curves_at_a_glance("bitstream_rnn_80_epochs"),
)
SHORT = Section(
    name="bitstream_rnn",
    title="RNN: one short epoch",
    paper="No figure of the paper: what `make train` trains, at a larger learning rate.",
    elsewhere="`python -m experiments.compare bitstream_rnn --record`",
    records=("bitstream_rnn",),
    pictures=("bitstream_rnn",),
    text=curves("bitstream_rnn"),
    glance=curves_at_a_glance("bitstream_rnn"),
)
