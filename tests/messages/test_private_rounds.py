"""Rounds with clients drawn each by itself, adaptive clips and noise from trees."""

import dataclasses
import functools
import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import Stream, byte_counts, stream_key
from fedjax_pfl.local import CyclicCohorts, PoissonCohort
from fedjax_pfl.messages import (
    AdaptiveClip,
    ClipNorm,
    GaussianNoise,
    NoisyRound,
    TopK,
    TreeNoise,
    accounting,
)
from fedjax_pfl.round import privacy
from tests import problems
from tests.lanes import wide
from tests.messages import private
from tests.messages.private import EVERYBODY, SGD, Sends, normal
from tests.setups import with_malicious

KEY = jax.random.key(0, impl="threefry2x32")
POISSON = PoissonCohort(rate=0.5, capacity=5)
CLOSE = {"rtol": 1e-11, "atol": 1e-11}


process = functools.partial(private.process, who=POISSON)


def move(problem, client, w):
    return problem.descend(client, w, w, 0.0, 2) - w


def clipped(x, norm):
    return x * min(1, norm / np.linalg.norm(x))


def test_who_is_not_drawn_does_nothing_and_the_sum_is_divided_by_what_is_expected():
    problem, norm, z = problems.waves(dim=4), 0.2, 1.5
    ditto = fp.Ditto(local=SGD)
    whole = process(ClipNorm(norm=norm), GaussianNoise(multiplier=z), algorithm=ditto)
    states, infos, _ = problems.run(whole, problem, 5)
    leaves, sizes = jax.tree.leaves(states.clients), set()
    for number in range(5):
        present = [i for i in infos.cohort[number] if i >= 0]
        sizes.add(len(present))
        w, new = states.server["theta"][number : number + 2]
        total = sum(clipped(move(problem, i, w), norm) for i in present)
        noise = z * norm * normal(number, 4)
        expected = w + (total + noise) / (0.5 * 6)
        np.testing.assert_allclose(new, expected, **CLOSE)
        absent = sorted(set(range(6)) - set(present))
        for before, after in (leaf[number : number + 2] for leaf in leaves):
            np.testing.assert_array_equal(after[absent], before[absent])
        for sent in (infos.bytes_up, infos.bytes_down):
            assert byte_counts.total(sent[number]) == len(present) * 4 * 8
        assert (infos.client["client_steps"][number] > 0).sum() == len(present)
    assert len(sizes) > 1


def test_without_noise_the_mean_is_over_who_takes_part():
    problem = problems.waves()
    states, infos, _ = problems.run(process(), problem, 4)
    for number in range(4):
        w, new = states.server["theta"][number : number + 2]
        moves = [move(problem, i, w) for i in infos.cohort[number] if i >= 0]
        expected = w + (np.mean(moves, axis=0) if moves else 0)
        np.testing.assert_allclose(new, expected, **CLOSE)


def test_who_is_not_drawn_counts_with_its_last_message_where_all_do():
    problem = problems.waves()
    flame = fp.Flame(local=SGD, kappa=1.0)
    states, infos, _ = problems.run(process(algorithm=flame), problem, 4)
    last = states.clients.w_local["theta"] + states.clients.p["theta"]
    means = last[1:].mean(axis=1)
    np.testing.assert_allclose(states.server["theta"][1:], means, rtol=1e-9, atol=1e-9)
    for number in range(4):
        absent = sorted(set(range(6)) - set(infos.cohort[number].tolist()))
        np.testing.assert_array_equal(last[number + 1][absent], last[number][absent])


def test_scaffolds_control_variate_is_the_mean_of_all_clients():
    problem = problems.waves()
    private = ClipNorm(norm=1e6), GaussianNoise(multiplier=0.0)
    scaffold = fp.Scaffold(local=SGD)
    states, _, _ = problems.run(process(*private, algorithm=scaffold), problem, 4)
    means = np.asarray(states.clients["theta"]).mean(axis=1)
    control = states.server.control["theta"]
    np.testing.assert_allclose(control, means, rtol=1e-9, atol=1e-9)


def test_adaptive_clips_are_a_loop_in_numpy():
    problem = problems.waves(dim=5)
    clip = AdaptiveClip(norm=0.05, quantile=0.6, learning_rate=0.7, count_noise=0.4)
    whole = process(clip, who=fp.UniformCohort(size=4))
    states, infos, _ = problems.run(whole, problem, 6)
    norm = 0.05
    for number in range(6):
        np.testing.assert_allclose(infos.server["clip_norm"][number], norm, rtol=1e-12)
        w, new = states.server["theta"][number : number + 2]
        moves = [move(problem, i, w) for i in infos.cohort[number]]
        expected = w + np.mean([clipped(x, norm) for x in moves], axis=0)
        np.testing.assert_allclose(new, expected, **CLOSE)
        words = jax.random.key_data(
            stream_key(jax.random.key(0), Stream.NOISE_OF_COUNTS, number)
        )
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        noise = 0.4 * float(jax.random.normal(key, (), float))
        within = sum(np.linalg.norm(x) <= norm for x in moves)
        norm *= math.exp(-0.7 * ((within + noise) / 4 - 0.6))
    assert norm > 0.06


VECTORS = private.vectors(3)


@hypothesis.settings(deadline=None, max_examples=15)
@hypothesis.given(VECTORS, VECTORS)
def test_one_client_moves_sum_and_number_as_accounted(first, second):
    problem, norm, eta = with_malicious(problems.waves(), 2), 0.7, 0.3
    clip = AdaptiveClip(norm=norm, learning_rate=eta, count_noise=0.0)
    ends = []
    for vector in (first, second):
        whole = process(
            clip,
            TopK(fraction=0.5),
            GaussianNoise(multiplier=0.0),
            who=EVERYBODY,
            attack=Sends(vector=jnp.asarray(vector)),
        )
        states, _, _ = problems.run(whole, problem, 1)
        ends.append((6 * states.server["theta"][1], float(states.memory["clip"][1])))
    moved = np.linalg.norm(ends[0][0] - ends[1][0])
    assert moved <= 2 * norm * (1 + 1e-12)
    # The clip moves by eta times the share: in numbers of clients, by one at most.
    number = abs(math.log(ends[0][1] / ends[1][1])) / eta * 6
    assert number <= 1 + 1e-9


def test_noise_in_sum_and_number_are_one_gaussian():
    z, s = 1.3, 2.0
    clip, noise = AdaptiveClip(count_noise=s), GaussianNoise(multiplier=z, delta=1e-4)
    pytest.importorskip("dp_accounting")
    (found,) = privacy.epsilons(process(clip, noise, who=EVERYBODY), 6, 1)
    # Distance of neighbors in deviations: two clips of z, and a client of s.
    distance = math.hypot(2 / z, 1 / s)
    (expected,) = accounting.epsilons(2 / distance, 1e-4, 6, 6, 1)
    assert found == pytest.approx(expected, abs=1e-9)
    silent = AdaptiveClip(count_noise=0.0)
    assert np.isinf(privacy.epsilons(process(silent, noise, who=EVERYBODY), 6, 1)).all()


def nodes(leaves):
    """Nodes `(end, level)` of the first leaves of a tree, the largest first."""
    done, found = 0, []
    for level in reversed(range(leaves.bit_length())):
        if leaves >> level & 1:
            done += 2**level
            found.append((done, level))
    return found


def test_sums_of_a_tree_have_the_noise_of_their_nodes():
    problem, norm, z = problems.waves(dim=3), 0.4, 2.0
    turns, rounds, period = CyclicCohorts(size=1), 10, 6
    quiet, loud = (
        process(ClipNorm(norm=norm), noise, who=turns)
        for noise in (TreeNoise(multiplier=0.0), TreeNoise(multiplier=z))
    )
    start = problems.first_state(loud, problem)
    states, infos, _ = problems.run(loud, problem, rounds, state=start)
    w = np.asarray(states.server["theta"])
    assert sorted(infos.cohort[:period, 0].tolist()) == list(range(6))
    added = np.zeros(3)  # noise so far: all that rounds do not explain
    for number in range(rounds):
        step = clipped(move(problem, infos.cohort[number, 0], w[number]), norm)
        added = added + w[number + 1] - w[number] - step
        start = number // period * period
        expected = [(start, n) for n in nodes(number + 1 - start)]
        expected += [(first, n) for first in range(0, start, period) for n in nodes(6)]
        draws = [normal(a + end - 1, 3, fold=level) for a, (end, level) in expected]
        np.testing.assert_allclose(
            added, z * norm * np.sum(draws, axis=0), rtol=1e-9, atol=1e-9
        )
    private.resumed(loud, problem, states, 4)
    assert np.isinf(privacy.epsilons(quiet, 6, 2)).all()


def test_less_noise_is_in_a_sum_than_independent_draws_would_leave():
    period, seeds = 8, 400
    noise, scale = TreeNoise(multiplier=1.0), 1.0

    def sums(seed):
        key = jax.random.key(seed)

        def add(total, round):
            now = NoisyRound(round, lambda r: jax.random.fold_in(key, r), period)
            total = noise.in_round(now, total, scale)
            return total, total

        return jax.lax.scan(add, jnp.zeros(8), jnp.arange(period))[1]

    values = np.asarray(jax.jit(jax.vmap(sums))(jnp.arange(seeds)))
    variances = np.square(values).mean(axis=(0, 2))
    counts = np.array([r.bit_count() for r in range(1, period + 1)])
    error = counts * math.sqrt(2 / (seeds * 8))
    assert (np.abs(variances - counts) < 5 * error).all()


MEMBERS = [
    wide(fp.AllClients(), GaussianNoise, 1, None),
    (POISSON, GaussianNoise, 1, None),
    wide(fp.UniformCohort(size=3), GaussianNoise, 2, None),
    wide(fp.AllClients(), GaussianNoise, 1, fp.CoordinateMedian()),
    (CyclicCohorts(size=2), TreeNoise, 3, None),
]


@pytest.mark.parametrize(("who", "noise", "rounds", "rule"), MEMBERS, ids=str)
def test_guessing_who_took_part_stays_below_what_epsilon_allows(
    who, noise, rounds, rule
):
    pytest.importorskip("dp_accounting")
    z, delta, seeds = 4.0, 0.02, 4000
    problem = with_malicious(problems.waves(dim=2), 0)

    def make(multiplier, far):
        return process(
            ClipNorm(norm=1.0),
            noise(multiplier=multiplier, delta=delta),
            who=who,
            attack=Sends(vector=jnp.array([far, 0.0])),
            aggregator=rule or fp.aggregators.Mean(),
        )

    epsilon = privacy.epsilons(make(z, 0.0), 6, rounds)[-1]
    start = problems.first_state(make(z, 0.0), problem)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None, None))
    def released(seed, multiplier, far):
        def step(state, _):
            whole = make(multiplier, far)
            return whole.round(state, problem.model, problem.federation)[0], None

        state = dataclasses.replace(start, key=jax.random.key(seed))
        return jax.lax.scan(step, state, None, length=rounds)[0].server["theta"][0]

    def advantage(multiplier):
        sides = (1e3, -1e3)  # of the worst two clients
        models = (released(jnp.arange(seeds), multiplier, far) for far in sides)
        return private.advantage(*models, epsilon)

    assert advantage(z) <= private.allowed(delta, seeds) < advantage(0.0)


CLIP, NOISE, TREE = ClipNorm(norm=1.0), GaussianNoise(), TreeNoise()
TURNS = CyclicCohorts(size=2)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: process(TREE, who=TURNS), "one TreeNoise behind ClipNorm"),
        (lambda: process(CLIP, TREE, NOISE, who=TURNS), "one TreeNoise behind"),
        (
            lambda: process(CLIP, TREE, who=fp.UniformCohort(size=2)),
            "CyclicCohorts under TreeNoise, .* got UniformCohort",
        ),
        (
            lambda: process(CLIP, TREE, who=TURNS, algorithm=fp.Flame()),
            "the messages of the cohort, .* got Flame, which takes those of all",
        ),
        (
            lambda: process(CLIP, TREE, who=TURNS, aggregator=fp.CoordinateMedian()),
            "Mean.. under TreeNoise, .* got CoordinateMedian",
        ),
        (
            lambda: process(AdaptiveClip(), TREE, who=TURNS),
            "ClipNorm under TreeNoise, .* got AdaptiveClip",
        ),
        (
            lambda: process(CLIP, NOISE, aggregator=fp.CoordinateMedian()),
            "Mean.. with PoissonCohort under noise, .* got CoordinateMedian",
        ),
        (
            lambda: process(CLIP, NOISE, algorithm=fp.Flame()),
            "of the cohort with PoissonCohort under GaussianNoise, got Flame",
        ),
        (
            lambda: process(AdaptiveClip(), NOISE, who=EVERYBODY, algorithm=fp.Flame()),
            "ClipNorm under GaussianNoise with Flame, .* got AdaptiveClip",
        ),
        (
            lambda: process(TopK(fraction=0.5), AdaptiveClip()),
            "AdaptiveClip to be the first .* got TopK, AdaptiveClip",
        ),
        (
            lambda: process(
                CLIP, NOISE, who=fp.Synchronous(size=2, devices=fp.Devices())
            ),
            "under GaussianNoise, whose epsilon is known, got Synchronous",
        ),
    ],
)
def test_what_is_not_accounted_is_refused(make, match):
    with pytest.raises(fp.InputError, match=match):
        privacy.check(make())


def test_histories_have_epsilon_clips_and_who_took_part():
    pytest.importorskip("dp_accounting")
    spec = fp.FederationSpec("digits", num_clients=6)
    whole = process(AdaptiveClip(), GaussianNoise(delta=1e-4))
    axes = {"transforms.0.count_noise": [1.0, 3.0]}
    given = KEY, whole, fp.LogisticRegression(), spec, axes, 4
    result = fp.grid(*given, evaluate_on="test", progress=False)
    (group,) = result.groups
    for point, s in enumerate((1.0, 3.0)):
        z = 1 / math.hypot(1, 1 / (2 * s))
        np.testing.assert_allclose(
            group.per_round["epsilon"][point],
            accounting.poisson_epsilons(z, 1e-4, 0.5, 5, 6, 4),
            atol=1e-6,
        )
        assert (np.diff(group.per_round["clip_norm"][point]) != 0).all()
    took_part = group.per_round["bytes_up"].sum(axis=1) / (650 * 8)
    assert group.times_selected[:, -1].sum(axis=1).tolist() == took_part.tolist()
    assert took_part.sum() < 2 * 4 * 5
