"""A report as files: the page, with its figures and tables next to it."""

import dataclasses
import functools
from pathlib import Path

from fedjax_pfl.core import checks
from fedjax_pfl.report import facts, page, sections, sources, tables
from fedjax_pfl.results import comparison, summaries
from fedjax_pfl.results.directories import check_writable, filled, locked
from fedjax_pfl.results.plain_files import created, write_text

__all__ = ["content_of", "write"]

_PAGE = "report.html"
_SAVED = {
    "png": {"dpi": 200},
    "svg": {"metadata": {"Date": None}},
    "pdf": {"metadata": {"CreationDate": None}},
}


def write(
    directories: list[Path],
    out: Path | None,
    runs: sources.Runs,
    metric: str | None = None,
) -> Path:
    """Writes the report of some results, in place of an earlier one."""
    if out is None:
        if len(directories) > 1:
            raise checks.InputError(
                "Expected --out DIR, where the report of several directories is"
                " written."
            )
        (out,) = directories
    else:
        check_writable(out)
    loaded = sources.read(directories, runs)
    if metric is not None:
        result = loaded.result.by_metric(metric)
        loaded = dataclasses.replace(loaded, result=result)
    content = content_of(loaded)
    # The page is last: it completes the folder, or replaces an older one.
    with locked(out), filled(out, last=_PAGE) as folder:
        _write_figures(content, folder / page.FOLDER / "figures")
        _write_tables(content, folder / page.FOLDER / "tables")
        write_text(folder / _PAGE, page.render(content))
    return out / _PAGE


def content_of(loaded: sources.Loaded) -> page.Content:
    """Returns the content of a page about results."""
    result = loaded.result.contenders()
    ranking = comparison.rank(result)
    compare = functools.partial(comparison.compare, result)
    on_own = functools.partial(compare, data=summaries.OWN_TEST)
    wider = [
        compare(name=name, title=f"Methods on {data} data", when="last", data=data)
        for name, data in sections.WIDER.items()
    ]
    title = "Methods, best round by validation"
    best = on_own(name="best", title=title, when="best (validation)")
    title = "All settings"
    every = on_own(name="all_settings", title=title, when="last", only_best=False)
    if ranking is not None and every is not None and _size(ranking) == _size(every):
        every = None  # the same table
    return page.Content(
        loaded=loaded,
        headline=tuple(table for table in (ranking, *wider) if table is not None),
        details=tuple(table for table in (best, every) if table is not None),
        sections=tuple(sections.all_of(result)),
        facts=(
            *facts.named_clients(loaded),
            *facts.unseen(loaded),
            *facts.searches(loaded),
            *facts.privacy(loaded),
            facts.communication(loaded),
            facts.timing(loaded),
        ),
    )


def _size(table: comparison.Comparison) -> int:
    """Counts rows."""
    return sum(len(environment.rows) for environment in table.environments)


def _write_figures(content: page.Content, folder: Path) -> None:
    """Writes every figure as PNG, SVG and PDF, with text as text."""
    import matplotlib

    folder.mkdir(parents=True)
    for section in content.sections:
        figure = section.figure
        for suffix, options in _SAVED.items():
            # In PDF, fonts of the type that publishers require.
            with (
                created(folder / f"{section.name}.{suffix}") as file,
                matplotlib.rc_context({"pdf.fonttype": 42}),
            ):
                figure.savefig(file, **options)


def _write_tables(content: page.Content, folder: Path) -> None:
    """Writes every table as Markdown and LaTeX."""
    folder.mkdir(parents=True)
    rankings = [*content.headline, *content.details]
    for table in (*map(tables.of_comparison, rankings), *content.facts):
        write_text(folder / f"{table.name}.md", tables.markdown(table))
        write_text(folder / f"{table.name}.tex", tables.latex(table))
