"""From a table of one's own to a figure for a paper, by the documentation's words."""

import os
import subprocess
import sys

import numpy as np
import pytest

import fedjax_pfl as fp
from tests.command.commands import ROOT
from tests.project import test_readme

PAGE = (ROOT / "docs/data.md").read_text("utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, and the command of the environment of the tests on the PATH."""
    program = tmp_path / "bin/fedjax-pfl"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m fedjax_pfl.command "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XLA_FLAGS", "")  # not eight devices, which the tests have
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


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


def follow(marker, folder):
    """Runs a command of the page literally, as a shell would."""
    command = test_readme.block_after(f"<!-- command: {marker} -->", PAGE)
    done = subprocess.run(
        ["sh", "-ec", command], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.wide
def test_from_a_table_to_a_figure_for_a_paper(folder):
    write_table(folder / "my.csv")
    printed = follow("compare on own data", folder)
    assert all(name in printed for name in ("Flame", "FedAvg", "Local"))
    assert "report.html" in follow("draw for a paper", folder)
    result = fp.Result.load(folder / "mine")
    assert len(result.status) == 45 and set(result.status) == {"ok"}  # 3 lam each
    assert {len(group.clients) for group in result.groups} == {5}
    figures = folder / "mine/report_files/figures"
    drawn = (figures / "learning_curves.pdf").read_bytes()
    assert drawn.startswith(b"%PDF") and b"/FontFile2" in drawn  # embedded letters
    labels = (figures / "learning_curves.svg").read_text("utf-8")
    assert "mean over 5 seeds, band from min to max" in labels
    assert all(name in labels for name in ("Flame (lam", "FedAvg, global", "Local, "))
