"""Work of traced programs, counted, and the command that says what it costs."""

import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer.testing
from jax import lax

import fedjax_pfl as fp
from experiments import estimates, job, plan, run
from fedjax_pfl import costs, counting, limits, machine, training
from tests import test_limits

RUNNER = typer.testing.CliRunner()
SQUARE = jax.ShapeDtypeStruct((10, 10), jnp.float32)
PRODUCT = 2 * 10**3


def counted(program, *arguments, values=()):
    return counting.count(jax.make_jaxpr(program)(*arguments).jaxpr, values)


def repeated(times):
    return lambda x: lax.fori_loop(0, times, lambda _, y: y @ y, x)


@pytest.mark.parametrize(
    ("program", "products"),
    [
        (lambda x: x @ x, 1),
        (lambda x: (x @ x, x[0])[1], 0),  # nobody reads it
        (lambda x: jax.jit(lambda y: y @ y)(x) @ x, 2),
        (repeated(7), 7),
        (lambda x: lax.scan(lambda c, _: (repeated(3)(c), None), x, None, 5)[0], 15),
        (lambda x: lax.map(lambda row: row @ x, x), 1),
        (lambda x: jax.vmap(lambda row: row @ x)(x), 1),
        (lambda x: lax.cond(x[0, 0] > 0, lambda y: y @ y @ y, jnp.sin, x), 0),
        (lambda x: jax.grad(lambda y: (y @ x).sum())(x), 1),
    ],
)
def test_floating_point_operations(program, products):
    found = counted(program, SQUARE)
    assert found.total("flops") == products * PRODUCT
    assert not found.is_bound


def test_operations_of_a_convolution():
    def program(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    inputs = (jnp.zeros((2, 8, 9, 3)), jnp.zeros((3, 2, 3, 4)))
    outputs = 2 * 6 * 8 * 4
    assert counted(program, *inputs).total("flops") == 2 * outputs * 3 * 2 * 3


def test_a_bound_from_the_data_is_their_typical_value():
    def program(x, counts, size):
        bound = jnp.max(-(-counts // size)) + 1
        return lax.fori_loop(0, bound, lambda _, y: y @ y, x)

    counts = jnp.zeros(8, jnp.int32)
    given = (SQUARE, counts, 0)
    assert counted(program, *given, values=(None, 47.0, 10.0)).total("flops") == (
        6 * PRODUCT
    )
    unknown = counted(program, *given)
    assert unknown.is_bound
    assert unknown.total("flops") == PRODUCT


def test_a_loop_until_a_tolerance_is_counted_to_its_limit():
    def program(x):
        def unfinished(carry):
            number, y = carry
            return (number < 9) & (jnp.abs(y).max() > 1e-3)

        return lax.while_loop(unfinished, lambda c: (c[0] + 1, c[1] @ c[1]), (0, x))

    found = counted(program, SQUARE)
    assert found.is_bound
    assert found.total("flops") == 9 * PRODUCT


def test_a_known_conditional_takes_its_branch():
    def program(x, chosen):
        return lax.cond(chosen > 3, lambda y: y @ y, jnp.sin, x)

    for value, products in ((5.0, 1), (2.0, 0)):
        found = counted(program, SQUARE, 0, values=(None, value))
        assert found.total("flops") == products * PRODUCT


def test_bytes_are_those_of_arrays_that_are_made():
    x = jnp.zeros((1000, 1000), jnp.float32)
    assert counted(lambda x: jnp.sin(x) * 2 + 1, x).total("bytes") == 2 * x.nbytes
    found = counted(lambda x: lax.dynamic_slice(x, (0, 0), (10, 1000)), x)
    assert found.total("bytes") == 2 * 10 * 4000
    found = counted(lambda x, i: x[i], x, jnp.zeros(10, jnp.int32))
    assert 2 * 10 * 4000 <= found.total("bytes") < 3 * 10 * 4000
    assert counted(lambda x: jnp.exp(x) + jnp.tanh(x), x).total("hard") == 2 * x.size


def test_unknown_primitives_are_passed_over():
    def program(x):
        factor, _ = jnp.linalg.qr(x)
        return jnp.linalg.eigvalsh(x).sum() + jnp.cumprod(factor).sum()

    assert counted(program, SQUARE).weight > 0


def test_steps_of_a_round_follow_from_the_data():
    """FedAvg's forward and backward products, for every step of the largest client."""
    federation = test_limits.federation_of(8, 160)
    given = test_limits.group(
        fp.FedAvg(local=fp.SGD(epochs=3, batch_size=5)), [federation]
    )
    rates = types.SimpleNamespace(seconds=lambda count: {"all": count.total("flops")})
    found = costs.estimate(*given, rates)
    most = int(np.asarray(federation.train.num_examples).max())
    steps = 3 * -(-most // 5)
    each = 2 * 2 * 5 * 200 * 4  # one layer: the outputs and the gradient of its weights
    read = 2 * 8 * (200 * 4 + 4 + 1)  # a mean over clients, or a search for NaN
    assert 8 * steps * each <= found.flops <= 8 * steps * each + 4 * read
    evaluations = 1 + test_limits.NUM_ROUNDS // 5
    rounds = test_limits.NUM_ROUNDS * found.round
    expected = found.start + rounds + evaluations * found.evaluation
    assert found.total == pytest.approx(expected)


def test_largest_of_a_chunk():
    sizes = np.asarray([1, 5, 2, 8])
    assert costs.largest_of_chunk(sizes, 4, 4, 4) == 8
    assert costs.largest_of_chunk(sizes, 4, 4, 2) == (5 + 8) / 2
    assert costs.largest_of_chunk(sizes, 4, 4, 2, by_size=True) == (8 + 2) / 2
    assert costs.largest_of_chunk(sizes, 4, 4, 1) == 4
    cohorts = costs.largest_of_chunk(sizes, 2, 4, 2)  # 8 is in half of the pairs
    assert 5 <= cohorts <= 8
    assert 1 <= costs.largest_of_chunk(sizes, 10**9, 10**9, 16) <= 8


def test_work_is_measured_and_adds_up(monkeypatch):
    monkeypatch.setattr(machine, "_SECONDS", 1e-4)
    rates = machine.Machine()
    once, often = (counted(repeated(times), SQUARE) for times in (1, 100))
    one, hundred = (rates.seconds(found)["matrix products"] for found in (once, often))
    assert hundred == pytest.approx(100 * one)
    assert 0 < one < 1
    assert rates.moving(2**30) > rates.moving(2**12) > 0


def test_tables_are_measured_by_fewer_of_the_rows_that_indices_are_about(monkeypatch):
    """Of clients, on the second axis, behind that of grid points, which stays."""
    monkeypatch.setattr(machine, "_SECONDS", 1e-4)
    monkeypatch.setattr(machine, "_MOST_BYTES", 2**18)
    table, rows = np.zeros((4, 9000, 2), np.float32), np.arange(3)
    found = counted(lambda x: x.at[:, rows].set(2 * x[:, rows]), table)
    times = machine.Machine().seconds(found)
    assert {"gathers", "scatters"} <= times.keys()
    assert all(0 < seconds < 1 for seconds in times.values())


def test_enlarged_federations_are_those_of_more_clients():
    federation = test_limits.federation_of(8, 160)
    found = estimates.enlarged(federation, 8_000_000)
    assert found.num_clients == 8_000_000
    assert found.train.x.shape == (160_000_000, 200)
    assert found.train.index.shape == (8_000_000, *federation.train.index.shape[1:])
    assert found.train.x is found.test.x  # a pool is counted once
    same = estimates.enlarged(federation, 8)
    shapes = jax.tree.map(lambda a, b: a.shape == b.shape, same, federation)
    assert all(jax.tree.leaves(shapes))


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A command that measures nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "_keep_compiled_programs", lambda: None)
    monkeypatch.setattr(training, "run_groups", lambda *a, **k: pytest.fail("trained"))
    monkeypatch.setattr(machine, "_seconds", lambda *a, **k: (1e-6, 1.0))


def test_the_command_prints_tables_and_writes_nothing(quick):
    arguments = ["--preset", "quadratic", "--set", "algorithm=flame,fedavg"]
    done = RUNNER.invoke(plan.app, [*arguments, "--points-per-chunk", "1"])
    assert done.exit_code == 0, done.output
    assert done.stdout.count("memory: at most") == 2
    assert done.stdout.count("time of a round") == 2
    assert "at most (loops until a tolerance)" in done.stdout
    assert "This fits into the memory that is free." in done.stdout
    assert list(pathlib.Path().iterdir()) == []


def test_one_client_at_a_time_wastes_nothing(quick):
    """Whatever cohorts are drawn to find out."""
    alone = ["--algorithm", "fedavg", "--execution", "chunk=1", "--seeds", "1"]
    few = ["--set", "participation=uniform", "--set", "participation.size=3"]
    done = RUNNER.invoke(plan.app, [*alone, *few])
    assert done.exit_code == 0, done.output
    (line,) = (text for text in done.stdout.splitlines() if "padding" in text)
    assert line.split("padding")[1].strip() == "0%, one client at a time"


def test_ten_million_clients_are_refused_without_making_them(quick, monkeypatch):
    monkeypatch.setattr(limits, "available_bytes", lambda *, host=False: 64 * 10**9)
    many = ["--as-if-clients", "10000000", "--set", "algorithm=flame"]
    cohort = ["--set", "participation=uniform", "--set", "participation.size=10"]
    done = RUNNER.invoke(plan.app, [*many, *cohort, "--seeds", "1"])
    assert done.exit_code == 2, done.output
    assert "10,000,000, 10" in done.stdout
    assert "but 64 GB are free" in done.stderr


@pytest.mark.parametrize(
    ("app", "arguments", "sentence"),
    [
        (plan.app, ["--resume", "r"], "trains nothing to go on with"),
        (run.app, ["--as-if-clients", "9"], "--as-if-clients is for experiments.plan"),
        (plan.app, ["--as-if-clients", "100000000"], "8985000000 examples, more than"),
        (plan.app, ["--set", "federation.test_fraction=0"], "empty test split"),
        (plan.app, ["--points-per-chunk", "0"], "greater than or equal to 1"),
    ],
)
def test_wrong_options(quick, app, arguments, sentence):
    done = RUNNER.invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert sentence in done.stderr
