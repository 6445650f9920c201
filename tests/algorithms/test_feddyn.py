"""FedDyn against its equations in NumPy, the optimum and FedADMM."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from tests import problems
from tests.lanes import wide
from tests.setups import process, with_malicious

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
ETA = 0.2


@pytest.mark.parametrize("weighting", [wide("uniform"), "examples"])
def test_rounds_are_algorithm_1_in_numpy(weighting):
    """Unscaled duals, as the paper has them: gradients g_i and h."""
    problem, alpha, budget = problems.waves(), 0.3, (1, 4, 2)
    local = problems.full_gradient_steps(4, ETA)
    algorithm = algorithms.FedDyn(alpha=alpha, weighting=weighting, local=local)
    work = fp.local.ClientBudgets(epochs=budget)
    states, infos, _ = problems.run(process(algorithm, 4, work=work), problem, 12)
    w, h, g = states.server.model["theta"][0], np.zeros(3), np.zeros((6, 3))
    alphas = alpha / (6 * problem.alpha(weighting))
    for number in range(12):
        models = []
        for i in infos.cohort[number]:
            theta = w
            for _ in range(budget[i % 3]):
                slope = problem.gradient(i, theta) - g[i] + alphas[i] * (theta - w)
                theta = theta - ETA * slope
            g[i] = g[i] - alphas[i] * (theta - w)
            models.append(theta)
        mean = np.mean(models, axis=0)
        h = h - alpha * 4 / 6 * (mean - w)
        w = mean - h / alpha
        found = states.server
        np.testing.assert_allclose(found.model["theta"][number + 1], w, **CLOSE)
        np.testing.assert_allclose(-alpha * found.dual["theta"][number + 1], h, **CLOSE)
        duals = states.clients.dual["theta"][number + 1]
        np.testing.assert_allclose(-alphas[:, None] * duals, g, **CLOSE)
        np.testing.assert_allclose(
            found.dual["theta"][number + 1], duals.mean(axis=0), **CLOSE
        )


def optimum(problem, weights):
    """Minimizer of the weighted sum of the quadratics."""
    right = np.einsum("n,nij,nj->i", weights, problem.curvature, problem.estimates)
    return np.linalg.solve(np.einsum("n,nij->ij", weights, problem.curvature), right)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("weighting", "size", "steps", "rounds"),
    [
        ("uniform", None, 20, 600),
        wide("examples", 2, 5, 3000),
        wide("examples", None, 1, 2000),
        wide("uniform", 2, 20, 3000),
    ],
)
def test_it_ends_at_the_minimizer_of_clients_that_differ(
    weighting, size, steps, rounds
):
    problem = problems.regressions()
    weights = problem.alpha(weighting)
    best = optimum(problem, weights)
    at_best = problem.gradients(np.tile(best, (len(weights), 1)))
    local = problems.full_gradient_steps(steps, 0.1)
    algorithm = algorithms.FedDyn(alpha=1.0, weighting=weighting, local=local)
    states, _, _ = problems.run(process(algorithm, size), problem, rounds)
    np.testing.assert_allclose(states.server.model["theta"][-1], best, atol=1e-8)
    # The duals end at the clients' gradients there, and their mean at zero.
    alphas = 1.0 / (len(weights) * weights)
    duals = alphas[:, None] * states.clients.dual["theta"][-1]
    np.testing.assert_allclose(duals, -at_best, atol=1e-7)
    assert np.abs(at_best).max() > 0.1
    np.testing.assert_allclose(states.server.dual["theta"][-1], 0, atol=1e-8)
    averaging = fp.FedAvg(local=local, weighting=weighting)
    beside, _, _ = problems.run(process(averaging), problem, 300)
    if steps > 1:
        assert np.linalg.norm(beside.server["theta"][-1] - best) > 0.02


def test_with_everyone_it_is_fedadmm():
    problem = problems.waves()
    local = fp.SGD(learning_rate=0.2, epochs=2, batch_size=2)
    ours, _, _ = problems.run(
        process(algorithms.FedDyn(alpha=0.4, local=local)), problem, 8
    )
    admm = algorithms.FedADMM(mu=0.4, local=local)
    theirs, _, _ = problems.run(process(admm), problem, 8)
    np.testing.assert_allclose(
        ours.server.model["theta"], theirs.server["theta"], **CLOSE
    )
    np.testing.assert_allclose(
        ours.clients.dual["theta"], theirs.clients.p["theta"], **CLOSE
    )


@fp.pytree_dataclass
class Lost(fp.core.Attack):
    """Replaces malicious messages by NaN, so that they are dropped."""

    def __call__(self, key, state, messages, malicious, reference):
        rows = jnp.where(malicious[:, None], jnp.nan, messages["theta"])
        return {"theta": rows}, state


@pytest.mark.parametrize("lost", [1, 6])
def test_lost_messages_are_not_counted(lost):
    problem = with_malicious(problems.waves(), *range(lost))
    algorithm = algorithms.FedDyn(alpha=0.3, local=problems.full_gradient_steps(1, ETA))
    state = problems.first_state(process(algorithm), problem)
    dual = {"theta": jnp.array([0.3, -0.2, 0.1])}
    server = dataclasses.replace(state.server, dual=dual)
    state = dataclasses.replace(state, server=server)
    states, _, _ = problems.run(
        process(algorithm, attack=Lost()), problem, 1, state=state
    )
    w, found = states.server.model["theta"]
    expected = w
    if lost < 6:
        models = [problem.descend(i, w, w, 0.3, 1, ETA) for i in range(lost, 6)]
        mean = np.mean(models, axis=0)
        kept = np.asarray(dual["theta"]) + (6 - lost) / 6 * (mean - w)
        expected = mean + kept
    np.testing.assert_allclose(found, expected, **CLOSE)
