"""The page of a benchmark, as HTML and as Markdown with figures beside it."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from fedjax_pfl.benchmark import costs, findings, pictures, ranking, tables
from fedjax_pfl.report import page as report_page
from fedjax_pfl.report import svg
from fedjax_pfl.report import tables as texts
from fedjax_pfl.results import paired, plain_files

__all__ = ["ranking_table", "write"]

_NAME, _FIGURES = "benchmark", "benchmark_files"
_UNSEEN = (
    " Unseen clients never trained; they adapt the global model by local epochs, or by"
    " the method's own rule where it has one."
)


@dataclasses.dataclass(frozen=True)
class _Chapter:
    """A part of the page.

    Attributes:
      name: of its figure's file.
      title: heading.
      command: line that repeats it, or empty.
      figure: what is drawn, or None.
      caption: of the figure.
      tables: what is listed.
    """

    name: str
    title: str
    command: str
    figure: Figure | None
    caption: str
    tables: tuple[texts.Table, ...]


def write(found: tables.Tables, folder: str | Path, *, html: bool = True) -> Path:
    """Writes the page and its figures, in place of older ones.

    Args:
      found: tables of the benchmark.
      folder: where to write.
      html: whether to write the page for browsers, too.

    Returns:
      The page: `benchmark.html`, or `benchmark.md` where that is not wanted.
    """
    folder, chapters = Path(folder), list(_chapters(found))
    said, intro = findings.sentences(found), _intro(found)
    drawn = {c.name: c.figure for c in chapters if c.figure is not None}
    svg.write_all(drawn, folder / _FIGURES)
    text = "\n\n".join(_markdown(intro, said, chapters)) + "\n"
    path = folder / f"{_NAME}.md"
    plain_files.write_text(path, text)
    if html:
        path = folder / f"{_NAME}.html"
        plain_files.write_text(path, _html(intro, said, chapters))
    return path


def _intro(found: tables.Tables) -> str:
    """Says what is compared, and how."""
    seeds = sorted(found.scores["seed"].unique().tolist())
    methods = {found.learned.get(m, m) for m in found.scores["method"]}
    return (
        f"{_plural(len(methods), 'method')} on {_plural(len(found.tasks), 'data set')}."
        f"{_effort(found)} Settings are chosen on validation data with three seeds;"
        f" what is shown are test data and {len(seeds)} other seeds"
        f" ({', '.join(map(str, seeds))}), of which each draws its own partition."
    )


def _effort(found: tables.Tables) -> str:
    """Says what the budget of a method has paid for."""
    is_learned = found.searches["method"].isin(found.learned)
    tried, points = (
        found.searches["tried"][rows & (found.searches["tried"] > 0)]
        for rows in (~is_learned, is_learned)
    )
    text = ""
    if len(tried):
        text = (
            " Every method searches its own fields, at random and with successive"
            " halving, with the same number of client-steps on a data set: that pays"
            f" for {_range(tried)} settings, fewer where a round takes more steps."
        )
    if len(points):
        text += (
            " Rows called learned have the same client-steps, half of them for one"
            " training in which the same fields move from the middle of their ranges"
            " along the derivatives of the validation loss, where a derivative in p"
            " fields counts as p more trainings; the rest pays for a search among"
            f" {_range(points)} points of the path."
        )
    return text


def _range(counts: pd.Series) -> str:
    """Formats the least and the largest of some whole numbers."""
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low} to {high}"


def _plural(count: int, noun: str) -> str:
    """Formats text, for example `1 data set` or `2 data sets`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _chapters(found: tables.Tables) -> Iterator[_Chapter]:
    """Yields the parts of the page."""
    ranks = ranking.over_tasks(found)
    if ranks is not None:
        yield _Chapter(
            name="ranks",
            title="Over all data sets",
            command="",
            figure=pictures.of_ranks(ranks),
            caption=_of_ranks(ranks, found),
            tables=(),
        )
    for name in found.tasks:
        task = found.of_tasks(name)
        places = ranking.places(task)
        yield _Chapter(
            name=name,
            title=name,
            command=_command(task),
            figure=pictures.of_places(places, task.metric),
            caption="Blue are the best method and those that cannot be told from it;"
            " open circles are not ranked.",
            tables=(
                ranking_table(task, places),
                costs.table(task, places),
                _searches(task, places),
            ),
        )


def _of_ranks(ranks: ranking.Ranks, found: tables.Tables) -> str:
    """Says whose mean ranks are shown, what they tell, and who is missing."""
    text = (
        f"Mean ranks of the methods that are ranked on all of {ranks.num_tasks} data"
        " sets. Bars join those that Nemenyi's test at five percent cannot tell apart;"
        f" Friedman's test that all are alike has p = {ranks.p_value:.2g}."
    )
    few = [name for name in found.tasks if name not in ranks.tasks]
    if few:
        text += (
            " Data sets on which less than two thirds of all methods are ranked have no"
            f" part in this, nor in the findings: {', '.join(few)}."
        )
    if ranks.elsewhere:
        others = (f"{m} ({', '.join(names)})" for m, names in ranks.elsewhere.items())
        text += (
            " Missing, with the data sets on which they diverged, had not converged or"
            f" were not trained: {', '.join(others)}."
        )
    return text


def _command(task: tables.Tables) -> str:
    """Returns the line that repeats a data set, or with --only a method of it.

    It says the budget, which would follow from the methods if it were left out.
    """
    command = str(task.searches["command"].iloc[0]).rpartition(" --only ")[0]
    if not command or "--tune-budget" in command:
        return command
    return f"{command} --tune-budget {task.searches['budget'].max():.0f}steps"


def ranking_table(task: tables.Tables, places: list[ranking.Place]) -> texts.Table:
    """Returns the table of results of one data set, in the order of places."""
    columns = ["method", "group", task.metric, "below the best", "worst 10 %"]
    shares = {f"worse_than_{n.lower()}": f"worse than {n}" for n in tables.REFERENCES}
    shares = {n: t for n, t in shares.items() if task.scores[n].notna().any()}
    has_unseen = bool(task.scores["unseen"].notna().any())
    columns += [*shares.values(), *(["unseen clients"] * has_unseen)]
    adapted = task.scores.groupby("method", sort=False)["unseen_model"].first()
    means = task.scores.groupby("method", sort=False).mean(numeric_only=True)
    best = places[0]
    rows = []
    for place in places:
        gap = paired.interval(100 * place.values, 100 * best.values)
        row = means.loc[place.method]
        cells = [
            str(place.group) if place.group else place.why_not,
            _percent_with_spread(100 * place.values),
            "–" if place is best or math.isnan(gap.mean) else gap.text("+.2f"),
            _percent(row["worst"]),
            *(_percent(row[name]) for name in shares),
            *([_unseen(row["unseen"], adapted[place.method])] * has_unseen),
        ]
        rows.append((place.method, *cells))
    caption = (
        f"{task.metric[0].upper()}{task.metric[1:]} on clients' own test data in the"
        " last round, in percent: mean ± standard deviation over seeds. Below the best:"
        " difference to the first row, paired by seed, with 95 % intervals, each for"
        " itself. Methods of a group cannot be told from its first one (paired tests at"
        " five percent, corrected by Holm's method). Worse than: share of clients for"
        " whom it is so."
        f"{_UNSEEN if has_unseen else ''} Not converged: the validation {task.metric}"
        " still gained more than half a point in a tenth of the rounds, by a line"
        " through the last three tenths."
    )
    parts = (texts.Part("", tuple(rows)),)
    name = f"{task.tasks[0]}-scores"
    return texts.Table(name, "Result", caption, tuple(columns), parts)


def _searches(task: tables.Tables, places: list[ranking.Place]) -> texts.Table:
    """Returns the table of searches of a data set, in the order of places."""
    columns = ("method", "best setting", "tried", "client-steps", "median setting")
    columns += ("failed", "repeat with")
    by_method = task.searches.set_index("method")
    rows = []
    for place in places:
        row = by_method.loc[place.method]
        below = 100 * (row["median"] - row["best"])
        cells = [
            row["settings"] or "–",
            str(int(row["tried"])),
            costs.number(row["spent"]),
            "–" if math.isnan(below) else f"{below:+.1f}",
            f"{100 * row['failed']:.0f} %",
            f"--only {str(row['command']).rpartition(' --only ')[2]}",
        ]
        rows.append((place.method, *cells))
    caption = (
        "The best setting of each search; settings that were tried, and the"
        " client-steps that they took. Median setting: how many points of validation"
        f" {task.metric} it is below the best one at the first rung, where all settings"
        " have been trained for the same number of rounds. Failed: settings with a"
        " value that is not finite. The command above, with the option in the last"
        " column, repeats a row."
    )
    if task.learned:
        caption += (
            " Settings of learned rows are points of a path, whose client-steps are"
            " counted, too."
        )
    parts = (texts.Part("", tuple(rows)),)
    name = f"{task.tasks[0]}-searches"
    return texts.Table(name, "Searches", caption, columns, parts, 2)


def _unseen(value: float, model: str) -> str:
    """Formats the value of clients that never trained, and how they adapted."""
    rule = " (own rule)" if "own rule" in model else ""
    return f"{_percent(value)}{rule}"


def _percent(value: float) -> str:
    """Formats a share."""
    return "–" if math.isnan(value) else f"{100 * value:.1f}"


def _percent_with_spread(values: object) -> str:
    """Formats a mean with its standard deviation."""
    found = paired.of_mean(values)  # pyright: ignore
    if not found.pairs:
        return "–"
    spread = found.standard_error * math.sqrt(found.pairs)
    return f"{found.mean:.2f} ± {spread:.2f}"


def _markdown(intro: str, said: list[str], chapters: list[_Chapter]) -> Iterator[str]:
    """Yields the paragraphs of the page."""
    yield "# Benchmark"
    yield "Generated by `fedjax-pfl benchmark`; edits are lost."
    yield intro
    yield "\n".join(f"* {sentence}" for sentence in said)
    for chapter in chapters:
        yield f"## {chapter.title}"
        if chapter.command:
            yield f"```sh\n{chapter.command}\n```"
        if chapter.figure is not None:
            yield f"![{chapter.title}]({_FIGURES}/{chapter.name}.svg)"
            yield chapter.caption
        for table in chapter.tables:
            yield texts.markdown(table).strip()


def _html(intro: str, said: list[str], chapters: list[_Chapter]) -> str:
    """Returns the page for browsers."""
    drawn = {
        chapter.name: svg.inline(chapter.figure, chapter.name, chapter.title)
        for chapter in chapters
        if chapter.figure is not None
    }
    return report_page.template("page.benchmark.html.jinja").render(
        intro=intro,
        findings=said,
        chapters=chapters,
        drawn=drawn,
        css=report_page.asset("page.css"),
        js=report_page.asset("page.js"),
    )
