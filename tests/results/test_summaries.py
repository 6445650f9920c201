"""Statistics, hybrid models and best rounds against numbers worked out by hand."""

import numpy as np
import pytest

from fedjax_pfl.results import summaries
from tests.histories import LAST, make_history, make_result, pick, with_metrics


def test_statistics_by_hand():
    accuracy = np.arange(1, 31) / 30
    found = summaries.statistics("accuracy", accuracy)
    assert found["worst 10 %"] == pytest.approx((1 + 2 + 3) / 90)
    assert found["min"] == pytest.approx(1 / 30)
    assert found["median"] == pytest.approx(15.5 / 30)
    assert found["mean"] == pytest.approx(15.5 / 30)
    assert found["25 %"] == pytest.approx((1 + 0.25 * 29) / 30)  # linear interpolation
    assert found["90 %"] == pytest.approx((1 + 0.9 * 29) / 30)
    assert found["variance"] == pytest.approx((30**2 - 1) / 12 / 900)
    assert found["std"] == pytest.approx(np.sqrt((30**2 - 1) / 12) / 30)
    loss = summaries.statistics("loss", accuracy)
    assert loss["worst 10 %"] == pytest.approx((30 + 29 + 28) / 90)
    assert loss["min"] == pytest.approx(1 / 30)


def test_angles_in_closed_form():
    def angle(*values):
        return summaries.statistics("accuracy", np.array(values))["angle"]

    assert angle(0.7, 0.7, 0.7) == pytest.approx(0, abs=1e-6) and angle(0.0, 0.0) == 0
    assert angle(0.3, 0.0) == pytest.approx(45)
    assert angle(0.0, 0.0, 0.9) == pytest.approx(np.degrees(np.arccos(1 / np.sqrt(3))))
    assert angle(1.0, 3.0) == pytest.approx(np.degrees(np.arctan(1 / 2)))
    assert angle(0.2, 0.6) == pytest.approx(angle(1.0, 3.0))  # of the direction only
    assert angle(1.0, 1 + 1e-9) == pytest.approx(np.degrees(5e-10), rel=1e-6)


def test_worst_tenth_is_at_least_one_client():
    assert summaries.statistics("accuracy", np.array([0.5, 0.2]))["worst 10 %"] == 0.2
    assert summaries.statistics("loss", np.array([0.5, 0.2]))["worst 10 %"] == 0.5


def test_statistics_of_nothing_and_of_nan_are_nan():
    assert np.isnan(list(summaries.statistics("loss", np.array([])).values())).all()
    with_nan = summaries.statistics("loss", np.array([1.0, np.nan]))
    assert np.isnan(list(with_nan.values())).all()


def test_table_agrees_with_a_loop():
    record = make_history(never=(3,), malicious=(0, 1), num_clients=7)
    table = make_result(record).table()
    members = {
        "all": range(7),
        "honest": range(2, 7),
        "participants": [0, 1, 2, 4, 5, 6],
        "never selected": [3],
    }
    assert set(table["population"]) == set(members)
    for population, clients in members.items():
        for metric in ("accuracy", "loss"):
            wanted = np.mean(
                [record.metrics[metric][1, -1, 1, 0, i] for i in clients], dtype=float
            )
            conditions = LAST | {"population": population, "metric": metric}
            found = pick(table, **conditions, seed=1, model="global", stat="mean")
            assert found == pytest.approx(wanted, rel=1e-6)


def test_clients_without_examples_do_not_count():
    record = make_history(points=({"seed": 0},), num_clients=4)
    accuracy = record.metrics["accuracy"].copy()
    accuracy[:, :, :, 0, 2] = np.nan  # no test examples
    table = make_result(with_metrics(record, accuracy=accuracy)).table()
    found = pick(table, **LAST, metric="accuracy", model="personal", stat="mean")
    assert found == pytest.approx(accuracy[0, -1, 0, 0, [0, 1, 3]].mean(), rel=1e-6)


def test_a_model_that_became_nan_is_not_skipped():
    record = make_history(points=({"seed": 0},), num_clients=4)
    loss = record.metrics["loss"].copy()
    loss[0, -1, 0, 0, 2] = np.nan
    table = make_result(with_metrics(record, loss=loss)).table()
    assert np.isnan(pick(table, **LAST, metric="loss", model="personal", stat="mean"))
    assert np.isfinite(pick(table, **LAST, metric="loss", model="global", stat="mean"))


def two_clients(personal, shared, metrics=("accuracy", "loss")):
    """A record with one point and round; arguments by metric: (test, validation)."""
    record = make_history(
        points=({"seed": 0},), num_clients=2, rounds=(0,), metrics=metrics
    )
    values = {m: np.array([[[personal[m], shared[m]]]], float) for m in metrics}
    return with_metrics(record, **values)


PERSONAL = {"accuracy": ([0.9, 0.6], [0.7, 0.8]), "loss": ([1.0, 2.0], [1.0, 1.0])}
SHARED = {"accuracy": ([0.5, 0.8], [0.8, 0.8]), "loss": ([3.0, 1.5], [0.5, 0.5])}


def test_hybrids_by_hand():
    table = make_result(two_clients(PERSONAL, SHARED)).table()
    means = {"stat": "mean", **LAST}
    # Validation accuracy sends client 0 to the global model; client 1 has a tie.
    by_validation = {"model": "hybrid (validation)"} | means
    assert pick(table, **by_validation, metric="accuracy") == pytest.approx(0.55)
    assert pick(table, **by_validation, metric="loss") == pytest.approx(2.5)
    oracle = {"model": "hybrid (oracle)"} | means
    assert pick(table, **oracle, metric="accuracy") == pytest.approx(0.85)
    assert pick(table, **oracle, metric="loss") == pytest.approx(1.25)


def test_hybrid_without_accuracy_is_chosen_by_loss():
    table = make_result(two_clients(PERSONAL, SHARED, metrics=("loss",))).table()
    found = pick(table, **LAST, model="hybrid (validation)", metric="loss", stat="mean")
    assert found == pytest.approx((3.0 + 1.5) / 2)


def test_no_hybrid_without_both_models():
    table = make_result(make_history(models=("personal",))).table()
    assert set(table["model"]) == {"personal"}


def test_best_round_is_chosen_by_validation_and_judged_on_test():
    record = make_history(points=({"seed": 0},), num_clients=2)
    accuracy = np.zeros_like(record.metrics["accuracy"])
    accuracy[0, :, 0, 0] = np.array([0.1, 0.3, 0.2])[:, None]  # test, by round
    accuracy[0, :, 0, 1] = np.array([0.1, 0.4, 0.9])[:, None]  # validation
    record = with_metrics(record, accuracy=accuracy, loss=record.metrics["loss"])
    table = make_result(record).table()
    at = LAST | {"metric": "accuracy", "model": "personal", "stat": "mean"}
    assert pick(table, **at | {"when": "last"}) == pytest.approx(0.2)
    assert pick(table, **at | {"when": "best (validation)"}) == pytest.approx(0.2)
    assert pick(table, **at | {"when": "best (oracle)"}) == pytest.approx(0.3)
    # Losses are reported at the round that accuracy chose.
    found = pick(table, **at | {"metric": "loss", "when": "best (oracle)"})
    wanted = record.metrics["loss"][0, 1, 0, 0].mean()
    assert found == pytest.approx(wanted, rel=1e-6)


def test_best_round_by_loss_is_the_smallest():
    record = make_history(points=({"seed": 0},), num_clients=3, metrics=("loss",))
    table = make_result(record).table()
    means = record.metrics["loss"][0, :, 0].mean(-1)  # [E, data]
    at = LAST | {"model": "personal", "stat": "mean", "when": "best (validation)"}
    found = pick(table, **at)
    assert found == pytest.approx(means[means[:, 1].argmin(), 0], rel=1e-6)


def test_data_without_examples_choose_nothing():
    record = make_history(points=({"seed": 0},))
    metrics = {name: values.copy() for name, values in record.metrics.items()}
    for values in metrics.values():
        values[:, :, :, 1] = np.nan  # no validation examples
    table = make_result(with_metrics(record, **metrics)).table()
    assert set(table["data"]) == {"own test"}
    assert set(table["when"]) == {"last", "best (oracle)"}
    assert set(table["model"]) == {"personal", "global", "hybrid (oracle)"}


def test_each_client_may_stop_at_its_own_best_round():
    record = make_history(points=({"seed": 0},), num_clients=3)
    accuracy = record.metrics["accuracy"]
    accuracy[0, :, 0, 1] = [[0.9, 0.1, np.nan], [0.2, 0.3, np.nan], [0.9, 0.2, np.nan]]
    table = make_result(record).table()
    when = {"when": "best of each client (validation)", "stat": "mean"}
    at = LAST | {"metric": "accuracy", "model": "personal"} | when
    test = accuracy[0, :, 0, 0]
    wanted = np.mean([test[0, 0], test[1, 1], test[2, 2]])  # the last one validates not
    assert pick(table, **at) == pytest.approx(wanted, rel=1e-6)
    models = set(table[table["when"] == when["when"]]["model"])
    assert models == {"personal"}  # a global model has one round for all
