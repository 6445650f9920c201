"""From a table of one's own to a figure for a paper, by the README's words alone."""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import fedjax_pfl as fp
from tests.project import test_readme

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path):
    """A copy of the repository whose environment is the one of the tests."""
    ignored = shutil.ignore_patterns(".*", "results", "*.egg-info", "docs", "tests")
    clone = shutil.copytree(ROOT, tmp_path / "clone", ignore=ignored)
    python = clone / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return clone


def write_table(path):
    """Five hospitals that agree on half of what they measure."""
    rng = np.random.default_rng(0)
    rows = ["user,age,pressure,group,y"]
    for k in range(400):
        age, pressure = rng.normal(55, 12), rng.normal(130, 15)
        sign = 1 if k % 5 < 3 else -1
        ill = (age - 55) / 12 + sign * (pressure - 130) / 15 > 0
        rows.append(f"h{k % 5},{age:.1f},{pressure:.0f},{'ab'[k % 2]},{ill}")
    path.write_text("\n".join(rows) + "\n")


def follow(marker, clone):
    """Runs a command of the README literally, as a shell would."""
    environment = os.environ | {"PYTHONPATH": str(clone)}
    environment["XLA_FLAGS"] = ""  # nor eight devices, which the tests have
    command = test_readme.block_after(f"<!-- command: {marker} -->")
    done = subprocess.run(
        ["sh", "-ec", command],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.wide
def test_from_a_table_to_a_figure_for_a_paper(clone):
    write_table(clone / "my.csv")
    printed = follow("compare on own data", clone)
    assert all(name in printed for name in ("Flame", "FedAvg", "Local"))
    assert "report.html" in follow("draw for a paper", clone)
    result = fp.Result.load(clone / "mine")
    assert len(result.status) == 55 and set(result.status) == {"ok"}  # 9 of FLAME
    assert {len(group.clients) for group in result.groups} == {5}
    figures = clone / "mine/report_files/figures"
    drawn = (figures / "learning_curves.pdf").read_bytes()
    assert drawn.startswith(b"%PDF") and b"/FontFile2" in drawn  # embedded letters
    labels = (figures / "learning_curves.svg").read_text("utf-8")
    assert "mean over 5 seeds, band from min to max" in labels
    assert all(f"× {name}" in labels for name in ("Flame", "FedAvg", "Local"))
