"""Robust rules in NumPy, float64, one row after the other, from their definitions.

Every oracle returns the aggregate and the smallest relative margin of its decisions:
below the rounding of an implementation either choice is right.
"""

import numpy as np


def _gap(values, kept):
    """Relative margin between the kept smallest values and the others."""
    values = np.sort(values)
    if kept >= len(values):
        return np.inf
    size = max(abs(values[kept]), np.finfo(float).tiny)
    return (values[kept] - values[kept - 1]) / size


def krum_scores(rows, f, squared=True):
    """Scores by the definition, in float64, one pair after the other."""
    rows = np.asarray(rows, np.float64)
    power, scores = (2 if squared else 1), []
    for i, row in enumerate(rows):
        others = np.delete(rows, i, axis=0)
        distance = sorted(np.linalg.norm(other - row) ** power for other in others)
        scores.append(sum(distance[: max(1, len(rows) - f - 2)]))
    return np.array(scores)


def smallest(scores, kept):
    """Numbers of the smallest scores, and of those that tie with the last of them."""
    return np.flatnonzero(scores <= np.sort(scores)[kept - 1] * (1 + 1e-12))


def trimmed_mean(rows, f):
    """Of every coordinate the values between the f smallest and the f largest."""
    return np.sort(rows, axis=0)[f : len(rows) - f].mean(axis=0), np.inf


def _nearest_mean(rows, kept):
    """Of every coordinate the values nearest to the midpoint median."""
    found, margin = [], np.inf
    for column in rows.T:
        distance = np.abs(column - np.median(column))
        order = sorted(range(len(column)), key=lambda k: (distance[k], column[k]))
        found.append(column[order[:kept]].mean())
        margin = min(margin, _gap(distance, kept))
    return np.array(found), margin


def meamed(rows, f):
    """The n - f values nearest to the median."""
    return _nearest_mean(rows, len(rows) - f)


def bulyan(rows, f, one_shot=False):
    """n - 2 f rows, or ties, by repeated Krum; all but 2 f values at their median."""
    remaining, selected, margin = list(range(len(rows))), [], np.inf
    theta = len(rows) - 2 * f
    if one_shot:
        scores = krum_scores(rows, f)
        selected = list(smallest(scores, theta))
        margin = _gap(scores, len(selected))
    else:
        while len(selected) < theta:
            scores = krum_scores(rows[remaining], f)
            best = smallest(scores, 1)
            margin = min(margin, _gap(scores, len(best)))
            selected += [remaining[place] for place in best]
            remaining = [row for row in remaining if row not in selected]
    mean, other = _nearest_mean(rows[np.sort(selected)], len(selected) - 2 * f)
    return mean, min(margin, other)


def centered_clipping(rows, start, tau, num_iterations):
    """Steps of clipped differences; continuous, so without margin."""
    center = start
    for _ in range(num_iterations):
        step = np.zeros_like(center)
        for row in rows:
            norm = np.linalg.norm(row - center)
            step += (row - center) * (min(1, tau / norm) if norm else 0)
        center = center + step / len(rows)
    return center, np.inf


def norm_clipping(rows, reference, f):
    """The floor(2 f (n - f) / n) longest rows clipped to the next norm."""
    norms = np.linalg.norm(rows - reference, axis=1)
    limit = np.sort(norms)[::-1][(2 * f * (len(rows) - f)) // len(rows)]
    factor = np.minimum(1, limit / np.where(norms > 0, norms, 1))
    return reference + (factor[:, None] * (rows - reference)).mean(axis=0), np.inf


def nearest_neighbor_mixing(rows, f):
    """Every row the mean of its n - f nearest rows; `[n, D]`."""
    mixed, margin, near = [], np.inf, len(rows) - f
    for row in rows:
        squares = ((rows - row) ** 2).sum(axis=1)
        nearest = smallest(squares, near)
        mixed.append(rows[nearest].mean(axis=0))
        margin = min(margin, _gap(squares, len(nearest)))
    return np.array(mixed), margin
