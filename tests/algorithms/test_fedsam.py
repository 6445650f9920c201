"""FedSAM against its equations in NumPy, and the penalty of small rho."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.algorithms import fedsam
from fedjax_pfl.testing import compiled_rounds, toy
from tests import problems
from tests.lanes import wide
from tests.setups import process

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
ETA, RHO = 0.2, 0.3


def raised(problem, client, x, rho):
    gradient = problem.gradient(client, x)
    return x + rho * gradient / np.linalg.norm(gradient)


@pytest.mark.parametrize(("momentum", "decay"), [wide(None, 0.0), (0.5, 0.1)])
def test_rounds_are_the_equations_in_numpy(momentum, decay):
    problem, budget = problems.waves(), (1, 3, 2)
    local = problems.full_gradient_steps(3, ETA, momentum=momentum, weight_decay=decay)
    whole = process(
        algorithms.FedSAM(rho=RHO, local=local, keeps_local=True),
        4,
        work=fp.local.ClientBudgets(epochs=budget),
    )
    states, infos, _ = problems.run(whole, problem, 8)
    sizes = np.asarray(problem.federation.train.num_examples, float)
    x = states.server["theta"][0]
    for number in range(8):
        cohort, models = infos.cohort[number], []
        for i in cohort:
            y, velocity = x, 0.0
            for _ in range(budget[i % 3]):
                slope = problem.gradient(i, raised(problem, i, y, RHO)) + decay * y
                velocity = (momentum or 0.0) * velocity + slope
                y = y - ETA * velocity
            models.append(y)
            np.testing.assert_allclose(
                states.clients["theta"][number + 1, i], y, **CLOSE
            )
        x = np.average(models, axis=0, weights=sizes[cohort])
        np.testing.assert_allclose(states.server["theta"][number + 1], x, **CLOSE)
        steps = np.array([budget[i % 3] for i in cohort])
        counts = infos.client["gradient_evaluations"][number]
        np.testing.assert_array_equal(counts, 2 * steps * sizes[cohort])


def test_a_zero_gradient_is_no_direction():
    zeros = {"a": jnp.zeros(2), "b": jnp.zeros(())}
    assert all(not leaf.any() for leaf in jax.tree.leaves(fedsam.ascent(zeros, 1.0)))
    step = fedsam.ascent({"a": jnp.array([2.0, 0.0]), "b": jnp.array(1.0)}, 3.0)
    np.testing.assert_allclose(step["a"], [6 / 5**0.5, 0])
    # At the minimizer of a quadratic nothing moves.
    problem = problems.quadratics([[1.0, 2.0]])
    local = problems.full_gradient_steps(1, ETA)
    whole = process(algorithms.FedSAM(rho=RHO, local=local))
    state = problems.first_state(whole, problem)
    best = {"theta": jnp.asarray(problem.estimates[0])}
    state = fp.core.struct.replace_field(state, "server", best)
    states, _, _ = problems.run(whole, problem, 1, state=state)
    np.testing.assert_allclose(states.server["theta"][1], best["theta"], **CLOSE)


def test_the_compiled_step_has_no_second_derivatives():
    """The work of a step is that of two gradients."""
    federation = toy.make_federation()
    model = fp.MLP(widths=(64, 64)).for_federation(federation)
    params = model.init(jax.random.key(0))
    data = federation.train
    one = data.pool().with_rows(jax.tree.map(lambda leaf: leaf[2], data.rows()))
    batch = one.gather(jnp.arange(9), jnp.ones(9))
    loss = fp.local.DataLoss(model)

    def flops(objective):
        step = jax.jit(lambda p: jax.grad(objective, argnums=1)(None, p, batch, None))
        return step.lower(params).compile().cost_analysis()["flops"]

    assert flops(fedsam._Perturbed(loss, RHO)) < 2.3 * flops(loss)


@pytest.mark.wide
def test_personal_parameters_descend_at_the_perturbed_model():
    federation = toy.make_federation()
    roles = fp.ParameterRoles(fp.MLP(widths=(4,)), personal="^head/")
    model = roles.for_federation(federation)
    local = problems.full_gradient_steps(1, ETA)
    whole = process(algorithms.FedSAM(rho=RHO, local=local))
    state = compiled_rounds.init(whole, jax.random.key(0), model, federation)
    after, _ = compiled_rounds.run_round(whole, state, model, federation)
    plain = fp.MLP(widths=(4,)).for_federation(federation)
    head = jax.tree.map(lambda leaf: leaf[2], state.rows["carry"])
    body = state.server
    data = federation.train
    one = data.pool().with_rows(jax.tree.map(lambda leaf: leaf[2], data.rows()))
    batch = one.gather(jnp.arange(9), jnp.ones(9))

    def loss(body, head):
        whole = fp.core.tree_paths.join(body, head)
        return plain.loss(plain.apply(whole, batch.x), batch)

    slope = jax.grad(loss)(body, head)
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(slope)))
    point = jax.tree.map(lambda w, g: w + RHO * g / norm, body, slope)
    expected = jax.tree.map(
        lambda h, g: h - ETA * g, head, jax.grad(loss, argnums=1)(point, head)
    )
    found = jax.tree.map(lambda leaf: leaf[2], after.rows["carry"])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), found, expected
    )
