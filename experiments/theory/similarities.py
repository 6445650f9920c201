"""Cosines of models: what precision does to them, and how many clients they select."""

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as fp
from experiments.theory import rows
from fedjax_pfl.algorithms import similarity as collaboration
from fedjax_pfl.figures import drawing

__all__ = ["auc", "cosines", "neighbours", "precision"]

_CLIENTS, _DIM = 40, 10_000


def cosines(models: np.ndarray, kind: str) -> np.ndarray:
    """Cosines of all pairs of rows.

    Args:
      models: `[m, D]`.
      kind: `float64`; `float32`, FedACS's own, with products at highest precision; or
        `bfloat16`, where inputs of the product are rounded and sums and norms are
        float32, as on an accelerator by default.

    Returns:
      `[m, m]` in float64 or float32.
    """
    if kind == "float64":
        x, product = models, models @ models.T
        norms = np.linalg.norm(x, axis=1)
        return product / np.outer(norms, norms)
    x = jnp.asarray(models, jnp.float32)
    if kind == "float32":
        return np.asarray(collaboration.cosines(x))
    norms = jnp.linalg.norm(x, axis=1)
    rounded = x.astype(jnp.bfloat16)
    gram = jnp.matmul(rounded, rounded.T, preferred_element_type=jnp.float32)
    return np.asarray(gram / (norms[:, None] * norms[None]))


def auc(similarity: np.ndarray, cluster: np.ndarray) -> float:
    """Share of pairs of pairs in which the one of the same cluster is more similar.

    Args:
      similarity: `[m, m]`.
      cluster: `[m]`.

    Returns:
      1 if clusters are separated, 0.5 by chance; ties count half.
    """
    first, second = np.triu_indices(len(cluster), 1)
    values = similarity[first, second]
    is_same = cluster[first] == cluster[second]
    gaps = values[is_same][:, None] - values[~is_same]
    return float((gaps > 0).mean() + (gaps == 0).mean() / 2)


def precision(options: rows.Options) -> rows.Findings:
    """Separation of two clusters by cosines, against how near the models are."""
    distances = 10.0 ** -np.arange(1, 8)
    if options.quick:
        distances = distances[[1, 4]]
    curves = {
        "parameters, float64": ("float64", False),
        "parameters, float32 highest": ("float32", False),
        "parameters, bfloat16 products": ("bfloat16", False),
        "updates w - w0, bfloat16 products": ("bfloat16", True),
    }
    found: list[rows.Row] = []
    figure, (axes,) = drawing.panels(1)
    values = np.zeros((len(curves), len(distances), min(options.seeds, 5)))
    for d, distance in enumerate(distances):
        for seed in range(values.shape[2]):
            start, models, cluster = _clustered_models(seed, distance)
            for c, (kind, is_update) in enumerate(curves.values()):
                x = models - start if is_update else models
                values[c, d, seed] = auc(cosines(x, kind), cluster)
    means = values.mean(axis=2)
    for c, (name, (kind, is_update)) in enumerate(curves.items()):
        axes.plot(
            distances,
            means[c],
            drawing.MARKERS[c] + ("--" if is_update else "-"),
            color=drawing.COLORS[c],
            markersize=8 - 2 * c,
            label=name,
        )
        exact = kind == "float64" or is_update
        found += [
            rows.Row(
                quantity="separation (AUC) of two clusters",
                settings={"cosines of": name, "1 - cos": f"{distance:.0e}"},
                theory=1.0,
                simulation=means[c, d],
                relation="=" if exact else "",
                tolerance=1e-3,
            )
            for d, distance in enumerate(distances)
        ]
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set_xlabel("1 - cosine of two models of different clusters", fontsize=9)
    axes.set_ylabel("separation of clusters (AUC)", fontsize=9)
    title = "similarity by cosines of (0.5 is chance)"
    drawing.legend(figure, title)
    return rows.Findings(found, {"fedacs_precision": figure})


def _clustered_models(
    seed: int, distance: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start `[D]`, models `[m, D]` and clusters `[m]`.

    Models are the start plus an update; updates have a direction of their cluster and
    one of their own. Cosines across clusters are `1 - distance` of the models.
    """
    rng = np.random.default_rng(seed)
    start = rng.normal(size=_DIM)
    cluster = np.arange(_CLIENTS) % 2
    directions = rng.normal(size=(2, _DIM))
    own = rng.normal(size=(_CLIENTS, _DIM))
    update = directions[cluster] + own  # |a - b|^2 = 4 D across clusters
    scale = np.sqrt(distance / 2)  # 1 - cos = |a - b|^2 / (2 |w|^2)
    return start, start + scale * update, cluster


def neighbours(options: rows.Options) -> rows.Findings:
    """Models that FedACS mixes per client, its own included: `(1 - pq) m`.

    Clients of four clusters, after some rounds of the real algorithm; negative cosines
    are kept, because clipped ones would not count.
    """
    levels = (0.5, 0.8) if options.quick else (0.0, 0.3, 0.5, 0.7, 0.8, 0.85)
    found: list[rows.Row] = []
    figure, (axes,) = drawing.panels(1)
    for k, count in enumerate((10,) if options.quick else (10, 40)):
        numbers = _selected(count, levels, min(options.seeds, 5))
        # Pairs tie and the quantile may fall on one: it is in or out, 2 / m each.
        new = [
            rows.Row(
                quantity="mean number of models that are mixed",
                settings={"m": count, "pq": level},
                theory=(1 - level) * count,
                simulation=float(number),
                tolerance=2 / count + 1e-9,
            )
            for level, number in zip(levels, numbers, strict=True)
        ]
        found += new
        fine = np.linspace(0, 0.88, 200)
        color = drawing.COLORS[k]
        axes.plot(fine, (1 - fine) * count, color=color)
        axes.plot(
            levels,
            [row.simulation for row in new],
            drawing.MARKERS[k],
            color=color,
            label=f"{count} participants",
        )
    axes.set_yscale("log")
    axes.set_yticks([1, 2, 5, 10, 20, 40], ["1", "2", "5", "10", "20", "40"])
    axes.set_xlabel("pq, the quantile level", fontsize=9)
    axes.set_ylabel("models mixed, the own one included", fontsize=9)
    title = "lines: (1 - pq) m, points: FedACS after 4 rounds"
    drawing.legend(figure, title)
    return rows.Findings(found, {"fedacs_neighbours": figure})


def _selected(count: int, levels: tuple[float, ...], seeds: int) -> np.ndarray:
    """Mean number of mixed models in the last round, by quantile level."""
    algorithm = fp.algorithms.ALGORITHMS["fedacs"](
        pick_quantile=levels[0], negative="keep", local=fp.SGD(learning_rate=0.05)
    )
    spec = fp.FederationSpec("clustered_classes", "by_client", num_clients=count)
    result = fp.grid(
        jax.random.key(0, impl="threefry2x32"),
        fp.FederatedProcess(algorithm=algorithm),
        fp.LogisticRegression(),
        spec,
        {"seed": range(seeds), "algorithm.pick_quantile": levels},
        num_rounds=4,
        eval_every=4,
        evaluate_on=("test",),
        progress=False,
    )
    (group,) = result.groups
    last = group.per_round["neighbours"][:, -1]
    return last.reshape(seeds, len(levels)).mean(axis=0)
