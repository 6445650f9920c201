"""Learning rates that follow schedules, against sums of their values."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import struct
from fedjax_pfl.local import schedules
from fedjax_pfl.models import objectives
from tests.lanes import wide

KEY = jax.random.key(0)
ROUNDS, EPOCHS, BATCH = 4, 2, 2
SIZES = np.array([1, 2, 3, 5])
STEPS = EPOCHS * -(-SIZES // BATCH)


def slow(step):
    return 1.0 / (1.0 + step)


def fast(step):
    return 2.0 / (1.0 + step) ** 2


@dataclasses.dataclass(frozen=True)
class Slope(fp.core.Model):
    """The loss is the parameter: its gradient is 1, and it ends at minus all rates."""

    def for_federation(self, federation):
        return self

    def init(self, key):
        return {"w": jnp.zeros(())}

    def apply(self, params, x, *, key=None, constants=None):
        return jnp.broadcast_to(params["w"], x.shape[:1])

    def loss(self, outputs, batch):
        return objectives.weighted_mean(outputs, batch.weight)

    def metrics(self, outputs, batch):
        return {"loss": outputs}


@dataclasses.dataclass(frozen=True)
class Specification:
    """Clients with `SIZES` training examples, which are tested as well."""

    seed: int = 0

    def build(self):
        owners = np.repeat(np.arange(len(SIZES)), SIZES)
        made = fp.Federation.from_arrays(
            *(np.zeros((len(owners), 1)), np.zeros(len(owners)), owners),
            test_fraction=0.0,
            validation_fraction=0.0,
        )
        return dataclasses.replace(made, test=made.train)

    def describe(self):
        return {"dataset": "slope"}


FEDERATION = Specification().build()
COHORT = fp.UniformCohort(size=2)


def process(rate=slow, solver=fp.SGD, participation=COHORT, work=None, **options):
    options |= {"epochs": EPOCHS, "batch_size": BATCH}
    if solver is fp.Optax:
        options["optimizer"] = optax.sgd
        options["hyperparameters"] = {"learning_rate": rate}
    else:
        options["learning_rate"] = rate
    return fp.FederatedProcess(
        algorithm=fp.Local(local=solver(**options)),
        participation=participation,
        work=work or fp.local.FullWork(),
    )


def trained(made, call=fp.simulate, **options):
    given = KEY, made, Slope(), FEDERATION, ROUNDS
    result = call(*given, progress=False, evaluate_on="test", **options)
    return losses(result.groups[0])[0]


def losses(group):
    """Losses `[points, rounds + 1, clients]` on the test examples."""
    names = [str(name) for name in group.data]
    return group.metrics["loss"][:, :, 0, names.index("test")]


def took_part(made):
    """Whether each client took part, `[ROUNDS, N]`, as the key says."""
    key = fp.core.new_key(jax.random.key_data(KEY))
    present = np.zeros((ROUNDS, len(SIZES)), bool)
    for number in range(ROUNDS):
        present[number, made.cohort(key, jnp.int32(number), len(SIZES))] = True
    return present


def wanted(rate, present, steps=STEPS):
    """Minus the sum of the rates of all steps so far, `[ROUNDS + 1, N]`."""
    counts = np.cumsum(present * steps, axis=0)
    sums = [[sum(map(rate, range(c))) for c in row] for row in counts]
    return -np.concatenate([np.zeros((1, len(SIZES))), sums])


def close(found, expected):
    # A few dozen float64 sums of numbers of at most 2.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


@pytest.fixture(scope="module")
def by_steps():
    return trained(process())


@pytest.mark.parametrize("solver", [fp.SGD, fp.Optax])
def test_steps_count_through_the_rounds_in_which_a_client_takes_part(solver, by_steps):
    made = process(solver=solver)
    present = took_part(made)
    assert 0 < present.sum(axis=0).min() < ROUNDS or not present.all()
    found = by_steps if solver is fp.SGD else trained(made)
    close(found, wanted(slow, present))


def test_steps_of_a_smaller_budget_are_those_that_were_taken():
    budgets = fp.local.ClientBudgets(epochs=(1, 2))
    made = process(work=budgets)
    steps = np.array([1, 2, 1, 2]) * -(-SIZES // BATCH)
    close(trained(made), wanted(slow, took_part(made), steps))


def test_a_schedule_per_round_gets_the_number_of_the_round():
    made = process(per_round=True)
    rates = np.array([slow(t) for t in range(ROUNDS)])[:, None]
    sums = np.cumsum(took_part(made) * STEPS * rates, axis=0)
    close(trained(made)[1:], -sums)


@pytest.mark.wide
def test_schedules_train_streamed(by_steps):
    close(trained(process(), fp.simulate_streamed, eval_clients=4), by_steps)


@pytest.mark.parametrize("execution", ["shard", wide("loop"), wide("chunk=1")])
def test_schedules_train_in_every_execution(execution, by_steps):
    close(trained(process(), execution=execution), by_steps)


class Stop(fp.Callback):
    """An error after the second round."""

    def evaluated(self, evaluation):
        if evaluation.round == 2:
            raise RuntimeError("stopped")


def test_resumed_schedules_are_the_same_to_the_last_bit(tmp_path, by_steps):
    options = {"checkpoints": fp.Checkpoints(tmp_path / "run", min_seconds=0)}
    with pytest.raises(RuntimeError, match="stopped"):
        trained(process(), callbacks=[Stop()], **options)
    with pytest.raises(fp.InputError, match="fast"):
        trained(process(fast), **options)
    np.testing.assert_array_equal(trained(process(), **options), by_steps)


def test_a_grid_of_schedules_has_a_program_for_each(by_steps):
    axes = {"algorithm.local.learning_rate": [fast, 0.5], "seed": [0, 1]}
    result = fp.grid(
        *(KEY, process(participation=fp.AllClients()), Slope(), Specification()),
        *(axes, ROUNDS),
        progress=False,
    )
    everyone = np.ones((ROUNDS, len(SIZES)), bool)
    for group, rate in zip(result.groups, (fast, lambda step: 0.5), strict=True):
        for found in losses(group):
            close(found, wanted(rate, everyone))
    name = "algorithm.local.learning_rate"
    assert [group.points[0][name] for group in result.groups] == ["fast", 0.5]


def test_optax_schedules_are_described_by_their_arguments():
    rate = optax.cosine_decay_schedule(0.1, 100)
    described = struct.plain_fields(fp.SGD(learning_rate=rate, per_round=True))
    assert described["learning_rate"] == "Schedule"
    shown = described["learning_rate.function"]
    assert "init_value=0.1" in shown and "decay_steps=100" in shown
    assert described["learning_rate.per_round"] is True


def test_per_round_follows_the_solver():
    solver = dataclasses.replace(fp.SGD(learning_rate=slow), per_round=True)
    assert solver.learning_rate == schedules.Schedule(function=slow, per_round=True)
    assert solver.rate(3) == slow(3) and solver.rate(None) == slow(0)
    assert dataclasses.replace(solver, decay=0.5).rate(1) == slow(1) / 2


def test_work_outside_of_rounds_begins_at_step_0():
    view = fp.ClientView(key=KEY, round=7, data=row(3))
    solver = fp.SGD(learning_rate=slow, epochs=EPOCHS, batch_size=BATCH)
    objective = fp.local.DataLoss(Slope())
    start = {"w": jnp.zeros(())}
    close(-solver.solve(view, objective, start)[0]["w"], sum(map(slow, range(6))))
    later = dataclasses.replace(view, steps=jnp.int32(5))
    rates = sum(map(slow, range(5, 11)))
    close(-solver.solve(later, objective, start)[0]["w"], rates)


def row(client):
    rows = jax.tree.map(lambda leaf: leaf[client], FEDERATION.train.rows())
    return FEDERATION.train.pool().with_rows(rows)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fp.SGD(learning_rate=lambda: 0.1), "learning_rate .*TypeError"),
        (lambda: fp.SGD(learning_rate=lambda s: jnp.ones(2)), "not return one number"),
        (lambda: fp.SGD(learning_rate=lambda s: 1 if s else 2), "Tracer"),
        (lambda: fp.SGD(learning_rate=slow, per_round=1), "per_round"),
        (lambda: fp.SGD(weight_decay=slow), "weight_decay of SGD .*slow"),
        (
            lambda: fp.Optax(hyperparameters={"learning_rate": 0.1, "b1": slow}),
            "hyperparameters.b1 .*slow",
        ),
        (lambda: fp.local.ToTolerance(learning_rate=slow), "ToTolerance .*slow"),
        (lambda: fp.SGD(learning_rate=slow).rate(0), "per_round=True"),
    ],
)
def test_what_is_no_schedule_is_one_sentence(make, words):
    with pytest.raises(fp.InputError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", [fp.FedPG, fp.APFL, fp.Scaffold])
def test_methods_whose_rule_has_a_rate_want_it_held(method):
    made = fp.FederatedProcess(algorithm=method(local=fp.SGD(learning_rate=slow)))
    with pytest.raises(fp.InputError, match="per_round=True"):
        fp.simulate(KEY, made, Slope(), FEDERATION, num_rounds=1, progress=False)


def test_named_schedules_are_those_of_optax():
    for name, numbers, function in (
        ("cosine", (0.1, 8), optax.cosine_decay_schedule(0.1, 8)),
        ("linear", (0.1, 0.0, 5), optax.linear_schedule(0.1, 0.0, 5)),
        ("exponential", (0.1, 4, 0.5), optax.exponential_decay(0.1, 4, 0.5)),
        (
            "warmup_cosine",
            (0.0, 0.1, 2, 8, 0.01),
            optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 8, 0.01),
        ),
    ):
        solver = fp.SGD(learning_rate=(name, *numbers))
        rates = [float(solver.rate(0, step)) for step in range(10)]
        np.testing.assert_allclose(rates, [float(function(k)) for k in range(10)])
        assert solver == fp.SGD(learning_rate=(name, *numbers))


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (("cosin", 0.1, 10), "did you mean 'cosine'"),
        (("cosine", 0.1), "missing 1 required positional argument"),
        (("cosine", 0.1, "ten"), "each number of the schedule 'cosine'"),
    ],
)
def test_wrong_names_and_numbers_of_schedules_are_one_sentence(rate, words):
    with pytest.raises(fp.InputError, match=words):
        fp.SGD(learning_rate=rate)
