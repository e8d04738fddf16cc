"""Networks as lists of layers with their matrix products, for the cost models.

Images are 3 x 224 x 224. ReLU, pooling, norms and biases are left out, as in LayerPipe's count of
clock cycles they are not in the arrays' way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bppsa_lightning.layerpipe.costs import Layer, Product


def convolution(
    name: str, batch: int, inputs: int, outputs: int, kernel: int, size: int, stride: int = 1
) -> Layer:
    """A square convolution, padded so that its output has `size` / stride pixels a side."""
    pixels = batch * (size // stride) ** 2
    weights = inputs * kernel**2
    product = Product(pixels, weights, outputs)
    return Layer(
        name, (product,), weights * outputs, batch * inputs * size**2, pixels * outputs
    )  # fmt: skip


def linear(name: str, rows: int, inputs: int, outputs: int) -> Layer:
    """A linear layer over `rows` vectors."""
    product = Product(rows, inputs, outputs)
    return Layer(name, (product,), inputs * outputs, rows * inputs, rows * outputs)


def joined(name: str, layers: Sequence[Layer], side: Sequence[Layer] = ()) -> Layer:
    """Layers that stay together as a unit; `side` branches off at the unit's input."""
    every = [*layers, *side]
    products = tuple(product for layer in every for product in layer.products)
    weights = sum(layer.weights for layer in every)
    return Layer(name, products, weights, layers[0].inputs, layers[-1].outputs)


def vgg(batch: int, widths: Sequence[Sequence[int]]) -> list[Layer]:
    layers: list[Layer] = []
    channels, size = 3, 224
    for group in widths:
        for width in group:
            name = f"conv{len(layers) + 1}"
            layers.append(convolution(name, batch, channels, width, 3, size))
            channels = width
        size //= 2
    sizes = (channels * size**2, 4096, 4096, 1000)
    for i in range(3):
        layers.append(linear(f"fc{i + 1}", batch, sizes[i], sizes[i + 1]))
    return layers


def vgg11(batch: int) -> list[Layer]:
    return vgg(batch, [[64], [128], [256, 256], [512, 512], [512, 512]])


def vgg16(batch: int) -> list[Layer]:
    return vgg(batch, [[64] * 2, [128] * 2, [256] * 3, [512] * 3, [512] * 3])


def alexnet(batch: int) -> list[Layer]:
    """torchvision's: convolutions on 55, 27 and 13 pixels a side."""
    first = Product(batch * 55**2, 3 * 11**2, 64)
    return [
        Layer("conv1", (first,), 64 * 363, batch * 3 * 224**2, batch * 64 * 55**2),
        convolution("conv2", batch, 64, 192, 5, 27),
        convolution("conv3", batch, 192, 384, 3, 13),
        convolution("conv4", batch, 384, 256, 3, 13),
        convolution("conv5", batch, 256, 256, 3, 13),
        linear("fc1", batch, 9216, 4096),
        linear("fc2", batch, 4096, 4096),
        linear("fc3", batch, 4096, 1000),
    ]


def resnet(batch: int, blocks: Sequence[int], bottleneck: bool) -> list[Layer]:
    """Residual blocks as units; the first convolution and the last layer are units, too."""
    layers = [convolution("conv1", batch, 3, 64, 7, 224, 2)]
    channels, size = 64, 56
    for group, count in enumerate(blocks):
        width = 64 * 2**group
        outputs = 4 * width if bottleneck else width
        for i in range(count):
            stride = 2 if group and not i else 1
            name = f"block{group + 1}.{i + 1}"
            side = []
            if stride != 1 or channels != outputs:
                side = [convolution(f"{name} side", batch, channels, outputs, 1, size, stride)]
            inner = size // stride
            if bottleneck:
                inside = [
                    convolution(name, batch, channels, width, 1, size),
                    convolution(name, batch, width, width, 3, size, stride),
                    convolution(name, batch, width, outputs, 1, inner),
                ]
            else:
                inside = [
                    convolution(name, batch, channels, width, 3, size, stride),
                    convolution(name, batch, width, width, 3, inner),
                ]
            layers.append(joined(name, inside, side))
            channels, size = outputs, inner
    return [*layers, linear("fc", batch, channels, 1000)]


def resnet18(batch: int) -> list[Layer]:
    return resnet(batch, [2, 2, 2, 2], False)


def resnet34(batch: int) -> list[Layer]:
    return resnet(batch, [3, 4, 6, 3], False)


def resnet50(batch: int) -> list[Layer]:
    return resnet(batch, [3, 4, 6, 3], True)


def mlp(batch: int) -> list[Layer]:
    """784 inputs, eleven hidden layers of 1024, 10 outputs."""
    sizes = [784, *[1024] * 11, 10]
    return [linear(f"fc{i + 1}", batch, sizes[i], sizes[i + 1]) for i in range(len(sizes) - 1)]


def transformer(batch: int, steps: int = 128, size: int = 768, heads: int = 12) -> list[Layer]:
    """A transformer encoder of twelve layers, each a unit (as BERT base, 128 tokens)."""
    rows, each = batch * steps, size // heads
    scores = Product(steps, each, steps, batch * heads, weights=False)
    context = Product(steps, steps, each, batch * heads, weights=False)
    parts = [
        linear("qkv", rows, size, 3 * size), linear("out", rows, size, size),
        linear("up", rows, size, 4 * size), linear("down", rows, 4 * size, size),
    ]  # fmt: skip
    unit = joined("encoder", parts)
    unit = unit._replace(products=(*unit.products, scores, context))
    return [unit._replace(name=f"encoder{i + 1}") for i in range(12)]


NETWORKS: dict[str, Callable[[int], list[Layer]]] = {
    "VGG-11": vgg11,
    "VGG-16": vgg16,
    "AlexNet": alexnet,
    "ResNet-18": resnet18,
    "ResNet-34": resnet34,
    "ResNet-50": resnet50,
    "MLP": mlp,
    "Transformer": transformer,
}
