"""What an installed package offers: one command, its completion, and `python -m`."""

import ast
import contextlib
import dataclasses
import importlib.util
import operator
import re
import shlex
import sys
import tomllib

import pytest
import typer.main

import fedjax_pfl as fp
from fedjax_pfl import __main__ as page
from fedjax_pfl import command
from fedjax_pfl.command import application, arguments, completion, components, presets
from fedjax_pfl.command import examples as command_examples
from fedjax_pfl.data.sources import fetching
from tests.command.commands import ROOT, call, python

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture
def no_extra(monkeypatch):
    """An environment without one package of the extra."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "typer" else find(name),
    )


@pytest.fixture(autouse=True)
def own_signals(monkeypatch):
    """Leaves signals and streams of the process that runs the tests as they are."""
    monkeypatch.setattr(command, "prepare", lambda: None)


def test_one_script_starts_the_command_line():
    assert PROJECT["scripts"] == {"fedjax-pfl": "fedjax_pfl.command:main"}
    assert list(command.NEEDED) == PROJECT["optional-dependencies"]["experiments"]
    assert command.lacking() is None


def test_help_names_all_commands(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedjax-pfl", "--help"])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert "Usage: fedjax-pfl " in said and "--install-completion" in said
    assert all(f"\n  {name} " in said for name in command.COMMANDS)
    words = " ".join(said.split())
    assert all(command.sentence(name) in words for name in command.COMMANDS)


COMPLETED = {
    "re": "report",
    "run --ro": "--rounds",
    "sweep --algorithm +flame,fedpr": "+flame,fedprox",
    "sweep --dataset fashion": "fashion_mnist",
    "benchmark --preset benchmark_c": "benchmark_clusters benchmark_cifar10",
    "data show --partition power": "power_law",
    "sweep --set algorithm.kap": "algorithm.kappa=",
    "sweep --algorithm ditto --set algorithm.kap": "",
    "sweep --set algorithm.local.learn": "algorithm.local.learning_rate=",
    "sweep --set federation.test_f": "federation.test_fraction=",
    "sweep --set federation.partition.c": "federation.partition.concentration=",
    "sweep --learn algorithm.lam,algorithm.kap": "algorithm.lam,algorithm.kappa",
    "methods fedavg": "fedavg",
}
COMPLETE = f"""
import os, sys
from fedjax_pfl import command
for words in {list(COMPLETED)}:
    os.environ["COMP_WORDS"] = f"fedjax-pfl {{words}}"
    os.environ["COMP_CWORD"] = str(words.count(" ") + 1)
    try:
        command.main()
    except SystemExit:
        print("next")
print({{"jax", "numpy"}} & {{*sys.modules}})
"""


def test_the_shell_completes_words_without_jax():
    """As bash asks for the last of some words."""
    done = python("-c", COMPLETE, _FEDJAX_PFL_COMPLETE="complete_bash")
    *answers, modules = done.stdout.split("next\n")
    assert modules == "set()\n", done.stderr
    for (words, expected), said in zip(COMPLETED.items(), answers, strict=True):
        assert {*expected.split()} <= {*said.split()}, words
        assert expected or not said.split(), words


def test_names_of_completion_are_those_that_there_are():
    assert {*completion.PRESETS, *completion.BENCHMARKS} <= {*presets.PRESETS}
    others = {*presets.PRESETS} - {*completion.PRESETS, *completion.BENCHMARKS}
    assert all(name.startswith(arguments.PAPERS) for name in others)
    assert completion.DATA_SETS == tuple(fp.data.DATASETS)
    assert completion.FETCHED == fetching.FETCHED
    assert completion.PARTITIONS == tuple(fp.data.PARTITIONS)


@pytest.mark.parametrize("name", components.COMPONENTS)
def test_completed_fields_are_those_that_classes_have(name):
    classes = operator.attrgetter(components.COMPONENTS[name][0])(fp).values()
    context = type("Context", (), {"params": {}})
    completed = {
        text.rpartition(".")[2] for text in completion.fields(context, f"{name}.")
    }
    for kind in classes:
        fields = {f.name for f in dataclasses.fields(kind) if f.name[0] != "_"}
        assert fields <= completed, kind


def test_help_has_groups_examples_and_metavars():
    app = typer.main.get_command(application.app)
    commands = {**app.commands, **app.commands["data"].commands}
    for name in commands:
        said = call(application.app, "", *_path(name), "--help").stdout
        assert "\n\nExamples:\n  fedjax-pfl " in said
        assert not re.search(r"^ +--.* <\w", said, re.MULTILINE), said
        if name in ("run", "sweep", "plan", "benchmark", "pretrain"):
            headings = re.findall(r"^(\w+):$", said, re.MULTILINE)
            assert headings[:4] == ["Examples", "Data", "Method", "Search"] or (
                name == "pretrain" and headings[:3] == ["Examples", "Data", "Method"]
            )
            assert len(command_examples.EXAMPLES[name]) == 3


@pytest.mark.parametrize("name", command_examples.EXAMPLES)
def test_examples_can_be_read(name):
    app = typer.main.get_command(application.app)
    for words in command_examples.EXAMPLES[name]:
        words = [*_path(name), *shlex.split(words)]
        context = app.make_context("fedjax-pfl", list(words))
        while words := [*context._protected_args, *context.args]:
            _, found, rest = context.command.resolve_command(context, words)
            context = found.make_context(found.name, rest, parent=context)


def _path(name):
    """Returns the words that call a command."""
    if name == "fedjax-pfl":
        return []
    return ["data", name] if name in ("show", "list", "check", "fetch") else [name]


def test_the_page_names_commands_and_fits_a_terminal(capsys):
    page.main()
    said = capsys.readouterr().out
    assert all(f"\n  {name} " in said for name in command.COMMANDS)
    assert max(map(len, said.splitlines())) <= 80
    assert "docs/" in said and fp.__version__ in said


def test_the_program_of_the_page_has_arguments_that_exist(capsys, monkeypatch):
    page.main()
    lines = capsys.readouterr().out.splitlines()
    program = "\n".join(line[4:] for line in lines if line.startswith("    "))
    program = program[program.index("import jax") :]
    calls = []
    monkeypatch.setattr(
        fp, "simulate", lambda *args, **more: calls.append((args, more))
    )
    with contextlib.redirect_stdout(None):
        exec(compile(ast.parse(program), "page", "exec"), {})
    ((_, process, model, federation), more) = calls[0]
    assert isinstance(process.algorithm, fp.Flame) and more == {"num_rounds": 20}
    assert federation.num_clients == 10 and isinstance(model, fp.LogisticRegression)


@pytest.mark.parametrize(
    "words",
    [["methods", "ditto"], ["benchmark", "--preset", "x"], ["--version"], ["a"]],
)
def test_the_package_runs_commands(words):
    package, installed = (
        python("-m", name, *words) for name in ("fedjax_pfl", "fedjax_pfl.command")
    )
    assert package.stdout == installed.stdout and package.stderr == installed.stderr
    assert package.returncode == installed.returncode
    assert package.returncode == (0 if words[0] in ("methods", "--version") else 2)


@pytest.mark.parametrize("main", [command.main, page.main])
def test_without_the_extra_there_is_the_line_that_installs_it(no_extra, capsys, main):
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("The commands need typer, ")
    line = said.partition("brings: ")[2]
    for needed in PROJECT["optional-dependencies"]["experiments"]:
        assert f'"{needed}"' in line
    assert "-m pip install" in line and "fedjax" not in line.partition("install")[2]


def test_commands_without_any_package_say_what_to_install():
    for flags, status, shown in (
        (["-m", "experiments.sweep"], 1, "The commands need"),
        (["-c", "import experiments"], 1, "ModuleNotFoundError: The commands need"),
        (["-m", "fedjax_pfl.command"], 2, "The commands need"),
        (["-m", "fedjax_pfl"], 2, "The commands need"),
    ):
        done = python("-S", *flags, PYTHONPATH=str(ROOT))  # nothing is installed
        assert done.returncode == status
        last = done.stderr.splitlines()[-1]
        assert last.startswith(shown) and "typer, matplotlib, jinja2" in last
