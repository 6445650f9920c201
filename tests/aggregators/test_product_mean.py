"""The mean of products of factors, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import aggregators
from fedjax_pfl.testing import toy

KEY = jax.random.key(0)
RULE = aggregators.ProductMean()
RUN = jax.jit(RULE)  # one compilation in place of one per operation


def messages(clients, inputs, outputs, rank, seed=0):
    draw = np.random.default_rng(seed).normal
    a, b = draw(size=(clients, inputs, rank)), draw(size=(clients, rank, outputs))
    head = draw(size=(clients, outputs))
    return {"adapters": {"body": {"kernel": {"a": a, "b": b}}}, "head": head}


def zeros(rows):
    return jax.tree.map(lambda leaf: 0 * leaf[0], rows)


def product(factors):
    kernel = factors["adapters"]["body"]["kernel"]
    return np.asarray(kernel["a"]) @ np.asarray(kernel["b"])


# Few factors beside a large kernel, many beside a small one, and one side small.
@pytest.mark.parametrize("shape", [(3, 20, 15, 2), (9, 6, 7, 3), (4, 40, 5, 2)])
def test_it_is_the_best_approximation_of_the_mean_product(shape):
    rows, weights = messages(*shape), np.arange(1.0, shape[0] + 1)
    mean, info = RUN(KEY, rows, jnp.asarray(weights), zeros(rows))
    kernel = rows["adapters"]["body"]["kernel"]
    whole = np.einsum(
        "k,kir,kro->io", weights / weights.sum(), kernel["a"], kernel["b"]
    )
    left, values, right = np.linalg.svd(whole)
    rank = shape[-1]
    best = (left[:, :rank] * values[:rank]) @ right[:rank]
    # A few hundred float64 operations on numbers of the size of the largest.
    np.testing.assert_allclose(product(mean), best, rtol=0, atol=1e-12 * values[0])
    lost = np.sqrt((values[rank:] ** 2).sum() / (values**2).sum())
    np.testing.assert_allclose(info.left_out, lost, rtol=1e-10)
    expected = np.average(rows["head"], axis=0, weights=weights)
    np.testing.assert_allclose(mean["head"], expected, rtol=1e-12)
    a, b = (np.asarray(mean["adapters"]["body"]["kernel"][part]) for part in "ab")
    np.testing.assert_allclose(a.T @ a, np.eye(rank) / 3, atol=1e-12)
    lengths = np.linalg.norm(b, axis=1)
    np.testing.assert_allclose(lengths, np.sqrt(3) * values[:rank], rtol=1e-10)


def test_signs_and_bases_of_the_factors_do_not_matter():
    rows = messages(4, 12, 10, 2)
    turn = np.linalg.qr(np.random.default_rng(3).normal(size=(4, 2, 2)))[0]
    turned = jax.tree.map(np.array, rows)
    kernel = turned["adapters"]["body"]["kernel"]
    kernel["a"] = kernel["a"] @ turn
    kernel["b"] = np.swapaxes(turn, 1, 2) @ kernel["b"]
    ones = jnp.ones(4)
    one, other = (RUN(KEY, each, ones, zeros(rows))[0] for each in (rows, turned))
    np.testing.assert_allclose(product(one), product(other), rtol=0, atol=1e-12)
    means = (
        product(jax.tree.map(lambda v: v.mean(0), each)) for each in (rows, turned)
    )
    assert np.abs(np.subtract(*means)).max() > 0.1  # which that of factors depends on


def test_equal_products_stay_and_no_change_can_still_be_trained():
    rows = jax.tree.map(lambda v: np.stack([v[0]] * 3), messages(1, 8, 6, 2))
    mean, info = RUN(KEY, rows, jnp.ones(3), zeros(rows))
    first = product(jax.tree.map(lambda v: v[0], rows))
    np.testing.assert_allclose(product(mean), first, rtol=0, atol=1e-12)
    assert info.left_out < 1e-7
    rows["adapters"]["body"]["kernel"]["b"] *= 0
    mean, info = RUN(KEY, rows, jnp.ones(3), zeros(rows))
    a, b = (np.asarray(mean["adapters"]["body"]["kernel"][part]) for part in "ab")
    assert info.left_out == 0 and not b.any()
    np.testing.assert_allclose(a.T @ a, np.eye(2) / 3, atol=1e-12)


def test_rows_that_take_no_part_change_nothing():
    rows, broken = messages(4, 12, 10, 2), messages(4, 12, 10, 2)
    for part in "ab":
        broken["adapters"]["body"]["kernel"][part][1] = np.nan
    broken["head"][2] = 1e38
    few = jax.tree.map(lambda v: v[[0, 3]], rows)
    expected = RUN(KEY, few, jnp.ones(2), zeros(few))[0]
    weights = jnp.asarray([1.0, 1.0, 0.0, 1.0])
    found = RUN(KEY, broken, weights, zeros(rows))[0]
    np.testing.assert_allclose(product(found), product(expected), rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["head"], expected["head"], rtol=1e-12)
    reference = jax.tree.map(lambda v: v[0], rows)
    nobody = RUN(KEY, broken, jnp.zeros(4), reference)[0]
    jax.tree.map(np.testing.assert_array_equal, nobody, reference)


def trained(algorithm, model=None, **fields):
    model = model or fp.lora(fp.MLP(widths=(5,)), targets="^hidden", rank=2)
    process = fp.FederatedProcess(algorithm=algorithm, aggregator=RULE, **fields)
    data = toy.make_federation()
    return fp.simulate(KEY, process, model, data, num_rounds=2, progress=False)


@pytest.mark.wide
def test_methods_that_start_at_the_server_s_model_train_with_it():
    result = trained(fp.FedAvg(local=fp.SGD(learning_rate=0.3, batch_size=64)))
    loss = result.groups[0].metrics["loss"][0, :, 0, 0]
    assert loss[-1].mean() < loss[0].mean()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": fp.Flame()}, "clients begin every round at the server's model"),
        ({"algorithm": fp.Ditto()}, "clients begin every round at the server's model"),
        (
            {"algorithm": fp.FedAvg(), "server_optimizer": aggregators.ServerAdam()},
            "FedAvg without a server optimizer",
        ),
        (
            {"algorithm": fp.FedAvg(), "model": fp.MLP(widths=(5,))},
            "model with adapters",
        ),
        (
            {
                "algorithm": fp.FedAvg(),
                "model": fp.lora(
                    fp.MLP(widths=(5,)), targets="^hidden", rank=2, personal="/b$"
                ),
            },
            "both factors of every adapter",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(options, words):
    with pytest.raises(fp.InputError, match=words) as error:
        trained(**options)
    assert "\n" not in str(error.value)
