"""Opacus: gradients of each sample, and a training, of attached layers and of Opacus' own.

    python -m tests.third_party.opacus_training

Fails unless gradients agree to 1e-10 in float64, for all options, and the losses of a classifier of
names by their letters, after Opacus' example, to 1e-5. Without noise, whose order differs. (Single
layers are timed by experiments/benchmarks/opacus_layers.py.)
"""

import itertools
import time
import warnings

import torch
from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleModule
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

import bppsa_lightning as bl

KINDS = {nn.RNN: DPRNN, nn.GRU: DPGRU, nn.LSTM: DPLSTM}
B, T, I, H = 5, 7, 3, 6
# Of a PackedSequence, sorted or not; None for a tensor.
LENGTHS = (None, [7, 6, 4, 4, 1], [7, 1, 1, 1, 1], [4, 7, 1, 6, 4])
LOSSES = {
    "output": lambda output, last: output.pow(3).sum(),
    "last": lambda output, last: sum(t.square().sum() for t in last),
    "both": lambda output, last: output.square().sum() + sum(t.sum() for t in last),
}


def pair_of(kind, *sizes, **options):
    """An attached layer, and Opacus' own with its weights."""
    ours, theirs = kind(*sizes, **options), KINDS[kind](*sizes, **options)
    theirs.load_state_dict(ours.state_dict())
    bl.attach(ours)
    return ours, theirs


def compare_gradients():
    """The largest difference there is, of all options; and how many tensors there were."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)  # in which Opacus collects last states
    worst, tensors = 0.0, 0
    for kind, layers, both_ways, bias, first, lengths, loss, reduction in itertools.product(
        KINDS, (1, 2), (False, True), (True, False), (True, False), LENGTHS, LOSSES, ("mean", "sum")
    ):
        options = {"num_layers": layers, "bidirectional": both_ways, "bias": bias}
        pair = pair_of(kind, I, H, batch_first=first, **options)
        x = torch.randn((B, T, I) if first else (T, B, I))
        if lengths is not None:
            in_order = lengths == sorted(lengths, reverse=True)
            x = pack_padded_sequence(x, torch.tensor(lengths), first, enforce_sorted=in_order)
        for module in pair:
            module = GradSampleModule(module, batch_first=first, loss_reduction=reduction)
            output, last = module(x)
            output = output.data if lengths is not None else output
            LOSSES[loss](output, last if kind is nn.LSTM else (last,)).backward()
        order = x.sorted_indices if isinstance(x, PackedSequence) else None
        wanted_of = dict(pair[1].named_parameters())
        for name, parameter in pair[0].named_parameters():
            found, wanted = parameter.grad_sample, wanted_of[name].grad_sample
            found = found if order is None else found[order]
            worst = max(worst, float((found - wanted).abs().max() / (1 + wanted.abs().max())))
            tensors += 1
    torch.set_default_dtype(torch.float32)
    return worst, tensors


class Names(nn.Module):
    """Which language is a name of? As Opacus' example: letters, an LSTM, its last output."""

    def __init__(self, layer):
        super().__init__()
        self.letters, self.layer, self.head = nn.Embedding(57, 64), layer, nn.Linear(128, 18)

    def forward(self, x):
        return self.head(self.layer(self.letters(x))[0][:, -1])


def train(model, epochs=2):
    """Losses, and the seconds of each epoch."""
    generator = torch.Generator().manual_seed(0)
    names = torch.randint(57, (2048, 15), generator=generator)
    languages = names[:, :3].sum(1) % 18
    loader = DataLoader(TensorDataset(names, languages), 256)
    optimizer = torch.optim.SGD(model.parameters(), 2.0)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=0.0,
        max_grad_norm=1.0, poisson_sampling=False,
    )  # fmt: skip
    losses, seconds = [], []
    for _ in range(epochs):
        start = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return losses, seconds


def compare_trainings():
    torch.manual_seed(0)
    pair = pair_of(nn.LSTM, 64, 128, batch_first=True)
    ours, theirs = (Names(layer) for layer in pair)
    for module in ("letters", "head"):
        getattr(theirs, module).load_state_dict(getattr(ours, module).state_dict())
    (found, seconds), (wanted, theirs_seconds) = train(ours), train(theirs)
    difference = max(abs(a - b) for a, b in zip(found, wanted, strict=True))
    print(f"an epoch of names: Opacus {min(theirs_seconds):.2f} s, attached {min(seconds):.2f} s")
    return difference / max(wanted)


def main():
    warnings.simplefilter("ignore")
    worst, tensors = compare_gradients()
    print(f"{tensors} tensors of gradients differ by {worst:.1e} at most")
    difference = compare_trainings()
    print(f"losses differ by {difference:.1e}")
    assert worst <= 1e-10 and difference <= 1e-5


if __name__ == "__main__":
    main()
