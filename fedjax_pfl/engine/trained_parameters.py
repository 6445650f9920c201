"""Trained parameters of predictors, which can be saved at the end of a training."""

import dataclasses
from typing import Any

import jax

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_map, client_rows, statistics, tree_paths
from fedjax_pfl.engine import evaluation
from fedjax_pfl.round.parts import model_state
from fedjax_pfl.round.process import FederatedProcess

__all__ = ["Kind", "kinds", "networks"]


@dataclasses.dataclass(frozen=True)
class Kind:
    """Shapes `[*P]` of the trained part of ONE client's predictor."""

    shapes: core.Params
    is_shared: bool  # all clients have the same, as of a global model


def kinds(
    process: Any, state: core.State, model: core.Model, federation: core.Federation
) -> dict[str, Kind]:
    """Returns the shapes of all parameters that can be saved; computes nothing."""

    def one(state: core.State, federation: core.Federation):
        federation = model_state.with_kept(state, model, federation)
        row = jax.tree.map(
            lambda leaf: leaf[0], (state.clients, federation.train.rows())
        )
        return _trained(process, state, model, federation.train.pool(), row)

    # A vmap without an output axis accepts only values that no row changes.
    def shared(state: core.State, federation: core.Federation, name: str):
        federation = model_state.with_kept(state, model, federation)
        pool = federation.train.pool()
        rows = (state.clients, federation.train.rows())
        return jax.vmap(
            lambda row: _trained(process, state, model, pool, row)[name], out_axes=None
        )(rows)

    shapes = jax.eval_shape(one, state, federation)
    varied = {
        n: evaluation.varies(shared, state, federation, n) for n in sorted(shapes)
    }
    return {name: Kind(shapes[name], not differs) for name, differs in varied.items()}


def networks(
    process: FederatedProcess,
    state: core.State,
    model: core.Model,
    federation: core.Federation,
    rows: jax.Array,
    names: tuple[str, ...],
) -> dict[str, Any]:
    """Extracts parameters `[K, *P]` of predictors of the clients `int32[K]`."""
    federation = model_state.with_kept(state, model, federation)
    state = process.before_evaluation(state, model, federation)
    pool = federation.train.pool()

    def one(row: tuple[Any, ...], _: None):
        parameters = _trained(process, state, model, pool, row)
        return {name: parameters[name] for name in names}

    chosen = client_rows.take((state.clients, federation.train.rows()), rows)
    return client_map.map_chunks(one, chosen, None, evaluation.CHUNK)


def _trained(
    process: Any, state: core.State, model: core.Model, pool: core.ClientData, row: Any
) -> dict[str, Any]:
    """Extracts the parameters of every predictor of ONE client."""
    client, fields = row
    data = pool.with_rows(fields)
    predictors, _ = evaluation.predictors_of(process, state, client, model, data)
    for name, predictor in predictors.items():
        if not isinstance(predictor, core.Predictor):
            raise checks.InputError(
                "Models are saved of predictors that are fedjax_pfl.core.Predictor,"
                f" but {name!r} of {type(process.algorithm).__name__} is a"
                f" {type(predictor).__name__}; write Predictor(apply, params)."
            )
    return {name: _with_personal(p.params, data) for name, p in predictors.items()}


def _with_personal(params: core.Params, data: core.ClientData) -> core.Params:
    """Adds ONE client's personal parameters and statistics to a predictor's."""
    params, numbers = statistics.split(params)
    if data.personal is not None:
        try:
            params = tree_paths.join(params, data.personal)
        except ValueError:  # several networks, or a network with other numbers
            params = {"params": params, "personal": data.personal}
    return statistics.joined(params, data.statistics if numbers is None else numbers)
