"""SplitGP against NumPy, its limits, and what early exits depend on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms, models
from fedjax_pfl.algorithms import splitgp
from fedjax_pfl.core import tree_paths
from fedjax_pfl.testing import compiled_rounds, toy
from tests import problems
from tests.algorithms import perceptrons
from tests.algorithms.perceptrons import CLOSE, KEY, assert_close
from tests.lanes import wide

STEPS = problems.full_gradient_steps(2, 0.5)


def slopes(x, y, point, share):
    """Gradients by hand in `(V, u, E, e, W, c)`: before the cut, exit, and head."""
    v, u, e, d, w, c = point
    z, target = np.maximum(x @ v.T + u, 0), np.eye(len(c))[y]
    early = share * (perceptrons.softmax(z @ e.T + d) - target) / len(y)
    late = (1 - share) * (perceptrons.softmax(z @ w.T + c) - target) / len(y)
    back = (early @ e + late @ w) * (z > 0)
    return (
        *(back.T @ x, back.sum(axis=0)),
        *(early.T @ z, early.sum(axis=0)),
        *(late.T @ z, late.sum(axis=0)),
    )


def front_of(params):
    return perceptrons.unpacked(params, ("hidden_0", "exit"))


def head_of(params):
    return perceptrons.unpacked(params, ("head",))


def row(tree, client):
    return jax.tree.map(lambda leaf: leaf[client], tree)


@pytest.mark.parametrize(
    ("share", "own"), [(0.3, 0.2), (0.0, 0.0), (1.0, 1.0)], ids=str
)
def test_rounds_are_the_equations_in_numpy(share, own):
    federation = perceptrons.with_labels(perceptrons.drawn_labels())
    algorithm = algorithms.SplitGP(exit_weight=share, self_weight=own, local=STEPS)
    states, infos = perceptrons.trained(algorithm, federation, 2)
    for old, new, info in zip(states, states[1:], infos, strict=False):
        sent = []
        for i in info.cohort:
            point = front_of(row(old.clients, i)) + head_of(old.server)
            for _ in range(2):
                slope = slopes(*perceptrons.examples(federation, i), point, share)
                point = perceptrons.stepped(point, slope)
            sent.append(point)
        means = perceptrons.averaged(sent, toy.COUNTS[info.cohort])
        assert_close(front_of(new.server) + head_of(new.server), means)
        for i, point in zip(info.cohort, sent, strict=True):
            pairs = zip(point[:4], means, strict=False)
            mixed = [own * a + (1 - own) * b for a, b in pairs]
            assert_close(front_of(row(new.clients, i)), mixed)
        for i in np.setdiff1d(np.arange(8), info.cohort):
            jax.tree.map(
                np.testing.assert_array_equal, row(old.clients, i), row(new.clients, i)
            )
        np.testing.assert_array_equal(
            info.client["gradient_evaluations"], 2 * toy.COUNTS[info.cohort]
        )
    if share == 1:  # nothing moves the server's part
        np.testing.assert_allclose(
            states[-1].server["head"]["kernel"],
            states[0].server["head"]["kernel"],
            rtol=1e-14,
        )


@pytest.mark.wide
def test_without_exit_and_own_part_it_is_fedavg():
    federation, local = toy.make_federation(), fp.SGD(epochs=2, batch_size=2)
    split = algorithms.SplitGP(exit_weight=0.0, self_weight=0.0, local=local)
    model = fp.MLP(widths=(4, 3)).for_federation(federation)
    servers = []
    for algorithm in (split, fp.FedAvg(local=local)):
        process = fp.FederatedProcess(algorithm=algorithm)
        state = compiled_rounds.init(process, KEY, model, federation)
        step = jax.jit(lambda s, p=process: p.round(s, model, federation)[0])
        servers.append(step(step(state)).server)
    servers[0].pop("exit")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), *servers
    )


def test_answers_come_from_the_exit_where_it_is_sure():
    early = np.log([[0.5, 0.5], [0.9, 0.1], [0.999, 0.001], [0.2, 0.8]])
    late = np.arange(8.0).reshape(4, 2)
    entropy = [np.log(2), 0.325083, 0.007907, 0.500402]  # - sum p log p by hand
    for threshold in (0.0, 0.01, 0.4, 0.69, 0.7):
        found = splitgp.routed(jnp.asarray(early), jnp.asarray(late), threshold)
        sure = np.array(entropy) <= threshold
        np.testing.assert_array_equal(found, np.where(sure[:, None], early, late))


def test_predictors_are_the_routed_own_part_and_the_means():
    federation = perceptrons.with_labels(perceptrons.drawn_labels())
    x = np.random.default_rng(0).normal(size=(9, 4))
    algorithm = algorithms.SplitGP(exit_weight=0.3, local=STEPS)
    state, i = perceptrons.trained(algorithm, federation, 2)[0][-1], 2
    v, u, e, d = front_of(row(state.clients, i))
    z, (w, c) = np.maximum(x @ v.T + u, 0), head_of(state.server)
    chances = perceptrons.softmax(z @ e.T + d)
    entropy = -(chances * np.log(chances)).sum(axis=1)
    threshold = np.sort(entropy)[3:5].mean()
    sure = entropy <= threshold
    algorithm = dataclasses.replace(algorithm, threshold=threshold)
    found = perceptrons.predictions(algorithm, federation, state, i, x)
    wanted = np.where(sure[:, None], z @ e.T + d, z @ w.T + c)
    np.testing.assert_allclose(found["personal"], wanted, **CLOSE)
    v, u, _, _ = front_of(state.server)
    wanted = np.maximum(x @ v.T + u, 0) @ w.T + c
    np.testing.assert_allclose(found["global"], wanted, **CLOSE)
    assert set(found) == {"personal", "global"}


NETWORKS = [
    (models.MLP(widths=(5, 4, 3), input_shape=(6,), num_classes=3), 2, 4),
    (models.CNN1(input_shape=(10, 10), num_classes=3), 3, 64),
    (models.CifarCNN(input_shape=(16, 16, 3), num_classes=3), 2, 64),
    wide(*(models.NFResNet18(input_shape=(16, 16), num_classes=3), 4, 4 * 4 * 32)),
]


@pytest.mark.parametrize(("network", "cut", "width"), NETWORKS, ids=str)
def test_networks_can_be_cut_after_every_layer(network, cut, width):
    alone = jax.eval_shape(network.init, KEY)
    assert sorted(network.layers) == sorted({*alone} - {"head"})
    # Exits see all pixels, also of the last block, which the head of a ResNet averages.
    pixels = 4 if isinstance(network, models.NFResNet18) else 1
    last = alone["head"]["kernel"].shape[1] * pixels
    for after, inputs in ((cut, width), (len(network.layers), last)):
        exits = models.EarlyExit(network=network, exit_after=after)
        params = jax.eval_shape(exits.init, KEY)
        front, back = tree_paths.split(params, exits.front)
        before = {*network.layers[:after], "exit"}
        assert {name for name in params if jax.tree.leaves(front[name])} == before
        rest = {name for name in params if jax.tree.leaves(back[name])}
        assert rest == {*params} - before
        assert params["exit"]["kernel"].shape == (3, inputs)
        assert {n: params[n] for n in alone} == alone


@pytest.mark.wide
@pytest.mark.parametrize(("network", "cut", "width"), NETWORKS, ids=str)
def test_an_exit_depends_on_what_is_before_the_cut_and_changes_nothing(
    network, cut, width
):
    exits = models.EarlyExit(network=network, exit_after=cut)
    x = jax.random.normal(KEY, (2, *network.input_shape))

    @jax.jit
    def results():
        params = exits.init(KEY)
        apply = jax.value_and_grad(
            lambda p, part: jnp.sin(exits.apply(p, x, key=KEY)[part]).sum()
        )
        alone = network.init(KEY)
        early = exits.apply(params, x)[0]
        plain = network.apply(alone, x, key=KEY)
        return params, alone, apply(params, 0)[1], apply(params, 1), plain, early

    params, alone, early, (value, late), plain, logits = results()
    assert params["exit"]["kernel"].shape == (3, width) and logits.shape == (2, 3)
    jax.tree.map(
        np.testing.assert_array_equal, alone | {"exit": params["exit"]}, params
    )
    np.testing.assert_allclose(value, jnp.sin(plain).sum(), rtol=1e-12)
    used, unused = tree_paths.split(early, exits.front)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(used))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(unused))
    assert not np.any(late["exit"]["kernel"])
    assert all(
        np.any(late[name]["kernel"]) for name in network.layers if "conv" in name
    )


def test_wrong_fields_and_networks_get_one_sentence():
    for field, value in [("exit_weight", 1.5), ("self_weight", -1), ("threshold", -1)]:
        with pytest.raises(fp.InputError, match=f"{field} to be a finite number at l"):
            algorithms.SplitGP(**{field: value})
    with pytest.raises(fp.InputError, match="exit_after to be a whole number of at le"):
        algorithms.SplitGP(exit_after=0)
    shapes = {"input_shape": (4,), "num_classes": 2}
    for network in (
        models.LogisticRegression(inputs=4, num_classes=2),
        models.LSTM(embedding_size=3, **shapes),
        models.MLP(widths=(), **shapes),
    ):
        with pytest.raises(fp.InputError, match="network of layers before a head, suc"):
            models.EarlyExit(network=network)  # pyright: ignore[reportArgumentType]
    with pytest.raises(fp.InputError, match="exit_after to be at most 2, which are"):
        models.EarlyExit(network=models.MLP(**shapes), exit_after=3)
