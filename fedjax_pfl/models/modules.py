"""Linen modules that own the parameters of our layers.

A network that can be cut names its `layers` before the head, in order, and sows
their outputs into `intermediates/layers`, which is free unless a caller collects them.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl.models import initializers, layers, normalization

__all__ = [
    "LSTM",
    "Conv",
    "ConvNet",
    "Dense",
    "Dropout",
    "Recurrent",
    "ResNet",
    "StandardizedConv",
]

# sqrt(2 / (1 - 1/pi)): the scaled ReLU of a standard normal input has variance 1.
_RELU_GAIN = 1.7139588594436646
_STAGES = ((16, 1), (32, 2), (64, 2))  # filters, stride of the first of two blocks


class Dense(nn.Module):
    """Dense layer with kernel `[out, in]`."""

    outputs: int
    initialization: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, inputs]` to `[B, outputs]`."""
        inputs, scheme = x.shape[-1], self.initialization
        shape = (self.outputs, inputs)
        kernel = self.param(
            "kernel", initializers.weights, shape, inputs, self.outputs, scheme
        )
        bias = self.param("bias", initializers.biases, shape[:1], inputs, scheme)
        return layers.dense(kernel, bias, x)


def _normalized(
    module: nn.Module, kind: str | None, x: jax.Array, layer: str
) -> jax.Array:
    """Normalizes the outputs of a layer, unless the kind is None."""
    if kind is None:
        return x
    is_training = module.has_rng("dropout")
    return normalization.norm(kind, x, is_training=is_training, name=f"{layer}_norm")


class Conv(nn.Module):
    """Convolution with kernel `[size, size, in, out]` and bias."""

    filters: int
    size: int
    padding: int
    initialization: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, height, width, in]` to `[B, height', width', out]`."""
        area, scheme = self.size**2, self.initialization
        inputs = area * x.shape[-1]
        kernel = self.param(
            "kernel",
            initializers.weights,
            (self.size, self.size, x.shape[-1], self.filters),
            inputs,
            area * self.filters,
            scheme,
        )
        bias = self.param("bias", initializers.biases, (self.filters,), inputs, scheme)
        return layers.conv(kernel, bias, x, padding=self.padding)


class StandardizedConv(nn.Module):
    """Convolution with standardized weights, a gain per filter, and no bias."""

    filters: int
    size: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, height, width, in]` to `[B, ceil(height / stride), ..., out]`."""
        shape = (self.size, self.size, x.shape[-1], self.filters)
        inputs = self.size**2 * x.shape[-1]
        # Normal with variance 1 / fan-in; standardization takes the scale away.
        kernel = self.param("kernel", initializers.fan_in_normal, shape, inputs)
        gain = self.param("gain", nn.initializers.ones, (self.filters,))
        return layers.conv(
            layers.standardize(kernel, gain),
            None,
            x,
            stride=self.stride,
            padding=self.size // 2,
        )


class Dropout(nn.Module):
    """Dropout if a key is given, else the identity."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[...]` to `[...]`."""
        if self.rate == 0 or not self.has_rng("dropout"):
            return x
        return layers.dropout(self.make_rng("dropout"), x, self.rate)


class ConvNet(nn.Module):
    """Convolutions, if any, with ReLU and a 2x2 pool, then dense layers with ReLU."""

    convolutions: tuple[tuple[int, int, int], ...]  # (filters, size, padding)
    widths: tuple[int, ...]
    outputs: int
    initialization: str
    input_dropout: float = 0.0  # on the flattened images
    dropout: tuple[float, ...] = ()  # on each hidden layer before its ReLU
    normalization: str | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers before the head."""
        kinds = (("conv", self.convolutions), ("hidden", self.widths))
        return tuple(
            f"{kind}_{number}" for kind, parts in kinds for number in range(len(parts))
        )

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps inputs, such as `[B, height, width(, channels)]`, to `[B, outputs]`."""
        scheme = self.initialization
        if self.convolutions and x.ndim != 4:
            x = x[..., None]
        for number, (filters, size, padding) in enumerate(self.convolutions):
            name = f"conv_{number}"
            x = Conv(filters, size, padding, scheme, name=name)(x)
            x = _normalized(self, self.normalization, x, name)
            x = nn.relu(layers.max_pool(x))  # the same, of fewer values
            self.sow("intermediates", "layers", x)
        x = Dropout(self.input_dropout)(layers.flatten_inputs(x))
        rates = self.dropout or (0.0,) * len(self.widths)
        for number, (width, rate) in enumerate(zip(self.widths, rates, strict=True)):
            name = f"hidden_{number}"
            x = Dense(width, scheme, name=name)(x)
            x = _normalized(self, self.normalization, x, name)
            x = nn.relu(Dropout(rate)(x))
            self.sow("intermediates", "layers", x)
        return Dense(self.outputs, scheme, name="head")(x)


class LSTM(nn.Module):
    """One LSTM layer; PyTorch's scheme takes the width for the fan-in of every leaf."""

    width: int
    initialization: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[time, B, inputs]` to states `[time, B, width]`."""
        width, scheme = self.width, self.initialization

        def kernel(name: str, inputs: int) -> jax.Array:
            fan_in = width if scheme == "pytorch" else inputs
            shape = (4 * width, inputs)
            return self.param(name, initializers.weights, shape, fan_in, width, scheme)

        input_kernel = kernel("input_kernel", x.shape[-1])
        state_kernel = kernel("state_kernel", width)
        bias = self.param("bias", initializers.biases, (4 * width,), width, scheme)
        return layers.lstm(input_kernel, state_kernel, bias, x)


class Recurrent(nn.Module):
    """Stacked LSTM layers, the last step's state, a linear bottleneck, the head."""

    width: int
    num_layers: int
    bottleneck: int | None
    classes: int
    initialization: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps embedded words `[time, B, inputs]` to logits `[B, classes]`."""
        scheme = self.initialization
        for number in range(self.num_layers):
            x = LSTM(self.width, scheme, name=f"lstm_{number}")(x)
        x = x[-1]
        if self.bottleneck is not None:
            x = Dense(self.bottleneck, scheme, name="bottleneck")(x)
        if self.classes != 2:
            return Dense(self.classes, scheme, name="head")(x)
        # Softmax of (0, z) is the sigmoid of z: one output is enough for two classes.
        z = Dense(1, scheme, name="head")(x)
        return jnp.concatenate([jnp.zeros_like(z), z], axis=1)


def _activation(x: jax.Array) -> jax.Array:
    return nn.relu(x) * _RELU_GAIN


class _Block(nn.Module):
    """`shortcut(x) + residual_scale conv_1(act(conv_0(act(x))))`."""

    filters: int
    stride: int
    residual_scale: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps images to images."""
        conv = StandardizedConv
        inner = conv(self.filters, 3, self.stride, name="conv_0")(_activation(x))
        inner = conv(self.filters, 3, name="conv_1")(_activation(inner))
        if inner.shape != x.shape:
            x = conv(self.filters, 1, self.stride, name="shortcut")(x)
        return x + self.residual_scale * inner


class ResNet(nn.Module):
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
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps images `[B, height, width(, channels)]` to logits `[B, outputs]`."""
        x = x if x.ndim == 4 else x[..., None]
        x = nn.relu(StandardizedConv(64, 3, name="stem")(x))
        x = layers.max_pool(x, size=3, stride=2, padding=1)
        self.sow("intermediates", "layers", x)
        for stage, (filters, stride) in enumerate(_STAGES):
            for block, step in enumerate((stride, 1)):
                name = f"stage_{stage}_block_{block}"
                x = _Block(filters, step, self.residual_scale, name=name)(x)
                self.sow("intermediates", "layers", x)
        head = Dense(self.outputs, self.initialization, name="head")
        return head(layers.average_pool(x))
