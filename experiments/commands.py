"""Commands as functions: an application of one command per module."""

from collections.abc import Callable

import typer

from fedjax_pfl.command import cli

__all__ = ["application"]


def application(text: str) -> Callable[[Callable[..., None]], typer.Typer]:
    """Makes a function an application with this help; errors become one sentence."""

    def decorate(function: Callable[..., None]) -> typer.Typer:
        app = cli.application()
        app.command(help=text)(cli.answered(function))
        return app

    return decorate
