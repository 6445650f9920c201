"""Linen modules that own the parameters of our layers.

A network that can be cut names its `layers` before the head, in order, and sows what
each hands on into `intermediates/layers`, which costs nothing where nobody asks.
"""

import flax.linen as nn
import jax

from fedjax_pfl.models import initializers, layers

__all__ = [
    "LSTM",
    "Conv",
    "ConvNet",
    "Dense",
    "DenseNet",
    "Dropout",
    "StandardizedConv",
]


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


class DenseNet(nn.Module):
    """Dense layers with ReLU between them."""

    widths: tuple[int, ...]
    outputs: int
    initialization: str

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers before the head."""
        return tuple(f"hidden_{number}" for number in range(len(self.widths)))

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, ...]` to logits `[B, outputs]`."""
        x = layers.flatten_inputs(x)
        for name, width in zip(self.layers, self.widths, strict=True):
            x = nn.relu(Dense(width, self.initialization, name=name)(x))
            self.sow("intermediates", "layers", x)
        return Dense(self.outputs, self.initialization, name="head")(x)


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
    """Convolution with standardized weights, a gain per filter, and no bias.

    Weights start normal with variance 1/fan_in; standardization takes their scale away.
    """

    filters: int
    size: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, height, width, in]` to `[B, ceil(height / stride), ..., out]`."""
        shape = (self.size, self.size, x.shape[-1], self.filters)
        inputs = self.size**2 * x.shape[-1]
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
    """Dropout where a key is given, nothing otherwise."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[...]` to `[...]`."""
        if self.rate == 0 or not self.has_rng("dropout"):
            return x
        return layers.dropout(self.make_rng("dropout"), x, self.rate)


class ConvNet(nn.Module):
    """Convolutions, each with ReLU and a 2x2 pool, then dense layers with ReLU.

    `convolutions` are `(filters, size, padding)`; `input_dropout` acts on the flattened
    images, `dropout` on each hidden layer before its ReLU.
    """

    convolutions: tuple[tuple[int, int, int], ...]
    widths: tuple[int, ...]
    outputs: int
    initialization: str
    input_dropout: float = 0.0
    dropout: tuple[float, ...] = ()

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers before the head."""
        kinds = (("conv", self.convolutions), ("hidden", self.widths))
        return tuple(
            f"{kind}_{number}" for kind, those in kinds for number in range(len(those))
        )

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps images `[B, height, width(, channels)]` to logits `[B, outputs]`."""
        scheme = self.initialization
        x = x if x.ndim == 4 else x[..., None]
        for number, (filters, size, padding) in enumerate(self.convolutions):
            x = Conv(filters, size, padding, scheme, name=f"conv_{number}")(x)
            x = layers.max_pool(nn.relu(x))
            self.sow("intermediates", "layers", x)
        x = Dropout(self.input_dropout)(layers.flatten_inputs(x))
        rates = self.dropout or (0.0,) * len(self.widths)
        for number, (width, rate) in enumerate(zip(self.widths, rates, strict=True)):
            x = Dense(width, scheme, name=f"hidden_{number}")(x)
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
