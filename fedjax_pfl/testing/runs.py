"""Properties of trainings: grids, segments, checkpoints, compiled programs."""

import dataclasses
import tempfile
import unittest
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import struct
from fedjax_pfl.engine import groups, resident, simulation
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.resident import Resident
from fedjax_pfl.engine.trainer import Interrupted
from fedjax_pfl.results import checkpoint, history
from fedjax_pfl.testing import compare, compiled_rounds, subjects

__all__ = [  # in the order in which they are checked
    "scan_equals_python_loop",
    "segments_are_bit_identical",
    "grid_equals_single_runs",
    "new_values_do_not_retrace",
    "a_resumed_grid_is_bit_identical",
]


def _varied(subject: subjects.Subject) -> tuple[str, float, float]:
    """Returns the field that is varied, its value and another one."""
    if subject.varied is None:
        raise unittest.SkipTest(
            "the method has no traced field whose value is a number"
        )
    return subject.varied


def _run(
    subject: subjects.Subject,
    values: Sequence[float],
    *,
    segment: int = 2,
    rounds: int = 4,
    store: checkpoint.Store | None = None,
    interrupt: Callable[[], str | None] = lambda: None,
) -> tuple[history.History, core.State]:
    """Runs points that differ in one traced field through the driver."""
    at, (field, _, _) = subject.setting, _varied(subject)
    process, *peers = [struct.replace_field(at.process, field, v) for v in values]
    points = [{field: value} for value in values]
    group = compiled_rounds.group(
        at.key, process, subject.model, at.federation, *peers, points=points
    )
    options = Options(
        num_rounds=rounds, eval_every=segment, execution="vmap", evaluate_on=("test",)
    )
    trainer = Resident(groups.plan(group, options), store)
    record = simulation.Run(trainer, store).train(interrupt=interrupt)
    return record, trainer.states


def grid_equals_single_runs(subject: subjects.Subject) -> None:
    """Checks that two values of a field trained together agree with each alone."""
    field, *values = _varied(subject)
    grid, _ = _run(subject, values)
    if grid.diverged_at.tolist() != [-1, -1]:
        raise AssertionError(
            f"With {field}={values}, the trainings diverged in rounds"
            f" {grid.diverged_at.tolist()} (-1: not at all)."
        )
    # Rounding grows over four rounds and evaluations.
    tolerance = max(1e-9, 8 * compare.tight())
    for number, value in enumerate(values):
        single, _ = _run(subject, [value])
        compare.close(
            {name: jnp.asarray(v[number]) for name, v in grid.metrics.items()},
            {name: jnp.asarray(single.metrics[name][0]) for name in grid.metrics},
            f"With {field}={value:g} trained in a grid in place of alone",
            tolerance,
        )


def segments_are_bit_identical(subject: subjects.Subject) -> None:
    """Checks that evaluating after other rounds changes no bit of the training."""
    *_, value = _varied(subject)
    _, state = _run(subject, [value])
    longer, end_state = _run(subject, [value], segment=3)
    compare.same(end_state, state, "With evaluations every 3 in place of 2 rounds")
    # The last segment is shorter than the others.
    if longer.rounds.tolist() != [0, 3, 4]:
        raise AssertionError(f"Evaluated were the rounds {longer.rounds.tolist()}.")


def a_resumed_grid_is_bit_identical(subject: subjects.Subject) -> None:
    """Checks a training that is interrupted halfway and resumed from the disk."""
    _, *values = _varied(subject)
    expected, states = _run(subject, values)
    # The second question comes after the first segment, of two rounds.
    questions = iter([None, "enough"])
    with tempfile.TemporaryDirectory() as folder:
        options = checkpoint.Checkpoints(folder, min_seconds=0)
        rounds = None
        try:
            _run(
                subject,
                values,
                store=options.store(0, subject.name),
                interrupt=lambda: next(questions),
            )
        except Interrupted as interruption:
            rounds = interruption.done
        if rounds != 2:
            raise AssertionError(f"The training was interrupted after {rounds} rounds.")
        resumed, resumed_states = _run(
            subject, values, store=options.store(0, subject.name)
        )
    case = "In a training that was interrupted and resumed"
    compare.same(resumed_states, states, case)
    # Times of a clock differ between any two runs.
    seconds = {"compile_seconds": 0.0, "run_seconds": 0.0}
    histories = (dataclasses.replace(r, **seconds) for r in (resumed, expected))
    if not struct.same(*histories):
        raise AssertionError(f"{case}, the history is another one.")


def scan_equals_python_loop(subject: subjects.Subject) -> None:
    """Checks that rounds in one compiled segment agree with rounds one by one."""
    field, _, value = _varied(subject)
    at = subject.setting
    process = struct.replace_field(at.process, field, jnp.asarray(value))
    at = dataclasses.replace(at, process=process)
    state = at.first()
    for _ in range(4):
        state, _ = at.round(state)
    _, scanned = _run(subject, [value])
    # Four rounds of rounding differences between two programs.
    compare.close(
        state,
        jax.tree.map(lambda leaf: leaf[0], scanned),
        "With four rounds one by one in place of one program",
        4 * compare.tight(),
    )


def new_values_do_not_retrace(subject: subjects.Subject) -> None:
    """Checks that another value of a traced field, or more rounds, do not retrace."""
    field, start, value = _varied(subject)
    _run(subject, [start])
    # JAX counts the traces of a function; a second value must not add one.
    counts = _programs()
    _run(subject, [value])
    _run(subject, [value], rounds=6)
    if _programs() != counts:
        raise AssertionError(
            f"New values of {field}, or more rounds, were compiled again."
        )


def _programs() -> list[int]:
    """Counts the compiled programs of training and of evaluation."""
    functions: list[Any] = [resident.segment, resident.evaluate]
    return [program._cache_size() for program in functions]
