"""pypots: GRU-D and BRITS, which walk time in a loop of their own, fitted by the package.

With "bppsa" the loop of a backbone is one call of `bl.scan`, its statements the step. Nothing else
of the package is changed.
"""

import torch
from pypots.imputation import BRITS, GRUD
from pypots.nn.modules.brits.backbone import BackboneRITS
from pypots.nn.modules.grud.backbone import BackboneGRUD

import bppsa_lightning as bl
from tests.third_party.fitting import EXPLAINED, LOSSES, seconds_of, sizes_of, waves

FEATURES, HIDDEN = 8, 32


class ScannedGRUD(BackboneGRUD):
    """empirical_mean is of each sample: it goes with the inputs, as a view of its one row."""

    def forward(self, X, missing_mask, deltas, empirical_mean, X_filledLOCF):
        def step(hidden_state, inputs):
            x, m, d, x_filledLOCF, empirical_mean = inputs
            gamma_h = self.temp_decay_h(d)
            gamma_x = self.temp_decay_x(d)
            hidden_state = hidden_state * gamma_h
            representation = hidden_state

            x_h = gamma_x * x_filledLOCF + (1 - gamma_x) * empirical_mean
            x_replaced = m * x + (1 - m) * x_h
            data_input = torch.cat([x_replaced, hidden_state, m], dim=1)
            return self.rnn_cell(data_input, hidden_state), representation

        hidden_state = torch.zeros((X.size()[0], self.rnn_hidden_size), device=X.device)
        means = empirical_mean.unsqueeze(1).expand_as(X)
        inputs = (X, missing_mask, deltas, X_filledLOCF, means)
        xs = tuple(t.transpose(0, 1) for t in inputs)
        hidden_state, representations = bl.scan(step, hidden_state, xs)
        return representations.transpose(0, 1), hidden_state


class ScannedRITS(BackboneRITS):
    """Each step's loss is a mean over samples: it is taken behind the scan, in a loop as before."""

    def forward(self, inputs, direction):
        def step(states, inputs):
            (hidden_states, cell_states), (x, m, d) = states, inputs
            gamma_h = self.temp_decay_h(d)
            gamma_x = self.temp_decay_x(d)

            hidden_states = hidden_states * gamma_h  # decay hidden states
            x_h = self.hist_reg(hidden_states)

            x_c = m * x + (1 - m) * x_h

            z_h = self.feat_reg(x_c)

            alpha = torch.sigmoid(self.combining_weight(torch.cat([gamma_x, m], dim=1)))

            c_h = alpha * z_h + (1 - alpha) * x_h

            c_c = m * x + (1 - m) * c_h

            inputs = torch.cat([c_c, m], dim=1)
            return self.rnn_cell(inputs, (hidden_states, cell_states)), (x_h, z_h, c_h)

        X = inputs[direction]["X"]
        missing_mask = inputs[direction]["missing_mask"]
        deltas = inputs[direction]["deltas"]
        zeros = torch.zeros((X.size()[0], self.rnn_hidden_size), device=X.device)
        xs = tuple(t.transpose(0, 1) for t in (X, missing_mask, deltas))
        (hidden_states, _), estimates = bl.scan(step, (zeros, zeros), xs)

        reconstruction_loss = torch.tensor(0.0, device=X.device)
        for x, m, x_h, z_h, c_h in zip(*xs[:2], *estimates, strict=True):
            reconstruction_loss += self.training_loss(x_h, x, m)
            reconstruction_loss += self.training_loss(z_h, x, m)
            reconstruction_loss += self.training_loss(c_h, x, m)
        reconstruction_loss /= self.n_steps * 3

        reconstruction = estimates[2].transpose(0, 1)
        imputed_data = missing_mask * X + (1 - missing_mask) * reconstruction
        return imputed_data, reconstruction, hidden_states, reconstruction_loss


SCANNED = {BackboneGRUD: ScannedGRUD, BackboneRITS: ScannedRITS}


def fit(model, strategy):
    """Twenty steps over series in which a third of the values is missing."""
    name, T, B = sizes_of(model)
    data = waves(2 * B, T, FEATURES)
    generator = torch.Generator().manual_seed(1)
    data[torch.rand(data.shape, generator=generator) < 1 / 3] = float("nan")
    kind = {"GRU-D": GRUD, "BRITS": BRITS}[name]
    network = kind(
        n_steps=T, n_features=FEATURES, rnn_hidden_size=HIDDEN, batch_size=B, epochs=10,
        device="cpu", verbose=False,
    )  # fmt: skip
    if strategy == "bppsa":
        for module in network.model.modules():
            module.__class__ = SCANNED.get(type(module), type(module))
    network.model.register_forward_hook(lambda m, inputs, out: LOSSES.append(float(out["loss"])))
    seconds = seconds_of(lambda: network.fit({"X": data.numpy()}))
    EXPLAINED[:] = [bl.explain(network.model)]
    return seconds, LOSSES
