"""A benchmark of small methods: budgets, seeds, what is kept, and going on."""

import dataclasses
import shutil

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as fp
from fedjax_pfl import data
from fedjax_pfl.benchmark import page, tables, tasks, training
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import tuning

SGD = fp.SGD(learning_rate=0.1, batch_size=10)
SPEC = fp.FederationSpec(
    data.ClusteredClasses(num_classes=4, dim=5, examples_per_client=40),
    "by_client",
    num_clients=6,
    unseen_fraction=0.2,
    validation_fraction=0.3,
    test_fraction=0.3,
)
METHODS = {
    "Majority": fp.FederatedProcess(algorithm=fp.algorithms.Majority()),
    "Local": fp.FederatedProcess(algorithm=fp.Local(local=SGD)),
    "FedAvg": fp.FederatedProcess(algorithm=fp.FedAvg(local=SGD)),
    "Ditto": fp.FederatedProcess(algorithm=fp.Ditto(local=SGD)),
}


def task(**changes):
    fields = {"name": "small", "methods": METHODS, "model": fp.LogisticRegression()}
    fields |= {"spec": SPEC, "num_rounds": 18, "seeds": (0, 7), "command": "repeat"}
    return tasks.Task(**(fields | changes))


OPTIONS = {"say": lambda text: None, "progress": False, "execution": "vmap"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    training.run(folder, task(), **OPTIONS)
    return folder


@pytest.fixture(scope="module")
def found(made):
    return tables.collect(made)


def finals(folder, name):
    return fp.Result.load(folder / "small" / name / "final")


def budget_of(folder):
    """What every search of a benchmark had."""
    return fp.engine.Gradients(int(training.read(folder / "small/fedavg").budget))


def values_of(result, model):
    """Own test values in the last round, by seed and client."""
    rows = result.clients()
    rows = rows[(rows["model"] == model) & (rows["metric"] == "accuracy")]
    return rows.set_index(["seed", "client"])["value"]


def validation_curve(result, model):
    curve = result.curves()
    curve = curve[(curve["model"] == model) & (curve["metric"] == "accuracy")]
    curve = curve[curve["data"] == "own validation"]
    return {
        seed: dict(zip(rows["round"], rows["value"], strict=True))
        for seed, rows in curve.groupby("seed")
    }


def test_all_searches_have_the_same_budget_and_other_seeds(made, found):
    found = found.searches.set_index("method")
    assert found["budget"].nunique() == 1
    assert (found["spent"] <= found["budget"]).all()
    assert found["tried"]["Majority"] == 0 and found["spent"]["Majority"] == 0
    assert found["tried"]["Ditto"] < found["tried"]["FedAvg"] == tuning.NUM_SETTINGS
    # One setting more of a method would not be paid for.
    assert found["spent"]["Ditto"] > 0.8 * found["budget"]["Ditto"]
    searched = fp.Result.load(made / "small/ditto/search")
    assert set(searched.points()["seed"]) == {1, 2, 3}
    assert set(finals(made, "ditto").points()["seed"]) == {0, 7}
    assert found["command"]["Ditto"] == "repeat --only ditto"


def test_the_best_setting_is_the_searchs(made):
    said = training.read(made / "small/ditto")
    searched = fp.Result.load(made / "small/ditto/search")
    (group,) = searched.groups
    last = [g for g, end in enumerate(group.ends) if end == 18]
    d, m = group.data.index("validation"), group.models.index("personal")
    best = {}
    for g in last:
        key = tuple(group.points[g][name] for name in said.settings)
        seen = group.evaluated[g, -1, d]
        score = group.metrics["accuracy"][g, -1, m, d][seen].mean()
        best.setdefault(key, []).append(score)
    assert max(best, key=lambda k: np.mean(best[k])) == tuple(said.settings.values())


def test_scores_are_those_of_the_results(made, found):
    scores = found.scores.set_index(["method", "seed"])
    ditto = finals(made, "ditto")
    values = values_of(ditto, "personal")
    alone = values_of(finals(made, "local"), "personal")
    curves = validation_curve(ditto, "personal")
    (group,) = ditto.groups
    spent = group.per_round["gradient_evaluations"].sum(axis=1)
    for point, settings in enumerate(group.points):
        seed = settings["seed"]
        row, own, other = scores.loc["Ditto", seed], values[seed], alone[seed]
        expected = {
            "value": own.mean(),
            "worse_than_local": (own < other).mean(),
            "better_than_local": (own > other).mean(),
            "validation": curves[seed][18],
        }
        for name, value in expected.items():
            assert np.isclose(row[name], value, rtol=1e-5), name
        last = {number: v for number, v in curves[seed].items() if number >= 12}
        slope, _ = np.polyfit(list(last), list(last.values()), 1)
        assert np.isclose(row["rise"], 1.8 * slope, atol=1e-6)
        assert row["gradients"] == spent[point]
        assert row["unseen_model"] == "global + 5 local epochs" and row["unseen"] > 0
    assert scores.loc["FedAvg"]["worse_than_fedavg"].isna().all()
    assert scores.loc["FedAvg"]["worse_than_local"].notna().all()
    assert (scores.loc["Majority"][["bytes", "gradients"]] == 0).all(axis=None)
    assert (scores["first_evaluation"] == 1).all()


def test_costs_are_those_until_a_training_is_as_good_as_fedavg(made, found):
    scores = found.scores.set_index(["method", "seed"])
    ditto, fedavg = finals(made, "ditto"), finals(made, "fedavg")
    target = validation_curve(fedavg, "global")
    line, spent = validation_curve(ditto, "personal"), ditto.spent()
    for seed in (0, 7):
        row = scores.loc["Ditto", seed]
        good = [r for r in line[seed] if line[seed][r] >= target[seed][18]]
        if not good:
            assert np.isnan(row["rounds_to_fedavg"])
            continue
        assert row["rounds_to_fedavg"] == good[0]
        then = spent[(spent["seed"] == seed) & (spent["round"] == good[0])].iloc[0]
        for name in ("gradients", "virtual_seconds"):
            assert np.isclose(row[f"{name}_to_fedavg"], then[name], rtol=1e-5)
        sent = then["bytes_up"] + then["bytes_down"]
        assert np.isclose(row["bytes_to_fedavg"], sent, rtol=1e-5)
    assert scores.loc["FedAvg"]["rounds_to_fedavg"].notna().all()
    assert scores.loc["Majority"]["virtual_seconds"].eq(0).all()


@pytest.mark.wide
def test_a_length_in_virtual_time_changes_no_training(made):
    (timed,) = finals(made, "fedavg").groups
    said = training.read(made / "small/fedavg")
    process = METHODS["FedAvg"]
    for name, value in said.settings.items():
        process = struct.replace_field(process, name, value)
    plain = fp.grid(
        tasks.key(),
        process,
        fp.LogisticRegression(),
        SPEC,
        {"seed": (0, 7)},
        18,
        eval_every=1,
        evaluate_on=("validation", "test"),
        execution="vmap",
    )
    assert "virtual_seconds" not in plain.groups[0].per_round
    both = (timed.metrics["accuracy"], plain.groups[0].metrics["accuracy"])
    np.testing.assert_array_equal(*both)


@pytest.mark.wide
def test_training_on_a_server_takes_no_virtual_time(tmp_path):
    process = fp.FederatedProcess(algorithm=fp.algorithms.Centralized(local=SGD))
    one = task(methods={"Centralized": process}, num_rounds=2)
    training.run(tmp_path, one, **OPTIONS)
    found = tables.collect(tmp_path).scores
    assert found["virtual_seconds"].isna().all()
    assert found["rounds_to_fedavg"].isna().all()  # there is no FedAvg


def test_tables_are_the_same_after_saving(found, tmp_path):
    found.save(tmp_path)
    again = tables.Tables.load(tmp_path)
    pd.testing.assert_frame_equal(found.scores, again.scores)
    pd.testing.assert_frame_equal(found.searches, again.searches)


@pytest.mark.wide
def test_it_goes_on_where_it_was_and_repeats_to_the_bit(made, found, tmp_path):
    one = task(methods={"FedAvg": METHODS["FedAvg"]}, budget=budget_of(made))
    place = tmp_path / "small/fedavg"
    with pytest.raises(fp.engine.Interrupted):
        training.run(tmp_path, one, max_minutes=1e-6, **OPTIONS)
    assert not training.is_finished(place)
    training.run(tmp_path, one, **OPTIONS)
    assert list((tmp_path / "small").iterdir()) == [place]  # no checkpoints
    before = found.scores[found.scores["method"] == "FedAvg"].reset_index(drop=True)
    after = tables.collect(tmp_path).scores
    others = [name for name in before if "_than_" in name]
    pd.testing.assert_frame_equal(*(t.drop(columns=others) for t in (before, after)))
    assert training.read(made / "small/fedavg") == training.read(place)
    time, told = (place / "method.json").stat().st_mtime_ns, []
    training.run(tmp_path, one, **(OPTIONS | {"say": told.append}))
    assert told == [f"small is finished: {tmp_path / 'small'}"]
    assert time == (place / "method.json").stat().st_mtime_ns


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherTests(fp.FederationSpec):
    """The same federation with other labels of its test examples."""

    def build(self):
        federation = super().build()
        test = federation.test
        labels = (test.y[test.index] + 1) % 4
        return dataclasses.replace(
            federation, test=dataclasses.replace(test, labels=jnp.asarray(labels))
        )


OTHER_TESTS = OtherTests(
    **{field.name: getattr(SPEC, field.name) for field in dataclasses.fields(SPEC)}
)


def test_searches_never_see_test_data(made):
    options = {"seeds": (1, 2, 3), "budget": budget_of(made), "progress": False}
    options |= {"evaluate_on": ("validation", "test"), "execution": "vmap"}
    args = (METHODS["FedAvg"], fp.LogisticRegression(), OTHER_TESTS, 18)
    other = fp.tune(tasks.key(), *args, **options)
    assert other.best == training.read(made / "small/fedavg").settings
    (ours,) = fp.Result.load(made / "small/fedavg/search").groups
    (theirs,) = other.result.groups
    np.testing.assert_array_equal(ours.ends, theirs.ends)
    assert tuple(ours.data) == ("validation",)
    v, t = theirs.data.index("validation"), theirs.data.index("test")
    for name, values in ours.metrics.items():
        others = theirs.metrics[name]
        np.testing.assert_array_equal(values[..., 0, :], others[..., v, :])
        assert (others[..., t, :] != others[..., v, :]).any()


def test_the_page_has_every_method_and_interval(found, tmp_path):
    path = page.write(found, tmp_path)
    assert path == tmp_path / "benchmark.html"
    front = path.read_text("utf-8")
    text, html = (
        (tmp_path / f"benchmark/small.{kind}").read_text("utf-8")
        for kind in ("md", "html")
    )
    for name in METHODS:
        assert text.count(f"| {name} |") == html.count(f">{name}</th>") == 4
        assert f">{name}</th>" in front and f"--only {name.lower()}" in text
    assert text.count("[") >= 3 and (tmp_path / "benchmark_files/small.svg").is_file()
    for content in (front, html):
        assert "http://" not in content.replace("http://www.w3.org/", "")
    page.write(found, tmp_path)
    assert path.read_text("utf-8") == front
    assert (tmp_path / "benchmark/small.html").read_text("utf-8") == html


def test_rows_say_where_they_come_from(made, found):
    found = found.searches.set_index("method")
    said = finals(made, "ditto").provenance
    row = found.loc["Ditto"]
    assert row["commit"].startswith(said["commit"][:12])
    assert ("with changes" in row["commit"]) == (said["clean"] is False)
    versions = (f"{name} {said[name]}" for name in ("python", "jax", "fedjax_pfl"))
    assert row["versions"] == ", ".join(versions)
    assert said["platform"] in row["machine"] and said["device"] in row["machine"]
    assert row["date"] == said["started"][:10]
    assert found["fields"].to_dict() == {
        **{"Majority": 0, "Local": 1, "FedAvg": 1, "Ditto": 2}
    }
    assert "num_clients = 6" in row["data"] and "18 rounds" in row["data"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "../x"}, "letters, digits and hyphens"),
        ({"methods": {}}, "at least one method"),
        ({"methods": dict.fromkeys(("A b", "a-b"), METHODS["Local"])}, "differ in"),
        ({"seeds": (1,)}, "two or more different seeds"),
        ({"num_rounds": 0}, "num_rounds"),
    ],
)
def test_wrong_tasks_are_refused(changes, message):
    with pytest.raises(checks.InputError, match=message):
        task(**changes)


def test_wrong_inputs_of_a_run_are_refused(made, tmp_path):
    regression = task(
        spec=fp.FederationSpec("linear_regression", "by_client", num_clients=4)
    )
    with pytest.raises(checks.InputError, match="data with classes"):
        training.run(tmp_path, regression, **OPTIONS)
    without = task(spec=dataclasses.replace(SPEC, validation_fraction=0.0))
    with pytest.raises(checks.InputError, match="validation"):
        training.run(tmp_path, without, **OPTIONS)
    poor = task(budget=fp.engine.Gradients(3), methods={"Local": METHODS["Local"]})
    with pytest.raises(checks.InputError, match="budget of at least"):
        training.run(tmp_path, poor, **OPTIONS)
    with pytest.raises(checks.InputError, match="finished method"):
        tables.collect(tmp_path)
    shutil.copytree(made / "small/majority", tmp_path / "small/majority")
    (tmp_path / "small/majority/method.json").write_text("{}")
    with pytest.raises(checks.InputError, match="Cannot read"):
        tables.collect(tmp_path)


def test_hybrids_take_the_model_that_is_better_on_validation_data(made, found):
    (group,) = finals(made, "ditto").groups
    scores = found.scores.set_index(["method", "seed"])["hybrid"]
    place = {name: group.models.index(name) for name in ("personal", "global")}
    own, shared = (group.metrics["accuracy"][:, -1, place[m]] for m in place)
    v, t = group.data.index("validation"), group.data.index("test")
    for point, settings in enumerate(group.points):
        is_shared = shared[point, v] > own[point, v]
        wanted = np.where(is_shared, shared[point, t], own[point, t]).mean()
        assert np.isclose(scores["Ditto", settings["seed"]], wanted, rtol=1e-5)
    assert scores["FedAvg"].isna().all()


@pytest.mark.wide
def test_lists_are_searched_in_programs_of_their_own(tmp_path):
    """FLAME's prox center is one of two; extreme values among those tried are told."""
    flame = {"Flame": fp.FederatedProcess(algorithm=fp.Flame(local=SGD))}
    budget = fp.engine.Gradients(60_000)
    training.run(tmp_path, task(methods=flame, budget=budget), **OPTIONS)
    searched = fp.Result.load(tmp_path / "small/flame/search")
    centers = {p["algorithm.center"] for g in searched.groups for p in g.points}
    assert centers == {"local", "received"} and len(searched.groups) == 2
    (row,) = tables.collect(tmp_path).searches.to_dict("records")
    assert row["fields"] == 4 and row["spent"] <= row["budget"] == budget.count
    said = training.read(tmp_path / "small/flame")
    assert row["tried"] == len(searched.points().drop(columns="seed").drop_duplicates())
    for name, best in said.settings.items():
        tried = searched.points()[name]
        text = row["settings"].split(f"{name.removeprefix('algorithm.')} = ")[1]
        mark = text.split(",")[0].partition(" ")[2]
        if isinstance(best, str):
            assert mark == ""
        elif best == tried.min():
            assert mark == "(least tried)"
        else:
            assert mark == "(largest tried)" * bool(best == tried.max())
