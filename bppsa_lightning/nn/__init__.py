"""Recurrent layers as plain modules, with resets, and cells that torch.nn lacks: `bl.nn`."""

from bppsa_lightning.nn.base import Recurrent
from bppsa_lightning.nn.gru import GRU
from bppsa_lightning.nn.indrnn import IndRNN
from bppsa_lightning.nn.layer_norm_gru import LayerNormGRU
from bppsa_lightning.nn.layer_norm_lstm import LayerNormLSTM
from bppsa_lightning.nn.ligru import LiGRU
from bppsa_lightning.nn.lstm import LSTM
from bppsa_lightning.nn.mingru import MinGRU
from bppsa_lightning.nn.peephole_lstm import PeepholeLSTM
from bppsa_lightning.nn.rnn import RNN

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "IndRNN",
    "LayerNormGRU",
    "LayerNormLSTM",
    "LiGRU",
    "MinGRU",
    "PeepholeLSTM",
    "Recurrent",
]
