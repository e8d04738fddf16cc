"""What a layer's three tasks cost: F (forward), D (the input's gradient), G (the weights').

A layer is a list of matrix products; those of D and G have the same three sizes in another order.
Products of an (m, k) and a (k, n) matrix in F are (m, n) by (n, k) in D and (k, m) by (m, n) in G.
A convolution is its im2col product: m = B H' W', k = C_in K K / groups, n = C_out / groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple


@dataclass(frozen=True)
class LayerCost:
    """The costs of one layer for one mini-batch.

    Attributes:
        name: for people.
        forward, input_gradient, weight_gradient: of F, D and G, in cycles, or in seconds.
        output_size, weight_size, input_size: numbers in its output, its weights, its input.
    """

    name: str
    forward: float
    input_gradient: float
    weight_gradient: float
    output_size: float
    weight_size: float
    input_size: float

    @property
    def total(self) -> float:
        return self.forward + self.input_gradient + self.weight_gradient


class Product(NamedTuple):
    """Products of an (m, k) and a (k, n) matrix.

    Attributes:
        copies: how many of them.
        weights: whether the second matrix holds weights; else it is an activation as the first,
            and the gradients of both belong to D.
    """

    m: int
    k: int
    n: int
    copies: int = 1
    weights: bool = True

    @property
    def for_input(self) -> Product:
        return Product(self.m, self.n, self.k, self.copies)

    @property
    def for_weights(self) -> Product:
        return Product(self.k, self.m, self.n, self.copies)


class Layer(NamedTuple):
    """A layer of a network, for a batch.

    Attributes:
        name: for people.
        products: of its forward.
        weights, inputs, outputs: how many numbers each.
    """

    name: str
    products: tuple[Product, ...]
    weights: int
    inputs: int
    outputs: int


Model = Callable[[Product], float]


def macs(product: Product) -> float:
    """Multiply-and-add operations: one cycle each."""
    return float(product.m * product.k * product.n * product.copies)


def systolic(rows: int, columns: int, stationary: str) -> Model:
    """Cycles on a systolic array, by SCALE-Sim's analytical model (arXiv:1811.02883).

    A fold takes 2 R + C + T - 2 cycles. Output-stationary: ceil(m / R) ceil(n / C) folds with
    T = k. Weight-stationary: ceil(k / R) ceil(n / C) folds with T = m. Memory never waits.

    Args:
        rows, columns: R and C.
        stationary: "output" or "weight".
    """
    if stationary not in ("output", "weight"):
        raise ValueError(f"stationary: found {stationary!r}, wanted 'output' or 'weight'")

    def cycles(product: Product) -> float:
        m, k, n, copies, _ = product
        down, along = (m, k) if stationary == "output" else (k, m)
        folds = ceil(down / rows) * ceil(n / columns)
        return float(copies * folds * (2 * rows + columns + along - 2))

    return cycles


def costs_of(layers: Sequence[Layer], model: Model) -> list[LayerCost]:
    """The costs of a network's layers under a model; D of the first layer is not needed."""
    found = []
    for index, layer in enumerate(layers):
        d = [model(p.for_input) for p in layer.products]
        d += [model(p.for_weights) for p in layer.products if not p.weights]
        g = [model(p.for_weights) for p in layer.products if p.weights]
        found.append(
            LayerCost(
                layer.name,
                forward=sum(map(model, layer.products)),
                input_gradient=sum(d) if index else 0.0,
                weight_gradient=sum(g),
                output_size=layer.outputs,
                weight_size=layer.weights,
                input_size=layer.inputs,
            )
        )
    return found
