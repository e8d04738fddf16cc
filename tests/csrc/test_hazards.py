"""What could go wrong in the kernels without a sound is refused, bounded or computed right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.native_build import ROOT, tool
from support.recurrent_layers import GATES

import bppsa_lightning as bl

op = torch.ops.bppsa


def in_a_process(script, **environment):
    """Standard output of a script, run by itself with torch and the operators alone.

    The package imports Lightning, which takes seconds.
    """
    (library,) = (file for folder in bl.__path__ for file in Path(folder).glob("_C.so"))
    start = f"import torch\ntorch.ops.load_library({str(library)!r})\nop = torch.ops.bppsa\n"
    ran = subprocess.run(
        [sys.executable, "-c", start + script],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def layer(T, B, I, H, cell="lstm"):
    """The operands of a layer after `cell`, and the gradient of its output."""
    generator = torch.Generator().manual_seed(0)

    def normal(*size):
        return torch.randn(*size, generator=generator) * 0.05

    operands = (
        normal(T, B, I),
        None,
        None,
        normal(GATES[cell] * H, I),
        normal(GATES[cell] * H, H),
        None,
        None,
    )
    return (*operands, None), normal(T, B, H)


def backward(cell, operands, grad, algorithm="linear", chunk=0, levels=0):
    output, _, _, kept = op.recurrent(cell, *operands, False, 2, algorithm)
    return op.recurrent_backward(
        cell, grad, None, None, output, kept, *operands, False, algorithm, chunk, levels, 255
    )


@pytest.mark.slow
def test_products_of_jacobians_stay_within_a_budget():
    # All maps at once would be 2000 x 4 x 64 x 65 numbers, 133 MB.
    most = in_a_process("""
import resource
jac_t, grad = torch.randn(1, 1, 64, 64).expand(2000, 4, 64, 64) / 8, torch.randn(2001, 4, 64)
for algorithm in ("chunked", "blelloch"):
    op.reverse_scan(jac_t[:4], grad[:5], algorithm, 1, 1, False)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for algorithm in ("chunked", "blelloch"):
    op.reverse_scan(jac_t, grad, algorithm, 1, 1, False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
""")
    assert int(most) < 40 << 10  # KiB


@pytest.mark.parametrize(("algorithm", "chunk", "levels"), [("chunked", 2, 0), ("blelloch", 0, 2)])
@pytest.mark.parametrize("H", [3, 96])
def test_a_scan_in_parts_gives_what_one_step_after_another_gives(algorithm, chunk, levels, H):
    # H = 96: 4 MiB hold 112 maps in float32, so that 16 samples of 90 steps go in several parts.
    generator = torch.Generator().manual_seed(1)
    jac_t = torch.randn(90, 16, H, H, generator=generator) / H**0.5
    grad = torch.randn(91, 16, H, generator=generator)
    wanted = op.reverse_scan(jac_t.double(), grad.double(), "linear", 0, 0, False)
    found = op.reverse_scan(jac_t, grad, algorithm, chunk, levels, False)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("chunk", [2**31, 2**62, 2**63 - 1])
def test_a_chunk_longer_than_the_chain_is_the_chain(chunk):
    jac_t, grad = torch.randn(5, 2, 3, 3), torch.randn(6, 2, 3)
    wanted = op.reverse_scan(jac_t, grad, "linear", 0, 0, False)
    assert torch.equal(op.reverse_scan(jac_t, grad, "chunked", chunk, 0, False), wanted)
    wanted = op.diagonal_scan(jac_t[..., 0], grad, "linear", 0, 0, False)
    assert torch.equal(op.diagonal_scan(jac_t[..., 0], grad, "chunked", chunk, 0, False), wanted)


def test_a_layer_without_units_is_refused():
    # Its results were memory as the allocator gave it.
    x, w_hr = torch.randn(3, 2, 4), torch.empty(5, 0)
    operands = (x, None, None, torch.empty(0, 4), torch.empty(0, 5), None, None, w_hr)
    with pytest.raises(RuntimeError, match="w_hh: its sizes are not those of a cell lstm"):
        op.recurrent("lstm", *operands, False, 0, "linear")


@pytest.mark.parametrize("cell", ["rnn_tanh", "gru", "lstm"])
def test_sums_of_parameters_are_those_of_one_thread_and_the_same_in_every_run(cell):
    # Sums large enough to be cleared and added up by all threads.
    operands, grad = layer(20, 8, 96, 96, cell)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        wanted = backward(cell, operands, grad)
        torch.set_num_threads(5)
        found, again = (backward(cell, operands, grad) for _ in range(2))
    finally:
        torch.set_num_threads(before)
    for one, five, same in zip(wanted, found, again, strict=True):
        torch.testing.assert_close(five, one, rtol=1e-4, atol=1e-4)
        assert torch.equal(five, same)


def csr(rows):
    """crow and col of lists of columns."""
    crow = torch.tensor([0, *(len(r) for r in rows)]).cumsum(0).int()
    return crow, torch.tensor([c for row in rows for c in row]).int()


A, B = csr([[0, 1], [1], [0, 2]]), csr([[0, 1], [1, 2], [0, 3]])


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (A, csr([[0, 1], [1, 4], [0, 3]]), "b: found column 4, wanted less than 4"),
        (csr([[0, 3], [1], [0, 2]]), B, "a: found column 3, wanted less than 3"),
        ((torch.tensor([0, 2, 1, 5]).int(), A[1]), B, "a: crow descends at row 1"),
    ],
)
def test_a_plan_of_a_product_refuses_a_pattern_out_of_range(a, b, said):
    with pytest.raises(RuntimeError, match=said):
        op.count_product(*a, *b, 4)


def test_a_plan_of_a_product_refuses_what_count_product_did_not_return():
    row_size, products, owner, _ = op.count_product(*A, *B, 4)
    crow = op.fill_product(*A, *B, 4, row_size, products, owner)[0]
    assert crow.tolist() == [0, 3, 5, 8]
    for damaged, name in [
        ((row_size, products.int(), owner), "products"),
        ((row_size, products, owner.float()), "owner"),
        ((row_size, products, torch.full_like(owner, 7)), "owner"),
        ((row_size, products, torch.full_like(owner, -2)), "owner"),
        ((row_size, products.repeat_interleave(2)[::2], owner), "products"),
    ]:
        with pytest.raises(RuntimeError, match=f"{name}: wanted that of count_product"):
            op.fill_product(*A, *B, 4, *damaged)


DAMAGED = {  # calls with a pattern that a Python caller could not make, and what is said of it
    "op.take_surviving(torch.zeros(9), torch.tensor([0, 5, 3, 8]))": "index: found 3 after 5",
    "op.put_surviving(torch.zeros(3), torch.tensor([0, 5, 5]), 9)": "index: found 5 after 5",
    "op.sparse_conv2d(torch.zeros(1, 1, 2, 2), torch.zeros(2), None, i([0, 3, 2]), "
    "i([0, 0, 0, 0]), i([0]), i([0]), i([0]), [1, 1], [1, 1], [0, 0, 0, 0], [1, 1], 1)": (
        "rows: found 2 after 3"
    ),
    "op.sparse_conv2d(torch.zeros(1, 1, 2, 2), torch.zeros(1), None, i([0, 1]), "
    "i([1, 0]), i([0]), i([0]), i([0]), [1, 1], [1, 1], [0, 0, 0, 0], [1, 1], 1)": (
        "entries: found channel 1 and tap 0"
    ),
}


@pytest.mark.slow
def test_trusted_patterns_are_looked_at_on_demand():
    script = f"""
def i(numbers): return torch.tensor(numbers).int()
for call in {[*DAMAGED]!r}:
    try:
        eval(call)
        print("nothing said of", call)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""
    found = in_a_process(script, BPPSA_CHECK_PATTERNS="1").splitlines()
    assert len(found) == len(DAMAGED)
    assert all(said in line for said, line in zip(DAMAGED.values(), found)), found


THREE_SLOTS = """
#include "recurrent/forward.h"
namespace bppsa::BPPSA_ISA {
struct ThreeSlots {
  static constexpr int kGates = 3, kStates = 1, kSlots = 3, kKept = 3;
  struct FromX { static constexpr Slots<3> slots{{0, 1, 2}}; };
  using FromH = FromX;
  static constexpr Activation kActivation[3] = {};
  template <class Math, class V>
  static UnitState<V> step(V (&slot)[3], const UnitState<V>&) { return {slot[0], V{}}; }
};
template void layer_forward<CellOf<ThreeSlots, float>>(const RecurrentForwardRequest&,
                                                       const Parallel&);
}
"""


@pytest.mark.slow
def test_a_cell_whose_slots_do_not_fill_vectors_does_not_compile(tmp_path):
    source = tmp_path / "cell.cpp"
    source.write_text(THREE_SLOTS)
    command = [tool("g++"), "-std=c++20", "-fsyntax-only", "-march=x86-64-v4", "-DBPPSA_ISA=level"]
    ran = subprocess.run(
        [*command, f"-I{Path(ROOT) / 'csrc'}", str(source)], capture_output=True, text=True
    )
    assert ran.returncode != 0 and "must fill whole vectors" in ran.stderr, ran.stderr[-4000:]
