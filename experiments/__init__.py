"""The commands: experiments with the package, run from a clone."""

import sys

from fedjax_pfl import command

if _sentence := command.lacking():  # else a traceback would name one package only
    is_command = sys.argv[:1] == ["-m"]  # while Python looks for the module to run
    raise SystemExit(_sentence) if is_command else ModuleNotFoundError(_sentence)
