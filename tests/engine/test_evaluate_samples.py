"""L-, S- and G-accuracy by hand: half of the others, and samples of test examples."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import data
from fedjax_pfl.core import checks, client_rows
from fedjax_pfl.data import splits
from fedjax_pfl.engine import evaluation, stacking
from tests.engine import test_evaluate
from tests.lanes import wide

N = 5
SIZES = np.array([10, 20, 30, 40, 20])  # of which half are test examples
NOISE = fp.data.FeatureNoise(std=0.5, graded=True)
BOTH = ("test", "others", "everybody")


def make_federation(**fields):
    """Client i has examples of class i only."""
    owner = np.repeat(np.arange(N), SIZES)
    dataset = fp.data.Dataset(
        name="one class each", x=np.ones((len(owner), 1)), y=owner, num_classes=N,
        client=owner,
    )  # fmt: skip
    given = {"test_fraction": 0.5, "validation_fraction": 0.0, "num_others": "half"}
    return data.from_dataset(
        dataset, fp.ByClient(), num_clients=N, **{**given, **fields}
    )


class OwnClass:
    """A process whose models predict one class: the client's own, or class 0."""

    def before_evaluation(self, state, model, federation):
        return state

    def predictors(self, key, state, client, model, data):
        def always(label):
            return lambda x: jnp.broadcast_to(jax.nn.one_hot(label, N), (len(x), N))

        return {"personal": always(data.client_id), "global": always(0)}


@jax.jit
def accuracies(federation):
    """Of the personal and of the global models, `[data, N]` each."""
    state = dataclasses.replace(test_evaluate.STATE, clients=None)
    model = fp.LogisticRegression().for_federation(federation)
    found, _ = evaluation.evaluate(OwnClass(), state, model, federation, data=BOTH)
    return found["accuracy"][1], found["accuracy"][0]


def test_accuracies_by_hand():
    """L is 1; S and G are shares of examples, not means of clients' accuracies."""
    federation = make_federation()
    personal, shared = accuracies(federation)
    tests, others = SIZES / 2, np.asarray(federation.others)
    assert others.shape == (N, 3)  # ceil(5 / 2)
    union = tests + tests[others].sum(axis=1)
    np.testing.assert_allclose(personal, [np.ones(N), tests / union, tests / 60])
    has_first = (others == 0).any(axis=1) | (np.arange(N) == 0)
    expected = [np.arange(N) == 0, has_first * 5 / union, np.full(N, 5 / 60)]
    np.testing.assert_allclose(shared, expected)


def test_sampled_accuracies_count_the_sampled_owners():
    federation = make_federation(sample_tests=True)
    personal, shared = accuracies(federation)
    for row, name in enumerate(("others", "everybody"), start=1):
        for i, size in enumerate(SIZES // 2):
            owner, number = np.asarray(federation.samples[name])[i, :size].T
            assert len(set(zip(owner, number, strict=True))) == size  # distinct
            assert (number < SIZES[owner] // 2).all()
            near = [i, *federation.others[i].tolist()] if row == 1 else range(N)
            assert set(owner) <= set(near)
            np.testing.assert_allclose(personal[row][i], (owner == i).mean())
            np.testing.assert_allclose(shared[row][i], (owner == 0).mean())
    np.testing.assert_array_equal(personal[0], 1)
    again = make_federation(sample_tests=True)
    jax.tree.map(np.testing.assert_array_equal, federation.samples, again.samples)
    plain = make_federation()
    assert plain.samples is None
    for name in ("others", "malicious"):
        kept = getattr(federation, name), getattr(plain, name)
        np.testing.assert_array_equal(*kept)


@pytest.mark.parametrize("noise", [None, wide(NOISE)])
def test_samples_show_what_their_owners_have(noise):
    """Values on samples are those of a loop over the sampled inputs."""
    sizes = (5, 40, 9, 12, 20, 30)
    federation = test_evaluate.make_federation(noise=noise, sizes=sizes)
    drawn = splits.sampled_tests(
        3, np.asarray(federation.test.num_examples), np.asarray(federation.others)
    )
    samples = jax.tree.map(jnp.asarray, drawn)
    sampled = dataclasses.replace(federation, samples=samples)
    process, state = test_evaluate.Linear(), test_evaluate.STATE
    model, on = test_evaluate.MODEL, ("others", "everybody")
    found, _ = jax.jit(
        lambda given: evaluation.evaluate(process, state, model, given, data=on)
    )(sampled)
    shown = [test_evaluate.inputs_of(federation, i) for i in range(len(sizes))]
    for d, name in enumerate(("others", "everybody")):
        for i, weights in enumerate(test_evaluate.STATE.clients):
            rows = drawn[name][i, : int(federation.test.num_examples[i])]
            x = np.stack([shown[owner][0][number] for owner, number in rows])
            y = np.stack([shown[owner][1][number] for owner, number in rows])
            accuracy, loss = test_evaluate.oracle(weights, x, y)
            assert found["accuracy"][1, d, i] == pytest.approx(accuracy, 1e-12)
            assert found["loss"][1, d, i] == pytest.approx(loss, 1e-12)


def test_samples_are_even():
    num_test = np.arange(1, 301) % 7 + 3
    (sample,) = splits.sampled_tests(0, num_test, None).values()
    owners = np.concatenate([sample[i, :n, 0] for i, n in enumerate(num_test)])
    counts = np.bincount(owners, minlength=300)
    # Each of n points is drawn with probability n_i / n by each client i.
    wanted = num_test * num_test.sum() / num_test.sum()
    squares = (counts - wanted) ** 2 / wanted
    assert abs(squares.mean() - 1) < 5 * np.sqrt(2 / 300)


@pytest.mark.parametrize(("clients", "others"), [(1, 0), (2, 1), (5, 3), (100, 50)])
def test_half_of_the_clients_is_rounded_up(clients, others):
    found = splits.other_clients(0, clients, "half")
    assert (0 if found is None else found.shape[1]) == others


def test_samples_of_several_federations_stack():
    federations = [make_federation(sample_tests=True, seed=seed) for seed in (0, 1)]
    shorter = make_federation(sample_tests=True, seed=2, test_fraction=0.2)
    rows, pool = stacking.federation_rows([*federations, shorter])
    for k, federation in enumerate([*federations, shorter]):
        joined = stacking.join(client_rows.take(rows, jnp.asarray(k)), pool)
        for name, sample in federation.samples.items():
            slots = sample.shape[1]
            np.testing.assert_array_equal(joined.samples[name][:, :slots], sample)
            assert not joined.samples[name][:, slots:].any()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_others": "hlf"}, "did you mean 'half'"),
        ({"num_others": 1.5}, "num_others"),
        ({"sample_tests": 1}, "sample_tests to be true or false"),
    ],
)
def test_wrong_values(fields, sentence):
    with pytest.raises(checks.InputError, match=sentence):
        data.FederationSpec(**fields)
