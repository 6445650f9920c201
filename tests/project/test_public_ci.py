"""The public workflows do what `.ci/run` does, on what pyproject.toml supports."""

import os
import pathlib
import re
import subprocess
import tomllib

import yaml

import fedjax_pfl as fp

ROOT = pathlib.Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text("utf-8"))
CHECKS = (ROOT / ".ci/run").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OLDEST = dict(
    line.split("==")
    for line in (ROOT / ".ci/oldest.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
)


def commands(job):
    return [step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step]


def test_jobs_run_the_checks_and_nothing_else():
    assert commands("newest") == commands("oldest") == [".ci/run"]


def test_the_wide_lane_is_that_of_the_page_and_runs_weekly():
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (wide,) = re.findall(r"^\| wide \| `(.*?)` \|", page, re.M)
    assert commands("wide")[-1] == wide
    assert "schedule" in WORKFLOW["jobs"]["wide"]["if"]


def test_documentation_is_built_as_the_readme_says():
    text = (ROOT / "README.md").read_text("utf-8")
    for command in commands("documentation"):
        assert command.removeprefix("python ") in text, command


def test_pythons_begin_with_the_oldest():
    pythons = WORKFLOW["jobs"]["newest"]["strategy"]["matrix"]["python"]
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert pythons[0] == oldest and len(set(pythons)) == len(pythons) > 1
    supported = [
        name.rpartition(" ")[2]
        for name in PROJECT["classifiers"]
        if name.startswith("Programming Language :: Python :: 3.")
    ]
    assert pythons == supported
    setup = WORKFLOW["jobs"]["oldest"]["steps"][1]
    assert setup["with"]["python-version"] == oldest


def test_the_newest_python_is_one_that_starts(tmp_path):
    # pyenv has a program for every version, which fails unless that one is chosen.
    for minor, action in ((96, "echo 96"), (97, "echo 97"), (98, "exit 127")):
        program = tmp_path / f"python3.{minor}"
        program.write_text(f"#!/bin/sh\n{action} $0\n")
        program.chmod(0o755)
    function = re.search(r"^newest_python\(\) {\n.*?^}\n", CHECKS, re.M | re.S)[0]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{function}newest_python"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path / 'python3.97'}\n"


def test_the_lane_on_the_newest_python_runs_files_that_exist():
    files = re.findall(r"tests/\S+\.py", CHECKS)
    assert "tests/algorithms/test_conformance.py" in files
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_oldest_versions_are_the_lower_bounds():
    extras = PROJECT["optional-dependencies"]
    named = [*PROJECT["dependencies"], *extras["experiments"], *extras["privacy"]]
    named += [*extras["parquet"], *extras["test"]]
    named.remove("fedjax_pfl[experiments,parquet,privacy]")
    bounds = [re.fullmatch(r"([\w-]+)>=([\d.]+).*", text).groups() for text in named]
    assert dict(bounds) == OLDEST


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = re.search(r"^## (\S+?),? ", changes, re.M).group(1)
    assert PROJECT["dynamic"] == ["version"]  # that of the package
    assert citation["version"] == newest == fp.__version__
