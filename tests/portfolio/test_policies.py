"""The portfolio policy: its formulas against NumPy, and what training learns."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import core, local, portfolio
from fedjax_pfl.core import checks
from fedjax_pfl.portfolio import policies

KEY = jax.random.key(3, impl="threefry2x32")
SPEC = portfolio.PortfolioSpec(
    portfolio.SyntheticMarket(num_days=120, num_assets=8),
    num_clients=4,
    assets_per_client=3,
    window=6,
    test_days=20,
    years=2,
    rounds_per_year=1,
)


@pytest.fixture(scope="module")
def federation():
    return SPEC.build()


@pytest.fixture(scope="module")
def policy(federation):
    return portfolio.EIIE(units=4).for_federation(federation)


init = jax.jit(portfolio.EIIE.init, static_argnums=0)
gather = jax.jit(core.ClientData.gather)
metrics = jax.jit(portfolio.EIIE.sequence_metrics, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def act(policy, params, x, constants):
    return policy.apply(params, x, constants=constants)


def one_client(data, client=1):
    """Data of one client."""
    rows = jax.tree.map(lambda leaf: np.asarray(leaf)[client], data.rows())
    return data.pool().with_rows(rows)


def batch_of(data, positions):
    positions = np.asarray(positions)
    return gather(data, positions, np.ones(len(positions)))


def draw(policy, scale=1.0):
    """Parameters large enough for weights that differ."""
    return jax.tree.map(lambda leaf: scale * np.asarray(leaf), init(policy, KEY))


@pytest.mark.parametrize(
    ("fields", "features", "count"),
    [({}, 1, 463), ({}, 3, 503), ({"evaluator": "convolutional"}, 1, 902)],
)
def test_numbers_of_parameters(fields, features, count):
    policy = portfolio.EIIE(features=features, window=30, **fields)
    shapes = jax.eval_shape(policy.init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count


def weights_by_formula(params, batch, hidden):
    """Weights of a row and what is held: of hidden states by relative prices."""
    p = jax.tree.map(np.asarray, params)
    prices = np.asarray(batch.constants.prices, np.float64)[..., 0]

    def weights(row, held):
        first, day, _ = np.asarray(batch.x)[row]
        scores = [p["cash"]["bias"]]
        for asset in range(3):
            seen = prices[first + day - 5 : first + day + 1, asset]
            read = np.append(hidden(p["evaluator"], seen / seen[-1]), held[asset])
            scores.append(p["head"]["kernel"] @ read + p["head"]["bias"])
        weights = np.exp(scores - np.max(scores))
        return weights / weights.sum()

    return weights


def test_recurrent_evaluator_is_its_formula(federation, policy):
    data = one_client(federation.train)
    batch = batch_of(data, range(10, 14))
    params = draw(policy, 3.0)
    held = np.random.default_rng(0).dirichlet(np.ones(4), 4)[:, 1:]
    seen = policies.Held(x=batch.x, weights=held)
    found = act(policy, params, seen, batch.constants)

    def hidden(p, prices):
        state = np.zeros(4)
        for price in prices:
            arrived = p["input_kernel"][:, 0] * price + p["state_kernel"] @ state
            state = 1 / (1 + np.exp(-arrived - p["bias"]))
        return state

    weights = weights_by_formula(params, batch, hidden)
    for row in range(4):
        # The windows are quotients of float32 prices.
        np.testing.assert_allclose(found[row], weights(row, held[row]), rtol=2e-6)


def test_convolutional_evaluator_is_its_formula(federation):
    policy = portfolio.EIIE(evaluator="convolutional", centered=True).for_federation(
        federation
    )
    batch = batch_of(one_client(federation.train), range(3))
    params = draw(policy, 2.0)
    found = act(policy, params, batch.x, batch.constants)

    def hidden(p, prices):
        x, (short, long) = 10 * (prices - 1), (p["short"], p["long"])
        pairs = np.stack([short["kernel"] @ x[t : t + 2] for t in range(5)])
        pairs = np.maximum(pairs + short["bias"], 0)
        return np.maximum(long["kernel"] @ pairs.reshape(-1) + long["bias"], 0)

    weights, held = weights_by_formula(params, batch, hidden), np.zeros(3)
    for row in range(3):
        # Ten times the rounding of quotients of float32 prices, times the weights.
        expected = weights(row, held)
        np.testing.assert_allclose(found[row], expected, atol=1e-5)
        held = expected[1:]


def test_weights_follow_the_assets(federation, policy):
    batch = batch_of(one_client(federation.train), range(5))
    params, order = draw(policy, 3.0), np.array([2, 0, 1])
    tables = batch.constants
    moved = dataclasses.replace(tables, prices=np.asarray(tables.prices)[:, order])
    found, again = (
        np.asarray(act(policy, params, batch.x, prices)) for prices in (tables, moved)
    )
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
    assert np.ptp(found[0, 1:]) > 1e-5
    np.testing.assert_allclose(again[:, 0], found[:, 0], rtol=1e-9)
    np.testing.assert_allclose(again[:, 1:], found[:, 1:][:, order], rtol=1e-9)


def test_loss_is_the_log_return_after_costs(federation, policy):
    batch = batch_of(one_client(federation.train), range(20, 26))
    weights = np.random.default_rng(1).dirichlet(np.ones(4), 6)
    growth = np.asarray(batch.y)
    total, before = 0.0, None
    for w, y in zip(weights, growth, strict=True):
        factor = 1.0
        if before is not None:
            factor -= 0.002 * np.abs(before - w)[1:].sum()
        total += np.log(factor * (y @ w))
        before = y * w / (y @ w)
    assert jax.jit(policy.loss)(weights, batch) == pytest.approx(-total / 6)


def test_gradient_of_the_loss_by_finite_differences(federation, policy):
    batch = batch_of(one_client(federation.train), range(20, 30))
    held = policies.Held(x=batch.x, weights=jnp.full((10, 3), 1 / 3))
    batch = dataclasses.replace(batch, x=held)
    objective = local.DataLoss(policy)
    flat, unravel = jax.flatten_util.ravel_pytree(draw(policy, 2.0))
    value = jax.jit(lambda v: objective(None, unravel(v), batch, None))
    gradient, step = jax.grad(value)(flat), 1e-5
    towards = jnp.eye(flat.size)
    ends = [jax.vmap(value)(flat[None] + sign * step * towards) for sign in (1, -1)]
    # Central differences: truncation of order step^2, rounding of order eps / step.
    differences = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(gradient, differences, atol=1e-10)
    assert np.abs(gradient).max() > 1e-6


def test_a_policy_of_cash_returns_exactly_nothing(federation, policy):
    params = draw(policy)
    params["cash"]["bias"] = np.asarray(1e4)
    batch = batch_of(one_client(federation.test, 0), range(20))
    outputs = act(policy, params, batch.x, batch.constants)
    found, series = metrics(policy, outputs, batch)
    for name in ("annualized_return", "sharpe", "max_drawdown", "turnover", "loss"):
        assert found[name] == 0, name
    assert (np.asarray(series["value"]) == 1).all()
    assert found["uniform_annualized_return"] != 0


def test_metrics_of_no_days_are_not_numbers(federation, policy):
    batch = gather(one_client(federation.test, 0), np.arange(20), np.zeros(20))
    outputs = act(policy, draw(policy), batch.x, batch.constants)
    found, _ = metrics(policy, outputs, batch)
    assert all(np.isnan(value) for value in found.values())


def test_memory_is_read_and_written(federation, policy):
    """One step of SGD: actions of the old parameters replace those of its days."""
    data = one_client(federation.train)
    drawn = np.random.default_rng(2).dirichlet(np.ones(4), data.constants.slots)
    memory = drawn[:, 1:]
    solver = local.SGD(learning_rate=0.5, num_steps=1, batch_size=7)
    params = draw(policy, 3.0)
    view = core.ClientView(key=KEY, round=0, data=data, carry=memory)
    solve = jax.jit(lambda v, p: solver.solve(v, local.DataLoss(policy), p, None))
    moved, _, info = solve(view, params)
    carry = np.asarray(info.carry)
    changed = np.flatnonzero((carry != memory).any(axis=1))
    assert len(changed) == 7 and (np.diff(changed) == 1).all()
    batch = batch_of(data, changed)
    assert changed[0] > 0  # else the uniform weights are what was held
    held = policies.Held(x=batch.x, weights=memory[changed - 1])
    acted = np.asarray(act(policy, params, held, batch.constants))
    np.testing.assert_allclose(carry[changed], acted[:, 1:], rtol=1e-12)
    loss = jax.jit(lambda p: policy.loss(act(policy, p, held, batch.constants), batch))
    gradient = jax.tree.leaves(jax.grad(loss)(params))
    for a, b, g in zip(*map(jax.tree.leaves, (params, moved)), gradient, strict=True):
        np.testing.assert_allclose(b, a - 0.5 * np.asarray(g), rtol=1e-9, atol=1e-15)


def test_first_day_holds_equal_shares(federation, policy):
    data = one_client(federation.train)
    memory = np.zeros((data.constants.slots, 3))
    found = jax.jit(policy.recall)(memory, batch_of(data, [0, 1]))
    np.testing.assert_array_equal(found.weights, [[1 / 3] * 3, [0, 0, 0]])


@pytest.mark.wide
def test_one_rising_asset_is_learned(tmp_path):
    """Six assets that go nowhere, and one that rises by half a percent a day."""
    rng, days = np.random.default_rng(0), 200
    steps = 0.002 * rng.standard_normal((days, 7))
    steps[:, 0] = 0.005
    prices = 100 * np.exp(np.cumsum(steps, axis=0))
    dates = np.busday_offset("2020-01-01", np.arange(days), roll="forward")
    lines = [
        f"{date},T{k},{price:.6f}"
        for date, row in zip(dates, prices, strict=True)
        for k, price in enumerate(row)
    ]
    file = tmp_path / "prices.csv"
    file.write_text("date,ticker,close\n" + "\n".join(lines))
    spec = portfolio.PortfolioSpec(
        str(file), num_clients=1, assets_per_client=7, window=5, test_days=30, years=0
    )
    adam = local.Optax(
        hyperparameters={"learning_rate": 0.02}, num_steps=50, batch_size=20
    )
    process = fp.FederatedProcess(algorithm=fp.Local(local=adam))
    result = fp.simulate(
        KEY, process, portfolio.EIIE(units=4, centered=True), spec.build(), num_rounds=6
    )
    record = result.groups[0]
    value = record.metrics["annualized_return"][0, :, 0, 0, 0]
    # All money in the rising asset earns 252 times 0.005; equal shares a seventh.
    assert value[0] < np.exp(0.3) - 1 < 0.8 * (np.exp(252 * 0.005) - 1) < value[-1]


def test_other_federations_are_refused():
    other = fp.FederationSpec("quadratic", "by_client", num_clients=4).build()
    with pytest.raises(checks.InputError, match=r"a policy for prices.*PortfolioSpec"):
        portfolio.EIIE().for_federation(other)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"evaluator": "lstm"}, "evaluator"),
        ({"cost": 0.5}, r"cost .* got 0\.5"),
        ({"sampling_decay": 0.0}, "sampling_decay"),
        ({"units": 0}, "units"),
    ],
)
def test_bad_fields_are_refused(fields, sentence):
    with pytest.raises(checks.InputError, match=sentence):
        portfolio.EIIE(**fields)
