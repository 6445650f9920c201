"""Participation in virtual time: rounds with deadlines, and buffers without rounds."""

import heapq
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.core.timetable import Charges, Timetable
from fedjax_pfl.local.devices import Devices, Fleet
from fedjax_pfl.local.participation import NO_CAP

__all__ = ["Buffered", "Synchronous"]

_Member = tuple[int, int, bool, int]
"""Client, staleness, presence and most steps."""
_Row = tuple[float, int, int, list[_Member]]
"""Time at the end of a round, numbers of models and messages sent, and members."""


@struct.pytree_dataclass
class _Timed(core.Participation):
    """Participation by a timetable, which the engine fills in; abstract."""

    size: int = struct.static_field(at_least=1)
    devices: Devices = Devices()
    timetable: Timetable | None = None
    is_timed: ClassVar[bool] = True
    chooses: ClassVar[str] = "who is in which round"

    def _needed(self) -> int:
        """Returns the smallest possible number of clients."""
        return self.size

    def cohort_size(self, num_clients: int) -> int:
        """Counts cohort members."""
        if self._needed() > num_clients:
            raise checks.InputError(
                f"Expected at most {num_clients} clients at once in"
                f" {type(self).__name__}, as many as there are, got {self._needed()}."
            )
        return self.size

    def __call__(self, key: core.Key, num_clients: int) -> jax.Array:
        """Raises an `InputError`: cohorts depend on the round."""
        raise checks.InputError(
            f"Expected a training of simulate, grid or a command, which make the"
            f" timetable of {type(self).__name__}."
        )

    def in_round(
        self, key: core.Key, num_clients: int, round: jax.Array | int
    ) -> jax.Array:
        """Returns the cohort `int32[K]` of a round; the key is unused."""
        if self.timetable is None:
            return self(key, num_clients)
        return self.timetable.cohort[round]

    def schedule(
        self, rng: np.random.Generator, charges: Charges, num_rounds: int
    ) -> Timetable:
        """Computes the cohorts and the ends of rounds."""
        # The duration of a task depends on the device, the examples and the size of
        # messages, not on weights. So the host computes the cohorts of all rounds
        # before a training, which is one compiled program like any other.
        fleet = self.devices.fleet(rng, len(charges.examples))
        rounds = itertools.islice(self._rounds(rng, fleet, charges), num_rounds)
        ends, received, sent, members = zip(*rounds, strict=True)
        table = np.array([sorted(row) for row in members], np.int32)  # [R, K, 4]
        cohort, staleness, present, steps = np.moveaxis(table, 2, 0)
        return Timetable(
            cohort=cohort,
            staleness=staleness,
            present=present.astype(bool),
            steps=steps,
            seconds=np.array(ends),
            received=np.array(received, np.int32),
            sent=np.array(sent, np.int32),
        )

    def _rounds(
        self, rng: np.random.Generator, fleet: Fleet, charges: Charges
    ) -> Iterator[_Row]:
        """Yields one round after another, without end."""
        raise NotImplementedError


@struct.pytree_dataclass
class Synchronous(_Timed):
    """Synchronous rounds that end with the first K messages, or at a deadline.

    The server chooses `select` clients that are online, and a round ends when `size` of
    them have sent their work, or at the deadline. Later work is lost, and its client
    keeps its state. If too few clients are online, the server waits until there are
    enough.

    Attributes:
      size: static number K; work of at most K clients is used.
      select: static number of clients that are chosen, at least `size`; None for
        `size`.
      deadline: `[]` seconds after which a round ends, > 0, or None.
      late: treatment of clients that are late at the deadline: `drop`, or `partial`:
        they send the result of their steps until then, if they have time for one.
      devices: devices of the clients.
      timetable: filled in by the engine.
    """

    select: int | None = struct.static_field(default=None, at_least=1)
    deadline: Any = struct.traced_field(default=None, above=0)
    late: Literal["drop", "partial"] = "drop"

    def __post_init__(self):
        if self.select is not None:
            checks.whole("select", self.select, at_least=self.size)

    @property
    def may_lose(self) -> bool:
        """Returns whether work may be lost, because there is a deadline."""
        return self.deadline is not None

    def _needed(self) -> int:
        return self.select or self.size

    def _rounds(
        self, rng: np.random.Generator, fleet: Fleet, charges: Charges
    ) -> Iterator[_Row]:
        clients, count = np.arange(len(charges.examples)), self._needed()
        seconds = fleet.seconds(charges.examples, charges.up, charges.down)
        sending = fleet.seconds(0 * charges.examples, charges.up, charges.down)
        limit = np.inf if self.deadline is None else float(self.deadline)
        step_seconds = (seconds - sending) / np.maximum(charges.steps, 1)
        step_caps = np.full(len(clients), NO_CAP)
        if self.late == "partial" and np.isfinite(limit):
            # Steps that fit before the deadline, in addition to the messages.
            room = np.floor((limit - sending) / np.maximum(step_seconds, 1e-300))
            step_caps = np.clip(room, 0, charges.steps).astype(int)
        time = 0.0
        while True:
            time = self._when_enough(fleet, clients, time)
            online = clients[fleet.online(clients, time)]
            chosen = rng.permutation(online)[:count]
            chosen = chosen[np.argsort(seconds[chosen], kind="stable")]
            on_time = chosen[seconds[chosen] <= limit][: self.size]
            members = [(int(i), 0, True, NO_CAP) for i in on_time]
            # Rows of the cohort that no client on time takes are late clients.
            late = [i for i in chosen if i not in on_time][: self.size - len(on_time)]
            for i in late:
                sends = self.late == "partial" and step_caps[i] > 0
                members.append((int(i), 0, bool(sends), int(step_caps[i] * sends)))
            time += float(limit if late else seconds[on_time[-1]])
            yield time, count, sum(member[2] for member in members), members

    def _when_enough(self, fleet: Fleet, clients: np.ndarray, time: float) -> float:
        """Returns the first time at or after `time` with enough clients online."""
        count, start = self._needed(), time
        while (is_online := fleet.online(clients, time)).sum() < count:
            time = min(fleet.next_online(i, time) for i in clients[~is_online])
            # Windows repeat every day.
            if time > start + 2 * fleet.day:
                raise checks.InputError(
                    f"Expected {count} clients that are online at once, but at no hour"
                    " of a day are there as many; choose fewer, or raise online."
                )
        return time


@struct.pytree_dataclass
class Buffered(_Timed):
    """Asynchronous training: the server updates whenever K messages are buffered.

    `concurrency` clients work at any time. A client that has sent its work is replaced
    by another, which starts from the current server model. It is drawn uniformly from
    online clients that neither work nor have a message in the buffer; if there is none,
    the next client to come online starts. A message trained from the model of tau
    updates ago has weight `1 / (1 + tau)^discount`; it is lost if tau exceeds
    `max_staleness`.

    In methods with a server that averages models into its own (FedAvg, FedProx, pFedMe,
    ...), a message is the server's model plus the discounted change of the model that
    was received: FedBuff, Nguyen et al., "Federated Learning with Buffered Asynchronous
    Aggregation" (2022). In ADMM (FLAME, FedADMM), with states of clients as messages,
    the latest messages are averaged without discount. Clients' states change by their
    local work only, so that they are never stale.

    Attributes:
      size: static number of messages K in a full buffer.
      concurrency: static number of clients that work at any time.
      max_staleness: static; number of earlier models that the server keeps.
      discount: `[]` power, at least 0; FedBuff has 0.5.
      devices: devices of the clients.
      timetable: filled in by the engine.
    """

    concurrency: int = struct.static_field(default=10, at_least=1)
    max_staleness: int = struct.static_field(default=20, at_least=0)
    discount: Any = struct.traced_field(default=0.5, at_least=0)
    is_buffered: ClassVar[bool] = True

    def _needed(self) -> int:
        return max(self.size, self.concurrency)

    def weight(self, staleness: jax.Array) -> jax.Array:
        """Returns the weight `[...]` of changes with staleness `int32[...]`."""
        import jax.numpy as jnp

        return (1.0 + staleness) ** -jnp.asarray(self.discount)

    def _rounds(
        self, rng: np.random.Generator, fleet: Fleet, charges: Charges
    ) -> Iterator[_Row]:
        seconds = fleet.seconds(charges.examples, charges.up, charges.down)
        idle = set(range(len(seconds)))
        tasks: list[tuple[float, int, int]] = []  # end, client, version received
        buffer: list[_Member] = []
        time, version, received, sent = 0.0, 0, 0, 0
        while True:
            candidates = np.array(sorted(idle), int)
            openings = np.array([fleet.next_online(i, time) for i in candidates], float)
            free_slots = self.concurrency - len(tasks)
            for client in rng.permutation(candidates[openings <= time])[:free_slots]:
                heapq.heappush(
                    tasks, (time + float(seconds[client]), int(client), version)
                )
                idle.discard(int(client))
                received += 1
            # A slot that is still free waits for the first client that comes online.
            opening = float(openings[openings > time].min(initial=np.inf))
            if len(tasks) < self.concurrency and (not tasks or opening <= tasks[0][0]):
                time = opening
                continue
            time, client, version_received = heapq.heappop(tasks)
            staleness, sent = version - version_received, sent + 1
            if staleness > self.max_staleness:
                idle.add(client)
                continue
            buffer.append((client, staleness, True, NO_CAP))
            if len(buffer) == self.size:
                yield time, received, sent, buffer
                # Only now: a client with a message in the buffer does not work.
                idle |= {client for client, *_ in buffer}
                version, buffer, received, sent = version + 1, [], 0, 0
