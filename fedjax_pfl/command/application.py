"""The application of all commands, and separate applications of each."""

from typing import Annotated

import typer

from fedjax_pfl import command
from fedjax_pfl.command import (
    arguments,
    cli,
    data_command,
    methods_command,
    pretrain_command,
    report_command,
)

__all__ = ["alone", "app"]

_MAINS = {
    **{name: cli.make_main(name) for name in ("run", "sweep", "plan", "benchmark")},
    "pretrain": pretrain_command.main,
    "report": report_command.main,
    "methods": methods_command.main,
}


def alone(name: str) -> typer.Typer:
    """Makes the application of one command, which `python -m experiments.NAME` runs."""
    app = cli.application()
    cli.add(app, name, _MAINS[name], help=command.COMMANDS[name])
    return app


app = cli.application(
    name="fedjax-pfl",
    cls=cli.Commands,
    add_completion=True,  # `fedjax-pfl --install-completion` sets up the shell
    no_args_is_help=True,
    help="Trains, compares and reports personalized federated learning.",
)


@app.callback()
def _of_all(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=arguments.say_version,
            is_eager=True,
            help="Only print the version.",
        ),
    ] = False,
) -> None:
    """Handles the options before a command."""


for _name, _main in _MAINS.items():
    _texts = {"help": command.COMMANDS[_name], "short_help": command.sentence(_name)}
    cli.add(app, _name, _main, **_texts)
app.add_typer(data_command.app, name="data", short_help=command.sentence("data"))
