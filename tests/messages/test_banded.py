"""Noise over rounds by banded matrices: strategy, draws, sensitivity, epsilon."""

import dataclasses
import functools
import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import linalg, optimize

import fedjax_pfl as fp
from fedjax_pfl.local import CyclicCohorts
from fedjax_pfl.messages import (
    AdaptiveClip,
    BandedNoise,
    ClipNorm,
    GaussianNoise,
    TopK,
    accounting,
    strategies,
)
from fedjax_pfl.round import privacy
from tests import problems
from tests.lanes import wide
from tests.messages import private
from tests.messages.private import exact_epsilon
from tests.setups import with_malicious

TURNS = CyclicCohorts(size=2)
STILL = fp.FedAvg(local=problems.full_gradient_steps(1, 1e-300))
"""Honest clients that move nothing, so that a model changes by noise and attackers."""


process = functools.partial(private.process, who=TURNS)


def matrix(strategy, rounds):
    """The strategy's matrix C `[R, R]`."""
    column = np.zeros(max(rounds, len(strategy)))
    column[: len(strategy)] = strategy
    return np.tril(linalg.toeplitz(column[:rounds]))


def dense_error(strategy, rounds):
    """Mean variance of sums with the largest column of C scaled to 1."""
    strategy = matrix(strategy, rounds)
    sums = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(strategy)
    return (sums**2).sum() / rounds * (strategy**2).sum(axis=0).max()


def test_two_sums_have_the_closed_form():
    # Of (1, c): (2 + (1 - c)^2) (1 + c^2) is least where 2c^3 - 3c^2 + 4c - 1 = 0.
    roots = np.roots([2, -3, 4, -1])
    (best,) = roots[np.abs(roots.imag) < 1e-12].real
    c = strategies.banded_toeplitz(2, 2)
    assert c[1] / c[0] == pytest.approx(best, abs=1e-7)


def test_strategies_are_those_of_jax_privacy():
    # `matrix_factorization.toeplitz.optimize_banded_toeplitz` of jax-privacy 2.0.0.
    for rounds, theirs in (
        (12, [0.82948347, 0.45343601, 0.32611801]),
        (100, [0.68298258, 0.48280221, 0.41445756, 0.35869451]),
    ):
        ours = strategies.banded_toeplitz(len(theirs), rounds)
        np.testing.assert_allclose(ours, theirs, atol=1e-8)


@pytest.mark.parametrize(("bands", "rounds"), [(2, 9), (3, 12), (5, 30)])
def test_no_other_strategy_has_a_smaller_error(bands, rounds):
    c = np.array(strategies.banded_toeplitz(bands, rounds))
    assert np.linalg.norm(c) == pytest.approx(1) and c[0] > 0
    error = strategies.squared_error(c, rounds)
    assert error == pytest.approx(dense_error(c, rounds), rel=1e-12)
    rng = np.random.default_rng(bands)
    for start in rng.uniform(-0.5, 1, (4, bands - 1)):
        other = optimize.minimize(
            lambda tail: dense_error([1, *tail], rounds), start, method="Nelder-Mead"
        )
        assert other.fun >= error * (1 - 1e-12)
    independent = (rounds + 1) / 2
    square_root = np.cumprod([1, *(1 - 0.5 / np.arange(1, bands))])
    assert error < dense_error(square_root, rounds) < independent


def test_more_bands_are_better_and_spare_ones_do_no_harm():
    errors = [
        strategies.squared_error(np.array(strategies.banded_toeplitz(b, 40)), 40)
        for b in (1, 2, 4, 8, 16, 40)
    ]
    assert (np.diff(errors) < 0).all() and errors[0] == pytest.approx(20.5)
    spare = strategies.banded_toeplitz(8, 3)
    np.testing.assert_allclose(spare[:3], strategies.banded_toeplitz(3, 3), atol=1e-6)
    np.testing.assert_allclose(spare[3:], 0, atol=1e-6)


def test_the_matrix_times_the_noise_of_rounds_are_independent_draws():
    problem, norm, z, rounds = problems.waves(dim=3), 0.4, 2.0, 9
    who, clip = CyclicCohorts(size=1), ClipNorm(norm=norm)
    noise = BandedNoise(multiplier=z, bands=4, rounds=9)
    loud = process(clip, noise, who=who)
    start = problems.first_state(loud, problem)
    states, infos, _ = problems.run(loud, problem, rounds, state=start)
    w, added = np.asarray(states.server["theta"]), []
    for number, (client,) in enumerate(infos.cohort):
        move = problem.descend(client, w[number], w[number], 0.0, 2) - w[number]
        step = move * min(1, norm / np.linalg.norm(move))
        added.append(w[number + 1] - w[number] - step)
    np.testing.assert_allclose(
        matrix(noise.strategy, rounds) @ np.array(added),
        z * norm * np.array([private.normal(r, 3) for r in range(rounds)]),
        atol=1e-10,
    )
    new = private.resumed(loud, problem, states, 5)
    draws = states.memory["draws"]["theta"][6]
    np.testing.assert_array_equal(new.memory["draws"]["theta"], draws)


def test_one_band_is_independent_noise():
    problem, clip = problems.waves(), ClipNorm(norm=0.5)
    one, other = (
        problems.run(process(clip, noise), problem, 4)[0].server["theta"]
        for noise in (BandedNoise(bands=1), GaussianNoise())
    )
    np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize(
    ("num_clients", "size", "bands"), [(12, 4, 3), (10, 3, 2), (10, 3, 3), (7, 1, 5)]
)
def test_nobody_moves_the_rounds_farther_than_is_accounted(num_clients, size, bands):
    strategy = np.array(strategies.banded_toeplitz(bands, 20))
    who, rounds = CyclicCohorts(size=size), 3 * num_clients
    found = accounting.banded_squares(strategy, size, num_clients, rounds)
    took_part = np.zeros((rounds, num_clients))
    for number in range(rounds):
        took_part[number, who.in_round(None, num_clients, number)] = 1
    for done in range(1, rounds + 1):
        # The worst signs and directions of the client's own messages.
        columns = matrix(strategy, done)
        together = took_part[:done].T @ np.abs(columns.T @ columns) @ took_part[:done]
        assert found[done - 1] == pytest.approx(np.diag(together).max(), rel=1e-12)
    turns = accounting.cyclic_participations(size, num_clients, rounds)
    assert (np.array(found) <= np.array(turns) + 1e-12).all()


def test_epsilon_is_that_of_dp_accounting():
    dp = pytest.importorskip("dp_accounting")
    z, delta = 3.0, 1e-5
    noise = BandedNoise(multiplier=z, delta=delta, bands=3)
    found = privacy.epsilons(process(ClipNorm(norm=1.0), noise), 6, 8)
    squares = accounting.banded_squares(noise.strategy, 2, 6, 8)
    for value, square in zip(found, squares, strict=True):
        deviation = z / 2 / math.sqrt(square)
        direct = dp.get_epsilon_gaussian(deviation, delta)
        assert value == pytest.approx(direct, abs=1e-6)
        assert value == pytest.approx(exact_epsilon(1 / deviation, delta), abs=1e-6)
    assert (np.diff(found) >= 0).all()
    plain = GaussianNoise(multiplier=z, delta=delta)
    independent = privacy.epsilons(process(ClipNorm(norm=1.0), plain), 6, 8)
    assert (found <= independent + 1e-9).all()
    silent = BandedNoise(multiplier=0.0, bands=3)
    assert np.isinf(privacy.epsilons(process(ClipNorm(norm=1.0), silent), 6, 2)).all()


@fp.pytree_dataclass
class SendsInTurn:
    """Malicious clients change the model by a vector of the round's own, `[R, D]`."""

    vectors: jax.Array

    def init(self, message):
        return jnp.int32(0)

    def __call__(self, key, round, messages, malicious, reference):
        def replaced(rows, point):
            new = point + self.vectors[round]
            return jnp.where(malicious[:, None], new[None], rows)

        return jax.tree.map(replaced, messages, reference), round + 1


ODD = st.sampled_from([np.nan, np.inf, -1e300, 0.0])
VECTORS = arrays.arrays(np.float64, (7, 2), elements=st.floats(-1e6, 1e6) | ODD)


@pytest.mark.parametrize("between", [(), wide((TopK(fraction=0.5),))], ids=str)
@hypothesis.settings(deadline=None, max_examples=15)
@hypothesis.given(VECTORS, VECTORS)
def test_one_client_moves_all_rounds_as_accounted(between, first, second):
    problem, norm, rounds = with_malicious(problems.waves(dim=2), 0), 0.7, 7
    noise = BandedNoise(multiplier=0.0, bands=3)
    sums = []
    for vectors in (first, second):
        attack = SendsInTurn(vectors=jnp.asarray(vectors))
        whole = process(
            ClipNorm(norm=norm), *between, noise, algorithm=STILL, attack=attack
        )
        states, _, _ = problems.run(whole, problem, rounds)
        sums.append(2 * np.diff(states.server["theta"], axis=0))
    moved = matrix(noise.strategy, rounds) @ (sums[0] - sums[1])
    squares = accounting.banded_squares(noise.strategy, 2, 6, rounds)
    for done in range(1, rounds + 1):
        bound = 2 * norm * math.sqrt(squares[done - 1])
        assert np.linalg.norm(moved[:done]) <= bound * (1 + 1e-9)


ROUNDS, SEEDS = 12, 4000


@pytest.fixture(scope="module")
def changes():
    """Changes of the model `[SEEDS, R]`, for noise and what a client sends."""
    problem = with_malicious(problems.waves(dim=2), 0)

    def make(z, far):
        return process(
            ClipNorm(norm=1.0),
            BandedNoise(multiplier=z, bands=3, rounds=ROUNDS),
            algorithm=STILL,
            attack=SendsInTurn(vectors=jnp.tile(jnp.array([far, 0.0]), (ROUNDS, 1))),
        )

    start = problems.first_state(make(0.0, 0.0), problem)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None, None))
    def moved(seed, z, far):
        def step(state, _):
            new, _ = make(z, far).round(state, problem.model, problem.federation)
            return new, 2 * (new.server["theta"] - state.server["theta"])[0]

        state = dataclasses.replace(start, key=jax.random.key(seed))
        return jax.lax.scan(step, state, None, length=ROUNDS)[1]

    return lambda z, far: np.asarray(moved(jnp.arange(SEEDS), z, far))


def test_guessing_with_all_rounds_stays_below_what_epsilon_allows(changes):
    """By the likelihood ratio of the draws, the best guess that there is."""
    pytest.importorskip("dp_accounting")
    z, delta, far = 6.0, 0.02, 1e3
    noise = BandedNoise(multiplier=z, delta=delta, bands=3, rounds=ROUNDS)
    epsilon = privacy.epsilons(process(ClipNorm(norm=1.0), noise), 6, ROUNDS)[-1]
    strategy = matrix(noise.strategy, ROUNDS)
    clean = [changes(0.0, side) for side in (far, -far)]
    direction = strategy @ (clean[0] - clean[1])[0]

    def advantage(*pair):
        sums = (change @ strategy.T @ direction for change in pair)
        return private.advantage(*sums, epsilon)

    noisy = advantage(changes(z, far), changes(z, -far))
    assert noisy <= private.allowed(delta, SEEDS) < advantage(*clean)


def test_sums_have_the_variance_that_the_strategy_promises(changes):
    inverse = np.linalg.inv(matrix(strategies.banded_toeplitz(3, ROUNDS), ROUNDS))
    expected = np.square(inverse.cumsum(axis=0)).sum(axis=1)
    found = np.square(changes(1.0, 0.0).cumsum(axis=1)).mean(axis=0)
    # Five standard errors of a sampled variance, for each of twelve.
    assert (np.abs(found / expected - 1) < 5 * math.sqrt(2 / SEEDS)).all()
    assert expected[-1] < ROUNDS / 2  # independent noise would leave 12


class StopAt(fp.Callback):
    def evaluated(self, evaluation):
        if evaluation.round == 2 and not evaluation.is_restored:
            raise InterruptedError


LOUD = BandedNoise(multiplier=2.0, delta=1e-3, bands=4)
WHOLE = process(ClipNorm(norm=1.0), LOUD, algorithm=fp.FedAvg())


def train(simulate=fp.simulate, **options):
    federation = fp.FederationSpec("digits", num_clients=8).build()
    run = (jax.random.key(0), WHOLE, fp.LogisticRegression(), federation, 5)
    options = {"evaluate_on": "test", "eval_every": 2} | options
    return simulate(*run, progress=False, **options).groups[0]


def test_a_resumed_training_is_the_same_to_the_bit_and_has_its_epsilon(tmp_path):
    pytest.importorskip("dp_accounting")
    whole, kept = train(), fp.Checkpoints(tmp_path / "kept", min_seconds=0)
    with pytest.raises(InterruptedError):
        train(checkpoints=kept, callbacks=[StopAt()])
    again = train(checkpoints=kept)
    np.testing.assert_array_equal(again.metrics["loss"], whole.metrics["loss"])
    for group in (whole, again):
        np.testing.assert_array_equal(
            group.per_round["epsilon"][0], privacy.epsilons(WHOLE, 8, 5)
        )


@pytest.mark.wide
def test_streamed_trainings_have_the_same_noise():
    pytest.importorskip("dp_accounting")
    whole, streamed = train(), train(fp.simulate_streamed)
    np.testing.assert_allclose(
        streamed.metrics["loss"], whole.metrics["loss"], rtol=1e-9
    )


CLIP, NOISE = ClipNorm(norm=1.0), BandedNoise(bands=3)
REFUSED = {
    "one BandedNoise behind ClipNorm": {"transforms": (NOISE,)},
    "bands of BandedNoise to be at most 3, .* got bands=4": {
        "transforms": (CLIP, BandedNoise(bands=4))
    },
    "ClipNorm under BandedNoise, .* got AdaptiveClip": {
        "transforms": (AdaptiveClip(), NOISE)
    },
    "CyclicCohorts under BandedNoise, .* got AllClients": {"who": fp.AllClients()},
    "CyclicCohorts under BandedNoise, .* got Flame, which takes those of all": {
        "algorithm": fp.Flame()
    },
    "Mean.. under BandedNoise, .* got CoordinateMedian": {
        "aggregator": fp.CoordinateMedian()
    },
}


@pytest.mark.parametrize(("match", "fields"), REFUSED.items())
def test_what_is_not_accounted_is_refused(match, fields):
    fields = {"transforms": (CLIP, NOISE), "who": TURNS} | fields
    private.assert_refused(match, lambda p: p.check_cohort(2, 6), **fields)
