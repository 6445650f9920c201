"""Bytes, steps and time of trainings, and intervals of clients' accuracies."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import fedjax_pfl as fp
from fedjax_pfl.core import checks
from fedjax_pfl.results import metrics
from tests import histories

ROUNDS = (0, 2, 4, 6)
SENT = ("bytes_up", "bytes_down")


def of_curve(curve, malicious=(), dtype="float32", **fields):
    """A history whose validation accuracies are a curve, shifted by their client."""
    record = histories.make_history(
        points=({"seed": 0},), rounds=ROUNDS, num_clients=5, malicious=malicious
    )
    accuracy = record.metrics["accuracy"].astype(float)
    accuracy[0, :, 0, 1] = np.array(curve)[:, None] + np.linspace(-0.1, 0.1, 5)
    accuracy[0, :, 1, 1] = 0.0
    rng = np.random.default_rng(1)
    per_round = {name: rng.integers(1, 9, (1, 6)).astype(float) for name in SENT}
    per_round["client_steps"] = rng.integers(1, 9, (1, 6)).astype(float)
    per_round["gradient_evaluations"] = rng.integers(10, 99, (1, 6)).astype(float)
    return dataclasses.replace(
        record,
        metrics=record.metrics | {"accuracy": accuracy},
        per_round=per_round,
        config=record.config | {"parameter_dtype": dtype},
        **fields,
    )


def test_intervals_are_those_of_scipy():
    counts = np.array([1, 1, 7, 7, 7, 40, 40, 1000])
    hits = np.array([0, 1, 0, 3, 7, 1, 39, 500])
    low, high = metrics.wilson(hits / counts, counts)
    for k in range(len(counts)):
        found = stats.binomtest(int(hits[k]), int(counts[k]))
        expected = found.proportion_ci(method="wilson")
        assert (low[k], high[k]) == pytest.approx((expected.low, expected.high))
    assert np.isnan(metrics.wilson(np.array([0.5, np.nan]), np.array([0, 3]))).all()


def test_clients_have_intervals_of_their_accuracies():
    rows = histories.make_result(histories.make_history()).clients()
    tail = ["client", "name", "num_train", "num_test", "value", "low", "high"]
    assert list(rows.columns[-7:]) == tail
    is_accuracy = rows["metric"] == "accuracy"
    found = rows[is_accuracy].iloc[3]
    p, n, z = found["value"], 20, stats.norm.ppf(0.975)
    # The ends are where the score test of the true probability is at its limit.
    for end in (found["low"], found["high"]):
        assert abs(p - end) == pytest.approx(z * np.sqrt(end * (1 - end) / n))
    assert rows.loc[~is_accuracy, ["low", "high"]].isna().all(axis=None)
    assert (rows[is_accuracy]["low"] < rows[is_accuracy]["value"]).all()


def test_targets_are_reached_in_the_first_round_that_validates_so():
    record = of_curve([0.1, 0.5, 0.45, 0.8])
    table = histories.make_result(record).to_target(0.48)
    assert list(table["model"]) == ["personal", "global"]
    found = table.iloc[0]
    assert found["rounds"] == 2 and found["validation"] == pytest.approx(0.5)
    expected = record.metrics["accuracy"][0, 1, 0, 0].mean()
    assert found["test"] == pytest.approx(expected)
    for name in SENT:
        assert found[name] == record.per_round[name][0, :2].sum()
    assert found["client_steps"] == record.per_round["client_steps"][0, :2].sum()
    gradients = record.per_round["gradient_evaluations"]
    assert found["gradients"] == gradients[0, :2].sum()
    assert found["seconds"] == pytest.approx(record.run_seconds * 2 / 6)
    never = table.iloc[1, list(table.columns).index("rounds") :]
    assert never.isna().all()


def test_targets_count_honest_clients_and_start_at_round_zero():
    malicious = histories.make_result(of_curve([0.1, 0.5, 0.6, 0.8], malicious=(4,)))
    # Without the last client the means are lower by 0.025.
    assert malicious.to_target(0.49)["rounds"].iloc[0] == 4
    found = malicious.to_target(0.0).iloc[0]
    assert (found["rounds"], found["bytes_up"], found["seconds"]) == (0, 0, 0)


def test_losses_reach_a_target_from_above():
    record = of_curve([0.9, 0.7, 0.3, 0.5])
    record = dataclasses.replace(record, metrics={"loss": record.metrics["accuracy"]})
    table = histories.make_result(record).to_target(0.5)
    assert table["rounds"].iloc[0] == 4 and set(table["metric"]) == {"loss"}


def test_what_is_repeated_after_early_stopping_reaches_nothing():
    record = of_curve([0.1, 0.2, 0.3, 0.8], stopped_at=np.array([4]))
    result = histories.make_result(record)
    assert result.to_target(0.5)["rounds"].isna().all()
    assert result.to_target(0.3)["seconds"].iloc[0] == record.run_seconds


@pytest.mark.parametrize("target", [1.2, -0.1, float("nan"), "0.5"])
def test_wrong_targets_are_refused(target):
    with pytest.raises(checks.InputError, match="target"):
        histories.make_result(of_curve([0.1, 0.2, 0.3, 0.4])).to_target(target)


def test_targets_need_validation_data():
    record = of_curve([0.1, 0.2, 0.3, 0.4])
    nothing = {name: v.copy() for name, v in record.metrics.items()}
    for values in nothing.values():
        values[:, :, :, 1] = np.nan
    record = dataclasses.replace(record, metrics=nothing)
    with pytest.raises(checks.InputError, match="Expected a result with validation"):
        histories.make_result(record).to_target(0.5)


@pytest.mark.parametrize("dtype, size", [("float32", 4), ("bfloat16", 2)])
def test_older_histories_count_numbers_of_the_type_of_the_parameters(dtype, size):
    record = of_curve([0.1, 0.5, 0.45, 0.8], dtype=dtype)
    row = histories.make_result(record).communication().iloc[0]
    assert row["total_bytes_up"] == record.per_round["bytes_up"].sum()
    assert row["client_steps"] == record.per_round["client_steps"].sum()
    numbers = {n.replace("bytes", "floats"): v for n, v in record.per_round.items()}
    old = dataclasses.replace(record, per_round=numbers)
    older = histories.make_result(old).communication().iloc[0]
    assert older["rounds"] == row["rounds"] == 6
    for name in ("bytes_up", "bytes_down", "total_bytes_up", "total_bytes_down"):
        assert older[name] == pytest.approx(size * row[name])
    unknown = dataclasses.replace(record, config={}, per_round={})
    row = histories.make_result(unknown).communication().iloc[0]
    assert np.isnan(row[["total_bytes_up", "client_steps"]].astype(float)).all()


def test_steps_of_a_training_are_counted():
    import jax

    federation = fp.load_federation("quadratic", "by_client", num_clients=4)
    solver = fp.SGD(learning_rate=0.01, epochs=3, batch_size=2)
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=solver), participation=fp.UniformCohort(size=2)
    )
    run = (jax.random.key(0), process, fp.models.Quadratic(), federation, 4)
    result = fp.simulate(*run, progress=False)
    record = result.groups[0]
    num_train = np.asarray(federation.train.num_examples)
    steps = 3 * -(-num_train // 2)
    taken = record.times_selected[0, -1]
    sent = result.communication().iloc[0]
    assert sent["client_steps"] == (taken * steps).sum()
    size = np.dtype(record.config["parameter_dtype"]).itemsize
    assert sent["total_bytes_up"] == size * 4 * 2 * record.config["num_parameters"]
    np.testing.assert_array_equal(record.num_test[0], federation.test.num_examples)
