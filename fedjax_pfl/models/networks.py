"""Dense, convolutional and residual networks.

All but the residual one are lists of layers for `modules.ConvNet`: convolutions with
ReLU and a 2x2 pool, then dense layers; layers are named `conv_<i>`, `hidden_<i>` and
`head`. Counts are weights and biases.
"""

import abc
import dataclasses
from types import ModuleType
from typing import Any, ClassVar, Literal

from fedjax_pfl.core import checks, struct
from fedjax_pfl.models import base

__all__ = [
    "CNN",
    "CNN1",
    "CNN2",
    "MLP",
    "CifarCNN",
    "FedAcsCNN",
    "LeNet5",
    "NFResNet18",
    "SmallCNN",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Layered(base.Network):
    """A network of `convolutions`, `(filters, size, padding)`, and dense `widths`.

    Attributes:
      normalization: of convolutions and hidden layers before their ReLU, `"batch"`,
        `"group"` or `"layer"`, or None. Leaves `<layer>_norm/{scale,bias}`.
    """

    convolutions: ClassVar[tuple[tuple[int, int, int], ...]] = ()
    normalization: Literal["batch", "group", "layer"] | None = None

    @property
    @abc.abstractmethod
    def widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""

    def _module(self, modules: ModuleType, classes: int, **options: Any) -> Any:
        return modules.ConvNet(
            convolutions=self.convolutions,
            widths=self.widths,
            outputs=classes,
            initialization=self.initialization,
            normalization=self.normalization,
            **options,
        )


class _ConvNetwork(_Layered, base.ImageNetwork):
    """A network of images, with fixed layers."""

    widths: ClassVar[tuple[int, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLP(_Layered):
    """Multilayer perceptron with ReLU; 784-128-64-10 has 109,386 parameters.

    Layers `hidden_<i>` (the body) and `head`. With `widths=(200, 200)` 199,210.

    Attributes:
      widths: hidden widths, each at least 1.
    """

    widths: tuple[int, ...] = struct.static_field(default=(128, 64), at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CNN(_ConvNetwork):
    """FLAME's network for CIFAR-10: 268,650 parameters on 32x32x3 with 10 classes.

    3x3 convolutions with 16 and 32 filters, padded by 1; dense 128.
    """

    smallest: ClassVar[int] = 4
    convolutions: ClassVar = ((16, 3, 1), (32, 3, 1))
    widths: ClassVar = (128,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallCNN(_ConvNetwork):
    """A network for many trainings: 67,642 parameters on 32x32x3 with 10 classes.

    3x3 convolutions with 8 and 16 filters, padded by 1; dense 64. A gradient takes a
    third of the operations of `CNN`.
    """

    smallest: ClassVar[int] = 4
    convolutions: ClassVar = ((8, 3, 1), (16, 3, 1))
    widths: ClassVar = (64,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CNN1(_ConvNetwork):
    """FLAME's network for medical images: 206,678 parameters on 64x64x3 with 6 classes.

    3x3 convolutions with 32 and 16 filters, unpadded; dropout; dense 64.

    Attributes:
      dropout: rate on the flattened images, in [0, 1).
    """

    smallest: ClassVar[int] = 10
    convolutions: ClassVar = ((32, 3, 0), (16, 3, 0))
    widths: ClassVar = (64,)
    dropout: float = struct.static_field(default=0.2, at_least=0, below=1)

    def _module(self, modules: ModuleType, classes: int) -> Any:
        return super()._module(modules, classes, input_dropout=self.dropout)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CNN2(_ConvNetwork):
    """FLAME's network for FEMNIST: 51,466 parameters on 28x28 with 10 classes.

    A 7x7 convolution with 32 filters, padded by 3, a 3x3 one with 64, padded by 1; no
    hidden dense layer. The authors give it 62 outputs whatever the classes: 214,590.

    Attributes:
      outputs: number of outputs, at least C; None for C.
    """

    smallest: ClassVar[int] = 4
    convolutions: ClassVar = ((32, 7, 3), (64, 3, 1))
    widths: ClassVar = ()
    outputs: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.outputs is not None:
            checks.whole("outputs", self.outputs, at_least=self.num_classes or 1)

    def _module(self, modules: ModuleType, classes: int) -> Any:
        return super()._module(modules, self.outputs or classes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAcsCNN(_ConvNetwork):
    """FedACS's network: 582,026 parameters on 28x28, 878,538 on 32x32x3.

    5x5 convolutions with 32 and 64 filters, unpadded; dense 512.
    """

    smallest: ClassVar[int] = 16
    convolutions: ClassVar = ((32, 5, 0), (64, 5, 0))
    widths: ClassVar = (512,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CifarCNN(_ConvNetwork):
    """FedPG's network for CIFAR-10: 797,962 parameters on 32x32x3.

    5x5 convolutions with 64 filters each, unpadded; dense 384 and 192, each with
    dropout before its ReLU.

    Attributes:
      dropout: rates on the two hidden layers, in [0, 1).
    """

    smallest: ClassVar[int] = 16
    convolutions: ClassVar = ((64, 5, 0), (64, 5, 0))
    widths: ClassVar = (384, 192)
    dropout: tuple[float, float] = struct.static_field(
        default=(0.2, 0.5), at_least=0, below=1
    )

    def _module(self, modules: ModuleType, classes: int) -> Any:
        return super()._module(modules, classes, dropout=self.dropout)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeNet5(_ConvNetwork):
    """LeNet-5 with ReLU and max pools: 62,006 parameters on 32x32x3.

    5x5 convolutions with 6 and 16 filters, unpadded; dense 120 and 84.
    """

    smallest: ClassVar[int] = 16
    convolutions: ClassVar = ((6, 5, 0), (16, 5, 0))
    widths: ClassVar = (120, 84)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NFResNet18(base.ImageNetwork):
    """FedPG's normalizer-free ResNet: 189,844 parameters on 3 channels, 100 classes.

    Weight-standardized convolutions without biases: a 3x3 stem with 64 filters, ReLU,
    a 3x3 pool of stride 2, three stages of two pre-activation blocks with 16, 32 and 64
    filters, global average pool, `head`. Leaves `stem/...` and
    `stage_<i>_block_<j>/{conv_0,conv_1,shortcut}/{kernel,gain}`. Standardization takes
    the scale of the convolutions' weights away; they start normal with variance
    1/fan_in, and `initialization` is the head's.

    Attributes:
      residual_scale: factor of the branch added to the input; 0 leaves the input.
    """

    residual_scale: float = struct.traced_field(default=0.2)

    def _module(self, modules: ModuleType, classes: int) -> Any:
        return modules.ResNet(classes, self.initialization, self.residual_scale)
