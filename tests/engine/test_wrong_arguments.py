"""Mistakes of newcomers, each answered where it is made and with what to write."""

import functools
import subprocess
import sys

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_pfl as fp
from tests.lanes import wide

X, OWNERS = np.eye(12, 3), ["ann", "bob"] * 6


@pytest.fixture(scope="module")
def federation():
    return fp.Federation.from_arrays(X, [0, 1, 1] * 4, OWNERS)


def simulate(federation, key=None, **fields):
    process = fp.FederatedProcess(**{"algorithm": fp.Flame()} | fields)
    key = jax.random.key(0) if key is None else key
    return fp.simulate(key, process, fp.LogisticRegression(), federation, num_rounds=1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fp.FedAvg(local="sgd"), "local of FedAvg .* SGD.., got 'sgd'"),
        (lambda: fp.FedPG(local="sgd"), "local of FedPG .*'sgd'"),
        (lambda: fp.FedAvg(local=optax.adam(0.1)), r"fp.Optax\(optimizer=optax.adam"),
        (lambda: fp.FedAvg(local=optax.adam), r"fp.Optax\(optimizer=optax.adam"),
        (
            lambda: fp.FederatedProcess(algorithm=fp.FedAvg(), aggregator="median"),
            "aggregator .*CoordinateMedian.., got 'median'",
        ),
        (lambda: fp.FederatedProcess(algorithm="fedavg"), "FedAvg.., got 'fedavg'"),
        (
            lambda: fp.FederatedProcess(fp.Flame()),
            r"write FederatedProcess\(algorithm=Flame\(\.\.\.\)\)",
        ),
        (
            lambda: fp.Flame(lam=optax.cosine_decay_schedule(0.1, 100)),
            r"lam of Flame .*cosine_decay_schedule\(.*decay_steps=100.*learning rates",
        ),
        (
            lambda: fp.SGD(momentum=optax.constant_schedule(0.9)),
            r"momentum of SGD .*constant_schedule\(value=0.9\)",
        ),
        (lambda: fp.Flame(lam=functools.partial(float, 1)), "lam .*only the learning"),
    ],
)
def test_stand_ins_for_parts_are_refused_where_they_are_given(make, words):
    with pytest.raises(fp.InputError, match=words):
        make()


def test_trees_may_hold_names_in_place_of_numbers():
    upload = fp.Upload(message=1.0, weight=2.0)
    assert jax.tree.map(lambda _: "a name", upload).weight == "a name"


def test_misspelled_names_of_the_package_are_suggested_when_near():
    with pytest.raises(AttributeError, match="did you mean 'Flame'"):
        fp.Flme  # noqa: B018
    with pytest.raises(AttributeError, match="attribute 'qqzzxxyy'$"):
        fp.qqzzxxyy  # noqa: B018


def test_legacy_keys_are_named(federation):
    key = jax.random.PRNGKey(0)
    with pytest.raises(fp.InputError, match=r"jax.random.key\(seed\).*PRNGKey"):
        simulate(federation, key)
    process, model = fp.FederatedProcess(algorithm=fp.FedAvg()), fp.MLP()
    with pytest.raises(fp.InputError, match=r"jax.random.key\(seed\).*PRNGKey"):
        fp.grid(key, process, model, fp.FederationSpec(), {}, num_rounds=1)


def test_arrays_of_keys_are_told_of_grids(federation):
    keys = jax.random.split(jax.random.key(0))
    with pytest.raises(fp.InputError, match=r"one key, .* shape \(2,\); fp.grid"):
        simulate(federation, keys)


def test_keys_of_other_generators_are_taken_or_named(federation):
    once, again = (
        simulate(federation, jax.random.key(0, impl="rbg")).groups[0] for _ in range(2)
    )
    np.testing.assert_equal(once.metrics, again.metrics)
    odd = jax.extend.random.define_prng_impl(
        key_shape=(3,),
        seed=lambda seed: jnp.zeros(3, jnp.uint32) + seed.astype(jnp.uint32),
        split=lambda key, shape: jnp.broadcast_to(key, (*shape, 3)),
        random_bits=lambda key, width, shape: jnp.zeros(shape, jnp.uint32),
        fold_in=lambda key, data: key,
        name="odd",
    )
    with pytest.raises(fp.InputError, match=r"threefry2x32.* shape \(3,\)\."):
        simulate(federation, jax.random.key(0, impl=odd))


SPEC = fp.FederationSpec("digits", num_clients=4)


def base(key, number=0.1):
    process = fp.FederatedProcess(algorithm=fp.Flame(lam=number))
    return key, process, fp.LogisticRegression()


def malicious(number):
    return fp.FederationSpec("digits", num_clients=4, malicious_fraction=number)


CALLS = {  # of a key and a number, either of them traced
    "simulate": lambda made, key, x: fp.simulate(*base(key, x), made, 1),
    "simulate_streamed": lambda made, key, x: fp.simulate_streamed(
        *base(key, x), made, 1
    ),
    "grid": lambda _, key, x: fp.grid(*base(key, x), SPEC, {}, 1),
    "grid's axes": lambda _, key, x: fp.grid(
        *base(key), SPEC, {"algorithm.lam": [x]}, 1
    ),
    "grid's federations": lambda _, key, x: fp.grid(*base(key), malicious(x), {}, 1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_inside_transformations_are_told_of_grids(federation, call):
    train = functools.partial(call, federation)
    keys, numbers = jax.random.split(jax.random.key(0)), np.array([0.1, 0.2])
    told = pytest.raises(fp.InputError, match="jax.vmap, jax.jit or jax.grad; fp.grid")
    with told:
        jax.vmap(lambda key: train(key, 0.1))(keys)
    with told:
        jax.vmap(lambda number: train(keys[0], number))(numbers)
    with told:
        jax.jit(lambda key: train(key, 0.1))(keys[0])
    with told:
        jax.jit(lambda number: train(keys[0], number))(0.1)
    with told:
        jax.jit(lambda: train(keys[0], 0.1))()
    with told:
        jax.grad(lambda number: train(keys[0], number))(0.1)


FORKED = """
import multiprocessing, sys, warnings
import jax
import fedjax_pfl as fp

def refused(call, *arguments):
    try:
        call(*arguments, 1, progress=False)
    except fp.InputError as error:
        return 'get_context("spawn")' in str(error)
    return False

def child(key):
    spec = fp.FederationSpec("quadratic", "by_client", num_clients=4)
    parts = (key, fp.FederatedProcess(algorithm=fp.FedAvg()), fp.models.Quadratic())
    if IS_USED:
        federation = spec.build()
        all_are = refused(fp.simulate, *parts, federation)
        all_are &= refused(fp.simulate_streamed, *parts, federation)
        sys.exit(not (all_are and refused(fp.grid, *parts, spec, {})))
    sys.exit(len(fp.grid(jax.random.key(0), *parts[1:], spec, {}, 1, progress=False)
        .groups) != 1)

warnings.simplefilter("ignore")
IS_USED = sys.argv[1] == "used"
key = jax.random.key(0) if IS_USED else None
context = multiprocessing.get_context("fork")
process = context.Process(target=child, args=(key,))
process.start()
process.join()
sys.exit(process.exitcode)
"""


@pytest.mark.parametrize("state", ["used", wide("unused")])
def test_a_fork_of_a_used_jax_is_refused_and_another_one_trains(state):
    command = [sys.executable, "-c", FORKED, state]
    done = subprocess.run(command, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("axis", "whole"),
    [
        ("lam", "algorithm.lam"),
        ("local.learning_rate", "algorithm.local.learning_rate"),
        ("num_clients", "federation.num_clients"),
        ("widths", "model.widths"),
        ("alpha", "algorithm.alpha"),
    ],
)
def test_short_names_of_axes_are_completed(axis, whole):
    axes = {axis: [1], "algorithm": [fp.Flame(), fp.APFL()]}
    process = fp.FederatedProcess(algorithm=fp.Flame())
    given = jax.random.key(0), process, fp.MLP(), fp.FederationSpec(), axes
    with pytest.raises(fp.InputError, match=f"{axis!r}: did you mean {whole!r}"):
        fp.grid(*given, num_rounds=1)


def test_owners_and_a_partition_that_ignores_them_are_refused():
    with pytest.raises(fp.InputError, match="got both: IID"):
        fp.Federation.from_arrays(X, [0, 1, 1] * 4, OWNERS, partition=fp.IID())
    by_owner = fp.Federation.from_arrays(
        X, [0, 1, 1] * 4, OWNERS, partition=fp.ByClient()
    )
    assert by_owner.num_clients == 2


def test_one_hot_labels_are_classes():
    classes = np.arange(12) % 3
    federation = fp.Federation.from_arrays(X, np.eye(4)[classes], OWNERS)
    assert federation.num_classes == 4
    np.testing.assert_array_equal(federation.train.y, classes)
    targets = fp.Federation.from_arrays(X, np.eye(4)[classes] / 2, OWNERS)
    assert targets.num_classes is None


@pytest.mark.parametrize(
    ("x", "shown"),
    [
        (np.zeros((12, 2, 2), np.uint8), "uint8[2, 2], to models as floats divided by"),
        (np.zeros((12, 2), np.uint8), "uint8[2], to models as floats, 2 classes"),
        (np.zeros((12, 2)), "float32[2], 2 classes"),
        (np.zeros((12, 2), np.int32), "int32[2], 2 classes"),
    ],
)
def test_federations_say_what_models_receive(x, shown):
    assert shown in repr(fp.Federation.from_arrays(x, [0, 1, 1] * 4, OWNERS))
