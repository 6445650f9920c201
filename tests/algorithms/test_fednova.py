"""FedNova against its equations in NumPy, FedAvg, and fixed points of quadratics."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.algorithms import fednova
from tests import problems
from tests.lanes import wide
from tests.setups import process, with_malicious

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
ETA = 0.2


def budgets(*epochs):
    return fp.local.ClientBudgets(epochs=epochs)


@pytest.mark.parametrize("momentum", [None, 0.0, 0.6])
def test_weights_of_gradients_are_those_of_a_unit_gradient(momentum):
    for steps in range(6):
        velocity = travelled = 0.0
        for _ in range(steps):
            velocity = (momentum or 0.0) * velocity + 1.0
            travelled += velocity
        weight = fednova.gradient_weight(jnp.asarray(float(steps)), momentum)
        np.testing.assert_allclose(weight, travelled, rtol=1e-12)


@pytest.mark.parametrize(
    ("momentum", "weighting"), [(0.5, "examples"), wide(None, "uniform")]
)
def test_rounds_are_the_equations_in_numpy(momentum, weighting):
    problem, m = problems.waves(), momentum or 0.0
    local = problems.full_gradient_steps(5, ETA, momentum=momentum)
    algorithm = algorithms.FedNova(local=local, weighting=weighting)
    whole = process(algorithm, 4, work=budgets(1, 3, 0, 5, 2))
    states, infos, _ = problems.run(whole, problem, 10)
    sizes = np.asarray(problem.federation.train.num_examples, float)
    x = states.server["theta"][0]
    for number in range(10):
        cohort = infos.cohort[number]
        shares = sizes[cohort] if weighting == "examples" else np.ones(len(cohort))
        shares = shares / shares.sum()
        mean, length = 0.0, 0.0
        for share, i in zip(shares, cohort, strict=True):
            steps = (1, 3, 0, 5, 2)[i % 5]
            y = problem.descend(i, x, x, 0.0, steps, ETA, momentum=m)
            # Weights of the gradients of steps 0, ..., tau - 1, one by one.
            weights = [sum(m**j for j in range(steps - k)) for k in range(steps)]
            if steps:
                mean = mean + share * (x - y) / sum(weights)
            length += share * sum(weights)
        x = x - length * mean
        np.testing.assert_allclose(states.server["theta"][number + 1], x, **CLOSE)


@pytest.mark.parametrize("momentum", [None, wide(0.5)])
def test_with_equal_steps_it_is_fedavg(momentum):
    problem = problems.waves()
    local = problems.full_gradient_steps(3, ETA, momentum=momentum)
    ours, _, _ = problems.run(process(algorithms.FedNova(local=local), 4), problem, 6)
    theirs, _, _ = problems.run(process(fp.FedAvg(local=local), 4), problem, 6)
    np.testing.assert_allclose(ours.server["theta"], theirs.server["theta"], **CLOSE)


def limit(problem, algorithm):
    states, _, _ = problems.run(process(algorithm, work=budgets(1, 8)), problem, 700)
    return states.server["theta"][-1]


@pytest.mark.wide
def test_its_fixed_point_tends_to_the_minimizer_and_fedavgs_does_not():
    problem = problems.random_quadratics()
    weights, centers = problem.alpha("examples"), problem.estimates
    best = weights @ centers
    steps = np.array([(1, 8)[i % 2] for i in range(len(weights))])
    gaps = []
    for eta in (0.02, 0.01):
        local = problems.full_gradient_steps(8, eta)
        pull = weights * (1 - (1 - eta) ** steps)
        ours = limit(problem, algorithms.FedNova(local=local))
        expected = (pull / steps) @ centers / (pull / steps).sum()
        np.testing.assert_allclose(ours, expected, atol=1e-9)
        averaging = fp.FedAvg(local=local, drop_stragglers=False)
        theirs = limit(problem, averaging)
        np.testing.assert_allclose(theirs, pull @ centers / pull.sum(), atol=1e-9)
        gaps.append([np.linalg.norm(x - best) for x in (ours, theirs)])
    (ours, theirs), (half, other) = gaps
    assert half < 0.55 * ours and other > 0.9 * theirs > 10 * ours


def test_a_scaled_step_counts_as_its_part():
    problem = problems.quadratics([[1.0, 2.0], [3.0, -1.0]], num_examples=[4, 2])
    local = fp.SGD(learning_rate=0.1, batch_size=4, remainder="scaled")
    states, _, _ = problems.run(process(algorithms.FedNova(local=local)), problem, 1)
    x, found = states.server["theta"]
    # Client 1 takes half a step; a whole one of both is along the mean gradient.
    gradient = problem.alpha("examples") @ (x - problem.estimates)
    length = 2 / 3 * 1 + 1 / 3 * 0.5
    np.testing.assert_allclose(found, x - 0.1 * length * gradient, **CLOSE)


@pytest.mark.wide
def test_attacks_replace_messages_and_not_numbers_of_steps():
    problem, bad = with_malicious(problems.waves(), 1), np.arange(6) == 1
    algorithm = algorithms.FedNova(local=problems.full_gradient_steps(3, ETA))
    attacked = process(algorithm, work=budgets(1, 3), attack=fp.SignFlip(scale=2.0))
    states, _, _ = problems.run(attacked, problem, 1)
    x, found = states.server["theta"]
    shares, mean, length = problem.alpha("examples"), 0.0, 0.0
    for i, share in enumerate(shares):
        steps = (1, 3)[i % 2]
        sent = x + (problem.descend(i, x, x, 0.0, steps, ETA) - x) / steps
        mean = mean + share * ((-2 * sent if bad[i] else sent) - x)
        length += share * steps
    np.testing.assert_allclose(found, x + length * mean, **CLOSE)


@pytest.mark.parametrize(
    ("local", "message"),
    [
        (fp.Optax(hyperparameters={"learning_rate": 0.1}), "to be SGD, .* got Optax"),
        (fp.SGD(momentum=0.5, remainder="scaled"), "take whole steps, got remainder"),
    ],
)
def test_unknown_weights_of_gradients_are_refused(local, message):
    with pytest.raises(fp.InputError, match=message):
        algorithms.FedNova(local=local)


def test_schedules_of_steps_are_refused():
    local = fp.SGD(learning_rate=("cosine", 0.1, 100))
    whole = process(algorithms.FedNova(local=local))
    with pytest.raises(fp.InputError, match="held during a round"):
        problems.run(whole, problems.waves(), 1)
