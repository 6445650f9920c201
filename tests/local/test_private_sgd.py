"""DP-SGD inside clients: clipped gradients of examples, noise, and epsilon."""

import dataclasses

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import engine
from fedjax_pfl.core import checks
from fedjax_pfl.local import PrivateSGD
from fedjax_pfl.messages import accounting
from fedjax_pfl.round import local_privacy
from tests import problems
from tests.messages import private

KEY = jax.random.key(0, impl="threefry2x32")
RATE, NORM, MU = 0.2, 0.3, 1.7
PROBLEM = problems.regressions(num_clients=4)
ALL = problems.FULL_BATCH


def examples(client):
    """A client's own examples `x [n, d]`, `y [n]`."""
    data = PROBLEM.federation.train
    rows = np.asarray(data.index)[client, : int(data.num_examples[client])]
    return np.asarray(data.x)[rows], np.asarray(data.y)[rows]


def clipped_sum(x, y, theta):
    """Sums the clipped gradients of examples."""
    gradients = (x @ theta - y)[:, None] * x
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return (gradients * np.minimum(1, NORM / norms)).sum(axis=0)


def solver(multiplier=0.0, steps=3, batch=ALL):
    return PrivateSGD(
        learning_rate=RATE,
        norm=NORM,
        multiplier=multiplier,
        num_steps=steps,
        batch_size=batch,
    )


def process(algorithm):
    return fp.FederatedProcess(algorithm=algorithm, aggregator=fp.aggregators.Mean())


def test_gradients_of_examples_are_clipped_and_other_terms_are_not():
    whole = process(fp.FedProx(mu=MU, local=solver()))
    states, _, _ = problems.run(whole, PROBLEM, 1)
    w, ends = states.server["theta"][0], []
    for client in range(4):
        x, y = examples(client)
        theta = np.asarray(w)
        for _ in range(3):
            pull = MU * (theta - w)
            theta = theta - RATE * (clipped_sum(x, y, theta) / len(x) + pull)
        ends.append(theta)
    np.testing.assert_allclose(
        states.server["theta"][1], np.mean(ends, axis=0), rtol=1e-10
    )


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_gradients_of_every_scale_are_clipped(scale):
    """Clients with one example, whose gradient's square is not a number of 64 bits."""
    local = dataclasses.replace(solver(steps=1), norm=NORM * scale)
    problem = problems.quadratics([[3.0, 4.0]] * 2)
    data = problem.federation.train
    data = dataclasses.replace(data, x=scale * np.asarray(data.x))
    federation = dataclasses.replace(problem.federation, train=data)
    problem = dataclasses.replace(problem, federation=federation)
    states, _, _ = problems.run(process(fp.FedAvg(local=local)), problem, 1)
    start, end = states.server["theta"] / scale
    away = start - [3, 4]
    moved = RATE * NORM * away / np.linalg.norm(away)
    np.testing.assert_allclose(end, start - moved, rtol=1e-10)


def test_noise_of_a_step_has_the_deviation_of_the_clip():
    problem, z = problems.waves(dim=300), 2.5
    quiet, loud = (
        problems.run(process(fp.Local(local=solver(m, steps=1))), problem, 1)[0]
        for m in (0.0, z)
    )
    noise = np.asarray(loud.clients["theta"][1] - quiet.clients["theta"][1])
    counts = np.asarray(problem.federation.train.num_examples)
    deviations = RATE * z * NORM / counts
    scaled = noise / deviations[:, None]
    assert scaled.std() == pytest.approx(1, abs=5 / np.sqrt(2 * scaled.size))
    products = scaled @ scaled.T / 300 - np.eye(len(counts))
    assert (np.abs(products) < 5 * np.sqrt(2 / 300)).all()  # to each client its own


def test_steps_draw_examples_without_replacement():
    # Of gradients that are clipped to one length, a sum tells which were drawn.
    whole = process(fp.FedAvg(local=solver(steps=1, batch=2)))
    x, y = examples(0)
    for seed in range(3):
        state = problems.first_state(whole, PROBLEM, seed)
        w = np.asarray(state.server["theta"])
        end, _, info = solver(steps=1, batch=2).solve(
            view_of(0, seed), fp.local.DataLoss(PROBLEM.model), state.server
        )
        step = (w - np.asarray(end["theta"])) * 2 / RATE
        pairs = [
            clipped_sum(x[[i, j]], y[[i, j]], w)
            for i in range(len(x))
            for j in range(i)
        ]
        assert min(np.abs(pair - step).max() for pair in pairs) < 1e-12
        assert int(info.num_examples) == 2


def view_of(client, seed=0):
    """ONE client outside of rounds."""
    data = PROBLEM.federation.train
    row = jax.tree.map(lambda leaf: leaf[client], data.rows())
    key = jax.random.key(seed)
    return fp.core.ClientView(key=key, round=None, data=data.with_rows(row))


def test_one_example_moves_the_sum_by_two_clips_at_most():
    data, rng = PROBLEM.federation.train, np.random.default_rng(0)
    view = view_of(3)
    loss, count = fp.local.DataLoss(PROBLEM.model), int(data.num_examples[3])
    row = int(data.index[3, 2])

    @jax.jit
    def ended(x):
        changed = dataclasses.replace(view, data=dataclasses.replace(view.data, x=x))
        params = {"theta": np.zeros(3)}
        return solver(steps=1).solve(changed, loss, params)[0]["theta"]

    before, moved = ended(data.x), []
    for scale in (1e-3, 1.0, 1e6, 1e200):
        x = data.x.at[row].set(scale * rng.normal(size=3))
        moved.append(np.linalg.norm(ended(x) - before) * count / RATE)
    assert 0 < max(moved) <= 2 * NORM * (1 + 1e-12)


def test_every_client_is_accounted_for_by_its_examples_and_rounds():
    pytest.importorskip("dp_accounting")
    local = PrivateSGD(multiplier=1.5, delta=1e-4, batch_size=10, epochs=2)
    counts, rounds = np.array([8, 40, 45, 0, 40]), np.array([3, 2, 1, 4, 0])
    found = engine.local_epsilons(process(fp.FedAvg(local=local)), counts, rounds)
    steps = [3 * 2 * 1, 2 * 2 * 4, 1 * 2 * 5]
    expected = [
        accounting.epsilon_after(1.5, 1e-4, min(10, n), n, count)
        for n, count in zip((8, 40, 45), steps, strict=True)
    ]
    np.testing.assert_allclose(found, [*expected, 0, 0])


@pytest.mark.wide
def test_guessing_an_example_stays_below_what_epsilon_allows():
    """Of a client that trains alone, by the model that it ends with."""
    pytest.importorskip("dp_accounting")
    z, delta, seeds, steps, rate = 6.0, 0.02, 4000, 4, 0.01
    x = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])

    def make(multiplier):
        local = dataclasses.replace(
            solver(multiplier, steps), learning_rate=rate, delta=delta
        )
        return fp.FederatedProcess(algorithm=fp.Local(local=local))

    def ended(multiplier, target):
        """Models `[seeds]`, in the direction of the first example."""
        problem = problems.least_squares([x], [np.array([target, 1.0, 0.0])], "one")
        whole = make(multiplier)
        start = problems.first_state(whole, problem)

        def trained(seed):
            state = dataclasses.replace(start, key=jax.random.key(seed))
            state, _ = whole.round(state, problem.model, problem.federation)
            return state.clients["theta"][0, 0]

        return jax.jit(jax.vmap(trained))(np.arange(seeds))

    (epsilon,) = engine.local_epsilons(make(z), np.array([3]), np.array([1]))
    assert epsilon == accounting.epsilon_after(z, delta, 3, 3, steps)

    def advantage(multiplier):
        models = (ended(multiplier, target) for target in (1e6, -1e6))
        return private.advantage(*models, epsilon)

    assert advantage(z) <= private.allowed(delta, seeds) < advantage(0.0)


def train(whole, rounds):
    spec = fp.FederationSpec("digits", num_clients=6)
    given = KEY, whole, fp.LogisticRegression(), spec, {}, rounds
    return fp.grid(*given, evaluate_on="test", progress=False)


def test_who_trains_alone_has_the_epsilon_of_who_sends_the_same_steps():
    pytest.importorskip("dp_accounting")
    local = PrivateSGD(multiplier=3.0, delta=1e-3)
    result = train(fp.FederatedProcess(algorithm=fp.Local(local=local)), 2)
    counts, rounds = result.groups[0].num_train[0], np.full(6, 2)
    sent = engine.local_epsilons(process(fp.Flame(local=local)), counts, rounds)
    assert result.local_privacy()["epsilon"].tolist() == [sent.max()]
    assert result.communication()["bytes_up"].tolist() == [0]


def test_histories_have_the_largest_epsilon_of_all_clients():
    pytest.importorskip("dp_accounting")
    local = PrivateSGD(multiplier=3.0, delta=1e-3)
    whole = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=local), participation=fp.UniformCohort(size=2)
    )
    result = train(whole, 4)
    (group,) = result.groups
    last = engine.local_epsilons(
        whole, group.num_train[0], group.times_selected[0, -1]
    ).max()
    table = result.local_privacy()
    assert table["epsilon"].tolist() == [last] and table["delta"].tolist() == [1e-3]
    losses = group.per_round["local_epsilon"][0]
    assert (np.diff(losses) >= 0).all() and losses[0] > 0
    assert result.privacy().empty


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: PrivateSGD(norm=0.0), "norm .* above 0, got 0.0"),
        (lambda: PrivateSGD(delta=1.0), "delta .* below 1, got 1.0"),
        (
            lambda: local_privacy.check(process(fp.FedRep(local=PrivateSGD()))),
            "that solver only, .* or Local, got it as local of FedRep",
        ),
        (
            lambda: local_privacy.check(
                process(fp.Ditto(local=fp.SGD(), personal=PrivateSGD()))
            ),
            "got it as personal of Ditto",
        ),
    ],
)
def test_what_is_not_private_is_refused(make, match):
    with pytest.raises(checks.InputError, match=match):
        make()
