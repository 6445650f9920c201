"""The dispatch of evaluations to callbacks."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from fedjax_pfl import results
from fedjax_pfl.core import checks
from fedjax_pfl.engine.callbacks import base
from fedjax_pfl.engine.groups import Group
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.recorder import Recorder
from fedjax_pfl.results import labels

__all__ = ["Watch", "trainings_of", "watching"]


def trainings_of(
    groups: Sequence[Group], num_rounds: int, metric: str | None = None
) -> tuple[base.Training, ...]:
    """Numbers and names the trainings of a call."""
    of_call: dict[str, Any] = {"num_rounds": num_rounds}
    if metric is not None:
        of_call["metric"] = metric
    points = [
        (number, labels.settings(group) | dict(point), group.config | dict(point))
        for number, group in enumerate(groups)
        for point in group.points
    ]
    # A data set or a partition is part of a name only if it varies in the call.
    kinds = [
        name
        for name in labels.IDENTITY.values()
        if any(named.get(name) != points[0][1].get(name) for _, named, _ in points)
    ]
    names = [name for name in (*kinds, *labels.fields(groups)) if name != "algorithm"]
    return tuple(
        base.Training(
            number=number,
            group=group,
            name=_name(named, [*names, "seed"]),
            settings=settings | of_call,
            num_rounds=num_rounds,
        )
        for number, (group, named, settings) in enumerate(points)
    )


def _name(settings: dict[str, Any], names: Sequence[str]) -> str:
    """Returns the algorithm, and the named settings that have a value."""
    parts = [
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in ((name, settings.get(name)) for name in names)
        if value is not None
    ]
    return ", ".join([str(settings["algorithm"]), *parts])


class Watch:
    """Dispatcher of evaluations to the callbacks of one call, which sets `result`."""

    def __init__(
        self, callbacks: Sequence[base.Callback], trainings: Sequence[base.Training]
    ):
        self._callbacks, self._trainings = callbacks, trainings
        self.result: results.Result | None = None

    def evaluated(self, group: int) -> Callable[[Recorder, int], None]:
        """Returns the listener of one group's evaluations."""
        trainings = tuple(t for t in self._trainings if t.group == group)

        def report(recorder: Recorder, number: int) -> None:
            if not self._callbacks:
                return
            is_newest = number == len(recorder.rounds) - 1
            evaluation = base.Evaluation(
                trainings=trainings,
                round=recorder.rounds[number],
                metrics=recorder.means(number),
                running=recorder.running(number),
                is_last=is_newest and recorder.has_ended(),
                is_restored=number < recorder.num_restored,
            )
            for callback in self._callbacks:
                callback.evaluated(evaluation)

        return report


@contextlib.contextmanager
def watching(
    groups: Sequence[Group], options: Options, only: int | None = None
) -> Iterator[Watch]:
    """Begins the callbacks, and ends all that have begun, whatever happens.

    Args:
      groups: of the call.
      options: of the call; of several processes only the first calls its callbacks.
      only: number of the only group that callbacks see; None for all groups.

    Yields:
      The dispatcher; callbacks end with its `result`.

    Raises:
      InputError: if an object among them is not a callback.
    """
    for callback in options.callbacks:
        if not isinstance(callback, base.Callback):
            raise checks.InputError(
                "Expected callbacks to be objects of classes derived from"
                f" fedjax_pfl.Callback, got {callback!r}."
            )
    callbacks = [] if jax.process_index() > 0 else [*options.callbacks]
    if options.progress and jax.process_index() == 0:
        from fedjax_pfl.engine.callbacks.progress import Progress  # imports rich

        callbacks = [Progress(len(groups)), *callbacks]
    trainings = trainings_of(groups, options.num_rounds, options.metric)
    if only is not None:
        trainings = tuple(t for t in trainings if t.group == only)
    watch = Watch(callbacks, trainings)
    with contextlib.ExitStack() as stack:
        # Callbacks that have begun are ended, also if a later one fails to begin.
        for callback in callbacks:
            callback.begin(trainings)
            stack.callback(lambda callback=callback: callback.end(watch.result))
        try:
            yield watch
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(_interrupted(options)) from error
        if watch.result is not None and options.models_to is not None:
            place = Path(options.models_to)
            watch.result = dataclasses.replace(watch.result, directory=place)


def _interrupted(options: Options) -> str:
    """Returns how to resume an interrupted call."""
    if options.checkpoints is None:
        return "Interrupted; with checkpoints='DIR' the same call goes on from there."
    place = options.checkpoints.path
    return f"Interrupted; the same call goes on from its checkpoints in '{place}'."
