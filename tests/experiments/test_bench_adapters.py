"""The bench of adapters of a frozen network."""

import jax
import numpy as np
import pytest

from experiments.bench import adapters, catalog

TINY = adapters.adapted(
    3, 6, widths=(8, 7), rank=2, batch_size=4, shape=(4, 4), rounds=2
)


def test_the_frozen_products_are_of_all_clients_and_layers():
    shapes = [kernel.shape for kernel, _ in TINY.frozen()]
    assert shapes == [(8, 16), (7, 8), (10, 7)]
    contender = TINY.contender("frozen")
    contender.run()
    assert contender.result().shape == (3 * 4, 16)  # a step's examples of all clients


def test_operations_are_counted():
    frozen = 2 * 16 * 8 + 2 * (2 * 8 * 7 + 2 * 7 * 10)  # forward, and back to inputs
    factors = 2 * (2 * 16 * 2) + 3 * (2 * 2 * 8 + 2 * 8 * 2 + 2 * 2 * 7)
    assert TINY.flops_per_example == frozen + factors
    assert catalog.find("W7").num_points == 1


def test_pytorch_s_loop_trains_the_same_factors():
    pytest.importorskip("torch")
    with jax.enable_x64(False):
        found = TINY.differences(["torch"])
    # A few hundred float32 operations on the largest factor.
    assert found["torch"] < 500 * np.finfo(np.float32).eps
