"""Networks with normalization, ours and of flax, and what they compute in NumPy."""

import flax.linen as nn
import numpy as np
from flax import nnx

import fedjax_pfl as fp

WIDTH, CLASSES, EPSILON = 5, 3, 1e-5


class Linen(nn.Module):
    """One hidden layer, normalized."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dense(WIDTH)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = nn.Dropout(0.0, deterministic=not train)(nn.relu(x))
        return nn.Dense(CLASSES, name="head")(x)


class Nnx(nnx.Module):
    """One hidden layer, normalized."""

    def __init__(self, *, rngs):
        self.dense = nnx.Linear(4, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(0.0, rngs=rngs)
        self.output = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.output(self.drop(nnx.relu(self.norm(self.dense(x)))))


MODELS = {
    "ours": fp.MLP(widths=(WIDTH,), normalization="batch"),
    "linen": fp.from_flax(Linen()),
    "nnx": fp.from_flax(Nnx),
}
LAYERS = {  # dense layer, its norm, last layer
    "ours": ("hidden_0", "hidden_0_norm", "head"),
    "linen": ("Dense_0", "BatchNorm_0", "head"),
    "nnx": ("dense", "norm", "output"),
}


def affine(layer, x, transposed):
    """A dense layer in NumPy."""
    kernel = np.asarray(layer["kernel"])
    return x @ (kernel.T if transposed else kernel) + np.asarray(layer["bias"])


def hidden(name, params, x):
    """Outputs of the first layer, before its norm."""
    return affine(params[LAYERS[name][0]], np.asarray(x), name == "ours")


def logits(name, params, x, mean, variance):
    """Outputs of the network that is normalized by these statistics."""
    norm = params[LAYERS[name][1]]
    gain, bias = np.asarray(norm["scale"]), np.asarray(norm["bias"])
    z = (hidden(name, params, x) - mean) / np.sqrt(variance + EPSILON) * gain + bias
    return affine(params[LAYERS[name][2]], np.maximum(z, 0), name == "ours")


def moments(values):
    """Mean and biased variance of rows."""
    return values.mean(axis=0), values.var(axis=0)
