"""gluonts: DeepAR over hourly series, by arguments for its Trainer."""

import pandas as pd
from gluonts.dataset.pandas import PandasDataset
from gluonts.torch import DeepAREstimator

from tests.third_party.fitting import LOSSES, keeps_losses, seconds_of, series


def fit(model, strategy):
    """Twenty steps."""
    assert model == "DeepAR"
    hours = pd.date_range("2000-01-01", periods=1000, freq="h")
    data = PandasDataset({str(i): pd.Series(series(1000, i), hours) for i in range(8)})
    estimator = DeepAREstimator(
        freq="h", prediction_length=24, context_length=168, num_batches_per_epoch=20,
        dropout_rate=0.0,
        trainer_kwargs={
            "strategy": strategy, "callbacks": [keeps_losses("lightning.pytorch")],
            "accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False,
            "enable_progress_bar": False, "enable_model_summary": False,
        },
    )  # fmt: skip
    return seconds_of(lambda: estimator.train(data)), LOSSES
