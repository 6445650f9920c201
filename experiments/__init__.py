"""The commands: experiments with the package, run from a clone."""

import sys

from fedjax_pfl import command

_is_command = sys.argv[:1] == ["-m"]  # while Python looks for the module to run

if _is_command:
    _module = sys.orig_argv[-len(sys.argv)]  # the arguments after it are all in argv
    if _module.removeprefix("-m") in {
        f"{__name__}.{each}" for each in command.COMMANDS
    }:
        command.prepare()
        from fedjax_pfl.command import signals

        with signals.carried():  # so that its threads get no signals
            import numpy  # noqa: F401

if _sentence := command.lacking():  # else a traceback would name one package only
    raise SystemExit(_sentence) if _is_command else ModuleNotFoundError(_sentence)
