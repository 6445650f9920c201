"""Histories of random values, made without training."""

import dataclasses

import numpy as np

from fedjax_pfl import results
from fedjax_pfl.results import history

MODELS = ("personal", "global")
DATA = ("test", "validation")


def make_history(
    points=({"algorithm.lam": 0.1, "seed": 0}, {"algorithm.lam": 0.1, "seed": 1}),
    num_clients=20,
    rounds=(0, 5, 10),
    metrics=("accuracy", "loss"),
    diverged_at=None,
    never=(),
    malicious=(),
    algorithm="Flame",
    rng_seed=0,
    models=MODELS,
    kappa=2.0,
    config=(),
):
    """A record of random values; clients in `never` are not selected."""
    rng = np.random.default_rng(rng_seed)
    num_points, num_rounds = len(points), rounds[-1]
    shape = (num_points, len(rounds), len(models), len(DATA), num_clients)
    values = {name: rng.uniform(size=shape).astype(np.float32) for name in metrics}
    stopped = np.full(num_points, -1) if diverged_at is None else np.array(diverged_at)
    by_client = np.repeat(stopped[:, None], num_clients, axis=1)
    for g, when in enumerate(stopped):
        for name in metrics:
            values[name][g, (np.array(rounds) >= when) & (when >= 0)] = np.nan
    selected = np.broadcast_to(
        np.array(rounds)[:, None], (num_points, len(rounds), num_clients)
    ).copy()
    selected[..., list(never)] = 0
    is_malicious = np.zeros((num_points, num_clients), bool)
    is_malicious[:, list(malicious)] = True
    return history.History(
        points=tuple(points),
        models=tuple(models),
        data=DATA,
        rounds=np.array(rounds),
        metrics=values,
        times_selected=selected.astype(np.int32),
        malicious=is_malicious,
        clients=np.arange(num_clients),
        client_names=None,
        evaluated=np.ones(
            (num_points, len(rounds), len(DATA), num_clients), dtype=bool
        ),
        num_train=np.full((num_points, num_clients), 50),
        num_test=np.full((num_points, num_clients), 20),
        num_validation=np.full((num_points, num_clients), 10),
        extra_examples=np.zeros((num_points, num_clients), int),
        class_names=None,
        label_counts=rng.integers(9, size=(num_points, num_clients, 4)),
        leak=np.zeros(num_points),
        collaboration=None,
        series={},
        unseen_models=(),
        unseen={},
        own_cluster=None,
        cluster=None,
        per_round={
            name: rng.uniform(size=(num_points, num_rounds))
            for name in ("bytes_up", "bytes_down")
        },
        diagnostics={"loss": rng.uniform(size=(num_points, len(rounds)))},
        diverged_at=stopped,
        client_diverged_at=by_client,
        stopped_at=np.full(num_points, -1),
        reached_target=np.zeros(num_points, bool),
        dropped=None,
        config={
            "algorithm": algorithm,
            "algorithm.kappa": kappa,
            "aggregator": None,
            "federation.dataset": "digits",
            "federation.partition": "DirichletLabels",
            "model": "MLP",
            "model.widths": [64],
            "execution": "vmap",
            **dict(config),
        },
        compile_seconds=1.5,
        run_seconds=0.25,
    )


def make_result(*histories):
    return results.Result(groups=histories, provenance={"jax": "0", "commit": None})


def with_metrics(record, **metrics):
    """The record with some metrics in place of its own."""
    return dataclasses.replace(record, metrics=record.metrics | metrics)


def pick(table, **wanted):
    """The single value of a table under these conditions."""
    for name, value in wanted.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table["value"].item()


LAST = {"when": "last", "population": "all", "data": "own test"}
