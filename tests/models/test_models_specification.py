"""Whole networks against their specification, written in NumPy, SciPy and XLA."""

import dataclasses

import jax
import numpy as np
import pytest
from jax import lax
from scipy import signal

from tests.models.test_models import evaluated, small


def test_cnn_is_the_network_of_the_specification():
    """With SciPy's correlation, one image, channel and filter at a time."""
    model, params, batch = small("cnn1")

    def conv_relu_pool(x, kernel, bias):
        maps = []
        for number in range(kernel.shape[3]):
            total = sum(
                signal.correlate2d(x[..., c], kernel[..., c, number], mode="valid")
                for c in range(kernel.shape[2])
            )
            maps.append(np.maximum(total + bias[number], 0))
        rows, columns = maps[0].shape[0] // 2, maps[0].shape[1] // 2
        cut = np.stack(maps, axis=2)[: 2 * rows, : 2 * columns]
        return cut.reshape(rows, 2, columns, 2, -1).max(axis=(1, 3))

    for x, found in zip(batch.x, evaluated(model, params, batch.x), strict=True):
        x = np.asarray(x)
        for layer in ("conv_0", "conv_1"):
            x = conv_relu_pool(x, **params[layer])
        x = x.reshape(-1)
        hidden, head = params["hidden_0"], params["head"]
        x = np.maximum(hidden["kernel"] @ x + hidden["bias"], 0)
        wanted = head["kernel"] @ x + head["bias"]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def ws_conv(layer, x, stride, padding):
    kernel = layer["kernel"]
    fan_in = np.prod(kernel.shape[:3])
    mean, deviation = kernel.mean((0, 1, 2)), kernel.std((0, 1, 2))
    weights = layer["gain"] * (kernel - mean) / (deviation + 1e-5) / np.sqrt(fan_in)
    return np.asarray(
        lax.conv_general_dilated(
            x,
            weights,
            (stride, stride),
            [(padding, padding)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
    )


def resnet_of_the_specification(params, x, scale):
    x = np.maximum(ws_conv(params["stem"], x, 1, 1), 0)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))  # after a ReLU 0 never wins
    rows, columns = ((length - 1) // 2 + 1 for length in x.shape[1:3])
    x = np.zeros((len(x), rows, columns, 64))
    for row, column in np.ndindex(rows, columns):
        window = padded[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
        x[:, row, column] = window.max(axis=(1, 2))
    for name, stride in (("0", 1), ("1", 2), ("2", 2)):
        for block in ("0", "1"):
            layers = params[f"stage_{name}_block_{block}"]
            step = stride if block == "0" else 1
            inner = 1.7139588594436646 * np.maximum(x, 0)
            inner = ws_conv(layers["conv_0"], inner, step, 1)
            inner = 1.7139588594436646 * np.maximum(inner, 0)
            inner = ws_conv(layers["conv_1"], inner, 1, 1)
            if block == "0":
                x = ws_conv(layers["shortcut"], x, step, 0)
            x = x + scale * inner
    head = params["head"]
    return x.mean((1, 2)) @ head["kernel"].T + head["bias"]


@pytest.mark.parametrize("scale", [0.2, 0.0])
def test_resnet_is_the_network_of_the_specification(scale):
    model, params, batch = small("nf_resnet18")
    model = dataclasses.replace(model, residual_scale=scale)
    params = jax.tree.map(lambda leaf: leaf + 0.1 * (leaf == 1), params)
    found = evaluated(model, params, batch.x)
    x = np.asarray(batch.x)[..., None]
    wanted = resnet_of_the_specification(params, x, scale)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)
