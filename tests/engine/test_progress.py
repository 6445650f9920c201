"""Progress on a terminal, in a notebook and in a log."""

import io
import json
import re
import sys
import types

import numpy as np
import pytest
from rich.console import Console

from fedjax_pfl.engine import callbacks
from fedjax_pfl.engine.callbacks import notebook, pace, progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    now = [0.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    return now


def trainings(*groups, num_rounds=10):
    """So many trainings in each group."""
    owners = [g for g, count in enumerate(groups) for _ in range(count)]
    settings = {"algorithm": "FedAvg"}
    return [
        callbacks.Training(number, group, f"point {number}", settings, num_rounds)
        for number, group in enumerate(owners)
    ]


def evaluation(of, round, *losses, is_last=False, is_restored=False):
    return callbacks.Evaluation(
        trainings=tuple(of),
        round=round,
        metrics={"global/test/loss": np.array(losses, float)},
        running=np.ones(len(losses), bool),
        is_last=is_last,
        is_restored=is_restored,
    )


def shown(monkeypatch, console):
    """Progress on a console; nothing of this process decides."""
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    return progress.Progress()


def test_a_log_has_a_line_now_and_then(clock, monkeypatch):
    console = Console(file=io.StringIO(), width=200)
    bar, all_of_them = shown(monkeypatch, console), trainings(3, 1)
    bar.begin(all_of_them)
    first, last = all_of_them[:3], all_of_them[3:]
    bar.evaluated(evaluation(first, 0, 9, 9, 9))
    for done in range(1, 11):
        clock[0] += 10
        bar.evaluated(evaluation(first, done, done, done, np.nan, is_last=done == 10))
    bar.evaluated(evaluation(last, 0, 1))
    clock[0] += 5
    bar.evaluated(evaluation(last, 4, np.nan, is_last=True))
    bar.end(None)
    assert console.file.getvalue().splitlines() == [
        "1/2 FedAvg x 3: 3/10 rounds, 0:00:30, 0.1 rounds/s, 0:01:10 left, loss:"
        " global 3.000",
        "1/2 FedAvg x 3: 6/10 rounds, 0:01:00, 0.1 rounds/s, 0:00:40 left, loss:"
        " global 6.000",
        "1/2 FedAvg x 3: 9/10 rounds, 0:01:30, 0.1 rounds/s, 0:00:10 left, loss:"
        " global 9.000",
        "1/2 FedAvg x 3: 10/10 rounds, 0:01:40, 0.1 rounds/s, 0:00:00 left, loss:"
        " global 10.000",
        "2/2 FedAvg x 1: 10/10 rounds, 0:00:05, 2 rounds/s, 0:00:00 left, diverged,"
        " ended after round 4",
    ]


def test_compilation_and_restored_rounds_are_not_in_the_rate(clock):
    going = pace.Pace("title", 100)
    assert going.rate is None and going.left() is None
    clock[0] = 5
    going.reach(40, "", is_restored=True)
    assert going.rate is None
    clock[0] = 25
    going.reach(50, "")  # which compiled
    assert (going.rate, going.left()) == (0.5, 100)
    clock[0] = 26
    going.reach(60, "")
    assert (going.rate, going.left(), going.left(28)) == (10, 4, 2)
    assert going.left(1e9) == 0 and going.elapsed == 26


def test_bars_on_a_terminal(clock, monkeypatch):
    console = Console(file=io.StringIO(), width=160, force_terminal=True)
    bar, some = shown(monkeypatch, console), trainings(2)
    bar.begin(some)
    for done in (0, 5):
        clock[0] += 2
        bar.evaluated(evaluation(some, done, 0.25, 0.75))
    bar.end(None)
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).splitlines()
    assert last[-1].startswith("1/1 FedAvg x 2") and "5/10 rounds" in last[-1]
    assert "2.5 rounds/s 0:00:02 left loss: global 0.500" in last[-1]


class Shell:
    kernel = "a kernel"


def fake_ipython(monkeypatch, shell):
    """Stands in for IPython; what is displayed, and what takes its place."""
    contents = []

    class Handle:
        def update(self, content, raw):
            contents.append(content)

    def display(content, raw, display_id):
        assert not contents and raw and display_id
        contents.append(content)
        return Handle()

    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell
    shown = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return contents


def test_a_notebook_has_one_display_with_a_row_per_group(clock, monkeypatch):
    contents = fake_ipython(monkeypatch, Shell())
    bar, some = progress.Progress(), trainings(1, 1, num_rounds=1000)
    bar.begin(some)
    for number, training in enumerate(some):
        for done in range(1001):
            clock[0] += 0.01
            last = done == 1000
            bar.evaluated(evaluation([training], done, number, is_last=last))
    bar.end(None)
    # Twenty seconds, ten updates in each.
    assert 150 < len(contents) < 250
    assert (
        contents[0]["text/plain"] == "1/2 FedAvg x 1: 0/1000 rounds, 0:00:00, compiling"
    )
    page = contents[-1]["text/html"]
    assert page.count("<tr>") == 2
    assert page.count('<progress value="1000" max="1000">') == 2
    assert (
        "<td>100 rounds/s</td><td>0:00:00 left</td><td>loss: global 1.000</td>" in page
    )
    assert contents[-1]["text/plain"].splitlines() == [
        f"{k}/2 FedAvg x 1: 1000/1000 rounds, 0:00:10, 100 rounds/s, 0:00:00 left,"
        f" loss: global {k - 1}.000"
        for k in (1, 2)
    ]


def test_text_in_a_notebook_is_escaped(clock, monkeypatch):
    contents = fake_ipython(monkeypatch, Shell())
    table = notebook.Table()
    table.begin(pace.Pace("<b>", 1))
    assert "<td>&lt;b&gt;</td>" in contents[0]["text/html"]


@pytest.mark.parametrize("shell", [None, object()])
def test_a_shell_without_a_kernel_is_no_notebook(shell, monkeypatch):
    fake_ipython(monkeypatch, shell)
    assert not notebook.is_here()


CELLS = (
    "import jax, fedjax_pfl as fp\n"
    "spec = fp.FederationSpec('quadratic', 'by_client', num_clients=4)\n"
    "process = fp.FederatedProcess(algorithm=fp.Flame())",
    "axes = {'algorithm': [fp.Flame(), fp.FedAvg()]}\n"
    "run = (jax.random.key(0), process, fp.models.Quadratic(), spec, axes, 40)\n"
    "result = fp.grid(*run, eval_every=1)",
)


@pytest.mark.wide
def test_a_real_notebook_keeps_one_tidy_output():
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    book = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(book, timeout=300).execute()
    assert book.cells[0].outputs == []
    (output,) = book.cells[1].outputs
    assert output.output_type == "display_data"
    assert output.data["text/html"].count('<progress value="40" max="40">') == 2
    lines = output.data["text/plain"].splitlines()
    for line, name in zip(lines, ("1/2 Flame", "2/2 FedAvg"), strict=True):
        assert re.match(
            rf"{name} x 1: 40/40 rounds, 0:\d\d:\d\d, [\d.e+]+ rounds/s, 0:00:00 left,"
            r" loss: global \d",
            line,
        ), line
    assert len(json.dumps(output)) < 4000
