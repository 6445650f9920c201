"""Method cards: tables and verdicts from result files, and the committed cards."""

import dataclasses
import itertools
import json

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import typer.testing
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_pfl as fp
from experiments.cards import (
    __main__,
    claims,
    keep,
    kept,
    pages,
    reproduction,
    runs,
    scale,
)
from fedjax_pfl import benchmark
from fedjax_pfl.command import presets
from fedjax_pfl.core import checks
from fedjax_pfl.results import paired
from tests import histories
from tests.command import test_commands

RUNNER = typer.testing.CliRunner()
A = runs.Side("Alpha", "personal")
B = runs.Side("Beta", "personal")
CARD = pages.Card(
    method="toy",
    title="Toy",
    text="Words.",
    reference=B,
    claims=(claims.Claim("alpha beats beta", "first", A, B),),
)


def cells(algorithm, seed, value, **changes):
    """Rows of one training as `Result.table` has them."""
    row = {
        "algorithm": algorithm,
        "dataset": "digits",
        "partition": "dirichlet_labels",
        "seed": seed,
        "algorithm.lam": np.nan,
        "federation.partition.concentration": 0.5,
        "model": "personal",
        "population": "all",
        "data": "own test",
        "metric": "accuracy",
        "stat": "mean",
        "when": "last",
        "value": value,
        "status": "ok",
    } | changes
    noise = [{"metric": "loss"}, {"stat": "std"}, {"when": "best (oracle)"}]
    return [row, *({**row, "value": 77.0} | other for other in noise)]


def save(
    results,
    name,
    rows,
    command="python -m experiments.sweep --preset digits",
    reports=None,
):
    path = results / "toy" / f"{name}.nc"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame(rows).drop_duplicates()
    kept.write(path, command, table, reports)
    return path


def pairs(first, second):
    rows = [cells("Alpha", s, v) for s, v in enumerate(first)]
    rows += [cells("Beta", s, v) for s, v in enumerate(second)]
    return list(itertools.chain(*rows))


def render(card, results):
    """All pages of a card, one after the other."""
    return "\n".join(pages.render(card, pages.read(card, results)).values())


def line_with(text, *words):
    (found,) = (x for x in text.splitlines() if all(w in x for w in words))
    return found


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8))
def test_the_interval_is_that_of_the_paired_test(values):
    first, second = np.array(values).T
    found = paired.interval(pd.Series(first), pd.Series(second))
    gaps = first - second
    if gaps.std() < 1e-6:
        return
    test = scipy.stats.ttest_rel(first, second)
    low, high = test.confidence_interval(0.95)
    np.testing.assert_allclose(
        [found.mean - found.margin, found.mean + found.margin], [low, high], atol=1e-9
    )
    verdict = "holds" if low > 0 else "does not hold" if high < 0 else "undecided"
    if min(abs(low), abs(high)) > 1e-9:
        assert found.verdict == verdict


def test_lost_seeds_do_not_count():
    first = pd.Series([1.0, np.nan, 3.0], index=[0, 1, 2])
    second = pd.Series([0.0, 1.0, 1.0], index=[0, 1, 5])
    found = paired.interval(first, second)
    assert (found.pairs, found.lost, found.mean) == (1, 3, 1.0)
    assert found.margin == np.inf and "one pair (3 of 4 lost)" in str(found)
    nothing = paired.interval(first[1:2], second[1:2])
    assert nothing.margin == np.inf and str(nothing) == "no pairs (1 of 1 lost)"


HIGH, LOW = [0.80, 0.82, 0.85, 0.81, 0.82], [0.70, 0.71, 0.76, 0.72, 0.71]


@pytest.mark.parametrize(
    ("first", "second", "command", "verdict"),
    [
        (HIGH, LOW, "", "holds"),
        (LOW, HIGH, "", "does not hold"),
        (HIGH, HIGH[::-1], "", "undecided"),
        (HIGH[:4], LOW[:4], "", "undecided"),
        (HIGH, LOW, " --rounds 7", "not comparable"),
        (HIGH, LOW, " --set algorithm.lam=3", "not comparable"),
    ],
)
def test_verdicts_follow_from_the_pairs_and_the_scale(
    tmp_path, first, second, command, verdict
):
    command = f"python -m experiments.sweep --preset digits{command}"
    save(tmp_path, "first", pairs(first, second), command)
    row = line_with(render(CARD, tmp_path), "alpha beats beta")
    assert row.rstrip(" |").rpartition(" | ")[2] == verdict
    ours = dataclasses.replace(CARD.claims[0], text="ours, alpha beats beta")
    row = line_with(
        render(dataclasses.replace(CARD, claims=(ours,)), tmp_path), "alpha beats"
    )
    wanted = "holds" if verdict == "not comparable" else verdict
    assert row.rstrip(" |").rpartition(" | ")[2] == wanted


@pytest.mark.smoke
def test_a_card_has_the_numbers_of_the_runs(tmp_path):
    save(tmp_path, "first", pairs([0.80, 0.82, 0.85], [0.70, 0.71, 0.76]))
    text = render(CARD, tmp_path)
    mean, std = (
        100 * np.mean([0.80, 0.82, 0.85]),
        100 * np.std([0.80, 0.82, 0.85], ddof=1),
    )
    half = (
        scipy.stats.t.ppf(0.975, 2) * 100 * np.std([0.1, 0.11, 0.09], ddof=1) / 3**0.5
    )
    row = line_with(text, "| Alpha | personal |")
    assert f"| 3 | {mean:.2f} ± {std:.2f} |" in row
    assert f"+10.00 [{10 - half:+.2f}, {10 + half:+.2f}]" in row
    assert line_with(text, "| Beta | personal |").endswith("|  |")  # the reference
    assert "77" not in text  # of other metrics, stats and rounds
    assert text.startswith("# Toy\n") and text.endswith("|\n")
    assert "* [runs and claims](toy-runs.md)" in text


def test_honest_clients_are_shown_where_some_are_malicious(tmp_path):
    rows = cells("Alpha", 0, 0.5) + cells("Alpha", 0, 0.9, population="honest")
    rows += cells("Alpha", 0, 0.1, population="participants")
    save(tmp_path, "first", rows)
    row = line_with(render(CARD, tmp_path), "| Alpha | personal |")
    assert "90.00" in row


def test_diverged_seeds_are_counted(tmp_path):
    rows = pairs([0.80, 0.82], [0.70, 0.71])
    rows += cells("Alpha", 2, np.nan, status="diverged at round 3")
    rows += cells("Beta", 2, 0.72) + cells("Gamma", 0, np.nan, status="diverged")
    save(tmp_path, "first", rows)
    text = render(CARD, tmp_path)
    assert "| 2 of 3 | 81.00 ± 1.41 |" in line_with(text, "| Alpha | personal |")
    assert "(1 of 3 lost)" in line_with(text, "alpha beats beta")
    assert "| 0 of 1 | diverged |" in line_with(text, "| Gamma | personal |")


def test_a_setting_that_diverges_with_some_seeds_is_not_the_best(tmp_path):
    """The mean of the seeds that it survives with is that of the easy ones."""
    rows = list(itertools.chain(*(cells("Beta", seed, 0.7) for seed in range(2))))
    for seed in range(2):
        for lam, value in ((1.0, 0.8), (2.0, 0.9 if seed else np.nan)):
            for data in ("own test", "own validation"):
                extra = {"algorithm.lam": lam, "data": data}
                rows += cells("Alpha", seed, value, **extra)
    save(tmp_path, "first", rows)
    assert "| +10.00 [" in line_with(render(CARD, tmp_path), "alpha beats")


def test_settings_that_all_diverged_are_no_missing_validation(tmp_path):
    """There is nothing to choose by, and nothing to choose."""
    rows = pairs([0.80], [0.70]) + cells("Beta", 1, 0.7)
    for lam, data in itertools.product((1.0, 2.0), ("own test", "own validation")):
        extra = {"algorithm.lam": lam, "data": data, "status": "diverged at round 2"}
        rows += cells("Alpha", 1, np.nan, **extra)
    rows = [row for row in rows if row["seed"] == 1]
    save(tmp_path, "first", rows)
    assert "(1 of 1 lost)" in line_with(render(CARD, tmp_path), "alpha beats")


def tuned(values):
    """Two settings of Alpha; the better one on validation data is not that on test."""
    rows = []
    for lam, (test, validation) in values.items():
        for seed in range(3):
            extra = {"algorithm.lam": lam}
            rows += cells("Alpha", seed, test + seed / 100, **extra)
            rows += cells("Alpha", seed, validation, data="own validation", **extra)
    return rows + list(itertools.chain(*(cells("Beta", s, 0.7) for s in range(3))))


def test_settings_are_chosen_on_validation_data(tmp_path):
    save(tmp_path, "first", tuned({0.1: (0.8, 0.6), 1.0: (0.75, 0.7)}))
    text = render(CARD, tmp_path)
    assert "+6.00 [" in line_with(text, "alpha beats beta")  # of lam = 1
    assert "| Alpha, lam = 0.1 |" in text and "| Alpha, lam = 1.0 |" in text
    fixed = runs.Side("Alpha", "personal", {"algorithm.lam": 0.1})
    own = (claims.Claim("x", "first", fixed, B),)
    card = pages.Card("toy", "Toy", "", B, claims=own)
    assert "+11.00 [" in line_with(render(card, tmp_path), "| x |")


def test_several_settings_without_validation_data_are_refused(tmp_path):
    rows = [r for r in tuned({0.1: (0.8, 0.6), 1.0: (0.75, 0.7)})]
    save(tmp_path, "first", [r for r in rows if r["data"] == "own test"])
    with pytest.raises(checks.InputError, match="choose among 2 settings of Alpha"):
        render(CARD, tmp_path)


def test_differences_to_a_reference_of_several_settings_are_left_out(tmp_path):
    rows = [r for r in tuned({0.1: (0.8, 0.6), 1.0: (0.75, 0.7)})]
    save(tmp_path, "first", [r for r in rows if r["data"] == "own test"])
    text = render(pages.Card("toy", "Toy", "", A), tmp_path)
    beta = line_with(text, "| Beta |")
    assert "70.00" in beta and "[" not in beta


def test_claims_are_decided_for_every_environment(tmp_path):
    hard = {"federation.partition.concentration": 0.1}
    rows = pairs(HIGH, LOW)
    for seed in range(5):
        rows += cells("Alpha", seed, 0.5, **hard)
        rows += cells("Beta", seed, 0.6 + seed / 100, **hard)
    save(tmp_path, "first", rows)
    text = render(CARD, tmp_path)
    assert "| holds |" in line_with(text, "alpha beats beta", "concentration = 0.5")
    lost = line_with(text, "alpha beats beta", "concentration = 0.1")
    assert "| does not hold |" in lost


def test_a_field_that_a_run_lacks_is_named(tmp_path):
    save(tmp_path, "first", cells("Alpha", 0, 0.5))
    only = {"federation.market": "crisis"}
    claim = claims.Claim("x", "first", A, B, only=only)
    card = dataclasses.replace(CARD, claims=(claim,))
    with pytest.raises(checks.InputError, match=r"'first' \(dataset, .*market'\.$"):
        render(card, tmp_path)


def test_missing_runs_and_sides_are_said(tmp_path):
    assert "There are none yet." in render(CARD, tmp_path)
    assert "not decided lack run `first`." in render(CARD, tmp_path)
    save(tmp_path, "first", cells("Alpha", 0, 0.5))
    row = line_with(render(CARD, tmp_path), "alpha beats beta")
    assert "no Beta personal | not run" in row


@pytest.mark.parametrize("content", [b"", b"no netCDF", None])
def test_damaged_runs_are_one_sentence(tmp_path, content):
    path = save(tmp_path, "first", pairs([0.8], [0.7]))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(checks.InputError, match="Cannot read .*first.nc' as a kept"):
        render(CARD, tmp_path)


def test_runs_without_a_headline_are_refused(tmp_path):
    save(tmp_path, "first", [r for r in pairs([0.8], [0.7]) if r["metric"] == "loss"])
    with pytest.raises(checks.InputError, match="on own test data in"):
        render(CARD, tmp_path)


def test_the_command_writes_the_card(tmp_path):
    options = ("--out", str(tmp_path / "out"), "--page", str(tmp_path / "page.md"))
    result = RUNNER.invoke(__main__.app, ["fedacs", *options])
    assert result.exit_code == 0, result.output
    written = (tmp_path / "out" / "fedacs-tables.md").read_text("utf-8")
    assert "85.76 ± 0.14 → " in written
    names = {path.stem for path in (tmp_path / "out").iterdir()}
    assert names == {"fedacs", "fedacs-tables", "fedacs-runs"}
    assert not (tmp_path / "page.md").exists()  # which is about all papers
    assert RUNNER.invoke(__main__.app, ["fedax", *options]).exit_code == 2
    missing = RUNNER.invoke(__main__.app, ["--results", str(tmp_path / "no")])
    assert missing.exit_code == 2 and "directory of runs" in missing.stderr


def test_what_rounds_reported_and_who_never_trained_have_columns(tmp_path):
    rows = pairs([0.8, 0.6], [0.7, 0.7])
    rows += [
        {**cells("Alpha", s, 0.1)[0], "population": "never selected"} for s in (0, 1)
    ]
    names = ["algorithm", "dataset", "partition", "seed", "algorithm.lam"]
    names += ["federation.partition.concentration"]
    reports = pd.DataFrame([row for row in rows if row["algorithm"] == "Alpha"])[names]
    reports = reports.drop_duplicates()
    reports = pd.concat(
        [
            reports.assign(name="clipped", value=[0.25, 0.75]),
            reports.assign(name="coverage", value=0.9),
            reports.assign(name="distance", value=7.0),
        ]
    )
    save(tmp_path, "first", rows, reports=reports)
    text = render(CARD, tmp_path)
    header = line_with(text, "| algorithm | model")
    assert header.endswith("| never trained | clipped | trained |")
    assert line_with(text, "| Alpha | personal").endswith("| 10.0 | 50.0 | 90.0 |")
    assert line_with(text, "| Beta | personal").endswith("|  |  |  |")
    assert "0.8" not in header and "70.00" in line_with(text, "| Alpha | personal")


def test_sides_may_ask_for_a_missing_field_and_for_other_environments(tmp_path):
    swept = {"aggregator": "Median", "federation.partition.concentration": 9.0}
    rows = pairs([0.8, 0.82], [0.5, 0.52])
    rows += itertools.chain(*(cells("Alpha", s, 0.9, **swept) for s in (0, 1)))
    save(tmp_path, "first", rows)
    plain = runs.Side("Alpha", "personal", {"aggregator": None})
    robust = runs.Side("Alpha", "personal", {"aggregator": "Median"})
    card = dataclasses.replace(
        CARD,
        claims=(
            claims.Claim("in each", "first", plain, B),
            claims.Claim("across", "first", robust, plain, across=True),
        ),
    )
    text = render(card, tmp_path)
    assert "+30.00" in line_with(text, "in each", "concentration = 0.5")
    assert "not run" in line_with(text, "in each", "concentration = 9")
    assert "+9.00" in line_with(text, "| across | all of these")


def test_claims_name_methods_and_presets_that_exist():
    known = {kind.__name__ for kind in fp.algorithms.ALGORITHMS.values()}
    for card in __main__.CARDS.values():
        headed = [claim for line in card.headlines for claim in line.claims]
        named = {figure.run for figure in card.figures}
        named |= {run for t in card.printed for run in getattr(t, "runs", ())}
        for claim in (*card.claims, *headed):
            assert {claim.better.algorithm, claim.worse.algorithm} <= known
            named.add(claim.run)
        assert named <= set(presets.PRESETS)


ROOT = __main__.FOLDER


@pytest.fixture(scope="module")
def kept_runs():
    """Kept runs by method and name."""
    return {
        name: pages.read(card, ROOT / "results")
        for name, card in __main__.CARDS.items()
    }


@pytest.mark.parametrize("method", __main__.CARDS)
def test_committed_cards_are_those_of_the_kept_runs(kept_runs, method):
    expected = pages.render(__main__.CARDS[method], kept_runs[method])
    for name, text in expected.items():
        assert (ROOT / "cards" / f"{name}.md").read_bytes() == text.encode("utf-8")
        assert len(text.encode("utf-8")) <= 60_000
    others = {path.stem for path in (ROOT / "cards").glob(f"{method}*.md")}
    assert others == set(expected)
    assert len(expected[method].split()) <= 1500


def test_the_committed_page_is_that_of_the_kept_runs(kept_runs):
    plans = __main__.plans_in(ROOT / "results")
    expected = reproduction.render(__main__.CARDS, kept_runs, plans)
    page = ROOT.parent / "docs" / "reproduction.md"
    assert page.read_bytes() == expected.encode("utf-8")


def test_the_committed_benchmark_is_that_of_its_tables(tmp_path):
    found = benchmark.Tables.load(ROOT / "results/benchmark")
    docs = ROOT.parent / "docs"
    benchmark.write(found, tmp_path, html=False)
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.md")}
    own = {str(path.relative_to(docs)) for path in (docs / "benchmark").iterdir()}
    assert written == {"benchmark.md", *own} and len(own) == len(found.tasks)
    for page in written:
        assert (tmp_path / page).read_bytes() == (docs / page).read_bytes()
    drawn = {path.name for path in tmp_path.rglob("*.svg")}
    assert drawn == {path.name for path in (docs / "benchmark_files").iterdir()}


def test_kept_runs_are_netcdf_files_of_sixteen_megabytes_at_most():
    paths = [path for path in (ROOT / "results").rglob("*") if path.is_file()]
    assert {path.suffix for path in paths if path.suffix != ".csv"} == {".nc"}
    assert sum(path.stat().st_size for path in paths) <= 16_000_000


def test_a_kept_run_says_what_it_did_not_record():
    path = ROOT / "results/flame/flame_fair_cifar10_dir.nc"
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        attributes, dataset = tree.attrs, tree["measured"].to_dataset().load()
    for name in ("configuration", "configuration_digest", "provenance", "clients"):
        assert attributes[name] == "not recorded"
    assert dataset["value"].dims == ("point", "measure")
    assert "Flame" in dataset["algorithm"].to_numpy()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "results").rglob("*.nc")), ids=lambda path: path.stem
)
def test_kept_runs_are_those_of_their_presets(path):
    """A preset that has changed since a run was made is found by its digest."""
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        digest, command = tree.attrs.get("preset_digest"), tree.attrs["command"]
    if digest is None:
        pytest.skip("kept before digests were")
    assert digest == scale.digest_of(command)


def test_a_result_is_kept_as_a_card_needs_it(tmp_path):
    record = histories.make_history()
    per_round = record.per_round | {"clipped": np.full((2, 10), 0.25)}
    result = histories.make_result(dataclasses.replace(record, per_round=per_round))
    result.save(tmp_path / "first")
    arguments = ["toy", str(tmp_path / "first"), "--results", str(tmp_path / "kept")]
    done = RUNNER.invoke(keep.app, arguments)
    assert done.exit_code == 2 and "experiment.json" in done.stderr
    command = test_commands.begin(
        tmp_path / "first", ["--preset", "digits", "--seed-list", "0,1"]
    )
    done = RUNNER.invoke(keep.app, arguments)
    assert done.exit_code == 0, done.output
    done = RUNNER.invoke(keep.app, arguments)
    assert done.exit_code == 2 and "first.nc" in done.stderr  # is there already
    path = tmp_path / "kept/toy/first.nc"
    assert [p.name for p in path.parent.iterdir()] == ["first.nc"]
    found = kept.read(path)
    table = found.rows
    assert found.command == command
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        assert tree.attrs["preset_digest"] == scale.digest_of(command)
    assert set(found.reports) >= {"clipped", "coverage"}
    assert (table["when"] == "last").all()
    kinds = set(zip(table["metric"], table["stat"], strict=True))
    assert kinds == {("accuracy", "mean"), ("loss", "variance")}
    side = runs.Side("Flame", "personal")
    card = dataclasses.replace(CARD, reference=side, claims=())
    text = render(card, tmp_path / "kept")
    assert "| 25.0 | 100.0 |" in line_with(text, "| Flame", "global")


def test_runs_of_other_seeds_are_kept_as_one():
    sweep = "python -m experiments.sweep --preset digits"
    parts = [f"{sweep} --seed-list {seeds} --data-dir DIR" for seeds in ("1,2", "3")]
    assert keep.joined(parts) == f"{sweep} --data-dir DIR --seed-list 1,2,3"
    assert keep.joined([sweep]) == sweep
    for wrong in ([parts[0]] * 2, [sweep, parts[0]], [parts[0], f"{parts[1]} --x"]):
        with pytest.raises(checks.InputError, match="seed"):
            keep.joined(wrong)


def test_runs_of_other_methods_are_kept_as_one():
    sweep = "python -m experiments.sweep --preset digits"
    usual = scale.preset_of(sweep).seeds
    parts = [f"{sweep} --algorithm fedavg --seed-list {seed}" for seed in usual]
    parts.append(f"{sweep} --algorithm ditto")
    assert keep.joined(parts) == f"{sweep} --algorithm fedavg,ditto"
    with pytest.raises(checks.InputError, match="the same for all methods"):
        keep.joined(parts[1:])


def test_a_kept_run_has_configuration_provenance_and_every_client(tmp_path):
    record = histories.make_history()
    result = histories.make_result(record)
    groups, attributes = kept.record_of(result)
    rows = result.table()
    kept.write(tmp_path / "run.nc", "command", rows, None, groups, **attributes)
    tree = xr.open_datatree(tmp_path / "run.nc", engine="h5netcdf")
    assert json.loads(tree.attrs["provenance"]) == result.provenance
    assert json.loads(tree.attrs["configuration"]) == [record.config]
    curves = tree["curves"].to_dataset().to_dataframe()
    assert len(curves) == len(result.curves())
    clients = tree["clients/0"].to_dataset()
    last = clients["accuracy"].sel(when="last").transpose("point", "model", ...)
    np.testing.assert_array_equal(last, record.metrics["accuracy"][:, -1])
    test = rows[(rows["metric"] == "accuracy") & (rows["stat"] == "mean")]
    for when in ("last", "best (validation)"):
        of = test[(test["when"] == when) & (test["data"] == "own test")]
        of = of[(of["population"] == "all") & (of["model"] == "personal")]
        chosen = clients["accuracy"].sel(when=when, model="personal", data="test")
        expected = of.sort_values("seed")["value"]
        np.testing.assert_allclose(chosen.mean("client"), expected, rtol=1e-6)


tables_of = st.lists(
    st.tuples(
        st.sampled_from(["Alpha", "Beta"]),
        st.sampled_from([None, "Median"]),
        st.sampled_from(["personal", "global"]),
        st.floats(0, 1) | st.just(np.nan),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda row: row[:3],
)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(rows=tables_of)
def test_tables_come_back(tmp_path_factory, rows):
    table = pd.DataFrame(
        [cells(a, 0, v, aggregator=r, model=m)[0] for a, r, m, v in rows]
    )
    path = tmp_path_factory.mktemp("kept") / "run.nc"
    kept.write(path, "command", table)
    found = kept.read(path).rows
    order = ["algorithm", "aggregator", "model"]
    found, table = (t.sort_values(order).reset_index(drop=True) for t in (found, table))
    table = table.fillna(np.nan).astype(found.dtypes)  # None is NaN, too
    pd.testing.assert_frame_equal(found[list(table)], table)
