"""The command line `fedjax-pfl`, also `python -m fedjax_pfl.command`."""

import typer

from fedjax_pfl.command import cli, data_command, methods_command, report_command

__all__ = ["app", "main"]

app = typer.Typer(
    # `fedjax-pfl --install-completion` sets up the shell.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Trains, compares and reports personalized federated learning.",
)
for _name, _help in cli.HELP.items():
    app.command(_name, help=_help)(cli.make_main(_name))
app.command("report", help=report_command.HELP)(report_command.main)
app.command("methods", help=methods_command.HELP)(methods_command.main)
app.add_typer(data_command.app, name="data")


def main() -> None:
    """Runs the command line."""
    app()


if __name__ == "__main__":
    main()
