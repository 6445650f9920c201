"""Evaluation against predictions worked out in NumPy, one client after the other."""

import dataclasses
import functools
import types as python_types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import core, data
from fedjax_pfl.core import checks
from fedjax_pfl.engine import auto_execution, evaluation, schedule
from tests.lanes import wide

N, C, DIM = 6, 3, 2


def make_federation(num_others=2, noise=None, sizes=(13, 300, 21, 12, 150, 19)):
    """Clients of very different sizes, two of them above one batch of evaluation."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(N), sizes)
    dataset = fp.data.Dataset(
        name="hand-made",
        x=rng.normal(size=(len(owner), DIM)),
        y=rng.integers(C, size=len(owner)),
        num_classes=C,
        client=owner,
        scale=np.array([2.0, 0.5]),
        shift=0.25,
    )
    return data.from_dataset(
        dataset,
        fp.ByClient(),
        num_clients=N,
        num_others=num_others,
        test_fraction=0.6,
        feature_noise=noise,
    )


@jax.tree_util.register_static
class Linear:
    """A process of fixed linear predictors, one per client and one for all."""

    def before_evaluation(self, state, model, federation):
        return state

    def predictors(self, key, state, client, model, data):
        return {"personal": lambda x: x @ client, "global": lambda x: x @ state.server}


MODEL = fp.LogisticRegression().for_federation(make_federation())
STATE = core.State(
    server=jnp.array([[1.0, -1.0, 0.0], [0.5, 0.0, -0.5]]),
    clients=jax.random.normal(jax.random.key(1), (N, DIM, C)),
    memory={"nonfinite": jnp.zeros((), jnp.int32)},
    round=jnp.zeros((), jnp.int32),
    key=jax.random.key(2, impl="threefry2x32"),
)


def evaluate(federation, state=STATE, **options):
    """Metrics `[models, data, clients]`."""

    @jax.jit
    def run(state, federation):
        return evaluation.evaluate(Linear(), state, MODEL, federation, **options)[0]

    return jax.tree.map(np.asarray, run(state, federation))


@jax.jit
def shown(part):
    """Inputs and labels of one client as the model sees them, padding included."""
    positions = jnp.arange(part.index.shape[0])
    batch = part.gather(positions, (positions < part.num_examples).astype(float))
    return batch.x, batch.y


def inputs_of(federation, client, split="test"):
    """A client's own inputs and labels of one part, as the model sees them."""
    part = getattr(federation, split)
    own = part.pool().with_rows(jax.tree.map(lambda leaf: leaf[client], part.rows()))
    return tuple(np.asarray(a)[: int(own.num_examples)] for a in shown(own))


def oracle(weights, x, y):
    logits = x @ np.asarray(weights)
    shifted = logits - logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y]
    return (logits.argmax(axis=1) == y).mean(), losses.mean()


def expected(federation, client, name, weights, inputs):
    if name == "everybody":
        owners = range(N)
    elif name == "others":
        owners = [client, *np.asarray(federation.others[client]).tolist()]
    else:
        return oracle(weights, *inputs(client, name))
    parts = [inputs(owner) for owner in owners]
    return oracle(weights, *(np.concatenate(each) for each in zip(*parts, strict=True)))


@pytest.mark.parametrize(
    ("noise", "members", "together"),
    [
        wide(fp.data.FeatureNoise(std=0.5, graded=True), None, 16),
        wide(None, None, 1),
        (None, (4, 1, 3), 2),
    ],
)
def test_every_value_is_that_of_a_loop(monkeypatch, noise, members, together):
    monkeypatch.setattr(auto_execution, "evaluated_at_once", lambda *_: together)
    federation = make_federation(noise=noise)
    rows = None if members is None else jnp.array(members)
    seen = functools.cache(functools.partial(inputs_of, federation))
    metrics = evaluate(federation, data=schedule.DATA, members=rows)
    for k, client in enumerate(range(N) if members is None else members):
        for p, weights in enumerate((STATE.server, STATE.clients[client])):
            for d, name in enumerate(schedule.DATA):
                accuracy, loss = expected(federation, client, name, weights, seen)
                # Sums of at most 300 terms in another order, in float64.
                assert metrics["accuracy"][p, d, k] == pytest.approx(accuracy, 1e-12)
                assert metrics["loss"][p, d, k] == pytest.approx(loss, 1e-12)


def test_others_are_distinct_other_clients_drawn_once():
    federation = make_federation(num_others=4)
    others = np.asarray(federation.others)
    for client, row in enumerate(others):
        assert len(set(row)) == 4 and client not in row
        assert set(row) <= set(range(N))
    np.testing.assert_array_equal(others, make_federation(num_others=4).others)
    assert make_federation(num_others=0).others is None
    with pytest.raises(checks.InputError, match="num_others to be at most 5"):
        make_federation(num_others=6)


def test_clients_without_examples_have_no_value():
    federation = make_federation()
    none = jnp.zeros_like(federation.test.num_examples)
    empty = dataclasses.replace(
        federation,
        validation=dataclasses.replace(federation.validation, num_examples=none),
    )
    metrics = evaluate(empty)
    assert np.isnan(metrics["accuracy"][:, 1]).all()
    assert np.isfinite(metrics["accuracy"][:, 0]).all()


def test_resampled_noise_differs_between_rounds_and_is_paired_between_models():
    noise = fp.data.FeatureNoise(std=0.5, resample=True)
    federation = make_federation(noise=noise)
    same = dataclasses.replace(
        STATE, clients=jnp.broadcast_to(STATE.server, (N, DIM, C))
    )
    later = dataclasses.replace(same, round=jnp.ones((), jnp.int32))
    first, second = (evaluate(federation, state) for state in (same, later))
    for value in first.values():
        np.testing.assert_array_equal(value[0], value[1])
    assert (first["loss"] != second["loss"]).all()


@pytest.mark.parametrize(
    ("arguments", "every"),
    [
        ((("test",), None, 100), {"test": 5}),
        ((("test", "train"), 7, 100), {"test": 7, "train": 7}),
        (({"test": None, "everybody": 50}, 10, 100), {"test": 10, "everybody": 50}),
        (({"test": 2, "train": 4}, None, 10), {"test": 2, "train": 4}),
        (("test", 1, 3), {"test": 1}),
    ],
)
def test_schedules(arguments, every):
    on, eval_every, num_rounds = arguments
    made = schedule.Schedule.parse(on, eval_every, "all", num_rounds)
    assert dict(made.every) == every and made.segment == min(every.values())


def test_all_data_are_due_at_the_end():
    made = schedule.Schedule.parse({"test": 5, "everybody": 20}, None, "all", 33)
    assert made.due(5, False) == ("test",)
    assert made.due(20, False) == made.due(0, False) == ("test", "everybody")
    assert made.due(33, True) == ("test", "everybody")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((("tset",), None, "all", 5), "did you mean 'test'"),
        (((), None, "all", 5), "at least one of test"),
        (({"test": 4, "train": 6}, None, "all", 50), "multiples of the smallest, 4"),
        (({"test": 0}, None, "all", 50), "at least 1, got 0"),
        ((("test",), 0, "all", 5), "eval_every"),
        ((("test",), None, "al", 5), "did you mean 'all'"),
        ((("test",), None, 0, 5), "eval_clients"),
        ((("test",), None, True, 5), "eval_clients"),
    ],
)
def test_wrong_schedules(arguments, sentence):
    with pytest.raises(checks.InputError, match=sentence) as error:
        schedule.Schedule.parse(*arguments)
    assert str(error.value).count("\n") == 0


def run(**options):
    return fp.simulate(
        jax.random.key(0),
        fp.FederatedProcess(
            algorithm=fp.Flame(local=fp.SGD(batch_size=50)),
            participation=fp.UniformCohort(size=2),
        ),
        MODEL,
        make_federation(),
        num_rounds=4,
        progress=False,
        execution="vmap",
        **options,
    )


@pytest.fixture(scope="module")
def full():
    return run(eval_every=1, evaluate_on=("test", "validation", "others")).groups[0]


def test_participants_are_those_of_the_last_round(full):
    result = run(eval_every=1, eval_clients="participants")
    group = result.groups[0]
    cohorts = np.diff(group.times_selected[0], axis=0) > 0
    np.testing.assert_array_equal(group.evaluated[0, 1:, 0], cohorts)
    assert group.evaluated[0, 0].sum() == 2 * 2
    shown = group.evaluated[0, :, :2]
    for name, values in group.metrics.items():
        np.testing.assert_array_equal(np.isnan(values[0, :, 0, :2]), ~shown)
        np.testing.assert_array_equal(
            values[0, :, 1, 0][shown[:, 0]], full.metrics[name][0, :, 1, 0][shown[:, 0]]
        )
    table = result.table()
    mean = table[(table.when == "last") & (table.stat == "mean")]
    mean = mean[(mean.population == "all") & (mean.model == "personal")]
    mean = mean[(mean.metric == "loss") & (mean.data == "own test")].value.item()
    last = full.metrics["loss"][0, -1, list(full.models).index("personal"), 0]
    assert mean == pytest.approx(last[cohorts[-1]].mean())


@pytest.mark.wide
def test_a_sample_stays_the_same():
    group = run(eval_every=2, eval_clients=3).groups[0]
    assert (group.evaluated == group.evaluated[:, :1, :1]).all()
    assert group.evaluated[0, 0, 0].sum() == 3


@pytest.mark.wide
def test_separate_periods(full):
    result = run(evaluate_on={"test": 1, "validation": 2, "others": 4})
    group = result.groups[0]
    when = group.evaluated[0].all(-1)
    assert when[:, 0].all()
    assert when[:, 1].tolist() == [True, False, True, False, True]
    assert when[:, 2].tolist() == [True, False, False, False, True]
    for name, values in group.metrics.items():
        for d in range(3):
            np.testing.assert_array_equal(
                values[0, when[:, d], :, d], full.metrics[name][0, when[:, d], :, d]
            )
    curves = result.curves()
    rounds = curves[curves.data == "own + others' test"]["round"]
    assert set(rounds) == {0, 4}
    # The hybrid that validates has a value only where validation data were used.
    hybrid = curves[(curves.model == "hybrid (validation)")]
    assert set(hybrid[hybrid.data == "own test"]["round"]) == {0, 2, 4}
    assert curves[curves.population == "all"].value.notna().all()
    best = result.table()
    best = best[(best.when == "best (validation)") & (best.data == "own test")]
    assert best.value.notna().all() and len(best)


def test_what_a_federation_lacks_is_said():
    with pytest.raises(checks.InputError, match="num_others of at least 1"):
        fp.simulate(
            *(jax.random.key(0), fp.FederatedProcess(algorithm=fp.FedAvg())),
            *(MODEL, make_federation(num_others=0)),
            num_rounds=1,
            evaluate_on=("others",),
            progress=False,
        )
    with pytest.raises(checks.InputError, match="eval_clients to be at most 6"):
        run(eval_clients=7)


def test_members_of_a_schedule_ignore_the_process_unless_they_follow_it():
    process = python_types.SimpleNamespace(participation=None)
    made = schedule.Schedule.parse(("test",), 1, 4, 10)
    rows = made.members(process, STATE, 9)
    assert len(set(rows.tolist())) == 4
    assert (
        schedule.Schedule.parse(("test",), 1, "all", 10).members(process, STATE, 9)
        is None
    )
