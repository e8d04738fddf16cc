"""Recurrent layers of users who override forward and call torch's, in all the ways that we know.

T steps, B batch, I input, H hidden.
"""

from abc import ABC, ABCMeta, abstractmethod

import torch
from torch import nn
from torch.nn.utils import rnn as rnn_utils


class Doubled(nn.LSTM):
    """The plain case."""

    def forward(self, input, hx=None):
        output, states = super().forward(input, hx)
        return output * 2, states


class Twice(nn.GRU):
    """Forwards, then backwards from where that ended."""

    def forward(self, input, hx=None):
        first, last = super().forward(input, hx)
        second, last = super().forward(input.flip(0), last)
        return first + second.flip(0), last


class InABranch(nn.RNN):
    """Calls torch's for inputs of a kind only."""

    def forward(self, input, hx=None):
        if input.shape[0] == 1:
            return input.new_zeros(1, input.shape[1], self.hidden_size), hx
        return super().forward(input, hx=hx)


class OtherArguments(nn.LSTM):
    """Another signature, another result."""

    def forward(self, input, mask, *, scale=1.0):
        output, (h_n, _) = super().forward(input * mask, None)
        return scale * output, h_n


class Mixin:
    """No module: calls whatever comes after it."""

    def forward(self, input, hx=None):
        output, states = super().forward(input.tanh(), hx)
        return output.sin(), states


class WithMixin(Mixin, nn.GRU):
    pass


class Level1(nn.RNN):
    def forward(self, input, hx=None):
        output, states = super().forward(input + 1, hx)
        return output * 2, states


class Level2(Level1):
    pass


class Level3(Level2):
    def forward(self, input, hx=None):
        output, states = super().forward(input * 3, hx)
        return output - 1, states


class OldSuper(nn.GRU):
    """The form with arguments."""

    def forward(self, input, hx=None):
        return super(OldSuper, self).forward(input.cos(), hx)  # noqa: UP008


class Recorder(type):
    """Sees each class that is made."""

    made = []

    def __new__(meta, name, bases, namespace, *, label):
        Recorder.made.append(name)
        return super().__new__(meta, name, bases, namespace)

    def __init__(cls, name, bases, namespace, *, label):
        super().__init__(name, bases, namespace)
        cls.label = label


class OfAMetaclass(Doubled, metaclass=Recorder, label="mine"):
    def forward(self, input, hx=None):
        assert type(self).label == "mine"
        return super().forward(input, hx)


class Registered(nn.LSTM):
    """Wants an argument of each subclass."""

    kinds = []

    def __init_subclass__(cls, *, kind):
        Registered.kinds.append(kind)


class OfAKind(Registered, kind="first"):
    def forward(self, input, hx=None):
        output, states = super().forward(input.neg(), hx)
        return output, states


class Guarded(nn.GRU):
    """Has its own ideas about attributes and calls."""

    def __setattr__(self, name, value):
        if name in ("__class__", "forward") or name.startswith("_super"):
            raise AttributeError(name)
        super().__setattr__(name, value)

    def __call__(self, input, hx=None):
        output, states = super().__call__(input, hx)
        return output + 1, states

    def forward(self, input, hx=None):
        return super().forward(input, hx)


class Slotted(nn.RNN):
    __slots__ = ("note",)

    def forward(self, input, hx=None):
        self.note = "called"
        return super().forward(input, hx)


class Recurrent(ABC, nn.RNNBase):
    """As in pytorch-forecasting: samples of length 0 keep the state that they were given."""

    @abstractmethod
    def handle_no_encoding(self, states, no_encoding, first): ...

    def forward(self, x, hx=None, lengths=None, enforce_sorted=False):
        if isinstance(x, rnn_utils.PackedSequence) or lengths is None:
            return super().forward(x, hx=hx)
        if lengths.max() == 0:
            return x.new_zeros(*x.shape[:2], self.hidden_size), hx
        packed = rnn_utils.pack_padded_sequence(
            x, lengths.clamp(min=1), enforce_sorted=enforce_sorted, batch_first=self.batch_first
        )
        output, states = super().forward(packed, hx=hx)
        output, _ = rnn_utils.pad_packed_sequence(output, batch_first=self.batch_first)
        return output, self.handle_no_encoding(states, (lengths == 0)[None, :, None], hx)


class ForecastingLSTM(Recurrent, nn.LSTM):
    def handle_no_encoding(self, states, no_encoding, first):
        return tuple(torch.where(no_encoding, f, s) for f, s in zip(first, states, strict=True))


class ForecastingGRU(Recurrent, nn.GRU):
    def handle_no_encoding(self, states, no_encoding, first):
        return torch.where(no_encoding, first, states)


class ByName(nn.LSTM):
    """Calls torch's class, not the next one."""

    def forward(self, input, hx=None):
        return nn.LSTM.forward(self, input, hx)


class OfItsType(nn.RNN):
    """Right for an instance of this class alone."""

    def forward(self, input, hx=None):
        return super(type(self), self).forward(input, hx)


class OfItsClass(nn.RNN):
    """The same in another spelling."""

    def forward(self, input, hx=None):
        return super(self.__class__, self).forward(input, hx)


assert type(Recurrent) is ABCMeta
ONE_INPUT = (
    Doubled, Twice, InABranch, WithMixin, Level1, Level3, OldSuper, OfAMetaclass, OfAKind, Guarded,
    Slotted, ForecastingLSTM,
)  # fmt: skip
