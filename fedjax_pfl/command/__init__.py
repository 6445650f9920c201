"""The command line `fedjax-pfl`, which needs the extra `experiments`.

This module has names, help and the check of the extra, and imports nothing slow.
"""

import os
import signal
import sys

__all__ = ["CAUGHT", "COMMANDS", "NEEDED", "lacking", "main", "prepare", "sentence"]

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command with a sentence."""

NEEDED = ("typer>=0.15", "matplotlib>=3.10.7", "jinja2>=3.1")
"""Packages of the extra `experiments`."""

COMMANDS = {
    "run": "Trains one setting (several seeds if asked for) and writes a result"
    " directory. Takes the first algorithm of the preset with its own settings.",
    "sweep": "Trains all settings of a preset side by side and writes one result"
    " directory. Without options: FLAME, Ditto, FedAvg with fine-tuning and Local on"
    " the digits of scikit-learn, four labels per client.",
    "benchmark": "Tunes all methods with the same effort, trains them again and ranks"
    " them. Without options: on the digits of scikit-learn.",
    "pretrain": "Trains a network on a share of the users of a data set, and writes a"
    " file that --init reads. Federations that start from it leave these users out.",
    "report": "Makes one page about results, with figures and tables as files.",
    "plan": "Estimates the memory and time of a sweep with the same options on this"
    " machine, without training. Takes the options of sweep.",
    "data": "Lists and fetches data sets, shows how they are distributed, and checks"
    " data files.",
    "methods": "Lists the methods; with a name, the fields that --set takes and their"
    " defaults.",
}
"""The commands and their help; lists of commands show its first sentence."""


def sentence(name: str) -> str:
    """Returns the first sentence of a command's help, for lists of commands."""
    return f"{COMMANDS[name].split('. ')[0].rstrip('.')}."


def lacking() -> str | None:
    """Returns a sentence on missing packages and their installation, or None."""
    import importlib.util
    import re
    import shlex

    names = [re.split("[<>=]", needed)[0] for needed in NEEDED]
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    packages = " ".join(f'"{needed}"' for needed in NEEDED)
    return (
        f"The commands need {', '.join(missing)}, which the extra `experiments` brings:"
        f" {shlex.quote(sys.executable)} -m pip install {packages}"
    )


def prepare() -> None:
    """Prepares the process of a command, before slow imports."""
    signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)  # until they have a handler
    from fedjax_pfl.command import outputs, signals

    outputs.install()
    signals.install()
    from fedjax_pfl.command import allocator

    allocator.allow()


def main() -> None:
    """Runs the command line, or prints what to install, with exit status 2."""
    if "_FEDJAX_PFL_COMPLETE" not in os.environ:  # a shell waits
        prepare()
    if missing := lacking():
        print(missing, file=sys.stderr)
        raise SystemExit(2)
    from fedjax_pfl.command import application

    application.app(prog_name="fedjax-pfl")
