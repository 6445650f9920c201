"""Derivatives of trainings through what models keep, by central differences."""

import jax
import numpy as np

import fedjax_pfl as fp
from fedjax_pfl.testing import toy


def check_in_lam(key: jax.Array, model, local, *, at_least: float) -> None:
    """Checks FLAME's derivative in lam, which is at least so large."""

    def at(lam):
        found = fp.hypergradients(
            key,
            fp.FederatedProcess(algorithm=fp.Flame(lam=lam, local=local)),
            model,
            toy.make_federation(),
            "algorithm.lam",
            3,
            objective="validation:loss:personal",
            evaluate_on="validation",
            eval_every=3,
            execution="vmap",
            progress=False,
        )
        return float(found.value[0]), float(found.derivatives["algorithm.lam"][0])

    (above, _), (below, _), (_, slope) = (at(0.5 + step) for step in (1e-4, -1e-4, 0))
    # Rounding over twice the step, and the step's square, on values of order one.
    np.testing.assert_allclose(slope, (above - below) / 2e-4, rtol=1e-5, atol=1e-8)
    assert abs(slope) > at_least
