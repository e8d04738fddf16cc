"""Random inputs of given sizes: "16,1000,20", "16,1000:float64", "16:int64:10"."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa_lightning.cli.answer import WrongUsage

DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")
}
MOST_BYTES = 1 << 36  # more is a slip of the finger


@dataclass(frozen=True)
class Input:
    """One argument of forward.

    Attributes:
        sizes: of its dimensions. dtype: of it.
        limit: whole numbers are drawn below it.
    """

    sizes: tuple[int, ...]
    dtype: torch.dtype
    limit: int = 2

    def __str__(self) -> str:
        sizes = " x ".join(map(str, self.sizes))
        below = f" below {self.limit}" if not self.dtype.is_floating_point else ""
        return f"{sizes} {str(self.dtype).removeprefix('torch.')}{below}"

    def draw(self, device: str) -> Tensor:
        """Normal numbers, or whole ones below the limit."""
        if self.dtype.is_floating_point:
            return torch.randn(self.sizes, device="cpu").to(device, self.dtype)
        return torch.randint(self.limit, self.sizes, device="cpu").to(device, self.dtype)


def parsed(text: str) -> Input:
    """One `--input`.

    Raises:
        WrongUsage: it is none.
    """
    sizes, _, rest = text.partition(":")
    dtype, _, limit = rest.partition(":")
    try:
        numbers = tuple(int(size) for size in sizes.split(","))
    except ValueError:
        raise WrongUsage(f"--input: found {text!r}, wanted sizes as in 16,1000,20") from None
    if min(numbers) < 1:
        raise WrongUsage(f"--input: found the size {min(numbers)} in {text!r}, wanted at least 1")
    if (dtype := dtype or "float32") not in DTYPES:
        wanted = ", ".join(DTYPES)
        raise WrongUsage(f"--input: found the dtype {dtype!r} in {text!r}, wanted one of {wanted}")
    found = Input(numbers, DTYPES[dtype], _limit(text, limit, DTYPES[dtype]))
    if (wanted_bytes := math.prod(numbers) * found.dtype.itemsize) > MOST_BYTES:
        raise WrongUsage(f"--input: {text!r} would take {wanted_bytes / 2**30:,.0f} GiB")
    return found


def _limit(text: str, limit: str, dtype: torch.dtype) -> int:
    if not limit:
        return 2
    if dtype.is_floating_point or dtype == torch.bool:
        raise WrongUsage(f"--input: found a limit in {text!r}, wanted one with int64 or int32 only")
    if not limit.isdecimal() or int(limit) < 1:
        raise WrongUsage(f"--input: found the limit {limit!r} in {text!r}, wanted a whole number")
    return int(limit)
