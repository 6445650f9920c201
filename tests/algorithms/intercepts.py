"""Least squares with an intercept: the smallest model of a body and a head."""

import dataclasses

import numpy as np

Pairs = list[tuple[np.ndarray, np.ndarray]]


def with_intercepts(problem) -> tuple:
    """The problem with `bias` as the head and `theta` as the body, and its data."""
    model = dataclasses.replace(problem.model, intercept=True)
    data = problem.federation.train
    rows = [
        np.asarray(index)[:count]
        for index, count in zip(data.index, np.asarray(data.num_examples), strict=True)
    ]
    pairs: Pairs = [(np.asarray(data.x)[r], np.asarray(data.y)[r]) for r in rows]
    return dataclasses.replace(problem, model=model), pairs


def gradients(pair, theta, bias):
    """Gradients of half the mean squared error in `theta [d]` and `bias`."""
    x, y = pair
    error = x @ theta + bias - y
    return x.T @ error / len(y), error.mean()
