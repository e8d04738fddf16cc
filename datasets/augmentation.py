"""Random crops and flips of a whole batch of images at once.

Dimension letters: B images, C colours, H rows, W columns, N images of the data set.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from .epochs import augmentation_draws

_KINDS = 3  # of draws: rows, columns, flip


class CropAndFlip:
    """Shifts each image by up to `padding` pixels, and mirrors half of them.

    Each image is drawn for itself, as by torchvision's ``RandomCrop(size, padding)`` and
    ``RandomHorizontalFlip``: the usual augmentation of CIFAR-10 (He, Zhang, Ren, Sun,
    arXiv:1512.03385, section 4.2). What is drawn depends on the seed, the epoch and the image
    alone: not on the batch, the process, or what was drawn before.

    Args:
        padding: pixels added on each side before the crop to the old size.
        flip: whether half of the images are mirrored left to right.
        fill: what the added pixels hold, (C,).
        seed: of the draws.
        samples: N.
    """

    def __init__(self, padding: int, flip: bool, fill: Tensor, seed: int, samples: int) -> None:
        self.padding, self.flip = padding, flip
        self.fill = fill.view(-1, 1, 1)
        self.seed, self.samples = seed, samples
        self._epoch: int | None = None
        self._draws = np.empty((0, _KINDS), np.uint64)  # of that epoch, (N, kinds)

    def __call__(self, x: Tensor, numbers: list[int]) -> Tensor:
        """Returns other images of the same shape, (B, C, H, W).

        Args:
            x: the images.
            numbers: ``epoch * N + index`` of each.
        """
        images, colours, height, width = x.shape
        down, right, mirrored = self._drawn(numbers).unsqueeze(-1).unbind(1)
        shifts = 2 * self.padding + 1
        rows = down % shifts + torch.arange(height)
        columns = right % shifts + torch.arange(width)
        if self.flip:
            columns = torch.where(mirrored % 2 == 1, columns.flip(1), columns)
        padded = pad(x - self.fill, [self.padding] * 4) + self.fill
        return padded[
            torch.arange(images).view(-1, 1, 1, 1),
            torch.arange(colours).view(-1, 1, 1),
            rows.view(images, 1, height, 1),
            columns.view(images, 1, 1, width),
        ]

    def _drawn(self, numbers: list[int]) -> Tensor:
        """Integers from 0 to 2**63 - 1, (B, kinds)."""
        epochs, indices = np.divmod(np.array(numbers), self.samples)
        drawn = np.empty((len(numbers), _KINDS), np.uint64)
        for epoch in np.unique(epochs).tolist():
            drawn[epochs == epoch] = self._table(epoch)[indices[epochs == epoch]]
        return torch.from_numpy((drawn >> 1).astype(np.int64))

    def _table(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            self._draws = augmentation_draws(self.samples, _KINDS, self.seed, epoch)
            self._epoch = epoch
        return self._draws
