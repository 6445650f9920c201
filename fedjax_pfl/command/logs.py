"""Writers of logs for `--log`."""

import shlex
from pathlib import Path

import fedjax_pfl as fp
from fedjax_pfl.command import arguments, outputs

__all__ = ["callbacks", "print_hint"]

TENSORBOARD = "tensorboard"
MLFLOW = "mlflow"


def callbacks(options: arguments.Options, out: Path) -> list[fp.Callback]:
    """Returns the requested writers, which have written nothing yet."""
    writers: list[fp.Callback] = []
    for name, place in arguments.logs(options.log):
        if name == TENSORBOARD:
            writers.append(fp.engine.TensorBoard(_directory(place, out)))
        elif name == MLFLOW:
            writers.append(fp.engine.MLflow(*filter(None, [place])))
        else:
            fields = {} if place is None else {"project": place}
            writers.append(fp.engine.WeightsAndBiases(group=out.name, **fields))
    return writers


def _directory(place: str | None, out: Path) -> Path:
    """Returns a folder in the result, or below a shared directory."""
    # A shared directory compares runs, each below the name of its result.
    return out / TENSORBOARD if place is None else Path(place) / out.name


def print_hint(options: arguments.Options, out: Path) -> None:
    """Prints the command that opens the files for TensorBoard, if there are any."""
    places = dict(arguments.logs(options.log))
    if TENSORBOARD in places:
        directory = _directory(places[TENSORBOARD], out)
        outputs.say(f"TensorBoard: tensorboard --logdir {shlex.quote(str(directory))}")
