"""The public workflows do what `.ci/run` does, on what pyproject.toml supports."""

import pathlib
import re
import tomllib

import yaml

import fedjax_pfl as fp

ROOT = pathlib.Path(__file__).parents[1]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text("utf-8"))
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


def test_documentation_is_built_as_the_readme_says():
    text = (ROOT / "README.md").read_text("utf-8")
    for command in commands("documentation"):
        assert command.removeprefix("python ") in text, command


def test_pythons_begin_with_the_oldest():
    pythons = WORKFLOW["jobs"]["newest"]["strategy"]["matrix"]["python"]
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert pythons[0] == oldest and len(set(pythons)) == len(pythons) > 1
    setup = WORKFLOW["jobs"]["oldest"]["steps"][1]
    assert setup["with"]["python-version"] == oldest


def test_it_runs_weekly_and_for_changes():
    triggers = WORKFLOW[True]  # YAML 1.1 reads the word `on` as a truth value
    assert {"push", "pull_request", "schedule"} <= set(triggers)
    (schedule,) = triggers["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* \d", schedule["cron"])


def test_oldest_versions_are_the_lower_bounds():
    bounds = dict(
        re.fullmatch(r"([\w-]+)>=([\d.]+).*", text).groups()
        for text in PROJECT["dependencies"]
    )
    assert {"jax", "jaxlib", "flax", "optax"} == set(OLDEST)
    for name, version in OLDEST.items():
        padded = f"{bounds[name]}.0.0".split(".")[:3]
        assert version.split(".") == padded, name


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = re.search(r"^## (\S+?),? ", changes, re.M).group(1)
    assert PROJECT["dynamic"] == ["version"]  # that of the package
    assert citation["version"] == newest == fp.__version__
