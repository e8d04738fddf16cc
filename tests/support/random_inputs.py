"""What random cases of windows share: sizes, inputs and losses, all drawn by a `random.Random`.

T steps, B samples, I input, H hidden.
"""

from contextlib import contextmanager
from unittest import mock

import torch

from bppsa_lightning.windows import look, memory

INPUTS = ("noise", "silent", "bursts", "constant")
LOSSES = ("every", "last", "sparse")
FROZEN = (*[""] * 5, "some", "some", "inputs", "parameters", "all")

# Steps of warm-up instead of those that a look finds necessary: then many windows miss.
BLIND = (None, None, None, 1, 4, 16)


def log_uniform(r, low, high):
    return low * (high / low) ** r.random()


def steps(r, longest):
    """Mostly some hundred."""
    low, high = (100, 1500) if r.random() < 0.85 else (1500, 5000)
    return min(int(log_uniform(r, low, high)), longest)


def gain(r):
    """Of recurrent weights: as they are in half of the cases."""
    return 1.0 if r.random() < 0.5 else round(log_uniform(r, 0.1, 4), 2)


def shaped(r, noise, kind):
    """Noise (T, ...) as inputs of a kind."""
    T = len(noise)
    noise = noise * r.choice([0.1, 1, 1, 3])
    if kind == "constant":
        return noise[:1].expand_as(noise).clone()
    if kind == "noise":
        return noise
    spoken = torch.full((T,), kind == "silent")
    for _ in range(r.randint(1, 3)):
        length = int(T * r.uniform(0.1, 0.4) if kind == "silent" else r.randint(1, 20))
        start = r.randrange(T)
        spoken[start : start + length] = kind != "silent"
    scale = 1 if kind == "silent" else 3
    return scale * noise * spoken.reshape(-1, *[1] * (noise.dim() - 1))


def read(r, kind, rows, last=1):
    """(rows,) of zeros and ones: what a loss reads, all, the `last` ones or a few at random."""
    if kind == "every":
        return torch.ones(rows)
    found = torch.zeros(rows)
    if kind == "last":
        found[-last:] = 1
    else:
        found[r.sample(range(rows), max(1, rows // 50))] = 1
    return found


@contextmanager
def blind(warm):
    """Windows warm up for so many steps, whatever a look says; for as many as it says if None."""

    def blindly(*arguments):
        seen = look(*arguments)
        return seen if warm is None else seen._replace(warm=warm)

    with mock.patch.object(memory, "look", blindly):
        yield
