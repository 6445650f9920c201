"""Agreement of contenders' results, shown beside their times."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import contenders, rules, workloads

__all__ = [
    "accuracy_and_loss",
    "differences",
    "of_programs",
    "of_rules",
    "of_trainings",
    "without_order",
]

_BLOCK = 8192  # examples evaluated at once


def relative_difference(ours: Any, theirs: Any) -> float:
    """Returns the largest difference, relative to the largest value of the first."""
    pairs = list(zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))
    difference = max(float(np.abs(a - b).max()) for a, b in pairs)
    return difference / max(float(np.abs(a).max()) for a, _ in pairs)


def accuracy_and_loss(workload: workloads.Workload, params: Any) -> tuple[float, float]:
    """Returns accuracy and mean loss of global models over all training examples.

    Args:
      workload: what was trained.
      params: `[G, *P]`.

    Returns:
      Both, averaged over the grid points.
    """
    federation = workload.spec.build()
    model = workload.model.for_federation(federation)
    examples = workloads.examples_of(federation)
    x, y = (np.concatenate(parts) for parts in zip(*examples, strict=True))
    logits = jax.jit(jax.vmap(model.apply, (0, None)))
    right = loss = 0.0
    for start in range(0, len(y), _BLOCK):
        labels = y[start : start + _BLOCK]
        scores = jax.nn.log_softmax(logits(params, x[start : start + _BLOCK]))
        right += float((scores.argmax(axis=-1) == labels[None]).mean(axis=0).sum())
        loss -= float(scores[:, jnp.arange(len(labels)), labels].mean(axis=0).sum())
    return right / len(y), loss / len(y)


def of_trainings(
    workload: workloads.Workload, results: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """Returns accuracy and loss after the same number of rounds.

    Args:
      workload: what was trained.
      results: global models by contender; each has drawn its own order of examples.

    Returns:
      `accuracy` and `loss` by contender.
    """
    agreement = {}
    for name, params in results.items():
        accuracy, loss = accuracy_and_loss(workload, params)
        agreement[name] = {"accuracy": accuracy, "loss": loss}
    return agreement


def without_order(
    workload: workloads.Workload,
    peers: Iterable[str],
    make: Callable[[str, workloads.Workload], contenders.Contender],
) -> dict[str, float]:
    """Compares models after two rounds in which no draw decides the result.

    Args:
      workload: what is timed.
      peers: names of peers.
      make: makes a contender.

    Returns:
      By peer the largest difference from our global model, relative to its largest
      value.
    """

    def trained(name: str) -> Any:
        contender = make(name, workload.without_order())
        contender.run()
        return contender.result()

    peers = tuple(peers)
    ours = trained("ours") if peers else None
    return {name: relative_difference(ours, trained(name)) for name in peers}


def differences(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Compares results with ours.

    Args:
      results: trees by contender, or None for one that computes nothing.

    Returns:
      By peer the largest `difference`, relative to our largest value.
    """
    return {
        name: {}
        if name == "ours" or result is None
        else {"difference": relative_difference(results["ours"], result)}
        for name, result in results.items()
    }


def of_rules(
    rule: rules.Rule, results: dict[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Compares aggregates `[D]`: `differences`, and for geometric medians the `loss`.

    The loss is the mean distance of the rows.
    """
    agreement = differences(results)
    if rule.kind == "geometric_median":
        rows = rule.messages().astype(np.float64)
        for name, centre in results.items():
            norms = np.linalg.norm(rows - centre.astype(np.float64), axis=1)
            agreement[name]["loss"] = float(norms.mean())
    return agreement


def of_programs(results: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Compares points `[problems, D]`: `differences`, and the mean length as `loss`."""
    agreement = differences(results)
    for name, points in results.items():
        agreement[name]["loss"] = float(np.linalg.norm(points, axis=1).mean())
    return agreement
