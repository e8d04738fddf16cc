"""neuralforecast: recurrent models of its own sizes over hourly series, Trainers of theirs."""

import pandas as pd
from neuralforecast import NeuralForecast
from neuralforecast.models import GRU, LSTM, RNN, DeepAR

from tests.third_party.fitting import LOSSES, keeps_losses, seconds_of, series

STEPS_BACK = 168  # a week of hours


def frame():
    hours = pd.date_range("2000-01-01", periods=1000, freq="h")
    return pd.concat(
        [
            pd.DataFrame({"unique_id": f"series {i}", "ds": hours, "y": series(1000, i)})
            for i in range(8)
        ]
    )


def fit(model, strategy):
    """Twenty steps."""
    kind = {"GRU": GRU, "LSTM": LSTM, "RNN": RNN, "DeepAR": DeepAR}[model]
    network = kind(
        h=24, input_size=STEPS_BACK, max_steps=20, random_seed=1, strategy=strategy,
        callbacks=[keeps_losses("pytorch_lightning")], accelerator="cpu", devices=1, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    forecast, data = NeuralForecast(models=[network], freq="h"), frame()
    return seconds_of(lambda: forecast.fit(data)), LOSSES
