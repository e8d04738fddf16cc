"""pytorch-forecasting: models whose layers override forward, by Lightning's Trainer."""

import lightning.pytorch as pl
import pandas as pd
import torch
from pytorch_forecasting import DeepAR, RecurrentNetwork, TimeSeriesDataSet

from tests.third_party.fitting import LOSSES, keeps_losses, seconds_of, series


def fit(model, strategy):
    """Twenty steps; `model` is the class and the kind of its cell."""
    name, cell = model.split()
    frame = pd.concat(
        [
            pd.DataFrame({"series": str(i), "time": range(600), "value": series(600, i)})
            for i in range(8)
        ],
        ignore_index=True,
    )
    data = TimeSeriesDataSet(
        frame, group_ids=["series"], target="value", time_idx="time", max_encoder_length=120,
        max_prediction_length=20, time_varying_unknown_reals=["value"],
    )  # fmt: skip
    torch.manual_seed(1)
    loader = data.to_dataloader(train=True, batch_size=64, num_workers=0)
    kind = {"DeepAR": DeepAR, "RecurrentNetwork": RecurrentNetwork}[name]
    network = kind.from_dataset(data, cell_type=cell, hidden_size=30, rnn_layers=2, dropout=0.0)
    trainer = pl.Trainer(
        strategy=strategy, callbacks=[keeps_losses("lightning.pytorch")], accelerator="cpu",
        devices=1, max_steps=20, logger=False, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, gradient_clip_val=0.1,
    )  # fmt: skip
    return seconds_of(lambda: trainer.fit(network, loader)), LOSSES
