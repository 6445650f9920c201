"""Streamed trainings: the same as in memory, in little memory, safe on disk."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import aggregators, algorithms, attacks
from fedjax_pfl.core import checks, sharding
from fedjax_pfl.engine.streaming import divided_rows, population, training
from fedjax_pfl.testing import toy
from tests import problems
from tests.engine import faults, test_kept_mean
from tests.lanes import few, wide

KEY = jax.random.key(3)
SGD = fp.SGD(learning_rate=0.1, epochs=2, batch_size=4)
EXACT = fp.local.ToTolerance(learning_rate=0.3, max_steps=9)
METHODS = {
    "flame": fp.Flame(lam=1.0, kappa=2.0, local=SGD),
    "flame_by_examples": fp.Flame(lam=1.0, weighting="examples", local=EXACT),
    "fedavg": fp.FedAvg(local=SGD),
    "local": fp.Local(local=SGD),
    "apfl": algorithms.APFL(local=SGD),
    "scaffold": algorithms.Scaffold(local=SGD),
    "fedamp": algorithms.FedAMP(local=SGD),
}


def make_process(name, **fields):
    given = {"participation": fp.UniformCohort(size=3), **fields}
    return fp.FederatedProcess(algorithm=METHODS[name], **given)


def train(simulate, process, federation, rounds=8, **options):
    options = {"eval_every": 4, "evaluate_on": "test", "execution": "vmap", **options}
    model = fp.LogisticRegression()
    given = KEY, process, model, federation, rounds
    return simulate(*given, progress=False, **options).groups[0]


def assert_same(one, other, tolerance=1e-12):
    """Equal to rounding, and whatever is counted exactly."""
    chex.assert_trees_all_close(other.metrics, one.metrics, rtol=0, atol=tolerance)
    chex.assert_trees_all_close(other.per_round, one.per_round, rtol=1e-9)
    for name in ("times_selected", "num_train", "malicious", "rounds", "evaluated"):
        np.testing.assert_array_equal(getattr(other, name), getattr(one, name))


def federation():
    return toy.make_federation(malicious=(1, 5))


LATE = fp.Buffered(size=2, concurrency=4)
ATTACKED = make_process(
    "flame", attack=attacks.SignFlip(scale=2.0), work=fp.Stragglers(max_epochs=2)
)
CASES = {
    **{name: make_process(name) for name in METHODS},
    "attacks and stragglers": ATTACKED,
    "error feedback": make_process(
        "fedavg", transforms=(fp.TopK(fraction=0.2, error_feedback=True),)
    ),
    "FLAME's": make_process("flame", transforms=(fp.messages.SignScale(),)),
    "late clients": make_process("fedavg", participation=LATE),
    "late clients with error feedback": make_process(
        "fedavg",
        participation=LATE,
        transforms=(fp.TopK(fraction=0.2, error_feedback=True),),
    ),
    "FLAME's cache": make_process("flame", participation=LATE),
    "everybody": make_process("flame", participation=fp.AllClients()),
    "each by itself": make_process(
        "fedavg",
        aggregator=aggregators.Mean(),
        participation=fp.local.PoissonCohort(rate=0.4, capacity=5),
        transforms=(fp.messages.AdaptiveClip(norm=0.1), fp.GaussianNoise()),
    ),
}
QUICK = ("attacks and stragglers", "late clients with error feedback")


@pytest.mark.parametrize("name", few(QUICK, CASES))
def test_it_equals_the_training_in_memory(name):
    """Also where attacks, messages and late clients keep something."""
    given = CASES[name], federation()
    assert_same(train(fp.simulate, *given), train(fp.simulate_streamed, *given))


@pytest.mark.parametrize(
    ("execution", "sampled"),
    [
        ("vmap", True),
        ("shard=2", False),
        wide("vmap", False),
        wide("shard=2", True),
    ],
)
def test_models_are_tested_on_examples_of_others(execution, sampled, monkeypatch):
    """Every block of clients reads test examples of clients outside it."""
    monkeypatch.setattr(training, "BLOCK", 3)
    clients, rng = toy.make_federation(), np.random.default_rng(0)
    count = clients.num_clients
    others = (np.arange(count)[:, None] + [2, 5]) % count
    samples = None
    if sampled:
        counts = np.asarray(clients.test.num_examples)
        size = (2, count, clients.test.index.shape[1])
        owners = rng.integers(count, size=size)
        pairs = np.stack([owners, rng.integers(counts[owners])], axis=-1)
        samples = dict(zip(("others", "everybody"), jnp.asarray(pairs), strict=True))
    clients = dataclasses.replace(clients, others=jnp.asarray(others), samples=samples)
    options = {"evaluate_on": ("others", "test", "everybody")}
    given = make_process("flame"), clients
    one = train(fp.simulate, *given, **options)
    assert_same(
        one, train(fp.simulate_streamed, *given, execution=execution, **options)
    )
    values = np.asarray(one.metrics["accuracy"])
    assert np.ptp(values) > 0


def start(process, problem, folder, execution="vmap"):
    """A training at the level of rounds, on a problem with known answers."""
    execution = sharding.Execution.parse(execution)
    clients = population.Population(problem.federation, execution)
    process = jax.tree.map(jnp.asarray, process)
    like = training.row_of(process, problem.model, clients, KEY)
    count = problem.federation.num_clients
    files = divided_rows.DividedRows(folder, count, like, execution)
    return training.Training(process, problem.model, clients, KEY, execution, files)


@pytest.mark.parametrize("value", [wide(1.0), 1e38])
def test_the_kept_mean_is_that_of_all_messages(value, tmp_path):
    """After 1e38 came and went it is computed anew, from all messages."""
    check_kept_mean(value, tmp_path)


def check_kept_mean(value, folder, **more):
    """Compares the mean with that of all messages, in every round."""
    problem = faults.problem()
    attack = faults.Sends(value=value, turn=-1.0, last=6.0)
    process = fp.FederatedProcess(
        algorithm=test_kept_mean.Reports(),
        aggregator=fp.aggregators.Mean(),
        attack=jax.tree.map(jnp.asarray, attack),
        participation=fp.UniformCohort(size=3),
    )
    now = start(process, problem, folder, **more)
    count = problem.federation.num_clients
    every = np.resize(np.arange(count), count + -count % now.files.router.count)
    largest = []
    for number in range(20):
        now.run(number, 1)
        rows = now.rows(every)["messages"]["theta"][:count].astype(np.float64)
        exact, size = np.mean(rows, axis=0), np.abs(rows).max()
        error = np.abs(now.state.memory["mean"]["theta"] - exact).max()
        # Sums of 8 rows, and of what 16 times as large a mean leaves behind.
        eps = float(np.finfo(np.float32).eps)
        assert error <= 16 * eps * max(16 * np.abs(exact).max(), size)
        largest.append(size)
    assert max(largest) >= 0.99 * value and largest[-1] < 3


def test_rows_of_clients_who_never_took_part_take_no_space(tmp_path):
    problem = problems.random_quadratics(40)
    process = fp.FederatedProcess(
        algorithm=METHODS["flame"], participation=fp.UniformCohort(size=2)
    )
    now = start(process, problem, tmp_path)
    infos = now.run(0, 3)
    now.write_back()
    members = np.unique(infos.cohort)
    np.testing.assert_array_equal(np.flatnonzero(now.files.is_written), members)
    assert len(members) < 7


WITH_A_MEDIAN = make_process("flame", aggregator=aggregators.CoordinateMedian())
WITH_NINE = make_process("fedavg", participation=fp.UniformCohort(size=9))


@pytest.mark.parametrize(
    ("process", "options", "sentence"),
    [
        (fp.FederatedProcess(algorithm=fp.Centralized(local=SGD)), {}, "Centralized"),
        (WITH_A_MEDIAN, {}, "Flame wants CoordinateMedian"),
        (make_process("fedavg"), {"eval_clients": 0}, "eval_clients"),
        (WITH_NINE, {}, "got size=9"),
    ],
)
def test_what_needs_all_clients_at_once_is_refused(process, options, sentence):
    with pytest.raises(checks.InputError, match=sentence) as error:
        train(fp.simulate_streamed, process, toy.make_federation(), **options)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


def test_it_goes_on_where_it_was_interrupted(tmp_path):
    """Bit for bit, from checkpoints; the newest damaged one gives way to another."""

    def streamed(**options):
        return train(fp.simulate_streamed, ATTACKED, federation(), rounds=24, **options)

    whole = streamed()

    class EnoughError(Exception):
        """Ends a training at a chosen segment."""

    def interrupted(after, folder):
        run, ran = training.Training.run, []

        def counted(self, *arguments):
            if len(ran) == after:
                raise EnoughError
            ran.append(arguments)
            return run(self, *arguments)

        checkpoints = fp.Checkpoints(folder, min_seconds=0)
        training.Training.run = counted
        try:
            streamed(checkpoints=checkpoints)
        except EnoughError:
            pass
        finally:
            training.Training.run = run
        return checkpoints

    for after in (1, 4):
        checkpoints = interrupted(after, tmp_path / str(after))
        assert_same(whole, streamed(checkpoints=checkpoints), tolerance=0)

    checkpoints = interrupted(4, tmp_path / "damaged")
    newest = max((tmp_path / "damaged" / "000-flame").glob("0*"))
    (newest / "history.npz").write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged"):
        other = streamed(checkpoints=checkpoints)
    assert_same(whole, other, tolerance=0)

    checkpoints = interrupted(4, tmp_path / "rows")
    (rows,) = (tmp_path / "rows" / "000-flame").glob("rows-*.bin")
    rows.write_bytes(b"")
    with pytest.raises(checks.InputError, match=f"'{rows.name}' is too short"):
        streamed(checkpoints=checkpoints)


def test_time_is_up_and_it_goes_on(tmp_path):
    given, kept = (
        (fp.simulate_streamed, ATTACKED, federation()),
        fp.Checkpoints(tmp_path / "c"),
    )
    with pytest.raises(fp.Interrupted, match="was up at round 0"):
        train(*given, max_minutes=1e-9, checkpoints=kept)
    whole, other = train(*given), train(*given, checkpoints=kept)
    assert_same(whole, other, tolerance=0)
