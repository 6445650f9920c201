"""FedPG's linear rate on strongly convex losses.

The supplement assumes steps `w + d / L` along the shortest combination
`d = -sum lam_i g_i` of the clients' gradients, not rescaled and without the fairness
row. If all losses are L-smooth and u-strongly convex, every loss falls in every step
and `|w+ - w*| <= sqrt(1 - u / L) |w - w*|`, w* the limit.

Near w* a step is `-P H (w - w*) / L`, with `H = sum lam_i A_i` at w* and P the
projection onto the orthogonal complement of all active clients' gradients there, so
that each step is `I - P H / L` times the previous one. The published algorithm, with
rescaled steps of constant rate, has no such rate.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.optimize

import fedjax_pfl as fp
from experiments.theory import common_descent as bowls
from experiments.theory import rows
from fedjax_pfl.algorithms import common_descent
from fedjax_pfl.figures import drawing

__all__ = ["linear_rate", "local_map", "rate_rows"]

_PROBLEMS = 6  # at most
_NEAR = 1e-5  # of a first step; FedPG stops before the limit, when d is rounding


@fp.pytree_dataclass
class _Unscaled(fp.algorithms.Armijo):
    """Search that takes the learning rate along d itself, in one trial."""

    def __call__(self, trial: Any, *, rate: Any, direction: Any, **fields: Any) -> Any:
        del fields
        step = rate / direction.sigma
        before, after = jnp.moveaxis(trial(jnp.stack([0 * step, step])), 1, 0)
        one = jnp.ones((), jnp.int32)
        return common_descent.Searched(
            step=step, rule=one, trials=one, before=before, after=after
        )


def _fedpg(fair_row: bool, search: Any) -> fp.FedPG:
    """Returns FedPG on the clients' raw gradients, with the rate 1 / L."""
    return fp.FedPG(
        local=fp.SGD(learning_rate=1 / bowls.SMOOTHNESS),
        history="none",
        normalize="none",
        guard=0.0,
        fair_row=fair_row,
        search=search,
    )


def linear_rate(options: rows.Options) -> rows.Findings:
    """Compares the decay of distances to the limit with the proved rate."""
    count = 100 if options.quick else 300
    problems = [bowls.Bowls.draw(k) for k in range(min(options.seeds, _PROBLEMS))]
    findings = rows.Findings("fedpg_rate")
    kinds = {
        "d": _fedpg(False, _Unscaled()),
        "sigma d, as written": _fedpg(False, None),
        "d, with the fairness row": _fedpg(True, _Unscaled()),
    }
    for k, (name, algorithm) in enumerate(
        list(kinds.items())[: 2 if options.quick else 3]
    ):
        paths = [problem.visited(algorithm, count)[0] for problem in problems]
        findings.rows += rate_rows(name, problems, paths)
        for number, path in enumerate(paths):
            size = np.linalg.norm(path - path[-1], axis=1)[: count // 2]
            findings.axes.semilogy(
                np.where(size > _NEAR / 100 * size[0], size / size[0], np.nan),
                color=drawing.COLORS[k],
                alpha=0.7,
                linewidth=1,
                label=name if number == 0 else None,
            )
    bound = np.sqrt(1 - 1 / bowls.SMOOTHNESS) ** np.arange(count // 2)
    findings.axes.semilogy(bound, "k--", label="sqrt(1 - u / L)^t")
    findings.axes.set(xlabel="round", ylabel="|w - w*| / |w0 - w*|")
    return findings.titled(f"FedPG on {len(problems)} problems; w*: where it ends")


def rate_rows(
    name: str, problems: list[bowls.Bowls], paths: list[np.ndarray]
) -> list[rows.Row]:
    """Checks the paths `[R + 1, d]` of one kind of step."""
    bound = float(np.sqrt(1 - 1 / bowls.SMOOTHNESS))  # u is 1
    settings = {"step": name, "problems": len(problems)}
    sizes = [np.linalg.norm(path - path[-1], axis=1) for path in paths]
    half = len(paths[0]) // 2
    text = (
        f"|w - w*| after {half} rounds over that at the start: (1 - u / L)^{half / 2:g}"
    )
    final_ratio = float(max(size[half] / size[0] for size in sizes))
    # No claim for the fairness row; rescaled steps have to miss the rate.
    relation = {"d": "<=", "sigma d, as written": ">="}.get(name, "")
    results = rows.Rows()
    results.add(text, settings, bound**half, final_ratio, relation)
    if name != "d":
        return results
    large_sizes = [size[size > _NEAR * size[0]] for size in sizes]
    shrunk = float(max((size[1:] / size[:-1]).max() for size in large_sizes))
    text = "largest |w+ - w*| / |w - w*|: sqrt(1 - u / L)"
    results.add(text, settings, bound, shrunk, "<=")
    rises = [
        np.diff(p.losses(w), axis=0).max() for p, w in zip(problems, paths, strict=True)
    ]
    text = "largest rise of any loss in a round"
    results.add(text, settings, 0.0, max(rises), "<=", tolerance=1e-12)
    text = "length of a step d / L over the one before, in the end"
    for seed, (problem, path) in enumerate(zip(problems, paths, strict=True)):
        steps = np.diff(path, axis=0)
        size = np.linalg.norm(steps, axis=1)
        last = int(np.flatnonzero(size > _NEAR * size[0]).max())
        next_step = local_map(problem, path[-1]) @ steps[last - 1]
        expected = float(np.linalg.norm(next_step) / size[last - 1])
        measured = size[last] / size[last - 1]
        settings = {"step": name, "seed": seed}
        results.add(text, settings, expected, measured, tolerance=1e-3)
    return results


def local_map(problem: bowls.Bowls, limit: np.ndarray) -> np.ndarray:
    """Returns `I - P H / L` `[d, d]`, the map of a step `d / L` near a Pareto point."""
    gradients = np.einsum(
        "nij,nj->ni", problem.curvature, limit[None] - problem.minimizers
    )
    # Weights in the simplex that combine the gradients to 0.
    scale = np.linalg.norm(gradients, axis=1).max()
    system = np.concatenate([gradients.T / scale, np.ones((1, len(gradients)))])
    weights, _ = scipy.optimize.nnls(system, np.eye(len(system))[-1])
    _, values, basis = np.linalg.svd(gradients[weights > 1e-6])
    normal = basis[int((values > 1e-6 * values[0]).sum()) :]
    hessian = np.einsum("n,nij->ij", weights, problem.curvature)
    return np.eye(len(limit)) - normal.T @ normal @ hessian / bowls.SMOOTHNESS
