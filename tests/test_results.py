"""Tables against numbers worked out by hand or by loops; files read back unchanged."""

import dataclasses
import json
import os

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from fedjax_pfl import checks, history, results, summaries

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
):
    """A record of random values; clients in `never` are not selected."""
    rng = np.random.default_rng(rng_seed)
    num_points, num_rounds = len(points), rounds[-1]
    shape = (num_points, len(rounds), len(models), len(DATA), num_clients)
    values = {name: rng.uniform(size=shape).astype(np.float32) for name in metrics}
    stopped = np.full(num_points, -1) if diverged_at is None else np.array(diverged_at)
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
        num_train=np.full((num_points, num_clients), 50),
        per_round={"floats_up": rng.uniform(size=(num_points, num_rounds))},
        diagnostics={"loss": rng.uniform(size=(num_points, len(rounds)))},
        diverged_at=stopped,
        config={
            "algorithm.kind": algorithm,
            "algorithm.kappa": kappa,
            "aggregator": None,
            "federation.dataset": "digits",
            "federation.partition.kind": "DirichletLabels",
            "model.widths": [64],
        },
        compile_seconds=1.5,
        run_seconds=0.25,
    )


def make_result(*histories):
    return results.Result(groups=histories, provenance={"jax": "0", "commit": None})


def with_metrics(record, **metrics):
    return dataclasses.replace(record, metrics=metrics)


def pick(table, **wanted):
    """The single value of a table under these conditions."""
    for name, value in wanted.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table["value"].item()


LAST = {"when": "last", "population": "all", "data": "own test"}


def test_columns_and_size():
    table = make_result(make_history()).table()
    point = "algorithm dataset partition seed algorithm.lam"
    value = "model population data metric stat when value status"
    assert list(table.columns) == f"{point} {value}".split()
    # points x (2 models + 2 hybrids) x data x metrics x stats x when
    assert len(table) == 2 * 4 * 2 * 2 * 6 * 3
    assert set(table["algorithm"]) == {"Flame"}
    assert set(table["dataset"]) == {"digits"}
    assert set(table["partition"]) == {"DirichletLabels"}
    assert set(table["population"]) == {"all"}
    assert set(table["status"]) == {"ok"}


def test_statistics_by_hand():
    accuracy = np.arange(1, 31) / 30
    found = summaries.statistics("accuracy", accuracy)
    assert found["worst 10 %"] == pytest.approx((1 + 2 + 3) / 90)
    assert found["min"] == pytest.approx(1 / 30)
    assert found["median"] == pytest.approx(15.5 / 30)
    assert found["mean"] == pytest.approx(15.5 / 30)
    assert found["variance"] == pytest.approx((30**2 - 1) / 12 / 900)
    assert found["std"] == pytest.approx(np.sqrt((30**2 - 1) / 12) / 30)
    loss = summaries.statistics("loss", accuracy)
    assert loss["worst 10 %"] == pytest.approx((30 + 29 + 28) / 90)
    assert loss["min"] == pytest.approx(1 / 30)


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
                [record.metrics[metric][1, -1, 1, 0, i] for i in clients],
                dtype=float,
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


def test_diverged_points_are_named_and_empty():
    result = make_result(make_history(diverged_at=[-1, 7]))
    assert result.status == ("ok", "diverged at round 7")
    table = result.table()
    bad = table[table["seed"] == 1]
    assert set(bad["status"]) == {"diverged at round 7"}
    assert bad.loc[bad["when"] == "last", "value"].isna().all()
    assert table.loc[table["seed"] == 0, "value"].notna().all()
    # The best round before the divergence is a value that was measured.
    assert bad.loc[bad["when"] == "best (validation)", "value"].notna().all()
    summary = result.summary()
    assert set(summary["status"]) == {"1 of 2 diverged"}
    assert "±" not in summary["accuracy mean"].iloc[0]


def test_a_single_training_without_a_seed_can_diverge():
    result = make_result(make_history(points=({},), diverged_at=[5]))
    assert set(result.summary()["status"]) == {"1 of 1 diverged"}
    assert result.table()["seed"].isna().all()


def test_fields_are_what_varies():
    points = ({"algorithm.lam": 0.1, "seed": 0},)
    flame = make_history(points=points)
    robust = dataclasses.replace(
        flame, config=flame.config | {"aggregator.kind": "GeometricMedian"}
    )
    del robust.config["aggregator"]
    average = make_history(points=({"seed": 0},), algorithm="FedAvg")
    assert make_result(flame).fields == ("algorithm.lam",)
    assert make_result(flame, robust).fields == ("algorithm.lam", "aggregator")
    merged = make_result(flame, average)
    assert merged.fields == ("algorithm.lam",)
    table = merged.table()
    assert table.loc[table["algorithm"] == "FedAvg", "algorithm.lam"].isna().all()
    assert set(merged.summary()["algorithm"]) == {"Flame", "FedAvg"}


def test_a_field_swept_in_one_group_and_fixed_in_another():
    swept = make_history(points=({"algorithm.kappa": 0.5, "seed": 0},))
    fixed = make_history(points=({"seed": 0},))
    table = make_result(swept, fixed).table()
    assert set(table["algorithm.kappa"]) == {0.5, 2.0}


def test_summary_is_mean_and_spread_over_seeds():
    record = make_history()
    summary = make_result(record).summary()
    assert list(summary.columns) == [
        "algorithm",
        "model",
        "accuracy mean",
        "accuracy worst 10 %",
        "loss variance",
        "status",
    ]
    means = record.metrics["accuracy"][:, -1, 0, 0].astype(float).mean(-1)
    wanted = f"{means.mean():.4f} ± {means.std(ddof=1):.4f}"
    first = summary[summary["model"] == "personal"].iloc[0]
    assert first["accuracy mean"] == wanted
    assert len(summary) == 4


def test_summary_counts_honest_clients_only():
    record = make_history(points=({"seed": 0},), malicious=(0, 1), num_clients=5)
    calm = make_history(points=({"seed": 0},), num_clients=5, algorithm="Local")
    summary = make_result(record, calm).summary().set_index(["algorithm", "model"])
    accuracy = record.metrics["accuracy"][0, -1, 0, 0, 2:].astype(float).mean()
    found = summary.loc[("Flame", "personal"), "accuracy mean"]
    assert found == f"{accuracy:.4f}"
    everyone = calm.metrics["accuracy"][0, -1, 0, 0].astype(float).mean()
    assert summary.loc[("Local", "personal"), "accuracy mean"] == f"{everyone:.4f}"


def test_curves_are_means_over_clients():
    record = make_history()
    curves = make_result(record).curves()
    chosen = curves[
        (curves["seed"] == 1)
        & (curves["model"] == "global")
        & (curves["data"] == "own validation")
        & (curves["metric"] == "loss")
    ]
    assert chosen["round"].tolist() == [0, 5, 10]
    wanted = record.metrics["loss"][1, :, 1, 1].mean(-1)
    np.testing.assert_allclose(chosen["value"], wanted, rtol=1e-6)


def test_dataset_is_labeled():
    record = make_history()
    dataset = make_result(record).to_dataset(0)
    assert dict(dataset.sizes) == {
        "point": 2,
        "round": 3,
        "model": 2,
        "data": 2,
        "client": 20,
        "step": 10,
    }
    chosen = dataset["accuracy"].isel(point=1).sel(model="global", data="test", round=5)
    np.testing.assert_array_equal(
        chosen.transpose("client"), record.metrics["accuracy"][1, 1, 1, 0]
    )
    assert dataset["algorithm.lam"].values.tolist() == [0.1, 0.1]
    assert dataset["accuracy"].attrs["units"] == "1"
    assert all("long_name" in v.attrs for v in dataset.variables.values())
    # A diagnostic and a metric of the same name do not collide.
    assert dataset["diagnostics.loss"].dims == ("point", "round")


@pytest.fixture
def result():
    points = (
        {"algorithm.lam": 1, "model.widths": [64, 32], "seed": 0},
        {"algorithm.lam": 0.1, "model.widths": [8], "seed": 1},
    )
    return make_result(
        make_history(points=points, diverged_at=[-1, 5], malicious=(2,)),
        make_history(points=({"seed": 0},), algorithm="FedAvg", metrics=("loss",)),
    )


def test_files_are_read_back_unchanged(tmp_path, result):
    result.save(tmp_path / "new" / "out")
    loaded = results.Result.load(tmp_path / "new" / "out")
    assert loaded == result
    assert loaded.groups[0].points == result.groups[0].points
    assert loaded.groups[0].rounds.dtype == result.groups[0].rounds.dtype
    pd.testing.assert_frame_equal(loaded.table(), result.table())
    names = sorted(p.name for p in (tmp_path / "new" / "out").iterdir())
    assert names == [
        "config.json",
        "history-0-flame.nc",
        "history-1-fedavg.nc",
        "summary.csv",
    ]
    assert os.listdir(tmp_path / "new") == ["out"]


def test_equality_sees_a_changed_value(result):
    record = result.groups[1]
    loss = record.metrics["loss"].copy()
    loss[0, 0, 0, 0, 0] += 1
    changed = (result.groups[0], with_metrics(record, loss=loss))
    assert results.Result(changed, result.provenance) != result
    assert results.Result(result.groups, {}) != result


def test_files_open_elsewhere(tmp_path):
    make_result(make_history(diverged_at=[-1, 5])).save(tmp_path / "out")
    csv = pd.read_csv(tmp_path / "out" / "summary.csv")
    assert csv["value"].isna().sum() == (csv["status"] != "ok").sum() / 3
    with xr.open_dataset(tmp_path / "out" / "history.nc", engine="h5netcdf") as data:
        assert json.loads(data.attrs["configuration"])["algorithm.kind"] == "Flame"
        assert data["status"].values.tolist() == ["ok", "diverged at round 5"]


def test_an_existing_directory_is_left_alone(tmp_path, result):
    (tmp_path / "kept").write_text("mine")
    for name in ("kept", "."):
        with pytest.raises(checks.InputError, match="does not exist yet, got"):
            result.save(tmp_path / name)
    assert (tmp_path / "kept").read_text() == "mine"
    assert os.listdir(tmp_path) == ["kept"]


def test_a_directory_that_cannot_be_written(tmp_path, result):
    (tmp_path / "file").write_text("")
    with pytest.raises(checks.InputError, match=r"Cannot write the directory .*: \w"):
        results.check_output(tmp_path / "file" / "out")
    results.check_output(tmp_path / "a" / "b")
    assert os.listdir(tmp_path) == ["file"]


def test_nothing_is_left_of_a_failed_save(tmp_path, result, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(checks.InputError, match="No space left on device"):
        result.save(tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_foreign_directories_are_refused(tmp_path, result):
    with pytest.raises(checks.InputError, match="with a config.json, got"):
        results.Result.load(tmp_path / "missing")
    result.save(tmp_path / "out")
    config = tmp_path / "out" / "config.json"
    stored = config.read_text()
    for text in ("{", "[]", "{}", json.dumps({"format": "other", "groups": []})):
        config.write_text(text)
        with pytest.raises(checks.InputError, match="Cannot read .* as a result"):
            results.Result.load(tmp_path / "out")
    config.write_text(stored)
    file = tmp_path / "out" / "history-0-flame.nc"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(checks.InputError, match="Cannot read .* as a result") as error:
        results.Result.load(tmp_path / "out")
    assert "\n" not in str(error.value)
    file.unlink()
    with pytest.raises(checks.InputError, match="Cannot read .* as a result"):
        results.Result.load(tmp_path / "out")
