"""Trainings and grids as a user calls them."""

import dataclasses
from pathlib import Path

import chex
import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import data
from fedjax_pfl.core import client_rows
from fedjax_pfl.engine import grids, simulation, stacking
from fedjax_pfl.engine import programs as engine_programs
from fedjax_pfl.engine.options import Options
from fedjax_pfl.testing import compiled_rounds, toy
from tests import trainings
from tests.engine import specs

KEY = jax.random.key(0)
SGD = fp.SGD(learning_rate=0.2, batch_size=16)


def quiet(function, *args, **kwargs):
    return function(*args, progress=False, **kwargs)


def test_a_grid_groups_static_axes_and_equals_single_runs():
    spec = specs.classes()
    process = fp.FederatedProcess(algorithm=fp.Flame(lam=1.0, kappa=2.0, local=SGD))
    axes = {
        "algorithm.lam": [0.1, 1.0],
        "algorithm.local.batch_size": [4, 16],
        "seed": [1, 2],
    }
    model = fp.LogisticRegression()
    options = {"eval_every": 2, "evaluate_on": "test"}
    result = quiet(fp.grid, KEY, process, model, spec, axes, 4, **options)
    assert [len(group.points) for group in result.groups] == [4, 4]
    for group in result.groups:
        size = group.points[0]["algorithm.local.batch_size"]
        # Two that differ in every axis, and would be mistaken for each other.
        for number in (1, 2):
            point = group.points[number]
            local = fp.SGD(learning_rate=0.2, batch_size=size)
            flame = fp.Flame(lam=point["algorithm.lam"], kappa=2.0, local=local)
            alone = quiet(
                *(fp.simulate, jax.random.fold_in(KEY, point["seed"])),
                *(fp.FederatedProcess(algorithm=flame), model),
                *(specs.classes(seed=point["seed"]).build(), 4),
                **options,
            ).groups[0]
            found = {name: value[[number]] for name, value in group.metrics.items()}
            chex.assert_trees_all_close(found, alone.metrics, rtol=1e-8, atol=1e-8)


def test_a_grid_over_the_partition_shares_the_pool():
    spec = fp.FederationSpec(dataset="digits", num_clients=5)
    axes = {"federation.partition.concentration": [0.3, 100.0], "seed": [0]}
    groups = grids.groups_of(
        KEY, fp.FederatedProcess(algorithm=fp.Local(local=SGD)), fp.MLP(), spec, axes
    )
    assert len(groups) == 1
    rows, pool = stacking.federation_rows(groups[0].federations)
    assert pool is not None
    assert pool.train.x.shape == (1797, 8, 8)
    counts = np.asarray(rows["train"]["num_examples"])
    assert counts.shape == (2, 5)
    assert counts[0].std() > counts[1].std()


def test_seeds_of_generated_data_have_pools_of_their_own():
    spec = specs.classes()
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=SGD))
    groups = grids.groups_of(
        KEY, process, fp.LogisticRegression(), spec, {"seed": [0, 1]}
    )
    assert len(groups) == 1
    rows, pool = stacking.federation_rows(groups[0].federations)
    assert pool.train.x is None
    assert rows["pool"].train.x.shape[0] == 2


QUADRATIC = fp.FederationSpec(data.Quadratic(dim=3), "by_client", num_clients=4)


def quadratics(rates):
    """FedAvg with these learning rates, evaluated after each of six rounds."""
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=SGD))
    axes = {"algorithm.local.learning_rate": rates}
    given = KEY, process, fp.models.Quadratic(), QUADRATIC, axes, 6
    return quiet(fp.grid, *given, eval_every=1, evaluate_on="test")


def test_a_diverging_point_is_listed_and_the_others_go_on():
    result = quadratics([0.2, 1e200])
    group = result.groups[0]
    assert group.diverged_at[0] == -1
    round_number = group.diverged_at[1]
    assert 1 <= round_number <= 3
    loss = group.metrics["loss"]
    assert np.isfinite(loss[0]).all()
    assert np.isnan(loss[1, round_number:]).all()
    status = result.table().query("`algorithm.local.learning_rate` > 1")["status"]
    assert set(status) == {f"diverged at round {round_number}"}


def test_a_run_whose_points_all_diverge_ends_early():
    group = quadratics([1e200, 1e201]).groups[0]
    assert group.rounds.tolist() == list(range(max(group.diverged_at) + 1))
    assert (group.diverged_at > 0).all()


def test_evaluation_equals_numpy():
    federation = toy.make_federation()
    process = fp.FederatedProcess(
        algorithm=fp.Flame(local=SGD), participation=fp.UniformCohort(size=3)
    )
    group = compiled_rounds.group(KEY, process, fp.LogisticRegression(), federation)
    options = Options(
        num_rounds=3,
        eval_every=3,
        execution="vmap",
        evaluate_on=("test", "train"),
        diagnostics=True,
    )
    record, run = trainings.train(group, options)
    assert record.models == ("global", "personal")
    x, y = np.asarray(federation.test.x), np.asarray(federation.test.y)
    index = np.asarray(federation.test.index)
    server, clients = run.states.server, run.states.clients.theta
    for client, count in enumerate(toy.COUNTS):
        rows = index[client, :count]
        own = client_rows.take(client_rows.take(clients, 0), client)
        for number, params in enumerate((client_rows.take(server, 0), own)):
            head = jax.tree.map(np.asarray, params["head"])
            logits = x[rows] @ head["kernel"].T + head["bias"]
            hits = (logits.argmax(axis=1) == y[rows]).mean()
            shifted = logits - logits.max(axis=1, keepdims=True)
            losses = (
                np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(count), y[rows]]
            )
            place = 0, -1, number, slice(None), client
            np.testing.assert_array_equal(record.metrics["accuracy"][place], hits)
            found = record.metrics["loss"][place]
            np.testing.assert_allclose(found, losses.mean(), rtol=1e-12)
    assert record.times_selected[0, -1].sum() == 9
    assert record.per_round["bytes_up"].tolist() == [[360.0] * 3]  # 3 clients x 15 x 8
    assert record.per_round["bytes_down"].tolist() == [[360.0] * 3]
    cohort_examples = record.per_round["gradient_evaluations"].sum()
    assert cohort_examples == (record.times_selected[0, -1] * toy.COUNTS).sum()
    assert record.diagnostics["residual_theta"].shape == (1, 2)


def test_same_numbers_for_the_same_key_and_others_for_another():
    """And the user's key survives donation."""
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=fp.SGD(batch_size=4)))
    given = process, fp.LogisticRegression(), specs.classes().build(), 3
    one, again, other = (
        quiet(fp.simulate, key, *given, evaluate_on="test").groups[0].metrics["loss"]
        for key in (KEY, KEY, jax.random.key(1))
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert jax.random.key_data(KEY).shape == (2,)


def test_a_process_runs_on_a_federation_without_validation():
    federation = specs.classes(validation_fraction=0.0).build()
    process = fp.FederatedProcess(algorithm=fp.Flame(local=SGD))
    group = quiet(
        fp.simulate, KEY, process, fp.LogisticRegression(), federation, 2
    ).groups[0]
    split = group.data.index("validation")
    assert np.isnan(group.metrics["loss"][:, :, :, split]).all()
    assert np.isfinite(group.metrics["loss"][:, :, :, group.data.index("test")]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_rounds": 0}, "num_rounds to be a whole number of at least 1, got 0"),
        ({"eval_every": 0}, "eval_every"),
        ({"execution": "fast"}, "Unknown execution 'fast'"),
        ({"execution": "chunk"}, "Expected a chunk size"),
        ({"execution": "chunk=0"}, "got 'chunk=0'"),
        ({"execution": "shard=99"}, "at most 8 devices"),
        ({"evaluate_on": ("tset",)}, "did you mean 'test'"),
        ({"key": 0}, "jax.random.key"),
        ({"model": fp.LogisticRegression()}, "needs classes"),
    ],
)
def test_wrong_arguments_get_one_sentence(change, message):
    arguments = {
        "key": KEY,
        "process": fp.FederatedProcess(algorithm=fp.FedAvg(local=SGD)),
        "model": fp.models.Quadratic(),
        "federation": QUADRATIC.build(),
        "num_rounds": 2,
    }
    with pytest.raises(fp.InputError, match=message) as error:
        quiet(fp.simulate, **(arguments | change))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"algorithm.lamda": [1.0]}, "did you mean 'lam'"),
        ({"algorithm.lam": []}, "at least one value"),
        ({"algorithm.kappa": [0.0]}, "kappa to be a finite number above 0, got 0.0"),
        ({"algorithm.lam": [float("nan")]}, "got nan"),
        ({"participation.size": [3]}, "Unknown field of AllClients 'size'"),
        ({"federation.num_clients": [0]}, "num_clients"),
        ({"seed": [-1]}, "seed"),
        ({"model.width": [3]}, "did you mean 'widths'|width"),
    ],
)
def test_wrong_axes_get_one_sentence(axes, message):
    process = fp.FederatedProcess(algorithm=fp.Flame(local=SGD))
    with pytest.raises(fp.InputError, match=message):
        quiet(fp.grid, KEY, process, fp.MLP(), specs.classes(), axes, 2)


def test_a_cohort_larger_than_the_population_is_refused():
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=SGD), participation=fp.UniformCohort(size=7)
    )
    with pytest.raises(fp.InputError, match="7"):
        quiet(
            fp.simulate,
            KEY,
            process,
            fp.LogisticRegression(),
            specs.classes().build(),
            2,
        )


def test_clients_without_training_examples_are_refused():
    federation = toy.make_federation()
    counts = federation.train.num_examples.at[3].set(0)
    train = dataclasses.replace(federation.train, num_examples=counts)
    federation = dataclasses.replace(federation, train=train)
    process = fp.FederatedProcess(algorithm=fp.Flame(local=SGD))
    with pytest.raises(
        fp.InputError, match="1 of 8 have none, the first of them client 3"
    ):
        quiet(fp.simulate, KEY, process, fp.LogisticRegression(), federation, 2)


@pytest.mark.skipif(
    not engine_programs._LIMIT.exists(), reason="the limit is that of Linux"
)
@pytest.mark.wide
def test_a_grid_of_many_programs_gives_their_memory_back(monkeypatch, tmp_path):
    """A second group takes no more maps than one; it would keep hundreds."""
    (tmp_path / "limit").write_text("1")
    monkeypatch.setattr(engine_programs, "_LIMIT", tmp_path / "limit")
    monkeypatch.setattr(simulation, "_COUNT_EVERY", 1)
    process, model = (
        fp.FederatedProcess(algorithm=fp.FedAvg(local=SGD)),
        fp.LogisticRegression(),
    )

    def maps_after(sizes):
        axes = {"algorithm.local.batch_size": sizes}
        quiet(fp.grid, KEY, process, model, specs.classes(), axes, 1)
        return len(Path("/proc/self/maps").read_text().splitlines())

    before = maps_after([1])
    assert maps_after([2]) < before + 100
