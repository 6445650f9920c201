"""Tables of hand-made histories; files read back unchanged."""

import dataclasses
import json
import os

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from fedjax_pfl import results
from fedjax_pfl.core import checks
from fedjax_pfl.engine import recorder
from fedjax_pfl.results import directories, spending, summaries
from tests.histories import make_history, make_result, pick, with_metrics


def test_columns_and_size():
    table = make_result(make_history()).table()
    point = "algorithm dataset partition seed algorithm.lam"
    value = "model population data metric stat when value status"
    assert list(table.columns) == f"{point} {value}".split()
    # points x data x metrics x stats x ((2 models + 2 hybrids) x when + best of each)
    assert len(table) == 2 * 2 * 2 * 12 * (4 * 3 + 1)
    assert set(table["algorithm"]) == {"Flame"}
    assert set(table["dataset"]) == {"digits"}
    assert set(table["partition"]) == {"DirichletLabels"}
    assert set(table["population"]) == {"all"}
    assert set(table["status"]) == {"ok"}


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
    assert "±" not in summary["accuracy"].iloc[0]


def test_a_single_training_without_a_seed_can_diverge():
    result = make_result(make_history(points=({},), diverged_at=[5]))
    assert set(result.summary()["status"]) == {"1 of 1 diverged"}
    assert result.table()["seed"].isna().all()


def test_fields_are_what_varies():
    points = ({"algorithm.lam": 0.1, "seed": 0},)
    flame = make_history(points=points)
    robust = make_history(points=points, config={"aggregator": "GeometricMedian"})
    average = make_history(points=({"seed": 0},), algorithm="FedAvg")
    assert make_result(flame).fields == ("algorithm.lam",)
    assert make_result(flame, robust).fields == ("algorithm.lam", "aggregator")
    merged = make_result(flame, average)
    assert merged.fields == ("algorithm.lam",)
    table = merged.table()
    assert table.loc[table["algorithm"] == "FedAvg", "algorithm.lam"].isna().all()
    assert set(merged.summary()["algorithm"]) == {"Flame", "FedAvg"}


def test_fields_of_one_name_of_two_algorithms_are_not_compared():
    flame = make_history(points=({"seed": 0},), kappa=2.0)
    average = make_history(points=({"seed": 0},), kappa=None, algorithm="FedAvg")
    assert make_result(flame, average).fields == ()


def test_a_field_swept_in_one_group_and_fixed_in_another():
    swept = make_history(points=({"algorithm.kappa": 0.5, "seed": 0},))
    fixed = make_history(points=({"seed": 0},))
    table = make_result(swept, fixed).table()
    assert set(table["algorithm.kappa"]) == {0.5, 2.0}


def test_the_network_is_not_the_evaluated_model():
    network = make_history(points=({"seed": 0},))
    config = {"model": "LogisticRegression"}
    linear = make_history(points=({"seed": 0},), config=config)
    table = make_result(network, linear).table()
    assert set(table["model.class"]) == {"MLP", "LogisticRegression"}
    assert set(table["model"]) > {"personal", "global"}


def test_summary_is_mean_and_spread_over_seeds():
    record = make_history()
    summary = make_result(record).summary()
    titles = "algorithm,model,accuracy,worst 10 %,loss variance,status"
    assert ",".join(summary.columns) == titles
    means = record.metrics["accuracy"][:, -1, 0, 0].astype(float).mean(-1)
    wanted = f"{means.mean():.4f} ± {means.std(ddof=1):.4f}"
    first = summary[summary["model"] == "personal"].iloc[0]
    assert first["accuracy"] == wanted
    assert len(summary) == 4


def test_summary_counts_honest_clients_only():
    record = make_history(points=({"seed": 0},), malicious=(0, 1), num_clients=5)
    calm = make_history(points=({"seed": 0},), num_clients=5, algorithm="Local")
    summary = make_result(record, calm).summary().set_index(["algorithm", "model"])
    accuracy = record.metrics["accuracy"][0, -1, 0, 0, 2:].astype(float).mean()
    found = summary.loc[("Flame", "personal"), "accuracy"]
    assert found == f"{accuracy:.4f}"
    everyone = calm.metrics["accuracy"][0, -1, 0, 0].astype(float).mean()
    assert summary.loc[("Local", "personal"), "accuracy"] == f"{everyone:.4f}"


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
        "class": 4,
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
    names = {p.name for p in (tmp_path / "new" / "out").iterdir()}
    assert names == {"config.json", "reports.csv", "summary.csv"} | {
        *("history-0-flame.nc", "history-1-fedavg.nc")
    }
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
    is_lost = (csv["status"] != "ok") & (csv["when"] == "last")
    assert csv["value"].isna().equals(is_lost)
    with xr.open_dataset(tmp_path / "out" / "history.nc", engine="h5netcdf") as data:
        assert json.loads(data.attrs["configuration"])["algorithm"] == "Flame"
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
        directories.check_new(tmp_path / "file" / "out")
    directories.check_new(tmp_path / "a" / "b")
    assert os.listdir(tmp_path) == ["file"]


def test_nothing_is_left_of_a_failed_save(tmp_path, result, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(checks.InputError, match="No space left on device"):
        result.save(tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_foreign_and_damaged_directories_are_refused(tmp_path, result):
    with pytest.raises(checks.InputError, match="with a config.json, got"):
        results.Result.load(tmp_path / "missing")
    result.save(tmp_path / "out")
    config, file = (tmp_path / "out" / n for n in ("config.json", "history-0-flame.nc"))
    text, content = config.read_text(), file.read_bytes()

    def assert_is_refused(reason=""):
        match = f"Cannot read .* as a result directory: {reason}"
        with pytest.raises(checks.InputError, match=match) as error:
            results.Result.load(tmp_path / "out")
        assert "\n" not in str(error.value)

    other = json.dumps({"format": "other", "groups": []})
    for damaged in ("{", "[]", "{}", other, "[" * 100_000):
        config.write_text(damaged)
        assert_is_refused()
    config.write_text(text.replace('"run_seconds": 0.25', '"run_seconds": 0.5'))
    assert_is_refused("its config.json is not what was")
    config.write_text(text)
    for damaged in (content[:5000], content[:-1] + bytes([content[-1] ^ 1])):
        file.write_bytes(damaged)
        assert_is_refused("its history-0-flame.nc is not what")
    file.unlink()
    assert_is_refused()


def test_clients_one_by_one():
    record = make_history(num_clients=5, malicious=(1,))
    rows = make_result(record).clients()
    # points x (2 models + 2 hybrids) x (all, honest) x metrics
    assert len(rows) == 2 * 4 * (5 + 4) * 2
    wanted = record.metrics["loss"][1, -1, 0, 0, 3]
    conditions = {"population": "honest", "model": "personal", "metric": "loss"}
    assert pick(rows, **conditions, seed=1, client=3) == wanted
    assert set(rows["num_train"]) == {50} and set(rows["data"]) == {"own test"}


def test_communication_is_the_mean_of_the_rounds_that_ran():
    record = make_history(points=({"seed": 0},))
    per_round = {name: values.copy() for name, values in record.per_round.items()}
    for values in per_round.values():
        values[0, 4:] = np.nan  # the training ended early
    sent = per_round["bytes_up"]
    row = make_result(dataclasses.replace(record, per_round=per_round)).communication()
    assert row["bytes_up"].item() == pytest.approx(sent[0, :4].mean())
    assert row["rounds"].item() == 4


def test_files_of_older_versions_lack_some_arrays(tmp_path):
    names = ("client_diverged_at", "extra_examples", "label_counts")
    names += ("num_test", "num_validation")
    record = dataclasses.replace(make_history(), **dict.fromkeys(names))
    result = make_result(record)
    result.save(tmp_path / "old")
    loaded = results.Result.load(tmp_path / "old")
    assert loaded == result
    # No intervals without numbers of test examples.
    assert loaded.clients()[["num_test", "low", "high"]].isna().all(axis=None)


def test_reports_are_means_over_rounds_and_the_share_that_took_part():
    record = make_history(never=(3, 4, 5, 6, 7))
    clipped = np.tile(np.array([0.0, 0.5, np.nan, 1.0] + 6 * [np.nan]), (2, 1))
    per_round = record.per_round | {"clipped": clipped}
    table = make_result(dataclasses.replace(record, per_round=per_round)).reports()
    first = table[table["seed"] == 0].set_index("name")["value"]
    assert first["clipped"] == 0.5 and first["coverage"] == 0.75
    expected = record.per_round["bytes_up"][0].mean()
    np.testing.assert_allclose(first["bytes_up"], expected)


def test_counts_of_a_cohort_add_up_and_other_values_are_averaged():
    values = np.arange(6).reshape(1, 2, 3)
    assert recorder._over_cohort(values).tolist() == [[3, 12]]
    assert recorder._over_cohort(values > 1).tolist() == [[1, 3]]
    assert recorder._over_cohort(values / 1).tolist() == [[1.0, 4.0]]


def test_summary_of_another_round_and_other_data():
    result = make_result(make_history())
    found = result.summary("best (validation)", "own validation")
    table = result.table()
    wanted = table[
        (table["when"] == "best (validation)")
        & (table["data"] == "own validation")
        & (table["metric"] == "accuracy")
        & (table["stat"] == "mean")
    ]
    for model, rows in wanted.groupby("model"):
        values = rows["value"]
        (text,) = found.loc[found["model"] == model, "accuracy"]
        assert text == f"{values.mean():.4f} ± {values.std():.4f}"


@pytest.mark.parametrize("name", ["table", "curves", "clients", "spent"])
def test_a_table_is_computed_once_and_the_callers(name, monkeypatch):
    result = make_result(make_history())
    wanted, first = (getattr(result, name)() for _ in range(2))
    first[first.columns[-1]] = 0.0
    # What they are computed of.
    monkeypatch.setattr(summaries, "parts", None)
    monkeypatch.setattr(spending, "after", None)
    pd.testing.assert_frame_equal(getattr(result, name)(), wanted)
    assert result == make_result(make_history())


def test_histories_of_clients_end_where_their_training_did():
    made = make_history()
    evaluated = made.evaluated.copy()
    evaluated[:, 1, :, 3] = False
    made = dataclasses.replace(
        made, evaluated=evaluated, stopped_at=np.array([-1, 5]), rounds=made.rounds
    )
    rows = make_result(made).clients(histories=True)
    plain = make_result(made).clients()
    pd.testing.assert_frame_equal(rows.drop(columns=["rounds", "history"]), plain)
    rows = rows[(rows["metric"] == "loss") & (rows["model"] == "global")]
    last = rows.set_index(["seed", "client"]).loc[(0, 3)]
    values = made.metrics["loss"][0, :, 1, 0, 3].tolist()
    assert last["rounds"].tolist() == [0, 5, 10]
    assert last["history"][[0, 2]].tolist() == [values[0], values[2]]
    assert np.isnan(last["history"][1])  # it was not evaluated
    stopped = rows.set_index(["seed", "client"]).loc[(1, 4)]
    assert stopped["rounds"].tolist() == [0, 5]
    assert len(stopped["history"]) == 2
