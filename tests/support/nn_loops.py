"""Modules of `bl.nn` as plain loops, sample by sample and step by step: what they are held to.

T steps, B samples, I input, H hidden, P state that is shown, D directions.
"""

import torch
from torch.nn.functional import linear

from bppsa_lightning import reference_cells as cells


def _rnn(module, w, x, state, entering):
    summed = linear(x, w["weight_ih"], w.get("bias_ih")) + linear(
        entering, w["weight_hh"], w.get("bias_hh")
    )
    return (getattr(torch, module.nonlinearity)(summed),)


def _gru(module, w, x, state, entering):
    of_x = linear(x, w["weight_ih"], w.get("bias_ih")).chunk(3, -1)
    of_h = linear(entering, w["weight_hh"], w.get("bias_hh")).chunk(3, -1)
    r, z = (torch.sigmoid(a + b) for a, b in zip(of_x[:2], of_h[:2], strict=True))
    n = torch.tanh(of_x[2] + r * of_h[2])
    return ((1 - z) * n + z * state[0],)


def _lstm(module, w, x, state, entering):
    # PyTorch's cell reads h in W_hh alone.
    weights = (w["weight_ih"], w["weight_hh"], w.get("bias_ih"), w.get("bias_hh"))
    summed = linear(x, weights[0], weights[2]) + linear(entering, weights[1], weights[3])
    i, f, g, o = summed.chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (linear(h, w["weight_hr"]) if module.proj_size else h), c


def _weights(w, *names):
    return [w.get(name) for name in names]


_OF_LSTM = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")

STEPS = {
    "RNN": _rnn,
    "GRU": _gru,
    "LSTM": _lstm,
    "PeepholeLSTM": lambda module, w, x, state, entering: cells.peephole_lstm(
        x, *state, *_weights(w, *_OF_LSTM, "weight_ch"), entering=entering
    ),
    "LayerNormLSTM": lambda module, w, x, state, entering: cells.layer_norm_lstm(
        x, *state, *_weights(w, *_OF_LSTM, "norm_ih", "norm_hh", "norm_c", "bias_c"),
        entering=entering,
    ),
    "LayerNormGRU": lambda module, w, x, state, entering: cells.layer_norm_gru(
        x, *state, *_weights(w, *_OF_LSTM, "norm_ih", "norm_hh"), entering=entering
    ),
    "IndRNN": lambda module, w, x, state, entering: cells.indrnn(
        x, *state, *_weights(w, "weight_ih", "weight_hh", "bias_ih"), module.nonlinearity, entering
    ),
    "LiGRU": lambda module, w, x, state, entering: cells.ligru(
        x, *state, *_weights(w, "weight_hh", "bias_hh"), entering
    ),
    "MinGRU": lambda module, w, x, state, entering: cells.mingru(
        x, *state, *_weights(w, "weight_ih", "bias_ih")
    ),
}  # fmt: skip
CELLS = tuple(STEPS)
OF_TORCH = CELLS[:3]


class ByUnit:
    """Masks that differ from unit to unit alone, so that rows may come in any order."""

    def draw(self, p, shape, like):
        unit = torch.arange(shape[-1])
        return ((unit * 5 + len(shape)) % 3 == 0).expand(shape)

    def enters(self, p, sizes, T, B):
        return self.draw(p, (B, sizes[0]), None)

    def kept(self, p, sizes, T, B):
        return [self.draw(p, (T, B, size), None) for size in sizes]


class Recorded:
    """Masks as they were drawn, in the order in which they were, for data that is not spread."""

    def __init__(self, draw):
        self._draw, self._masks = draw, []

    def draw(self, p, shape, like):
        self._masks.append(self._draw(p, shape, like))
        return self._masks[-1]

    def enters(self, p, sizes, T, B):
        return self._masks.pop(0)

    def kept(self, p, sizes, T, B):
        return [self._masks.pop(0) for _ in sizes]


def loop(module, x, states, reset, lengths, masks):
    """x (T, B, I), states ((L, B, P), (L, B, H)) or (), reset (T, B) -> output (T, B, D*P), last.

    Args:
        lengths: of the samples; what follows the end of one is 0 in the output.
        masks: of recurrent dropout and zoneout.
    """
    T, B = x.shape[:2]
    P, H = module.proj_size or module.hidden_size, module.hidden_size
    sizes = (P, H)[: 1 + module.cell.has_c]
    D, lasts = 1 + module.bidirectional, []
    samples = [x[:length, b] for b, length in enumerate(lengths)]
    for layer in range(module.num_layers):
        outputs = []
        for reverse in range(D):
            suffix = f"_l{layer}{'_reverse' * reverse}"
            w = {
                name.removesuffix(suffix): p
                for name, p in module.named_parameters()
                if name.endswith(suffix)
            }
            k = len(lasts)
            initial = [s[k] for s in states] or [x.new_zeros(B, size) for size in sizes]
            projected = samples
            if type(module).__name__ == "LiGRU":
                projected = _projected(module, w, samples)
            p, q = module.recurrent_dropout if module.training else 0, module.zoneout
            enters = masks.enters(p, sizes, T, B) if p else None
            kept = masks.kept(q, sizes, T, B) if q and module.training else None
            found = [
                _sample(module, w, xs, [s[b : b + 1] for s in initial], reset[:, b], reverse,
                        None if enters is None else (~enters[b : b + 1]).to(xs) / (1 - p),
                        None if kept is None else [m[:, b : b + 1] for m in kept])
                for b, xs in enumerate(projected)
            ]  # fmt: skip
            outputs.append([output for output, _ in found])
            empty = [x.new_zeros(0, size) for size in sizes]
            lasts.append([torch.cat([e, *s]) for e, *s in zip(empty, *(f[1] for f in found))])
        samples = [torch.cat(both, -1) for both in zip(*outputs)]
    padded = [torch.cat([s, s.new_zeros(T - len(s), D * P)]) for s in samples]
    output = torch.stack(padded, 1) if padded else x.new_zeros(T, 0, D * P)
    return output, [torch.stack(same) for same in zip(*lasts)]


def _sample(module, w, xs, initial, reset, reverse, enters, kept):
    """One sample, xs (T, I), in one direction: output (T, P), and the parts of its last state."""
    step, state, T = STEPS[type(module).__name__], initial, len(xs)
    to = initial if module.reset_to == "initial" else [torch.zeros_like(s) for s in initial]
    output = [None] * T
    for t in reversed(range(T)) if reverse else range(T):
        # Backwards, the cut before step t + 1 lies between it and t.
        cut = (t + 1 < T and reset[t + 1]) if reverse else reset[t]
        if cut:
            state = to
        entering = state[0] if enters is None else state[0] * enters
        new = step(module, w, xs[t : t + 1], state, entering)
        if kept is not None:
            new = [torch.where(m[t], o, n) for m, o, n in zip(kept, state, new, strict=True)]
        elif module.zoneout:
            p = module.zoneout
            new = [p * o + (1 - p) * n for o, n in zip(state, new, strict=True)]
        state, output[t] = list(new), new[0]
    return torch.cat(output), state


def _projected(module, w, samples):
    if not module.normalize:
        return [linear(s, w["weight_ih"], w.get("bias_ih")) for s in samples]
    if not samples:
        return samples
    rows = linear(torch.cat(samples), w["weight_ih"])
    rows = cells.normalised_over_rows(rows, w["norm_ih"], w.get("bias_ih"))
    return rows.split([len(s) for s in samples])
