"""Table of properties and its runner."""

import dataclasses
import functools
import unittest
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from fedjax_pfl import algorithms, models
from fedjax_pfl.core import checks, struct
from fedjax_pfl.testing import rounds, runs, solvers, subjects

__all__ = ["PROPERTIES", "Outcome", "check", "check_algorithm", "outcomes"]

Method = algorithms.SingleExchange | subjects.Subject

_LONGEST = 300  # letters of another part's error


def _named(fn: Callable[..., None]) -> Callable[..., None]:
    """Wraps a property: highest precision, and the method's name in its message."""

    @functools.wraps(fn)
    def check(subject: subjects.Subject, *args: Any) -> None:
        # Tolerances are those of exact products, which accelerators round by default.
        with jax.default_matmul_precision("highest"):
            try:
                fn(subject, *args)
            except AssertionError as error:
                sentence = f"{subject.name} fails {fn.__name__}: {error}"
                raise AssertionError(sentence) from error

    return check


PROPERTIES: dict[str, Callable[..., None]] = {
    name: _named(getattr(module, name))
    for module in (rounds, runs, solvers)
    for name in module.__all__
}
"""Property by name, a function of a `Subject`; in the order in which they are run."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of one property.

    Attributes:
      name: of the property.
      status: `ok`, `failed` or `skipped`.
      sentence: the error, or the reason to skip.
    """

    name: str
    status: str
    sentence: str = ""

    __post_init__ = struct.check_fields

    def __str__(self) -> str:
        text = f"{self.status:8} {self.name}"
        return f"{text}: {self.sentence}" if self.sentence else text


def _subject(algorithm: Method) -> subjects.Subject:
    """Returns a subject unchanged, and an algorithm with a model that it can train."""
    if isinstance(algorithm, subjects.Subject):
        return algorithm
    subject = subjects.Subject(algorithm)
    try:
        jax.eval_shape(subject.setting.first)
    except checks.InputError:  # a method of networks with layers before a head
        return dataclasses.replace(subject, model=models.MLP(widths=(4,)))
    except Exception:  # which the properties report
        pass
    return subject


def check(name: str, algorithm: Method) -> None:
    """Checks one property; made for `pytest.mark.parametrize("name", PROPERTIES)`.

    Args:
      name: one of `PROPERTIES`.
      algorithm: the method, for example `MyMethod()`, or a `Subject`; its properties
        share a warm state.

    Raises:
      AssertionError: if the property does not hold, in a sentence.
      unittest.SkipTest: if it cannot be checked here; pytest takes it for a skip.
      InputError: if there is no such property.
    """
    checks.known(name, PROPERTIES, "property")
    PROPERTIES[name](_subject(algorithm))


def outcomes(
    algorithm: Method, properties: Iterable[str] | None = None
) -> Iterator[Outcome]:
    """Checks properties one after the other and yields their outcomes.

    Args:
      algorithm: as of `check`.
      properties: names of `PROPERTIES`; None for all.

    Yields:
      An outcome per property, after its check.

    Raises:
      InputError: if there is no such property, before any is checked.
    """
    subject = _subject(algorithm)
    # Checked before the first property, which may take long.
    names = list(PROPERTIES if properties is None else properties)
    for name in names:
        checks.known(name, PROPERTIES, "property")
    return (_outcome(name, subject) for name in names)


def _outcome(name: str, subject: subjects.Subject) -> Outcome:
    """Returns the outcome of one property."""
    try:
        PROPERTIES[name](subject)
    except unittest.SkipTest as reason:
        return Outcome(name, "skipped", str(reason))
    except AssertionError as error:
        return Outcome(name, "failed", str(error.__cause__))
    except Exception as error:  # whatever the method raises is what it is told
        words = " ".join(f"{type(error).__name__}: {error}".split())
        cut = words if len(words) <= _LONGEST else f"{words[:_LONGEST]} ..."
        return Outcome(name, "failed", f"{subject.name} raises {cut}")
    return Outcome(name, "ok")


def check_algorithm(
    algorithm: Method, *, properties: Iterable[str] | None = None
) -> list[Outcome]:
    """Checks all properties, and raises one error for all that do not hold.

    Args:
      algorithm: as of `check`.
      properties: names of `PROPERTIES`; None for all.

    Returns:
      The outcomes, without failed ones; skipped ones have a reason.

    Raises:
      AssertionError: if a property does not hold, with a line for each that was asked
        for.
      InputError: if there is no such property.
    """
    results = list(outcomes(algorithm, properties))
    if any(outcome.status == "failed" for outcome in results):
        lines = [f"{_subject(algorithm).name} fails properties:", *map(str, results)]
        raise AssertionError("\n".join(lines))
    return results
