"""`python -m fedjax_pfl.testing my_module:MyMethod`, or with an option of its own."""

import argparse
import collections
import pathlib
import platform
import sys
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import testing
from fedjax_pfl.algorithms import SingleExchange, own_methods, registry
from fedjax_pfl.core import checks
from fedjax_pfl.testing import battery, digests, layers, walk

__all__ = ["main"]

_NOT_NEEDED = " (nothing here relies on it)"


def main(arguments: list[str] | None = None) -> int:
    """Checks a method, or JAX on this machine, and prints a line per property."""
    parser = argparse.ArgumentParser(
        prog="python -m fedjax_pfl.testing",
        description="Checks a method's properties, with its fields' defaults, or"
        " whether the installed JAX computes right on this machine.",
    )
    kinds = {
        "--platform": "check JAX on this machine",
        "--layers": "draw the imports between rooms",
        "--digests": "digest the numbers of short trainings of all parts",
        "--walk": "measure the way from a call to the loss",
    }
    for option, text in kinds.items():
        parser.add_argument(option, action="store_true", help=text)
    group = parser.add_argument_group("with --digests")
    group.add_argument(
        "--only",
        default="",
        metavar="PATTERN",
        help="trainings with this in their name",
    )
    group.add_argument(
        "--against",
        type=pathlib.Path,
        metavar="FILE",
        help="compare with earlier digests",
    )
    group.add_argument(
        "--out", type=pathlib.Path, metavar="FILE", help="write the digests here (JSON)"
    )
    group.add_argument(
        "--optimized", action="store_true", help="compile as for users; twice as long"
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="model with which a method is checked, such as mlp",
    )
    parser.add_argument(
        "algorithm",
        nargs="?",
        help="module:Class of your own, or a name such as flame",
    )
    parser.add_argument(
        "properties", nargs="*", metavar="property", help="only these; all if none"
    )
    request = parser.parse_intermixed_args(arguments)
    tasks = {
        "platform": _check_platform,
        "layers": _check_layers,
        "walk": _show_walk,
        "digests": lambda: _check_digests(request),
    }
    # A method and an option exclude each other: each ends with a status of its own.
    asked = [name for name in tasks if getattr(request, name)]
    if len(asked) + (request.algorithm is not None) != 1:
        options = ", ".join(f"--{name}" for name in tasks)
        parser.error(f"expected a method or one of {options}")
    if (request.only or request.against or request.out) and not request.digests:
        parser.error("--only, --against and --out need --digests")
    if request.model is not None and asked:
        parser.error("--model needs a method")
    try:
        if asked:
            return tasks[asked[0]]()
        algorithm: Any = own_methods.find(request.algorithm)()
        if request.model is not None:
            algorithm = _with_model(algorithm, request.model)
        outcomes = testing.outcomes(algorithm, request.properties or None)
    except checks.InputError as error:
        print(error, file=sys.stderr)
        return 2
    device = jax.devices()[0]
    print(
        f"{request.algorithm} in {jnp.zeros(()).dtype} on {jax.device_count()} x"
        f" {device.device_kind}",
        flush=True,
    )
    counts = collections.Counter()
    for outcome in outcomes:
        print(outcome, flush=True)
        counts[outcome.status] += 1
    print(", ".join(f"{counts[name]} {name}" for name in ("ok", "failed", "skipped")))
    return int(counts["failed"] > 0)


def _with_model(algorithm: SingleExchange, name: str) -> testing.Subject:
    """Returns the method with a model of the registry, once it fits the toy data."""
    checks.known(name, registry.MODELS, "model")
    subject = testing.Subject(algorithm, model=registry.MODELS[name]())
    jax.eval_shape(subject.setting.first)
    return subject


def _check_digests(request: argparse.Namespace) -> int:
    """Prints digests; status 1 if one differs from the file or is missing."""
    reference, origin = None, {}
    if request.against is not None:  # refused before minutes of training
        reference, origin = digests.load(request.against)
    setup = digests.environment(optimized=request.optimized)
    total, rows = digests.count(request.only), []
    for row in digests.run(request.only, optimized=request.optimized):
        rows.append(row)
        print(f"{len(rows):3}/{total} {row}", flush=True)
    if request.out is not None:
        digests.save(request.out, rows, setup)
    seconds = sum(row.seconds for row in rows)
    failed = [row for row in rows if row.error]
    print(f"{total} trainings, {len(failed)} failed, {seconds:.0f} CPU seconds")
    if reference is None:
        return int(bool(failed))
    differences = digests.compare(rows, reference, is_whole=not request.only)
    if differences and (sentence := digests.incomparable(setup, origin)):
        print(sentence)
    print(*differences, sep="\n", end="\n" if differences else "")
    words = f"of commit {str(origin.get('commit'))[:12]} in '{request.against}'"
    print(f"{len(differences)} of {total} trainings differ from those {words}")
    return int(bool(differences))


def _show_walk() -> int:
    """Prints the measures of the way from a call to the loss."""
    walk.show()
    return 0


def _check_layers() -> int:
    """Draws the imports between rooms; status 1 if one does not run downward."""
    imports = layers.edges(pathlib.Path(__file__).parents[1])
    print(layers.draw(imports))
    sentences = layers.violations(imports)
    print(*sentences, sep="\n", end="\n" if sentences else "")
    return 1 if sentences else 0


def _check_platform() -> int:
    """Prints the battery's outcomes and returns the status."""
    device = jax.devices()[0]
    print(
        f"JAX {jax.__version__}, Python {platform.python_version()},"
        f" {jax.device_count()} x {device.device_kind} ({device.platform})",
        flush=True,
    )
    wrong = []
    for outcome in battery.run():
        is_needed = outcome.name not in battery.NOT_NEEDED
        remark = "" if is_needed or outcome.problem is None else _NOT_NEEDED
        print(f"{outcome}{remark}", flush=True)
        if outcome.problem is not None and is_needed:
            wrong.append(outcome.name)
    print(f"wrong: {', '.join(wrong)}" if wrong else "right")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
