"""The commands: experiments with the package, run from a clone."""

import importlib.util
import sys

_NEEDED = ("typer", "matplotlib", "jinja2")
_missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
if _missing:  # else a traceback would name the first one only
    _sentence = (
        f"The commands need {', '.join(_missing)}, which python -m pip install -e"
        ' ".[experiments]" installs.'
    )
    is_command = sys.argv[:1] == ["-m"]  # while Python looks for the module to run
    raise SystemExit(_sentence) if is_command else ModuleNotFoundError(_sentence)
