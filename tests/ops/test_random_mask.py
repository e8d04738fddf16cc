"""bl.ops.random_mask: the generator against its definition, what the seed decides, who draws."""

import numpy as np
import pytest
import torch

from bppsa_lightning.ops import random_mask

run = torch.ops.bppsa.random_mask.default
CPU = torch.device("cpu")


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., SC 2011): counters (n, 4) and a key of 64 bits -> (n, 4)."""
    a, b, c, d = (np.asarray(counter, dtype=np.uint64)[:, i] for i in range(4))
    low, k, other = np.uint64(2**32 - 1), key % 2**32, key // 2**32
    for _ in range(10):
        p, q = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b = (q >> np.uint64(32)) ^ b ^ np.uint64(k), q & low
        c, d = (p >> np.uint64(32)) ^ d ^ np.uint64(other), p & low
        k, other = (k + 0x9E3779B9) % 2**32, (other + 0xBB67AE85) % 2**32
    return np.stack([a, b, c, d], 1)


def defined(seed, size, p):
    """64 counters at a time: the first words of all, then the second, and so on."""
    n = -(-size // 256) * 64
    counters = np.zeros((n, 4), dtype=np.uint64)
    counters[:, 0] = np.arange(n)
    words = philox(counters, seed % 2**64).reshape(-1, 64, 4).transpose(0, 2, 1).reshape(-1)
    return torch.from_numpy(words[:size] < int(p * 2**32))


def test_the_definition_has_the_answers_of_its_authors():
    """Of the file kat_vectors of Random123."""
    ones, pi = [2**32 - 1] * 4, [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    for counter, key, words in (
        ([0] * 4, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (ones, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (pi, 0x299F31D0A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ):
        assert [f"{word:08x}" for word in philox([counter], key)[0]] == words.split()


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 100_003])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_mask_is_what_its_seed_says_on_any_number_of_threads(size, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for seed, p in ((0, 0.5), (-1, 0.1), (2**63 - 1, 0.999), (12345678901, 2.0**-12)):
            assert torch.equal(run(torch.tensor(seed), [size], p), defined(seed, size, p))
    finally:
        torch.set_num_threads(before)


def test_no_units_are_kept_with_a_probability_of_0():
    assert not run(torch.tensor(7), [5000], 0.0).any()


@pytest.mark.parametrize("size", [(), (3,), (4, 0, 5), (7, 3, 50)], ids=str)
def test_the_seed_is_a_number_of_torchs_generator(size):
    torch.manual_seed(4)
    masks = [random_mask(0.3, size, CPU) for _ in range(2)]
    torch.manual_seed(4)
    assert torch.equal(random_mask(0.3, size, CPU), masks[0])
    assert masks[0].shape == size and masks[0].dtype == torch.bool
    if len(size) == 3 and masks[0].numel():
        assert not torch.equal(*masks)


def test_under_a_transform_the_numbers_are_torchs():
    def draw(_):
        return random_mask(0.5, (40,), CPU)

    x = torch.zeros(3)
    different = torch.func.vmap(draw, randomness="different")(x)
    same = torch.func.vmap(draw, randomness="same")(x)
    assert not torch.equal(different[0], different[1]) and torch.equal(same[0], same[1])


@pytest.mark.slow
def test_a_graph_is_for_any_size_and_draws_anew():
    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def compiled(x):
        return x.masked_fill(random_mask(0.5, tuple(x.shape), x.device), 0)

    for n in (40, 50):
        assert not torch.equal(compiled(torch.ones(n, 3)), compiled(torch.ones(n, 3)))


def test_the_operator_keeps_torchs_contract():
    torch.library.opcheck(run, (torch.tensor(3), [4, 5], 0.2))


@pytest.mark.parametrize(
    "seed, p, message",
    [
        (torch.zeros(()), 0.5, "seed: wanted an int64"),
        (torch.zeros(2, dtype=torch.int64), 0.5, "seed: wanted an int64"),
        (torch.tensor(1), 1.0, "p: wanted a number in"),
        (torch.tensor(1), float("nan"), "p: wanted a number in"),
    ],
    ids=["float", "two", "one", "nan"],
)
def test_what_does_not_fit_is_said(seed, p, message):
    with pytest.raises(RuntimeError, match=message):
        run(seed, [3], p)
