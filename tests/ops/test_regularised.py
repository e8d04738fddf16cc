"""bl.ops.regularised: beside plain torch; derivatives, layouts, threads, compile, errors.

Letters: T steps, B batch, I input, H state, G gates.
"""

import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.cases import relative_error

from bppsa_lightning._cells import CELLS
from bppsa_lightning.ops import Regularised, regularised, regularised_holds
from bppsa_lightning.ops._regularised_plain import walk
from bppsa_lightning.ops.regularised import _NUMBERS_OF_UNIT, NORMALISED, REGULARISED

of_linear = sys.modules["bppsa_lightning.ops.linear"]
of_ours = sys.modules["bppsa_lightning.ops.regularised"]
ROOT = Path(__file__).parents[2]
KINDS = [(cell, "plain") for cell in REGULARISED] + [(c, "normalised") for c in NORMALISED]
KINDS += [("rnn_tanh", "independent"), ("rnn_relu", "independent")]  # units
kinds = pytest.mark.parametrize(("cell", "form"), KINDS)
ENTERS = Regularised._fields.index("enters")  # those before have gradients
inputs = pytest.mark.parametrize("I", [None, 5], ids=["sums", "input"])
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}


def draw(cell, form, T, B, H, seed=0, noise=True, dtype=torch.float64, few=False, I=None):  # noqa: E741
    """Random operands; with `few`, none that may be missing; with I, the input and its weights."""
    g = torch.Generator().manual_seed(seed)
    GH, has_c = CELLS[cell].gates * H, CELLS[cell].has_c

    def normal(*shape):
        return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)

    def mask(p):
        return torch.rand(T, B, H, generator=g) < p

    found = Regularised(
        x=normal(T, B, GH), h0=normal(B, H), c0=normal(B, H) if has_c else None,
        w_hh=normal(GH, H) / H**0.5, b_hh=normal(GH), norm_hh=1 + normal(GH) / 4,
        norm_c=1 + normal(H) / 4 if has_c else None, b_c=normal(H) if has_c else None,
        enters=(normal(B, H) > -1).to(dtype) * 1.5, kept_h=mask(0.2),
        kept_c=mask(0.2) if has_c else None,
    )  # fmt: skip
    if form == "independent":
        found = found._replace(w_hh=normal(H))
    if I is not None:
        found = found._replace(
            x=normal(T, B, I), w_ih=normal(GH, I) / I**0.5, b_ih=normal(GH),
            norm_ih=1 + normal(GH) / 4,
        )  # fmt: skip
    if form != "normalised":
        found = found._replace(norm_hh=None, norm_c=None, b_c=None, norm_ih=None)
    if not noise:
        found = found._replace(enters=None, kept_h=None, kept_c=None)
    few_of = dict.fromkeys(("h0", "c0", "b_hh", "b_c", "b_ih")) if few else {}
    return found._replace(**few_of)


def gradients(layer, operands, seed=1, chosen=(0, 1, 2), zoneout=0.0, reverse=False):
    """Results, and gradients of random gradients of those results that are chosen."""
    leaves = [
        t.detach().requires_grad_() if t is not None and t.is_floating_point() else t
        for t in operands
    ]
    leaves[ENTERS] = operands.enters
    found = layer(Regularised(*leaves), zoneout, reverse)
    g = torch.Generator().manual_seed(seed)
    incoming = [torch.randn(t.shape, generator=g, dtype=torch.float64).to(t) for t in found]
    taken = [i for i in range(len(found)) if i in chosen]
    given = [t for t in leaves[:ENTERS] if t is not None]
    back = torch.autograd.grad(
        [found[i] for i in taken], given, [incoming[i] for i in taken],
        allow_unused=True, materialize_grads=True,
    )  # fmt: skip
    return [*found, *back]


def both(cell, operands, truth=None, **settings):
    """Ours, and plain torch's of the same (or other) operands."""
    ours = gradients(lambda o, p, r: regularised(cell, o, p, r), operands, **settings)
    plain = gradients(lambda o, p, r: walk(cell, o, p, r), truth or operands, **settings)
    return ours, plain


@kinds
@pytest.mark.parametrize("seed", range(16))
def test_random_layers_are_those_of_plain_torch(cell, form, seed):
    r = random.Random(seed)
    T, B, H = r.choice([1, 2, 7, 40]), r.choice([1, 2, 5, 70]), r.choice([1, 3, 8, 17, 37])
    if form == "normalised":
        H = max(H, 3)  # of one number, or two, LN is a sign
    I = r.choice([None, 1, 4, 19, 33, 140])  # noqa: E741
    operands = draw(cell, form, T, B, H, seed, r.random() < 0.7, few=r.random() < 0.3, I=I)
    chosen = r.choice([(0, 1, 2), (0,), (1,), (1, 2)])
    settings = {"zoneout": r.choice([0.0, 0.3]), "reverse": r.random() < 0.5, "chosen": chosen}
    for ours, plain in zip(*both(cell, operands, **settings), strict=True):
        assert relative_error(ours, plain) < TOLERANCE[torch.float64]


@kinds
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_on_cuda_layers_are_those_of_the_cpu(cell, form):
    for seed, (T, B, H) in enumerate([(1, 1, 3), (40, 5, 37), (3, 9, 300)]):
        operands = draw(cell, form, T, B, H, seed, noise=seed != 1)
        there = Regularised(*(None if t is None else t.cuda() for t in operands))
        for reverse in (False, True):
            settings = {"zoneout": 0.2, "reverse": reverse}
            ours, plain = both(cell, operands, **settings)
            theirs = gradients(lambda o, p, r: regularised(cell, o, p, r), there, **settings)
            for a, b in zip(theirs, plain, strict=True):
                assert relative_error(a.cpu(), b) < 1e-10


@kinds
@inputs
def test_float32_is_as_close_as_plain_torch_in_float32(cell, form, I):
    errors = []
    for seed in range(6):
        narrow = draw(cell, form, 30, 3, 20, seed, dtype=torch.float32, I=I)
        wide = Regularised(
            *(t.double() if t is not None and t.is_floating_point() else t for t in narrow)
        )
        ours, true = both(cell, narrow, wide)
        _, plain = both(cell, narrow)
        errors.append(
            max(relative_error(a, b) for a, b in zip(ours, true, strict=True))
            / max(relative_error(a, b) for a, b in zip(plain, true, strict=True))
        )
    assert sorted(errors)[len(errors) // 2] <= 2


@kinds
@inputs
def test_threads_and_layouts_change_nothing(cell, form, I):
    operands = draw(cell, form, 40, 70, 24, I=I)
    features = operands.x.shape[2]
    wide = operands._replace(x=torch.zeros(70, 40, features + 3, dtype=torch.float64))
    wide.x[..., 1 : features + 1] = operands.x.transpose(0, 1)
    wide = wide._replace(
        x=wide.x[..., 1 : features + 1].transpose(0, 1),
        w_hh=operands.w_hh.movedim(0, -1).contiguous().movedim(-1, 0),
    )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = gradients(lambda o, p, r: regularised(cell, o, p, r), operands)
        torch.set_num_threads(2)
        two = gradients(lambda o, p, r: regularised(cell, o, p, r), wide)
    finally:
        torch.set_num_threads(before)
    for a, b in zip(one, two, strict=True):
        assert relative_error(a, b) < 1e-12


@kinds
@inputs
def test_second_derivatives(cell, form, I):
    operands = draw(cell, form, 3, 2, 3, I=I)
    leaves = [t.requires_grad_() for t in operands[:ENTERS] if t is not None]
    names = [n for n, t in zip(operands._fields[:ENTERS], operands, strict=False) if t is not None]

    def layer(*tensors):
        return regularised(cell, operands._replace(**dict(zip(names, tensors, strict=True))), 0.2)

    assert torch.autograd.gradgradcheck(layer, leaves)


@kinds
@pytest.mark.parametrize("I", [None, 5, 32, 33])  # of more than 32, what was normalised is kept
def test_operators_pass_opcheck(cell, form, I):
    operands = draw(cell, form, 4, 2, 3, I=I)
    leaves = [t.requires_grad_() if t is not None and t.is_floating_point() else t
              for t in operands]  # fmt: skip
    leaves[ENTERS].requires_grad_(False)
    for saves in (False, True):
        arguments = (cell, *leaves, 0.1, saves, saves)
        checks = ("test_schema", "test_faketensor")
        if saves:
            checks = (*checks, "test_autograd_registration", "test_aot_dispatch_dynamic")
        torch.library.opcheck(torch.ops.bppsa.regularised.default, arguments, test_utils=checks)
    own = [t if t is None else t.detach() for t in operands]
    output, h_n, c_n, saved = torch.ops.bppsa.regularised(cell, *own, 0.1, True, True)
    x = None if I is None else own[0]
    for wanted in (0, 2047):
        given = (
            cell,
            output,
            h_n,
            c_n if len(c_n) else None,
            output,
            saved,
            x,
            *own[1:],
            0.1,
            True,
        )
        torch.library.opcheck(
            torch.ops.bppsa.regularised_backward.default, (*given, wanted),
            test_utils=("test_schema", "test_faketensor"),
        )  # fmt: skip


@kinds
@inputs
def test_compiled_whole(cell, form, I):
    def layer(o, p, r):
        return regularised(cell, o, p, r)

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for T, B in ((5, 2), (9, 3)):
        operands = draw(cell, form, T, B, 4, I=I)
        for a, b in zip(*(gradients(f, operands) for f in (compiled, layer)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@kinds
@inputs
def test_an_empty_batch_and_a_silent_result(cell, form, I):
    operands = draw(cell, form, 3, 0, 4, I=I)
    found = gradients(lambda o, p, r: regularised(cell, o, p, r), operands)
    assert found[0].shape == (3, 0, 4)
    assert all(g.eq(0).all() for g in found)
    with torch.no_grad():
        assert regularised(cell, operands)[0].grad_fn is None


@kinds
@inputs
def test_transforms_are_those_of_plain_torch(cell, form, I):
    operands = draw(cell, form, 4, 2, 3, I=I)
    xs = torch.randn(3, *operands.x.shape, dtype=torch.float64)

    def loss(x, w_hh):
        return regularised(cell, operands._replace(x=x, w_hh=w_hh), 0.1)[0].square().sum()

    found = torch.func.vmap(torch.func.grad(loss, (0, 1)), (0, None))(xs, operands.w_hh)
    for member, x in enumerate(xs):
        leaves = [x.clone().requires_grad_(), operands.w_hh.clone().requires_grad_()]
        for mine, wanted in zip(found, torch.autograd.grad(loss(*leaves), leaves), strict=True):
            assert relative_error(mine[member], wanted) < 1e-11


def test_states_that_overflow_are_infinite_as_those_of_plain_torch():
    operands = draw("rnn_relu", "plain", 12, 2, 5, dtype=torch.float32)
    operands = operands._replace(
        x=operands.x.abs(),
        h0=operands.h0.abs(),
        w_hh=operands.w_hh.abs() * 1e8,
        enters=None,
    )
    ours, plain = both("rnn_relu", operands)
    assert plain[0].isinf().any() and not plain[0].isnan().any()
    assert torch.equal(ours[0].isinf(), plain[0].isinf()) and not ours[0].isnan().any()
    for a, b in zip(ours[2:], plain[2:], strict=True):
        assert torch.equal(a.isfinite(), b.isfinite())


def test_what_is_frozen_has_no_gradient():
    operands = draw("lstm", "normalised", 3, 2, 4)
    operands.w_hh.requires_grad_()
    output, *_ = regularised("lstm", operands)
    output.sum().backward()
    assert operands.w_hh.grad is not None and operands.x.grad is None


@pytest.mark.parametrize(
    ("cell", "change", "words"),
    [
        ("peephole", {}, "cell: found 'peephole', wanted one of 'gru', 'lstm'"),
        ("gru", {"w_hh": torch.zeros(3).double()}, r"w_hh: found shape \(3,\), wanted \(9, 3\)"),
        ("ligru", {"norm_hh": torch.ones(6)}, "cell: found 'ligru', wanted one of 'gru', 'lstm'"),
        ("lstm", {"x": torch.zeros(2, 2, 13).double()}, r"x: found shape \(2, 2, 13\), wanted"),
        ("lstm", {"h0": torch.zeros(3, 3).double()}, r"h0: found shape \(3, 3\), wanted \(2, 3\)"),
        ("lstm", {"norm_c": None}, r"norm_c: found None, wanted \(3,\)"),
        ("lstm", {"kept_c": torch.zeros(2, 2, 3)}, "kept_c: found dtype torch.float32"),
        ("lstm", {"b_hh": torch.zeros(12)}, "b_hh: found dtype torch.float32, wanted x's"),
        (
            "lstm",
            {"b_ih": torch.zeros(12).double()},
            "b_ih: found a tensor, wanted None without w_",
        ),
        (
            "lstm",
            {"w_ih": torch.zeros(12, 5).double()},
            r"w_ih: found shape \(12, 5\), wanted \(12",
        ),
        ("gru", {"c0": torch.zeros(2, 3).double()}, "c0: found a tensor, wanted None"),
    ],
)
def test_errors_name_the_argument(cell, change, words):
    known = cell if cell in NORMALISED else "gru"
    operands = draw(known, "normalised", 2, 2, 3)._replace(**change)
    if cell == "ligru":
        operands = draw("ligru", "plain", 2, 2, 3)._replace(**change)
    with pytest.raises((TypeError, ValueError), match=words):
        regularised(cell, operands)


def test_a_block_of_a_gpu_holds_a_samples_state():
    # The numbers of csrc/cuda/recurrent/regularised_*.cuh, for the cell that takes most.
    sources = (ROOT / "csrc" / "cuda" / "recurrent").glob("regularised_*.cuh")
    source = "".join(path.read_text() for path in sources)
    asked = re.findall(r"\(kMostWarps \+ (\d) \* H \+ GH\) \* sizeof\(Real\)", source)
    assert max(map(int, asked)) + 4 == _NUMBERS_OF_UNIT and len(asked) == 2
    assert regularised_holds(torch.zeros(1, 1, 1), 10**6), "on a CPU, any number"


@pytest.mark.parametrize("zoneout", [1.5, "0.1", None])
def test_zoneout_is_a_share(zoneout):
    with pytest.raises(ValueError, match=f"zoneout: found {zoneout!r}, wanted"):
        regularised("gru", draw("gru", "plain", 2, 2, 3), zoneout)


def test_the_operator_is_given_the_input(monkeypatch):
    """Not its sums, on a machine whose kernels were measured; and what it is given is no more."""
    given = []
    monkeypatch.setattr(of_ours, "_Regularised", SimpleNamespace(apply=lambda *a: given.append(a)))
    for has_kernel, size in ((True, 5), (False, 12)):
        monkeypatch.setattr(of_linear, "_has_kernel", lambda has=has_kernel: has)
        with pytest.raises(TypeError):  # of what is no result
            regularised("lstm", draw("lstm", "normalised", 2, 2, 3, I=5))
        x, w_ih = given[-1][1], given[-1][9]
        assert x.shape[2] == size and (w_ih is not None) == has_kernel


def test_an_input_without_a_gradient_costs_none():
    operands = draw("gru", "normalised", 5, 3, 4, I=6)
    operands.w_ih.requires_grad_()
    output, h_n, _, saved = torch.ops.bppsa.regularised("gru", *operands, 0.0, False, True)
    back = torch.ops.bppsa.regularised_backward(
        "gru", output, h_n, None, output, saved, *operands, 0.0, False, 1 << 8
    )
    assert [len(g) for g in back] == [0] * 8 + [12] + [0] * 2


def test_what_enters_has_no_gradient():
    """A mask that alone asks for one had a backward that found nothing saved."""
    x, enters = torch.randn(4, 2, 9), torch.rand(2, 3, requires_grad=True)
    operands = Regularised(x, None, None, torch.randn(9, 3), enters=enters)
    assert not regularised("gru", operands)[0].requires_grad
    output = regularised("gru", operands._replace(x=x.requires_grad_()))[0]
    output.sum().backward()
    assert enters.grad is None and x.grad is not None
