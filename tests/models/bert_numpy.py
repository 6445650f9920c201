"""BERT's encoder in NumPy, 64 bits, straight from its published description."""

import numpy as np
from scipy import special


def random_weights(rng, depth=2, width=6, mlp_width=10, words=11, positions=8):
    """Weights by their published names, every one of them different from zero."""

    def normal(*shape):
        return rng.normal(size=shape)

    def norm(name):
        return {
            f"{name}.weight": 1 + 0.1 * normal(width),
            f"{name}.bias": normal(width),
        }

    def dense(name, outputs, inputs):
        return {
            f"{name}.weight": normal(outputs, inputs) / inputs**0.5,
            f"{name}.bias": normal(outputs),
        }

    weights = {
        "embeddings.word_embeddings.weight": normal(words, width),
        "embeddings.position_embeddings.weight": normal(positions, width),
        "embeddings.token_type_embeddings.weight": normal(2, width),
        **norm("embeddings.LayerNorm"),
    }
    for number in range(depth):
        layer = f"encoder.layer.{number}"
        for name in ("query", "key", "value"):
            weights |= dense(f"{layer}.attention.self.{name}", width, width)
        weights |= dense(f"{layer}.attention.output.dense", width, width)
        weights |= norm(f"{layer}.attention.output.LayerNorm")
        weights |= dense(f"{layer}.intermediate.dense", mlp_width, width)
        weights |= dense(f"{layer}.output.dense", width, mlp_width)
        weights |= norm(f"{layer}.output.LayerNorm")
    return weights


def hidden_states(weights, tokens, heads, padding=0):
    """States of every text after the embeddings and after every layer.

    One text at a time, of its own tokens alone: padding at the end is cut off instead
    of masked. Returns, by text, a list of arrays `[tokens, width]`.
    """
    return [_of_text(weights, row[row != padding], heads) for row in tokens]


def attention(queries, keys, values, heads):
    """Mixed values of all heads, `[tokens, width]`."""
    parts = (np.split(x, heads, axis=1) for x in (queries, keys, values))
    mixed = [
        special.softmax(query @ key.T / np.sqrt(query.shape[1]), axis=1) @ value
        for query, key, value in zip(*parts, strict=True)
    ]
    return np.concatenate(mixed, axis=1)


def gelu(x):
    """By the normal distribution function."""
    return x * special.ndtr(x)


def _of_text(weights, tokens, heads):
    def dense(name, x):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name, x):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x = (
        weights["embeddings.word_embeddings.weight"][tokens]
        + weights["embeddings.position_embeddings.weight"][: len(tokens)]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    x = norm("embeddings.LayerNorm", x)
    states, number = [x], 0
    while f"encoder.layer.{number}.output.dense.weight" in weights:
        layer = f"encoder.layer.{number}"
        parts = (
            dense(f"{layer}.attention.self.{name}", x)
            for name in ("query", "key", "value")
        )
        mixed = attention(*parts, heads)
        mixed = dense(f"{layer}.attention.output.dense", mixed)
        x = norm(f"{layer}.attention.output.LayerNorm", x + mixed)
        wide = gelu(dense(f"{layer}.intermediate.dense", x))
        x = norm(f"{layer}.output.LayerNorm", x + dense(f"{layer}.output.dense", wide))
        states.append(x)
        number += 1
    return states
