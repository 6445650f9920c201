"""What happens to messages between a client and the server."""

import dataclasses
from typing import Any

import jax
import optax

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_rows
from fedjax_pfl.messages import AdaptiveClip, ClipNorm, ServerNoise
from fedjax_pfl.round.part import First, Part, Turn

__all__ = ["Transforms"]


@dataclasses.dataclass(frozen=True)
class Transforms(Part):
    """Sends every message through the transforms, and undoes them at the server.

    A client sends through all of them in order; the server undoes and checks them in
    reverse order. They act on the difference of a message to what its client and the
    server have in common.

    Rows `transforms`: memory of every transform. What adapts is in memory `clip`, the
    norm `[]` to which messages of this round are clipped.

    Attributes:
      process: whose transforms these are.
    """

    process: Any
    name = "transforms"
    moved = ("transforms",)

    @property
    def _adapts(self) -> bool:
        """Whether the first of the transforms is a clip that adapts."""
        return isinstance(self.process.transforms[0], AdaptiveClip)

    def first_rows(self, at: First) -> dict[str, Any]:
        """Returns the first memory of every transform, if there is any."""
        message = self.process.algorithm.reference(at.server)
        rows = tuple(t.init(message) for t in self.process.transforms)
        (count,) = at.train.num_examples.shape
        some = jax.tree.leaves(rows)
        return {"transforms": client_rows.broadcast(rows, count)} if some else {}

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns the clip of the first round."""
        first = self.process.transforms[0]
        return {"clip": jax.numpy.asarray(first.norm)} if self._adapts else {}

    def hand_out(self, exchange: Any, known: core.Downlink | None) -> tuple[Any, Any]:
        """Returns keys and what members alone know; what all know, and the clip."""
        if known is None:
            return None, None
        clip = exchange.start.memory.get("clip")
        keys = exchange.keys(core.Stream.TRANSFORMS)
        return (keys, known.own), (known.shared, clip)

    def at(self, clip: Any) -> tuple[Any, ...]:
        """Returns the transforms of a round with this clip, None for that given."""
        first, *others = self.process.transforms
        return (first if clip is None else first.at(clip), *others)

    def _of(self, turn: Turn) -> tuple[tuple[Any, ...], core.Key, Any]:
        """Returns the transforms, the client's key, and what it and the server know."""
        (key, own), (shared, clip) = turn.given[self.name], turn.shared[self.name]
        return self.at(clip), key, shared if own is None else own

    def send(self, turn: Turn) -> Turn:
        """Transforms ONE client's message, as if it were honest.

        A client that sends nothing, or nothing finite, keeps its memory.
        """
        transforms, key, known = self._of(turn)
        message = _difference(turn.upload.message, known)
        kept = turn.before.get("transforms")
        old = (None,) * len(transforms) if kept is None else kept
        new = []
        for number, (transform, own) in enumerate(zip(transforms, old, strict=True)):
            if not (number == 0 and self._clips_once):
                part = jax.random.fold_in(key, number)
                message, own = transform.send(part, own, message)
            new.append(own)
        if kept is not None:
            memory = tuple(new)
            is_used = (turn.upload.weight > 0) & client_rows.is_finite(memory)
            turn = turn.with_rows(transforms=optax.tree.where(is_used, memory, old))
        if self.process.attack is None:  # the server's part changes nothing but this
            message, within = self._received_by(transforms, key, message)
            turn = turn.with_upload(within=within)
        return turn.with_upload(message=_moved(message, known, turn.upload.message))

    @property
    def _clips_once(self) -> bool:
        """Whether the server's clip of honest messages is that of their clients.

        It is where nothing but noise, which waits for the aggregate, is between them.
        """
        first, *others = self.process.transforms
        is_alone = all(isinstance(transform, ServerNoise) for transform in others)
        return self.process.attack is None and isinstance(first, ClipNorm) and is_alone

    def arrive(self, turn: Turn) -> Turn:
        """Lets the server undo and check ONE message that an attack may have replaced.

        A malicious client is bound by the encoding, but not by what clients ought to
        do.
        """
        if self.process.attack is None:
            return turn
        transforms, key, known = self._of(turn)
        sent = message = _difference(turn.upload.message, known)
        for number, transform in enumerate(transforms):
            sent = transform.fit(jax.random.fold_in(key, number), sent)
        message = optax.tree.where(turn.given["attack"], sent, message)
        message, within = self._received_by(transforms, key, message)
        message = _moved(message, known, turn.upload.message)
        return turn.with_upload(message=message, within=within)

    def _received_by(
        self, transforms: tuple[Any, ...], key: core.Key, message: Any
    ) -> tuple[Any, Any]:
        """Returns what the server makes of ONE message, and whether it was in a clip.

        That is known only where the clip adapts, which is the last to be undone.
        """
        within = None
        for number, transform in reversed(list(enumerate(transforms))):
            if self._adapts and number == 0:
                within = transform.within(message)
            message = transform.receive(jax.random.fold_in(key, number), message)
        return message, within

    def received(
        self, exchange: Any, state: core.State, turns: Turn
    ) -> tuple[core.State, Turn]:
        """Moves the clip towards the wanted quantile of the cohort's norms."""
        if not self._adapts:
            return state, turns
        clip, within = self.at(state.memory["clip"])[0], turns.upload.within
        key = exchange.noise_key(core.Stream.NOISE_OF_COUNTS)
        count = exchange.ctx.expected or within.shape[0]
        return state.with_memory(clip=clip.next_norm(key, within, count)), turns

    def end(self, exchange: Any, state: core.State, info: core.RoundInfo) -> Any:
        """Reports the clip of the round, where it adapts."""
        if (clip := exchange.start.memory.get("clip")) is None:
            return state, info
        server = info.server | {"clip_norm": clip}
        return state, dataclasses.replace(info, server=server)

    def encoding(self, encoding: Any) -> Any:
        """Returns the encoding behind all transforms."""
        for transform in self.process.transforms:
            encoding = transform.encoding(encoding)
        return encoding


def _difference(message: Any, known: Any) -> Any:
    """Returns ONE message relative to what its client and the server know."""
    if jax.tree.structure(message) != jax.tree.structure(known):
        raise checks.InputError(
            "Expected a method whose `reference` is like its messages, to transform"
            f" them, got {jax.tree.structure(known)} and"
            f" {jax.tree.structure(message)}."
        )
    return optax.tree.sub(message, known)


def _moved(message: Any, known: Any, like: Any) -> Any:
    """Inverse of `_difference`, in the types of a message."""
    return jax.tree.map(lambda x, k, s: (x + k).astype(s.dtype), message, known, like)
