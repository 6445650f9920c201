"""Experiments on a user's own data."""

import dataclasses
from typing import Any

import fedjax_pfl as fp
from fedjax_pfl.command import arguments
from fedjax_pfl.command.presets.experiment import Experiment
from fedjax_pfl.core import checks
from fedjax_pfl.data.sources import user

__all__ = ["with_data"]


def with_data(experiment: Experiment, data: arguments.Data) -> Experiment:
    """Replaces the data of an experiment by a user's own.

    Natural clients are the clients where there are any. Targets that are not classes
    get a linear model and, without natural clients, an i.i.d. partition. Settings can
    still change all of this.

    Args:
      experiment: any experiment.
      data: location and columns; `path` is not None.

    Returns:
      The changed experiment.

    Raises:
      InputError: if the data cannot be read.
    """
    assert data.path is not None
    if isinstance(experiment.grids[0].spec, fp.portfolio.PortfolioSpec):
        return _with_prices(experiment, data, data.path)
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
        changes["model"] = fp.models.LinearRegression(intercept=True)
    grids = experiment.grids
    for name, value in changes.items():
        grids = tuple(grid.replace(name, value) for grid in grids)
    return dataclasses.replace(experiment, name=dataset.name, grids=grids)


def _with_prices(experiment: Experiment, data: arguments.Data, path: str) -> Experiment:
    """Replaces the market of an experiment by a user's own table of prices."""
    for option, column in (("--label", data.label), ("--client", data.client)):
        if column is not None:
            raise checks.InputError(
                f"Expected no {option} with prices, got {column!r}."
            )
    market = fp.portfolio.PriceFile(path=path)
    grids = [grid.replace("federation.market", market) for grid in experiment.grids]
    return dataclasses.replace(experiment, grids=tuple(grids))
