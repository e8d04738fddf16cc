"""Draws all pictures of the records again, from the records alone: nothing is measured.

    python -m experiments.redraw                # all, into experiments/records: `make pictures`
    python -m experiments.redraw figure10 amd_epyc/grid_recurrent_cpu
    python -m experiments.redraw --out runs/pictures

A picture of two trainings needs their curves (<name>_curves.json), which `--record` keeps beside
the record since these pictures have one style; older ones stay as they are, and are named.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from experiments import recording
from experiments.benchmarks import newton_plots, recurrent_plots, trained_plots
from experiments.compare import plots
from experiments.examples import (
    audio_tagging,
    forecasting,
    long_sequences,
    prune_and_retrain,
    reinforcement,
)
from experiments.paper import (
    depth_scaling,
    figure10,
    gru_breakdown,
    irmas_curves,
    layerpipe,
    layerpipe_convergence,
    scaling_plot,
    scan_pictures,
    sweep,
    table1,
    workers_plot,
)

# From a record, its folder and name left out: what draws it.
OF_RECORDS: dict[str, Callable[[dict, Path], None]] = {
    "amd_epyc/benchmark_recurrent_cpu": recurrent_plots.draw,
    "amd_epyc/grid_recurrent_cpu": recurrent_plots.draw,
    "benchmark_recurrent_cpu": recurrent_plots.draw,
    "bitstream_sweep_gru_cpu": sweep.draw,
    "bitstream_sweep_rnn_cpu": sweep.draw,
    "depth_scaling": depth_scaling.draw,
    "example_audio_tagging": audio_tagging.draw,
    "example_forecasting": forecasting.draw,
    "example_long_sequences": long_sequences.draw,
    "example_prune_and_retrain": prune_and_retrain.draw,
    "example_reinforcement": reinforcement.draw,
    "figure10": figure10.draw,
    "grid_recurrent_cpu": recurrent_plots.draw,
    "gru_breakdown_cpu": gru_breakdown.draw,
    "h200_layers": recurrent_plots.draw,
    "h200_recurrent": recurrent_plots.draw,
    "layerpipe_convergence": layerpipe_convergence.draw,
    "layerpipe_model": layerpipe.draw,
    "newton_cpu": newton_plots.draw,
    "scaling": scaling_plot.draw,
    "windows_trained": trained_plots.draw,
    "workers": workers_plot.draw,
}
# From a record and the curves beside it.
OF_CURVES: dict[str, Callable[..., None]] = {
    "bitstream_rnn": plots.training,
    "bitstream_rnn_80_epochs": plots.training,
    "irmas_gru": irmas_curves.draw,
    "irmas_gru_whole": irmas_curves.draw,
    "lenet5": plots.training,
    "pruned_vgg11": plots.pruned,
}
# From nothing but the code: into a folder.
COMPUTED: dict[str, Callable[[Path], object]] = {
    "layerpipe_schedules": lambda folder: layerpipe.draw_schedules(
        folder / "layerpipe_schedules.png"
    ),
    "scan": scan_pictures.draw,
    "table1": lambda folder: table1.draw(folder / "table1.png"),
}
ALL = (*OF_RECORDS, *OF_CURVES, *COMPUTED)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="some of " + ", ".join(ALL) + " (default: all)"
    )
    parser.add_argument(
        "--out", type=Path, default=recording.RECORDS, help="folder (default: the records')"
    )
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    unknown = [name for name in asked.names if name not in ALL]
    if unknown:
        parser().error(f"names: found {', '.join(unknown)}, wanted some of {', '.join(ALL)}")
    for name in asked.names or ALL:
        drawn = redraw(name, asked.out)
        print(f"{name}: {asked.out if drawn else 'left as it is, as no curves are kept'}")


def redraw(name: str, out: Path) -> bool:
    """Draws one picture of ALL into a folder, as .png and .svg; False if its curves are not kept.

    Raises:
        FileNotFoundError: there is no such record.
    """
    picture = out / f"{name}.png"
    if name in COMPUTED:
        COMPUTED[name](out)
        return True
    record = recording.read(name)
    if name in OF_RECORDS:
        OF_RECORDS[name](record, picture)
        return True
    curves = recording.RECORDS / f"{name}_curves.json"
    if not curves.is_file():
        return False
    OF_CURVES[name](json.loads(curves.read_text())["curves"], record, picture)
    return True


if __name__ == "__main__":
    main()
