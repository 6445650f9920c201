"""The commands: experiments with the package, run from a clone."""

import sys

from fedjax_pfl import command

_is_started = sys.argv[:1] == ["-m"]  # while Python looks for the module to run
_is_command = False
if _is_started:
    _module = sys.orig_argv[-len(sys.argv)]  # the arguments after it are all in argv
    _names = {f"{__name__}.{name}" for name in command.COMMANDS}
    _is_command = _module.removeprefix("-m") in _names

if _is_command:
    command.prepare()

if _sentence := command.lacking():  # a traceback would name one package only
    raise SystemExit(_sentence) if _is_started else ModuleNotFoundError(_sentence)

if _is_command:
    from fedjax_pfl.command import signals

    with signals.carried():  # so that NumPy's threads get no signals
        import numpy  # noqa: F401
