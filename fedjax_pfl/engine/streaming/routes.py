"""Ways of rows between the devices that own clients and the places of a cohort.

A client is owned by one device permanently; a place in a cohort belongs to a device
too, for any client drawn for it.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.core import sharding, struct

__all__ = ["Route", "Router", "Way", "move"]

_STEPS = 4  # capacities up to the number of places of a device


@struct.pytree_dataclass
class Way:
    """Way of rows from the parts of n devices into other parts."""

    sent: dict[int, jax.Array]  # by distance, `int32[n * L]` rows that a device sends
    at: jax.Array  # `int32[n * T]` sources in a device's part, then in received rows


@dataclasses.dataclass(frozen=True)
class Route:
    """The rows of a cohort, and their ways to their places and back."""

    members: np.ndarray  # `int[K]` clients by place; distinct if written
    owners: np.ndarray  # `int[K]` devices that own them
    slots: np.ndarray  # `int[K]` positions among the rows of their owners
    size: int  # C, rows that a device hands in, with padding
    arriving: Way | None = None  # None with one device
    leaving: Way | None = None

    def of(self, number: int) -> np.ndarray:
        """Returns the clients of a device, in the order of their slots."""
        return self.members[self.owners == number]

    def source(self, last_route: "Route | None", count: int) -> np.ndarray:
        """Returns slots `int32[n * C]` of rows in the previous cohort, or -1."""
        source = np.full(count * self.size, -1, np.int32)
        if last_route is not None:
            pair, slots = (self.members, last_route.members), last_route.slots
            _, now, then = np.intersect1d(*pair, return_indices=True)
            source[self.owners[now] * self.size + self.slots[now]] = slots[then]
        return source


class Router:
    """Finds the ways of cohorts; shapes of exchanges only grow, so that few compile."""

    def __init__(self, num_clients: int, execution: sharding.Execution):
        self.count = sharding.num_devices(execution)
        # Device k owns the clients from `bounds[k]` on, before `bounds[k + 1]`.
        self.bounds = num_clients * np.arange(self.count + 1) // self.count
        self._room: dict[tuple[int, int], int] = {}  # by places and devices further

    def route(self, members: np.ndarray) -> Route:
        """Returns the ways of clients `int[K]`, which may repeat."""
        places, count = len(members), self.count
        if count == 1:
            owners = np.zeros(places, np.int64)
            return Route(members, owners, np.arange(places), places)
        share, place = -(-places // count), np.arange(places)
        # Members and owners ascend: most rows have places on their own device, others
        # on the next one. They travel only by the distances that occur.
        owners = np.searchsorted(self.bounds, members, side="right") - 1
        slots, targets = _ranks(owners), place // share
        lanes, distances = _ranks(owners * count + targets), (targets - owners) % count
        size = self._grown(places, 0, slots, share)
        for step in np.unique(distances[distances > 0]).tolist():
            self._grown(places, step, lanes[distances == step], share)
        room = {s: n for (k, s), n in self._room.items() if k == places and s > 0}
        return_room = {count - step: most for step, most in room.items()}
        handed_in = (owners, slots, size), (owners, owners * size + slots, count * size)
        at_places = (targets, place % share, share), (targets, place, count * share)
        return Route(
            members,
            owners,
            slots,
            size,
            arriving=_way(handed_in[0], at_places[1], lanes, room, count),
            leaving=_way(at_places[0], handed_in[1], lanes, return_room, count),
        )

    def _grown(self, places: int, step: int, ranks: np.ndarray, share: int) -> int:
        """Returns room for all ranks, at least the largest room so far."""
        # Coarse sizes, so that cohorts share a few compiled exchanges.
        unit = max(share // _STEPS, 1)
        needed = -(-(int(ranks.max()) + 1) // unit) * unit
        name = (places, step)
        self._room[name] = max(self._room.get(name, 0), needed)
        return self._room[name]


def _ranks(groups: np.ndarray) -> np.ndarray:
    """Numbers `int[K]` the elements of every group, from 0."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    return ranks


def _way(
    start: tuple[np.ndarray, np.ndarray, int],
    end: tuple[np.ndarray, np.ndarray, int],
    lanes: np.ndarray,
    room: dict[int, int],
    count: int,
) -> Way:
    """Forms the way of K rows: devices, positions and sizes of both ends."""
    # Positions are in the devices' own parts at the start, and among the rows of all
    # devices at the end. `lanes` number the rows with the same two devices.
    (origin, position, received), (goal, target, total) = start, end
    at, distances, sent = np.zeros(total, np.int32), (goal - origin) % count, {}
    stays = distances == 0
    at[target[stays]] = position[stays]
    for step in sorted(room):
        rows, is_moved = np.zeros((count, room[step]), np.int32), distances == step
        rows[origin[is_moved], lanes[is_moved]] = position[is_moved]
        at[target[is_moved]] = received + lanes[is_moved]
        sent[step], received = rows.reshape(-1), received + room[step]
    return Way(sent=sent, at=at)  # pyright: ignore[reportArgumentType]


def move(tree: core.Tree, way: Way, count: int) -> core.Tree:
    """Moves rows `[S, ...]` to `[T, ...]` on ONE of the devices, bit for bit."""

    def exchange(leaf: jax.Array) -> jax.Array:
        parts = [leaf]
        for step, rows in way.sent.items():
            ring = [(k, (k + step) % count) for k in range(count)]
            parts.append(lax.ppermute(leaf[rows], sharding.AXIS, ring))
        return jnp.concatenate(parts)[way.at]

    return jax.tree.map(exchange, tree)
