"""Random crops and flips of a whole batch of images at once.

Dimension letters: B images, C colours, H rows, W columns.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import get_worker_info


class CropAndFlip:
    """Shifts each image by up to `padding` pixels, and mirrors half of them.

    Each image is drawn for itself, as by torchvision's ``RandomCrop(size, padding)`` and
    ``RandomHorizontalFlip``: the usual augmentation of CIFAR-10 (He, Zhang, Ren, Sun,
    arXiv:1512.03385, section 4.2).

    Args:
        padding: pixels added on each side before the crop to the old size.
        flip: whether half of the images are mirrored left to right.
        fill: what the added pixels hold, (C,).
        seed: of the draws; in a worker process of a ``DataLoader`` they follow its own seed.
    """

    def __init__(self, padding: int, flip: bool, fill: Tensor, seed: int) -> None:
        self.padding, self.flip = padding, flip
        self.fill = fill.view(-1, 1, 1)
        self.seed = seed
        self._generator: torch.Generator | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Returns other images of the same shape, (B, C, H, W)."""
        images, colours, height, width = x.shape
        rows = self._draw(2 * self.padding + 1, images) + torch.arange(height)
        columns = self._draw(2 * self.padding + 1, images) + torch.arange(width)
        if self.flip:
            columns = torch.where(self._draw(2, images) == 1, columns.flip(1), columns)
        padded = pad(x - self.fill, [self.padding] * 4) + self.fill
        return padded[
            torch.arange(images).view(-1, 1, 1, 1),
            torch.arange(colours).view(-1, 1, 1),
            rows.view(images, 1, height, 1),
            columns.view(images, 1, 1, width),
        ]

    def _draw(self, high: int, images: int) -> Tensor:
        """Integers from 0 to high - 1, (B, 1)."""
        if get_worker_info() is None and self._generator is None:
            self._generator = torch.Generator().manual_seed(self.seed)
        # The workers hold copies of this object: a generator of its own would draw the same in
        # each. The loader has seeded the global one of each worker.
        generator = None if get_worker_info() else self._generator
        return torch.randint(high, (images, 1), generator=generator)
