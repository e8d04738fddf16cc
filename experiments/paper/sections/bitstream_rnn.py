"""The training curve of the bitstream RNN."""

from collections.abc import Callable

from experiments.compare import summary
from experiments.paper.section import Records, Section


def curves(name: str, note: str = "") -> Callable[[Records], str]:
    """The table of the two runs in the record `name`, and a note."""

    def text(records: Records) -> str:
        return f"```\n{summary.table(records[name])}\n```" + f"\n\n{note}" * bool(note)

    return text


def curves_at_a_glance(name: str, whole: str = "training") -> Callable[[Records], str]:
    """How far the two curves of the record `name` are apart; speed-ups of backward and `whole`."""

    def glance(records: Records) -> str:
        found = records[name]
        gap = found["largest_relative_loss_difference"]
        ratios = [summary.times(found["speed_up"][part]) for part in ("backward", whole)]
        return f"curves {gap:.0e} apart; backward {ratios[0]}, {whole} {ratios[1]}"

    return glance


_LESS = "--trainer.limit_train_batches 200 --data.num_samples 3200 --data.num_val_samples 320"

SECTION = Section(
    name="bitstream_rnn_80_epochs",
    title="RNN: the training curve",
    minutes=185,
    paper="A vanilla RNN (tanh, 20 states) tells coins apart by 1000 tosses, 16 samples a "
    "batch, for 80 epochs: its loss by back-propagation and by BPPSA. Up to 2.75x overall, on "
    "RTX 2070 and 2080 Ti beside cuDNN 7.",
    claim="up to 2.75x overall",
    run="experiments.compare bitstream_rnn --name bitstream_rnn_80_epochs",
    quick=f"{_LESS} --trainer.max_epochs 2 --model.lr 1e-5",
    full="--trainer.max_epochs 80 --trainer.limit_train_batches 1.0 --model.lr 1e-5",
    records=("bitstream_rnn_80_epochs",),
    pictures=("bitstream_rnn_80_epochs",),
    text=curves(
        "bitstream_rnn_80_epochs",
        "Trained beside other work, in several sittings. Both processes were also stopped for a "
        "while, with their clocks running (the straight stretches over time): go by the medians of "
        "a step, which that does not touch, not by the seconds of the training. The largest "
        "difference is of one batch; running means lie on each other.",
    ),
    glance=curves_at_a_glance("bitstream_rnn_80_epochs", "step"),
)
SHORT = Section(
    name="bitstream_rnn",
    title="RNN: the beginning, at a larger step size",
    minutes=2,
    paper="No figure of the paper: what `make train` trains.",
    run="experiments.compare bitstream_rnn",
    quick=_LESS,
    records=("bitstream_rnn",),
    pictures=("bitstream_rnn",),
    text=curves("bitstream_rnn"),
    glance=curves_at_a_glance("bitstream_rnn"),
)
