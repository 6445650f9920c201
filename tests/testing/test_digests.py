"""The list of trainings covers every part, and a changed number is found."""

import dataclasses
import json

import numpy as np
import pytest

from fedjax_pfl.algorithms import registry
from fedjax_pfl.core import checks
from fedjax_pfl.testing import __main__ as command
from fedjax_pfl.testing import digests, trainings, walk

QUICK = ("majority", "budgets per client")
REGISTRIES = (
    *("AGGREGATORS", "ALGORITHMS", "ATTACKS", "LOCAL_SOLVERS", "PARTICIPATIONS"),
    *("SERVER_OPTIMIZERS", "STEP_SEARCHES", "TRANSFORMS", "WORK"),
)


def classes(part):
    """Classes of an object and of everything in its fields."""
    if isinstance(part, tuple):
        for inner in part:
            yield from classes(inner)
    elif dataclasses.is_dataclass(part):
        yield type(part)
        for field in dataclasses.fields(part):
            yield from classes(getattr(part, field.name))


@pytest.mark.parametrize("name", REGISTRIES)
def test_every_part_is_in_a_training(name):
    used = {c for row in trainings.ROWS.values() for c in classes(row.process)}
    parts = getattr(registry, name)
    assert [each for each in parts if parts[each] not in used] == []


def test_every_form_of_execution_is_in_a_training():
    rows = trainings.ROWS.values()
    assert {(row.devices, row.processes) for row in rows} == {(1, 1), (2, 1), (1, 2)}
    assert {row.options.get("execution") for row in rows} >= {"chunk=2", "shard=2"}
    assert trainings.streamed in {row.run for row in rows}
    for dtype in trainings.DTYPES:
        assert sum(dtype in row.dtypes for row in rows) >= 24


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Two quick trainings in this process."""
    folder = tmp_path_factory.mktemp("trainings")
    return [digests.trained(name, folder / name) for name in QUICK]


def test_a_training_repeats_its_digest(rows, tmp_path):
    assert [row.error for row in rows] == ["", ""]
    again = [digests.trained(name, tmp_path / name) for name in QUICK]
    assert [row.digest for row in again] == [row.digest for row in rows]
    assert digests.compare(again, rows) == []
    assert any(name.startswith("models/") for name in rows[0].arrays)


def test_every_bit_of_an_array_is_in_its_digest():
    values = np.array([0.0, 1.0, np.nan])
    whole, _ = digests.digest([("a", values), ("b", values)])
    assert digests.digest([("b", values), ("a", values)])[0] == whole
    for other in (-values, np.nextafter(values, 2), values.astype(np.float32)):
        assert digests.digest([("a", other), ("b", values)])[0] != whole
    assert digests.digest([("a", values), ("c", values)])[0] != whole


def compared(rows, before, monkeypatch, capsys, tmp_path, **where):
    """Status and lines of the command, where these rows are trained."""
    file = tmp_path / "before.json"
    digests.save(file, before, digests.environment() | where)
    monkeypatch.setattr(digests, "run", lambda pattern, optimized: iter(rows))
    status = command.main(["--digests", "--against", str(file)])
    return status, capsys.readouterr().out.splitlines()


def test_equal_digests_are_no_difference(rows, monkeypatch, capsys, tmp_path):
    status, lines = compared(rows, rows, monkeypatch, capsys, tmp_path)
    assert status == 0 and lines[-1].startswith("0 of ")


def test_a_changed_number_is_found_and_sized(rows, monkeypatch, capsys, tmp_path):
    first, second = (json.loads(json.dumps(vars(row))) for row in rows)
    name = "group0/metrics/loss"
    kind, shape, total, norm = second["arrays"][name]
    half = (float.fromhex(total) / 2).hex()
    second["arrays"][name] = [kind[::-1], shape, half, norm]
    second["digest"] = second["digest"][::-1]
    before = [digests.Row(**first), digests.Row(**second)]
    given = monkeypatch, capsys, tmp_path
    status, lines = compared(rows, before, *given, cpu="another one")
    assert status == 1
    assert f"by at most 5.0e-01 of their sum or norm: {name} by 5.0e-01" in lines[-2]
    assert "only comparable on one machine" in lines[-3] and "another one" in lines[-3]
    assert lines[-1].startswith("1 of ")


def test_missing_and_failed_rows_are_differences(rows):
    failed = dataclasses.replace(rows[0], digest="", error="ValueError: no")
    assert digests.compare([failed], rows) == [
        f"{rows[1].key}: only in the file",
        f"{rows[0].key}: ValueError: no in place of {rows[0].digest}",
    ]
    assert digests.compare(rows, rows[:1]) == [f"{rows[1].key}: not in the file"]


@pytest.mark.parametrize("pattern", ["nothing like this", "("])
def test_a_pattern_without_a_training_is_refused(pattern, capsys):
    assert command.main(["--digests", "--only", pattern]) == 2
    assert repr(pattern) in capsys.readouterr().err


def test_a_file_that_has_no_digests_is_refused(tmp_path):
    file = tmp_path / "other.json"
    file.write_text("{}")
    with pytest.raises(checks.InputError, match="Cannot read digests"):
        digests.load(file)


@pytest.mark.wide
def test_digests_are_written_by_a_process_of_the_data_type(tmp_path, capsys):
    file, only = tmp_path / "digests.json", "^learned field$"
    assert command.main(["--digests", "--only", only, "--out", str(file)]) == 0
    (row,), where = digests.load(file)
    assert row.dtype == "float64"
    assert "  1/1 learned field" in capsys.readouterr().out
    assert where["jax"] and where["cpu"]


def test_the_walk_counts_in_the_sources():
    places = walk.probes() + walk.refusals()
    assert all((walk.PACKAGE / place.split(":")[0]).is_file() for place in places)
    assert all(map(walk.files_naming, walk.FEATURES)) and walk.lines() > 100


@pytest.mark.wide
def test_the_walk_finds_the_round():
    path = [code.co_name for code in walk.path_to_loss()]
    assert path[0] == "simulate" and "client_update" in path
    counts = walk.calls()
    assert "client_update" in {code.co_name for code in counts}
    assert sum(counts.values()) > len(counts) > 10
