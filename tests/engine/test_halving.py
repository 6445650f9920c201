"""Successive halving: who is dropped when, and that those who go on do not notice."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_pfl as fp
from fedjax_pfl import local
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import stopping, tuning
from tests.engine import breaking, specs

KEY = jax.random.key(0, impl="threefry2x32")
SPEC = specs.validated()
PROCESS = fp.FederatedProcess(
    algorithm=fp.Ditto(local=fp.SGD(learning_rate=0.1, batch_size=8))
)
SPACE = {
    "algorithm.lam": tuning.Range(0.01, 10),
    "algorithm.local.learning_rate": tuning.Range(0.003, 3),
}


def search(**changes):
    options = {"space": SPACE, "num_settings": 9, "seeds": range(2)}
    options |= {"strategy": stopping.Halving(min_rounds=2), "metric": "loss"}
    options |= {"progress": False, "execution": "vmap", "points_per_chunk": 4} | changes
    return tuning.tune(KEY, PROCESS, fp.LogisticRegression(), SPEC, 18, **options)


def survivors(curves, ends, eta, least, num_rounds):
    """Successive halving in plain Python: round at which each setting is dropped.

    `curves[s]` has the score of setting s after 1, 2, ... rounds, more is better.
    """
    left, dropped = list(range(len(curves))), {}
    wanted, evaluated = least, ends
    passed = 0
    for done in evaluated:
        if done >= num_rounds or done < wanted:
            continue
        while done >= wanted:
            wanted *= eta
            passed += 1
        keep = math.ceil(len(curves) / eta**passed)
        by_score = sorted(left, key=lambda s: (-curves[s][done - 1], s))
        for setting in by_score[keep:]:
            dropped[setting] = done
        left = by_score[:keep]
    return dropped


@settings(max_examples=200, deadline=None, database=None)
@given(
    st.integers(1, 9).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(-5, 5), min_size=12, max_size=12),
            min_size=n,
            max_size=n,
        )
    ),
    st.integers(2, 4),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_settings_are_dropped_as_in_plain_python(curves, eta, least, every):
    points = [
        {"algorithm.lam": float(setting), "seed": seed}
        for setting in range(len(curves))
        for seed in range(2)
    ]
    rule = stopping.Halving(eta=eta, min_rounds=least)
    watch = stopping.watch(rule, points, 12)
    ends = range(every, 13, every)
    for done in ends:
        # The seeds differ, their mean is the setting's score.
        values = [curves[k // 2][done - 1] + (-1) ** k for k in range(len(points))]
        watch.see(done, np.array(values, float))
    expected = survivors(curves, ends, eta, least, 12)
    stopped = [expected.get(k // 2, -1) for k in range(len(points))]
    assert watch.stopped_at.tolist() == stopped
    assert watch.dropped.tolist() == [when >= 0 for when in stopped]


def test_losses_and_divergence_count_as_they_should():
    points = [{"algorithm.lam": k, "seed": s} for k in range(4) for s in range(2)]
    rule = stopping.Halving(eta=2, min_rounds=1, metric="loss")
    watch = stopping.watch(rule, points, 8)
    watch.see(1, np.array([1, 1, 0, np.nan, 3, 3, 0.5, 0.5]))
    assert watch.stopped_at.tolist() == [-1, -1, 1, 1, 1, 1, -1, -1]


def test_settings_compete_in_their_own_environment_only():
    name, other = "algorithm.lam", "federation.malicious_fraction"
    points = [{name: k, other: f, "seed": 0} for f in (0.0, 0.4) for k in range(2)]
    watch = stopping.watch(stopping.Halving(eta=2, min_rounds=1), points, 8)
    watch.see(1, np.array([0.9, 0.8, 0.1, 0.2]))
    assert watch.stopped_at.tolist() == [-1, 1, 1, -1]


@settings(max_examples=50, deadline=None, database=None)
@given(st.integers(1, 60), st.integers(2, 4), st.integers(1, 5))
def test_brackets_share_all_settings_and_the_first_drops_first(count, eta, brackets):
    rule = stopping.Halving(eta=eta, min_rounds=1, brackets=brackets)
    sizes = rule.bracket_sizes(count, 10**9)
    assert sum(sizes) == count and sizes[0] == max(sizes)
    points = [{"algorithm.lam": k, "seed": 0} for k in range(count)]
    watch = stopping.watch(rule, points, 10**9)
    watch.see(1, np.arange(count, dtype=float))
    first = sizes[0]
    assert (watch.stopped_at[first:] == -1).all()
    assert (watch.stopped_at[:first] == 1).sum() == first - math.ceil(first / eta)


@pytest.fixture(scope="module")
def halved():
    return search()


def test_survivors_are_the_same_to_the_last_bit_without_halving(halved):
    """The program that may drop points, but never does."""
    halved = halved.result.groups[0]
    never = stopping.Halving(min_rounds=18)
    everything = search(strategy=never, eval_every=2).result.groups[0]
    assert halved.dropped.sum() == 16 and everything.dropped is None
    for point, end in enumerate(halved.ends):
        until = halved.rounds <= end
        for name, values in halved.metrics.items():
            expected = everything.metrics[name][point, until]
            np.testing.assert_array_equal(values[point, until], expected)
        for name, values in halved.per_round.items():
            expected = everything.per_round[name][point, :end]
            np.testing.assert_array_equal(values[point, :end], expected)


def test_a_search_resumes_in_the_middle_of_a_rung(tmp_path):
    whole = search(eval_every=2)

    checkpoints = fp.Checkpoints(tmp_path / "search", min_seconds=0)
    with pytest.raises(InterruptedError):
        search(eval_every=2, checkpoints=checkpoints, callbacks=[breaking.Stop(at=4)])
    again = search(eval_every=2, checkpoints=checkpoints)
    (one,), (other,) = whole.result.groups, again.result.groups
    for name in one.metrics:
        np.testing.assert_array_equal(one.metrics[name], other.metrics[name])
    assert one.status == other.status
    assert again.best == whole.best


def test_a_search_says_what_it_did(halved, tmp_path):
    tuned, trials = halved, halved.trials()
    assert trials["rounds"].tolist() == [18] + [6] * 2 + [2] * 6
    for _, rows in trials.groupby("rounds"):
        assert rows["score"].is_monotonic_increasing  # of losses
    assert tuned.cost == pytest.approx((18 + 2 * 6 + 6 * 2) / (9 * 18))
    assert tuned.best == {name: trials.loc[0, name] for name in SPACE}
    assert tuned.process.algorithm.lam == tuned.best["algorithm.lam"]
    assert "dropped at round 2" in tuned.result.status
    assert "26%" in str(tuned) and "lam" in str(tuned)
    # Tables of methods are about settings that were trained to their end.
    assert len(tuned.result.contenders().points()) == 2
    tuned.result.save(tmp_path / "kept")
    assert fp.Result.load(tmp_path / "kept").status == tuned.result.status


def test_more_settings_and_other_fields_leave_draws_as_they_are():
    few, many = tuning.draw(SPACE, 4), tuning.draw(SPACE, 20)
    assert many[:4] == few
    more = tuning.draw({"algorithm.personal": [1, 2], **SPACE}, 4)
    assert [{n: p[n] for n in SPACE} for p in more] == few
    lams = np.array([point["algorithm.lam"] for point in tuning.draw(SPACE, 2000)])
    assert 0.01 <= lams.min() and lams.max() <= 10
    shares = np.log(lams / 0.01) / np.log(1000)
    assert abs(shares.mean() - 0.5) < 4 * math.sqrt(1 / 12 / 2000)


def values_of_a_field():
    """A range, which may be narrow, or a list."""
    lists = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)
    narrow, wide = tuning.Range(1.0, 1.004), tuning.Range(0.01, 10)
    return lists | st.sampled_from([narrow, wide])


@settings(max_examples=100, deadline=None, database=None)
@given(
    st.dictionaries(st.sampled_from("abc"), values_of_a_field(), min_size=1),
    st.integers(1, 40),
)
def test_drawn_settings_differ_and_exhaust_small_spaces(space, count):
    drawn, fewer = tuning.draw(space, count), tuning.draw(space, max(1, count // 2))
    assert len({tuple(setting.values()) for setting in drawn}) == len(drawn)
    # A narrow range has five numbers of four digits.
    sizes = [5 if isinstance(v, tuning.Range) else len(v) for v in space.values()]
    is_wide = tuning.Range(0.01, 10) in space.values()
    assert len(drawn) == (count if is_wide else min(count, math.prod(sizes)))
    assert drawn[: len(fewer)] == fewer
    grid = tuning.lattice(space, count)
    assert len({tuple(setting.values()) for setting in grid}) == len(grid)


def test_grids_have_ends_of_ranges_and_all_of_lists():
    points = tuning.lattice(SPACE | {"algorithm.local.epochs": [1, 2]}, 18)
    assert len(points) == 18
    lams = sorted({point["algorithm.lam"] for point in points})
    np.testing.assert_allclose(lams, [0.01, 10**-0.5, 10], rtol=1e-12)


PARTS = {
    **fp.algorithms.ALGORITHMS,
    **{kind.__name__: kind for kind in (fp.SGD, local.ToTolerance, local.PrivateSGD)},
    **fp.algorithms.SERVER_OPTIMIZERS,
}


@pytest.mark.parametrize("name", sorted(fp.algorithms.ALGORITHMS))
def test_all_of_a_declared_range_can_be_set(name):
    process = fp.FederatedProcess(algorithm=fp.algorithms.ALGORITHMS[name]())
    space = tuning.search_space(process)
    if name not in ("majority",):
        assert space
    for field, values in space.items():
        default = struct.get_field(process, field)
        tried = values
        if isinstance(values, tuning.Range):
            assert default is None or values.low <= default <= values.high
            tried = (values.low, values.high)
        for value in tried:
            struct.replace_field(process, field, value)


@pytest.mark.parametrize("name", sorted(PARTS))
def test_every_number_has_a_range_or_a_reason_for_none(name):
    """A method whose numbers stay as they are is not tuned like the others."""
    for field in dataclasses.fields(PARTS[name]):
        is_number = "limits" in field.metadata and not field.metadata.get("static")
        has = [key for key in ("search", "unsearched") if field.metadata.get(key)]
        assert len(has) == 1 if is_number else "unsearched" not in has, field.name


def test_a_method_says_what_is_searched():
    space = tuning.search_space(PROCESS)
    assert set(space) == set(SPACE)
    for flame in (fp.Flame(), fp.Flame(kappa=2.0)):  # neither given means kappa
        of_flame = tuning.search_space(dataclasses.replace(PROCESS, algorithm=flame))
        assert {"algorithm.kappa", "algorithm.center"} < set(of_flame)
    flame = dataclasses.replace(PROCESS, algorithm=fp.Flame(rho=0.1))
    assert "algorithm.kappa" not in tuning.search_space(flame)
    rate = fp.aggregators.ServerMomentum(momentum=None)
    fedavg = fp.FederatedProcess(algorithm=fp.FedAvg(), server_optimizer=rate)
    assert set(tuning.search_space(fedavg)) == {
        "algorithm.local.learning_rate",
        "server_optimizer.learning_rate",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"space": {}}, "at least one field to search"),
        ({"space": {"algorithm.lmbda": (0.1, 1)}}, "Unknown field of Ditto 'lmbda'"),
        ({"space": {"algorithm.lam": "big"}}, "fp.Range.low, high., a pair"),
        ({"space": {"algorithm.lam": [1.0, 2.0, 1]}}, "differ in tables .*, got 1 tw"),
        (
            {"space": {"participation": [fp.UniformCohort(size=k) for k in (2, 3)]}},
            "the values of participation to differ .* got 'UniformCohort' twice",
        ),
        ({"space": {"algorithm.lam": (1.0, 0.1)}}, "from low to high, got 1.0 to 0.1"),
        ({"space": {"algorithm.lam": (0.0, 1.0)}}, "to begin above 0, got 0.0"),
        ({"strategy": "halfing"}, "did you mean 'halving'"),
        ({"strategy": stopping.Halving(min_rounds=19)}, "at most the 18 rounds"),
        ({"num_settings": 0}, "num_settings to be a whole number of at least 1"),
        ({"seeds": []}, "at least one seed"),
        ({"evaluate_on": ("test",)}, "validation among the data|data to stop on"),
        ({"metric": "acuracy"}, "did you mean 'accuracy'"),
        ({"by_model": "person"}, "did you mean 'personal'"),
    ],
)
def test_wrong_searches_get_one_sentence(changes, message):
    with pytest.raises(checks.InputError, match=message):
        search(**changes)


def test_a_federation_without_validation_data_cannot_choose():
    spec = dataclasses.replace(SPEC, validation_fraction=0.0)
    with pytest.raises(checks.InputError, match="validation_fraction above 0"):
        tuning.tune(KEY, PROCESS, fp.LogisticRegression(), spec, 4, progress=False)
