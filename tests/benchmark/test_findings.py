"""Findings against tables with known answers."""

import numpy as np
import pytest
import scipy.stats

from fedjax_pfl.benchmark import findings
from tests.benchmark.test_ranking import drawn, rows, table

LOCAL = [0.5, 0.51, 0.49, 0.5, 0.5]
VALUES = {
    "FedAvg": [0.4] * 5,
    "FedAvg fine-tuned": [0.6] * 5,
    "Ditto": [0.7, 0.71, 0.69, 0.7, 0.7],
    "Flame": [0.6, 0.61, 0.59, 0.6, 0.6],
    "FedPer": [0.3, 0.31, 0.29, 0.3, 0.3],
    "LpProj": LOCAL,
    "Local": LOCAL,
    "Centralized": [0.65] * 5,
}


def one(word, found):
    """The only finding with a word."""
    (text,) = (text for text in findings.sentences(found) if word in text)
    return text


def test_methods_are_counted_by_kind():
    found = table(rows("t", VALUES))
    text = one("learly", found)
    assert "on this data set, corrected for 7 comparisons:" in text
    better, worse = text.split(". Clearly worse: ")
    assert better.endswith(
        "1 of 3 personal methods (Ditto), 0 of 1 global model, 1 of 2 references"
        " (Centralized), 0 of 1 copy of Local"
    )
    assert worse == (
        "1 of 3 personal methods (FedPer), 1 of 1 global model (FedAvg), 1 of 2"
        " references (Local), 1 of 1 copy of Local (LpProj)."
    )
    assert one("largest", found) == (
        "The largest difference to a fine-tuned FedAvg has Ditto, on this data set:"
        " +10.00 [+9.12, +10.88] points."
    )


def test_what_differs_between_data_sets_is_clear_by_seeds_alone():
    worse = VALUES | {"Ditto": [0.595, 0.596, 0.594, 0.595, 0.595]}
    found = table(rows("t0", VALUES), rows("t1", VALUES), rows("t2", worse))
    judged, alone = (s for s in findings.sentences(found) if "learly" in s)
    assert "by the wider of two intervals" in judged and "over seeds alone" in alone
    assert "0 of 3 personal methods" in judged.partition("learly worse")[0]
    assert "1 of 3 personal methods (Ditto)" in alone.partition("learly worse")[0]
    for text in (judged, alone):
        assert "1 of 3 personal methods (FedPer)" in text.partition("learly worse")[2]
    # 10, 10 and -0.5 points: t of two degrees of freedom.
    ends = scipy.stats.ttest_1samp([10.0, 10.0, -0.5], 0).confidence_interval()
    text = f"over data sets [{ends.low:+.2f}, {ends.high:+.2f}]"
    assert text in one("largest", found)


def test_copies_of_local_harm_nobody_and_are_not_praised_for_it():
    hurt = {"FedAvg": 0.5, "FedAvg fine-tuned": 0.25, "Ditto": 0.125, "Flame": 0.3}
    hurt |= {"FedPer": 1.0, "LpProj": 0.0, "Local": np.nan, "Centralized": 0.01}
    gain = {"FedAvg": 0.375, "FedAvg fine-tuned": 0.5, "Ditto": 0.625, "Flame": 0.1}
    gain |= {"FedPer": 0.0, "LpProj": 0.0, "Local": np.nan, "Centralized": 0.9}
    columns = {"worse_than_local": hurt, "better_than_local": gain}
    text = one("training alone", table(rows("t", VALUES, **columns)))
    assert "for 50.0 % [50.0, 50.0] of the clients and better for 37.5 % [37.5" in text
    least = "with the fewest such clients, for 12.5 % [12.5, 12.5] of the clients"
    assert f"Ditto, the method {least} and better for 62.5 % [62.5, 62.5]." in text
    # A method that is Local on one of two data sets is none that harms few there.
    second = VALUES | {"LpProj": [0.55] * 5}
    found = table(rows("t0", VALUES, **columns), rows("t1", second, **columns))
    assert "Ditto, the method with the fewest" in one("training alone", found)
    columns["better_than_local"] = dict.fromkeys(VALUES, np.nan)
    text = one("training alone", table(rows("t", VALUES, **columns)))
    assert text.endswith(f"{least}.") and "better" not in text


def test_times_are_compared_where_no_method_is_there_at_its_first_evaluation():
    rounds = {"FedAvg": [10, 20, 10, 20, 10], "Ditto": [10] * 5, "Flame": [20] * 5}
    times = {m: [3.0 * r for r in v] for m, v in rounds.items()}
    times["Ditto"] = [6.0, 12.0, 6.0, 12.0, 6.0]
    columns = {"rounds_to_fedavg": rounds, "virtual_seconds_to_fedavg": times}
    columns["first_evaluation"] = dict.fromkeys(rounds, 5)
    values = {name: VALUES[name] for name in rounds}
    found = table(rows("t", values, **columns))
    assert "by Ditto: in 0.20 [0.20, 0.20] of the time" in one("soonest", found)
    for method in ("Flame", "Ditto"):
        early = rounds | {method: [5, *rounds[method][1:]]}
        found = table(rows("t", values, **(columns | {"rounds_to_fedavg": early})))
        assert not any("soonest" in text for text in findings.sentences(found))
    # A method that is not always there says nothing of when it came.
    columns["virtual_seconds_to_fedavg"] = times | {"Flame": [np.nan] * 5}
    columns["rounds_to_fedavg"] = rounds | {"Flame": [5, np.nan, 5, 5, 5]}
    assert "by Ditto: in 0.20" in one("soonest", table(rows("t", values, **columns)))
    # One that is there before it is trained, in no time, is there at once, too.
    columns["virtual_seconds_to_fedavg"] = times | {"Flame": [0.0] * 5}
    columns["rounds_to_fedavg"] = rounds | {"Flame": [0] * 5}
    found = table(rows("t", values, **columns))
    assert not any("soonest" in text for text in findings.sentences(found))


def test_first_rungs_of_searches_are_no_finding():
    """Few settings are trained to the end, so they cannot be compared there."""
    found = table(rows("t", VALUES))
    before = findings.sentences(found)
    found.searches["median"] = np.linspace(0.1, 0.7, len(found.searches))
    assert findings.sentences(found) == before
    assert not any("etting" in text for text in before)


def test_learned_rows_stand_beside_their_methods_and_count_once():
    before = findings.sentences(table(rows("t", VALUES)))
    values = VALUES | {"Ditto learned": [0.72, 0.73, 0.71, 0.72, 0.73]}
    *same, last = findings.sentences(table(rows("t", values)))
    assert same == before
    gap = scipy.stats.ttest_1samp([2.0, 2.0, 2.0, 2.0, 3.0], 0).confidence_interval()
    assert f": Ditto +2.20 [{gap.low:+.2f}, {gap.high:+.2f}]." in last


def test_unconverged_methods_count_with_a_dagger_and_diverged_ones_are_missing():
    diverged = VALUES | {"Flame": [0.9] * 4 + [np.nan]}
    found = table(rows("t0", VALUES, rise={"Ditto": 0.1}), rows("t1", diverged))
    assert " has Ditto †, in" in one("largest", found)
    assert "over 2 data sets: +10.00" in one("largest", found).replace("the mean ", "")
    assert "of 2 personal methods" in one("by the wider", found)
    assert findings.rule(found).endswith("Missing: Flame.")


@pytest.mark.parametrize(
    ("old", "over", "words"),
    [
        ((), "over 3 of 4 data sets", "Without: few."),
        (("few",), "over 3 of 4 data sets", "have no part"),
        (("few", "t1", "t2"), "over 2 of 4 data sets", "until the others are as many"),
    ],
)
def test_the_rule_says_which_data_sets_count(old, over, words):
    parts = [rows(f"t{k}", VALUES) for k in range(3)]
    few = rows("few", drawn(3) | {"FedAvg": [0.5] * 5})
    found = table(*parts, few, old=old)
    assert words in findings.rule(found)
    assert over in one("largest", found)
    assert ("Most data sets" in findings.rule(found)) == ("t1" in old)
