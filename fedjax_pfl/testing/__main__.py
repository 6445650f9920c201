"""`python -m fedjax_pfl.testing my_module:MyMethod`: one line per property."""

import argparse
import collections
import sys

import jax
import jax.numpy as jnp

from fedjax_pfl import checks, own_methods, testing

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Checks the named method and prints what was found.

    Args:
      arguments: words of the command line; None takes the process's own.

    Returns:
      Status 0 if no property failed, 1 if one did, 2 for bad input.
    """
    parser = argparse.ArgumentParser(
        prog="python -m fedjax_pfl.testing",
        description="Checks a method's properties, with its fields' defaults.",
    )
    parser.add_argument(
        "algorithm", help="module:Class of your own, or a name such as flame"
    )
    parser.add_argument(
        "properties", nargs="*", metavar="property", help="only these; all if none"
    )
    given = parser.parse_args(arguments)
    try:
        algorithm = own_methods.find(given.algorithm)()
        found = testing.outcomes(algorithm, given.properties or None)
    except checks.InputError as error:
        print(error, file=sys.stderr)
        return 2
    device = jax.devices()[0]
    print(
        f"{given.algorithm} in {jnp.zeros(()).dtype} on {jax.device_count()} x"
        f" {device.device_kind}",
        flush=True,
    )
    counts = collections.Counter()
    for outcome in found:
        print(outcome, flush=True)
        counts[outcome.status] += 1
    statuses = ("ok", "failed", "skipped")
    print(", ".join(f"{counts[status]} {status}" for status in statuses))
    return int(counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
