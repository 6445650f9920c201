"""Effect of aggregation on clients' models: the paper's "training failure"."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as fp
from experiments.theory import rows, training
from fedjax_pfl import core
from fedjax_pfl.algorithms import phi
from fedjax_pfl.engine import stacking
from fedjax_pfl.figures import drawing

__all__ = ["METHODS", "aggregated", "compared", "failure"]

_LOCAL = fp.SGD(learning_rate=0.1, epochs=2, batch_size=20)
METHODS = {
    # FedAvg that keeps trained models between rounds, in `clients`.
    "FedAvg": fp.FedPlus(
        phi=phi.Indicator(), theta=1.0, lam=1.0, weighting="examples", local=_LOCAL
    ),
    "Fed+": fp.FedPlus.geometric_median(alpha=0.1, rho_quantile=0.5, local=_LOCAL),
}
_CLIENTS, _REPETITIONS = 20, 5
_NETWORK = fp.MLP(widths=(32,))


def failure(options: rows.Options) -> rows.Findings:
    """Measures accuracies along lines from trained models to the aggregate."""
    return compared(
        "fedplus_failure",
        "accuracy on own test examples",
        METHODS,
        _federations(range(min(options.seeds, _REPETITIONS))),
        _NETWORK,
        num_rounds=10 if options.quick else 100,
    )


def compared(
    name: str,
    score: str,
    methods: Mapping[str, fp.FedPlus],
    federations: Sequence[core.Federation],
    model: core.Model,
    num_rounds: int,
) -> rows.Findings:
    """Measures scores along lines from trained models to their aggregate."""
    shares = np.linspace(0, 1, 11)
    findings = rows.Findings(name)
    axes = findings.axes
    for k, (method, algorithm) in enumerate(methods.items()):
        scores = np.stack(
            [
                aggregated(algorithm, federation, seed, num_rounds, shares, model)
                for seed, federation in enumerate(federations)
            ]
        )
        mean, color = scores.mean(axis=0), drawing.COLORS[k]
        # There is no claim: the difference depends on the data.
        text = f"{score}: of trained models (left) and of the new center (right)"
        trained_score = scores[:, 0].mean()
        findings.add(text, {"method": method}, trained_score, scores[:, -1], "")
        spread = scores.std(axis=0, ddof=1) / len(scores) ** 0.5
        axes.errorbar(shares, mean, 2 * spread, color=color, capsize=2, label=method)
        # At lam = 0 a round starts with the trained model, at lam = 1 with the center.
        start = float(algorithm.lam)
        axes.plot(start, np.interp(start, shares, mean), "o", color=color, markersize=8)
    axes.set(xlabel="s: 0 a client's trained model, 1 the new center", ylabel=score)
    title = f"(1 - s) w + s c after {num_rounds} rounds, mean ± 2 standard"
    title += f" errors of {len(federations)} seeds\ndot: where the next round starts"
    return findings.titled(title)


def _federations(seeds: range) -> list[core.Federation]:
    """Builds digits in few classes per client, padded: one program runs all seeds."""
    spec = fp.FederationSpec(
        "digits",
        fp.DirichletLabels(concentration=0.1),
        num_clients=_CLIENTS,
        validation_fraction=0.0,
    )
    federations = [dataclasses.replace(spec, seed=seed).build() for seed in seeds]
    fields, pool = stacking.federation_rows(federations)

    def federation(g: int) -> core.Federation:
        return stacking.join(jax.tree.map(lambda leaf: leaf[g], fields), pool)

    return [federation(g) for g in range(len(seeds))]


def aggregated(
    algorithm: fp.FedPlus,
    federation: core.Federation,
    seed: int,
    num_rounds: int,
    shares: np.ndarray,
    model: core.Model = _NETWORK,
) -> np.ndarray:
    """Returns `[S]` mean scores along lines from clients' models to the new center."""
    process = fp.FederatedProcess(algorithm=algorithm)
    run = training.Training.of(process, federation, model)
    state = _advanced(run, _initial_state(run, training.key(seed)), num_rounds)
    return np.asarray(_scores(run, state, jnp.asarray(shares)))


_initial_state = training.compiled(training.Training.init)
_advanced = training.compiled(training.Training.after)


@training.compiled
def _scores(run: training.Training, state: core.State, shares: jax.Array) -> jax.Array:
    """Returns mean scores `[S]` along the lines to the center."""
    federation, model = run.federation, run.model
    center = state.server.c

    def score(row: Any) -> jax.Array:
        w, fields = row
        data = federation.test.pool().with_rows(fields)
        positions = jnp.arange(data.index.shape[0])
        weight = (positions < data.num_examples).astype(shares.dtype)
        batch = data.gather(positions, weight)

        def at(share: jax.Array) -> jax.Array:
            params = jax.tree.map(lambda a, b: (1 - share) * a + share * b, w, center)
            outputs = model.apply(params, batch.x, constants=batch.constants)
            if isinstance(model, core.SequenceModel):
                return model.sequence_metrics(outputs, batch)[0]["annualized_return"]
            hits = model.metrics(outputs, batch)["accuracy"]
            return jnp.vdot(weight, hits) / weight.sum()

        return jax.vmap(at)(shares)

    return jax.lax.map(score, (state.clients, federation.test.rows())).mean(axis=0)
