"""Writers of logs for `--log`."""

import shlex
from pathlib import Path

import fedjax_pfl as fp
from fedjax_pfl.command import arguments, outputs

__all__ = ["callbacks", "print_hint"]

TENSORBOARD = "tensorboard"
MLFLOW = "mlflow"


def callbacks(options: arguments.Options, out: Path) -> list[fp.Callback]:
    """Returns the writers that are asked for; nothing is written yet."""
    writers: list[fp.Callback] = []
    for name, where in arguments.logs(options.log):
        if name == TENSORBOARD:
            writers.append(fp.engine.TensorBoard(_directory(where, out)))
        elif name == MLFLOW:
            writers.append(fp.engine.MLflow(*filter(None, [where])))
        else:
            more = {} if where is None else {"project": where}
            writers.append(fp.engine.WeightsAndBiases(group=out.name, **more))
    return writers


def _directory(where: str | None, out: Path) -> Path:
    """Returns a place in the result, or under its name in a shared directory."""
    return out / TENSORBOARD if where is None else Path(where) / out.name


def print_hint(options: arguments.Options, out: Path) -> None:
    """Prints how to open the files for TensorBoard, if there are any."""
    where = dict(arguments.logs(options.log))
    if TENSORBOARD in where:
        directory = _directory(where[TENSORBOARD], out)
        outputs.say(f"TensorBoard: tensorboard --logdir {shlex.quote(str(directory))}")
