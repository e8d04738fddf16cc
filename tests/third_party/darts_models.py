"""darts: its two recurrent models over series of theirs, by arguments for their Trainer."""

import pandas as pd
from darts import TimeSeries
from darts.models import BlockRNNModel, RNNModel

from tests.third_party.fitting import LOSSES, keeps_losses, seconds_of, series


def fit(model, strategy):
    """Twenty steps; `model` is the class and the kind of its cell."""
    name, cell = model.split()
    days = pd.date_range("2000-01-01", periods=1100, freq="D")
    data = [
        TimeSeries.from_times_and_values(days, series(1100, i).astype("float32")) for i in range(2)
    ]
    common = {
        "model": cell, "input_chunk_length": 180, "batch_size": 32, "n_epochs": 1,
        "random_state": 1,
        "pl_trainer_kwargs": {
            "strategy": strategy, "callbacks": [keeps_losses("pytorch_lightning")],
            "accelerator": "cpu", "devices": 1, "logger": False, "max_steps": 20,
            "enable_progress_bar": False, "enable_model_summary": False,
        },
    }  # fmt: skip
    if name == "RNNModel":
        network = RNNModel(training_length=200, hidden_dim=25, **common)
    else:
        network = BlockRNNModel(output_chunk_length=12, hidden_dim=25, **common)
    return seconds_of(lambda: network.fit(data)), LOSSES
