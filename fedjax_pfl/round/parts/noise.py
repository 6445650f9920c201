"""Noise of the server, for differential privacy of clients."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
from fedjax_pfl.core import randomness, struct
from fedjax_pfl.messages import NoisyRound, ServerNoise
from fedjax_pfl.round.part import First, Part, Turn

__all__ = ["Noise", "noise_of"]


def noise_of(process: Any) -> ServerNoise | None:
    """Returns the noise among a process's transforms, or None."""
    found = (t for t in process.transforms if isinstance(t, ServerNoise))
    return next(found, None)


@dataclasses.dataclass(frozen=True)
class Noise(Part):
    """Keeps earlier rounds' part in the noise of later ones, in memory `draws`.

    Attributes:
      process: whose noise it is.
      noise: the noise.
    """

    process: Any
    noise: ServerNoise
    name = "noise"

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns draws `[b, *P]` before the first round, if any are kept."""
        message = self.process.algorithm.reference(at.server)
        return {"draws": self.noise.first_draws(message)}

    def begin(self, state: core.State) -> core.State:
        """Draws what is kept of this round."""
        if (draws := state.memory.get("draws")) is None:
            return state
        key = core.stream_key(state.key, core.Stream.NOISE, state.round)
        key = randomness.noise_key(key)
        return state.with_memory(draws=self.noise.next_draws(key, state.round, draws))

    def hand_out(self, exchange: Any, known: core.Downlink | None) -> tuple[Any, Any]:
        """Returns what all clients and the server have in common."""
        return None, None if known is None else known.shared

    def arrive(self, turn: Turn) -> Turn:
        """Lets nobody be missed: who sends nothing counts as one who changes nothing.

        All clients count the same.
        """
        upload, common = turn.upload, turn.shared[self.name]
        message = optax.tree.where(upload.weight > 0, upload.message, common)
        return turn.with_upload(message=message, weight=jnp.ones_like(upload.weight))

    def to_mean(
        self, exchange: Any, state: core.State, mean: Any, count: int | float
    ) -> Any:
        """Returns a mean `[*P]` over `count` clients with the round's noise."""
        who, draws = self.process.participation, state.memory.get("draws")
        period = who.separation(exchange.population.num_clients)
        key = functools.partial(exchange.noise_key, core.Stream.NOISE)
        now = NoisyRound(exchange.ctx.round, key, period, draws)
        return self.noise.in_round(now, mean, self._clip(exchange) / count)

    def to_rows(self, exchange: Any, identities: jax.Array, messages: Any) -> Any:
        """Returns messages `[K, *P]` of clients `int[K]`, each with noise of its own.

        Robust rules then see nothing else.
        """
        key = exchange.noise_key(core.Stream.NOISE, exchange.ctx.round)
        clip, noise = self._clip(exchange), self.noise

        def noisy(identity: jax.Array, message: Any) -> Any:
            own = jax.random.fold_in(key, identity)
            return noise.add(own, message, clip)  # pyright: ignore

        return jax.vmap(noisy)(identities, messages)

    def _clip(self, exchange: Any) -> Any:
        """Returns the norm of the clip, which is the first transform under noise."""
        clip = exchange.start.memory.get("clip")
        if clip is not None:
            return clip
        return struct.get_field(self.process.transforms[0], "norm")
