"""speechbrain: its recurrent layers over features of utterances; a loop of ours."""

import torch
from speechbrain.nnet.RNN import GRU, LSTM, RNN

from tests.third_party.fitting import LOSSES, own_loop

B, T, I, H = 8, 300, 40, 128


def fit(model, strategy):
    """Twenty steps over utterances of several lengths."""
    kind = {"GRU": GRU, "LSTM": LSTM, "RNN": RNN}[model]
    module = kind(hidden_size=H, input_shape=(B, T, I), num_layers=2, bidirectional=True)
    x = torch.randn(B, T, I, generator=torch.Generator().manual_seed(1))
    lengths = torch.linspace(1, 0.5, B)

    def loss():
        return module(x, lengths=lengths)[0].square().mean()

    return own_loop(module, loss, strategy), LOSSES
