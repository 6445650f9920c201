"""Ranking of methods: which setting counts, what is printed, who is best."""

import dataclasses

import numpy as np
import pytest

from fedjax_pfl import results
from fedjax_pfl.core import checks
from fedjax_pfl.results import comparison, selection
from tests import histories


def two_settings():
    """Two settings whose global model validates best at the one that is personal's
    worst, as it would decide if the best of all models, or the hybrid, chose.
    """
    points = tuple({"seed": s, "algorithm.lam": x} for x in (1.0, 3.0) for s in (0, 1))
    made = histories.make_history(points=points)
    personal, shared = (made.models.index(n) for n in ("personal", "global"))
    validation = made.data.index("validation")
    accuracy, loss = (made.metrics[n].copy() for n in ("accuracy", "loss"))
    accuracy[:, -1, :, validation] = 0.5
    accuracy[:2, -1, personal, validation] = 0.6  # lam = 1
    accuracy[2:, -1, shared, validation] = 0.9  # lam = 3, and so its hybrid's
    loss[:, -1, :, validation] = 1.0
    loss[:2, -1, personal, validation] = 2.0
    metrics = made.metrics | {"accuracy": accuracy, "loss": loss}
    return histories.make_result(dataclasses.replace(made, metrics=metrics))


@pytest.mark.parametrize(
    "model, metric, lam",
    [
        (None, None, 1.0),
        ("personal", "accuracy", 1.0),
        ("global", None, 3.0),
        (None, "loss", 3.0),
    ],
)
def test_settings_are_chosen_by_one_model_and_metric(model, metric, lam):
    best = selection.best_settings(two_settings(), model, metric)
    assert best["algorithm.lam"].tolist() == [lam]


@pytest.mark.parametrize("model", ["hybrid (validation)", "personnal"])
def test_hybrids_and_unknown_models_choose_nothing(model):
    with pytest.raises(checks.InputError, match="model to choose by"):
        selection.best_settings(two_settings(), model)


def test_ranking_is_by_the_mean_over_seeds():
    ranked = comparison.rank(two_settings())
    assert ranked is not None
    (environment,) = ranked.environments
    values = [row.value for row in environment.rows]
    assert values == sorted(values, reverse=True) and len(values) > 1
    assert all("lam = 1" in row.setting for row in environment.rows)


def of_two(gap):
    """Two methods, one above the other by a gap for every seed and client."""
    points = tuple({"seed": s} for s in range(3))
    low = histories.make_history(points=points, models=("global",))
    rng = np.random.default_rng(0)
    accuracy = np.broadcast_to(
        rng.uniform(0.4, 0.5, (3, 1, 1, 1, 1)), low.metrics["accuracy"].shape
    ).astype(np.float32)
    noise = np.array([-1e-3, 0.0, 1e-3], np.float32).reshape(3, 1, 1, 1, 1)
    fedavg = dataclasses.replace(
        low,
        config=low.config | {"algorithm": "FedAvg"},
        metrics=low.metrics | {"accuracy": accuracy},
    )
    other = dataclasses.replace(
        low,
        config=low.config | {"algorithm": "Scaffold"},
        metrics=low.metrics | {"accuracy": accuracy + np.float32(gap) + noise},
    )
    return histories.make_result(fedavg, other)


def test_shares_of_clients_count_who_gains_and_loses():
    points = ({"seed": 0}, {"seed": 1})
    made = histories.make_history(points=points, models=("personal",))
    local = made.metrics["accuracy"].copy()
    local[..., 0, :] = 0.5
    other = local.copy()
    other[0, -1, 0, 0, 0] = 0.75  # one client of one seed gains,
    other[:, -1, 0, 0, 1] = 0.25  # another loses with both
    made_of = [
        dataclasses.replace(
            made,
            config=made.config | {"algorithm": name},
            metrics=made.metrics | {"accuracy": accuracy},
        )
        for name, accuracy in (("Local", local), ("Ditto", other))
    ]
    ranked = comparison.rank(histories.make_result(*made_of))
    assert ranked is not None
    assert ranked.measures[-2:] == ("better / worse off", "status")
    rows = {row.algorithm: row for row in ranked.environments[0].rows}
    clients = 2 * local.shape[-1]
    assert rows["Ditto"].cells[-2] == f"{100 / clients:.0f} % / {200 / clients:.0f} %"
    assert rows["Local"].cells[-2] == "–"


def test_printed_results_name_the_best_and_how_sure_that_is():
    text = str(of_two(0.1))
    assert "The global model of Scaffold has the best mean accuracy" in text
    # Student's t with two degrees of freedom: 4.3027 * 0.001 / sqrt(3) = 0.0025.
    assert "ahead of the global model of FedAvg (+0.1000 [+0.0975, +0.1025])" in text
    starred = [line for line in text.splitlines() if line.startswith("*")]
    assert len(starred) == 1 and "Scaffold" in starred[0]
    assert "not clearly ahead of" in str(of_two(0.001))


def test_merged_results_have_all_groups():
    low, high = of_two(0.1).groups
    one, other = (histories.make_result(group) for group in (low, high))
    assert str(results.Result.merge([one, other])) == str(of_two(0.1))
    for wrong in ([], [one, low]):
        with pytest.raises(checks.InputError, match="Expected one Result or more"):
            results.Result.merge(wrong)
