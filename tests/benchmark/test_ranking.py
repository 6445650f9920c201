"""Groups, ranks and kinds against SciPy's tests and tables with known answers."""

import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import fedjax_pfl as fp
from fedjax_pfl.benchmark import (
    differences,
    finished,
    kinds,
    pictures,
    ranking,
    tables,
    tasks,
)

SEEDS = [10, 11, 12, 13, 14]
OLD = np.nan  # budget of a search that counted local steps
GLOBAL = {"FedAvg": "global", "Scaffold": "global", "Centralized": "global"}


def rows(task, values, **more):
    """Rows of `Tables.scores`: `values` by method are numbers by seed.

    Args:
      task: name of the data set.
      values: numbers by seed.
      more: other columns: one number, or several, by method.
    """
    made = []
    for method, numbers in values.items():
        for place, (seed, value) in enumerate(zip(SEEDS, numbers, strict=True)):
            row = dict.fromkeys(tables.SCORES, 0.0) | {"task": task, "method": method}
            row |= {"seed": seed, "value": value, "status": "ok", "metric": "accuracy"}
            row |= {"model": GLOBAL.get(method, "personal"), "unseen": np.nan}
            row["unseen_model"] = ""
            for name, cells in more.items():
                if method in cells:
                    cell = cells[method]
                    row[name] = cell[place] if isinstance(cell, list) else cell
            made.append(row)
    return made


def table(*parts, old=()):
    scores = pd.DataFrame(list(itertools.chain(*parts)), columns=list(tables.SCORES))
    searches = scores[["task", "method"]].drop_duplicates()
    searches = searches.reindex(columns=list(tables.SEARCHES))
    numbers = {"best": 0.8, "median": 0.75, "budget": 2e6, "spent": 1e6, "tried": 9}
    searches = searches.assign(**numbers, failed=0.0, fields=1, settings="lam = 1")
    searches["command"] = "bench --only " + searches["method"].str.lower()
    for name in ("data", "commit", "versions", "machine", "date"):
        searches[name] = ""
    searches.loc[searches["task"].isin(old), ["budget", "spent"]] = OLD
    return tables.Tables(scores, searches)


def drawn(count, seed=0, spread=0.02):
    rng = np.random.default_rng(seed)
    common = 0.05 * rng.standard_normal(5)
    return {
        f"m{k}": (0.8 - 0.015 * k + common + spread * rng.standard_normal(5)).tolist()
        for k in range(count)
    }


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_those_of_paired_tests_in_steps(seed):
    values = {m: pd.Series(v, SEEDS) for m, v in drawn(8, seed).items()}
    found = ranking.leaders(values)
    left, number = sorted(values, key=lambda m: -values[m].mean()), 0
    expected = {}
    while left:
        number += 1
        best, rest = left[0], left[1:]
        chances = {
            m: scipy.stats.ttest_rel(values[best], values[m]).pvalue for m in rest
        }
        # Holm: reject in order until the first that is not small enough.
        rejected = set()
        for k, m in enumerate(sorted(rest, key=chances.__getitem__)):
            if chances[m] * (len(rest) - k) >= 0.05:
                break
            rejected.add(m)
        expected |= dict.fromkeys({best, *rest} - rejected, number)
        left = [m for m in rest if m in rejected]
    assert found == expected
    assert set(found.values()) == set(range(1, max(found.values()) + 1))


def test_methods_are_left_out_that_diverge_or_still_rise():
    values = {"a": [0.9] * 5, "b": [0.8] * 5, "c": [0.95] * 5, "d": [0.7] * 5}
    values["b"][2] = np.nan
    rises = {"a": 0.005, "b": 0.0, "c": 0.0051, "d": -0.1}
    places = ranking.places(table(rows("t", values, rise=rises)))
    assert [place.method for place in places] == ["a", "d", "c", "b"]
    assert [place.group for place in places] == [1, 2, 0, 0]
    why = [place.why_not for place in places]
    assert why == ["", "", "not converged", "diverged for 1 of 5 seeds"]


def test_the_critical_difference_is_demsars():
    """Demsar (2006, section 3.2.4): four classifiers on 14 data sets, 1.25."""
    parts = [rows(f"t{k}", drawn(4, seed=k)) for k in range(14)]
    ranks = ranking.over_tasks(table(*parts))
    assert round(ranks.distance, 2) == 1.25
    assert len(ranks.tasks) == 14 and len(ranks.means) == 4
    assert np.isclose(ranks.means.sum(), 1 + 2 + 3 + 4)
    means = [[np.mean(v) for v in drawn(4, seed=k).values()] for k in range(14)]
    by_rank = scipy.stats.rankdata(-np.array(means), axis=1).mean(axis=0)
    np.testing.assert_allclose(ranks.means.sort_index(), by_rank)
    expected = scipy.stats.friedmanchisquare(*np.transpose(means)).pvalue
    assert np.isclose(ranks.p_value, expected)


def test_ranks_are_of_all_that_diverge_nowhere_converged_or_not():
    first, second = rows("t0", drawn(5)), rows("t1", drawn(4, seed=1))
    assert ranking.over_tasks(table(first)) is None
    values = drawn(4, seed=2)
    values["m2"] = [*values["m2"][:4], np.nan]
    found = table(first, second, rows("t2", values, rise={"m1": 0.2}))
    ranks = ranking.over_tasks(found)
    assert sorted(ranks.means.index) == ["m0", "m1", "m3"]
    assert ranking.rising(found) == {"m1": ["t2"]}


def test_data_sets_count_by_what_was_trained_and_not_by_what_was_reached():
    parts = [rows(f"t{k}", drawn(6, seed=k)) for k in range(2)]
    few = rows("few", drawn(3, seed=2))  # half of them
    four = rows("four", drawn(4, seed=2))  # two thirds
    assert ranking.counted(table(*parts, few, four)).tasks == ["t0", "t1", "four"]
    values = {m: [np.nan] * 5 if m < "m3" else v for m, v in drawn(6).items()}
    poor = rows("poor", values, rise={f"m{k}": 1.0 for k in range(6)})
    assert ranking.counted(table(*parts, poor)).tasks == ["t0", "t1", "poor"]
    assert ranking.counted(table(few)).tasks == ["few"]
    assert ranking.counted(table(few, rows("x", {"y": [0.0] * 5}))).tasks == ["few"]


@pytest.mark.parametrize(
    ("old", "few", "counted"),
    [
        (["t2"], [], ["t0", "t1", "t3"]),
        (["t1", "t2", "t3"], [], ["t1", "t2", "t3"]),  # the older ones are more
        (["t1", "t2", "t3"], ["t3"], ["t1", "t2"]),
        (["t2", "t3"], [], ["t0", "t1"]),
        (["t1", "t2"], ["t2"], ["t0", "t3"]),
        (["t0", "t1", "t2", "t3"], [], ["t0", "t1", "t2", "t3"]),
        ([], [], ["t0", "t1", "t2", "t3"]),
    ],
)
def test_older_searches_count_until_the_new_ones_are_as_many(old, few, counted):
    """Of the data sets on which most methods were trained."""
    names = [f"t{k}" for k in range(4)]
    parts = (rows(n, drawn(2 if n in few else 6, seed=k)) for k, n in enumerate(names))
    found = table(*parts, old=old)
    assert found.outdated == old
    assert ranking.counted(found).tasks == counted


def test_bars_join_what_lies_within_the_critical_difference():
    assert pictures._bars([1.0, 1.5, 2.0, 3.4, 3.5], 1.0) == [(1.0, 2.0), (3.4, 3.5)]
    assert pictures._bars([1.0, 2.0, 2.9, 3.5], 1.0) == [(1.0, 2.0), (2.0, 2.9)] + [
        (2.9, 3.5)
    ]
    assert pictures._bars([1.0, 3.0], 1.0) == []


def test_kinds_are_read_from_the_tables():
    local = [0.5, 0.6, 0.7, 0.8, 0.9]
    first = {"Local": local, "Flame": local, "LpProj": [v + 9e-7 for v in local]}
    first |= {"Ditto": [v + 2e-6 for v in local], "FedAvg": local}
    first |= {"Centralized": local, "Majority": [0.1] * 5, "APFL": local}
    second = first | {"FedAvg": [0.4] * 5, "Flame": [*local[:4], 0.8]}
    found = table(rows("t0", first), rows("t1", second))
    assert kinds.copies(found) == {
        "APFL": ["t0", "t1"],
        "Centralized": ["t0", "t1"],
        "FedAvg": ["t0"],
        "Flame": ["t0"],
        "LpProj": ["t0", "t1"],
    }
    assert kinds.of_methods(found) == {
        **dict.fromkeys(("Local", "Centralized", "Majority"), "reference"),
        **dict.fromkeys(("LpProj", "APFL"), "copy of Local"),
        **{"FedAvg": "global", "Ditto": "personal", "Flame": "personal"},
    }
    assert kinds.copies(table(rows("t", {"Ditto": local}))) == {}


def test_the_wider_interval_of_seeds_and_data_sets_judges():
    """Methods that are always 2 points above on one data set and below on another."""
    noise = np.array([0.0, 0.1, -0.1, 0.05, -0.05]) / 100
    gaps = {"t0": 2.0, "t1": 1.0, "t2": -0.6}
    parts = [
        rows(
            task,
            {
                "FedAvg fine-tuned": [0.5] * 5,
                "mixed": (0.5 + gap / 100 + noise).tolist(),
                "same": (0.51 + noise * (1 + k) + k / 1000).tolist(),
            },
        )
        for k, (task, gap) in enumerate(gaps.items())
    ]
    found = table(*parts)
    gap = differences.gaps_to(ranking.complete(found), "FedAvg fine-tuned")
    expected = scipy.stats.ttest_1samp(list(gaps.values()), 0)
    ends = expected.confidence_interval()
    mixed = gap["mixed"]
    assert mixed.wider is mixed.tasks and mixed.mean == pytest.approx(0.8)
    assert mixed.tasks.margin == pytest.approx((ends.high - ends.low) / 2)
    assert mixed.wider.p_value == pytest.approx(expected.pvalue)
    seeds = scipy.stats.ttest_1samp(0.8 + 100 * noise, 0).confidence_interval()
    assert mixed.seeds.margin == pytest.approx((seeds.high - seeds.low) / 2)
    assert differences.verdicts({"mixed": mixed}) == {}  # by seeds it would be better
    assert mixed.seeds.verdict == "holds"
    assert str(mixed) == (
        f"+0.80 (over seeds [{seeds.low:+.2f}, {seeds.high:+.2f}], over data sets"
        f" [{ends.low:+.2f}, {ends.high:+.2f}])"
    )
    # 1, 1.1 and 1.2 points: both intervals are narrow.
    assert differences.verdicts({"same": gap["same"]}) == {"same": True}
    chances = [mixed.wider.p_value, gap["same"].wider.p_value]
    corrected = differences.p_values(gap)
    assert corrected["same"] == pytest.approx(2 * min(chances))
    assert corrected["mixed"] == pytest.approx(max(chances))


def test_references_are_the_first_that_diverge_nowhere():
    values = {"FedAvg": [0.5] * 5, "FedAvg fine-tuned": [0.6] * 4 + [np.nan]}
    first = table(rows("t", values))
    assert differences.reference(first) == "FedAvg"
    values["FedAvg fine-tuned"] = [0.6] * 5
    assert differences.reference(table(rows("t", values))) == "FedAvg fine-tuned"
    alone = table(rows("t", {"a": [0.1] * 5, "b": [0.2] * 5}))
    assert differences.reference(alone) is None
    name, gaps = differences.of_task(alone, ranking.places(alone))
    assert name == "b" and gaps["a"].mean == pytest.approx(-10)


def test_methods_and_data_are_named():
    process = fp.FederatedProcess(algorithm=fp.FedAvg(fine_tune=fp.SGD()))
    assert tasks.name_of(process) == "FedAvg fine-tuned"
    config = {"federation.dataset": "digits", "federation.partition": "LabelShards"}
    config |= {"federation.partition.labels_per_client": 4, "model": "CNN"}
    config |= {"federation.num_clients": 25, "num_rounds": 100}
    assert finished.federation(config) == (
        "digits, LabelShards (labels_per_client = 4), num_clients = 25, CNN, 100 rounds"
    )
