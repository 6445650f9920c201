"""A user's own data in an experiment."""

import dataclasses
from typing import Any

import fedjax_pfl as fp
from fedjax_pfl.command import arguments
from fedjax_pfl.command.presets.experiment import Experiment
from fedjax_pfl.core import checks
from fedjax_pfl.data.sources import user

__all__ = ["with_data"]


def with_data(experiment: Experiment, data: arguments.Data) -> Experiment:
    """The experiment on a user's own data.

    Natural clients are the clients where there are any. Targets that are not classes
    take a linear model and, without natural clients, random parts. All of this can
    still be set.

    Args:
      experiment: what to change.
      data: where the data are; `path` is given.

    Returns:
      The changed experiment.

    Raises:
      InputError: if the data cannot be read.
    """
    assert data.path is not None
    if isinstance(experiment.grids[0].spec, fp.PortfolioSpec):
        return _with_prices(experiment, data)
    source = user.source_for(data.path, data.label, data.client, data.data_dir)
    dataset = source.load(data_dir=data.data_dir, seed=0, num_clients=None)
    changes: dict[str, Any] = {"federation.dataset": source}
    if dataset.client is not None:
        changes |= {
            "federation.partition": fp.ByClient(),
            "federation.num_clients": None,
        }
    elif dataset.num_classes is None:
        changes["federation.partition"] = fp.IID()
    if dataset.num_classes is None:
        changes["model"] = fp.LinearRegression(intercept=True)
    grids = experiment.grids
    for name, value in changes.items():
        grids = tuple(grid.replace(name, value) for grid in grids)
    return dataclasses.replace(experiment, name=dataset.name, grids=grids)


def _with_prices(experiment: Experiment, data: arguments.Data) -> Experiment:
    """The experiment on a user's own table of prices."""
    for option, given in (("--label", data.label), ("--client", data.client)):
        if given is not None:
            raise checks.InputError(
                f"Expected no {option} with prices, whose parties are made of assets,"
                f" got {given!r}."
            )
    market = fp.PriceFile(path=data.path)
    grids = [grid.replace("federation.market", market) for grid in experiment.grids]
    return dataclasses.replace(experiment, grids=tuple(grids))
