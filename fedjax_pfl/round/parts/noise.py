"""Server noise, for client-level differential privacy."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
from fedjax_pfl.core import randomness, struct
from fedjax_pfl.messages import NoisyRound, ServerNoise
from fedjax_pfl.round.part import First, Part, Turn

if TYPE_CHECKING:
    from fedjax_pfl.round.exchange import Exchange
    from fedjax_pfl.round.process import FederatedProcess

__all__ = ["Noise", "noise_of"]


def noise_of(process: "FederatedProcess") -> ServerNoise | None:
    """Returns the noise among a process's transforms, or None."""
    noises = (t for t in process.transforms if isinstance(t, ServerNoise))
    return next(noises, None)


@dataclasses.dataclass(frozen=True)
class Noise(Part):
    """Adds server noise; memory `draws` holds draws shared between rounds."""

    process: "FederatedProcess"
    noise: ServerNoise
    name = "noise"

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns initial draws `[b, *P]`, if the noise is correlated over rounds."""
        message = self.process.algorithm.reference(at.server)
        return {"draws": self.noise.first_draws(message)}

    def begin(self, state: core.State) -> core.State:
        """Draws the noise of this round that later rounds use."""
        if (draws := state.memory.get("draws")) is None:
            return state
        key = core.stream_key(state.key, core.Stream.NOISE, state.round)
        key = randomness.noise_key(key)
        return state.with_memory(draws=self.noise.next_draws(key, state.round, draws))

    def hand_out(
        self, exchange: "Exchange", known: core.Downlink | None
    ) -> tuple[Any, Any]:
        """Returns the shared reference point."""
        return None, None if known is None else known.shared

    def arrive(self, turn: Turn) -> Turn:
        """Replaces missing messages by the reference, and gives all weight 1."""
        # The result then does not reveal who took part.
        upload, common = turn.upload, turn.shared[self.name]
        message = optax.tree.where(upload.weight > 0, upload.message, common)
        return turn.with_upload(message=message, weight=jnp.ones_like(upload.weight))

    def to_mean(
        self,
        exchange: "Exchange",
        state: core.State,
        mean: core.Message,
        count: int | float,
    ) -> core.Message:
        """Adds the noise of the round to a mean `[*P]` over `count` clients."""
        plan, draws = self.process.participation, state.memory.get("draws")
        period = plan.separation(exchange.population.num_clients)
        key = functools.partial(exchange.noise_key, core.Stream.NOISE)
        now = NoisyRound(exchange.ctx.round, key, period, draws)
        return self.noise.in_round(now, mean, self._clip(exchange) / count)

    def to_rows(
        self, exchange: "Exchange", identities: jax.Array, messages: core.Message
    ) -> core.Message:
        """Adds independent noise to messages `[K, *P]` of clients `int[K]`."""
        # For robust rules, which are not sums.
        key = exchange.noise_key(core.Stream.NOISE, exchange.ctx.round)
        clip, noise = self._clip(exchange), self.noise

        def noisy(identity: jax.Array, message: core.Message) -> core.Message:
            client_key = jax.random.fold_in(key, identity)
            return noise.add(client_key, message, clip)  # pyright: ignore

        return jax.vmap(noisy)(identities, messages)

    def _clip(self, exchange: "Exchange") -> core.Scalar:
        """Returns the norm of the clip, which is the first transform."""
        clip = exchange.start.memory.get("clip")
        if clip is not None:
            return clip
        return struct.get_field(self.process.transforms[0], "norm")
