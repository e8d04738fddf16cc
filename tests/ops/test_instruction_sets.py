"""The CPU kernels of lower instruction sets give the results of the one that this machine takes.

One process an instruction set, since the kernels are chosen when the library is loaded; it runs
checks of every family of kernels, and reports all that fail.
"""

import os
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from support.cases import SHAPES, chain, plans, relative_error, with_capability
from support.diagonal import MANY
from support.helpers import assert_close
from support.recurrent_layers import ALGORITHMS, CELLS, cotangents, draw, ours, results, true
from support.sparse_layers import CONVOLUTIONS, DTYPES

import bppsa_lightning as bl
from bppsa_lightning import planner

LEVELS = ["x86-64-v2", "x86-64-v3"]


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_lower_instruction_sets_give_the_same_results(level):
    here = bl.ops.cpu_capability().replace("_", "-")
    if not here.startswith("x86"):
        pytest.skip("not an x86-64 machine")
    if here < level:
        pytest.skip(f"this machine is below {level}")
    if here == level:  # no process needed
        for check in CHECKS.values():
            check()
        return
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-m", "ops.test_instruction_sets", level],
        env=with_capability(level) | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        cwd=tests,  # a Python file elsewhere may be called ops.py
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    taken, *passed = ran.stdout.split()
    assert passed == [*CHECKS]
    if f"the lowest level of this build is {taken}" in ran.stderr:
        pytest.skip(f"this build has no kernels for {level} (BPPSA_LEVELS=all has)")
    assert taken == level.replace("-", "_")


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["x86_64_v2", "v2", "newest"])
def test_the_instruction_set_is_named_in_several_ways_and_a_wrong_name_is_said(wanted):
    if not bl.ops.cpu_capability().startswith("x86"):
        pytest.skip("not an x86-64 machine")
    (library,) = (file for folder in bl.__path__ for file in Path(folder).glob("_C.so"))
    script = f"""
import torch
torch.ops.load_library({str(library)!r})
print(torch.ops.bppsa.cpu_capability())
"""

    def printed(level):
        environment = with_capability(level)
        if level is None:  # these tests themselves may run at a lower one
            del environment["BPPSA_CPU_CAPABILITY"]
        command = [sys.executable, "-c", script]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    ran, known = printed(wanted), wanted.endswith("v2")
    taken = ran.stdout.strip()
    if known:
        assert taken == "x86_64_v2" or f"the lowest level of this build is {taken}" in ran.stderr
    else:
        assert taken == printed(None).stdout.strip()
    assert (f"BPPSA_CPU_CAPABILITY: found '{wanted}', wanted" in ran.stderr) != known


def reverse_scan():
    for shape in SHAPES:
        for dtype, tolerance in (
            (torch.float64, 1e-13),
            (torch.float32, 3e-6),
            (torch.float16, 1e-3),
        ):
            jac_t, grad = chain(*shape, dtype)
            wanted = bl.reference.reverse_scan(jac_t.double(), grad.double())
            for plan in plans(shape[0]):
                found = torch.ops.bppsa.reverse_scan(jac_t, grad, *plan, False)
                assert relative_error(found, wanted) < tolerance, (shape, dtype, plan)
    rnn, x = torch.nn.RNN(2, 20), torch.randn(9, 3, 2)
    output = bl.ops.rnn(x, None, *rnn._flat_weights)[0]
    assert relative_error(output, rnn(x)[0]) < 1e-6


def diagonal_scan():
    from ops import test_diagonal_scan as tests

    for shape in MANY[-4:]:
        for dtype in (torch.float32, torch.bfloat16):
            tests.test_every_plan_and_layout_equals_the_oracle(shape, dtype, "cpu")


def halves():
    from ops import test_halves as tests

    for dtype in tests.HALVES:
        for layout in tests.LAYOUTS:
            tests.test_every_number_is_read_and_written_as_it_is(dtype, layout)
            tests.test_products_are_rounded_as_pytorch_rounds(dtype, layout)
            tests.test_a_dense_chain_is_the_float32_one_rounded(dtype, 20, layout)


def recurrent_layers():
    plan = planner.plan
    try:
        for cell in CELLS.values():
            for size in ((7, 5, 3, 4), (12, 5, 7, 33), (3, 70, 3, 8)):
                wide = draw(cell, size)
                truth = results(true, cell, wide, cotangents(cell, wide))
                for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 2e-5)):
                    tensors = draw(cell, size, dtype)
                    incoming = cotangents(cell, tensors)
                    wanted = {name: t.to(dtype) for name, t in truth.items()}
                    for kept in (1, 2):
                        planner.plan = lambda request, kept=kept: replace(plan(request), saved=kept)
                        for algorithm in ALGORITHMS:
                            found = results(ours, cell, tensors, incoming, algorithm=algorithm)
                            assert_close(found, wanted, tolerance)
    finally:
        planner.plan = plan


def regularised_layers():
    from ops import test_regularised as tests
    from ops.test_linear import OURS

    with patch.dict(OURS, _has_kernel=lambda: True):
        for cell, form in tests.KINDS:
            for seed in range(4):
                tests.test_random_layers_are_those_of_plain_torch(cell, form, seed)


def independent_layers():
    from ops import test_indrnn as tests

    for seed in range(6):
        tests.test_random_layers_equal_the_loop(seed, "cpu")


def linear():
    from ops import test_linear as tests

    with patch.dict(tests.OURS, _LEAST=0, _has_kernel=lambda: True):
        for seed in (1, 6, 16, 61):
            tests.test_random_layers_equal_those_of_torch(seed)


def sparse_layers():
    from ops import test_sparse as tests

    for name in ("vgg", "odd", "strided", "dilated, strided", "one sample"):
        case = CONVOLUTIONS[name]
        for dtype in DTYPES:
            tests.test_results_and_gradients_are_those_of_the_dense_layer(case, dtype)
            if name in ("odd", "strided"):
                tests.test_followed_by_relu_and_pooling(case, dtype, True, False)
                tests.test_followed_by_relu_and_pooling(case, dtype, True, True)
                tests.test_ties_and_numbers_that_are_none_go_where_pytorch_sends_them(
                    19, dtype, True, True
                )


CHECKS = {
    f.__name__: f
    for f in (
        reverse_scan, diagonal_scan, halves, recurrent_layers, regularised_layers,
        independent_layers, linear, sparse_layers,
    )
}  # fmt: skip


def main():
    """Prints the instruction set that runs, and each check that passed."""
    print(bl.ops.cpu_capability())
    failed = False
    for name, check in CHECKS.items():
        try:
            check()
            print(name)
        except Exception:
            failed = True
            traceback.print_exc()
    sys.exit(failed)


if __name__ == "__main__":
    main()
