"""The smoothed medians in plain NumPy, by other methods than the package's."""

import numpy as np
import scipy.optimize


def objective(center, rows, p, rho):
    """`G` of the geometric median."""
    distance = np.linalg.norm(rows - center, axis=1)
    huber = np.where(distance <= rho, distance**2 / (2 * rho), distance - rho / 2)
    return p @ huber


def gradient(center, rows, p, rho):
    difference = rows - center
    return -(p / np.maximum(np.linalg.norm(difference, axis=1), rho)) @ difference


def weiszfeld_step(center, rows, p, rho):
    pull = p / np.maximum(np.linalg.norm(rows - center, axis=1), rho)
    return pull @ rows / pull.sum()


def prox_step(center, rows, p, rho):
    """Equation (34): the mean less the mean of the proximal points of the norm."""
    difference = rows - center
    length = np.linalg.norm(difference, axis=1)
    shrink = np.maximum(0, 1 - rho / np.maximum(length, 1e-300))
    return p @ rows - (p * shrink) @ difference


def iterate(step, rows, p, rho, residual=1e-10, most=200_000):
    """The first point of a fixed-point iteration with a small gradient; its number."""
    center = p @ rows
    for number in range(most):
        if np.linalg.norm(gradient(center, rows, p, rho)) <= residual:
            return center, number
        center = step(center, rows, p, rho)
    raise AssertionError(f"not converged in {most} steps")


def newton(rows, p, rho, steps=200):
    """The minimizer by Newton's method with halved steps, and its least curvature."""
    center = p @ rows

    def merit(point):
        # Near the end rounding hides the objective, and the gradient decides.
        return objective(point, rows, p, rho), np.linalg.norm(
            gradient(point, rows, p, rho)
        )

    for _ in range(steps):
        difference = rows - center
        length = np.linalg.norm(difference, axis=1)
        pull = p / np.maximum(length, rho)
        units = np.where(length > rho, np.sqrt(pull), 0)[:, None] * difference
        units = units / np.maximum(length, rho)[:, None]
        hessian = pull.sum() * np.eye(rows.shape[1]) - units.T @ units
        step = -np.linalg.solve(hessian, gradient(center, rows, p, rho))
        value, size = merit(center)
        for _ in range(40):
            new, smaller = merit(center + step)
            if new < value * (1 - 1e-15) or (new <= value * (1 + 1e-15)) & (
                smaller < size
            ):
                center = center + step
                break
            step = step / 2
        else:
            break
    return center, np.linalg.eigvalsh(hessian)[0]


def optimized(rows, p, rho):
    """The minimizer by a quasi-Newton method, in the units of the rows."""
    result = scipy.optimize.minimize(
        objective, p @ rows, (rows, p, rho), jac=gradient, method="BFGS", tol=1e-12
    )
    return result.x


def coordinate_objective(center, rows, p, rho):
    """`[D]` the objective of every coordinate."""
    size = np.abs(rows - center)
    return p @ np.where(size <= rho, size**2 / (2 * rho), size - rho / 2)


def coordinate_force(center, rows, p, rho):
    """`[D]` s, the negative derivative times rho."""
    return p @ np.clip(rows - center, -rho, rho)


def coordinate_median(rows, p, rho, steps=200):
    """The end points of the minimizers `[D]`, by bisection on the sign of s."""
    ends = []
    for compare in (np.greater, np.greater_equal):
        low, high = rows.min(axis=0) - 1, rows.max(axis=0) + 1
        for _ in range(steps):
            middle = (low + high) / 2
            s = coordinate_force(middle, rows, p, rho)
            s = np.where(np.abs(s) <= 1e-14 * rho, 0, s)  # rounding of a sum
            right = compare(s, 0)
            low, high = np.where(right, middle, low), np.where(right, high, middle)
        ends.append((low + high) / 2)
    return ends[0], ends[1]


def weighted_median(rows, weights):
    """Midpoint of the lower and the upper weighted median, with integer weights."""
    return np.median(np.repeat(rows, weights, axis=0), axis=0)


def finite_differences(function, x, h=1e-5):
    """Central differences of a function of an array to a number."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        e = np.zeros_like(x)
        e[place] = h
        found[place] = (function(x + e) - function(x - e)) / (2 * h)
    return found
