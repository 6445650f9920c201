"""A training from a cold start, as a process: `python -m experiments.bench.cold`."""

import dataclasses
import json
import os
import resource
import shutil
import sys
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from experiments.bench import machine

if TYPE_CHECKING:
    from experiments.bench import workloads

__all__ = ["Cold"]

_NAMES = ("x", "y", "client")


@dataclasses.dataclass(frozen=True)
class Stored:
    """Examples in files, read by every contender."""

    folder: str  # where the files are
    sizes: tuple[int, ...]  # examples of every client
    name: ClassVar[str] = "stored"

    def load(self, *, data_dir: str | None, seed: int, num_clients: int | None) -> Any:
        """Reads them."""
        import fedjax_pfl as fp

        del data_dir, seed, num_clients
        arrays = _read(Path(self.folder))
        return fp.data.Dataset(name="stored", num_classes=10, scale=1 / 255, **arrays)


def _read(folder: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of a directory."""
    return {name: np.load(folder / f"{name}.npy") for name in _NAMES}


class Cold:
    """A process that trains once, from importing its libraries on."""

    execution = ""

    def __init__(self, training: "workloads.Workload", contender: str):
        """Writes the examples."""
        # Files, so that all contenders read the same examples, whatever their library.
        self._path = Path(tempfile.mkdtemp(prefix="bench-cold-"))
        weakref.finalize(self, shutil.rmtree, self._path, True)
        dataset = training.spec.dataset.load(data_dir=None, seed=0, num_clients=None)
        for name in _NAMES:
            np.save(self._path / f"{name}.npy", getattr(dataset, name))
        sizes = training.spec.dataset.sizes
        settings = training.settings()
        task = {"rounds": training.rounds, "sizes": sizes, "settings": settings}
        (self._path / "task.json").write_text(json.dumps(task), "utf-8")
        self._arguments = (contender, str(self._path))

    def run(self) -> None:
        """Runs one process; raises UnavailableError if it fails."""
        machine.output("cold", *self._arguments)

    def peak_bytes(self) -> int:
        """Returns the most resident memory of a process that has ended."""
        return machine.resident_bytes(resource.RUSAGE_CHILDREN)

    def result(self) -> Any:
        """Returns the global model that the last process has left, `[1, *P]`."""
        with np.load(self._path / "model.npz") as model:
            return {"head": {name: model[name] for name in ("kernel", "bias")}}


def _train_ours(folder: Path, task: dict[str, Any]) -> dict[str, np.ndarray]:
    """Trains with the package."""
    from experiments.bench import workloads

    sizes = task["sizes"]
    training = workloads.cohorts(sizes, task["settings"]["cohort_size"], task["rounds"])
    spec = dataclasses.replace(training.spec, dataset=Stored(str(folder), tuple(sizes)))
    contender = dataclasses.replace(training, spec=spec).contender("ours")
    contender.run()
    return contender.result()["head"]


def _tensors(folder: Path, task: dict[str, Any]) -> tuple[list, list, Any]:
    """Returns clients' inputs and labels, and settings, for PyTorch."""
    import torch

    from experiments.bench import torch_core

    arrays, sizes = _read(folder), task["sizes"]
    inputs = torch.from_numpy(arrays["x"]).flatten(1).float().div_(255)
    labels = torch.from_numpy(arrays["y"]).long()
    settings = torch_core.Settings(**task["settings"])
    return list(inputs.split(sizes)), list(labels.split(sizes)), settings


def _train_torch(folder: Path, task: dict[str, Any]) -> dict[str, np.ndarray]:
    """Trains with PyTorch."""
    import torch

    from experiments.bench import torch_core

    x, y, settings = _tensors(folder, task)
    start = [torch.zeros(10, x[0].shape[1]), torch.zeros(10)]
    loop = torch_core.Loop(x, y, torch_core.forward(0), start, settings)
    for _ in range(task["rounds"]):
        loop.round()
    kernel, bias = (leaf.detach().numpy()[None] for leaf in loop.server)
    return {"kernel": kernel, "bias": bias}


def _train_pfl(folder: Path, task: dict[str, Any]) -> dict[str, np.ndarray]:
    """Trains with `pfl`."""
    from experiments.bench import peer_pfl

    training = peer_pfl.Training(*_tensors(folder, task), task["rounds"])
    training.run()
    return training.result()["head"]


def _train_flwr(folder: Path, task: dict[str, Any]) -> dict[str, np.ndarray]:
    """Trains with Flower, without its messages about usage, on all CPUs given."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from experiments.bench import peer_flwr, torch_core

    settings = torch_core.Settings(**task["settings"])
    threads = len(machine.cpus())
    return peer_flwr.train(folder, task["sizes"], settings, task["rounds"], threads)


_TRAIN = {
    "ours": _train_ours,
    "torch": _train_torch,
    "pfl": _train_pfl,
    "flwr": _train_flwr,
}

if __name__ == "__main__":
    # The directory has the examples, and gets the global model.
    _contender, _path = sys.argv[1:]
    _folder = Path(_path)
    _task = json.loads((_folder / "task.json").read_text("utf-8"))
    np.savez(_folder / "model.npz", **_TRAIN[_contender](_folder, _task))
