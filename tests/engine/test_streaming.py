"""Streamed trainings: the same as in memory, in little memory, safe on disk."""

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
    options = {"eval_every": 4, "progress": False, "execution": "vmap", **options}
    model = fp.LogisticRegression()
    return simulate(KEY, process, model, federation, rounds, **options).groups[0]


def assert_same(one, other, tolerance=1e-12):
    """Equal to rounding, and whatever is counted exactly."""
    assert one.metrics.keys() == other.metrics.keys()
    for name in one.metrics:
        np.testing.assert_allclose(
            other.metrics[name], one.metrics[name], rtol=0, atol=tolerance
        )
    for name in one.per_round:
        np.testing.assert_allclose(other.per_round[name], one.per_round[name], 1e-9)
    for name in ("times_selected", "num_train", "malicious", "rounds", "evaluated"):
        np.testing.assert_array_equal(getattr(other, name), getattr(one, name))


@pytest.mark.wide  # as FLAME does with attacks and stragglers
@pytest.mark.parametrize("name", METHODS)
def test_it_equals_the_training_in_memory(name):
    federation, process = toy.make_federation(), make_process(name)
    one = train(fp.simulate, process, federation)
    assert_same(one, train(fp.simulate_streamed, process, federation))


def attacked():
    """FLAME with an attack and stragglers."""
    process = make_process(
        "flame", attack=attacks.SignFlip(scale=2.0), work=fp.Stragglers(max_epochs=2)
    )
    return process, toy.make_federation(malicious=(1, 5))


def test_attacks_and_stragglers_are_those_of_the_training_in_memory():
    one = train(fp.simulate, *attacked())
    assert_same(one, train(fp.simulate_streamed, *attacked()))


@pytest.mark.wide
def test_clients_drawn_each_by_itself_and_adaptive_clips_are_those_in_memory():
    process = make_process(
        "fedavg",
        aggregator=aggregators.Mean(),
        participation=fp.local.PoissonCohort(rate=0.4, capacity=5),
        transforms=(fp.messages.AdaptiveClip(norm=0.1), fp.GaussianNoise()),
    )
    federation = toy.make_federation()
    one = train(fp.simulate, process, federation)
    assert_same(one, train(fp.simulate_streamed, process, federation))


@pytest.mark.parametrize(
    "process",
    [
        make_process("fedavg", transforms=(fp.messages.TopK(fraction=0.2),)),
        pytest.param(
            make_process("flame", transforms=(fp.messages.SignScale(),)),
            marks=pytest.mark.wide,
        ),
        make_process("fedavg", participation=fp.Buffered(size=2, concurrency=4)),
        pytest.param(
            make_process("flame", participation=fp.Buffered(size=2, concurrency=4)),
            marks=pytest.mark.wide,
        ),
    ],
    ids=["error feedback", "of FLAME", "late clients", "of FLAME's cache"],
)
def test_what_parts_keep_for_clients_is_that_of_the_training_in_memory(process):
    federation = toy.make_federation()
    one = train(fp.simulate, process, federation)
    assert_same(one, train(fp.simulate_streamed, process, federation))


@pytest.mark.wide
def test_everybody_may_take_part():
    federation = toy.make_federation()
    process = make_process("flame", participation=fp.AllClients())
    one = train(fp.simulate, process, federation, rounds=4)
    assert_same(one, train(fp.simulate_streamed, process, federation, rounds=4))


def start(process, problem, folder, execution="vmap"):
    """A training at the level of rounds, on a problem with known answers."""
    execution = sharding.Execution.parse(execution)
    clients = population.Population(problem.federation, execution)
    process = jax.tree.map(jnp.asarray, process)
    like = training.row_of(process, problem.model, clients, KEY)
    count = problem.federation.num_clients
    files = divided_rows.DividedRows(folder, count, like, execution)
    return training.Training(process, problem.model, clients, KEY, execution, files)


@pytest.mark.parametrize("value", [1.0, 1e38])
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
        (make_process("fedavg"), {"evaluate_on": ("everybody",)}, "'everybody'"),
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
        return train(fp.simulate_streamed, *attacked(), rounds=24, **options)

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
    given, kept = (fp.simulate_streamed, *attacked()), fp.Checkpoints(tmp_path / "c")
    with pytest.raises(fp.Interrupted, match="was up at round 0"):
        train(*given, max_minutes=1e-9, checkpoints=kept)
    whole, other = train(*given), train(*given, checkpoints=kept)
    assert_same(whole, other, tolerance=0)
