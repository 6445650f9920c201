"""Derivatives at fixed points, against closed forms and derivatives through rounds."""

import dataclasses
import pathlib

import jax
import numpy as np
import optax
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import checks, loops
from tests import problems
from tests.engine import breaking, specs
from tests.engine.derivatives import test_closed_forms as closed_forms
from tests.lanes import wide

KEY = closed_forms.KEY
PROBLEM = closed_forms.PROBLEM
RTOL = 1e-6
# Small curvatures are out of reach of few gradient steps. A decay below 1 has no fixed
# point, in the same program.
STEPS = problems.full_gradient_steps(5, 0.4, decay=1.0)
EXACT = fp.local.ToTolerance(learning_rate=0.3, tolerance=1e-24, max_steps=5000)
BOWLS = problems.random_quadratics(num_clients=5, curvature=1.5)


def differentiate(algorithm, fields, num_rounds, problem=PROBLEM, **options):
    process = fp.FederatedProcess(algorithm=algorithm)
    options = {"evaluate_on": "validation", "progress": False} | options
    given = KEY, process, problem.model, problem.federation, fields, num_rounds
    return fp.hypergradients(*given, **{"implicit": True} | options)


def moreau(lam):
    """`theta_i = (A_i + lam)^-1 (A_i that_i + lam w)` and `w = mean theta`."""
    eye = np.eye(closed_forms.DIM)
    inverse = np.linalg.inv(PROBLEM.curvature + lam * eye)
    own = np.einsum(
        "ijk,ikl,il->ij", inverse, PROBLEM.curvature + 0 * lam, PROBLEM.estimates
    )
    w = np.linalg.solve(eye - lam * inverse.mean(axis=0), own.mean(axis=0))
    return own + lam * inverse @ w, w


def of_moreau(lam):
    """Derivative in lam of the mean loss of the personal models."""
    theta, _ = moreau(lam + 1e-30j)
    return PROBLEM.losses(theta).mean().imag / 1e-30


def of_fedavg(rate, steps):
    """The same in the step size: `w = sum a M that / sum a M`, M = 1 - (1 - rate A)^K.

    The objective is that of the global model.
    """
    alpha, eye = PROBLEM.alpha("examples"), np.eye(closed_forms.DIM)
    rate = rate + 1e-30j
    left = eye - rate * PROBLEM.curvature
    power = np.stack([np.linalg.matrix_power(matrix, steps) for matrix in left])
    moved = alpha[:, None, None] * (eye - power)
    w = np.linalg.solve(moved.sum(0), np.einsum("ijk,ik->j", moved, PROBLEM.estimates))
    rows = np.broadcast_to(w, PROBLEM.estimates.shape)
    return PROBLEM.losses(rows).mean().imag / 1e-30


PERSONAL = "validation:loss:personal"


def of_flame(solver):
    """FLAME, and its fields."""
    flame = fp.Flame(lam=0.7, kappa=1.5, local=solver, eps_decay=0.0)
    return flame, ["algorithm.lam", "algorithm.kappa", "algorithm.local.learning_rate"]


@pytest.mark.parametrize("solver", [STEPS, wide(EXACT)], ids=["steps", "exact"])
def test_flame_is_a_moreau_optimum(solver):
    """Of which only lam is a part: neither the penalty nor the step size."""
    flame, fields = of_flame(solver)
    found = differentiate(flame, fields, num_rounds=600, objective=PERSONAL)
    theta, _ = moreau(0.7)
    np.testing.assert_allclose(found.value, [PROBLEM.losses(theta).mean()], rtol=RTOL)
    slopes = [found.derivatives[field] for field in fields]
    expected = of_moreau(0.7)
    np.testing.assert_allclose(slopes[0], [expected], rtol=RTOL)
    np.testing.assert_allclose(slopes[1:], 0, atol=RTOL * abs(expected))
    assert found.is_met.all() and found.held_fixed == ()
    assert found.fixed_point.shape == (1,) and found.fixed_point[0] <= found.tolerance
    assert {*found.residual} == {*found.derivatives}
    assert str(found).endswith("at a fixed point.")


@pytest.mark.wide
@pytest.mark.parametrize("solver", [STEPS, wide(EXACT)], ids=["steps", "exact"])
def test_fedavg_plus_is_a_moreau_optimum(solver):
    """With weight `alpha rho / (1 + rho)`, as `z - c = (w - c) / (1 + rho)`.

    The server keeps rho from the start on, which no round changes.
    """
    alpha, rho = 0.8, 0.9
    method = fp.FedPlus.mean(alpha=alpha, rho=rho, local=solver)
    fields = ["algorithm.alpha", "algorithm.rho"]
    found = differentiate(
        method, fields, num_rounds=700, objective="validation:loss:personal"
    )
    share = rho / (1 + rho)
    slope = of_moreau(alpha * share)
    expected = [slope * share, slope * alpha / (1 + rho) ** 2]
    slopes = [found.derivatives[name][0] for name in fields]
    np.testing.assert_allclose(slopes, expected, rtol=RTOL)
    assert found.is_met.all()


@pytest.mark.wide
def test_fedavg_is_an_optimum_of_its_own():
    """That the number and the size of local steps weigh."""
    found = differentiate(
        fp.FedAvg(local=STEPS), "algorithm.local.learning_rate", num_rounds=100
    )
    (slope,) = found.derivatives["algorithm.local.learning_rate"]
    np.testing.assert_allclose(slope, of_fedavg(0.4, 5), rtol=RTOL)
    assert found.is_met.all()


@pytest.mark.wide
@pytest.mark.parametrize("name", [wide("fedplus_geometric"), "fedplus_mean"])
def test_fixed_points_of_steps_are_those_of_many_rounds(name):
    """With a start between model and center, which steps do not forget."""
    case = closed_forms.CASES[name]
    found = differentiate(
        case.algorithm,
        [f"algorithm.{field}" for field in case.fields],
        num_rounds=400,
        objective=f"validation:loss:{case.model}",
    )
    for field in case.fields:
        expected = case.slope(400, field)
        slope = found.derivatives[f"algorithm.{field}"]
        np.testing.assert_allclose(slope, [expected], rtol=RTOL, err_msg=field)
    assert found.is_met.all()


@pytest.mark.wide
def test_forward_reverse_and_implicit_agree_where_rounds_have_converged():
    """Forward gives the sum of what the others say of every client."""
    solver = problems.exact_step(BOWLS, 0.6)
    flame = fp.Flame(lam=0.6, rho=0.2, weighting="examples", local=solver)
    own = {"algorithm.lam": np.full(5, 0.6)}
    process = fp.FederatedProcess(algorithm=flame, per_client=own)
    bare = dataclasses.replace(process, per_client=None)
    rest = BOWLS.model, BOWLS.federation
    options = {"evaluate_on": "validation", "progress": False}
    options["objective"] = "validation:loss:personal"

    def found(process, field, **more):
        given = KEY, process, *rest, [field], 90
        return fp.hypergradients(*given, **options | more)

    back = found(process, "per_client.algorithm.lam")
    at_once = found(process, "per_client.algorithm.lam", implicit=True)
    through = found(bare, "algorithm.lam")
    common = found(bare, "algorithm.lam", implicit=True)
    assert common.is_met.all() and at_once.is_met.all()
    slopes = at_once.derivatives["per_client.algorithm.lam"]
    assert slopes.shape == at_once.residual["per_client.algorithm.lam"].shape == (1, 5)
    expected = back.derivatives["per_client.algorithm.lam"]
    scale = np.abs(expected).max()
    np.testing.assert_allclose(slopes, expected, rtol=RTOL, atol=RTOL * scale)
    expected = through.derivatives["algorithm.lam"]
    np.testing.assert_allclose(slopes.sum(axis=1), expected, rtol=RTOL)
    np.testing.assert_allclose(common.derivatives["algorithm.lam"], expected, rtol=RTOL)
    assert len(at_once.table()) == 5 and "residual" in at_once.table()


@pytest.mark.wide
def test_values_per_client_of_solvers_that_end_by_a_tolerance():
    """Each client of Ditto solves `A (v - that) + lam (v - w) = 0` by itself."""
    lam = np.array([0.2, 0.5, 1.0, 0.3, 2.0])
    ditto = fp.Ditto(lam=1.0, local=dataclasses.replace(EXACT, learning_rate=0.2))
    process = fp.FederatedProcess(algorithm=ditto, per_client={"algorithm.lam": lam})
    field = "per_client.algorithm.lam"
    given = KEY, process, BOWLS.model, BOWLS.federation, field, 40
    options = {"evaluate_on": "validation", "progress": False}
    with pytest.raises(checks.InputError, match="ToTolerance.* with implicit=True has"):
        fp.hypergradients(*given, objective="loss:personal", **options)
    found = fp.hypergradients(
        *given, objective="loss:personal", implicit=True, **options
    )
    that, curvature = BOWLS.estimates, 1.5
    w = BOWLS.alpha("examples") @ that
    # The loss of client i is curvature/2 |v - that|^2 and a constant.
    gap = np.square(w - that).sum(axis=1)
    expected = curvature * lam * gap * curvature / (curvature + lam) ** 3 / 5
    np.testing.assert_allclose(found.derivatives[field][0], expected, rtol=RTOL)


@pytest.mark.wide
def test_what_is_not_met_is_said():
    flame = fp.Flame(lam=0.7, kappa=2.5, local=STEPS)
    with pytest.warns(UserWarning, match="1 of 1 points are not exact.*Train longer"):
        found = differentiate(flame, "algorithm.lam", num_rounds=5)
    assert not found.is_met.any() and found.fixed_point[0] > found.tolerance
    assert "a round still moves the state by" in str(found)
    states, _, _ = problems.run(fp.FederatedProcess(algorithm=flame), PROBLEM, 6)
    before, after = (
        np.concatenate(
            [np.ravel(x[k]) for x in jax.tree.leaves(states) if x.dtype == float]
        )
        for k in (-2, -1)
    )
    expected = np.linalg.norm(after - before) / np.linalg.norm(before)
    np.testing.assert_allclose(found.fixed_point, [expected], rtol=1e-9)


SPEC = specs.validated(5, examples=12)
SMALL = fp.SGD(learning_rate=1.0, epochs=2, batch_size=64)
FLAME = fp.FederatedProcess(algorithm=fp.Flame(lam=1.0, kappa=1.0, local=SMALL))
GRID = KEY, FLAME, fp.LogisticRegression(), SPEC, "algorithm.lam"
QUIET = {"progress": False, "objective": "validation:loss:personal"}


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore:Derivatives of")
def test_points_and_devices_change_rounding_only():
    axes = {"algorithm.lam": [0.5, 1.0], "seed": [0, 1]}
    whole = fp.hypergradients(*GRID, 10, axes=axes, implicit=True, **QUIET)
    assert len(whole.points) == len(whole.fixed_point) == 4
    lam = whole.derivatives["algorithm.lam"]
    assert len({*lam}) == 4
    options = {"execution": "shard=2", "points_per_chunk": 3}
    part = fp.hypergradients(*GRID, 10, axes=axes, implicit=True, **QUIET, **options)
    np.testing.assert_allclose(part.derivatives["algorithm.lam"], lam, rtol=1e-7)


@pytest.mark.filterwarnings("ignore:Derivatives of")
@pytest.mark.wide
def test_a_training_goes_on_and_is_differentiated_once_it_has_ended(tmp_path):
    whole = fp.hypergradients(*GRID, 6, implicit=True, **QUIET)

    def kept(*callbacks):
        place = fp.Checkpoints(pathlib.Path(tmp_path) / "saved")
        options = {"checkpoints": place, "callbacks": callbacks, "eval_every": 2}
        return fp.hypergradients(*GRID, 6, implicit=True, **QUIET, **options)

    with pytest.raises(InterruptedError):
        kept(breaking.Stop(at=4))
    for found in (kept(), kept()):  # goes on, and finds that it has ended
        np.testing.assert_array_equal(found.value, whole.value)
        for name, slopes in whole.derivatives.items():
            np.testing.assert_array_equal(found.derivatives[name], slopes)


def test_a_decay_of_the_learning_rate_has_no_fixed_point():
    solver = dataclasses.replace(STEPS, decay=0.9)
    message = "of Flame with a learning rate that decays: rounds 1 and 600 lead"
    with pytest.raises(checks.InputError, match=message):
        differentiate(*of_flame(solver), num_rounds=600, objective=PERSONAL)


ONE = problems.full_gradient_steps(1, 0.1)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("parts", "causes"),
    [
        (
            {"algorithm": fp.FedAvg(local=fp.SGD(learning_rate=0.1, batch_size=3))},
            "FedAvg with batches of 3 of up to 12 examples: rounds 1 and 9 lead",
        ),
        ({"participation": fp.UniformCohort(size=2)}, "cohorts of 2 of 5 clients"),
        ({"work": fp.Stragglers(fraction=0.5)}, "with Stragglers: rounds"),
        (
            {
                "algorithm": fp.FedAvg(
                    local=dataclasses.replace(
                        ONE, learning_rate=optax.linear_schedule(0.1, 0.01, 20)
                    )
                )
            },
            "with a schedule of the learning rate",
        ),
        (
            {"attack": fp.attacks.Gaussian(std=1.0)},
            "with draws, or what changes by itself",
        ),
    ],
)
def test_rounds_that_are_not_alike_have_no_fixed_point(parts, causes):
    federation = dataclasses.replace(
        PROBLEM.federation, malicious=np.arange(5) == (0 if "attack" in parts else -1)
    )
    algorithm = fp.FedAvg(local=dataclasses.replace(ONE, epochs=3))
    process = dataclasses.replace(fp.FederatedProcess(algorithm=algorithm), **parts)
    given = KEY, process, PROBLEM.model, federation
    with pytest.raises(checks.InputError, match=causes) as caught:
        fp.hypergradients(
            *(*given, "algorithm.local.weight_decay", 9),
            implicit=True,
            evaluate_on="validation",
            progress=False,
        )
    assert "\n" not in str(caught.value)


def test_wrong_arguments():
    with pytest.raises(checks.InputError, match="implicit"):
        differentiate(fp.FedAvg(), "algorithm.local.learning_rate", 2, implicit="yes")
    with pytest.raises(checks.InputError, match="a compiled execution"):
        differentiate(fp.FedAvg(), "algorithm.local.learning_rate", 2, execution="loop")


def test_a_solver_is_differentiated_at_its_solution_in_the_block_alone():
    """Of `x^2 = a` about its zero, however near the search ended."""

    def root(a):
        return loops.stationary(lambda x: (x * x - a) / 2, jax.lax.stop_gradient(a) / 3)

    assert jax.jvp(root, (9.0,), (1.0,)) == (3.0, 0.0)
    with loops.at_solutions(lambda product, right: right / product(1.0)):
        value, slope = jax.jvp(lambda a: root(a), (9.0,), (1.0,))
    assert (value, slope) == (3.0, pytest.approx(1 / 6))
