"""Coefficients that are not negative, by least squares of relative errors."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Equation = tuple[Sequence[float], float]  # terms, and what their sum should come to


def fit(equations: Sequence[Equation]) -> tuple[list[float], float]:
    """The coefficients c >= 0 whose Σ terms·c come closest to the values, and how close.

    Returns:
        The coefficients, to four digits; and the norm of the relative errors.
    """
    terms = np.array([terms for terms, _ in equations], dtype=np.float64)
    values = np.array([value for _, value in equations], dtype=np.float64)
    found, error = nnls(terms / values[:, None], np.ones(len(values)))
    return [float(f"{c:.4g}") for c in found], error


def nnls(A: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """min |Ax - b| over x >= 0; and that norm. Lawson and Hanson, Solving Least Squares Problems,
    chapter 23: columns enter one by one while they help, and leave where they turn negative."""
    scale = np.linalg.norm(A, axis=0)
    scale[scale == 0] = 1.0
    A = A / scale  # terms of any size weigh alike
    columns = A.shape[1]
    x, used = np.zeros(columns), np.zeros(columns, dtype=bool)
    for _ in range(10 * columns):
        gradient = A.T @ (b - A @ x)
        gradient[used] = -np.inf
        if used.all() or gradient.max() <= 1e-10:
            break
        used[gradient.argmax()] = True
        while True:
            trial = np.zeros(columns)
            trial[used] = np.linalg.lstsq(A[:, used], b, rcond=None)[0]
            negative = used & (trial <= 0)
            if not negative.any():
                break
            share = (x[negative] / (x[negative] - trial[negative])).min()
            x = x + share * (trial - x)
            used &= x > 1e-12
            x[~used] = 0.0
        x = trial
    return x / scale, float(np.linalg.norm(A @ x - b))
