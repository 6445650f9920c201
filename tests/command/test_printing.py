"""Names of others on a terminal: text, whatever is in them."""

import io

import pytest
from rich.console import Console

from fedjax_pfl.command import cli, outputs, printing, show
from fedjax_pfl.core import checks
from fedjax_pfl.engine.callbacks import pace, progress
from tests import histories

NAME = "\x1b]0;title\x07\x9b31m\r\u202e[bold]:rocket:[/] $x$"
METHODS = ("Flame", "Ditto")
SHOWN = "\\x1b]0;title\\x07\\x9b31m\\r\\u202e[bold]:rocket:[/] $x$"


def printed(capsys):
    done = capsys.readouterr()
    return done.out + done.err


def table():
    console = printing.console()
    printing.table(console, (NAME, "b"), [(NAME, "1"), (NAME, "2")], title=NAME)


def refused():
    def work():
        raise checks.InputError(f"Expected another name, got {NAME}.")

    with pytest.raises(Exception):  # noqa: B017 (typer's end of a command)
        cli.answer(work)


def shown_progress(*, is_terminal):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=is_terminal, width=200)
    kind = progress._Bars if is_terminal else progress.Log
    display, group = kind(console), pace.Pace(pace.title(0, 1, NAME, 2), 3)
    display.begin(group)
    group.reach(3, NAME)
    display.update(group)
    display.close()
    print(stream.getvalue())


@pytest.mark.parametrize(
    ("show", "count"),
    [
        (table, 4),
        (refused, 1),
        (lambda: printing.console().print(NAME), 1),
        (lambda: outputs.say(NAME), 1),
        (lambda: cli._show_warning(NAME), 1),
        (lambda: shown_progress(is_terminal=False), 2),
    ],
)
def test_names_are_printed_as_text(capsys, monkeypatch, show, count):
    monkeypatch.setenv("COLUMNS", "200")
    show()
    text = printed(capsys)
    assert text.count(SHOWN) == count, text
    assert text.replace("\n", "").isprintable()


def test_bars_show_names_as_text(capsys):
    shown_progress(is_terminal=True)  # whose own colors are escapes
    text = printed(capsys)
    assert SHOWN in text
    assert "\x1b]0" not in text and "\u202e" not in text


@pytest.mark.parametrize("diverged_at", [None, [8, -1]])
def test_only_rows_of_a_ranking_that_diverged_are_red(diverged_at):
    records = [
        histories.make_history(algorithm=name, diverged_at=ended)
        for name, ended in (("Flame", None), ("Ditto", diverged_at))
    ]
    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=True, color_system="standard", width=200
    )
    show.result(console, histories.make_result(*records))
    rows = [line for line in stream.getvalue().splitlines() if "personal" in line]
    red = {name: any(name in r and "\x1b[31m" in r for r in rows) for name in METHODS}
    assert red == {"Flame": False, "Ditto": diverged_at is not None}
