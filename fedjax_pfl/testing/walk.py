"""Measures of the way from a call of the user to the loss of one client.

They show the code that a reader has to hold in mind, and the Python of a traced round.
"""

import ast
import collections
import dataclasses
import os
import re
import statistics
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import aggregators, algorithms, attacks, core, local, messages, models
from fedjax_pfl.core import struct
from fedjax_pfl.engine import simulation
from fedjax_pfl.round.process import FederatedProcess
from fedjax_pfl.testing import digests, toy

__all__ = ["Measure", "calls", "measures", "path_to_loss", "probes", "refusals", "show"]

PACKAGE = Path(__file__).parents[1]
ROOMS = (
    *("core", "engine", "local", "algorithms", "aggregators", "messages", "attacks"),
    "round",
)
FILES = (  # that run a round
    *("round/__init__.py", "round/exchange.py", "round/part.py", "round/parts/*.py"),
    *("round/process.py", "round/run.py"),
    *("engine/layout.py", "core/client_view.py", "core/state.py"),
    *("engine/streaming/training.py", "engine/streaming/cohort_programs.py"),
    "engine/streaming/trainer.py",
)
FEATURES = {  # what names one: a field, an attribute, a keyword, a function, a text
    "draws": re.compile("draws"),
    "running statistics": re.compile("(.*_)?(?<!order_)statistics"),
}
_PROTOCOLS = ("getattr", "hasattr")
_STREAMING = "engine/streaming/"


@dataclasses.dataclass(frozen=True)
class Measure:
    """A measured number, with its value before the round was made of parts."""

    name: str
    value: str
    before: str
    target: str


def measures() -> Iterator[Measure]:
    """Measures everything, the quick things first."""
    # Measures of traces first: the last one takes a process of its own.
    path = path_to_loss()
    files = {code.co_filename for code in path}
    yield Measure(
        "own frames from simulate to the loss, files",
        f"{len(path)}, {len(files)}",
        "37, 13",
        "at most 18, 8",
    )
    counts = calls()
    files = {code.co_filename for code in counts}
    yield Measure(
        "calls traced in one round, functions, files",
        f"{sum(counts.values()):,}, {len(counts)}, {len(files)}",
        "1,429, 242, 41",
        "at most 500 in 18 files",
    )
    fields = dataclasses.fields(_traced_round()[0])
    yield Measure("fields of State", str(len(fields)), "18", "4")
    named = [str(len(files_naming(feature))) for feature in FEATURES]
    names = " or ".join(FEATURES)
    yield Measure(f"files that name {names}", ", ".join(named), "7, 32", "2, at most 6")
    yield Measure("getattr with a default, and hasattr", str(len(probes())), "111", "0")
    yield Measure(
        "refusals of streaming and sharding", str(len(refusals())), "13", "at most 3"
    )
    yield Measure(
        "lines of what runs a round", f"{lines():,}", "2,900", "at most 1,900"
    )
    yield Measure(
        "simulate of a new method, optimizations off",
        f"{seconds_of_new_method():.2f} CPU s",
        "1.65 CPU s",
        "at most 1.0 CPU s",
    )


def _is_own(code: types.CodeType) -> bool:
    """Returns whether a function is of the package, and not of this room."""
    place = Path(code.co_filename)
    return place.is_relative_to(PACKAGE) and "testing" not in place.parts


def _profiled(
    function: Callable[[], Any], on_call: Callable[[types.FrameType], None]
) -> None:
    """Calls a function, and another one with the frame of every Python call in it."""

    def profile(frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call":
            on_call(frame)

    # JAX may trace in other threads, which `sys.setprofile` does not reach.
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def path_to_loss() -> list[types.CodeType]:
    """Returns the package's functions from `simulate` to the loss of a local step."""
    paths: list[list[types.CodeType]] = []

    def on_call(frame: types.FrameType) -> None:
        code = frame.f_code
        if code.co_name != "loss" or not _is_own(code) or paths:
            return
        path = [code]  # left out below, as what checks the arguments of `simulate` is
        caller = frame.f_back
        while caller is not None:
            if _is_own(caller.f_code) and path[-1].co_name != "simulate":
                path.append(caller.f_code)
            caller = caller.f_back
        # Evaluation calls the loss, too, without a solver.
        if any("local" in Path(c.co_filename).parts for c in path):
            paths.append(path[:0:-1])

    process = FederatedProcess(algorithm=algorithms.FedAvg())
    model, federation = models.LogisticRegression(), toy.make_federation()
    arguments = (core.seed_key(0), process, model, federation, 1)
    jax.clear_caches()  # a round that was traced before is not traced again
    _profiled(lambda: simulation.simulate(*arguments, progress=False), on_call)
    return paths[0]


def _traced_round() -> tuple[Any, Callable[[], Any]]:
    """Returns shapes of a state, and a function that traces a round."""
    process = FederatedProcess(
        algorithm=algorithms.FedAvg(),
        aggregator=aggregators.CoordinateMedian(),
        attack=attacks.SignFlip(),
        transforms=(messages.ClipNorm(), messages.TopK(fraction=0.5)),
    )
    process = struct.as_arrays(process, jnp.zeros(()).dtype)
    federation = toy.make_federation()
    model = models.LogisticRegression().for_federation(federation)
    state = jax.eval_shape(
        lambda key: process.init(key, model, federation), core.seed_key(0)
    )

    def trace() -> tuple[core.State, core.RoundInfo]:
        return jax.eval_shape(lambda s: process.round(s, model, federation), state)

    return state, trace


def calls() -> "collections.Counter[types.CodeType]":
    """Counts calls of the package's functions while a round is traced."""
    counts: collections.Counter[types.CodeType] = collections.Counter()

    def on_call(frame: types.FrameType) -> None:
        # Expressions are lines of their functions; generators would count every value.
        if _is_own(frame.f_code) and not frame.f_code.co_name.startswith("<"):
            counts[frame.f_code] += 1

    _, trace = _traced_round()
    trace()  # what is checked or cached once per class is not of the round
    jax.clear_caches()
    _profiled(trace, on_call)
    return counts


def _trees(rooms: Iterable[str] = ROOMS) -> Iterator[tuple[str, ast.AST]]:
    """Yields the files of some rooms, parsed."""
    for room in rooms:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            name = path.relative_to(PACKAGE).as_posix()
            yield name, ast.parse(path.read_text("utf-8"))


def files_naming(feature: str) -> list[str]:
    """Returns the files that name a feature of `FEATURES` in code."""

    def names(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword):
            yield node.arg or ""
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value

    # Names of local variables are not counted: they mean other things.
    return [
        file
        for file, tree in _trees((*ROOMS, "models"))
        if any(
            FEATURES[feature].fullmatch(name)
            for node in ast.walk(tree)
            for name in names(node)
        )
    ]


def probes() -> list[str]:
    """Returns the places that ask an object whether it has something by a name."""
    return [
        f"{file}:{node.lineno}"
        for file, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _PROTOCOLS
        and isinstance(node.args[1], ast.Constant)
        and (node.func.id == "hasattr" or len(node.args) == 3)
    ]


def refusals() -> list[str]:
    """Returns the places that refuse something in streamed or sharded trainings."""
    places = []
    for file, tree in _trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Raise) or node.exc is None:
                continue
            error = ast.unparse(node.exc)
            is_about = "streamed" in error or "sharded" in error
            if "InputError" in error and (file.startswith(_STREAMING) or is_about):
                places.append(f"{file}:{node.lineno}")
    return places


def lines() -> int:
    """Counts the lines of the files that run a round, and of `SingleExchange.round`."""
    total = sum(
        len(path.read_text("utf-8").splitlines())
        for pattern in FILES
        for path in PACKAGE.glob(pattern)
    )
    tree = ast.parse((PACKAGE / "algorithms/base.py").read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "round":
            total += (node.end_lineno or node.lineno) - node.lineno + 1
    return total


def seconds_of_new_method() -> float:
    """Measures the CPU seconds of a training of a method in a warm process."""
    command = [sys.executable, "-m", "fedjax_pfl.testing.walk"]
    variables = digests.variables(dtype="float64")
    process = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=True
    )
    return float(process.stdout.split()[-1])


def _time_methods() -> None:
    """Prints the median of the CPU seconds of some new methods."""
    seconds = []
    solver = local.SGD(learning_rate=0.1, epochs=2, batch_size=4)
    for method in (
        algorithms.FedAvg(local=solver),  # warms up
        algorithms.Flame(local=solver),
        algorithms.FedProx(local=solver),
        algorithms.Scaffold(local=solver),
    ):
        process = FederatedProcess(algorithm=method)
        arguments = (core.seed_key(0), process, models.LogisticRegression())
        federation = toy.make_federation()
        start = sum(os.times()[:2])
        simulation.simulate(*arguments, federation, 4, eval_every=2, progress=False)
        seconds.append(sum(os.times()[:2]) - start)
    print(statistics.median(seconds[1:]))


def show() -> None:
    """Prints a table of all measures, and the places behind two measures."""
    from rich.console import Console
    from rich.table import Table

    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = None if is_known else 120  # of files and pipes, where rich would assume 80
    console = Console(highlight=False, markup=False, soft_wrap=True, width=width)
    table = Table("measure", "here", "before", "target")
    for measure in measures():
        table.add_row(measure.name, measure.value, measure.before, measure.target)
    console.print(table)
    console.print("refusals:", ", ".join(refusals()))


if __name__ == "__main__":
    _time_methods()
