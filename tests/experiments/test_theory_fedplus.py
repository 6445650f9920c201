"""The page of Fed+ in `python -m experiments.theory`: it holds, and could fail."""

import dataclasses

import numpy as np
import pytest

import fedjax_pfl as fp
from experiments.theory import (
    fedplus_descent,
    fedplus_fixed_points,
    fedplus_iterations,
    fedplus_rounds,
    rows,
)
from experiments.theory import fedplus_quadratics as quadratics

ROUNDS = 200  # more than enough for the fixed point


@pytest.fixture(scope="module")
def problem():
    return quadratics.Quadratics.draw(0)


def answers(found):
    return {row.quantity: row.holds for row in found}


@pytest.mark.parametrize("name", ["sq", "zero"])
def test_corollaries_hold_that_quick_pages_leave_out(problem, name):
    run = problem.visited(quadratics.exact(name, problem), ROUNDS)
    found = fedplus_fixed_points.statements(name, problem, run)
    assert sum("Corollary 1" in row.quantity for row in found) == 1
    assert {row.holds for row in found if row.relation} == {"yes"}


@pytest.mark.wide
def test_another_center_is_no_fixed_point(problem):
    """Nor is a point before the end, whatever the rule."""
    process = quadratics.exact("l2", problem, aggregator=fp.aggregators.Mean())
    run = problem.visited(process, ROUNDS)
    found = answers(fedplus_fixed_points.statements("l2", problem, run))
    assert found["Theorem 1: |w - z + grad ft(z) / alpha|"] == "yes"
    assert found["Theorem 1: |mean of grad ft(z)|"] == "no"
    assert found["stationarity: |grad F|"] == "no"
    early = quadratics.Visited(
        **{f.name: getattr(run, f.name)[:10] for f in dataclasses.fields(run)}
    )
    for name in ("l2", "sq", "indicator", "zero"):
        found = answers(fedplus_fixed_points.statements(name, problem, early))
        claimed = {n: holds for n, holds in found.items() if holds and " not:" not in n}
        assert set(claimed.values()) == {"no"}
    for name in fedplus_fixed_points.RULES:
        found = fedplus_fixed_points.proposition_3(name, problem, early)
        assert set(answers(found).values()) == {"no"}


def test_the_worst_seed_is_reported():
    def row(value, relation="="):
        return rows.Row("x", {}, 0.0, value, relation, tolerance=1.0)

    for values, relation, expected in [
        ((0.1, 0.5), "=", 0.5),
        ((0.5, -3.0), "=", -3.0),
        ((0.5, np.nan), "=", np.nan),
        ((0.5, 0.1), ">=", 0.1),
    ]:
        by_seed = [[row(value, relation)] for value in values]
        (found,) = fedplus_fixed_points._worst(by_seed)
        np.testing.assert_equal(found.simulation, expected)


def test_rises_and_their_absence_are_told_apart():
    falling = 1.0 + np.array([[4.0, 2.0, 1.0, 0.5]])
    rising = 1.0 + np.array([[4.0, 2.0, 1.0, 1.0 + 1e-9]])
    for objectives, is_monotone, expected in [
        (falling, True, "yes"),
        (falling, False, "no"),
        (rising, True, "no"),
        (rising, False, "yes"),
        (falling * np.nan, True, "no"),
    ]:
        found = fedplus_descent.descent_rows("x", is_monotone, objectives, objectives)
        assert [row.holds for row in found] == [expected, ""]


def test_too_few_steps_and_more_steps_at_small_radii_are_seen():
    models = np.eye(5)
    centers, radii = np.full((5, 5), 0.1), 0.1 ** np.arange(5)
    way = np.linalg.norm(centers[0] - models.mean(axis=0)) / radii
    right = {"equation (34)": way + 1, "Weiszfeld": np.full(5, 7.0)}
    found = fedplus_iterations.step_rows("x", right, models, centers, radii)
    assert [row.holds for row in found] == 6 * ["yes"]
    wrong = {"equation (34)": way - 0.01, "Weiszfeld": np.array([7, 7, 7, 7, 8.0])}
    found = fedplus_iterations.step_rows("x", wrong, models, centers, radii)
    assert [row.holds for row in found] == 6 * ["no"]
    none = {"equation (34)": np.full(5, np.nan), "Weiszfeld": np.full(5, np.nan)}
    (row,) = fedplus_iterations.step_rows("x", none, models, centers, radii)
    assert row.holds == "no"


@pytest.mark.wide
def test_propositions_1_2_and_4_could_fail(problem):
    """At other anchors, of other steps, and of starts mixed with the center."""
    run = problem.visited(fedplus_rounds.process("l2", problem), 20)
    found = [*fedplus_rounds.split("l2", [problem], [run])]
    found.append(fedplus_rounds.stepped("l2", [problem], [run]))
    gains = fedplus_rounds.gained(problem, run)
    found.append(fedplus_rounds.descents("l2", 0.0, gains))
    assert [row.holds for row in found] == 4 * ["yes"]
    apart = 1e-3 * np.random.default_rng(0).normal(size=run.z.shape)
    other = dataclasses.replace(run, z=run.z + apart)
    found = fedplus_rounds.split("l2", [problem], [other])
    found.append(fedplus_rounds.stepped("l2", [problem], [other]))
    assert [row.holds for row in found] == 3 * ["no"]
    center = dataclasses.replace(run, c=run.c + 0.1)
    found = answers(fedplus_rounds.split("l2", [problem], [center]))
    assert found["Proposition 1: F less a lower bound of H"] == "no"
    for factor in (1.0, 0.5):  # too small a decrease
        row = fedplus_rounds.descents("l2", 0.0, gains * [[1.0], [factor]])
        assert row.holds == ("yes" if factor == 1.0 else "no")
    row = fedplus_rounds.descents("l2", 0.05, gains)
    assert row.holds == "no"


def test_envelopes_are_minima_with_their_gradients(problem):
    rng = np.random.default_rng(0)
    z = rng.normal(size=problem.targets.shape)
    w = problem.solutions(z)
    values = problem.envelopes(z)

    def coupled(w, z):
        pull = quadratics.ALPHA / 2 * np.square(w - z).sum(axis=1)
        return problem.losses(w) + pull

    for _ in range(20):
        assert (coupled(w + 1e-3 * rng.normal(size=w.shape), z) > values).all()
    step = 1e-6 * rng.normal(size=z.shape)
    slope = (problem.envelopes(z + step) - problem.envelopes(z - step)) / 2
    expected = (problem.envelope_gradients(z) * step).sum(axis=1)
    np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=1e-14)


def test_the_local_rate_is_that_of_the_steps():
    """Of a step about its fixed point, by differences."""
    models = np.random.default_rng(1).normal(size=(9, 3))
    rho = 1.5
    center = np.zeros(3)

    def direction(c):
        away = models - c
        eta = 1 / np.maximum(np.linalg.norm(away, axis=1), rho)
        return eta @ away / eta.sum(), eta @ away / len(models)

    for _ in range(500):
        center = center + direction(center)[0]
    tau, kappa = fedplus_iterations.local_rates(models, center, rho)
    steps = 1e-6 * np.eye(3)
    for number, factor in ((0, kappa), (1, 1 - tau * (1 - kappa))):
        scale = 1 if number == 0 else rho
        jacobian = [
            (direction(center + s)[number] - direction(center - s)[number]) / 2e-6
            for s in steps
        ]
        found = np.linalg.eigvals(np.eye(3) + scale * np.array(jacobian)).real.max()
        assert found == pytest.approx(factor, rel=1e-6)
