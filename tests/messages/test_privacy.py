"""Privacy of clients: sensitivity, noise, epsilon, and what is refused."""

import dataclasses
import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import testing
from fedjax_pfl.core import checks, sharding, struct
from fedjax_pfl.local import CyclicCohorts, PoissonCohort
from fedjax_pfl.messages import (
    QSGD,
    AdaptiveClip,
    ClipNorm,
    GaussianNoise,
    RandomK,
    SignScale,
    TopK,
    accounting,
)
from fedjax_pfl.report import facts, sources
from fedjax_pfl.round import privacy
from tests import problems
from tests.lanes import wide
from tests.messages import private
from tests.messages.private import (
    EVERYBODY,
    SGD,
    Sends,
    exact_epsilon,
    normal,
    process,
)
from tests.setups import with_malicious

KEY = jax.random.key(0, impl="threefry2x32")


_receive = jax.jit(lambda clip, message: clip.receive(None, message))


@pytest.mark.parametrize("per_layer", [False, True])
def test_messages_are_clipped_to_the_norm_and_others_left_alone(per_layer):
    rng = np.random.default_rng(0)
    for size in (0.1, 3.0):
        x = {"a": size * rng.normal(size=(3, 4)), "b": size * rng.normal(size=5)}
        clip = ClipNorm(norm=1.5, per_layer=per_layer)
        sent = _receive(clip, x)
        whole = math.sqrt(sum((v**2).sum() for v in x.values()))
        for name, values in x.items():
            norm = np.linalg.norm(values) if per_layer else whole
            bound = 1.5 / math.sqrt(2) if per_layer else 1.5
            np.testing.assert_allclose(
                sent[name], values * min(1, bound / norm), rtol=1e-14
            )
    assert np.isnan(_receive(clip, np.array([np.nan, 1.0]))).any()
    far = _receive(clip, np.array([1e30, 0.0], np.float32))
    assert np.linalg.norm(far) <= 1.5


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("scale", [1e25, 1e-25, 3e38])
def test_messages_of_every_scale_are_clipped_to_the_norm(per_layer, scale):
    """At scales whose squares, or at the last whose norm, float32 does not hold."""
    x = np.float32(scale) * np.array([0.5, -1, 1, 0, 1], np.float32)
    short, long = np.float32(scale), 10 * float(scale)
    for bound in (short, np.float32(1e-30)):
        clip = ClipNorm(norm=bound, per_layer=per_layer)
        sent = np.asarray(_receive(clip, {"a": x})["a"], np.float64)
        expected = x.astype(np.float64) * (float(bound) / (np.sqrt(3.25) * scale))
        np.testing.assert_allclose(sent, expected, rtol=1e-6)
        assert float(AdaptiveClip(norm=bound).within(x)) == -0.5
    if long < 3e38:
        clip = ClipNorm(norm=np.float32(long), per_layer=per_layer)
        np.testing.assert_array_equal(_receive(clip, {"a": x})["a"], x)
        assert float(AdaptiveClip(norm=np.float32(long)).within(x)) == 0.5


VECTORS = private.vectors(6)
CLIP = ClipNorm(norm=0.7)
FEEDBACK = TopK(fraction=0.5, error_feedback=True)
BETWEEN = [(TopK(fraction=0.5),), (RandomK(fraction=0.5),), (QSGD(levels=2),)]
BETWEEN += [(), (SignScale(),), (FEEDBACK, QSGD(levels=2))]
CASES = [(EVERYBODY, 6, (CLIP, *between), fp.FedAvg) for between in BETWEEN]
CASES += [
    (EVERYBODY, 6, (ClipNorm(norm=0.7, per_layer=True),), fp.Scaffold),
    (EVERYBODY, 6, (CLIP, TopK(fraction=0.5)), fp.Scaffold),
    (fp.UniformCohort(size=4), 4, (CLIP, FEEDBACK), fp.FedAvg),
    (PoissonCohort(rate=0.5, capacity=5), 3, (CLIP, QSGD(levels=2)), fp.FedAvg),
    (CyclicCohorts(size=2), 2, (CLIP,), fp.FedAvg),
]


def first_member(who):
    """A client that takes part in the first round of seed 0."""
    key = fp.core.stream_key(jax.random.key(0), fp.core.Stream.PARTICIPATION, 0)
    rows, present = who.in_round(key, 6, 0), who.present(key, 6)
    return int(rows[0 if present is None else jnp.argmax(present)])


def released_sum(who, count, transforms, method, vector):
    """What a round changes the server's state by, times the number of its mean."""
    problem = with_malicious(problems.waves(dim=6), first_member(who))
    whole = process(
        *transforms,
        GaussianNoise(multiplier=0.0),  # which has no part in the sensitivity
        who=who,
        algorithm=method(local=SGD),
        attack=Sends(vector=jnp.asarray(vector)),
    )
    states, _, _ = problems.run(whole, problem, 1)
    server = jax.tree.leaves(states.server)
    return count * np.concatenate([leaf[1] - leaf[0] for leaf in server])


@pytest.mark.parametrize("case", [CASES[0], *map(wide, CASES[1:])], ids=str)
@hypothesis.settings(deadline=None, max_examples=15)
@hypothesis.given(VECTORS, VECTORS)
def test_one_client_moves_the_sum_by_two_clips_at_most(case, first, second):
    moved = released_sum(*case, first) - released_sum(*case, second)
    assert np.linalg.norm(moved) <= 2 * 0.7 * (1 + 1e-12)


def test_two_clips_are_reached():
    case = (EVERYBODY, 6, (CLIP,), fp.FedAvg)
    far = 1e6 * np.arange(6.0)
    moved = np.linalg.norm(released_sum(*case, far) - released_sum(*case, -far))
    assert moved == pytest.approx(2 * 0.7, rel=1e-5)


@hypothesis.settings(deadline=None, max_examples=15)
@hypothesis.given(VECTORS, VECTORS)
def test_in_front_of_a_robust_rule_one_message_moves_by_two_clips_at_most(
    first, second
):
    problem, kept = with_malicious(problems.waves(dim=6), 2), []
    for vector in (first, second):
        flame = fp.Flame(local=SGD, kappa=1.0)  # which keeps what it has received
        whole = process(
            CLIP,
            TopK(fraction=0.5),
            algorithm=flame,
            aggregator=fp.CoordinateMedian(),
            attack=Sends(vector=jnp.asarray(vector)),
        )
        states, infos, _ = problems.run(whole, problem, 1)
        if infos.num_nonfinite[0]:  # it stays what it was
            return
        kept.append(np.asarray(states.rows["messages"]["theta"][1]))
    moved = np.linalg.norm(kept[0] - kept[1], axis=1)
    assert moved[2] <= 2 * 0.7 * (1 + 1e-12) and not moved[np.arange(6) != 2].any()


def test_noise_has_the_deviation_of_the_clip_and_belongs_to_the_round():
    problem = problems.waves(dim=400)
    quiet, loud = (
        problems.run(
            process(ClipNorm(norm=0.5), GaussianNoise(multiplier=z)), problem, 1
        )
        for z in (0.0, 2.0)
    )
    noise = loud[0].server["theta"][1] - quiet[0].server["theta"][1]
    deviation = 2.0 * 0.5 / 6
    # Of 400 draws: five standard errors of a deviation.
    assert noise.std() == pytest.approx(deviation, rel=5 / math.sqrt(800))
    assert abs(noise.mean()) < 5 * deviation / 20
    np.testing.assert_allclose(noise, deviation * normal(0, 400), atol=1e-12)


def test_noise_is_threefry_of_twenty_rounds_whatever_the_run_draws_with():
    problem = problems.waves(dim=5)

    @jax.jit
    def round_of(key, z):
        whole = process(ClipNorm(norm=1.0), GaussianNoise(multiplier=z))
        state = whole.init(key, problem.model, problem.federation)
        return whole.round(state, problem.model, problem.federation)[0].server["theta"]

    for key in (fp.core.seed_key(3), jax.random.key(3, impl="threefry2x32")):
        noise = round_of(key, 1.0) - round_of(key, 0.0)
        np.testing.assert_allclose(noise, normal(0, 5, key=key) / 6, atol=1e-12)


def test_robust_rules_see_noise_on_every_message():
    problem = problems.waves(dim=300)
    median = fp.CoordinateMedian()
    quiet, loud = (
        problems.run(
            process(ClipNorm(norm=0.5), GaussianNoise(multiplier=z), aggregator=median),
            problem,
            1,
        )[0].server["theta"][1]
        for z in (0.0, 100.0)
    )
    # Six messages are near one another beside noise of 50: the middle of six normal
    # numbers, whose deviation is known from their order statistics.
    draws = np.random.default_rng(0).normal(size=(200_000, 6))
    expected = 50 * np.median(draws, axis=1).std()
    assert (loud - quiet).std() == pytest.approx(expected, rel=5 / math.sqrt(600))


@pytest.mark.wide
def test_noise_is_the_same_in_chunks_and_after_a_pause():
    subject = testing.Subject(
        fp.Flame(),
        transforms=(ClipNorm(norm=0.5), GaussianNoise(multiplier=1.0)),
        field=("transforms.1.multiplier", 0.5),
    )
    for prop in (
        "chunks_change_rounding_only",
        "a_resumed_grid_is_bit_identical",
        "loop_reference",
    ):
        testing.check(prop, subject)
    at = subject.setting
    chunk = sharding.Execution(mode="chunk", chunk_size=3, by_size=True)
    loud = [at.round(execution=e)[0].server for e in (sharding.Execution(), chunk)]
    silent = struct.replace_field(at.process, "transforms.1.multiplier", jnp.zeros(()))
    at = dataclasses.replace(at, process=silent)
    quiet = [
        at.round(subject.setting.warm, execution=e)[0].server
        for e in (sharding.Execution(), chunk)
    ]
    noise = [jax.tree.map(jnp.subtract, a, b) for a, b in zip(loud, quiet, strict=True)]
    for one, other in zip(*map(jax.tree.leaves, noise), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-14)
        assert np.abs(one).max() > 1e-3


def test_lost_clients_count_as_ones_that_change_nothing():
    problem = with_malicious(problems.waves(), 4)
    attack = Sends(vector=jnp.full(3, jnp.nan))
    clip, noise = ClipNorm(norm=0.2), GaussianNoise(multiplier=0.0)
    for algorithm in (fp.FedAvg(local=SGD), fp.Flame(local=SGD, kappa=1.0)):
        states, infos, _ = problems.run(
            process(clip, noise, algorithm=algorithm, attack=attack), problem, 1
        )
        assert infos.num_nonfinite[0] == 1
        if algorithm == fp.FedAvg(local=SGD):
            w = states.server["theta"][0]
            moves = [problem.descend(i, w, w, 0.0, 2) - w for i in range(6) if i != 4]
            clipped = [x * min(1, 0.2 / np.linalg.norm(x)) for x in moves]
            np.testing.assert_allclose(
                states.server["theta"][1], w + np.sum(clipped, axis=0) / 6, rtol=1e-12
            )
        assert np.isfinite(states.server["theta"]).all()


def test_one_round_lies_below_its_privacy_loss_distribution():
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    for z, delta in ((2.0, 1e-5), (5.0, 1e-6)):
        (found,) = accounting.epsilons(z, delta, 10, 10, 1)
        # Which takes the noise in clips, and doubles the clip itself.
        relation = dp.NeighboringRelation.REPLACE_ONE
        accountant = pld.PLDAccountant(neighboring_relation=relation)
        accountant.compose(dp.GaussianDpEvent(z))
        upper = accountant.get_epsilon(delta)
        assert found == pytest.approx(exact_epsilon(2 / z, delta), abs=1e-9)
        assert found <= upper <= found + 1e-3


def test_cohorts_are_accounted_as_dp_accounting_does_and_by_the_minimum_of_orders():
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import rdp

    z, delta, rounds = 1.1, 1e-5, 5
    found = accounting.epsilons(z, delta, 10, 200, rounds)
    relation = dp.NeighboringRelation.REPLACE_ONE
    accountant = rdp.RdpAccountant(neighboring_relation=relation)
    # Its noise is in units of the sensitivity of a replacement, which is two clips.
    event = dp.SampledWithoutReplacementDpEvent(200, 10, dp.GaussianDpEvent(z / 2))
    for number in range(rounds):
        accountant.compose(event)
        assert found[number] == pytest.approx(accountant.get_epsilon(delta), abs=1e-6)
    assert (np.diff(found) > 0).all()
    orders, divergences = np.asarray(accountant.orders), np.asarray(accountant.rdp)
    keep = orders > 1
    a, r = orders[keep], divergences[keep]
    bound = r + np.log1p(-1 / a) - np.log(delta * a) / (a - 1)
    assert found[-1] == pytest.approx(bound.min(), abs=1e-6)
    assert found[-1] < accounting.epsilons(z, delta, 200, 200, rounds)[-1]


def train(process, rounds=3, **axes):
    spec = fp.FederationSpec("digits", num_clients=6)
    given = KEY, process, fp.LogisticRegression(), spec, axes, rounds
    return fp.grid(*given, evaluate_on="test", progress=False)


def test_epsilon_is_in_histories_summaries_and_reports():
    pytest.importorskip("dp_accounting")
    private = (ClipNorm(norm=1.0), GaussianNoise(multiplier=2.0, delta=1e-4))
    pair, axes = fp.UniformCohort(size=2), {"transforms.1.multiplier": [0.5, 2.0]}
    result = train(process(*private, who=pair), **axes)
    (group,) = result.groups
    for point, z in enumerate((0.5, 2.0)):
        np.testing.assert_array_equal(
            group.per_round["epsilon"][point], accounting.epsilons(z, 1e-4, 2, 6, 3)
        )
    table = result.privacy()
    assert table["delta"].tolist() == [1e-4, 1e-4]
    assert table["epsilon"].tolist() == group.per_round["epsilon"][:, -1].tolist()
    summary = result.summary()
    assert set(summary["epsilon"]) == set(table["epsilon"])
    loaded = sources.Loaded(sources=(), result=result, unfinished=())
    (shown,) = facts.privacy(loaded)
    texts = [f"{value:.3g}" for value in table["epsilon"]]
    assert [row[2] for row in shown.parts[0].rows] == texts
    # FLAME's server takes the messages of all, whoever takes part.
    flame = process(*private, algorithm=fp.Flame(local=SGD), who=pair)
    everybody = accounting.epsilons(2.0, 1e-4, 6, 6, 3)
    np.testing.assert_array_equal(privacy.epsilons(flame, 6, 3), everybody)


PRIVATE = "apfl ditto fedala fedavg fedbabu feddyn fedper fedprox fedproto".split()
PRIVATE += "fedrep fedsam flame knn_per moon per_fedavg pfedme scaffold".split()


def test_methods_say_what_they_release():
    kinds = fp.algorithms.ALGORITHMS
    assert {n for n in kinds if kinds[n]().released is not None} == set(PRIVATE)


NOISE = GaussianNoise(multiplier=1.0)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"transforms": (NOISE,)}, "behind ClipNorm, .* got GaussianNoise"),
        ({"transforms": (NOISE, CLIP)}, "one GaussianNoise behind ClipNorm"),
        ({"transforms": (CLIP, NOISE, NOISE)}, "one GaussianNoise behind ClipNorm"),
        (
            {"aggregator": fp.aggregators.WeightedMean()},
            "equal weights .* got WeightedMean, where one with many examples",
        ),
        ({"aggregator": None}, "equal weights .* got WeightedMean"),
        (
            {"aggregator": fp.aggregators.ModularMean()},
            "an aggregator that sees messages, to clip them, got ModularMean",
        ),
        ({"algorithm": fp.FedACS()}, "nothing but the aggregate .* got FedACS"),
        ({"algorithm": fp.FedFomo()}, "nothing but the aggregate .* got FedFomo"),
        ({"algorithm": fp.FedPG()}, "nothing but the aggregate .* got FedPG"),
        ({"on_nonfinite": "freeze"}, "got 'freeze'"),
    ],
)
def test_what_guarantees_nothing_is_refused(fields, match):
    fields = {"transforms": (CLIP, NOISE)} | fields
    private.assert_refused(match, privacy.check, **fields)


def test_noise_needs_the_accountant(monkeypatch):
    monkeypatch.setattr(accounting.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(checks.InputError, match="dp-accounting to be installed"):
        privacy.check(process(CLIP, NOISE))
