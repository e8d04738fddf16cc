"""Resets: what they mean, in each direction, and what is refused."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import bppsa_lightning as bl

F64 = {"dtype": torch.float64}
T, B = 7, 3


def mask(*places):
    reset = torch.zeros(T, B, dtype=torch.bool)
    for t, b in places:
        reset[t, b] = True
    return reset


def drawn(**options):
    torch.manual_seed(0)
    module = bl.nn.GRU(2, 4, **options, **F64)
    both = 2 if module.bidirectional else 1
    return module, torch.randn(T, B, 2, **F64), torch.randn(both, B, 4, **F64)


def test_a_reset_cuts_a_sequence_in_two():
    module, x, h = drawn()
    output, last = module(x, h, mask((3, 1)))
    whole, whole_last = module(x, h)
    first, _ = module(x[:3, 1:2], h[:, 1:2].contiguous())
    second, end = module(x[3:, 1:2])
    torch.testing.assert_close(output[:, 1:2], torch.cat([first, second]))
    torch.testing.assert_close(last[:, 1:2], end)
    torch.testing.assert_close(output[:, [0, 2]], whole[:, [0, 2]])
    torch.testing.assert_close(last[:, [0, 2]], whole_last[:, [0, 2]])


def test_backwards_too_each_piece_begins_anew():
    """The last piece begins with h0, the others with zeros; h_n is of where a direction ends."""
    module, x, h = drawn(bidirectional=True)
    output, last = module(x, h, mask((3, 1)))
    one, h = x[:, 1:2], h[:, 1:2]
    zeros = torch.zeros_like(h[:1])
    first, of_first = module(one[:3], torch.cat([h[:1], zeros]))
    second, of_second = module(one[3:], torch.cat([zeros, h[1:]]))
    torch.testing.assert_close(output[:, 1:2], torch.cat([first, second]))
    torch.testing.assert_close(last[:, 1:2], torch.stack([of_second[0], of_first[1]]))


def test_a_reset_before_the_first_step_is_of_the_forward_direction():
    module, x, h = drawn(bidirectional=True)
    output, last = module(x, h, mask((0, 1)))
    h = h.clone()
    h[0, 1] = 0
    for found, wanted in zip((output, last), module(x, h), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_reset_to_the_initial_state():
    module, x, h = drawn(reset_to="initial")
    output, _ = module(x, h, mask((3, 1), (0, 2)))
    again, _ = module(x[3:, 1:2], h[:, 1:2].contiguous())
    torch.testing.assert_close(output[3:, 1:2], again)
    torch.testing.assert_close(output[:, 2], module(x, h)[0][:, 2])


def test_the_initial_state_gets_the_gradients_of_all_pieces_that_begin_with_it():
    module, x, h = drawn(reset_to="initial")
    h.requires_grad_()
    every = torch.ones(T, B, dtype=torch.bool)
    module(x, h, every)[0].sum().backward()
    wanted = h.detach().clone().requires_grad_()
    sum(module(x[t : t + 1], wanted)[0].sum() for t in range(T)).backward()
    torch.testing.assert_close(h.grad, wanted.grad)


def test_nothing_flows_through_a_reset():
    module, x, h = drawn()
    x.requires_grad_(), h.requires_grad_()
    output, _ = module(x, h, mask((3, 0), (3, 1), (3, 2)))
    output[3:].sum().backward()
    assert not x.grad[:3].any() and x.grad[3:].all()
    assert not h.grad.any()


def test_masks_of_all_layouts_say_the_same():
    module, x, h = drawn()
    reset = torch.rand(T, B) < 0.4
    output, last = module(x, h, reset)
    module.batch_first = True
    first, same = module(x.transpose(0, 1), h, reset.t())
    torch.testing.assert_close((first.transpose(0, 1), same), (output, last))
    one, _ = module(x[:, 0], h[:, 0], reset[:, 0])
    torch.testing.assert_close(one, output[:, 0])


@pytest.mark.parametrize("batch_first", [False, True])
def test_of_a_packed_sequence_the_mask_is_that_of_the_padded_tensor(batch_first):
    module, x, h = drawn(batch_first=batch_first)
    lengths, reset = torch.tensor([4, 7, 2]), torch.rand(T, B) < 0.5
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    output, last = module(packed, h, reset.t() if batch_first else reset)
    padded, _ = pad_packed_sequence(output)
    module.batch_first = False
    for b, n in enumerate(lengths):
        alone = [t[:, b : b + 1] for t in (x[:n], h, reset[:n])]
        wanted, end = module(*(t.contiguous() for t in alone))
        torch.testing.assert_close((padded[:n, b : b + 1], last[:, b : b + 1]), (wanted, end))


def test_no_reset_is_the_plain_path(monkeypatch):
    module, x, h = drawn()
    monkeypatch.delattr("bppsa_lightning.nn.base.ResetScan")
    found, wanted = module(x, h, mask()), module(x, h)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_one_long_piece_among_many_short_ones_is_walked_by_itself():
    """Padded to its length, the others would be a thousand times as much."""
    module = bl.nn.LSTM(2, 3)
    x, reset = torch.randn(1000, 8, 2), torch.ones(1000, 8, dtype=torch.bool)
    reset[:, 0] = False
    rows = []
    walk = bl.nn.LSTM._walk

    def counting(self, x, *args, **kwargs):
        rows.append(x.shape[0] * x.shape[1])
        return walk(self, x, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bl.nn.LSTM, "_walk", counting)
        module(x, None, reset)
    assert rows == [1000, 7000]


def test_empty_batches():
    module, x, h = drawn()
    output, last = module(x[:, :0], h[:, :0], mask()[:, :0])
    assert output.shape == (T, 0, 4) and last.shape == (1, 0, 4)


@pytest.mark.parametrize(
    "reset, error, message",
    [
        ([True], TypeError, "reset: found list, wanted a tensor of torch.bool"),
        (torch.zeros(T, B), TypeError, "reset: found torch.float32, wanted a tensor of torch.bool"),
        (mask()[:-1], ValueError, r"reset: found \(6, 3\), wanted \(T, B\) = \(7, 3\)"),
        (mask().t(), ValueError, r"reset: found \(3, 7\), wanted \(T, B\) = \(7, 3\)"),
        (mask()[:, 0], ValueError, r"reset: found \(7,\), wanted \(T, B\) = \(7, 3\)"),
    ],
)
def test_wrong_masks_are_refused(reset, error, message):
    module, x, _ = drawn()
    with pytest.raises(error, match=message):
        module(x, None, reset)


def test_the_mask_of_other_layouts_is_named_as_it_should_be():
    module, x, _ = drawn(batch_first=True)
    with pytest.raises(ValueError, match=r"wanted \(B, T\) = \(7, 3\)"):
        module(x, None, mask().t())
    with pytest.raises(ValueError, match=r"wanted \(T,\) = \(7,\)"):
        module(x[:, 0], None, mask())


@pytest.mark.parametrize("name", ["zoneout", "recurrent_dropout"])
@pytest.mark.parametrize("p", [-0.1, 1.0, True, "a"])
def test_wrong_options_are_refused(name, p):
    with pytest.raises(ValueError, match=rf"{name}: found {p!r}, wanted a number in \[0, 1\)"):
        bl.nn.GRU(2, 3, **{name: p})
    with pytest.raises(ValueError, match="reset_to: found 'h0', wanted 'zeros' or 'initial'"):
        bl.nn.GRU(2, 3, reset_to="h0")


def test_an_optimizer_step_learns_through_resets():
    module, x, h = drawn()
    head, reset = nn.Linear(4, 1, **F64), torch.rand(T, B) < 0.3
    optimizer = torch.optim.Adam([*module.parameters(), *head.parameters()], 0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (head(module(x, h, reset)[0]) - x.sum(-1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
