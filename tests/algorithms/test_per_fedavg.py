"""Per-FedAvg: Hessian products, the meta gradient, fixed points and limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import flatten_util

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.algorithms import per_fedavg
from fedjax_pfl.testing import toy
from tests import problems

CLOSE = {"rtol": 1e-11, "atol": 1e-12}
KEY = jax.random.key(3, impl="threefry2x32")
HESSIANS = ("first_order", "finite_difference", "exact")


def process(size=None, work=None, **fields):
    fields = {"batch_size": problems.FULL_BATCH} | fields
    return fp.FederatedProcess(
        algorithm=algorithms.PerFedAvg(**fields),
        participation=fp.AllClients() if size is None else fp.UniformCohort(size=size),
        work=work or fp.local.FullWork(),
    )


def test_products_on_a_quadratic_are_equal():
    rng = np.random.default_rng(0)
    root, w, g = rng.normal(size=(4, 4)), rng.normal(size=4), rng.normal(size=4)
    matrix = root @ root.T

    def gradient(x):
        return {"x": jnp.asarray(matrix) @ x["x"] + 1.0}

    point, direction = {"x": jnp.asarray(w)}, {"x": jnp.asarray(g)}
    exact = per_fedavg.hessian_product(gradient, point, direction)["x"]
    np.testing.assert_allclose(exact, matrix @ g, rtol=1e-13)
    for difference in (1e-3, 1.0, 50.0):
        found = per_fedavg.difference_product(gradient, point, direction, difference)
        # A difference of gradients of size |A| (|w| + e) loses eps of it, over e.
        np.testing.assert_allclose(found["x"], exact, rtol=1e-10)
    zero = per_fedavg.difference_product(gradient, point, {"x": jnp.zeros(4)}, 1e-3)
    np.testing.assert_array_equal(zero["x"], 0.0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_products_on_a_network_agree_whatever_the_gradients_length(dtype):
    model = fp.MLP(widths=(16,), input_shape=(4,), num_classes=3)
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(20, 4)), dtype), rng.integers(3, size=20)
    batch = fp.core.Batch(x=x, y=jnp.asarray(y), weight=jnp.ones(20, dtype))
    start, unravel = flatten_util.ravel_pytree(
        jax.tree.map(lambda leaf: leaf.astype(dtype), model.init(KEY))
    )
    unit = jnp.asarray(rng.normal(size=start.shape), dtype)
    unit = unit / jnp.linalg.norm(unit)

    @jax.jit
    def products(g):
        gradient = jax.grad(lambda v: model.loss(model.apply(unravel(v), x), batch))
        return (
            per_fedavg.hessian_product(gradient, start, g),
            per_fedavg.difference_product(gradient, start, g, 1e-3),
        )

    for length in (1e-4, 1.0, 1e4):
        exact, found = map(np.asarray, products(length * unit))
        assert np.linalg.norm(found - exact) < 1e-2 * np.linalg.norm(exact)
        assert np.linalg.norm(exact) > 1e-2 * length


@pytest.mark.parametrize("hessian", ["exact", "finite_difference"])
def test_a_step_is_the_derivative_of_the_meta_objective(hessian):
    problem, a, b, step = problems.waves(num_clients=1), 0.8, 0.1, 1e-5
    whole = process(
        inner_learning_rate=a, learning_rate=b, num_steps=1, hessian=hessian
    )
    states, _, _ = problems.run(whole, problem, 1)
    w, new = states.server["theta"]

    def meta(w):
        return problem.loss(0, w - a * problem.gradient(0, w))

    slope = [(meta(w + step * e) - meta(w - step * e)) / (2 * step) for e in np.eye(3)]
    # Central differences: here step^2 and eps / step, in the method 1e-3^2.
    atol = 1e-9 if hessian == "exact" else 1e-6
    np.testing.assert_allclose((w - new) / b, slope, atol=atol)
    first = problem.gradient(0, w - a * problem.gradient(0, w))
    assert np.abs(first - slope).max() > 1e-2  # what h is there for


@pytest.mark.wide
def test_without_an_inner_step_all_kinds_are_fedavg():
    problem, found = problems.waves(), []
    for hessian in HESSIANS:
        fields = {"inner_learning_rate": 0.0, "learning_rate": 0.3, "num_steps": 3}
        small = process(3, hessian=hessian, batch_size=2, **fields)
        found.append(problems.run(small, problem, 5)[0].server["theta"])
    np.testing.assert_allclose(found[0], found[1], **CLOSE)
    np.testing.assert_allclose(found[0], found[2], **CLOSE)
    local = problems.full_gradient_steps(3, 0.3)
    average = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=local), participation=fp.UniformCohort(size=3)
    )
    theirs, _, _ = problems.run(average, problem, 5)
    full, _, _ = problems.run(process(3, **fields), problem, 5)
    np.testing.assert_allclose(full.server["theta"], theirs.server["theta"], **CLOSE)
    assert np.abs(found[0][-1] - full.server["theta"][-1]).max() > 1e-3


@pytest.mark.wide
def test_fixed_points_on_quadratics_are_those_of_their_equations():
    problem, a = problems.regressions(), 0.2
    inner = np.eye(3) - a * problem.curvature
    alpha = problem.alpha("examples")
    plain = np.einsum("n,nij,njk->nik", alpha, problem.curvature, inner)
    meta = np.einsum("nij,njk->nik", inner, plain)
    limits = {}
    for hessian in HESSIANS:
        system = plain if hessian == "first_order" else meta
        right = np.einsum("nij,nj->i", system, problem.estimates)
        limits[hessian] = np.linalg.solve(system.sum(axis=0), right)
        whole = process(
            inner_learning_rate=a, learning_rate=0.3, num_steps=1, hessian=hessian
        )
        states, _, _ = problems.run(whole, problem, 1500)
        np.testing.assert_allclose(
            states.server["theta"][-1], limits[hessian], atol=1e-8
        )
    assert np.abs(limits["exact"] - limits["first_order"]).max() > 1e-2


@pytest.mark.wide
def test_work_is_counted_and_budgets_cap_it():
    problem = problems.waves()
    counts = np.minimum(np.asarray(problem.federation.train.num_examples), 4)
    stragglers = fp.Stragglers(fraction=1.0, max_epochs=2)
    for hessian, per_step in (("first_order", 2), ("finite_difference", 4)):
        for work, steps in ((None, 3), (stragglers, 1)):
            whole = process(hessian=hessian, batch_size=4, num_steps=3, work=work)
            _, infos, _ = problems.run(whole, problem, 1)
            found = infos.client["gradient_evaluations"][0]
            np.testing.assert_array_equal(found, per_step * steps * counts)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_personal_model_is_adapted_to_all_training_examples(steps):
    problem, a = problems.waves(), 0.5
    algorithm = algorithms.PerFedAvg(
        inner_learning_rate=a, batch_size=2, adapt_steps=steps
    )
    w = np.array([0.3, -1.0, 0.7])
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
    for i in (0, 3):
        data = problem.federation.train
        rows = jax.tree.map(lambda leaf, i=i: leaf[i], data.rows())
        found = algorithm.predictors(
            fp.ClientView(key=KEY, round=0, data=data.pool().with_rows(rows)),
            {"theta": jnp.asarray(w)},
            None,
            problem.model,
        )
        adapted = problem.descend(i, w, w, 0.0, steps, a)
        np.testing.assert_allclose(found["personal"](x), x @ adapted, **CLOSE)
        np.testing.assert_allclose(found["global"](x), x @ w, **CLOSE)


def test_the_batches_of_a_step_are_drawn_independently():
    # f = |w - x|^2 / 2 with one example per batch shows which pair was drawn.
    federation = toy.make_federation(classes=False)
    model = fp.models.Quadratic().for_federation(federation)
    algorithm = algorithms.PerFedAvg(
        inner_learning_rate=0.5, learning_rate=1.0, num_steps=1, batch_size=1
    )
    data = federation.train
    rows = jax.tree.map(lambda leaf: leaf[0], data.rows())
    client = data.pool().with_rows(rows)

    @jax.vmap
    def draw(key):
        down = fp.Downlink(shared={"theta": jnp.zeros(4)})
        view = fp.ClientView(key=key, round=0, data=client)
        _, upload, _ = algorithm.client_update(view, down, None, model)
        return upload.message["theta"]

    # w = 0: wt = x_D / 2, and w+ = -(wt - x_D') = x_D' - x_D / 2.
    found = np.asarray(draw(jax.random.split(KEY, 2000)))
    own = np.asarray(data.x)[np.asarray(client.index)[:5]]
    values = own[None, :] - own[:, None] / 2  # [D, D', 4]
    gaps = np.abs(found[:, None, None] - values[None]).max(axis=-1)
    assert (gaps.reshape(2000, 25).min(axis=1) < 1e-12).all()
    counts = np.bincount(gaps.reshape(2000, 25).argmin(axis=1), minlength=25)
    # 25 equally likely pairs: chi-square with 24 degrees of freedom, at 1e-5.
    assert ((counts - 80) ** 2 / 80).sum() < 66
