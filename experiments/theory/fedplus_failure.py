"""Effect of aggregation on clients' models: the paper's "training failure"."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_pfl as fp
from experiments.theory import fedplus_quadratics, rows, training
from fedjax_pfl import core
from fedjax_pfl.algorithms import phi
from fedjax_pfl.core import struct
from fedjax_pfl.figures import drawing

__all__ = ["METHODS", "Aggregated", "Question", "aggregated", "compared", "failure"]

_LOCAL = fp.SGD(learning_rate=0.1, epochs=2, batch_size=20)
METHODS = {
    # FedAvg whose trained models are kept: `clients`, between rounds.
    "FedAvg": fp.FedPlus(
        phi=phi.Indicator(), theta=1.0, lam=1.0, weighting="examples", local=_LOCAL
    ),
    "Fed+": fp.FedPlus.geometric_median(alpha=0.1, rho_quantile=0.5, local=_LOCAL),
}
_ABSORBED = 1e-300  # a step size that leaves every parameter as it is
_CLIENTS, _REPETITIONS = 20, 5
_NETWORK = fp.MLP(widths=(32,))


@dataclasses.dataclass(frozen=True)
class Aggregated:
    """Effect of an aggregation.

    Attributes:
      score: `[S]` accuracy on own test examples, or annualized return of a portfolio,
        mean over clients, along the line from a client's model to the new center.
      distance: mean over clients from its model to the new center.
      jump: mean over clients from its model to where the next round starts.
    """

    score: np.ndarray
    distance: float
    jump: float


def failure(options: rows.Options) -> rows.Findings:
    """Measures accuracy from trained models to the aggregate."""
    seeds = range(min(options.seeds, _REPETITIONS))
    return compared(
        Question(
            name="fedplus_failure",
            score="accuracy on own test examples",
            methods=METHODS,
            federations=_federations(seeds),
            num_rounds=10 if options.quick else 100,
            model=_NETWORK,
        )
    )


@dataclasses.dataclass(frozen=True)
class Question:
    """Comparison of methods: what aggregation does to clients' models.

    Attributes:
      name: of the figure.
      score: what is measured, in words.
      methods: whose `clients` are trained models, by name.
      federations: one per seed.
      num_rounds: R.
      model: what is trained.
    """

    name: str
    score: str
    methods: Mapping[str, fp.FedPlus]
    federations: Sequence[core.Federation]
    num_rounds: int
    model: Any


def compared(question: Question) -> rows.Findings:
    """Measures scores from trained models to the aggregate, and where rounds start."""
    shares = np.linspace(0, 1, 11)
    figure, axes = rows.panel()
    statements: list[rows.Row] = []
    for k, (name, algorithm) in enumerate(question.methods.items()):
        cases = [
            aggregated(
                algorithm, federation, seed, question.num_rounds, shares, question.model
            )
            for seed, federation in enumerate(question.federations)
        ]
        scores = np.stack([case.score for case in cases])
        # Nothing is claimed of data that are what they are.
        statements += [
            rows.mean_row(
                f"{question.score}: of trained models (left) and of the new center"
                " (right)",
                {"method": name},
                scores[:, 0].mean(),
                scores[:, -1],
                relation="",
            ),
            jump_row(name, algorithm, cases),
        ]
        mean, color = scores.mean(axis=0), drawing.COLORS[k]
        spread = scores.std(axis=0, ddof=1) / len(cases) ** 0.5
        axes.errorbar(shares, mean, 2 * spread, color=color, capsize=2, label=name)
        # Without lam a round starts with the trained model, at lam = 1 with the center.
        start = float(algorithm.lam)
        axes.plot(start, np.interp(start, shares, mean), "o", color=color, markersize=8)
    xlabel = "s: 0 a client's trained model, 1 the new center"
    axes.set(xlabel=xlabel, ylabel=question.score)
    title = f"(1 - s) w + s c after {question.num_rounds} rounds, mean ± 2 standard"
    title += f" errors of {len(question.federations)} seeds"
    title += "\ndot: where the next round starts"
    return rows.findings(statements, question.name, figure, title)


def _federations(seeds: range) -> list[core.Federation]:
    """Builds digits in few classes per client, padded: one program runs all seeds."""
    spec = fp.FederationSpec(
        "digits",
        fp.DirichletLabels(concentration=0.1),
        num_clients=_CLIENTS,
        validation_fraction=0.0,
    )
    federations = [dataclasses.replace(spec, seed=seed).build() for seed in seeds]
    for name in ("train", "validation", "test"):
        slots = max(getattr(f, name).index.shape[1] for f in federations)
        federations = [_padded(f, name, slots) for f in federations]
    return federations


def _padded(federation: core.Federation, name: str, slots: int) -> core.Federation:
    """Pads one split of a federation to so many slots per client."""
    data = getattr(federation, name)
    index = jnp.pad(data.index, ((0, 0), (0, slots - data.index.shape[1])))
    split = {name: dataclasses.replace(data, index=index)}
    return dataclasses.replace(federation, **split)


def aggregated(
    algorithm: fp.FedPlus,
    federation: core.Federation,
    seed: int,
    num_rounds: int,
    shares: np.ndarray,
    model: Any = _NETWORK,
) -> Aggregated:
    """Trains a method and measures its last aggregation.

    Args:
      algorithm: whose `clients` are trained models.
      federation: data.
      seed: of the training.
      num_rounds: R.
      shares: `[S]` of the center.
      model: what is trained, before it knows the federation.

    Returns:
      Its effect; the jump is measured by a round whose steps are absorbed by rounding.
    """
    model = model.for_federation(federation)
    process = training.with_arrays(fp.FederatedProcess(algorithm=algorithm))
    key = jax.random.key(seed, impl="threefry2x32")
    state = _first(key, process, federation, model=model)
    state = _advanced(process, state, federation, num_rounds, model=model)
    still = struct.replace_field(
        process,
        "algorithm.local.learning_rate",
        jnp.asarray(_ABSORBED, jnp.zeros(()).dtype),
    )
    started = _advanced(still, state, federation, 1, model=model)
    score, distance, jump = _measures(
        state, started.clients, federation, jnp.asarray(shares), model=model
    )
    return Aggregated(np.asarray(score), float(distance), float(jump))


_compiled = functools.partial(
    jax.jit,
    static_argnames="model",
    compiler_options=fedplus_quadratics.QUICK_COMPILATION,
)


@_compiled
def _first(key, process, federation, *, model):
    """Returns the state before the first round."""
    return process.init(key, model, federation)


@_compiled
def _advanced(process, state, federation, count, *, model):
    """Returns the state `count` rounds later."""
    return jax.lax.fori_loop(
        0, count, lambda _, s: process.round(s, model, federation)[0], state
    )


@_compiled
def _measures(state, started, federation, shares, *, model):
    """Returns scores `[S]`, the mean distance to the center and the mean jump."""
    center = state.server.c

    def score(row):
        w, fields = row
        data = federation.test.pool().with_rows(fields)
        positions = jnp.arange(data.index.shape[0])
        weight = (positions < data.num_examples).astype(shares.dtype)
        batch = data.gather(positions, weight)

        def at(share):
            mixed = jax.tree.map(lambda a, b: (1 - share) * a + share * b, w, center)
            outputs = model.apply(mixed, batch.x, constants=batch.constants)
            if isinstance(model, core.SeriesModel):
                return model.series_metrics(outputs, batch)[0]["annualized_return"]
            hits = model.metrics(outputs, batch)["accuracy"]
            return jnp.vdot(weight, hits) / weight.sum()

        return jax.vmap(at)(shares)

    def length(w, other):
        return optax.tree.norm(optax.tree.sub(w, other))

    scores = jax.lax.map(score, (state.clients, federation.test.rows()))
    distances = jax.vmap(lambda w: length(w, center))(state.clients)
    jumps = jax.vmap(length)(state.clients, started)
    return scores.mean(axis=0), distances.mean(), jumps.mean()


def jump_row(name: str, algorithm: fp.FedPlus, cases: list[Aggregated]) -> rows.Row:
    """Compares how far clients are moved with lam times their distance.

    Args:
      name: of the method.
      algorithm: the method.
      cases: what its aggregations did.

    Returns:
      A row about the seed where the two differ most.
    """
    worst = max(cases, key=lambda x: abs(x.jump - algorithm.lam * x.distance))
    expected = float(algorithm.lam * worst.distance)
    return rows.Row(
        "mean distance by which the start of a round moves a model",
        {"method": name},
        expected,
        worst.jump,
        tolerance=1e-12 * expected,  # sums of less than 1e4 squares, 1e-16 each
    )
