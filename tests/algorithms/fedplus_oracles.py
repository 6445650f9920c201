"""Fed+'s parts in NumPy and float64, written from the definitions, slow and plain."""

import numpy as np


def prox(name, x, rho):
    """The proximal point of one difference `[d]`."""
    if name == "sq":
        return x / (1 + rho)
    if name == "l2":
        norm = np.sqrt(x @ x)
        return x - x * (rho / norm) if norm > rho else np.zeros_like(x)
    if name == "l1":
        return np.where(x > rho, x - rho, np.where(x < -rho, x + rho, 0.0))
    return np.zeros_like(x) if name == "indicator" else x


def envelope(name, x, rho):
    """The Moreau envelope, by its definition at the proximal point."""
    v = prox(name, x, rho)
    values = {
        "sq": 0.5 * v @ v,
        "l2": np.sqrt(v @ v),
        "l1": np.abs(v).sum(),
        "indicator": 0.0,
        "zero": 0.0,
    }
    return values[name] + (x - v) @ (x - v) / (2 * rho)


def center(name, rows, p, rho):
    """`argmin_c sum_k p_k Phi(w_k - c)` of rows `[K, d]`."""
    c = p @ rows
    if name == "l2":
        for _ in range(5000):
            eta = p / np.maximum(np.linalg.norm(rows - c, axis=1), rho)
            before, c = c, eta @ rows / eta.sum()
            if np.abs(c - before).max() < 1e-15 * np.abs(rows).max():
                break
    if name == "l1":
        low, high = rows.min(axis=0), rows.max(axis=0)
        for _ in range(200):  # the slope falls in c
            c = (low + high) / 2
            rising = p @ np.clip(rows - c, -rho, rho) > 0
            low, high = np.where(rising, c, low), np.where(rising, high, c)
    return c


def objective(problem, rows, name, alpha, rho, c=None):
    """`sum_k p_k [f_k(w_k) + mu Phi(w_k - c)]`, uniform p, at the best c or at one."""
    p = np.full(len(rows), 1 / len(rows))
    c = center(name, rows, p, rho) if c is None else c
    pulls = [envelope(name, row - c, rho) for row in rows]
    return p @ (problem.losses(rows) + alpha * rho * np.array(pulls))


def rounds(problem, start, cohorts, *, name, alpha, rho, lam, eta, steps):
    """Rounds of Algorithm 1 over members, `(w [R, N, d], c [R, d])`."""
    w, c, seen = np.tile(start, (len(problem.alpha("uniform")), 1)), start, []
    theta = 1 / (1 + alpha * eta)
    for members in cohorts:
        for k in members:
            z = c + prox(name, w[k] - c, rho)
            row = (1 - lam) * w[k] + lam * c
            for _ in range(steps):
                gradient = problem.gradient(k, row)
                row = theta * (row - eta * gradient) + (1 - theta) * z
            w[k] = row
        p = np.full(len(members), 1 / len(members))
        c = center(name, w[members], p, rho)
        seen.append((w.copy(), c))
    return map(np.stack, zip(*seen, strict=True))
