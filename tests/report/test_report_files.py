"""Files of a report, what it is made of, and what is refused."""

import shutil

import pytest
import typer.testing

from fedjax_pfl.command import application, run_folder
from fedjax_pfl.report import page, sources, tables
from fedjax_pfl.results import comparison, selection
from tests import histories
from tests.command import test_commands
from tests.report import reports

RUNNER = typer.testing.CliRunner()
EVIL = """<script>alert(1)</script>"'><img src=x onerror=alert(2)>%{x}</title>"""


def report(*arguments):
    return RUNNER.invoke(application.alone("report"), list(map(str, arguments)))


@pytest.mark.smoke
def test_one_directory_gets_a_page_and_all_its_figures_and_tables(tmp_path):
    (folder,) = reports.saved(tmp_path, reports.grid_result())
    before = sorted(file.name for file in folder.iterdir())
    (folder / page.FOLDER).mkdir()
    (folder / page.FOLDER / "old").write_text("")  # everything is made anew
    done = report(folder)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"Report: {folder / 'report.html'}\n"
    after = {file.name for file in folder.iterdir()} - {".lock"}
    assert after == {*before, "report.html", page.FOLDER}
    elements = reports.Elements((folder / "report.html").read_text("utf-8"))
    links = [attributes["href"] for attributes in elements.named("a")]
    files = {link for link in links if not link.startswith("#")}
    assert all((folder / link).is_file() for link in files)
    made = (folder / page.FOLDER).rglob("*.*")
    assert files == {file.relative_to(folder).as_posix() for file in made}
    figures = {link for link in files if "/figures/" in link}
    assert {link.rpartition(".")[2] for link in figures} == {"png", "svg", "pdf"}
    assert {link.rpartition("/")[2].partition(".")[0] for link in figures} == {
        *("learning_curves", "megabytes", "clients", "fairness", "grid"),
        *("differences", "sweep", "partition"),
    }


def test_nothing_is_read_from_elsewhere():
    text = reports.grid_page()
    elements = reports.Elements(text)
    assert [a["content"] for a in elements.named("meta") if "http-equiv" in a] == [
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
        " img-src data:"
    ]
    assert not [a for _, a in elements.found if "src" in a]
    assert not elements.named("link") and not elements.named("iframe")
    assert "@import" not in text and "url(" not in text.replace("url(#", "")
    references = [a["xlink:href"] for a in elements.with_attribute("xlink:href")]
    assert all(name.startswith(("#", "data:image/png")) for name in references)
    assert len(text) < 1e6


def test_names_are_shown_not_run():
    config = {"federation.dataset": EVIL, f"model.{EVIL}": EVIL}
    record = histories.make_history(algorithm=EVIL, config=config)
    plain = histories.make_result(histories.make_history())
    content = reports.content(histories.make_result(record))
    text = page.render(content)
    elements = reports.Elements(text)
    expected = reports.Elements(page.render(reports.content(plain)))
    assert [tag for tag, _ in elements.found] != []
    for tag in ("script", "img", "title", "style", "iframe"):
        assert len(elements.named(tag)) == len(expected.named(tag)), tag
    handlers = [n for _, a in elements.found for n in a if n.startswith("on")]
    assert not handlers
    shown = "".join(text for _, text in elements.texts)
    assert shown.count(EVIL) > 5
    assert EVIL not in text and "<script>alert" not in text
    assert any(EVIL in told for told in elements.titles())
    for table in content.facts:
        assert "<script" not in tables.markdown(table)


def test_texts_are_escaped_in_markdown_and_latex():
    part = tables.Part("50 % of a_b", (("a|b_c", "<i> & 3 ± 1"), ("[x](y)", "[1]")))
    table = tables.Table("t", "A & B", "More #1", ("name", "{value}"), (part,))
    assert tables.markdown(table).splitlines() == [
        "### A &amp; B",
        "",
        r"50 % of a\_b:",
        "",
        "| name | {value} |",
        "| --- | ---: |",
        r"| a\|b\_c | &lt;i&gt; &amp; 3 ± 1 |",
        r"| [x]\(y) | [1] |",
        "",
        "More #1",
    ]
    assert tables.latex(table).splitlines()[3:] == [
        r"\caption{A \& B. More \#1}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"name & \{value\} \\",
        r"\midrule",
        r"\multicolumn{2}{l}{50 \% of a\_b} \\",
        r"a\textbar{}b\_c & \textless{}i\textgreater{} \& 3 $\pm$ 1 \\",
        r"{[x](y)} & {[1]} \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_tables_of_rankings_fit_a_paper():
    points = tuple({"seed": seed} for seed in range(3))
    made = [
        histories.make_history(points=points, algorithm=name, rng_seed=k)
        for k, name in enumerate(("FedAvg", "Ditto"))
    ]
    compared = comparison.rank(histories.make_result(*made))
    lines = tables.latex(tables.of_comparison(compared)).splitlines()
    (caption,) = (line for line in lines if line.startswith(r"\caption"))
    assert caption.startswith(r"\caption{Mean accuracy over clients, own test data")
    assert r"over 3 seeds" in caption and len(caption) < 150
    rows = [line for line in lines if line.endswith(r"\\") and "&" in line]
    assert "status" not in rows[0]
    assert rows[1].startswith(r"\textbf{") and rows[1].count(r"\textbf{") == 3
    assert all(r"\textbf" not in row for row in rows[2:])


def test_several_directories_are_one_comparison(tmp_path):
    first = histories.make_result(histories.make_history(points=({"seed": 0},)))
    second = histories.make_result(
        histories.make_history(points=({"seed": 0},), algorithm="Ditto"),
        histories.make_history(points=({"seed": 1},)),
    )
    loaded = sources.read(reports.saved(tmp_path, first, second), run_folder)
    assert [source.name for source in loaded.sources] == ["result-0", "result-1"]
    assert loaded.result.fields == ()
    counts = loaded.result.summary().set_index(["algorithm", "model"])["accuracy"]
    assert "±" in counts["Flame", "global"]  # seeds 0 and 1
    assert "±" not in counts["Ditto", "global"]


def test_the_same_trainings_are_told_apart_by_their_directories(tmp_path):
    result = histories.make_result(histories.make_history())
    loaded = sources.read(reports.saved(tmp_path, result, result), run_folder)
    assert loaded.result.fields == ("algorithm.lam", selection.RUN)
    assert set(loaded.result.table()[selection.RUN]) == {"result-0", "result-1"}


def test_how_often_it_was_judged_makes_no_other_training(tmp_path):
    pair = [
        histories.make_history(algorithm=name, config={"eval_every": k})
        for k, name in enumerate(("Flame", "Ditto"))
    ]
    results = [histories.make_result(record) for record in pair]
    assert reports.content(*results).headline[0].is_paired


def test_a_directory_of_presets_stands_for_its_finished_runs(tmp_path):
    folder = tmp_path / "all"
    folder.mkdir()
    expected = test_commands.begin(folder, ["--preset", "flame_*"])
    finished, begun = folder / "done", folder / "begun"
    histories.make_result(histories.make_history()).save(finished)
    begun.mkdir()
    for inner in (finished, begun):
        shutil.copyfile(folder / "experiment.json", inner / "experiment.json")
    loaded = sources.read([folder], run_folder)
    assert [source.name for source in loaded.sources] == ["done"]
    assert loaded.sources[0].command == expected
    assert loaded.unfinished == ("begun",)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "summary.csv").write_bytes(b"\xff\xfe,\n" * 3),
        lambda folder: change(folder / "summary.csv", ",0.", ",1."),
        lambda folder: (folder / "history.nc").write_bytes(b""),
        shutil.rmtree,
    ],
    ids=["config", "summary", "values", "history", "none"],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, damage):
    (folder,) = reports.saved(tmp_path, histories.make_result(histories.make_history()))
    damage(folder)
    files = sorted(tmp_path.rglob("*"))
    done = report(folder)
    assert done.exit_code == 2 and done.stdout == ""
    assert str(folder) in done.stderr and done.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == files  # nothing was written


def change(file, old, new):
    """Replaces the first of some texts in a file."""
    file.write_text(file.read_text().replace(old, new, 1))


def test_other_wrong_input_is_one_sentence(tmp_path):
    first, second = reports.saved(
        tmp_path, *[histories.make_result(histories.make_history())] * 2
    )
    unfinished, foreign = tmp_path / "unfinished", tmp_path / "foreign"
    for folder in (unfinished, foreign):
        folder.mkdir()
    test_commands.begin(unfinished, ["--preset", "digits"])
    for arguments, sentence in (
        ((first, second), "Expected --out DIR"),
        ((first, first, "--out", tmp_path / "out"), "twice"),
        ((foreign,), "with a config.json, got"),
        ((unfinished,), f"python -m experiments.sweep --resume {unfinished}"),
        ((first, "--out", first / "config.json" / "x"), "Cannot write"),
    ):
        done = report(*arguments)
        assert (done.exit_code, done.stdout) == (2, ""), arguments
        assert sentence in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert run_folder.read(unfinished).preset == "digits"
