"""Shortest combinations of rows in NumPy, float64, and sets of rows that they solve."""

import numpy as np
import scipy.optimize

SIZES = (2, 11, 101)


def shortest(rows):
    """Wolfe's minimum-norm point: weights `[J]` of rows `[J, D]`."""
    rows = np.asarray(rows, np.float64)
    square = (rows**2).sum(axis=1)
    used = [int(square.argmin())]
    weights = np.ones(1)
    while True:
        point = weights @ rows[used]
        heights = rows @ point
        entering = int(heights.argmin())
        gap = point @ point - heights[entering]
        if gap <= 1e-14 * square.max() or entering in used:
            found = np.zeros(len(rows))
            found[used] = weights
            return found
        used, weights = [*used, entering], np.append(weights, 0.0)
        while True:
            affine = _affine(rows[used])
            if (affine > 1e-12).all():
                weights = affine
                break
            falls = affine <= 1e-12
            steps = weights[falls] / (weights - affine)[falls]
            weights = weights + steps.min() * (affine - weights)
            kept = weights > 1e-12
            used = [j for j, keep in zip(used, kept, strict=True) if keep]
            weights = weights[kept] / weights[kept].sum()


def _affine(rows):
    """Weights of sum 1 of the shortest point of the affine hull."""
    gram, ones = rows @ rows.T, np.ones((len(rows), 1))
    matrix = np.block([[gram / gram.diagonal().mean(), ones], [ones.T, 0]])
    right = np.append(np.zeros(len(rows)), 1.0)
    found = np.linalg.lstsq(matrix, right, rcond=None)[0][:-1]
    return found / found.sum()


def shortest_by_nnls(rows):
    """The same by SciPy: `x / sum(x)` for least `||Q^T x||^2 + (sum(x) - 1)^2`."""
    scale = np.sqrt((rows**2).sum(axis=1).mean())
    matrix = np.vstack([np.asarray(rows, np.float64).T / scale, np.ones(len(rows))])
    right = np.append(np.zeros(rows.shape[1]), 1.0)
    x, _ = scipy.optimize.nnls(matrix, right, maxiter=30 * len(rows))
    return x / x.sum()


def left_over(rows, vector):
    """`vector + Q^T x` at its shortest, `[D]`, over x >= 0, and these x `[J]`."""
    rows, vector = np.asarray(rows, np.float64), np.asarray(vector, np.float64)
    x, _ = scipy.optimize.nnls(rows.T, -vector, maxiter=10_000)
    return vector + x @ rows, x


def shortest_in_box(rows, lower, upper):
    """Weights `[J]` of the shortest point with `lower <= x <= upper` and sum 1."""
    rows = np.asarray(rows, np.float64)
    gram = rows @ rows.T
    x = lower + (upper - lower) * (1 - lower.sum()) / (upper - lower).sum()
    for _ in range(100_000):
        slope = gram @ x
        up = int(np.where(x < upper, slope, np.inf).argmin())
        down = int(np.where(x > lower, slope, -np.inf).argmax())
        fall = slope[down] - slope[up]
        if fall <= 1e-14 * gram.diagonal().mean():
            break
        step = fall / (gram[up, up] + gram[down, down] - 2 * gram[up, down])
        step = min(step, upper[up] - x[up], x[down] - lower[down])
        x[up] = upper[up] if step == upper[up] - x[up] else x[up] + step
        x[down] = lower[down] if step == x[down] - lower[down] else x[down] - step
    return x


def box_of(count):
    """Bounds about unequal weights, of which some may be 0."""
    share = np.arange(1.0, count + 1) / (count * (count + 1) / 2)
    return np.maximum(0, share - 0.5 / count), np.minimum(1, share + 0.5 / count)


def gap_of(rows, x, lower=0.0, upper=1.0):
    """How far `||Q^T x||^2 / 2` can be from its least over the bounds and sum 1."""
    rows = np.asarray(rows, np.float64)
    slope = rows @ (rows.T @ x)
    least = np.broadcast_to(lower, x.shape).copy()
    width, rest = upper - least, 1 - least.sum()
    for j in np.argsort(slope):  # the linear problem: the cheapest first
        least[j] += min(rest, width[j])
        rest -= min(rest, width[j])
    return slope @ (x - least)


def families(count, rng):
    """Sets of `count` rows `[J, D]`, from easy to hard, by name."""
    width = 3 * count + 5

    def unit(rows):
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def drawn(*shape):
        return rng.standard_normal(shape)

    def opposed(rows):
        # Against most of the others: against all of them 0 would be in the hull.
        last = -(0.5 + drawn(count - 1)) @ rows[:-1]
        return unit(np.vstack([rows[:-1], last]))

    common, center = drawn(width), drawn(-(-count // 25), width)
    centers = center[np.arange(count) // 25]
    about = unit(drawn(count, width))
    return {
        "normal": unit(drawn(count, width)),
        "dependent": unit(drawn(count, max(1, count // 3))),
        "clusters": unit(centers + 1e-2 * drawn(count, width)),
        "dense clusters": unit(centers + 1e-4 * drawn(count, width)),
        "common": unit(common + drawn(count, width) / 2),
        "lengths": unit(drawn(count, width)) * 10.0 ** rng.uniform(-3, 2, (count, 1)),
        "near-stationary": unit(about - (1 - 1e-3) * about.mean(axis=0)),
        "opposed": opposed(unit(common + drawn(count, width) / 2)),
        "opposed common": opposed(unit(common + 1e-2 * drawn(count, width))),
    }


def solved():
    """Yields `(name, rows, simplex, cone, box)` of sets of rows.

    Rows are of small whole numbers, so that their Gram matrices are exact in float32.

    * `simplex`: the shortest point of the hull, by Wolfe's active set on the rows;
    * `cone`: what rows without the first leave of the first, by SciPy's NNLS;
    * `box`: the shortest point with `box_of` bounds, by exchanges between two weights.
    """
    rng = np.random.default_rng(0)
    for count in SIZES:
        kinds = {
            "normal": rng.normal(size=(count, count + 5)),
            "dependent": rng.normal(size=(count, max(1, count // 3))),
            "common": rng.normal(size=40) + rng.normal(size=(count, 40)) / 2,
        }
        kinds["opposed"] = kinds["common"].copy()
        against = 0.5 + rng.normal(size=count - 1)
        kinds["opposed"][-1] = -3 * against @ kinds["common"][:-1] / against.sum()
        for kind, rows in kinds.items():
            rows = np.round(30 * rows)
            yield f"{kind} {count}", rows, *_solved(rows)


def _solved(rows):
    """The three solutions of one set, each checked by another method."""
    scale = (rows**2).sum(axis=1).mean()
    x = shortest(rows)
    np.testing.assert_allclose(x @ rows, shortest_by_nnls(rows) @ rows, atol=1e-9)
    assert gap_of(rows, x) <= 1e-13 * scale
    bounds = box_of(len(rows))
    y = shortest_in_box(rows, *bounds)
    assert gap_of(rows, y, *bounds) <= 1e-12 * scale
    left, weights = left_over(rows[1:], rows[0])
    assert (rows[1:] @ left).min() >= -1e-12 * scale
    assert np.abs(weights * (rows[1:] @ left)).max() <= 1e-12 * scale
    return x @ rows, left, y @ rows
