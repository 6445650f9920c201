"""Local work against plain NumPy, epoch by epoch."""

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import fedjax_pfl as fp
from fedjax_pfl import core, local
from fedjax_pfl.core import client_map, client_rows, loops
from fedjax_pfl.local import minibatch_scan
from fedjax_pfl.testing import toy
from tests import problems
from tests.lanes import few, wide

KEY = jax.random.key(11, impl="threefry2x32")
LARGEST, MOST = int(np.argmax(toy.COUNTS)), int(toy.COUNTS.max())
COUNTS = (1, 2, 63, 64, 65, 256, 300)  # of examples: around the sizes of the sort


def budget(epochs=2**30, steps=2**30):
    return core.Budget(
        epochs=jnp.asarray(epochs, jnp.int32),
        steps=jnp.asarray(steps, jnp.int32),
        straggler=jnp.zeros((), bool),
    )


def view(data, round=0, **caps):
    return fp.ClientView(key=KEY, round=round, data=data, work=budget(**caps))


def client(number, **kwargs):
    data = toy.make_federation(classes=False, **kwargs).train
    rows = client_rows.take(data.rows(), jnp.asarray(number))
    return data.pool().with_rows(rows)


def without_examples(data):
    return dataclasses.replace(data, num_examples=jnp.zeros((), jnp.int32))


@functools.cache
def logging(add, options):
    """A compiled scan that logs numbers of each batch, and how many."""
    start = (jnp.full((200,), jnp.nan), jnp.zeros((), jnp.int32))

    def step(key, carry, batches):
        for batch in batches:
            carry = add(*carry, batch)
        return carry

    @jax.jit
    def run(data, caps):
        fields = dict(options) | {"dtype": jnp.float64}
        return local.local_scan(view(data, **caps), step, start, **fields)

    return run


def logged(add, data, caps=None, **options):
    run = logging(add, tuple(options.items()))
    (log, count), info = run(data, caps or {})
    return np.asarray(log[: int(count)]), info


def add_positions(log, count, batch):
    for row in range(batch.x.shape[0]):
        real = batch.weight[row] > 0
        log = log.at[count].set(jnp.where(real, batch.x[row, 0], log[count]))
        count = count + real
    return log, count


def add_size(log, count, batch):
    return log.at[count].set(batch.weight.sum()), count + 1


# Values of the first coordinate in the order in which examples were visited.
seen_positions = functools.partial(logged, add_positions)


@jax.jit
def solved(solver, data, start):
    return solver.solve(view(data), quadratic, start, None)


@pytest.mark.parametrize("number", [0, 1, 2, *map(wide, range(3, 8))])
@pytest.mark.parametrize(("batch_size", "batches_per_step"), [(4, 1), (2, 2), (16, 1)])
def test_an_epoch_visits_every_example_once(number, batch_size, batches_per_step):
    data = client(number)
    own = np.asarray(data.x[data.index[: toy.COUNTS[number]], 0])
    seen, info = seen_positions(
        data, epochs=3, batch_size=batch_size, batches_per_step=batches_per_step
    )
    count = toy.COUNTS[number]
    steps = -(-count // (batch_size * batches_per_step))
    assert int(info.num_steps) == 3 * steps
    assert int(info.num_examples) == 3 * count == len(seen)
    for epoch in range(3):
        part = seen[epoch * count : (epoch + 1) * count]
        np.testing.assert_array_equal(np.sort(part), np.sort(own))


def test_a_given_order_of_minibatches_is_followed():
    data, count = client(2), toy.COUNTS[2]
    orders = np.stack([np.random.default_rng(e).permutation(count) for e in range(3)])
    own = np.asarray(data.x[data.index[:count], 0])
    seen, info = seen_positions(
        data,
        epochs=3,
        batch_size=4,
        order=lambda view, epoch: jnp.asarray(orders)[epoch],
    )
    np.testing.assert_array_equal(seen, own[orders].reshape(-1))
    assert info.num_examples == 3 * count


def test_a_solver_replays_the_batches_of_another_program():
    """By the round and the client, whose loop in NumPy takes the same ones."""
    data, count = client(2), toy.COUNTS[2]

    def order(view, epoch):
        start = view.round + view.data.client_id + 2 * epoch
        return (jnp.arange(count) * 2 + start) % count  # count is odd

    solver = fp.SGD(
        learning_rate=0.1, epochs=2, batch_size=4, order=order, remainder="full"
    )
    start = {"theta": jnp.zeros(4)}
    params, _, _ = solver.solve(view(data, round=3), quadratic, start)
    x = np.asarray(data.x[data.index[:count]], float)
    theta = np.zeros(4)
    for epoch in range(2):
        positions = (np.arange(count) * 2 + 3 + int(data.client_id) + 2 * epoch) % count
        for first in range(0, count, 4):
            batch = x[positions[first : first + 4]]
            theta = theta - 0.1 * (theta - batch.mean(axis=0))
    np.testing.assert_allclose(params["theta"], theta, rtol=1e-12)


def test_epochs_differ_in_order_and_do_not_depend_on_padding():
    seen, _ = seen_positions(client(2), epochs=2, batch_size=4)
    assert (seen[:9] != seen[9:]).any()
    padded, _ = seen_positions(client(2, padding=7), epochs=2, batch_size=4)
    np.testing.assert_array_equal(seen, padded)


def test_shuffles_are_uniform():
    """Each example is at each place equally often: chi-square over 9 x 9 cells."""
    draws = 3000
    orders = _slots(jnp.int32(9), 9, draws)
    counts = np.zeros((9, 9))
    for place in range(9):
        counts[place] = np.bincount(np.asarray(orders[:, place]), minlength=9)
    expected = draws / 9
    statistic = ((counts - expected) ** 2 / expected).sum()
    # Sums of permutation matrices: (9 - 1)^2 degrees of freedom after the factor 8/9.
    assert statistic * 8 / 9 < stats.chi2.ppf(1 - 1e-5, 64)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _slots(count, slots, draws):
    """Orders `[draws, slots]` of one client's positions."""
    index = jnp.zeros((slots,), jnp.int32)
    data = dataclasses.replace(client(0), index=index, num_examples=count)
    keys = jax.random.split(KEY, draws)
    return jax.vmap(lambda k: minibatch_scan._shuffled_positions(k, data, slots))(keys)


def _orders(count, slots, draws):
    return np.asarray(_slots(jnp.int32(count), slots, draws))[:, :count]


@pytest.mark.parametrize("count", COUNTS)
def test_shuffles_do_not_depend_on_padding_and_visit_everything(count):
    """Whatever the sort is made for: sizes below and above its steps."""
    orders = _orders(count, 1200, 3)
    np.testing.assert_array_equal(np.sort(orders), np.tile(np.arange(count), (3, 1)))
    for slots in COUNTS:
        if slots >= count:
            np.testing.assert_array_equal(_orders(count, slots, 3), orders)


def test_pairs_of_a_shuffle_are_as_good_as_independent():
    """Which of two examples comes first, and who follows whom, by chi-square."""
    draws, count = 4000, 70
    orders = _orders(count, 128, draws)
    place = np.argsort(orders, axis=1)
    first = (place[:, :, None] < place[:, None, :]).sum(axis=0)
    pairs = np.triu_indices(count, 1)
    # Each count is binomial(draws, 1/2); normal scores of 2415 pairs stay below 5.
    scores = (first[pairs] - draws / 2) / np.sqrt(draws / 4)
    assert np.abs(scores).max() < 5
    follows = np.zeros((count, count))
    np.add.at(follows, (orders[:, :-1].ravel(), orders[:, 1:].ravel()), 1)
    off = ~np.eye(count, dtype=bool)
    expected = draws * (count - 1) / (count * (count - 1))
    statistic = ((follows[off] - expected) ** 2 / expected).sum()
    # As many degrees of freedom as pairs, less one per row and column.
    assert statistic < stats.chi2.ppf(1 - 1e-5, off.sum())


@pytest.mark.parametrize(
    ("epochs", "steps", "expected"), [(1, 99, 3), (2, 4, 4), (0, 9, 0)]
)
def test_budgets_cap_the_work(epochs, steps, expected):
    _, info = seen_positions(
        client(2), epochs=3, batch_size=4, caps={"epochs": epochs, "steps": steps}
    )
    assert int(info.num_steps) == expected


def test_a_client_without_examples_takes_no_step():
    start = {"theta": jnp.ones(4)}
    params, _, info = solved(fp.SGD(batch_size=4), without_examples(client(0)), start)
    np.testing.assert_array_equal(params["theta"], 1.0)
    assert int(info.num_steps) == 0


def test_independent_batches_are_uniform_subsets():
    draws, data = 3000, client(2)
    keys = jax.random.split(KEY, draws)
    draw = jax.jit(jax.vmap(lambda k: minibatch_scan.independent_batch(k, data, 4)))
    positions, weight = draw(keys)
    assert weight.all() and (np.diff(np.sort(positions)) > 0).all()
    counts = np.bincount(np.asarray(positions).reshape(-1), minlength=9)
    share = 4 / 9  # of batches with a given example; counts sum to 4 per batch
    variance = draws * share * (1 - share) * 9 / 8
    statistic = ((counts - draws * share) ** 2).sum() / variance
    assert statistic < stats.chi2.ppf(1 - 1e-5, 8)


@pytest.mark.parametrize("number", [2, 5, wide(6)])
def test_independent_batches_fill_any_number_of_steps(number):
    # Batches of up to 6 of 9, 1 and 6 examples, three in each of 2 x 2 steps.
    options = {"epochs": 2, "batch_size": 6, "batches_per_step": 3}
    options |= {"sampler": minibatch_scan.independent_batch, "epoch_steps": 2}
    seen, info = seen_positions(client(number), **options)
    batch = min(6, toy.COUNTS[number])
    assert int(info.num_steps) == 4
    assert int(info.num_examples) == 12 * batch == len(seen)
    for part in seen.reshape(12, batch):
        assert len(set(part)) == batch
    if number == 2:
        assert len({tuple(sorted(part)) for part in seen.reshape(12, batch)}) > 6
    padded, _ = seen_positions(client(number, padding=7), **options)
    np.testing.assert_array_equal(seen, padded)
    _, info = seen_positions(without_examples(client(number)), **options)
    assert int(info.num_steps) == 0


def quadratic(key, params, batch, context):
    model = fp.models.Quadratic(inputs=4)
    return model.loss(model.apply(params, batch.x), batch)


def reference_sgd(data, number, solver):
    """Plain NumPy SGD in the order that `local_scan` logged."""
    seen, _ = seen_positions(data, epochs=solver.epochs, batch_size=4)
    clip, momentum = solver.clip_norm or np.inf, solver.momentum or 0
    pool = np.asarray(data.x[data.index[: toy.COUNTS[number]]])
    rows = pool[[np.flatnonzero(pool[:, 0] == value)[0] for value in seen]]
    theta, velocity, count = np.zeros(4), np.zeros(4), toy.COUNTS[number]
    for epoch in range(solver.epochs):
        part = rows[epoch * count : (epoch + 1) * count]
        batches = [part[first : first + 4] for first in range(0, count, 4)]
        if solver.remainder == "even":
            batches = np.array_split(part, len(batches))
        for batch in batches:
            gradient = theta - batch.mean(axis=0)
            gradient *= min(1, clip / np.linalg.norm(gradient))
            velocity = momentum * velocity + gradient + solver.weight_decay * theta
            theta = theta - solver.learning_rate * velocity
    return theta


@pytest.mark.parametrize("number", [2, 5, 6])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"momentum": 0.5, "weight_decay": 0.01},
        {"momentum": 0.5, "weight_decay": 0.1, "clip_norm": 0.4},
    ],
)
@pytest.mark.parametrize("remainder", ["even", "full"])
def test_sgd_equals_numpy(number, fields, remainder):
    data, fields = client(number), {"epochs": 3, "batch_size": 4, **fields}
    solver = fp.SGD(learning_rate=0.2, remainder=remainder, **fields)
    params, _, _ = solved(solver, data, {"theta": jnp.zeros(4)})
    expected = reference_sgd(data, number, solver)
    # 3 epochs of at most 3 steps on values of order one.
    np.testing.assert_allclose(params["theta"], expected, rtol=0, atol=1e-14)


def test_optax_sgd_equals_own_sgd():
    data, start = client(2), {"theta": jnp.zeros(4)}
    rate, options = {"learning_rate": 0.2}, {"epochs": 2, "batch_size": 4}
    own = fp.SGD(**rate, **options)
    other = fp.Optax(hyperparameters=rate, optimizer=optax.sgd, **options)
    a, _, _ = solved(own, data, start)
    b, _, _ = solved(other, data, start)
    np.testing.assert_allclose(a["theta"], b["theta"], rtol=0, atol=1e-15)


def test_epoch_end_changes_the_context_of_the_next_epoch():
    data = client(2)

    def end(epoch, params, context):
        return params, context + 1

    def objective(key, params, batch, context):
        return quadratic(key, params, batch, None) + 0 * context

    _, context, _ = fp.SGD(epochs=3, batch_size=4).solve(
        view(data, epochs=2), objective, {"theta": jnp.zeros(4)}, 0.0, epoch_end=end
    )
    assert float(context) == 2.0


def test_to_tolerance_meets_it_and_reports_a_cap():
    data = client(2)
    start = {"theta": jnp.zeros(4)}
    solver = fp.local.ToTolerance(learning_rate=0.5, tolerance=1e-12, max_steps=100)
    params, _, info = solved(solver, data, start)
    gradient = np.asarray(params["theta"]) - toy.targets()[2]
    assert gradient @ gradient <= 1e-12
    assert bool(info.converged)
    assert int(info.num_examples) == (int(info.num_steps) + 1) * 9
    capped = fp.local.ToTolerance(learning_rate=0.5, tolerance=1e-12, max_steps=3)
    _, _, info = solved(capped, data, start)
    assert not bool(info.converged)
    assert int(info.num_steps) == 3


def test_full_gradient_does_not_depend_on_the_batch_size():
    data, theta = client(2), {"theta": jnp.arange(4.0)}
    expected = np.arange(4.0) - toy.targets()[2]
    both = jax.jit(local.full_value_and_gradient, static_argnums=(0, 4))
    values = jax.jit(local.full_value, static_argnums=(0, 4))
    for batch_size in (1, 4, 9, 64):
        value, gradient = both(quadratic, theta, None, data, batch_size)
        np.testing.assert_allclose(gradient["theta"], expected, atol=1e-14)
        rows = np.arange(4.0) - np.asarray(data.x[data.index[:9]])
        np.testing.assert_allclose(
            value, 0.5 * (rows**2).sum(axis=1).mean(), rtol=1e-14
        )
        alone = values(quadratic, theta, None, data, batch_size)
        np.testing.assert_allclose(alone, value, rtol=1e-14)


def test_lane_max_is_one_value_for_all_lanes():
    def trips(x):
        return jax.lax.fori_loop(0, client_map.lane_max(x), lambda i, n: n + 1, 0)

    assert int(trips(jnp.asarray(3))) == 3
    np.testing.assert_array_equal(jax.vmap(trips)(jnp.array([1, 4, 2])), [4, 4, 4])
    nested = jax.vmap(jax.vmap(trips))(jnp.array([[1, 2], [5, 0]]))
    np.testing.assert_array_equal(nested, 5)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (fp.SGD, {"learning_rate": 0.0}, "learning_rate to be a finite number above 0"),
        (fp.SGD, {"learning_rate": float("nan")}, "got nan"),
        (fp.SGD, {"epochs": 0}, "epochs to be a whole number of at least 1, got 0"),
        (fp.SGD, {"num_steps": 0}, "num_steps"),
        (fp.SGD, {"batch_size": 2.5}, "batch_size to be a whole number"),
        (fp.SGD, {"momentum": 1.0}, "momentum to be a finite number at least 0"),
        (fp.SGD, {"decay": 0.0}, "decay"),
        (fp.SGD, {"decay": 1.5}, "decay"),
        (local.ToTolerance, {"max_steps": 0}, "max_steps"),
        (local.ToTolerance, {"tolerance": "x"}, "tolerance"),
        (fp.Optax, {"hyperparameters": {"learning_rate": "x"}}, "hyperparameters"),
    ],
)
def test_wrong_fields_get_one_sentence(kind, fields, message):
    with pytest.raises(fp.InputError, match=message):
        kind(**fields)


@pytest.mark.parametrize(("count", "cap"), [(1, 9), (3, 9), (7, 9), (7, 5)])
def test_steps_in_place_of_epochs_go_through_as_many_as_they_take(count, cap):
    """Nine examples in batches of four: epochs of three steps, all in fresh orders."""
    data = client(2)

    def step(params, context):
        return {"theta": params["theta"] + 1}

    solver = fp.SGD(learning_rate=1e-300, num_steps=count, epochs=99, batch_size=4)
    params, _, info = solver.solve(
        view(data, epochs=cap), quadratic, {"theta": jnp.zeros(4)}, None, step_end=step
    )
    taken = min(count, cap)
    assert params["theta"].tolist() == [taken] * 4
    assert int(info.num_steps) == taken
    sizes = [3, 3, 3] * 3
    assert int(info.num_examples) == sum(sizes[:taken])


def test_the_learning_rate_decays_with_the_round():
    data = client(2)
    mean = np.asarray(data.x[data.index[: toy.COUNTS[2]]]).mean(axis=0)
    solver = fp.SGD(learning_rate=0.5, num_steps=2, batch_size=64, decay=0.8)
    model = fp.models.Quadratic().for_federation(toy.make_federation(classes=False))
    plain = local.DataLoss(model)
    for number in (None, 0, 3):
        seen = view(data, round=None if number is None else jnp.asarray(number))
        found, _, _ = solver.solve(seen, plain, model.init(KEY), None)
        left = (1 - 0.5 * 0.8 ** (number or 0)) ** 2
        np.testing.assert_allclose(found["theta"], (1 - left) * mean, rtol=1e-12)


def batch_sizes(data, batch_size, **options):
    """Returns the number of examples of every batch, in order, of one epoch or more."""
    return logged(add_size, data, batch_size=batch_size, **options)


@pytest.mark.parametrize("per_step", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 16])
@pytest.mark.parametrize("number", range(4))
def test_even_batches_differ_by_at_most_one_example(number, batch_size, per_step):
    count = int(toy.COUNTS[number])
    sizes, info = batch_sizes(client(number), batch_size, batches_per_step=per_step)
    steps = -(-count // (batch_size * per_step))
    assert len(sizes) == steps * per_step and int(info.num_steps) == steps
    assert sizes.sum() == count and sizes.max() <= batch_size
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("remainder", ["full", "scaled"])
def test_a_full_remainder_is_the_last_batch(remainder):
    sizes, _ = batch_sizes(client(LARGEST), MOST - 1, remainder=remainder)
    np.testing.assert_array_equal(sizes, [MOST - 1, 1])


def test_dropped_remainders_take_no_step():
    data = client(LARGEST)
    sizes, info = batch_sizes(data, MOST - 1, remainder="drop", epochs=2)
    np.testing.assert_array_equal(sizes, [MOST - 1] * 2)
    assert int(info.num_examples) == 2 * (MOST - 1)
    _, info = batch_sizes(data, MOST + 1, remainder="drop")
    assert int(info.num_steps) == 0
    _, info = batch_sizes(data, MOST - 1, remainder="drop", num_steps=5)
    assert int(info.num_steps) == 5


@pytest.mark.parametrize(
    "solver",
    [
        fp.SGD(learning_rate=0.1, momentum=0.5),
        fp.Optax(hyperparameters={"learning_rate": 0.1}),
    ],
    ids=["sgd", "adam"],
)
def test_a_scaled_step_is_as_long_as_its_share_of_a_batch(solver):
    count, data = MOST, client(LARGEST)
    start = jnp.ones(data.x.shape[1:])

    def pull(key, params, batch, context):
        return jnp.sum(params**2) / 2 + 0 * batch.weight.sum()

    @jax.jit
    def end(solver):
        return solver.solve(view(data), pull, start)[0]

    solver, ends = dataclasses.replace(solver, batch_size=count - 1), {}
    for remainder in ("full", "scaled"):
        ends[remainder] = end(dataclasses.replace(solver, remainder=remainder))
    middle = end(dataclasses.replace(solver, num_steps=1))
    share = 1 / (count - 1)
    expected = middle + share * (ends["full"] - middle)
    np.testing.assert_allclose(ends["scaled"], expected, rtol=1e-12)


def test_one_left_example_does_not_decide_the_last_step():
    """The last of n examples is far from the others, and the batch size is n - 1."""
    count, data = MOST, client(LARGEST)
    x = jnp.zeros_like(data.x).at[data.index[count - 1]].set(100.0)
    data = dataclasses.replace(data, x=x)

    def distance(key, params, batch, context):
        squares = ((params[None] - batch.x) ** 2).sum(axis=1) / 2
        return jnp.vdot(batch.weight, squares) / batch.weight.sum()

    def end(**fields):
        solver = fp.SGD(
            learning_rate=1.0,
            batch_size=count - 1,
            order=lambda view, epoch: jnp.arange(count),
            **fields,
        )
        params, _, _ = solver.solve(view(data), distance, jnp.zeros(x.shape[1:]))
        return np.asarray(params)

    np.testing.assert_allclose(end(), 100 / (count // 2), rtol=1e-12)
    np.testing.assert_allclose(end(remainder="full"), 100.0, rtol=1e-12)
    np.testing.assert_allclose(end(remainder="scaled"), 100 / (count - 1), rtol=1e-12)
    np.testing.assert_allclose(end(remainder="drop"), 0.0)


@pytest.mark.parametrize(
    "remainder", few(("even", "scaled"), typing.get_args(minibatch_scan.Remainder))
)
def test_gradients_through_local_work_never_read_padding(remainder):
    """Padded slots point to a row of NaN; clients share the longest trip count."""
    problem = problems.regressions()
    train = problem.federation.train
    solver = fp.SGD(learning_rate=0.1, epochs=2, batch_size=3, remainder=remainder)
    objective = local.DataLoss(problem.model)

    def loss(theta, rows):
        data = train.pool().with_rows(rows)
        solved, _, _ = solver.solve(view(data), objective, {"theta": theta})
        return (solved["theta"] ** 2).sum()

    def slopes(rows):
        return jax.vmap(jax.grad(loss), (None, 0))(jnp.ones(3), rows)

    slopes = jax.jit(slopes)
    with loops.reversible():
        together = np.asarray(slopes(train.rows()))
        alone = [slopes(client_rows.take(train.rows(), jnp.array([i]))) for i in (0, 4)]
    assert np.isfinite(together).all()
    # Sums over at most 12 examples, in another order where clients are batched.
    np.testing.assert_allclose(together[[0, 4]], np.concatenate(alone), rtol=1e-13)
