"""README and CI say and run the same things."""

import contextlib
import io
import json
import pathlib
import re

import pytest

from experiments.bench import chart

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def block_after(marker, text=README):
    """Content of the fenced block that follows a marker's line."""
    found = re.findall(rf"^{re.escape(marker)}\n```\w*\n(.*?)^```$", text, re.M | re.S)
    assert len(found) == 1, marker
    return found[0]


def short(code):
    """The same program with few rounds."""
    changed, count = re.subn(r"num_rounds=(100|20)\b", "num_rounds=2", code)
    assert count <= 1
    return changed


def run(code, names):
    """Runs a program and returns what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(short(code), "program", "exec"), names)
    return printed.getvalue()


def test_ci_runs_the_command_of_the_readme():
    command = block_after("<!-- command: tests -->")
    assert command.count("\n") == 1 and "-m pytest" in command
    script = (ROOT / ".ci/run").read_text("utf-8")
    assert "<!-- command: $1 -->" in script and "README.md" in script
    assert (
        'test_command="$(readme_command tests)"\n'
        'echo "== $test_command"\nbash -euo pipefail -c "$test_command"\n'
    ) in script


@pytest.mark.parametrize("marker", ["main job", "tests"])
def test_commands_set_everything_up(marker):
    command = block_after(f"<!-- command: {marker} -->")
    start = (
        r"python3 -m venv (\S+) && \1/bin/python -m pip install -q -e \S+ && \1/bin/"
    )
    assert re.match(start, command)


def test_programs_of_the_readme_run_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # they save checkpoints
    programs = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
    assert "num_rounds=100" in programs[0] and len(programs[0].splitlines()) <= 20
    first, *_, last = [run(program, {}) for program in programs]
    assert "Flame" in first and "hybrid (validation)" in first
    assert "has the best mean accuracy" in first
    assert "Damped" in last and "diverged" not in last


def test_the_speed_of_the_readme_is_that_of_the_bench():
    files = [ROOT / f"docs/speed-{name}.json" for name in ("one-core", "two-cores")]
    runs = [json.loads(file.read_text("utf-8")) for file in files]
    drawn = (ROOT / "docs/speed.svg").read_text("utf-8")
    shown = re.findall(r"<!-- (\d+\.\d\d) -->", drawn)
    expected = [f"{v:.2f}" for run in runs for v in chart.ratios(run).values()]
    assert sorted(shown) == sorted(expected)
    assert any(float(ratio) < 1 for ratio in shown)  # not only where it is fast
    assert 'src="docs/speed.svg"' in README
    machine = runs[0]["machine"]
    assert machine["threads"] == 1 and machine["processor"] in README


def test_the_answer_of_the_readme_is_said_once_more_at_its_top():
    (answer,) = re.findall(r"^Yes: [^.]*?gain (\d\.\d points) over", README, re.M)
    assert f"third gains {answer} of accuracy over either" in README


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150
