"""Forecasts the next day of hourly series, from the two weeks before it.

    python -m experiments.examples.forecasting            # 1 min

With pytorch-forecasting installed (`pip install pytorch-forecasting`) its DeepAR is trained, as its
users train it. Without, a forecaster of thirty lines, below: nn.GRU and three quantiles. What makes
either of them faster is one argument, Trainer(strategy="bppsa").

The picture: what is forecast for a day that no training has seen, and what a step takes.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from experiments import style
from experiments.examples import side_by_side
from experiments.examples.side_by_side import Run, Watch

PAST, NEXT = 14 * 24, 24  # hours that are read, hours that are forecast
SERIES, HOURS = 8, 10 * 7 * 24
SHOWN = 4 * 24  # hours before those that are forecast, in the picture
QUANTILES = (0.1, 0.5, 0.9)


def hourly(generator: torch.Generator) -> Tensor:
    """Series (SERIES, HOURS): days and weeks, which grow and shrink slowly, and noise."""
    hour = torch.arange(HOURS)
    phase, noise = (
        torch.randn(*size, generator=generator) for size in ((SERIES, 1), (SERIES, HOURS))
    )
    swing = 1 + 0.5 * torch.sin(2 * math.pi * hour / (17 * 24) + phase)
    weekend = 1 - 0.4 * (hour // 24 % 7 >= 5)
    return swing * weekend * torch.sin(2 * math.pi * hour / 24 + phase) + 0.15 * noise


class Forecaster(pl.LightningModule):
    """A GRU reads the past; its last state gives quantiles of each hour to come."""

    def __init__(self, hidden_size: int = 32) -> None:
        super().__init__()
        self.gru = nn.GRU(1, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size, NEXT * len(QUANTILES))

    def forward(self, past: Tensor) -> Tensor:
        """Quantiles (B, NEXT, 3) of what follows past (B, PAST)."""
        _, last = self.gru(past[..., None])
        return self.head(last[0]).unflatten(-1, (NEXT, len(QUANTILES)))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        past, truth = batch
        error = truth[..., None] - self(past)
        levels = error.new_tensor(QUANTILES)
        return torch.maximum(levels * error, (levels - 1) * error).mean()  # the quantile loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=5e-3)


@dataclass(frozen=True)
class Task:
    """What is trained, and how it is asked: the same for the package's model and for our own."""

    name: str
    steps: int
    network: Callable[[], pl.LightningModule]
    batches: Callable[[], DataLoader]
    forecast: Callable[[Any], Tensor]  # of a trained network: quantiles (SERIES, NEXT, 3)


def own_task(values: Tensor) -> Task:
    """The forecaster above, on every window of the series that ends before their last day."""
    windows = values[:, :-NEXT].unfold(1, PAST + NEXT, 5).flatten(0, 1)
    data = TensorDataset(windows[:, :PAST], windows[:, PAST:])

    def forecast(network: Forecaster) -> Tensor:
        with torch.no_grad():
            return network(values[:, -PAST - NEXT : -NEXT])

    return Task("nn.GRU", 150, Forecaster, lambda: DataLoader(data, 32, shuffle=True), forecast)


def packaged_task(values: Tensor) -> Task:
    """pytorch-forecasting's DeepAR on the same windows, by its own data set and defaults."""
    import pandas as pd
    from pytorch_forecasting import DeepAR, TimeSeriesDataSet

    columns = {"series": str, "hour": int, "value": float}
    rows = [(str(s), h, float(v)) for s, row in enumerate(values) for h, v in enumerate(row)]
    frame = pd.DataFrame(rows, columns=list(columns)).astype(columns)
    data = TimeSeriesDataSet(
        frame[frame.hour < HOURS - NEXT], time_idx="hour", target="value", group_ids=["series"],
        max_encoder_length=PAST, min_encoder_length=PAST, max_prediction_length=NEXT,
        time_varying_unknown_reals=["value"],
    )  # fmt: skip
    last = TimeSeriesDataSet.from_dataset(data, frame, predict=True, stop_randomization=True)

    def network() -> pl.LightningModule:
        return DeepAR.from_dataset(
            data, cell_type="GRU", hidden_size=32, dropout=0.0, learning_rate=5e-3, log_interval=-1
        )

    def forecast(network: Any) -> Tensor:
        asked = {
            "mode_kwargs": {"quantiles": list(QUANTILES)},
            "trainer_kwargs": side_by_side.QUIET,
        }
        batches = last.to_dataloader(train=False, batch_size=SERIES, num_workers=0)
        return network.predict(batches, mode="quantiles", n_samples=200, **asked)

    def batches() -> DataLoader:
        return data.to_dataloader(train=True, batch_size=32, num_workers=0)

    return Task("DeepAR of pytorch-forecasting", 60, network, batches, forecast)


def train(task: Task, strategy: str, steps: int) -> Run:
    """This is what one copies: the model and the data are as ever."""
    torch.manual_seed(0)
    network, watch = task.network(), Watch()
    trainer = pl.Trainer(
        strategy=strategy, max_steps=steps, callbacks=watch.callbacks, **side_by_side.QUIET
    )
    trainer.fit(network, task.batches())
    return watch.run(network)


def draw(record: dict[str, Any], path: Path) -> None:
    title = f"Forecasting with {record['task']}"
    with side_by_side.picture(2, title, record, path) as axes:
        draw_day(axes[0], record["shown"], record["quantiles"])
        side_by_side.draw_step(axes[1], record)


def draw_day(axes: Any, values: list[float], quantiles: list[list[float]]) -> None:
    """A day of a series, as it was forecast, and the days before it."""
    low, middle, high = zip(*quantiles, strict=True)
    day = range(NEXT)
    axes.plot(range(NEXT - len(values), NEXT), values, color=style.GREY, label="what was")
    axes.plot(day, middle, color=style.OURS, label="forecast")
    axes.fill_between(day, low, high, color=style.OURS, alpha=0.25, label="8 of 10 hours")
    axes.set(xlabel="hours from now", title="A day that no training has seen")
    axes.legend(loc="upper left", ncols=3)
    axes.margins(y=0.2)


def parser() -> argparse.ArgumentParser:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--own", action="store_true", help="the small GRU, whatever is installed")
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    values = hourly(torch.Generator().manual_seed(0))
    if asked.own or find_spec("pytorch_forecasting") is None:
        task = own_task(values)
        print("A small GRU is trained here. For DeepAR: pip install pytorch-forecasting\n")
    else:
        task = packaged_task(values)
    steps, rounds = (20, 1) if asked.quick else (task.steps, 2)
    with side_by_side.quiet():
        runs = side_by_side.in_turns(lambda strategy: train(task, strategy, steps), rounds)
        quantiles = task.forecast(runs["bppsa"][-1].model)
    # A forecast is worth something if it is closer than the same hour of a week ago.
    truth, week_ago = values[:, -NEXT:], values[:, -NEXT - 7 * 24 : -7 * 24]
    errors = {
        "forecast": float((quantiles[..., 1] - truth).abs().mean()),
        "week_ago": float((week_ago - truth).abs().mean()),
    }
    found = side_by_side.summary(runs)
    print(f"{task.name}: {steps} steps of 32 windows of {PAST} + {NEXT} hours\n")
    print(side_by_side.table(found))
    print(
        "Mean error of the forecast {forecast:.3f}; of a week ago {week_ago:.3f}".format(**errors)
    )
    first = {"shown": values[0, -SHOWN - NEXT :].tolist(), "quantiles": quantiles[0].tolist()}
    results = {"task": task.name, "steps": steps, "errors": errors, **first, **found}
    side_by_side.keep("forecasting", results, draw, asked)


if __name__ == "__main__":
    main()
