"""The number f of rows that a rule takes for malicious.

A rule gets it as `num_malicious`, or as `malicious_fraction` of the n rows in use,
rounded as the number of malicious clients of a federation is; without either it is the
largest number for which the rule's guarantee holds.
"""

import dataclasses
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from fedjax_pfl import checks

__all__ = ["Guarantee", "check_fields"]


def check_fields(num_malicious: Any, malicious_fraction: Any) -> None:
    """Checks the two fields of a rule, of which at most one may be given.

    Args:
      num_malicious: `[]` number, or None.
      malicious_fraction: static share in [0, 1], or None.

    Raises:
      InputError: if one is out of range, or both are given.
    """
    checks.number("num_malicious", num_malicious, at_least=0)
    if malicious_fraction is None:
        return
    checks.number("malicious_fraction", malicious_fraction, at_least=0, at_most=1)
    if num_malicious is not None or not isinstance(malicious_fraction, numbers.Real):
        raise checks.InputError(
            "Expected at most one of num_malicious and malicious_fraction, which is a"
            f" Python number, got num_malicious={num_malicious!r} and"
            f" malicious_fraction={malicious_fraction!r}."
        )


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """What a rule promises holds as long as `factor * f + margin <= n`.

    Attributes:
      rule: name of the class, for messages.
      factor: of f.
      margin: what is added.
    """

    rule: str
    factor: int
    margin: int

    def check_cohort(
        self,
        num_malicious: Any,
        malicious_fraction: float | None,
        size: int,
        *,
        needed: bool = True,
    ) -> None:
        """Refuses a number that does not fit K rows; a traced one passes.

        Args:
          num_malicious: `[]` number, or None.
          malicious_fraction: static share, or None.
          size: K, rows per round.
          needed: whether the guarantee must hold; otherwise any f < K is accepted.

        Raises:
          InputError: if it is not whole or too large.
        """
        if isinstance(num_malicious, core.Tracer):
            return
        f = 0.0 if num_malicious is None else float(num_malicious)
        if malicious_fraction is None:
            wanted = f"num_malicious of {self.rule} to be a whole number f"
            got = f"{f:g}"
        else:
            f = round(float(malicious_fraction) * size)
            wanted = f"malicious_fraction of {self.rule} to give a number f"
            got = f"{malicious_fraction:g}, so f={f},"
        fits = self.factor * f + self.margin <= size if needed else f < size
        if f % 1 or not fits:
            bound = f"{self.factor} f + {self.margin} <= K" if needed else "f < K"
            raise checks.InputError(
                f"Expected {wanted} with {bound}, got {got} with K={size} messages per"
                " round."
            )

    def number(
        self,
        num_malicious: Any,
        malicious_fraction: float | None,
        num_valid: jax.Array,
        num_rows: int,
    ) -> jax.Array:
        """The number f among the rows in use.

        Args:
          num_malicious: `[]` number, or None.
          malicious_fraction: static share, or None.
          num_valid: `int32[]` n, rows in use.
          num_rows: K, rows in all.

        Returns:
          `int32[]`; as large as was asked for, even where rows were lost later.
        """
        if malicious_fraction is not None:
            share = float(malicious_fraction)
            counts = [round(share * count) for count in range(num_rows + 1)]
            return jnp.asarray(np.array(counts, np.int32))[num_valid]
        if num_malicious is None:
            return jnp.maximum((num_valid - self.margin) // self.factor, 0)
        return jnp.asarray(num_malicious).astype(jnp.int32)
