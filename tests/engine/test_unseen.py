"""Clients that never train: held out, evaluated at the end, and without a trace."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms, data
from fedjax_pfl.core import checks
from fedjax_pfl.data import splits
from fedjax_pfl.engine import evaluation
from fedjax_pfl.results import comparison
from fedjax_pfl.testing import compiled_rounds

N, C, DIM = 8, 3, 4
SIZES = (20, 31, 24, 40, 22, 27, 36, 25)
KEY = jax.random.key(0)
SEED, HELD_OUT = 0, 0.25


def held_out(fraction=HELD_OUT, seed=SEED):
    return np.flatnonzero(splits.unseen_clients(seed, N, fraction))


def make_dataset(shift=0.0, swaps=False):
    """Clients in order, but for held-out ones, which come last.

    Their values are shifted, and each may have as many examples as the other.
    """
    last = held_out()
    owners = [c for c in range(N) if c not in last] + last.tolist()
    sizes = [SIZES[c] for c in owners]
    if swaps:
        sizes[-2:] = sizes[:-3:-1]
    owner, rng = np.repeat(owners, sizes), np.random.default_rng(0)
    is_last = np.isin(owner, last)
    x = rng.normal(size=(len(owner), DIM)) + shift * is_last[:, None]
    y = (np.arange(len(owner)) + is_last * (shift > 0)) % C
    return data.Dataset(name="hand-made", x=x, y=y, num_classes=C, client=owner)


@dataclasses.dataclass(frozen=True)
class Source:
    """The hand-made data, for grids."""

    name = "hand-made"

    def load(self, **_):
        return make_dataset()


def make_federation(shift=0.0, swaps=False, **fields):
    options = {"unseen_fraction": HELD_OUT, "test_fraction": 0.4} | fields
    return data.from_dataset(
        make_dataset(shift, swaps), fp.ByClient(), num_clients=N, **options
    )


def process_of(algorithm, **parts):
    return fp.FederatedProcess(algorithm=algorithm, **parts)


def test_unseen_clients_are_none_of_the_federation():
    federation, whole = make_federation(), make_federation(unseen_fraction=0.0)
    unseen = federation.unseen
    assert whole.unseen is None and whole.num_clients == N
    assert federation.num_clients == 6 and unseen.num_clients == 2
    last = held_out()
    rest = np.setdiff1d(np.arange(N), last)
    assert federation.train.client_id.tolist() == list(range(6))
    assert unseen.train.client_id.tolist() == [6, 7]
    for part, rows in ((federation, rest), (unseen, last)):
        for name in ("train", "validation", "test"):
            one, all_rows = getattr(part, name), getattr(whole, name)
            counts = np.asarray(all_rows.num_examples)[rows]
            np.testing.assert_array_equal(one.num_examples, counts)
            for k, row in enumerate(rows):
                index = all_rows.index[row, : counts[k]]
                np.testing.assert_array_equal(one.index[k, : counts[k]], index)


def test_malicious_clients_and_others_are_among_those_that_train():
    federation = make_federation(malicious_fraction=0.5, num_others=5)
    assert federation.malicious.sum() == 3 and not federation.unseen.malicious.any()
    assert federation.others.shape == (6, 5) and federation.others.max() == 5


@pytest.mark.parametrize("fraction", [0.01, 0.99, 1.0])
def test_shares_that_leave_nobody_are_refused(fraction):
    with pytest.raises(checks.InputError, match="Expected unseen_fraction to leave"):
        make_federation(unseen_fraction=fraction)


def test_partitions_with_shared_examples_are_refused():
    with pytest.raises(checks.InputError, match="without shared examples"):
        fp.load_federation(
            "digits", "leaky_dirichlet_labels", num_clients=5, unseen_fraction=0.4
        )


def descended(params, batch, rate, epochs):
    """Full gradient descent on softmax cross-entropy."""
    kernel, bias = (np.array(params["head"][n], float) for n in ("kernel", "bias"))
    x, y = np.asarray(batch.x, float), np.eye(C)[np.asarray(batch.y)]
    for _ in range(epochs):
        logits = x @ kernel.T + bias
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = (p / p.sum(axis=1, keepdims=True) - y) / len(x)
        kernel, bias = kernel - rate * error.T @ x, bias - rate * error.sum(axis=0)
    return kernel, bias


def accuracy(kernel, bias, batch):
    outputs = np.asarray(batch.x, float) @ kernel.T + bias
    return np.mean(outputs.argmax(axis=1) == np.asarray(batch.y))


@pytest.mark.parametrize("own", [False, True])
def test_values_are_those_of_numpy(own):
    """Without a rule of its own, five epochs of full gradients from the global model;
    with one, what it does.
    """
    federation = make_federation()
    model = fp.LogisticRegression().for_federation(federation)
    solver = fp.SGD(learning_rate=0.5, batch_size=100)
    tuned = dataclasses.replace(solver, epochs=2) if own else None
    process = process_of(fp.FedAvg(local=solver, fine_tune=tuned))
    state = compiled_rounds.init(process, KEY, model, federation)
    drawn = jax.random.normal(jax.random.key(1), (C, DIM))
    params = {"head": {"kernel": drawn, "bias": jnp.arange(3.0)}}
    state = dataclasses.replace(state, server=params)
    rule = evaluation.unseen_rule(process, state, model, federation)
    adapted = "fine-tuned (own rule)" if own else "global + 5 local epochs"
    assert rule.names == ("global", adapted)

    @jax.jit
    def unseen_metrics(state, federation):
        counted = (federation.population, federation.unseen)
        return evaluation.unseen(process, state, model, *counted, rule)

    found = unseen_metrics(state, federation)["accuracy"]
    unseen = federation.unseen
    for client in range(2):
        test, train = unseen.test.examples(client), unseen.train.examples(client)
        start = descended(params, train, 0.5, 0)
        assert found[0, client] == pytest.approx(accuracy(*start, test))
        end = descended(params, train, 0.5, 2 if own else 5)
        assert found[1, client] == pytest.approx(accuracy(*end, test))


def test_personal_models_of_newcomers_start_where_there_is_no_global_one():
    federation = make_federation()
    model = fp.LogisticRegression().for_federation(federation)
    names = {}
    for name in ("local", "fedamp", "per_fedavg", "ditto", "majority"):
        process = process_of(algorithms.ALGORITHMS[name]())
        state = compiled_rounds.init(process, KEY, model, federation)
        rule = evaluation.unseen_rule(process, state, model, federation)
        names[name] = rule.names
    assert names == {
        "local": ("personal + 5 local epochs",),
        "fedamp": ("personal + 5 local epochs",),
        "per_fedavg": ("global", "personal (own rule)"),
        "ditto": ("global", "global + 5 local epochs"),
        "majority": ("personal (own rule)",),
    }


def test_their_data_leave_no_trace_in_the_training():
    records = []
    for shift, swaps in ((0.0, False), (3.0, True)):
        run = (KEY, process_of(fp.Ditto()), fp.LogisticRegression())
        federation = make_federation(shift, swaps)
        options = {"eval_every": 1, "evaluate_on": "test", "progress": False}
        result = fp.simulate(*run, federation, 3, **options)
        records.append(result.groups[0])
    one, other = records
    assert (one.num_train == other.num_train).all()
    np.testing.assert_equal(one.metrics, other.metrics)
    np.testing.assert_equal(one.per_round, other.per_round)
    assert one.unseen_models == other.unseen_models
    assert not np.array_equal(one.unseen["loss"], other.unseen["loss"])


@pytest.mark.wide
def test_grids_cohorts_and_devices(tmp_path):
    """Points of a grid agree with each other in every execution mode; the table has
    their population, and files keep it.
    """
    spec = fp.FederationSpec(
        Source(), fp.ByClient(), num_clients=N, unseen_fraction=HELD_OUT
    )
    process = process_of(fp.Ditto(), participation=fp.UniformCohort(size=2))
    axes = {"seed": [0, 1], "federation.unseen_fraction": [0.0, HELD_OUT]}
    run = (KEY, process, fp.LogisticRegression(), spec)
    plain = fp.grid(*run, axes, 2, progress=False)
    without, group = plain.groups
    assert without.unseen == {} and without.unseen_models == ()
    assert group.unseen["accuracy"].shape == (2, 2, 2)
    assert group.times_selected[:, -1].sum(axis=-1).tolist() == [4, 4]
    few = {"seed": [0, 1], "federation.unseen_fraction": [HELD_OUT]}
    for how in ("chunk=1", "shard=2"):
        again = fp.grid(*run, few, 2, execution=how, progress=False).groups[0]
        chex.assert_trees_all_close(again.unseen, group.unseen, rtol=1e-5)
    table = plain.table()
    shown = table[(table["population"] == "unseen") & (table["stat"] == "mean")]
    assert len(shown) == 2 * 2 * 2 and set(shown["when"]) == {"last"}
    is_one = (shown["seed"] == 1) & (shown["metric"] == "accuracy")
    expected = group.unseen["accuracy"][1].mean(axis=-1)
    np.testing.assert_allclose(shown.loc[is_one, "value"], expected)
    plain.save(tmp_path / "out")
    assert fp.Result.load(tmp_path / "out") == plain
    rows = comparison.unseen(plain)
    assert [row[2] for row in rows] == list(group.unseen_models)
    assert "Clients that never trained" in str(plain)


@pytest.mark.wide
def test_resumed_trainings_have_them(tmp_path):
    run = (KEY, process_of(fp.FedAvg()), fp.LogisticRegression(), make_federation(), 2)
    whole = fp.simulate(*run, progress=False)
    options = fp.Checkpoints(tmp_path / "run", min_seconds=0)
    with pytest.raises(fp.Interrupted):
        fp.simulate(*run, checkpoints=options, max_minutes=1e-9, progress=False)
    for _ in range(2):  # to the end, and from the end
        resumed = fp.simulate(*run, checkpoints=options, progress=False)
        np.testing.assert_equal(resumed.groups[0].unseen, whole.groups[0].unseen)
