"""Predictors of a method, with their trained parameters."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from fedjax_pfl.core import struct
from fedjax_pfl.core.aliases import Params, Tree

__all__ = ["Predictor"]


@dataclasses.dataclass(frozen=True, eq=False)
class Predictor:
    """A function `x -> outputs` of ONE client, with its trained parameters.

    `Algorithm.predictors` may also return plain functions, which can be evaluated but
    not saved.

    Attributes:
      apply: `(params, x [B, ...]) -> outputs [B, ...]`; only `params` is trained.
      params: `[*P]` trained parameters of a network, or of several networks by name.

    Example:
      >>> predictor = Predictor(lambda params, x: params["slope"] * x, {"slope": 2.0})
      >>> predictor(3.0)
      6.0
    """

    apply: Callable[[Any, Any], Any]
    params: Params

    __post_init__ = struct.check_fields

    def __call__(self, x: Tree) -> jax.Array:
        """Outputs `[B, ...]` for inputs `[B, ...]`."""
        return self.apply(self.params, x)
