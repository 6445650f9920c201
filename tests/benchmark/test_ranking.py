"""Groups and ranks against SciPy's tests and published numbers."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from fedjax_pfl.benchmark import findings, pictures, ranking, tables

SEEDS = [10, 11, 12, 13, 14]


def rows(task, values, **more):
    """Rows of `Tables.scores`: `values` by method are numbers by seed."""
    made = []
    for method, numbers in values.items():
        for seed, value in zip(SEEDS, numbers, strict=True):
            row = dict.fromkeys(tables.SCORES, 0.0) | {"task": task, "method": method}
            row |= {"seed": seed, "value": value, "status": "ok", "model": "personal"}
            row["metric"] = "accuracy"
            made.append(row | {name: cells[method] for name, cells in more.items()})
    return made


def table(*parts):
    scores = pd.DataFrame(list(itertools.chain(*parts)), columns=list(tables.SCORES))
    methods = scores[["task", "method"]].drop_duplicates()
    searches = methods.assign(best=0.8, median=0.75).reindex(
        columns=list(tables.SEARCHES)
    )
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
    assert ranks.num_tasks == 14 and len(ranks.means) == 4
    assert np.isclose(ranks.means.sum(), 1 + 2 + 3 + 4)
    means = [[np.mean(v) for v in drawn(4, seed=k).values()] for k in range(14)]
    by_rank = scipy.stats.rankdata(-np.array(means), axis=1).mean(axis=0)
    np.testing.assert_allclose(ranks.means.sort_index(), by_rank)
    expected = scipy.stats.friedmanchisquare(*np.transpose(means)).pvalue
    assert np.isclose(ranks.p_value, expected)


def test_ranks_want_methods_that_are_ranked_everywhere():
    first, second = rows("t0", drawn(4)), rows("t1", drawn(4, seed=1))
    assert ranking.over_tasks(table(first)) is None
    rises = {"m0": 0.0, "m1": 0.2, "m2": 0.0, "m3": 0.0}
    third = rows("t2", drawn(4, seed=2), rise=rises)
    ranks = ranking.over_tasks(table(first, second, third))
    assert sorted(ranks.means.index) == ["m0", "m2", "m3"]
    assert ranks.elsewhere == {"m1": ["t2"]}


def test_data_sets_of_few_methods_have_no_part_in_what_is_said_of_all():
    parts = [rows(f"t{k}", drawn(6, seed=k)) for k in range(2)]
    few = rows("few", drawn(3, seed=2))  # half of them
    found, alone = table(*parts, few), table(*parts)
    assert found.tasks == ["t0", "t1", "few"]
    assert ranking.compared(found).tasks == ["t0", "t1"]
    pd.testing.assert_series_equal(
        ranking.over_tasks(found).means, ranking.over_tasks(alone).means
    )
    said = [text.replace("2 of 3", "2") for text in findings.sentences(found)]
    assert said == findings.sentences(alone) != findings.sentences(found)
    assert all("on t0" in text for text in findings.sentences(table(parts[0], few)))
    rises = {f"m{k}": 0.01 * (k < 3) for k in range(6)}
    rising = rows("rising", drawn(6, seed=3), rise=rises)  # half of them are ranked
    assert findings.sentences(table(*parts, rising)) == findings.sentences(found)
    more = rows("more", drawn(6, seed=3), rise=rises)
    assert findings.sentences(table(rising, more)) == []
    assert ranking.over_tasks(table(rising, more)) is None


def test_bars_join_what_lies_within_the_critical_difference():
    assert pictures._bars([1.0, 1.5, 2.0, 3.4, 3.5], 1.0) == [(1.0, 2.0), (3.4, 3.5)]
    assert pictures._bars([1.0, 2.0, 2.9, 3.5], 1.0) == [(1.0, 2.0), (2.0, 2.9)] + [
        (2.9, 3.5)
    ]
    assert pictures._bars([1.0, 3.0], 1.0) == []


def test_findings_have_the_numbers_of_the_tables():
    values = drawn(3) | {"FedAvg": [0.5] * 5, "FedAvg fine-tuned": [0.6] * 5}
    values["m0"] = [0.7, 0.71, 0.69, 0.7, 0.7]
    values["m1"] = [0.6, 0.61, 0.59, 0.6, 0.6]
    values["m2"] = [0.3, 0.31, 0.29, 0.3, 0.3]
    hurt = {"FedAvg": 0.5, "FedAvg fine-tuned": 0.25, "m0": 0.125, "m1": 0.3}
    found = table(rows("t", values, worse_than_local=hurt | {"m2": 1.0}))
    first, second, third = findings.sentences(found)
    assert "Of 4 methods 1 (m0) is clearly better" in first
    assert "and 2 clearly worse" in first
    assert "m0's, by itself +10.00 [+9.12, +10.88] points" in first
    assert "serves 50.0 % [50.0, 50.0]" in second
    assert "with m0, which harms fewest, it is 12.5 % [12.5, 12.5]" in second
    assert "5.0 [5.0, 5.0] points below" in third and "matter less" in third
    assert "tuned methods lie 10.0 points" in third
    losses = np.resize([0.0, 0.05, 0.1, 0.15, 0.2], len(found.searches))
    wide = found.searches.assign(median=found.searches["best"] - losses)
    *_, third = findings.sentences(dataclasses.replace(found, searches=wide))
    assert "matter as much as methods" in third


def test_learned_rows_stand_beside_their_methods_and_count_once():
    values = {"FedAvg fine-tuned": [0.6] * 5, "m": [0.7, 0.71, 0.69, 0.7, 0.7]}
    others = {"FedAvg": [0.5] * 5}
    before = findings.sentences(table(rows("t", others | values)))
    values["m learned"] = [0.72, 0.73, 0.71, 0.72, 0.73]
    found = table(rows("t", others | values))
    is_learned = found.searches["method"] == "m learned"
    found.searches.loc[is_learned, ["best", "median"]] = np.nan
    *same, last = findings.sentences(found)
    assert same == before
    gap = scipy.stats.ttest_1samp([2.0, 2.0, 2.0, 2.0, 3.0], 0).confidence_interval()
    assert f": m +2.20 [{gap.low:+.2f}, {gap.high:+.2f}]." in last
    assert len(ranking.places(found)) == 4
