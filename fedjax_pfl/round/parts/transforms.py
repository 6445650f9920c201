"""Transforms of messages between clients and the server."""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import optax

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_rows
from fedjax_pfl.messages import AdaptiveClip, ClipNorm, ServerNoise
from fedjax_pfl.round.part import First, Part, Turn

if TYPE_CHECKING:
    from fedjax_pfl.messages import Encoding
    from fedjax_pfl.round.exchange import Exchange
    from fedjax_pfl.round.process import FederatedProcess

__all__ = ["Transforms"]


@dataclasses.dataclass(frozen=True)
class Transforms(Part):
    """Applies the transforms of a process, to messages minus the reference point."""

    process: "FederatedProcess"
    name = "transforms"
    changed_rows = ("transforms",)

    @property
    def _adapts(self) -> bool:
        """Returns whether the first transform is an adaptive clip."""
        return isinstance(self.process.transforms[0], AdaptiveClip)

    def first_rows(self, at: First) -> dict[str, Any]:
        """Returns the initial memory of every transform, if any has one."""
        message = self.process.algorithm.reference(at.server)
        rows = tuple(t.init(message) for t in self.process.transforms)
        (count,) = at.train.num_examples.shape
        some = jax.tree.leaves(rows)
        return {"transforms": client_rows.broadcast(rows, count)} if some else {}

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns the clip of the first round."""
        # Memory `clip` is the norm of an adaptive clip in this round.
        clip = self.process.transforms[0]
        return {"clip": jax.numpy.asarray(clip.norm)} if self._adapts else {}

    def hand_out(
        self, exchange: "Exchange", known: core.Downlink | None
    ) -> tuple[Any, Any]:
        """Returns keys and own reference points; the shared point and the clip."""
        if known is None:
            return None, None
        clip = exchange.start.memory.get("clip")
        keys = exchange.keys(core.Stream.TRANSFORMS)
        return (keys, known.per_client), (known.shared, clip)

    def at(self, clip: core.Scalar | None) -> tuple[Any, ...]:
        """Returns the transforms with the clip of a round, or with the initial one."""
        head, *tail = self.process.transforms
        return (head if clip is None else head.at(clip), *tail)

    def _of(self, turn: Turn) -> tuple[tuple[Any, ...], core.Key, Any]:
        """Returns the transforms, the key of the client, and its reference point."""
        (key, point), (shared, clip) = turn.given[self.name], turn.shared[self.name]
        return self.at(clip), key, shared if point is None else point

    def send(self, turn: Turn) -> Turn:
        """Applies `send` of all transforms, in order, to ONE message."""
        transforms, key, point = self._of(turn)
        message = _difference(turn.upload.message, point)
        memories = turn.before.get("transforms")
        old = (None,) * len(transforms) if memories is None else memories
        new = []
        for number, (transform, memory) in enumerate(zip(transforms, old, strict=True)):
            if not (number == 0 and self._clips_once):
                subkey = jax.random.fold_in(key, number)
                message, memory = transform.send(subkey, memory, message)
            new.append(memory)
        if memories is not None:
            memory = tuple(new)
            # A client keeps its old memory if its weight is 0 or its memory is not
            # finite.
            is_used = (turn.upload.weight > 0) & client_rows.is_finite(memory)
            turn = turn.with_rows(transforms=optax.tree.where(is_used, memory, old))
        if self.process.attack is None:  # no second map is needed
            message, within = self._received_by(transforms, key, message)
            turn = turn.with_upload(within=within)
        return turn.with_upload(message=_added(message, point, turn.upload.message))

    @property
    def _clips_once(self) -> bool:
        """Returns whether the server's clip makes the client's clip redundant."""
        head, *tail = self.process.transforms
        # Only noise, which is added to the aggregate, may come between them.
        is_alone = all(isinstance(transform, ServerNoise) for transform in tail)
        return self.process.attack is None and isinstance(head, ClipNorm) and is_alone

    def arrive(self, turn: Turn) -> Turn:
        """Applies `receive` of all transforms, in reverse order, after an attack."""
        if self.process.attack is None:
            return turn
        transforms, key, point = self._of(turn)
        # Malicious messages must use the encoding, but need not clip or add noise.
        sent = message = _difference(turn.upload.message, point)
        for number, transform in enumerate(transforms):
            sent = transform.fit(jax.random.fold_in(key, number), sent)
        message = optax.tree.where(turn.given["attack"], sent, message)
        message, within = self._received_by(transforms, key, message)
        message = _added(message, point, turn.upload.message)
        return turn.with_upload(message=message, within=within)

    def _received_by(
        self, transforms: tuple[Any, ...], key: core.Key, message: core.Message
    ) -> tuple[Any, Any]:
        """Returns ONE decoded message, and whether it was within an adaptive clip."""
        within = None
        for number, transform in reversed(list(enumerate(transforms))):
            # An adaptive clip is the first transform, so that it is undone last.
            if self._adapts and number == 0:
                within = transform.within(message)
            message = transform.receive(jax.random.fold_in(key, number), message)
        return message, within

    def received(
        self, exchange: "Exchange", state: core.State, turns: Turn
    ) -> tuple[core.State, Turn]:
        """Updates an adaptive clip from the cohort's norms."""
        if not self._adapts:
            return state, turns
        clip, within = self.at(state.memory["clip"])[0], turns.upload.within
        key = exchange.noise_key(core.Stream.NOISE_OF_COUNTS)
        count = exchange.ctx.expected or within.shape[0]
        return state.with_memory(clip=clip.next_norm(key, within, count)), turns

    def end(
        self, exchange: "Exchange", state: core.State, info: core.RoundInfo
    ) -> tuple[core.State, core.RoundInfo]:
        """Reports an adaptive clip."""
        if (clip := exchange.start.memory.get("clip")) is None:
            return state, info
        server = info.server | {"clip_norm": clip}
        return state, dataclasses.replace(info, server=server)

    def encoding(self, encoding: "Encoding") -> "Encoding":
        """Returns the encoding after all transforms."""
        for transform in self.process.transforms:
            encoding = transform.encoding(encoding)
        return encoding


def _difference(message: core.Message, point: core.Message) -> core.Message:
    """Returns ONE message minus its reference point."""
    if jax.tree.structure(message) != jax.tree.structure(point):
        raise checks.InputError(
            "Expected a method whose `reference` is like its messages, to transform"
            f" them, got {jax.tree.structure(point)} and"
            f" {jax.tree.structure(message)}."
        )
    return optax.tree.sub(message, point)


def _added(
    message: core.Message, point: core.Message, like: core.Message
) -> core.Message:
    """Inverts `_difference`; `like` gives the dtypes."""
    return jax.tree.map(lambda x, k, s: (x + k).astype(s.dtype), message, point, like)
