"""Initial values of weights and biases, by the name of the scheme."""

from typing import Literal

import jax

__all__ = [
    "Scheme",
    "biases",
    "fan_in_normal",
    "fan_in_uniform",
    "layer",
    "weights",
]

Scheme = Literal["pytorch", "glorot", "he"]
"""Name of a model's `initialization`."""


def fan_in_uniform(key: jax.Array, shape: tuple[int, ...], inputs: int) -> jax.Array:
    """Draws uniformly in +-1/sqrt(inputs), in the default float type."""
    bound = inputs**-0.5
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def fan_in_normal(key: jax.Array, shape: tuple[int, ...], inputs: int) -> jax.Array:
    """Draws a normal leaf with variance 1/inputs, in the default float type."""
    return inputs**-0.5 * jax.random.normal(key, shape)


def weights(
    key: jax.Array, shape: tuple[int, ...], inputs: int, outputs: int, scheme: str
) -> jax.Array:
    """Draws weights, for fan-in `inputs` and fan-out `outputs`, in the float type."""
    # Variances of 2 / inputs, 2 / (inputs + outputs), or 1 / (3 inputs).
    if scheme == "he":
        return 2**0.5 * fan_in_normal(key, shape, inputs)
    if scheme == "glorot":
        bound = (6 / (inputs + outputs)) ** 0.5
        return jax.random.uniform(key, shape, minval=-bound, maxval=bound)
    return fan_in_uniform(key, shape, inputs)


def biases(
    key: jax.Array, shape: tuple[int, ...], inputs: int, scheme: str
) -> jax.Array:
    """Draws biases: like the weights for `"pytorch"`, zeros for the other schemes."""
    drawn = fan_in_uniform(key, shape, inputs)
    return drawn if scheme == "pytorch" else 0 * drawn


def layer(
    key: jax.Array, shape: tuple[int, ...], inputs: int, outputs: int, scheme: str
) -> dict[str, jax.Array]:
    """Draws kernel and bias of a dense layer; a kernel `[inputs]` has a bias `[]`."""
    kernel_key, bias_key = jax.random.split(key)
    return {
        "kernel": weights(kernel_key, shape, inputs, outputs, scheme),
        "bias": biases(bias_key, shape[:-1], inputs, scheme),
    }
