"""Model state outside the method: carries, personal parameters, running statistics."""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_rows
from fedjax_pfl.round.part import First, Part, Turn

if TYPE_CHECKING:
    from fedjax_pfl.round.exchange import Exchange

__all__ = ["ModelState", "started", "with_kept"]


def started(model: Any, train: core.ClientData) -> Any:
    """Returns the model with the pretrained parameters of the federation, if any."""
    return model if train.start is None else model.starting_at(train.start)


def with_kept(
    state: core.State, model: core.Model, federation: core.Federation
) -> core.Federation:
    """Returns the federation with the present model state."""
    train = federation.train
    if "carry" in state.rows and isinstance(model, core.RoleModel):
        train = train.with_personal(state.rows["carry"])
    shared, local = state.memory.get("statistics"), state.rows.get("statistics")
    if shared is not None or local is not None:
        train = train.with_statistics(local, shared=shared)
    return dataclasses.replace(federation, train=train)


@dataclasses.dataclass(frozen=True)
class ModelState(Part):
    """Keeps carries, personal parameters and running statistics of the model."""

    method: Any
    name = "model_state"

    def are_local(self, model: core.Model) -> bool:
        """Returns whether running statistics stay with the clients."""
        return model.local_statistics or not self.method.shares_statistics

    def with_first(
        self, key: core.Key, model: core.Model, train: core.ClientData
    ) -> core.ClientData:
        """Returns data of K clients with their initial model state."""
        (count,) = train.num_examples.shape
        if isinstance(model, core.RoleModel):
            init_key = core.stream_key(key, core.Stream.INIT, 0)
            personal = started(model, train).first_personal(init_key)
            train = train.with_personal(client_rows.broadcast(personal, count))
        return self.with_first_statistics(model, train)

    def with_first_statistics(
        self, model: core.Model, train: core.ClientData
    ) -> core.ClientData:
        """Returns data with running statistics before the first round, if any."""
        initial = started(model, train).first_statistics()
        if initial is None:
            return train
        if not self.are_local(model):
            return train.with_statistics(shared=initial)
        (count,) = train.num_examples.shape
        return train.with_statistics(client_rows.broadcast(initial, count))

    def first_rows(self, at: First) -> dict[str, Any]:
        """Returns initial carries, and initial statistics that stay with clients."""
        # Rows `carry` hold personal parameters of a `RoleModel`, or carries of a
        # `SequenceModel`.
        carry, train = at.train.personal, at.train
        if isinstance(at.model, core.SequenceModel):
            pool, init = train.pool(), at.model.first_carry
            carry = jax.vmap(lambda rows: init(pool.with_rows(rows)))(train.rows())
        local = core.Constants.of(train.constants).statistics
        return {"carry": carry, "statistics": local}

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns the initial shared running statistics `[*S]`."""
        if self.are_local(at.model):
            return {}
        return {"statistics": started(at.model, at.train).first_statistics()}

    def hand_out(
        self, exchange: "Exchange", known: core.Downlink | None
    ) -> tuple[Any, Any]:
        """Returns carries of series; other model state comes with the data."""
        if not isinstance(exchange.model, core.SequenceModel):
            return None, None
        return exchange.take(exchange.start.rows.get("carry")), None

    def before(self, turn: Turn) -> Turn:
        """Passes the carry to the solver."""
        view = dataclasses.replace(turn.view, carry=turn.given[self.name])
        return dataclasses.replace(turn, view=view)

    def end(
        self, exchange: "Exchange", state: core.State, info: core.RoundInfo
    ) -> tuple[core.State, core.RoundInfo]:
        """Stores the model state that solvers report."""
        # Attacks and transforms do not see model state, which is no message.
        if (old := state.rows.get("carry")) is not None:
            noun = "a model of series such as a portfolio policy"
            if isinstance(exchange.model, core.RoleModel):
                noun = "personal parameters of the model"
            carry = self._reported(info.client.carry, noun)
            carry = _finite(exchange, carry, exchange.take(old))
            state = state.with_rows(carry=exchange.put(old, carry))
        local, shared = state.rows.get("statistics"), state.memory.get("statistics")
        if local is None and shared is None:
            return state, info
        new = self._reported(info.client.statistics, "running statistics of the model")
        if local is not None:
            rows = _finite(exchange, new, exchange.take(local))
            return state.with_rows(statistics=exchange.put(local, rows)), info
        if exchange.server_noise is not None:
            raise checks.InputError(
                "Expected running statistics that stay with the clients under"
                " GaussianNoise, ParameterRoles(model, local_statistics=True): a mean"
                " of them would be sent without noise."
            )
        mean = _mean_statistics(exchange, new, shared)
        if exchange.turns:
            info = exchange.with_bytes(info, client_rows.num_bytes(shared))
        return state.with_memory(statistics=mean), info

    def _reported(self, new: core.Tree, noun: str) -> core.Tree:
        """Raises an `InputError` if the method does not report model state."""
        if new is None:
            raise checks.InputError(
                "Expected a method whose clients train through a local solver, SGD or"
                f" Optax, with {noun}, got {type(self.method).__name__} with"
                " minibatches of its own."
            )
        return new


def _finite(exchange: "Exchange", new: core.Tree, old: core.Tree) -> core.Tree:
    """Returns new rows `[K, ...]`, with non-finite ones replaced by old ones."""
    is_finite = client_rows.finite_rows(new, exchange.ctx.cohort.shape[0])
    return client_rows.select_rows(is_finite, new, old)


def _mean_statistics(exchange: "Exchange", new: core.Tree, old: core.Tree) -> core.Tree:
    """Averages running statistics `[K, *S]` with the weights of received messages."""
    count = jax.tree.leaves(new)[0].shape[0]
    weights = jnp.ones(count)
    if exchange.turns:
        weights = exchange.turns[-1].upload.weight
    weights = jnp.where(client_rows.finite_rows(new, count), weights, 0)
    mean = client_rows.weighted_mean(new, weights)
    # Without a received message the old statistics stay.
    return optax.tree.where(weights.sum() > 0, mean, old)
