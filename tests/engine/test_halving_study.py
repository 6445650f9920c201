"""Twenty tasks: does halving find what training everything would have found?"""

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import data
from fedjax_pfl.results import selection

KEY = jax.random.key(0, impl="threefry2x32")
ROUNDS, SETTINGS = 27, 27
LAM = {"algorithm.lam": fp.Range(0.01, 10)}
TASKS = [
    *((f"quadratic-{noise}", k) for k in range(2) for noise in (0.5, 1, 2, 3, 4)),
    *((f"digits-{name}", k) for name in ("labels", "dirichlet") for k in range(5)),
]


def prepared(name):
    """Method, model, federation, space and metric of a task."""
    kind, _, what = name.partition("-")
    if kind == "quadratic":
        # The more noise, the more do clients gain from others: the best lam rises.
        source = data.Quadratic(dim=3, examples_per_client=12, noise=float(what))
        spec = fp.FederationSpec(
            source, "by_client", num_clients=12, validation_fraction=0.5
        )
        solver = fp.SGD(learning_rate=0.5, epochs=4, batch_size=12)
        space = LAM | {"algorithm.local.learning_rate": fp.Range(0.01, 1)}
        return fp.Ditto(local=solver), fp.models.Quadratic(), spec, space, "loss"
    partitions = {
        "labels": fp.LabelShards(labels_per_client=4),
        "dirichlet": fp.DirichletLabels(concentration=0.3),
    }
    spec = fp.FederationSpec(
        "digits", partitions[what], num_clients=12, validation_fraction=0.3
    )
    solver = fp.SGD(learning_rate=0.1, batch_size=10)
    space = LAM | {"algorithm.local.learning_rate": fp.Range(0.003, 1)}
    return fp.Ditto(local=solver), fp.LogisticRegression(), spec, space, "accuracy"


def searched(key, name, number, strategy):
    algorithm, model, spec, space, metric = prepared(name)
    process = fp.FederatedProcess(algorithm=algorithm)
    options = {"space": space, "num_settings": SETTINGS, "draw_seed": number}
    options |= {"metric": metric, "seeds": range(3 * number, 3 * number + 3)}
    options |= {"strategy": strategy, "eval_every": 3, "evaluate_on": ("validation",)}
    options |= {"progress": False, "execution": "vmap"}
    return fp.tune(key, process, model, spec, ROUNDS, **options)


def last_scores(tuned, setting, metric):
    """Scores `[seeds]` of a setting that was trained to its end; more is better."""
    rows = selection.endings(tuned.result, list(setting), metric=metric)
    own = [row for row in rows if all(row[n] == v for n, v in setting.items())]
    assert all(row["rounds"] == ROUNDS for row in own) and len(own) == 3
    sign = 1 if metric == "accuracy" else -1
    return sign * np.array([row["score"] for row in own])


@pytest.mark.wide
def test_halving_finds_the_winner_of_the_full_search():
    """Or a setting within one standard error of it, paired by seed."""
    found, shares = 0, []
    for number, (name, repetition) in enumerate(TASKS):
        of_task = (KEY, name, number + repetition)
        full, halved = (searched(*of_task, how) for how in ("random", "halving"))
        metric = full.watched.metric
        best = last_scores(full, full.best, metric)
        gaps = best - last_scores(full, halved.best, metric)
        error = gaps.std(ddof=1) / np.sqrt(len(gaps))
        found += bool(gaps.mean() <= error)
        shares.append(halved.rounds / full.rounds)
    print(f"\n{found} of {len(TASKS)} at {np.mean(shares):.1%} of the rounds")
    assert found >= 0.9 * len(TASKS)
    assert max(shares) <= 0.35
