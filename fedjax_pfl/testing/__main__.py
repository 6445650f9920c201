"""`python -m fedjax_pfl.testing my_module:MyMethod`, `--platform` or `--layers`."""

import argparse
import collections
import pathlib
import platform
import sys

import jax
import jax.numpy as jnp

from fedjax_pfl import testing
from fedjax_pfl.algorithms import own_methods
from fedjax_pfl.core import checks
from fedjax_pfl.testing import battery, layers

__all__ = ["main"]

_NOT_NEEDED = " (nothing here relies on it)"


def main(arguments: list[str] | None = None) -> int:
    """Checks a method, or JAX on this machine, and prints a line per property.

    Args:
      arguments: words of the command line; None takes the process's own.

    Returns:
      Status 0 if nothing failed, 1 if something did, 2 for bad input.
    """
    parser = argparse.ArgumentParser(
        prog="python -m fedjax_pfl.testing",
        description="Checks a method's properties, with its fields' defaults, or"
        " whether the installed JAX computes right on this machine.",
    )
    parser.add_argument(
        "--platform", action="store_true", help="check JAX on this machine"
    )
    parser.add_argument(
        "--layers", action="store_true", help="draw the imports between rooms"
    )
    parser.add_argument(
        "algorithm",
        nargs="?",
        help="module:Class of your own, or a name such as flame",
    )
    parser.add_argument(
        "properties", nargs="*", metavar="property", help="only these; all if none"
    )
    request = parser.parse_args(arguments)
    asked = (request.platform, request.layers, request.algorithm is not None)
    if sum(asked) != 1:
        parser.error("expected one of a method, --platform and --layers")
    if request.platform:
        return _check_platform()
    if request.layers:
        return _check_layers()
    try:
        algorithm = own_methods.find(request.algorithm)()
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


def _check_layers() -> int:
    """Draws the imports between rooms; status 1 where one does not run downward."""
    imports = layers.edges(pathlib.Path(__file__).parents[1])
    print(layers.draw(imports))
    wrong = layers.violations(imports)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


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
