"""Random crops and flips of a whole batch of images at once.

Dimension letters: B images, C colours, H rows, W columns.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from .resumable import batch_generator


class CropAndFlip:
    """Shifts each image by up to `padding` pixels, and mirrors half of them.

    Each image is drawn for itself, as by torchvision's ``RandomCrop(size, padding)`` and
    ``RandomHorizontalFlip``: the usual augmentation of CIFAR-10 (He, Zhang, Ren, Sun,
    arXiv:1512.03385, section 4.2).

    Args:
        padding: pixels added on each side before the crop to the old size.
        flip: whether half of the images are mirrored left to right.
        fill: what the added pixels hold, (C,).
    """

    def __init__(self, padding: int, flip: bool, fill: Tensor) -> None:
        self.padding, self.flip = padding, flip
        self.fill = fill.view(-1, 1, 1)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Returns other images of the same shape, (B, C, H, W)."""
        images, colours, height, width = x.shape

        def draw(high: int) -> Tensor:
            return torch.randint(high, (images, 1), generator=generator)

        rows = draw(2 * self.padding + 1) + torch.arange(height)
        columns = draw(2 * self.padding + 1) + torch.arange(width)
        if self.flip:
            columns = torch.where(draw(2) == 1, columns.flip(1), columns)
        padded = pad(x - self.fill, [self.padding] * 4) + self.fill
        return padded[
            torch.arange(images).view(-1, 1, 1, 1),
            torch.arange(colours).view(-1, 1, 1),
            rows.view(images, 1, height, 1),
            columns.view(images, 1, 1, width),
        ]


class RandomChange:
    """Changes batches at random: each epoch otherwise, and a resumed one as it would have been.

    Args:
        change: makes other images of a batch's, with random numbers of a generator.
        seed: of all of them.
        epoch: () int64, shared with worker processes; the present one.
    """

    def __init__(self, change: CropAndFlip, seed: int, epoch: Tensor) -> None:
        self.change, self.seed, self.epoch = change, seed, epoch

    def __call__(self, x: Tensor, indices: list[int]) -> Tensor:
        """Returns other images of the same shape, (B, C, H, W)."""
        return self.change(x, batch_generator(self.seed, self.epoch, indices))
