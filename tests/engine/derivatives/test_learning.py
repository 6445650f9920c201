"""Fields that are learned: where they go, and that every way there is the same."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import fedjax_pfl as fp
from fedjax_pfl import attacks, data
from fedjax_pfl.core import checks, struct
from tests.engine.breaking import Stop

KEY = jax.random.key(0, impl="threefry2x32")
CURVATURE = 2.0
SPEC = fp.FederationSpec(
    data.Quadratic(dim=2, examples_per_client=8),
    "by_client",
    num_clients=4,
    validation_fraction=0.3,
)
MODEL = fp.models.Quadratic(curvature=CURVATURE)
RATE = "algorithm.local.learning_rate"
SGD = fp.SGD(learning_rate=0.05, batch_size=64)  # one full gradient a round
FEDAVG = fp.FederatedProcess(algorithm=fp.FedAvg(local=SGD))
RTOL = np.finfo(float).eps ** 0.5


def learn(fields=RATE, num_rounds=1, process=FEDAVG, model=MODEL, spec=SPEC, **options):
    """Two starts that are evaluated after every round share one program."""
    options = {"seeds": [0], "evaluate_on": "validation", "eval_every": 1} | options
    given = KEY, process, model, spec, fields, num_rounds
    return fp.learn(*given, progress=False, **options)


@pytest.fixture(scope="module")
def centers():
    """Everybody's minimizer, without noise that of its validation examples, too."""
    federation = SPEC.build()
    x, index = np.asarray(federation.train.x), np.asarray(federation.train.index)
    return x[index[:, 0]]


def loss(w, centers):
    return CURVATURE / 2 * np.square(w - centers).sum(axis=1).mean()


@pytest.mark.wide
def test_a_learning_rate_becomes_the_best_one(centers):
    """One step of size 1 / b reaches the minimum, whatever the federation is."""
    least = loss(centers.mean(axis=0), centers)
    found = learn(num_trainings=20)
    path = found.path
    assert len(path) == 20 and path.loc[0, RATE] == pytest.approx(0.05)
    excess = path["objective"] - least
    assert (excess >= -RTOL * least).all()
    assert found.values.loc[0, "objective"] == path["objective"].min()
    # Excess is b^2 (eta - 1/b)^2: a hundredth of it, a tenth of the distance.
    assert excess.min() < excess[0] / 100
    assert found.best[RATE] == pytest.approx(1 / CURVATURE, rel=0.1)
    assert found.process.algorithm.local.learning_rate == found.best[RATE]
    assert f"{RATE} = {found.best[RATE]:.4g}" in str(found)


def starting(*rates):
    return [{RATE: rate} for rate in rates]


def check_paths(found, by_hand, rounds):
    """That rates, objectives and derivatives of all starts are those by hand."""
    for rate, path in found.path.groupby(f"start {RATE}"):
        assert path["round"].tolist() == rounds
        columns = path[[RATE, "objective", f"d {RATE}"]]
        np.testing.assert_allclose(columns, by_hand(rate), rtol=RTOL)


def test_trainings_take_gradient_steps_in_the_logarithm(centers):
    """With plain descent of `b/2 |(1 - (1 - eta b)^R) m - c_i|^2`, by hand."""
    step, rounds, mean = 0.05, 3, centers.mean(axis=0)

    def by_hand(rate):
        free, rows = np.log(rate), []
        for _ in range(6):
            rate = np.exp(free)
            left = 1 - rate * CURVATURE
            w = (1 - left**rounds) * mean
            moved = rounds * CURVATURE * left ** (rounds - 1) * mean
            slope = CURVATURE * (w - mean) @ moved
            rows.append([rate, loss(w, centers), slope])
            free -= step * slope * rate
        return rows

    options = {"num_trainings": 6, "optimizer": optax.sgd(step)}
    found = learn(num_rounds=rounds, starts=starting(0.05, 0.1), **options)
    check_paths(found, by_hand, [3, 6, 9, 12, 15, 18])


def test_one_training_moves_by_derivatives_since_its_first_round(centers):
    """States and their derivatives go on, by hand, while the rate changes."""
    step, rounds, mean = 0.1, 4, centers.mean(axis=0)

    def by_hand(rate):
        free, rows = np.log(rate), []
        w = tangent = np.zeros(2)
        for _ in range(rounds + 1):
            slope = CURVATURE * (w - mean) @ tangent
            rows.append([rate, loss(w, centers), slope])
            free -= step * slope * rate
            rate = np.exp(free)
            gradient = CURVATURE * (w - mean)
            tangent = tangent - gradient - rate * CURVATURE * tangent
            w = w - rate * gradient
        return rows

    optimizer = optax.sgd(step)
    found = learn(num_rounds=rounds, starts=starting(0.05, 0.1), optimizer=optimizer)
    check_paths(found, by_hand, [0, 1, 2, 3, 4])


STARTS = starting(0.02, 1.5)


@pytest.mark.wide
@pytest.mark.parametrize("given", [{"num_trainings": 4}, {"num_rounds": 4}])
def test_starts_are_those_of_each_alone(given):
    both = learn(starts=STARTS, **given)
    paths = both.path.groupby(f"start {RATE}")
    assert paths[RATE].first().to_dict() == {0.02: 0.02, 1.5: 1.5}
    for start in STARTS:
        alone = learn(starts=[start], **given).path
        together = paths.get_group(start[RATE]).reset_index(drop=True)
        pd.testing.assert_frame_equal(together, alone, rtol=1e-9)
    scores = both.values["objective"]
    assert scores.is_monotonic_increasing and len(scores) == 2
    assert both.best[RATE] == both.values.loc[0, RATE]


NOISY = dataclasses.replace(
    SPEC, dataset=data.Quadratic(dim=2, noise=1.0), malicious_fraction=0.25
)
ATTACKED = fp.FederatedProcess(
    algorithm=fp.FedAvg(local=fp.SGD(learning_rate=0.1, momentum=0.3, batch_size=3)),
    attack=attacks.Scaling(factor=1.5),
)
SCALES = {  # functions to the numbers without limits, and back; others are as they are
    RATE: (jnp.log, jnp.exp),
    "algorithm.local.momentum": (jax.scipy.special.logit, jax.nn.sigmoid),
    "attack.factor": (jnp.asarray, jnp.asarray),
}
FIELDS = tuple(SCALES)


def test_a_path_is_a_loop_of_derivatives_and_optax():
    """Of fields in their logarithm, log odds and as they are, two starts, two seeds."""
    optimizer, rates, seeds = optax.adam(0.2), [0.05, 0.2], [0, 1]
    given = {"evaluate_on": "validation", "eval_every": 3, "progress": False}
    found = fp.learn(
        *(KEY, ATTACKED, MODEL, NOISY, FIELDS, 3),
        starts=starting(*rates),
        seeds=seeds,
        optimizer=optimizer,
        num_trainings=3,
        **given,
    )
    begin = {name: [float(struct.get_field(ATTACKED, name))] * 2 for name in FIELDS}
    begin[RATE] = rates
    free = {name: SCALES[name][0](jnp.array(begin[name])) for name in FIELDS}
    memory, rows = optimizer.init(free), []
    for _ in range(3):
        values = {name: np.asarray(SCALES[name][1](free[name])) for name in FIELDS}
        points = [
            {name: float(values[name][start]) for name in FIELDS} | {"seed": seed}
            for start in range(2)
            for seed in seeds
        ]
        one = fp.hypergradients(
            *(KEY, ATTACKED, MODEL, NOISY, FIELDS, 3), axes=points, **given
        )
        means = {"objective": one.value.reshape(2, 2).mean(axis=1)}
        for name in FIELDS:
            means[f"d {name}"] = one.derivatives[name].reshape(2, 2).mean(axis=1)
        rows.append(pd.DataFrame({f"start {RATE}": rates} | values | means))
        gradient = {
            name: jax.vjp(SCALES[name][1], free[name])[1](means[f"d {name}"])[0]
            for name in FIELDS
        }
        steps, memory = optimizer.update(gradient, memory, free)
        free = optax.apply_updates(free, steps)
    expected = pd.concat(rows).sort_values(f"start {RATE}", kind="stable")
    expected = expected.reset_index(drop=True)
    assert len({*expected["attack.factor"]}) == 5  # both begin with one
    path = found.path[expected.columns]
    pd.testing.assert_frame_equal(path, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("at", "options"),
    [
        (2, {"num_rounds": 2, "num_trainings": 3}),
        (3, {"num_rounds": 2, "num_trainings": 3}),
        (3, {"num_rounds": 6}),
    ],
    ids=["between trainings", "in a training", "in one training"],
)
def test_a_path_goes_on_where_it_was_broken_off(tmp_path, at, options):
    """To the last bit, optimizer's memory and all."""
    options = options | {"starts": STARTS}
    whole = learn(**options)
    options["checkpoints"] = fp.Checkpoints(tmp_path / "kept", min_seconds=0)
    with pytest.raises(InterruptedError):
        learn(callbacks=[Stop(at)], **options)
    again = learn(**options)
    pd.testing.assert_frame_equal(again.path, whole.path, check_exact=True)
    assert again.best == whole.best


def test_a_start_is_the_same_number_when_resumed(tmp_path):
    """Also if it is not the exponential of its logarithm."""
    start = 0.05477
    assert np.exp(np.log(start)) != start
    options = {"starts": starting(start, 1.5), "num_rounds": 2}
    options["checkpoints"] = fp.Checkpoints(tmp_path / "kept", min_seconds=0)
    with pytest.raises(fp.engine.Interrupted, match="at round 0"):
        learn(max_minutes=1e-9, **options)
    path = learn(**options).path
    assert list(path[RATE][path[f"start {RATE}"] == start][:2]) == [start, start]


def test_a_path_of_another_length_of_trainings_is_another_one(tmp_path):
    options = {"checkpoints": fp.Checkpoints(tmp_path / "kept", min_seconds=0)}
    options["starts"] = STARTS
    with pytest.raises(InterruptedError):
        learn(num_rounds=2, num_trainings=3, callbacks=[Stop(2)], **options)
    with pytest.raises(checks.InputError, match="another training.*restart was 2"):
        learn(num_rounds=3, num_trainings=2, **options)


def going(steps):
    """An optimizer that takes these steps, and the last one again and again."""

    def update(gradient, count, params=None):
        del params
        step = jnp.asarray(steps)[jnp.minimum(count, len(steps) - 1)]
        return jax.tree.map(lambda g: step + 0 * g, gradient), count + 1

    return optax.GradientTransformation(lambda params: jnp.zeros((), int), update)


@pytest.mark.parametrize("far", [30.0, 1e4])
def test_a_training_that_diverges_is_stepped_back_from(far):
    """Half of the way in the logarithm, until one does not."""
    optimizer, starts = going([np.log(far), 0]), starting(0.05, 0.06)
    found = learn(num_rounds=15, num_trainings=6, optimizer=optimizer, starts=starts)
    path = found.path[found.path[f"start {RATE}"] == 0.05]
    rates = path[RATE].to_numpy()
    relative = path[f"d {RATE}"] * path[RATE] / path["objective"]
    is_lost = ~(abs(relative) < 20).to_numpy()
    stays = np.flatnonzero(~is_lost[1:])[0] + 1
    assert not is_lost[0] and stays > 1
    logarithms = np.log(rates / rates[0])
    expected = np.log(far) / 2.0 ** np.arange(stays)
    np.testing.assert_allclose(logarithms[1 : stays + 1], expected, rtol=1e-12)
    assert np.isfinite(found.values.loc[0, "objective"])
    assert found.result.groups[0].diverged_at.tolist() == [-1, -1]


@pytest.mark.wide
def test_a_path_is_kept_up_to_where_its_only_training_diverged():
    """What is learned is then the best step, not the one that led too far."""
    out = [0.1, 0.2, 0.3, 700.0]  # the last one leads out of the numbers
    options = {"num_rounds": 8, "eval_every": 1, "seeds": [0, 1]}
    found = learn(optimizer=going(out), **options)
    path = found.path
    assert (found.result.groups[0].diverged_at > 0).all()
    assert path["round"].tolist() == list(range(len(path)))
    is_lost = ~np.isfinite(path["objective"].to_numpy())
    assert is_lost[-1] and not is_lost[:5].any()
    rates = path[RATE].to_numpy()
    expected = np.cumsum([0, 0.1, 0.2, 0.3])
    np.testing.assert_allclose(np.log(rates[1:5] / rates[0]), expected, atol=1e-12)
    best = int(path["objective"].argmin())
    assert best < 5 and found.best == {RATE: rates[best]}


LIMITS = "to begin strictly between its limits, got"
LAM, DITTO = "algorithm.lam", fp.Ditto(lam=1.0)
MOMENTUM, STILL = "algorithm.local.momentum", fp.FedAvg(local=fp.SGD(momentum=0.0))
UNVALIDATED = dataclasses.replace(SPEC, validation_fraction=0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": LAM, "process": fp.Ditto(lam=0.0)}, f"{LAM} {LIMITS} 0"),
        ({"fields": LAM, "process": DITTO, "starts": [{}, {LAM: 0.0}]}, f"{LIMITS} 0"),
        ({"fields": LAM, "process": fp.FedPlus(lam=1.0)}, f"{LAM} {LIMITS} 1"),
        ({"fields": MOMENTUM, "process": STILL}, f"{MOMENTUM} {LIMITS} 0"),
        ({"per": "clients"}, "value of per 'clients' .*; allowed: all, client, layer"),
        ({"per": "layer", "starts": STARTS}, r"no starts with per='layer', .*\[\{"),
        ({"num_trainings": 0}, "num_trainings to be a whole number of at least 1"),
        ({"num_trainings": 1.5}, "num_trainings to be a whole number"),
        (
            {"num_rounds": 5, "eval_every": 2, "num_trainings": 2},
            "eval_every to divide num_rounds, .* got 2 and 5",
        ),
        ({"fields": []}, "at least one field"),
        ({"fields": "lam"}, "Unknown part of a process 'lam'"),
        ({"fields": MOMENTUM}, "a traced number"),
        ({"fields": "federation.seed"}, "fields of the process"),
        ({"objective": "test:loss"}, "validation or train data"),
        ({"objective": "loss:personal"}, "Unknown model of an objective 'personal'"),
        ({"execution": "loop"}, "a compiled execution"),
        ({"spec": "digits"}, "specification"),
        ({"starts": [{"learning_rate": 1.0}]}, "did you mean"),
        ({"starts": [{RATE: -1.0}]}, "learning_rate to be a finite number above 0"),
        ({"spec": UNVALIDATED}, "validation_fraction above 0"),
        ({"seeds": []}, "at least one seed"),
        ({"seeds": 3}, "seeds to be a sequence, each part a whole number, got 3"),
        ({"starts": {RATE: 0.1}}, "starts to be a sequence, each part a mapping"),
        ({"starts": []}, r"Expected starts as a list .*, got \[\]"),
        ({"starts": [{"algorithm": fp.FedAvg()}]}, "differ in numbers"),
        ({"optimizer": "adam"}, "optimizer such as optax.adam"),
    ],
)
def test_what_cannot_be_learned_is_refused(monkeypatch, options, message):
    def train(*args, **kwargs):
        raise AssertionError("A training began.")

    monkeypatch.setattr(fp.engine.simulation, "run_groups", train)
    if "process" in options:
        process = dataclasses.replace(FEDAVG, algorithm=options["process"])
        options = options | {"process": process}
    with pytest.raises(checks.InputError, match=message) as caught:
        learn(**options)
    assert "\n" not in str(caught.value)


def test_a_first_training_that_is_lost_begins_with_less():
    """By an e-fold, until one is not."""
    found = learn(starts=starting(3.0, 4.0), num_rounds=15, num_trainings=4)
    for _, path in found.path.groupby(f"start {RATE}"):
        rates = path[RATE].to_numpy()
        np.testing.assert_allclose(rates[1], rates[0] / np.e, rtol=1e-6)
    assert np.isfinite(found.values.loc[0, "objective"])
