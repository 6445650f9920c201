"""Tables at 80 columns: in a terminal, and where COLUMNS says so."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

import fedjax_pfl as fp
from fedjax_pfl.command import application, printing, show
from tests import histories
from tests.command.commands import ROOT, call


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def fits(text):
    """Whether no line is longer than 80 columns; the lines' words."""
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    return text.split()


def in_a_terminal(*arguments):
    """What a command prints in a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "fedjax_pfl.command", *arguments]
    process = subprocess.Popen(
        command, stdout=theirs, cwd=ROOT, env=environment | {"TERM": "dumb"}
    )
    os.close(theirs)
    printed = b""
    try:
        while part := os.read(ours, 1 << 16):
            printed += part
    except OSError:  # which Linux says at the end
        pass
    os.close(ours)
    assert process.wait() == 0
    return printed.decode()


def test_data_sets_in_a_terminal():
    words = fits(in_a_terminal("data", "list").replace("\r\n", "\n"))
    assert set(fp.data.DATASETS) <= set(words)
    assert "restrict_vocabulary=true," in words and "embedded" in words


def test_data_sets_where_the_width_is_said(narrow):
    words = fits(call(application.app, "data list").stdout)
    assert set(fp.data.DATASETS) <= set(words)


def test_plans_are_not_cut(narrow, capsys):
    rows = [("execution", "chunk=336, points on 16 devices, 4 of them " * 3), ()]
    rows += [("measured on", "1 of 100 grid points, 1,000,000 clients")]
    printing.table(printing.console(), ("", ""), rows, title="1/1 Flame")
    words = fits(capsys.readouterr().out)
    assert words.count("devices,") == 3 and "1,000,000" in words


def test_rankings_break_between_words_only(narrow, capsys):
    record = histories.make_history()
    show.result(printing.console(), histories.make_result(record))
    lines = capsys.readouterr().out.splitlines()
    table = "\n".join(line for line in lines if line.startswith(" "))
    assert {"method", "personal", "global"} <= set(fits(table))


def test_files_and_pipes_have_wide_lines(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    printing.table(printing.console(), ("a", "b"), [("x " * 50, "y")])
    assert max(map(len, capsys.readouterr().out.splitlines())) > 100


def test_no_letter_of_a_word_longer_than_the_terminal_is_lost(narrow, capsys):
    printing.table(printing.console(), ("a", "b"), [("x" * 90, "y" * 10)])
    said = capsys.readouterr().out
    assert (said.count("x"), said.count("y")) == (90, 10)
