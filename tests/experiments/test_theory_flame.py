"""FLAME's convergence and optimum in `python -m experiments.theory`: it can fail."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.theory import (
    closed_forms,
    flame_convergence,
    flame_optimum,
    flame_powers,
    rows,
)
from experiments.theory import fedplus_quadratics as quadratics

QUICK = rows.Options(seeds=2, quick=True)


@pytest.fixture(scope="module")
def run():
    """All clients in every round."""
    return flame_convergence.Wells(0).visited(10, 1000)


def answers(found):
    return {row.quantity.partition(":")[0]: row.holds for row in found}


def test_the_paper_conditions_hold_where_the_theorems_are_shown():
    conditions = flame_convergence._CONDITIONS
    assert (conditions.c1 & conditions.c2 & conditions.c3).all()
    away = np.linspace(-9, 9, 2001)
    bend = np.gradient(flame_convergence._HEIGHT * (away / 4 + np.sin(2 * away) / 2))
    bend /= away[1] - away[0]
    assert bend.min() < 0 and bend.max() <= flame_convergence._SMOOTHNESS


def test_lemma_2_and_theorems_1_to_3_hold_and_could_fail(run):
    found = flame_convergence.statements([run])
    assert {row.holds for row in found} == {"yes"}
    fields = dataclasses.fields(run)
    early = {f.name: getattr(run, f.name) for f in fields}
    early = {n: x if n == "centers" else x[:60] for n, x in early.items()}
    found = answers(flame_convergence.statements([flame_convergence.Visited(**early)]))
    assert found["Theorem 1"] == found["Theorem 2"] == "no"
    assert found["Lemma 2"] == found["Theorem 3"] == "yes"
    steep = dataclasses.replace(run, dual=1e4 * run.dual)
    found = answers(flame_convergence.statements([steep]))
    assert found["Lemma 2"] == found["Theorem 3"] == "no"


def test_lemma_2_needs_all_clients():
    few = flame_convergence.Wells(0).visited(2, 60)
    constant = flame_convergence._CONDITIONS.relative_error
    assert flame_convergence._ratios(few, constant).max() > 10


def test_gradients_are_those_of_the_lagrangian():
    rng = np.random.default_rng(0)
    theta, copies, dual = rng.normal(size=(3, 1, 10, 2))
    w, centers = rng.normal(size=(1, 2)), rng.normal(size=(10, 2))
    eps = np.zeros((1, 10))
    visited = flame_convergence.Visited(theta, copies, dual, w, eps, centers)
    rho, lam, height = 0.1, flame_convergence._LAM, flame_convergence._HEIGHT

    def lagrangian(theta, copies, dual, w):
        away = theta - centers
        f = height * (jnp.square(away) / 8 + (1 - jnp.cos(2 * away)) / 4)
        pull = f + lam / 2 * jnp.square(theta - copies)
        apart = copies - w[None]
        return (pull / 10 + dual * apart + rho / 2 * jnp.square(apart)).sum()

    blocks = (theta[0], copies[0], dual[0], w[0])
    value, slopes = jax.value_and_grad(lagrangian, argnums=(0, 1, 2, 3))(*blocks)
    assert visited.lagrangian[0] == pytest.approx(value)
    square = sum(jnp.square(slope).sum() for slope in slopes)
    assert visited.squared_gradient[0] == pytest.approx(float(square))


def test_the_printed_constant_of_lemma_2_is_large_enough():
    """Errors of all steps at once: the largest eigenvalue of a quadratic form."""
    rng = np.random.default_rng(0)
    ratios, of_proof = [], []
    for _ in range(2000):
        alpha, lam, rho, smoothness = 10 ** rng.uniform(-2, 2, size=4)
        a = alpha * lam
        # Of dtheta, dw_i and the residual: blocks of theta_i, of w_i and of pi_i.
        step = np.array([alpha * smoothness + a, 0, 1])
        apart = np.array([a, -a - rho, 0])
        worst = np.linalg.norm([step, apart, apart / rho], 2) ** 2
        conditions = closed_forms.paper_conditions(
            np.array([alpha]), lam, rho, smoothness
        )
        ratios.append(worst / conditions.printed_relative_error)
        of_proof.append(worst / conditions.relative_error)
    assert 0.5 < max(ratios) <= 1
    assert max(of_proof) <= 1


@pytest.fixture(scope="module")
def gaps():
    return {p: flame_powers.Powers(p).rounds(2048)[0] for p in (3, 4)}


def test_exponents_are_those_of_theorem_4_and_of_no_other_power(gaps):
    for power, gap in gaps.items():
        for other in (3, 4, 6):
            row = flame_powers.exponent_row(flame_powers.Powers(other), gap)
            assert row.holds == ("yes" if other == power else "no")


def test_rates_of_powers_hold_on_the_quick_page():
    found = flame_powers.powers(QUICK).rows
    assert {row.holds for row in found} == {"yes"}
    assert {row.settings["p"] for row in found} == {1, 2, 4}
    gap = flame_powers.Powers(2).rounds(512)[0]
    expected = flame_powers.Powers(2).predicted_factor
    for factor, holds in ((expected, "yes"), (expected - 0.005, "no")):
        assert flame_powers.factor_row(2, factor, gap).holds == holds


def test_rounds_as_a_matrix_have_the_factors_of_the_table():
    matrix = closed_forms.round_matrix(np.full(4, 0.7), 0.7, 2.0)
    radius = np.abs(np.linalg.eigvals(matrix)).max()
    factors = closed_forms.convergence_factors(2.0, 1.0, "local")
    assert radius == pytest.approx(max(factors), abs=1e-12)


def test_the_optimum_is_where_rounds_end_and_not_the_printed_one(monkeypatch):
    problems = [quadratics.Quadratics.draw(0)]
    found = flame_optimum.solution_rows(problems)
    assert [row.holds for row in found] == ["yes", "yes"]
    right = closed_forms.regression_optimum

    def printed(curvature, targets, lam):
        w, theta = right(curvature, targets, lam)
        return lam * w, theta

    monkeypatch.setattr(closed_forms, "regression_optimum", printed)
    assert flame_optimum.solution_rows(problems)[0].holds == "no"


@pytest.mark.wide
def test_losses_at_the_optimum_are_not_the_printed_ones():
    found = {
        row.quantity: row
        for row in flame_optimum.optimum(QUICK).rows
        if row.settings["lam"] == 2.0
    }
    right = found["loss of theta at the optimum"]
    printed = found["loss of theta as printed (FLAME-12)"]
    assert right.holds == "yes"
    assert dataclasses.replace(right, theory=printed.theory).holds == "no"
