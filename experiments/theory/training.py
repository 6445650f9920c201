"""Regressions that pages train on, and processes with array leaves."""

from typing import Any

import jax.numpy as jnp

import fedjax_pfl as fp
from fedjax_pfl.core import struct

__all__ = ["regressions", "with_arrays"]


def regressions(num_clients: int, **fields: Any) -> fp.FederationSpec:
    """Returns linear regressions, all examples but one per client for training.

    Args:
      num_clients: N.
      **fields: of the data set `linear_regression`.
    """
    return fp.FederationSpec(
        fp.data.DATASETS["linear_regression"](**fields),
        "by_client",
        num_clients=num_clients,
        validation_fraction=0.0,
        test_fraction=0.0,
    )


def with_arrays(process: fp.FederatedProcess) -> fp.FederatedProcess:
    """Returns a process whose hyperparameters are arrays of JAX's default floats."""
    return struct.as_arrays(process, jnp.zeros(()).dtype)
