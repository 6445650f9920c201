"""Experiments on a user's own data."""

import dataclasses
from typing import Any

import fedjax_pfl as fp
from fedjax_pfl.command import arguments, presets
from fedjax_pfl.command.presets.experiment import Experiment, Grid, apply_settings
from fedjax_pfl.core import checks
from fedjax_pfl.data.sources import user

__all__ = ["one_grid", "with_data"]

_OF_DATA = "federation.dataset."
_OF_TEXT = ("text", "tokenizer")


def one_grid(
    preset: str, options: arguments.DataOptions, noun: str, advice: str = ""
) -> Grid:
    """Returns the first grid of a preset, on own data; refuses sweeps."""
    experiment = with_data(presets.get(preset).single(), options)
    experiment = apply_settings(experiment, options.settings)
    grid, *others = experiment.grids
    swept = {name for part in experiment.grids for name in part.axes}
    if swept or others:
        names = f" of {', '.join(sorted(swept))}" if swept else ""
        raise checks.InputError(f"Expected one {noun}, got a sweep{names}{advice}.")
    return grid


def with_data(experiment: Experiment, options: arguments.DataOptions) -> Experiment:
    """Replaces the data of an experiment by a user's own."""
    if options.data is None:
        return experiment
    # Prices replace a market.
    if isinstance(experiment.grids[0].spec, fp.portfolio.PortfolioSpec):
        for option in ("label", "client", "split", "time", *_OF_TEXT):
            if (value := getattr(options, option)) is not None:
                raise checks.InputError(
                    f"Expected no --{option} with prices, got {value!r}."
                )
        changes = {"federation.market": fp.portfolio.PriceFile(path=options.data)}
        return _changed(experiment, experiment.name, changes)
    place = (options.data, options.label, options.client, options.data_dir)
    source = _with_text(user.source_for(*place, options.split, options.time), options)
    experiment = _changed(experiment, source.name, {"federation.dataset": source})
    # Settings of reading determine the data, so they come first; all other settings
    # can still change the values below.
    of_data = [text for text in options.settings if text.startswith(_OF_DATA)]
    experiment = apply_settings(experiment, of_data)
    spec: Any = experiment.grids[0].spec
    dataset = spec.dataset.load(data_dir=options.data_dir, seed=0, num_clients=None)
    # Natural clients are used if the data have them. Targets that are not classes get a
    # linear model and, without natural clients, an i.i.d. partition.
    changes: dict[str, Any] = {}
    if dataset.client is not None:
        changes["federation.partition"] = fp.ByClient()
        changes["federation.num_clients"] = None
    elif dataset.num_classes is None:
        changes["federation.partition"] = fp.IID()
    if dataset.num_classes is None:
        changes["model"] = fp.models.LinearRegression(intercept=True)
    elif options.text is not None:
        changes["model"] = fp.models.TextEncoder()
    return _changed(experiment, dataset.name, changes)


def _with_text(source: Any, options: arguments.DataOptions) -> Any:
    """Returns the source with a column of texts as inputs, if it has one."""
    values = {option: getattr(options, option) for option in _OF_TEXT}
    values = {name: value for name, value in values.items() if value is not None}
    if values and not isinstance(source, fp.data.Csv):
        raise checks.InputError(
            f"Expected --{min(values)} with a table of text, got {options.data!r}."
        )
    return dataclasses.replace(source, **values)


def _changed(experiment: Experiment, name: str, changes: dict[str, Any]) -> Experiment:
    """Returns the experiment with some fields of all its grids changed."""
    grids = list(experiment.grids)
    for field, value in changes.items():
        grids = [grid.replace(field, value) for grid in grids]
    return dataclasses.replace(experiment, name=name, grids=tuple(grids))
