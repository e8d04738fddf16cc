"""Opacus' own tests of its recurrent layers, run against nn.RNN, nn.GRU and nn.LSTM, attached.

    python -m unittest tests.third_party.opacus_own

Gradients of each sample against those of batches of one, by hypothesis, as Opacus installs them.
Results and gradients of training against PyTorch's.
"""

from functools import partial

import opacus.tests.dp_layers.dp_rnn_test as layers
import opacus.tests.grad_samples.dp_rnn_test as samples
from torch import nn

import bppsa_lightning as bl


def attached(kind, *arguments, **options):
    module = kind(*arguments, **options)
    bl.attach(module)
    return module


RNN, GRU, LSTM = (partial(attached, kind) for kind in (nn.RNN, nn.GRU, nn.LSTM))
samples.MODELS[:] = [RNN, GRU, LSTM]
layers.DPRNN, layers.DPGRU, layers.DPLSTM = RNN, GRU, LSTM
RNN_test, DPLSTM_test = samples.RNN_test, layers.DPLSTM_test
