"""The table of the experiments: what the paper shows, how ours is made, what its records say.

Each row of EXPERIMENTS is a section of the page that figures.py writes. The paper is BPPSA
(arXiv:1907.10134); its numbers stand here only where they are known.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import bitstream_sweep
import compare
import compare_pruned
import irmas_curves

Records = dict[str, Any]  # of one experiment, by file name without suffix


@dataclass(frozen=True)
class Experiment:
    """One figure or table.

    Attributes:
        name: short, for command lines.
        title: of the section.
        paper: what the paper shows, and its numbers where known.
        claim: its numbers alone.
        quick: script and arguments of a short run; None if there is none.
        full: those of the run that is kept; "{images}" becomes the arguments for CIFAR-10 where it
            is at hand.
        records: names of its JSON files.
        pictures: names of its PNG files.
        text: what the records say, as Markdown.
        glance: the same in a few words.
        elsewhere: where there is no command: how the record is made.
        minutes: of the full run on two cores; of a training, its steps times those measured.
    """

    name: str
    title: str
    paper: str
    quick: str | None
    full: str | None
    records: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()
    text: Callable[[Records], str] | None = None
    glance: Callable[[Records], str] | None = None
    elsewhere: str = ""
    claim: str = ""
    minutes: int = 0

    def command(self, full: bool, images: str = "") -> str | None:
        """The command of a run, without the interpreter; None if there is none."""
        command = self.full if full else self.quick
        return command and command.format(images=images).strip()


def _curves(name: str) -> Callable[[Records], str]:
    def text(records: Records) -> str:
        return f"```\n{compare.table(records[name])}\n```"

    return text


def _who_wins(found: dict[str, Any]) -> str:
    ratio = found["speed_up"]["step"]
    if ratio >= 1:
        return f"A training step is {compare.times(ratio)} as fast as stock PyTorch's."
    return (
        f"**Stock PyTorch is faster:** a training step takes {1 / ratio:.0f} times as long as its "
        "own, as the products of Jacobians take far more work than they spare on a few cores. The "
        "planner leaves such chains to PyTorch unless they are asked for."
    )


def _curves_at_a_glance(name: str) -> Callable[[Records], str]:
    def glance(records: Records) -> str:
        found = records[name]
        gap = found["largest_relative_loss_difference"]
        ratios = [compare.times(found["speed_up"][part]) for part in ("backward", "training")]
        return f"curves {gap:.0e} apart; backward {ratios[0]}, training {ratios[1]}"

    return glance


FADING = (
    "The loss reads the last state alone, as in the paper, and its gradient fades on its way: "
    "below 1.2e-38 stock PyTorch's backward slows down on Intel cores, up to fifteenfold, which is "
    "part of what is won at large T. [The table of all cells](benchmark_recurrent_cpu.json) has "
    "gradients of every output, which do not fade."
)


def _sweep(name: str) -> Callable[[Records], str]:
    def text(records: Records) -> str:
        rows = records[name]["rows"]
        lines = ["| B | T | ours | stock PyTorch | backward | whole step |", "|---" * 6 + "|"]
        for row in sorted(rows, key=lambda row: (row["B"] != 16, row["B"], row["T"])):
            ours, stock = (row[who]["step"] * 1e3 for who in ("ours", "stock"))
            ratios = (f"{row['ratio_stock'][part]:.1f}x" for part in ("backward", "step"))
            left = " (left to PyTorch)" if row["left_to_pytorch"] else ""
            lines.append(f"| {row['B']} | {row['T']:,} | {ours:.2f} ms{left} | {stock:.2f} ms | "
                         + " | ".join(ratios) + " |")  # fmt: skip
        return "\n".join(lines) + f"\n\n{_wins(bitstream_sweep.slower(rows))} {FADING}"

    return text


def _sweep_at_a_glance(name: str) -> Callable[[Records], str]:
    def glance(records: Records) -> str:
        rows = records[name]["rows"]
        found = []
        for part, label in (("backward", "backward"), ("step", "whole step")):
            ratios = [row["ratio_stock"][part] for row in rows]
            found.append(f"{label} {min(ratios):.1f}x to {max(ratios):.0f}x")
        return ", ".join(found)

    return glance


def _music(records: Records) -> str:
    rows = records["irmas_gru"]["rows"]
    threads = sorted({row["threads"] for row in rows})
    note = (
        f"Threads: {', '.join(map(str, threads))}. Seconds are medians of the training. "
        "Eleven instruments (chance: 9 %), rendered from a soundfont: accuracies say nothing of "
        "IRMAS. Validation and test are of recordings that training never saw; the network is the "
        "one trained by scan. What differs from the paper's training is in "
        "[irmas_gru.py](../irmas_gru.py). Once the learning rate has risen, training is chaotic: "
        "any difference of rounding, such as between two kernels, grows until two runs part."
    )
    if any("stock_steps" in row for row in rows):
        note += " Stock PyTorch was stopped early; the curves are compared up to there."
    return f"{irmas_curves.table(rows)}\n\n{note}"


def _music_at_a_glance(records: Records) -> str:
    rows = records["irmas_gru"]["rows"]
    fewest = min(row["steps_together"] for row in rows)
    ratios = [row["speed_up"]["step"] for row in rows]
    accuracies = "; ".join(
        f"{r['features']} {r['test_accuracy']:.0%}" for r in rows if r["B"] == 16
    )
    return (
        f"curves within 1e-4 for {fewest} steps; step {min(ratios):.1f}x to {max(ratios):.1f}x; "
        f"test accuracy: {accuracies}"
    )


def _breakdown(records: Records) -> str:
    rows = records["gru_breakdown_cpu"]["rows"]
    head = (
        "| features | T | B | ours: forward | backward | rest | stock: forward | backward | rest |"
    )
    lines = [f"{head} whole step |", "|---" * 10 + "|"]
    for row in rows:
        times = [
            f"{row[who][part] * 1e3:.2f} ms"
            for who in ("ours", "stock")
            for part in ("forward", "backward", "rest")
        ]
        cells = [row["features"], row["T"], row["B"], *times, f"{row['ratio_stock']['step']:.1f}x"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n\n" + _wins(bitstream_sweep.slower(rows))


def _breakdown_at_a_glance(records: Records) -> str:
    ratios = [row["ratio_stock"]["step"] for row in records["gru_breakdown_cpu"]["rows"]]
    return f"whole step {min(ratios):.1f}x to {max(ratios):.0f}x"


def _wins(slower: list[dict[str, Any]]) -> str:
    """Where stock PyTorch is the faster one."""
    if not slower:
        return "Stock PyTorch is faster at none of these sizes."
    sizes = "; ".join(
        f"B = {row['B']}, T = {row['T']:,} ({compare.times(row['ratio_stock']['step'])})"
        for row in slower
    )
    return f"**Stock PyTorch is faster at:** {sizes}."


def _on_gpu(records: Records) -> list[dict[str, Any]]:
    """The cells and sizes of the paper."""
    found = []
    for row in records["h200_recurrent"]["rows"]:
        if row["H"] != 20 or row["cell"] == "LSTM":
            continue
        best, stock = row["plans"][row["best"]], row["stock"]
        found.append(row | {"ratio": {part: stock[part] / best[part] for part in stock}})
    return found


def _gpu(records: Records) -> str:
    rows = _on_gpu(records)
    lines = [
        "| cell | B | T | cuDNN, backward | ours, backward | | forward and backward |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        ours, stock = (of["backward"] * 1e3 for of in (row["plans"][row["best"]], row["stock"]))
        lines.append(
            f"| {row['cell']} | {row['B']} | {row['T']:,} | {stock:.2f} ms | "
            f"{ours:.2f} ms ({row['best']}) | {row['ratio']['backward']:.1f}x | "
            f"{row['ratio']['both']:.1f}x |"
        )
    slower = [r for r in rows if r["ratio"]["both"] < 1]
    wins = _wins([{**r, "ratio_stock": {"step": r["ratio"]["both"]}} for r in slower])
    note = (
        "Ours are the bare operators (`bl.ops.rnn`, `bl.ops.gru`) with the fastest of the plans "
        "that were measured (in brackets; c8: chunks of 8); attached layers have not run on a "
        "GPU yet."
    )
    return "\n".join(lines) + f"\n\n{note} {wins}"


def _gpu_at_a_glance(records: Records) -> str:
    rows = _on_gpu(records)
    best = max(row["ratio"]["backward"] for row in rows)
    both = max(row["ratio"]["both"] for row in rows)
    return f"backward up to {best:.0f}x, forward and backward up to {both:.1f}x, over cuDNN"


def _table1(records: Records) -> str:
    lines = [
        "| layer | zeros | paper | column by column | ours | speed-up | paper |",
        "|---" * 7 + "|",
    ]
    for row in records["table1"]["rows"]:
        baseline = f"{row['baseline_seconds']:.1f} s" + ("*" if row["extrapolated"] else "")
        lines.append(
            f"| {row['layer']} | {row['sparsity']:.5f} | {row['paper_sparsity']:.5f} | {baseline} "
            f"| {row['seconds'] * 1e6:.0f} µs | {row['speed_up']:.1e}x "
            f"({row['speed_up_first']:.1e}x) | {row['paper_speed_up']:.1e}x |"
        )
    return "\n".join(lines) + (
        "\n\nIn brackets: with the pattern built anew, as in the first call alone. * extrapolated "
        "from the columns that were timed, as the dense matrix does not fit into memory."
    )


def _table1_at_a_glance(records: Records) -> str:
    rows = records["table1"]["rows"]
    zeros = " / ".join(f"{row['sparsity']:.5f}" for row in rows)
    return f"{zeros}; " + " / ".join(f"{row['speed_up']:.1e}x" for row in rows)


def _figure10(records: Records) -> str:
    totals = records["figure10"]["totals"]
    millions = {name: f"{value / 1e6:,.0f}" for name, value in totals.items()}
    factored = (
        f"{millions['scan_in_factors']} million, {millions['critical_path_in_factors']} million on "
        f"a critical path of {totals['steps_critical_path_in_factors']} steps."
    )
    return (
        f"The scan: {millions['scan']} million FLOPs an image, {millions['critical_path']} million "
        f"on the critical path of {totals['steps_critical_path']} steps. Back-propagation: "
        f"{totals['steps_bp']} steps, {millions['bp_dense']} million with dense kernels, "
        f"{millions['bp_surviving']} million on the surviving weights. **Back-propagation wins in "
        "FLOPs:** the products of matrices that shorten the path cost more than all of it. With "
        "those that only scale and pick kept in factors, as `LayerScan` makes them: " + factored
    )


def _figure10_at_a_glance(records: Records) -> str:
    totals = records["figure10"]["totals"]
    return (
        f"{totals['steps_critical_path']} steps instead of {totals['steps_bp']}, "
        f"{totals['critical_path'] / totals['bp_dense']:.1f} times the FLOPs of dense BP"
    )


def _pruned(records: Records) -> str:
    return f"```\n{compare_pruned.table(records['pruned_vgg11'])}\n```"


def _pruned_at_a_glance(records: Records) -> str:
    found = records["pruned_vgg11"]
    return (
        f"{found['sparsity']:.0%} pruned, curves {found['largest_loss_difference']:.0e} apart; "
        f"a step of retraining {found['speed_up']['step']:.1f}x as fast"
    )


def _grid(records: Records) -> str:
    rows = records["grid_recurrent_cpu"]["rows"]
    scanned = [row for row in rows if row["scanned"]]
    slower = [row for row in scanned if row["ratio_stock"]["both"] < 1]
    named = "; ".join(
        f"{row['cell']} at B = {row['B']}, T = {row['T']:,}, H = I = {row['H']} "
        f"({compare.times(row['ratio_stock']['both'])})"
        for row in slower
    )
    return (
        f"Of {len(rows)} sizes {len(rows) - len(scanned)} are left to PyTorch, at the cost of "
        "handing over, a microsecond where the size is that of the call before; of the others "
        f"stock is faster at {f'{len(slower)}: **{named}**' if slower else 'none'}."
    )


def _grid_at_a_glance(records: Records) -> str:
    rows = records["grid_recurrent_cpu"]["rows"]
    ratios = [row["ratio_stock"]["both"] for row in rows if row["scanned"]]
    slower = sum(ratio < 1 for ratio in ratios)
    return f"median {median(ratios):.1f}x; stock faster at {slower} of {len(ratios)} sizes scanned"


EXPERIMENTS = (
    Experiment(
        name="bitstream_rnn",
        title="RNN: the training curve",
        minutes=185,
        paper="A vanilla RNN (tanh, 20 states) tells coins apart by 1000 tosses, 16 samples a "
        "batch, for 80 epochs: its loss by back-propagation and by BPPSA. Up to 2.75x overall, on "
        "RTX 2070 and 2080 Ti beside cuDNN 7.",
        claim="up to 2.75x overall",
        quick="compare.py bitstream_rnn --record --trainer.limit_train_batches 200 "
        "--data.num_samples 3200 --data.num_val_samples 320",
        full="compare.py bitstream_rnn --record --trainer.max_epochs 80 "
        "--trainer.limit_train_batches 1.0 --model.lr 1e-5",
        records=("bitstream_rnn",),
        pictures=("bitstream_rnn",),
        text=_curves("bitstream_rnn"),
        glance=_curves_at_a_glance("bitstream_rnn"),
    ),
    Experiment(
        name="rnn_sweep",
        title="RNN: speed-up by sequence length and by batch",
        minutes=2,
        paper="The same RNN at T = 10 … 30,000 (B = 16) and B = 2 … 256 (T = 1000): the longer the "
        "sequence and the smaller the batch, the more is won; up to 108x in the backward pass, on "
        "RTX 2070 and 2080 Ti beside cuDNN 7.",
        claim="backward up to 108x",
        quick="bitstream_sweep.py --seconds 0.5 --pairs 3 --longest 3000",
        full="bitstream_sweep.py",
        records=("bitstream_sweep_rnn_cpu",),
        pictures=("bitstream_sweep_rnn_cpu",),
        text=_sweep("bitstream_sweep_rnn_cpu"),
        glance=_sweep_at_a_glance("bitstream_sweep_rnn_cpu"),
    ),
    Experiment(
        name="gru_sweep",
        title="GRU: the same sweeps",
        minutes=3,
        paper="Not in the paper, which measures its GRU on music (below).",
        quick="bitstream_sweep.py --cell GRU --seconds 0.5 --pairs 3 --longest 1000",
        full="bitstream_sweep.py --cell GRU",
        records=("bitstream_sweep_gru_cpu",),
        pictures=("bitstream_sweep_gru_cpu",),
        text=_sweep("bitstream_sweep_gru_cpu"),
        glance=_sweep_at_a_glance("bitstream_sweep_gru_cpu"),
    ),
    Experiment(
        name="gpu_sweep",
        title="RNN and GRU on a GPU, beside today's cuDNN",
        paper="The two sweeps above, as the paper measured them: up to 108x in the backward pass, "
        "on RTX 2070 and 2080 Ti beside cuDNN 7. Since then cuDNN has a kernel of its own for "
        "small states, which keeps the weights on the chip.",
        claim="backward up to 108x, over cuDNN 7",
        quick=None,
        full=None,
        records=("h200_recurrent",),
        text=_gpu,
        glance=_gpu_at_a_glance,
        elsewhere="make gpu, on a machine with a GPU",
    ),
    Experiment(
        name="irmas_gru",
        title="GRU on music: the training curves",
        minutes=75,
        paper="A GRU of 20 states names the instrument in three seconds of music (IRMAS), from "
        "MFCCs of 259 (S), 517 (M) and 1034 (L) frames, 16 excerpts a batch, for 400 epochs: its "
        "loss by back-propagation and by BPPSA. No accuracy on unseen excerpts.",
        quick="irmas_curves.py --trainer.max_epochs 3 --data.per_class 15 "
        "--data.data_dir data/irmas_rendered_short",
        full="irmas_curves.py --batches 16 32 64",
        records=("irmas_gru",),
        pictures=("irmas_gru",),
        text=_music,
        glance=_music_at_a_glance,
    ),
    Experiment(
        name="gru_breakdown",
        title="GRU on music: where the time goes in S, M and L",
        minutes=2,
        paper="Forward, backward and the rest of a training step, for B = 16, 32 and 64.",
        quick="gru_breakdown.py --seconds 1",
        full="gru_breakdown.py",
        records=("gru_breakdown_cpu",),
        pictures=("gru_breakdown_cpu",),
        text=_breakdown,
        glance=_breakdown_at_a_glance,
    ),
    Experiment(
        name="lenet5",
        title="LeNet-5: the training curve, by a scan over depth",
        minutes=1,
        paper="On CIFAR-10, the curves of back-propagation and of BPPSA coincide. No speed is "
        "claimed.",
        claim="curves coincide",
        quick="compare.py lenet5 --record --trainer.max_epochs 1 --trainer.limit_train_batches 25",
        full="compare.py lenet5 --record {images}",
        records=("lenet5",),
        pictures=("lenet5",),
        text=lambda records: _curves("lenet5")(records) + "\n\n" + _who_wins(records["lenet5"]),
        glance=_curves_at_a_glance("lenet5"),
    ),
    Experiment(
        name="table1",
        title="Table 1: sparsity of Jacobians, and how fast they are made",
        minutes=1,
        paper="The first convolution, ReLU and max-pooling of VGG-11 on 3 × 32 × 32: the share of "
        "zeros, and the speed-up of writing a Jacobian's non-zeros over asking autograd for it "
        "column by column.",
        claim="0.99157 / 0.99998 / 0.99994; 8.3e+03x / 1.2e+06x / 1.5e+05x",
        quick="table1.py --seconds 1",
        full="table1.py",
        records=("table1",),
        pictures=("table1",),
        text=_table1,
        glance=_table1_at_a_glance,
    ),
    Experiment(
        name="figure10",
        title="Figure 10: FLOPs of every step of the scan over a pruned VGG-11",
        minutes=1,
        paper="VGG-11 without 97 % of its weights: the products of the scan (two levels), beside "
        "those of back-propagation. With enough workers only those on the critical path count.",
        quick="figure10.py",
        full="figure10.py",
        records=("figure10",),
        pictures=("figure10",),
        text=_figure10,
        glance=_figure10_at_a_glance,
    ),
    Experiment(
        name="draw_scan",
        title="The scan itself: up-sweep, middle and down-sweep",
        minutes=1,
        paper="The paper draws its scan in principle. Here are those of four chains, with the cost "
        "of every product for one sample; `draw_scan.draw_chain` draws any attached chain.",
        quick="draw_scan.py",
        full="draw_scan.py",
        pictures=("scan_rnn_blelloch", "scan_rnn_chunked", "scan_lenet5", "scan_vgg11"),
    ),
    Experiment(
        name="pruned_vgg11",
        title="Pruned VGG-11: retraining",
        minutes=2,
        paper="The paper counts FLOPs (figure 10). Here VGG-11 is trained, pruned and retrained, "
        "beside Lightning's own pruning, which multiplies masks in.",
        quick="compare_pruned.py --record --trainer.max_epochs 2",
        full="compare_pruned.py --record {images}",
        records=("pruned_vgg11",),
        pictures=("pruned_vgg11",),
        text=_pruned,
        glance=_pruned_at_a_glance,
    ),
    Experiment(
        name="grid",
        title="Every size of a recurrent layer, and where stock PyTorch wins",
        paper="Not in the paper: RNN, GRU and LSTM alone, B = 1 … 256, T = 1 … 1000, "
        "H = I = 1 … 512, forward and backward from a gradient of every output.",
        quick=None,
        full=None,
        records=("grid_recurrent_cpu",),
        pictures=("grid_recurrent_cpu",),
        text=_grid,
        glance=_grid_at_a_glance,
        elsewhere="make benchmark",
    ),
)
