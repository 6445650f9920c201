"""The template passes its own tests, and the commands of the page run."""

import pathlib
import re
import subprocess
import sys

import pytest

from fedjax_pfl.testing import __main__ as command
from tests.testing import test_testing

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs/extending.md").read_text("utf-8")
COMMANDS = re.search(r"<!-- commands: template -->\n```sh\n(.*?)```", PAGE, re.S)
SHORT = {"fedjax-pfl sweep": " --rounds 2 --seeds 1 --clients 3 --out result"}


@pytest.fixture
def clone(tmp_path):
    """A folder with the repository's template, where commands find the repository."""
    (tmp_path / "templates").symlink_to(ROOT / "templates")
    return tmp_path


def test_the_template_keeps_its_states(clone, monkeypatch, capsys):
    monkeypatch.chdir(clone / "templates")
    monkeypatch.setattr(sys, "path", [*sys.path])
    names = ["states_keep_their_layout", "states_stay_finite"]
    assert command.main(["my_method:MyMethod", *names]) == 0
    assert capsys.readouterr().out.endswith("\n2 ok, 0 failed, 0 skipped\n")


@pytest.mark.wide
def test_the_commands_of_the_page_run(clone):
    for line in COMMANDS[1].splitlines():
        line += "".join(more for name, more in SHORT.items() if name in line)
        line = line.replace("fedjax-pfl", "python -m fedjax_pfl.command")
        line = line.replace("python -m", f"{sys.executable} -m")
        done = subprocess.run(
            line,
            shell=True,
            cwd=clone,
            env=test_testing.as_users_have_it(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert (clone / "result" / "summary.csv").exists()
