"""Calls of commands, with checks of how they end."""

import os
import pathlib
import shlex
import subprocess
import sys

import typer.testing

ROOT = pathlib.Path(__file__).parents[2]
RUNNER = typer.testing.CliRunner()


def call(app, line="", *words, status=0):
    """Runs a command with a line of words and further words; checks its status."""
    done = RUNNER.invoke(app, [*shlex.split(line), *map(str, words)])
    assert done.exit_code == status, done.output
    return done


def refused(app, line="", *words):
    """Returns the only sentence of a refusal, which leaves no file.

    The parser's own refusals have its lines on usage, too.
    """
    before = sorted(os.listdir())
    text = call(app, line, *words, status=2).stderr
    assert text.count("\n") == 1 or "Error: " in text, text
    assert "Traceback" not in text
    assert sorted(os.listdir()) == before
    return text


def python(*words, folder=ROOT, timeout=None, **variables):
    """Runs Python with a program and its words in a process of its own."""
    return subprocess.run(
        [sys.executable, *words],
        env=os.environ | variables,
        cwd=folder,
        timeout=timeout,
        capture_output=True,
        text=True,
    )
