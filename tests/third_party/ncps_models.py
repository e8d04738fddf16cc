"""ncps: liquid networks, LTC and CfC, which walk time in a loop of their own; training by ours.

With "bppsa" the loop is one call of `bl.scan`. Nothing else of the package is changed.
"""

import torch
from ncps.torch import LTC, CfC
from ncps.wirings import AutoNCP
from torch import nn

import bppsa_lightning as bl
from tests.third_party.fitting import LOSSES, own_loop, sizes_of, waves

UNITS, MOTORS, FEATURES = 32, 4, 8


class ScannedLTC(LTC):
    def forward(self, input, hx=None, timespans=None):
        def step(h_state, inputs):
            h_out, h_state = self.rnn_cell.forward(inputs, h_state, 1.0)
            return h_state, h_out

        h_state = torch.zeros((input.size(0), self.state_size), device=input.device)
        h_state, output_sequence = bl.scan(step, h_state, input.transpose(0, 1))
        return output_sequence.transpose(0, 1), h_state


class ScannedCfC(CfC):
    def forward(self, input, hx=None, timespans=None):
        def step(h_state, inputs):
            h_out, h_state = self.rnn_cell.forward(inputs, h_state, 1.0)
            return h_state, self.fc(h_out)

        h_state = torch.zeros((input.size(0), self.state_size), device=input.device)
        h_state, output_sequence = bl.scan(step, h_state, input.transpose(0, 1))
        return output_sequence.transpose(0, 1), h_state


def fit(model, strategy):
    """Twenty steps over series, whose next values are foretold."""
    name, T, B = sizes_of(model)
    if name == "LTC":
        network = (ScannedLTC if strategy == "bppsa" else LTC)(FEATURES, AutoNCP(UNITS, MOTORS))
        head = nn.Linear(MOTORS, FEATURES)
    else:
        network = (ScannedCfC if strategy == "bppsa" else CfC)(FEATURES, UNITS)
        head = nn.Linear(UNITS, FEATURES)
    data = waves(B, T + 1, FEATURES)

    def loss():
        return (head(network(data[:, :-1])[0]) - data[:, 1:]).square().mean()

    return own_loop(nn.ModuleList([network, head]), loss, strategy), LOSSES
