"""Experiments on a user's own data."""

import dataclasses
from typing import Any

import fedjax_pfl as fp
from fedjax_pfl.command import arguments
from fedjax_pfl.command.presets.experiment import Experiment, apply_settings
from fedjax_pfl.core import checks
from fedjax_pfl.data.sources import user

__all__ = ["with_data"]

_OF_DATA = "federation.dataset."
_OF_TEXT = ("text", "tokenizer")


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
        changes |= {
            "federation.partition": fp.ByClient(),
            "federation.num_clients": None,
        }
    elif dataset.num_classes is None:
        changes["federation.partition"] = fp.IID()
    if dataset.num_classes is None:
        changes["model"] = fp.models.LinearRegression(intercept=True)
    elif options.text is not None:
        changes["model"] = fp.models.TextEncoder()
    return _changed(experiment, dataset.name, changes)


def _with_text(source: Any, options: arguments.DataOptions) -> Any:
    """Returns the source with a column of texts as inputs, if it has one."""
    fields = {option: getattr(options, option) for option in _OF_TEXT}
    for option, value in fields.items():
        if value is not None and not isinstance(source, fp.data.Csv):
            raise checks.InputError(
                f"Expected --{option} with a table of text, got {options.data!r}."
            )
    is_given = any(value is not None for value in fields.values())
    return dataclasses.replace(source, **fields) if is_given else source


def _changed(experiment: Experiment, name: str, changes: dict[str, Any]) -> Experiment:
    """Returns the experiment with some fields of all its grids changed."""
    grids = list(experiment.grids)
    for field, value in changes.items():
        grids = [grid.replace(field, value) for grid in grids]
    return dataclasses.replace(experiment, name=name, grids=tuple(grids))
