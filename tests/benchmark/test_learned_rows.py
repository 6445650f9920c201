"""Rows of a benchmark whose fields are learned: budget, what is seen, and going on."""

import shutil

import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as fp
from fedjax_pfl.benchmark import choice, page, tables, tasks, training
from fedjax_pfl.core import checks
from fedjax_pfl.engine import tuning
from fedjax_pfl.engine.options import Options
from tests.benchmark.test_training import METHODS, OPTIONS, OTHER_TESTS, task

FEDAVG = {"FedAvg": METHODS["FedAvg"]}
SEARCHING = fp.FederatedProcess(algorithm=fp.FedPG(search=fp.algorithms.Armijo()))
RATE = "algorithm.local.learning_rate"
EACH = 5 * 16 * 3  # five clients of 16 examples, three seeds
BUDGET = fp.engine.Gradients(70 * EACH)  # 70 rounds


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learned")
    both = task(methods=FEDAVG, learned=FEDAVG, budget=BUDGET)
    training.run(folder, both, **OPTIONS)
    return folder


@pytest.mark.wide
def test_half_of_the_same_budget_is_for_learning(made):
    """The other half pays for points of the path, and not for one more."""
    found = tables.collect(made).searches.set_index("method")
    tuned, learned = (found.loc[name] for name in ("FedAvg", "FedAvg learned"))
    assert learned["budget"] == tuned["budget"] == BUDGET.count
    moved, compared = (
        fp.Result.load(made / "small/fedavg-learned" / part).groups[0]
        for part in ("learning", "search")
    )
    # Rounds count twice for one derivative; 18 of them would be 36 of the 70.
    assert list(moved.ends) == [17] * 3
    rule = fp.engine.Halving(min_rounds=2)
    options = Options(num_rounds=18, stop_when=rule, eval_every=2)
    points = int(learned["tried"])
    assert (
        tuning.rounds_of(points, options) <= 36 < tuning.rounds_of(points + 1, options)
    )
    cost = EACH // 3 * (2 * moved.ends.sum() + compared.ends.sum())
    assert learned["spent"] == cost <= BUDGET.count
    assert learned["command"] == "repeat --only fedavg-learned"


def test_a_learned_row_does_not_change_the_budget_of_the_others():
    plain, learned = (task(methods=FEDAVG, learned=rows) for rows in ({}, FEDAVG))
    assert tasks.budget_of(learned) == tasks.budget_of(plain)


@pytest.mark.wide
def test_points_of_the_path_compete_and_the_best_is_trained_anew(made):
    said = training.read(made / "small/fedavg-learned")
    (moved,) = fp.Result.load(made / "small/fedavg-learned/learning").groups
    (group,) = fp.Result.load(made / "small/fedavg-learned/search").groups
    for part in (moved, group):
        assert {point["seed"] for point in part.points} == {1, 2, 3}
    path = moved.diagnostics[f"value:{RATE}"][0]
    assert np.isclose(path[0], np.sqrt(0.003 * 10.0), rtol=1e-3)
    loss = moved.diagnostics["objective:validation:loss:global"].mean(axis=0)
    assert loss[-1] < loss[0]
    tried = [point[RATE] for point in group.points]
    assert len(set(tried)) == said.tried
    for value in tried:
        assert np.isclose(path, value, rtol=1e-12).any()
    np.testing.assert_allclose([tried[0], tried[-1]], path[[0, -1]], rtol=1e-12)
    column = group.data.index("validation")
    last = {value for value, end in zip(tried, group.ends, strict=True) if end == 18}
    assert last == {said.settings[RATE]}
    score = group.metrics["accuracy"][:, 0, 0, column].mean(axis=-1)
    first = [score[[t == value for t in tried]].mean() for value in tried]
    assert first[tried.index(said.settings[RATE])] >= np.median(first)
    (final,) = fp.Result.load(made / "small/fedavg-learned/final").groups
    assert np.float32(final.config[RATE]) == np.float32(said.settings[RATE])
    assert {point["seed"] for point in final.points} == {0, 7}


@pytest.mark.wide
def test_the_start_of_learning_has_a_row_as_control(made):
    """It has the fields of the first point of the path, and has searched nothing."""
    said = training.read(made / "small/fedavg-start")
    (moved,) = fp.Result.load(made / "small/fedavg-learned/learning").groups
    assert said.name == "FedAvg start" and said.tried == said.spent == 0
    first = moved.diagnostics[f"value:{RATE}"][0, 0]
    assert np.float32(said.settings[RATE]) == np.float32(first)
    assert said.command == "repeat --only fedavg-learned"
    (final,) = fp.Result.load(made / "small/fedavg-start/final").groups
    assert np.float32(final.config[RATE]) == np.float32(first)
    assert {point["seed"] for point in final.points} == {0, 7}


def test_points_of_a_path_are_moved_into_the_ranges():
    path = pd.DataFrame({"algorithm.lam": [1.0, 0.0005, 30.0, np.nan], RATE: 0.1})
    ranges = {"algorithm.lam": fp.Range(0.001, 10.0), RATE: fp.Range(0.003, 3.0)}
    points = choice._points(path, ranges, 9)
    assert [point["algorithm.lam"] for point in points] == [1.0, 0.001, 10.0]


@pytest.mark.wide
def test_learning_never_sees_test_data(made):
    base = (tasks.key(), FEDAVG["FedAvg"], task().model, OTHER_TESTS)
    how = {"progress": False, "execution": "vmap"}
    how |= {"seeds": (1, 2, 3), "budget": BUDGET, "by_model": None}
    other = choice.learn(base, 18, evaluate_on=("validation", "test"), **how)
    said = training.read(made / "small/fedavg-learned")
    assert other.settings == said.settings
    for name, theirs in other.trainings.items():
        ours = fp.Result.load(made / "small/fedavg-learned" / name)
        (left,), (right,) = ours.groups, theirs.groups
        np.testing.assert_array_equal(left.ends, right.ends)
        assert tuple(left.data) == ("validation",)
        (ours_v,) = np.moveaxis(left.metrics["loss"][:, :, 0], 2, 0)
        data = [right.data.index(kind) for kind in ("validation", "test")]
        theirs_v, theirs_t = np.moveaxis(right.metrics["loss"][:, :, 0], 2, 0)[data]
        np.testing.assert_array_equal(ours_v, theirs_v)
        assert (theirs_t != theirs_v).any()


@pytest.mark.wide
def test_interrupted_learning_goes_on_to_the_same_numbers(made, tmp_path, monkeypatch):
    """In the training that learns, then in the search among points of its path."""
    one = task(methods={}, learned=FEDAVG, budget=BUDGET)
    shutil.copytree(made / "small/fedavg-start", tmp_path / "small/fedavg-start")
    usual = choice._part
    for hurried in ("path", "points"):

        def part(options, name, minutes, hurried=hurried):
            return usual(options, name, 1e-6 if name == hurried else minutes)

        with monkeypatch.context() as changed:
            changed.setattr(choice, "_part", part)
            with pytest.raises(fp.engine.Interrupted):
                training.run(tmp_path, one, **OPTIONS)
        names = {path.name for path in (tmp_path / "small").iterdir()}
        assert names == {"fedavg-learned.work", "fedavg-start"}
    training.run(tmp_path, one, **OPTIONS)
    names = {path.name for path in (tmp_path / "small").iterdir()}
    assert names == {"fedavg-learned", "fedavg-start"}
    places = [folder / "small/fedavg-learned" for folder in (made, tmp_path)]
    assert training.read(places[0]) == training.read(places[1])
    groups = [fp.Result.load(place / "final").groups[0] for place in places]
    np.testing.assert_array_equal(*(group.metrics["loss"] for group in groups))


@pytest.mark.wide
def test_the_page_says_what_the_budget_paid_for(made, tmp_path):
    found = tables.collect(made)
    assert found.learned == {"FedAvg learned": "FedAvg"}
    page.write(found, tmp_path)
    text = (tmp_path / "benchmark.md").read_text("utf-8")
    own = (tmp_path / "benchmark/small.md").read_text("utf-8")
    assert own.count("| FedAvg learned |") == 4
    assert "| FedAvg start | global | control |" in own
    assert "FedAvg start" not in text and "minus the middle of the ranges" in text
    tried = found.searches.set_index("method")["tried"]
    assert "1 method on 1 data set." in text
    assert f"a search among {tried['FedAvg learned']} points of the path" in text
    assert f"that pays for {tried['FedAvg']} settings" in text


@pytest.mark.parametrize(
    ("methods", "learned", "message"),
    [
        ({}, {"Majority": METHODS["Majority"]}, "declares ranges .* got Majority"),
        ({"a learned": METHODS["Local"]}, {}, "do not end in ' learned' or ' start'"),
        ({"a start": METHODS["Local"]}, {}, "do not end in ' learned' or ' start'"),
        ({}, {"S": SEARCHING}, "derivatives, got Armijo"),
        ({}, dict.fromkeys(("a b", "a-b"), METHODS["Local"]), "differ in letters or"),
    ],
)
def test_rows_that_cannot_be_learned_are_refused(methods, learned, message):
    with pytest.raises(checks.InputError, match=message):
        task(methods=methods, learned=learned)


def test_a_budget_below_three_points_is_refused(tmp_path):
    """Of which two end at round 2, after a round of learning."""
    least = EACH * (2 + 2 * 2 + 18)
    poor = task(methods={}, learned=FEDAVG, budget=fp.engine.Gradients(least - 1))
    with pytest.raises(checks.InputError, match=f"budget of at least {least:,}"):
        training.run(tmp_path, poor, **OPTIONS)
