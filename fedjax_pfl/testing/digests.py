"""Digests of all numbers of short trainings, to compare two states of the code.

Numbers are the same if digests are. Every data type and number of devices has processes
of its own.
"""

import contextlib
import dataclasses
import functools
import gc
import hashlib
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.results import provenance

__all__ = [
    "Row",
    "compare",
    "digest",
    "environment",
    "incomparable",
    "load",
    "run",
    "save",
    "trained",
    "variables",
]

_MARK = "digest: "
_HIDDEN = (  # variables that would change the programs
    *("JAX_ENABLE_X64", "JAX_NUM_CPU_DEVICES", "JAX_COMPILATION_CACHE_DIR"),
    *("JAX_DEFAULT_MATMUL_PRECISION", "XLA_FLAGS"),
)
# Without XLA's expensive passes: half of the time, and additions keep the order of the
# program.
_FASTER = (
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
_SHOWN = 4  # arrays of a row that differ


@dataclasses.dataclass(frozen=True)
class Row:
    """Digest of one training, empty with an error; seconds are of the processor."""

    name: str
    dtype: str
    digest: str
    arrays: dict[str, list[str]]  # digest, shape, sum and norm of finite values in hex
    seconds: float
    error: str = ""

    @property
    def key(self) -> str:
        """Name and data type."""
        return f"{self.name} ({self.dtype})"

    def __str__(self) -> str:
        return f"{self.name:45} {self.dtype} {self.digest or self.error}"


def digest(arrays: Iterable[tuple[str, np.ndarray]]) -> tuple[str, dict[str, Any]]:
    """Computes the digest of named arrays in any order, and facts of each by name."""
    # Sorted by name, so that the order of fields in a history does not count.
    described = {name: _described(array) for name, array in arrays}
    table = json.dumps(sorted((name, *facts[:2]) for name, facts in described.items()))
    return _short(table.encode()), described


def _short(data: bytes) -> str:
    """Returns 16 digits of SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def _described(array: np.ndarray) -> list[str]:
    """Returns digest, type and shape, sum and norm of an array."""
    shape = f"{array.dtype}{list(array.shape)}"
    # Texts and objects have no bytes of their own: their JSON stands for them.
    if array.dtype.kind not in "biuf":
        return [_short(json.dumps(array.tolist()).encode()), shape, "", ""]
    values = np.asarray(array, np.float64).ravel()
    # NaN and infinities would hide all other differences in a sum.
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        size = float(np.sqrt(np.sum(np.square(values))))
    data = np.ascontiguousarray(array).tobytes()
    return [_short(data), shape, float(values.sum()).hex(), size.hex()]


def environment(*, optimized: bool = False) -> dict[str, Any]:
    """Describes the machine, libraries and code that digests depend on."""
    code = provenance.code()
    return {
        "python": platform.python_version(),
        "jax": code["jax"],
        "jaxlib": code["jaxlib"],
        "numpy": code["numpy"],
        "cpu": provenance.processor(),
        "optimized": optimized,
        "commit": code["commit"],
        "clean": code["clean"],
    }


def run(pattern: str = "", *, optimized: bool = False) -> Iterator[Row]:
    """Trains rows in processes of their own, one after the other."""
    # Data types and numbers of devices are set before JAX starts.
    for place, names in _chosen(pattern).items():
        yield from _run_group(names, *place, optimized)


def count(pattern: str = "") -> int:
    """Counts the rows of a run."""
    return sum(map(len, _chosen(pattern).values()))


def _chosen(pattern: str) -> dict[tuple[str, int, int], list[str]]:
    """Returns names by their data types and numbers of devices and processes."""
    from fedjax_pfl.testing import trainings

    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise checks.InputError(
            f"Expected a regular expression, got {pattern!r}: {error}."
        ) from error
    names: dict[tuple[str, int, int], list[str]] = {}
    for dtype in trainings.DTYPES:
        for name, row in trainings.ROWS.items():
            if regex.search(name) and dtype in row.dtypes:
                place = dtype, row.devices, row.processes
                names.setdefault(place, []).append(name)
    if not names:
        raise checks.InputError(
            f"Expected a part of a training's name, such as flame, got {pattern!r}."
        )
    return names


@functools.cache
def _faster() -> str:
    """Returns options with which XLA compiles quickly, if this jaxlib has them."""
    flags = " ".join(_FASTER)
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    tried = subprocess.run(
        command, env=_plain() | {"XLA_FLAGS": flags}, capture_output=True
    )
    return "" if tried.returncode else flags


def _plain() -> dict[str, str]:
    """Returns the environment of a process that computes on CPUs."""
    base = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
    # A working copy need not be installed.
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return base | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path}


def variables(
    *, dtype: str, devices: int = 1, processes: int = 1, optimized: bool = False
) -> dict[str, str]:
    """Returns the environment of a process that trains."""
    flags = "" if optimized else _faster()
    flags = f"{flags} --xla_force_host_platform_device_count={devices}"
    settings = {
        "XLA_FLAGS": flags.strip(),
        "JAX_ENABLE_X64": str(int(dtype == "float64")),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": str(int(not optimized)),
    }
    if processes > 1:
        settings["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
    return _plain() | settings


def _run_group(
    names: list[str], dtype: str, devices: int, processes: int, optimized: bool
) -> Iterator[Row]:
    """Trains rows that have the same devices."""
    env = variables(
        dtype=dtype, devices=devices, processes=processes, optimized=optimized
    )
    pending = dict.fromkeys(names)
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "names": names,
            "dtype": dtype,
            "folder": folder,
            "processes": processes,
            "port": _free_port() if processes > 1 else None,
        }
        words = Path(folder) / "words.txt"
        with words.open("w") as errors, contextlib.ExitStack() as stack:
            workers = [
                _start(request | {"process": number}, env, errors, stack)
                for number in range(processes)
            ]
            # Processes wait for each other in collectives: one that failed must end the
            # others.
            for worker in workers:
                watch = threading.Thread(target=_end_all, args=(worker, workers))
                watch.start()
                stack.callback(watch.join)
            for line in workers[0].stdout or ():
                if line.startswith(_MARK):
                    row = Row(**json.loads(line.removeprefix(_MARK)))
                    pending.pop(row.name)
                    yield row
            for worker in workers:
                worker.wait()
        # The last words of a crash, which standard error holds.
        tail = " ".join(words.read_text("utf-8", "replace").split()[-40:])
    for name in pending:  # the process ended before
        yield Row(name, dtype, "", {}, 0.0, f"the process ended: {tail}")


def _start(
    request: dict[str, Any],
    env: dict[str, str],
    errors: IO[str],
    stack: contextlib.ExitStack,
) -> "subprocess.Popen[str]":
    """Starts a worker, which ends with the stack; the first one prints rows."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "fedjax_pfl.testing.digests", json.dumps(request)],
        env=env,
        stdout=errors if request["process"] else subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    stack.enter_context(worker)
    stack.callback(worker.kill)
    return worker


def _end_all(
    worker: "subprocess.Popen[str]", workers: "list[subprocess.Popen[str]]"
) -> None:
    """Waits for a worker, and ends the others if it failed: they would wait for it."""
    if worker.wait():
        for process in workers:
            process.kill()


def _free_port() -> int:
    """Returns a port of this machine that is free."""
    # Port 0 lets the system choose; it is free again once the socket closes.
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def trained(name: str, folder: Path) -> Row:
    """Trains one row in this process, with its data type and devices."""
    from fedjax_pfl.testing import trainings

    training = trainings.ROWS[name]
    summary, described, error = "", {}, ""
    start = _processor_seconds()
    try:
        summary, described = digest(training.run(training, folder))
    except Exception as problem:  # a training that fails is a difference, too
        error = " ".join(f"{type(problem).__name__}: {problem}".split())[:300]
    seconds = round(_processor_seconds() - start, 2)
    dtype = str(jax.numpy.zeros(()).dtype)
    return Row(name, dtype, summary, described, seconds, error)


def _processor_seconds() -> float:
    """Returns seconds of the processor, including finished children."""
    return sum(os.times()[:4])


def _work(request: Mapping[str, Any]) -> None:
    """Trains the rows of a request, and prints them."""
    gc.set_threshold(200_000, 20, 50)  # traces make few cycles, and many objects
    if request["processes"] > 1:
        jax.distributed.initialize(
            f"127.0.0.1:{request['port']}",
            request["processes"],
            request["process"],
            initialization_timeout=300,
        )
    for number, name in enumerate(request["names"]):
        # All processes of a training see one folder.
        folder = Path(request["folder"]) / str(number)
        folder.mkdir(exist_ok=True)
        row = trained(name, folder)
        print(f"{_MARK}{json.dumps(dataclasses.asdict(row))}", flush=True)


def save(path: Path, rows: Iterable[Row], where: Mapping[str, Any]) -> None:
    """Writes rows, and the `environment` of their trainings, to a JSON file."""
    entries = [dataclasses.asdict(row) for row in rows]
    text = json.dumps({"environment": dict(where), "rows": entries}, indent=1)
    path.write_text(text, "utf-8")


def load(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Reads the rows of a file, and the environment in which they were trained."""
    try:
        content = json.loads(path.read_text("utf-8"))
        return [Row(**row) for row in content["rows"]], dict(content["environment"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise checks.InputError(f"Cannot read digests '{path}': {error}.") from error


def compare(
    rows: Iterable[Row], reference: Iterable[Row], *, is_whole: bool = True
) -> list[str]:
    """Returns a sentence for every row that differs from an earlier one."""
    old, new = ({row.key: row for row in group} for group in (reference, rows))
    sentences = [f"{key}: not in the file" for key in new if key not in old]
    # A run of some trainings only leaves others out.
    if is_whole:
        sentences += [f"{key}: only in the file" for key in old if key not in new]
    for key in new:
        if key in old and (new[key].digest != old[key].digest or new[key].error):
            sentences.append(f"{key}: {_difference(new[key], old[key])}")
    return sentences


def _difference(new: Row, old: Row) -> str:
    """Describes how two rows differ."""
    if new.error or old.error:
        return f"{new.error or new.digest} in place of {old.error or old.digest}"
    words, largest, number = [], 0.0, 0
    for name in sorted(old.arrays.keys() | new.arrays.keys()):
        old_facts, new_facts = old.arrays.get(name), new.arrays.get(name)
        if old_facts is None or new_facts is None:
            words.append(f"{name} {'is new' if old_facts is None else 'is missing'}")
        elif old_facts[:2] != new_facts[:2]:
            number += 1
            if old_facts[1] != new_facts[1]:
                words.append(f"{name} is {new_facts[1]} in place of {old_facts[1]}")
                continue
            change = _change(old_facts, new_facts)
            largest = max(largest, change)
            words.append(f"{name} by {change:.1e}")
    tail = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return (
        f"{number} of {len(new.arrays)} arrays differ, by at most {largest:.1e} of"
        f" their sum or norm: {', '.join(words[:_SHOWN])}{tail}"
    )


def _change(old: list[str], new: list[str]) -> float:
    """Returns the relative change of sum and norm of an array."""
    changes = [0.0]
    for x, y in zip(old[2:], new[2:], strict=True):
        # Bits may differ by a rounding or by much: sum and norm show the size of it.
        if x and y:
            a, b = float.fromhex(x), float.fromhex(y)
            size = max(abs(a), abs(b))
            changes.append(abs(a - b) / size if size and np.isfinite(size) else 0.0)
    return max(changes)


def incomparable(setup: Mapping[str, Any], origin: Mapping[str, Any]) -> str:
    """Describes why digests of two environments may differ for the same code."""
    names = ("python", "jax", "jaxlib", "numpy", "cpu", "optimized")
    differing = [name for name in names if setup.get(name) != origin.get(name)]
    if not differing:
        return ""
    words = [f"{n} {setup.get(n)} in place of {origin.get(n)}" for n in differing]
    return (
        "Digests are only comparable on one machine with the same libraries and"
        f" options, but here is {', '.join(words)}."
    )


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]))
