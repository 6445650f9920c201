"""A residual network without normalization layers."""

import dataclasses

import flax.linen as nn
import jax

from fedjax_pfl import checks
from fedjax_pfl.models import base, layers, modules

__all__ = ["NFResNet18"]

# sqrt(2 / (1 - 1/pi)): the scaled ReLU of a standard normal input has variance 1.
_RELU_GAIN = 1.7139588594436646
_STAGES = ((16, 1), (32, 2), (64, 2))  # filters, stride of the first of two blocks


def _activation(x: jax.Array) -> jax.Array:
    return nn.relu(x) * _RELU_GAIN


class _Block(nn.Module):
    """`shortcut(x) + residual_scale conv_1(act(conv_0(act(x))))`."""

    filters: int
    stride: int
    residual_scale: float

    @nn.compact
    def __call__(self, x):
        conv = modules.StandardizedConv
        inner = conv(self.filters, 3, self.stride, name="conv_0")(_activation(x))
        inner = conv(self.filters, 3, name="conv_1")(_activation(inner))
        if inner.shape != x.shape:
            x = conv(self.filters, 1, self.stride, name="shortcut")(x)
        return x + self.residual_scale * inner


class _ResNet(nn.Module):
    """Stem, three stages of two blocks, global average pool, dense head."""

    outputs: int
    initialization: str
    residual_scale: float

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers before the head."""
        stages = range(len(_STAGES))
        return ("stem", *(f"stage_{s}_block_{b}" for s in stages for b in range(2)))

    @nn.compact
    def __call__(self, x):
        x = x if x.ndim == 4 else x[..., None]
        x = nn.relu(modules.StandardizedConv(64, 3, name="stem")(x))
        x = layers.max_pool(x, size=3, stride=2, padding=1)
        self.sow("intermediates", "layers", x)
        for stage, (filters, stride) in enumerate(_STAGES):
            for block, step in enumerate((stride, 1)):
                name = f"stage_{stage}_block_{block}"
                x = _Block(filters, step, self.residual_scale, name=name)(x)
                self.sow("intermediates", "layers", x)
        head = modules.Dense(self.outputs, self.initialization, name="head")
        return head(layers.average_pool(x))


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
      residual_scale: factor of what a block adds to its input; 0 leaves the input.
    """

    residual_scale: float = 0.2

    def __post_init__(self):
        super().__post_init__()
        checks.number("residual_scale", self.residual_scale)

    def _module(self, classes: int) -> _ResNet:
        return _ResNet(classes, self.initialization, self.residual_scale)
