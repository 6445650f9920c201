"""The page of FedPG in `python -m experiments.theory`: it holds, and could fail."""

import numpy as np
import pytest

import fedjax_pfl as fp
from experiments.theory import common_descent, common_descent_rate, rows

QUICK = rows.Options(seeds=2, quick=True)


@pytest.mark.wide
def test_bowls_are_the_quadratics_that_they_say():
    problem = common_descent.Bowls.draw(3)
    algorithm = fp.FedPG(local=fp.SGD(learning_rate=0.1), history="none")
    path, report = problem.visited(algorithm, 2, np.ones(10))
    error = path[1] - problem.minimizers
    expected = 1 + np.einsum("ni,nij,nj->n", error, problem.curvature, error) / 2
    np.testing.assert_allclose(problem.losses(path)[1], expected)
    size = np.linalg.norm(problem.losses(path)[1])
    sine = np.sqrt(1 - (expected.sum() / size) ** 2 / 5)
    np.testing.assert_allclose(np.sin(np.radians(report["loss_angle"][1])), sine)


@pytest.mark.wide
def test_an_end_off_the_front_would_be_seen(monkeypatch):
    monkeypatch.setattr(
        common_descent,
        "_fedpg",
        lambda _, **fields: fp.FedPG(local=fp.SGD(learning_rate=0.001), history="none"),
    )  # too short a way
    found = common_descent.front(QUICK)
    assert "no" in [row.holds for row in found.rows]


def test_the_linear_rate_could_fail():
    """Paths of a contraction by I - P H / L, too slow a one, and one that hovers."""
    problem = common_descent.Bowls.make(
        np.array([np.diag([1.0, 10.0])] * 2), np.array([[0.0, 0], [0, 2]])
    )
    limit = np.array([0.0, 1.0])
    # Both gradients are along the second axis: P is the first, where H is 1.
    step = common_descent_rate.local_map(problem, limit)
    np.testing.assert_allclose(step, np.diag([0.9, 1.0]), atol=1e-12)

    def holds(name, factor):
        times = np.arange(200)
        path = limit + np.outer(factor**times, [1.0, 0.0])
        found = common_descent_rate.rate_rows(name, [problem], [path])
        return [row.holds for row in found]

    assert holds("d", 0.9) == ["yes", "yes", "yes", "yes"]
    assert holds("d", 0.97) == ["no", "no", "yes", "no"]
    assert holds("d", 0.8) == ["yes", "yes", "yes", "no"]
    assert holds("sigma d, as written", 0.9) == ["no"]
    assert holds("sigma d, as written", 0.999) == ["yes"]
    assert holds("d, with the fairness row", 0.9) == [""]
