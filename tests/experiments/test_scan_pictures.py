"""Pictures of a scan: every gradient is reached, the costs are the plans', no label overlaps."""

from itertools import combinations

import pytest
import torch
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.depth import LayerScan
from bppsa_lightning.planner import Plan
from experiments.train import scan_costs, scan_picture

PLANS = [
    Plan("linear"),
    *(Plan("chunked", chunk=chunk) for chunk in (1, 3, 4, 20)),
    *(Plan("blelloch", levels=levels) for levels in (0, 1, 2, 4)),
]


def known(scan):
    """The states whose gradients are known in the end, each phase using those of the one before."""
    n = len(scan.names)
    found = {n}
    for phase, steps in scan.phases():
        before = set(found)
        for step in steps:
            if step.kind == "vector":
                one_by_one = phase in ("roots", "carry")
                assert step.last + 1 in (found if one_by_one else before), (phase, step)
                found |= set(range(step.first, step.last + 1)[: None if step.count > 1 else 1])
    return found


@pytest.mark.parametrize(
    "T, plan",
    [(T, plan) for T in (1, 2, 11, 16) for plan in PLANS if plan.levels <= (T - 1).bit_length()],
    ids=lambda v: v if isinstance(v, int) else f"{v.algorithm}{v.chunk or v.levels}",
)
def test_the_steps_of_a_plan_reach_every_gradient(T, plan):
    scan = scan_costs.of_plan(plan, T, H=5)
    assert known(scan) == set(range(T + 1))
    assert scan.critical_products <= sum(step.count for step in scan.steps)
    walked = [s for s in scan.steps if s.kind == "vector"]
    assert all(step.flops == 2 * step.count * 5 * 5 for step in walked)
    if plan.algorithm == "linear":
        assert scan.critical_flops == scan.bp_flops == 2 * T * 25


def test_the_hybrid_of_sixteen_steps():
    scan = scan_costs.of_plan(Plan("blelloch", levels=2), 16, H=20)
    counts = {phase: len(steps) for phase, steps in scan.phases()}
    assert counts == {
        "up-sweep 1": 8, "up-sweep 2": 4, "roots": 3, "down-sweep 2": 4, "down-sweep 1": 8,
    }  # fmt: skip
    # Two products, three roots, one step down and a pair.
    assert scan.critical_products == 2 + 3 + 1 + 2


def stack():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 7), nn.Tanh(),
        nn.Linear(7, 3),
    )  # fmt: skip


def scanned(levels, budget=None, needs_input=True):
    model = stack()
    (chain,) = bl.attach(model, "blelloch")
    chain.levels, chain.budget = levels, budget
    model(torch.randn(4, 2, 6, 6, requires_grad=needs_input)).sum().backward()
    return chain


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_the_costs_of_layers_are_their_plans(levels):
    chain = scanned(levels)
    (scan,) = scan_costs.of_chain(chain)
    (layer_scan,) = chain.scans.values()
    assert known(scan) == set(range(8))
    found = {(s.first, s.last): s.flops for s in scan.steps if s.kind == "matrix"}
    multiplied = [node for node in layer_scan.nodes() if node[2].products]
    assert found == {(first, last): made.flops for first, last, made, _ in multiplied}
    assert scan.names == ["conv", "relu", "maxpool", "flatten", "linear1", "tanh", "linear2"]
    dense = {p.shape for p in layer_scan.patterns}
    assert (12, 7) in dense and scan.bp_flops == 2 * sum(p.nnz for p in layer_scan.patterns)


def test_a_layer_whose_input_needs_no_gradient_is_not_in_the_scan():
    (whole,), (shown,) = (
        scan_costs.of_chain(scanned(2, needs_input=needs)) for needs in (True, False)
    )
    assert shown.names == whole.names[1:] and known(shown) == set(range(7))


def test_products_that_are_not_formed_are_no_steps():
    (layer_scan,) = scanned(3).scans.values()
    made = [composition.products for _, _, composition, _ in layer_scan.nodes()]
    largest = max(sum(plan.bytes for _, plan in products) for products in made)
    tight = LayerScan.of(layer_scan.patterns, 3, budget=largest)
    refused = [node for node in tight.nodes() if node[2] is None]
    scan = scan_costs.of_layers(tight, list("abcdefg"))
    assert refused and known(scan) == set(range(8))
    formed = sum(step.kind == "matrix" for step in scan.steps)
    assert formed == sum(bool(made and made.products) for _, _, made, _ in tight.nodes())


def drawn_texts(figure):
    renderer = figure.canvas.get_renderer()
    texts = [t for axes in figure.axes for t in axes.texts] + list(figure.texts)
    texts += [t for axes in figure.axes for t in axes.get_yticklabels() if t.get_visible()]
    shown = [t for t in texts if t.get_text().strip()]
    return [(t.get_text(), t.get_window_extent(renderer)) for t in shown]


@pytest.mark.parametrize(
    "T, plan",
    [(16, p) for p in PLANS] + [(8, PLANS[1]), (60, PLANS[2]), (300, PLANS[-1])],
    ids=lambda v: str(getattr(v, "algorithm", v)),
)
def test_no_label_overlaps_another_or_leaves_the_picture(T, plan):
    figure = scan_picture.draw(scan_costs.of_plan(plan, T, 20), "title")
    figure.canvas.draw()
    texts = drawn_texts(figure)
    for name, box in texts:
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, name
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, name
    assert [(a, b) for (a, x), (b, y) in combinations(texts, 2) if x.overlaps(y)] == []
    scan_picture.plt.close(figure)


def test_any_attached_chain_can_be_drawn():
    layer = nn.GRU(3, 8)
    (recurrent,) = bl.attach(layer, "chunked")
    with pytest.raises(ValueError, match="wanted one that has been called"):
        scan_picture.draw_chain(recurrent)
    layer(torch.randn(32, 2, 3))[0].sum().backward()
    for chain in (recurrent, scanned(2)):
        figure = scan_picture.draw_chain(chain)
        assert figure.axes[0].patches
        scan_picture.plt.close(figure)


def test_what_cannot_be_drawn_is_said():
    with pytest.raises(ValueError, match="found 1000 steps, wanted at most 512"):
        scan_picture.draw(scan_costs.of_plan(Plan("linear"), 1000, 20), "long")
    model = stack()
    (chain,) = bl.attach(model, "blelloch")
    model(torch.randn(4, 2, 6, 6))
    with pytest.raises(ValueError, match="wanted algorithm='blelloch' and a backward"):
        scan_costs.of_chain(chain)
