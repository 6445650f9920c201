"""The pages of the documentation: every name, link, command and program in them."""

import contextlib
import fnmatch
import importlib
import io
import pathlib
import re
import shlex
import shutil
import sys

import pytest
import typer

import fedjax_pfl as fp
from experiments import presets as of_papers
from fedjax_pfl.command import application as installed
from fedjax_pfl.command import job, presets
from tests.command import test_commands

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(DOCS).as_posix(): path.read_text("utf-8")
    for path in sorted(DOCS.rglob("*.md"))
}
INCLUDED = {name: (ROOT / name).read_text("utf-8") for name in ("README.md",)}
COMMANDED = {
    name: text
    for name, text in (PAGES | INCLUDED).items()
    if re.search(r"python -m experiments\.|^(?:\$ )?fedjax-pfl ", text, re.M)
}
ROOMS = (
    *("core", "numerics", "data", "models", "local", "attacks", "messages"),
    *("aggregators", "round", "engine", "portfolio", "algorithms", "results"),
    *("figures", "testing"),
)
INNER_ROOMS = (
    *("algorithms.common_descent", "algorithms.phi", "aggregators.functions"),
    *("engine.callbacks", "engine.streaming", "messages.accounting"),
    *("results.checkpoint", "testing.toy", "core.byte_counts", "core.client_rows"),
    *("core.client_map", "core.sharding", "core.struct"),
)
DIRECTIVE = r"^\.\. (?:auto(?:class|exception|function)|py:data):: (\S+)$"
INCLUDE = re.compile(r"^```\{(include|literalinclude)\} (\S+)\n((?::.*\n)*)```$", re.M)
PROGRAM = r"^```(?:python|\{executed\})\n(?:(?::[^\n]*\n)+\n)?(.*?)^```$"
COMMAND = r"(?:python -m (?=experiments)|(?=^(?:\$ )?fedjax-pfl ))(?:\$ )?(.*)"
TEST = re.compile(r"`(tests/\S+?)::(test_\w+)(?:\[\w+\])?`( \(wide\))?")
CODE = re.compile(r"^```.*?^```$", re.M | re.S)


def blocks(text, language):
    """Contents of the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def programs_in(text):
    """Python of a text: what is only shown, and what runs while pages are built."""
    return re.findall(PROGRAM, text, re.M | re.S)


def named(path):
    """The object of a dotted name."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def included(page, directives=("include",)):
    """Its includes: the file, and the texts between which it is taken."""
    for directive, file, options in INCLUDE.findall(PAGES[page]):
        marks = re.findall(r'^:(start-after|end-before): "(.*)"$', options, re.M)
        if directive in directives:
            yield (DOCS / page).parent / file, dict(marks)


def anchors(page):
    """What can be linked to on a page, included text with it."""
    text = PAGES[page]
    for file, marks in included(page):
        part = file.read_text("utf-8")
        if "start-after" in marks:
            part = part.partition(marks["start-after"])[2]
        if "end-before" in marks:
            part = part.partition(marks["end-before"])[0]
        text += part
    text = CODE.sub("", text)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    slugs = {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}
    return slugs | set(re.findall(r"^\(([\w-]+)\)=$", text, re.M))


def test_every_public_name_is_in_the_reference():
    found = [
        path for text in PAGES.values() for path in re.findall(DIRECTIVE, text, re.M)
    ]
    assert len(found) == len(set(found))
    known = {id(named(path)) for path in found}
    for package in ("", *(f".{name}" for name in (*ROOMS, *INNER_ROOMS))):
        module = importlib.import_module(f"fedjax_pfl{package}")
        missing = [n for n in module.__all__ if id(getattr(module, n)) not in known]
        assert not missing, f"Add to docs/api: {missing} of {module.__name__}."
    top = {path.removeprefix("fedjax_pfl.") for path in found}
    assert set(fp.__all__) <= top  # under the name that users import


@pytest.mark.smoke
def test_every_algorithm_has_a_page_that_names_its_class_and_its_module():
    for name, cls in fp.algorithms.ALGORITHMS.items():
        text = PAGES[f"methods/{name}.md"]
        assert f"autoclass:: fedjax_pfl.{cls.__name__}\n" in text
        assert f"fp.{cls.__name__}" in "".join(blocks(text, "python"))
        assert f"algorithm={name}" in "".join(blocks(text, "sh"))
        if name not in ("local", "centralized"):  # which stand beside FedAvg
            assert f"{{module-text}} {cls.__module__}\n" in text
        if (ROOT / f"experiments/cards/{name}.md").exists():
            assert f"](../cards/{name}.md)" in text and f"cards/{name}.md" in PAGES


@pytest.mark.parametrize(
    "registry",
    [
        fp.algorithms.ALGORITHMS,
        fp.algorithms.AGGREGATORS,
        fp.algorithms.SERVER_OPTIMIZERS,
        fp.algorithms.ATTACKS,
        fp.algorithms.TRANSFORMS,
        fp.data.PARTITIONS,
        fp.data.DATASETS,
        fp.portfolio.MARKETS,
        fp.portfolio.GENERATORS,
        fp.algorithms.MODELS,
        fp.algorithms.LOCAL_SOLVERS,
        fp.algorithms.PARTICIPATIONS,
        fp.algorithms.WORK,
    ],
)
def test_the_tables_name_every_part(registry):
    pages = ("methods/index.md", "parts.md", "models.md", "data.md")
    rows = [row for page in pages for row in PAGES[page].splitlines()]
    for name in registry:
        assert any(r.startswith("|") and f"`{name}`" in r for r in rows), name


@pytest.mark.parametrize("page", ["README.md", "methods/flame.md"])
def test_the_demo_has_the_setting_of_the_main_job(page, monkeypatch):
    """Programs of the demo, with their trainings noted instead of done."""
    job, calls = presets.get("digits"), []

    def note(key, process, model, spec, axes, *, num_rounds):
        seeds = tuple(axes["seed"])
        fields = {k: tuple(v) for k, v in axes.items() if k != "seed"}
        described = (process, model, spec, fields, seeds, num_rounds)
        calls.append(repr(described))

    monkeypatch.setattr(fp, "grid", note)
    monkeypatch.setattr(fp.Result, "merge", lambda results: None)
    exec(blocks((PAGES | INCLUDED)[page], "python")[0], {})
    expected = [
        repr((g.process, g.model, g.spec, dict(g.axes), job.seeds, job.num_rounds))
        for g in job.grids
    ]
    # The job names the kappa that FLAME has by default.
    expected = [call.replace("Flame(kappa=1.0, ", "Flame(") for call in expected]
    assert calls == expected[: len(calls)] and len(calls) in (1, len(expected))


@pytest.mark.parametrize("page", sorted(PAGES))
def test_links_and_includes_lead_somewhere(page):
    for file, marks in included(page, ("include", "literalinclude")):
        content = file.read_text("utf-8")
        for text in marks.values():
            assert text in content, f"{file.name} has no {text!r} any more."
    everywhere = set().union(*map(anchors, PAGES))
    for target in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", PAGES[page])):
        file, _, anchor = target.partition("#")
        if file.startswith("https:"):
            continue
        path = ((DOCS / page).parent / file).resolve()
        assert path.exists(), target
        if anchor:
            there = everywhere
            if file:
                there = anchors(path.relative_to(DOCS).as_posix())
            assert anchor in there, target


def test_every_page_is_in_a_table_of_contents():
    listed = {"index.md"}
    for page, text in PAGES.items():
        for entries in blocks(text, r"\{toctree\}"):
            names = [x for x in entries.split("\n") if x and not x.startswith(":")]
            paths = [((DOCS / page).parent / f"{name}.md").resolve() for name in names]
            listed |= {path.relative_to(DOCS).as_posix() for path in paths}
    inside = {
        file.relative_to(DOCS).as_posix()
        for page in PAGES
        for file, _ in included(page)
        if file.parent == DOCS
    }
    assert listed == set(PAGES) - inside
    conf = (DOCS / "conf.py").read_text("utf-8")
    assert all(f'"{page}"' in conf for page in inside)  # no pages of their own


def test_the_tests_of_the_errata_exist():
    errata = re.split(r"^### ", PAGES["errata.md"], flags=re.M)[1:]
    assert len(errata) > 40
    for erratum in errata:
        tests = TEST.findall(erratum)
        said = erratum.partition("**Test**:")[2]
        assert tests or "no test" in said, erratum.splitlines()[0]
        for file, name, wide in tests:
            code = (ROOT / file).read_text("utf-8")
            head = re.search(rf"((?:^@.*\n(?:^[ )].*\n)*)*)^def {name}\(", code, re.M)
            assert head, name
            marked = re.search("^@pytest.mark.wide", head[1], re.M)
            assert bool(marked) == bool(wide), name


def commands(text, language):
    """Every command of a text: its program's name and its words."""
    for block in blocks(text, language):
        for line in re.findall(COMMAND, block, re.M):
            command, *words = shlex.split(line)
            yield command, words


def application(command):
    """The command's program: a module, or a package with a `__main__`."""
    if not command.startswith("experiments."):
        return installed.app
    module = importlib.import_module(command)
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{command}.__main__")
    return module.app


@pytest.mark.parametrize("page", COMMANDED)
def test_commands_have_the_options_that_pages_name(page):
    for command, words in commands(COMMANDED[page], "(?:sh|console)"):
        if command != "experiments.bench":  # which parses its options by hand
            program, rest = typer.main.get_command(application(command)), iter(words)
            while hasattr(program, "commands"):
                program = program.commands[next(rest)]
            known = {option for p in program.params for option in p.opts}
            given = {word for word in words if word.startswith("--")}
            assert given <= known, (command, words)
            needed = [p.opts for p in program.params if p.required]
            named = [names for names in needed if names[0].startswith("--")]
            assert all(given & set(names) for names in named), (command, words)


@pytest.fixture
def my_methods(tmp_path, monkeypatch):
    """A method of the page about methods, and the template's, saved as it says."""
    first, *programs = blocks(PAGES["write_a_method.md"], "python")
    (program,) = [c for c in programs if "class Pulled" in c]
    method = program.partition("\ntrain(")[0]
    imports = first.partition("\nfederation = ")[0]
    (tmp_path / "my_methods.py").write_text(f"{imports}\n{method}", "utf-8")
    shutil.copy(ROOT / "templates/my_method.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("my_method", "my_methods"):  # of another test's folder
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("my_methods")
@pytest.mark.parametrize("page", COMMANDED)
def test_commands_make_experiments(page):
    for command, words in commands(COMMANDED[page], "sh"):
        name = words[0] if command == "fedjax-pfl" else command.rpartition(".")[2]
        if name in ("run", "sweep") and not {"--resume", "--data"} & set(words):
            options = test_commands.options_of(words, application(command))
            known = set(presets.PRESETS)  # with those of the papers
            if command == "fedjax-pfl":
                known -= set(of_papers.PAPERS)
            if options.preset_name in known:
                assert job.experiment_of(options).grids
            else:
                assert fnmatch.filter(known, options.preset_name), options.preset_name


def short(code):
    """The same program with few rounds."""
    return re.sub(r"num_rounds=(20|100)\b", "num_rounds=2", code)


def programs():
    """Pages with programs; those that train take seconds each."""
    for page, text in sorted(PAGES.items()):
        code = programs_in(text)
        if code:
            trains = any("simulate(" in c or "grid(" in c for c in code)
            yield pytest.param(page, marks=[pytest.mark.wide] * trains, id=page)


@pytest.mark.parametrize("page", list(programs()))
def test_programs_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for code in programs_in(PAGES[page]):
            exec(compile(short(code), page, "exec"), names)
    assert "diverged" not in printed.getvalue()
