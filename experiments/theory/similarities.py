"""Cosines of models: effects of precision, and the number of selected clients."""

import jax.numpy as jnp
import numpy as np

import fedjax_pfl as fp
from experiments.theory import rows, training
from fedjax_pfl.algorithms import similarity as collaboration
from fedjax_pfl.figures import drawing

__all__ = ["auc", "cosines", "neighbours", "precision"]

_CLIENTS, _DIM = 40, 10_000


def cosines(models: np.ndarray, kind: str) -> np.ndarray:
    """Returns the cosines `[m, m]` of all pairs of rows `[m, D]`, in a precision."""
    if kind == "float64":
        x, product = models, models @ models.T
        norms = np.linalg.norm(x, axis=1)
        return product / np.outer(norms, norms)
    x = jnp.asarray(models, jnp.float32)
    if kind == "float32":
        return np.asarray(collaboration.cosines(x))
    norms = jnp.linalg.norm(x, axis=1)
    # The default of accelerators: rounded inputs of the product, float32 sums and
    # norms.
    inputs = x.astype(jnp.bfloat16)
    gram = jnp.matmul(inputs, inputs.T, preferred_element_type=jnp.float32)
    return np.asarray(gram / (norms[:, None] * norms[None]))


def auc(similarity: np.ndarray, cluster: np.ndarray) -> float:
    """Returns how often pairs within a cluster are more similar than pairs across."""
    left, right = np.triu_indices(len(cluster), 1)
    values = similarity[left, right]
    is_same = cluster[left] == cluster[right]
    gaps = values[is_same][:, None] - values[~is_same]
    # 1 if clusters are separated, 0.5 by chance; ties count half.
    return float((gaps > 0).mean() + (gaps == 0).mean() / 2)


def precision(options: rows.Options) -> rows.Findings:
    """Measures how well cosines separate two clusters, by the models' distance."""
    distances = 10.0 ** -np.arange(1, 8)
    if options.quick:
        distances = distances[[1, 4]]
    curves = {
        "parameters, float64": ("float64", False),
        "parameters, float32 highest": ("float32", False),
        "parameters, bfloat16 products": ("bfloat16", False),
        "updates w - w0, bfloat16 products": ("bfloat16", True),
    }
    values = np.zeros((len(curves), len(distances), min(options.seeds, 5)))
    for d, distance in enumerate(distances):
        for seed in range(values.shape[2]):
            start, models, cluster = _clustered_models(seed, distance)
            for c, (kind, is_update) in enumerate(curves.values()):
                x = models - start if is_update else models
                values[c, d, seed] = auc(cosines(x, kind), cluster)
    means = values.mean(axis=2)
    findings = rows.Findings("fedacs_precision")
    axes, quantity = findings.axes, "separation (AUC) of two clusters"
    for c, (name, (kind, is_update)) in enumerate(curves.items()):
        line = drawing.MARKERS[c] + ("--" if is_update else "-")
        style = {"color": drawing.COLORS[c], "markersize": 8 - 2 * c}
        axes.plot(distances, means[c], line, label=name, **style)
        # Coarser cosines have no claim: they show from which distance on clusters
        # vanish.
        relation = "=" if kind == "float64" or is_update else ""
        for distance, mean in zip(distances, means[c], strict=True):
            settings = {"cosines of": name, "1 - cos": f"{distance:.0e}"}
            findings.add(quantity, settings, 1.0, mean, relation, tolerance=1e-3)
    axes.set(xscale="log", xlabel="1 - cosine of two models of different clusters")
    axes.set(ylabel="separation of clusters (AUC)")
    axes.invert_xaxis()
    return findings.titled("similarity by cosines of (0.5 is chance)")


def _clustered_models(
    seed: int, distance: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws a start `[D]`, models `[m, D]` and clusters `[m]`."""
    rng = np.random.default_rng(seed)
    start = rng.normal(size=_DIM)
    cluster = np.arange(_CLIENTS) % 2
    # Models are the start plus an update; updates add directions of their cluster and
    # of their client. Cosines of models across clusters are `1 - distance`.
    directions = rng.normal(size=(2, _DIM))
    client_directions = rng.normal(size=(_CLIENTS, _DIM))
    update = directions[cluster] + client_directions  # |a - b|^2 = 4 D across clusters
    scale = np.sqrt(distance / 2)  # 1 - cos = |a - b|^2 / (2 |w|^2)
    return start, start + scale * update, cluster


def neighbours(options: rows.Options) -> rows.Findings:
    """Counts the models that FedACS mixes per client: `(1 - pq) m`."""
    # Clients have four clusters and train some rounds with the real algorithm. Negative
    # cosines are kept, because clipped ones would not count.
    levels = (0.5, 0.8) if options.quick else (0.0, 0.3, 0.5, 0.7, 0.8, 0.85)
    fine = np.linspace(0, 0.88, 200)
    findings = rows.Findings("fedacs_neighbours")
    axes, quantity = findings.axes, "mean number of models that are mixed"
    for k, count in enumerate((10,) if options.quick else (10, 40)):
        numbers = _selected(count, levels, min(options.seeds, 5))
        tolerance = 2 / count + 1e-9  # pairs tie at the quantile: both in or both out
        for level, number in zip(levels, numbers, strict=True):
            settings, expected = {"m": count, "pq": level}, (1 - level) * count
            findings.add(quantity, settings, expected, number, tolerance=tolerance)
        color, label = drawing.COLORS[k], f"{count} participants"
        axes.plot(fine, (1 - fine) * count, color=color)
        axes.plot(levels, numbers, drawing.MARKERS[k], color=color, label=label)
    axes.set(yscale="log", xlabel="pq, the quantile level")
    axes.set(ylabel="models mixed, the own one included")
    axes.set_yticks([1, 2, 5, 10, 20, 40], ["1", "2", "5", "10", "20", "40"])
    return findings.titled("lines: (1 - pq) m, points: FedACS after 4 rounds")


def _selected(count: int, levels: tuple[float, ...], seeds: int) -> np.ndarray:
    """Returns the mean number of mixed models in the last round, by quantile level."""
    algorithm = fp.algorithms.ALGORITHMS["fedacs"](
        pick_quantile=levels[0], negative="keep", local=fp.SGD(learning_rate=0.05)
    )
    spec = fp.FederationSpec("clustered_classes", "by_client", num_clients=count)
    group = training.grid(
        fp.FederatedProcess(algorithm=algorithm),
        fp.LogisticRegression(),
        spec,
        {"seed": range(seeds), "algorithm.pick_quantile": levels},
        4,
        eval_every=4,
        evaluate_on=("test",),
    )
    return group.per_round["neighbours"][:, -1].reshape(seeds, len(levels)).mean(axis=0)
