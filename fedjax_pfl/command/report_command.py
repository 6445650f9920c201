"""The command line of a report."""

from pathlib import Path
from typing import Annotated

import typer

from fedjax_pfl.command import cli, outputs

__all__ = ["main"]


@cli.answered
def main(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR",
            help="Directories of the commands sweep or run, or saved results. Several"
            " are compared with each other.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for report.html and report_files/; by default the directory"
            " itself if there is only one.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Metric that chooses rounds, settings and hybrids and ranks methods,"
            " for example macro_f1; the metric of the commands if not given.",
        ),
    ] = None,
) -> None:
    """Writes `report.html` and `report_files/`."""
    outputs.go_on()
    # JAX is imported late, so that `--help` answers at once.
    from fedjax_pfl.command import run_folder
    from fedjax_pfl.report import writing

    page = writing.write(directories, out, run_folder, metric)
    outputs.say(f"Report: {page}")
