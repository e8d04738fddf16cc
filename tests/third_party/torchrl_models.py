"""torchrl: recurrent modules over trajectories that end and begin in a batch; a loop of ours."""

import torch
from tensordict import TensorDict
from torchrl.modules import GRUModule, LSTMModule

from tests.third_party.fitting import LOSSES, own_loop

B, T, I, H = 32, 200, 16, 64


def fit(model, strategy):
    """Twenty steps over trajectories, some of which start anew on the way."""
    hidden = ["hidden"] if model == "GRUModule" else ["hidden_h", "hidden_c"]
    kind = {"LSTMModule": LSTMModule, "GRUModule": GRUModule}[model]
    keys = {
        "in_keys": ["observation", *hidden],
        "out_keys": ["features", *(("next", name) for name in hidden)],
    }
    module = kind(input_size=I, hidden_size=H, default_recurrent_mode=True, **keys)
    generator = torch.Generator().manual_seed(1)
    first = torch.zeros(B, T, 1, dtype=torch.bool)
    first[:, 0] = True
    first[::4, T // 2] = True
    batch = {"observation": torch.randn(B, T, I, generator=generator), "is_init": first}
    batch |= {name: torch.zeros(B, T, 1, H) for name in hidden}

    def loss():
        return module(TensorDict(dict(batch), [B, T]))["features"].square().mean()

    return own_loop(module, loss, strategy), LOSSES
