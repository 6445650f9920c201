"""Pages of a benchmark: cells, costs, commands and origins of tables that are known."""

import re

import numpy as np
import pytest

from fedjax_pfl.benchmark import data_set, finished, page, ranking, reading
from fedjax_pfl.core import checks
from tests.benchmark.test_ranking import rows, table

VALUES = {"FedAvg": [0.4] * 5, "Ditto": [0.5, 0.51, 0.49, 0.5, 0.5]}
LIMITED = "bench --tune-budget 9gradients"
VALUES |= {"FedAvg fine-tuned": [0.7] * 5, "Flame": [0.45] * 5}


def cells_of(made, method):
    """Cells of a table's row by column."""
    (row,) = (row for row in made.parts[0].rows if row[0] == method)
    return dict(zip(made.columns, row, strict=True))


def test_the_overview_has_every_method_and_data_set():
    second = VALUES | {"Flame": [0.9] * 4 + [np.nan], "FedAvg": [0.2] * 5}
    second["FedAvg fine-tuned"] = [0.5, 0.49, 0.51, 0.5, 0.5]
    found = table(
        rows("t0", VALUES, rise={"FedAvg": 0.01}),
        rows("t1", second),
        rows("few", {"Ditto": [0.1] * 5}),
    )
    made = page.overview(found)
    assert made.columns == ("method", "kind", "t0", "t1", "few", "mean")
    assert made.parts[0].rows == (
        ("FedAvg fine-tuned", "personal", "• 70.0", "• 50.0", "–", "60.0"),
        # The data set `few` has no part in the mean.
        ("Ditto", "personal", "50.0", "• 50.0", "• 10.0", "50.0"),
        ("FedAvg †", "global", "40.0 †", "20.0", "–", "30.0"),
        ("Flame", "personal", "45.0", "– diverged", "–", "–"),
    )


def test_costs_until_the_target_are_shown_where_it_is_not_met_at_once():
    rounds = {
        "FedAvg": [20, 20, 20, 20, 10],
        "Ditto": [5, 0, 5, 5, np.nan],  # in all seeds that come there
        "Flame": [5, 10, 10, 10, 15],
        "FedAvg fine-tuned": [np.nan] * 5,
    }
    more = {"rounds_to_fedavg": rounds, "first_evaluation": dict.fromkeys(VALUES, 5)}
    for name in ("gradients", "bytes", "virtual_seconds"):
        scaled = {m: [1e6 * r for r in v] for m, v in rounds.items()}
        more[f"{name}_to_fedavg"] = scaled
    more["gradients"] = dict.fromkeys(VALUES, 8e6)
    task = table(rows("t", VALUES, **more))
    made = data_set.costs(task, ranking.places(task))
    assert made.columns[:6] == (
        *("method", "MB", "gradients", "virtual seconds", "reached", "rounds to it"),
    )
    shown = {m: cells_of(made, m) for m in VALUES}
    assert [shown[m]["reached"] for m in VALUES] == [
        *("5 of 5", "4 of 5", "0 of 5", "5 of 5")
    ]
    assert [shown[m]["rounds to it"] for m in VALUES] == ["18", "at once", "–", "≤ 10"]
    assert [shown[m]["MB to it"] for m in VALUES] == ["18", "at once", "–", "≤ 10"]
    assert shown["FedAvg"]["gradients to it"] == "18,000,000"
    assert shown["FedAvg"]["gradients"] == "8,000,000"
    assert not any("second" in name and "virtual" not in name for name in made.columns)


def test_differences_are_to_the_reference_and_to_the_best():
    values = VALUES | {"Best": [0.8] * 5}
    task = table(rows("t", values))
    made = data_set.versus(task, ranking.places(task), "FedAvg fine-tuned")
    assert cells_of(made, "Ditto") == {
        "method": "Ditto",
        "minus FedAvg fine-tuned": "-20.00 [-20.88, -19.12]",
        "p": "< 0.001",
        "below the best": "-30.00 [-30.88, -29.12]",
    }
    assert list(cells_of(made, "FedAvg fine-tuned").values())[1:3] == ["–", "–"]
    assert cells_of(made, "Best")["below the best"] == "–"


@pytest.mark.parametrize(
    ("line", "old", "expected"),
    [
        ("bench --only a", (), "bench --tune-budget 2000000gradients"),
        ("bench --only a", ("t",), "bench"),
        (f"{LIMITED} --only a", (), LIMITED),
        ("", (), ""),
    ],
)
def test_commands_say_the_budget_unless_it_was_one_of_steps(line, old, expected):
    task = table(rows("t", VALUES), old=old)
    task.searches["command"] = line
    assert data_set.command(task) == expected


def test_the_number_of_searched_fields_stands_beside_the_settings():
    task = table(rows("t", VALUES))
    task.searches["fields"] = [0, 1, 2, 3]
    made = data_set.searches(task, ranking.places(task))
    shown = [cells_of(made, m)["fields searched"] for m in VALUES]
    assert shown == ["0", "1", "2", "3"]


def test_the_origin_has_every_commit_machine_and_date():
    found = table(rows("t", VALUES))
    words = "commit, versions, machine and date not recorded."
    assert reading.origin(found) == f"Origin of the rows: {words}"
    found.searches["commit"] = ["b", "a", "a", ""]
    found.searches["versions"] = "jax 1"
    found.searches["machine"] = ["m", "m", "n", "m"]
    found.searches["date"] = ["2026-02-03", "2026-01-31", "2026-02-01", "2026-02-01"]
    assert reading.origin(found) == (
        "Origin of the rows: commit a; b; not recorded for 1 of 4 rows, versions"
        " jax 1, machine m; n, date 2026-01-31 to 2026-02-03."
    )


def test_every_page_has_an_origin_and_old_data_sets_say_that_they_are(tmp_path):
    found = table(*(rows(f"t{k}", VALUES) for k in range(3)), old=("t2",))
    found.searches["data"] = "Toys, two each"
    path = page.write(found, tmp_path)
    assert path == tmp_path / "benchmark.html"
    for suffix in ("md", "html"):
        texts = {
            file.stem: file.read_text("utf-8") for file in tmp_path.rglob(f"*.{suffix}")
        }
        assert set(texts) == {"benchmark", "t0", "t1", "t2"}
        for name, text in texts.items():
            assert "Origin of the rows: commit" in text
            assert "Toys, two each" in text
            is_old = reading.OUTDATED.lower() in text.lower()
            assert is_old == (name in ("t2", "benchmark"))
            assert "toctree" not in text
            assert ("--tune-budget" in text) == (name in ("t0", "t1"))
        assert f"benchmark/t1.{suffix}" in texts["benchmark"]
        assert f"../benchmark.{suffix}" in texts["t1"]
    assert "t2: trained before ranges were widened" in texts["benchmark"]
    page.write(found, tmp_path, html=False)
    text = (tmp_path / "benchmark.md").read_text("utf-8")
    assert ":hidden:\n\nbenchmark/t0\nbenchmark/t1\nbenchmark/t2\n```" in text


@pytest.mark.parametrize(
    ("fixed", "sentence"),
    [
        ((), "What is a test example of one seed may have chosen settings in another."),
        (
            ("t0",),
            "On t0 test examples are the same for all seeds, so that none chose"
            " settings; on the others what is a test example of one seed may",
        ),
        (("t0", "t1"), "Test examples are the same for all seeds, so that none chose"),
    ],
)
def test_the_page_says_whose_test_examples_may_have_chosen(tmp_path, fixed, sentence):
    found = table(rows("t0", VALUES), rows("t1", VALUES))
    of_fixed = found.searches["task"].isin(fixed)
    found.searches["data"] = of_fixed.map({True: finished.FIXED_TESTS, False: "Toys"})
    text = page.write(found, tmp_path, html=False).read_text("utf-8")
    assert sentence in text
    assert ("may have chosen" in text) == (len(fixed) < 2)


@pytest.mark.parametrize("name", ["benchmark", "benchmark_files"])
def test_pages_are_not_written_through_a_link(tmp_path, name):
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / name).symlink_to(tmp_path / "there")
    with pytest.raises(checks.InputError, match="it is a link"):
        page.write(table(rows("t", VALUES)), tmp_path / "here")
    assert not list((tmp_path / "there").iterdir())


def test_every_head_of_a_column_is_explained(tmp_path):
    shares = {n: dict.fromkeys(VALUES, 0.5) for n in ("unseen", "better_than_local")}
    page.write(table(rows("t", VALUES, **shares)), tmp_path)
    front = (tmp_path / "benchmark.md").read_text("utf-8")
    told = dict(re.findall(r"^> \* \*\*(.*?)\*\*: (.*)$", front, re.M))
    names = {name for terms in told for name in terms.split(", ")}
    text = front + (tmp_path / "benchmark/t.md").read_text("utf-8")
    heads = set()
    for line in re.findall(r"^\| method \|(.*)\|\n\| ---", text, re.M):
        heads |= {head.strip() for head in line.split("|")}
    assert {"kind", "gradients to it", "unseen clients", "better than Local"} <= heads
    patterns = {re.escape(name).replace("…", ".+") for name in names}
    patterns |= {"t", "(worse|better) than (FedAvg|Local)"}  # a data set; one line
    for head in heads:
        assert any(re.fullmatch(pattern, head) for pattern in patterns), head
