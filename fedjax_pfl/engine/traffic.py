"""Bytes between devices, memory and time of a round over hosts, by formulae.

With N clients, cohorts of K, n devices on H hosts, messages of D values of b bytes, R
bytes of a client's rows that a round reads and W that it writes, and largest clients of
M examples of X bytes:

    exchange     purpose                                   size S     each device sends
    all-reduce   the mean of messages                      D b        2 (n-1)/n S
    all-to-all   rows of a cohort K < N, to its places     K R        (n-1)/n S
    all-to-all   examples of a cohort, to its places       K M X      (n-1)/n S
    all-gather   its rows, back to where they belong       K W        (n-1)/n S
    all-to-all   columns of messages, of a robust rule     K D b / n  (n-1)/n S
    all-gather   that rule's result                        D b        (n-1)/n S
    all-reduce   its Gram matrix, of rules of pairs        K^2 b      2 (n-1)/n S

S are the bytes of a device before an all-reduce or an all-to-all, and after an
all-gather. Arrays with one number per client or per row are left out. K counts as the
next multiple of n, and is N if a rule reads all clients' last messages. Examples do not
move if all clients take part, or if all devices have all examples, which they do if
that is no more memory: S/n + 2 K M examples or more, of all S. A host sends the bytes
of its devices to others over the network: with H in place of n for an all-reduce and an
all-gather, and d times S (H-1)/H for an all-to-all of d devices.

The time of a round is the sum of work, of sending between devices and between hosts,
and of the exchanges' latency, one after the other:

    6 D E M ceil(K/n) / flops + device bytes / link + host bytes / network
    + exchanges * 2 (n-1) * latency

with E epochs on M examples of the largest client: a product and its two derivatives, of
one addition and multiplication per parameter. Networks with convolutions do more.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_rows, divided_examples, struct
from fedjax_pfl.engine import auto_execution, layout
from fedjax_pfl.engine.groups import PlannedGroup
from fedjax_pfl.round.process import FederatedProcess

__all__ = ["Cluster", "Estimate", "Exchange", "estimate", "exchanges"]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """H hosts with d devices each."""

    hosts: int = struct.static_field(at_least=1)
    devices: int = struct.static_field(at_least=1)
    # Operations of a device, bytes that a device sends to its host's others, and bytes
    # that a host sends, per second; seconds of a message.
    flops: float = struct.static_field(default=10e12, above=0)
    link: float = struct.static_field(default=100e9, above=0)
    network: float = struct.static_field(default=12.5e9, above=0)
    latency: float = struct.static_field(default=20e-6, above=0)

    __post_init__ = struct.check_fields

    @property
    def count(self) -> int:
        """Devices n of all hosts."""
        return self.hosts * self.devices


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One exchange of all devices."""

    kind: str  # `all-reduce`, `all-gather` or `all-to-all`
    purpose: str
    size: int  # bytes S of a device, see the module

    def sent(self, cluster: Cluster) -> float:
        """Bytes that each device sends."""
        return self._share(cluster.count) * self.size

    def left(self, cluster: Cluster) -> float:
        """Bytes that each host sends over the network."""
        together = cluster.devices if self.kind == "all-to-all" else 1
        return together * self._share(cluster.hosts) * self.size

    def _share(self, count: int) -> float:
        """Returns the share of S that is sent, among `count` devices or hosts."""
        return (2 if self.kind == "all-reduce" else 1) * (count - 1) / count


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Bytes and seconds of a round on a cluster."""

    exchanges: tuple[Exchange, ...]
    rows: int  # of a device's clients, state and lists of examples
    examples: int  # of a device
    shared: int  # further bytes of every device: server's state, constants
    work: int  # additional bytes of a round on a device
    sent: float  # bytes that each device sends in a round
    left: float  # bytes that each host sends over the network
    compute: float  # seconds
    communication: float  # seconds
    cluster: Cluster

    @property
    def of_device(self) -> int:
        """Bytes of memory of a device."""
        return self.rows + self.examples + self.shared + self.work

    @property
    def of_host(self) -> int:
        """Bytes of memory of all devices of a host."""
        return self.of_device * self.cluster.devices

    @property
    def seconds(self) -> float:
        """Seconds of a round."""
        return self.compute + self.communication


def _row_bytes(tree: core.Tree, num_rows: int) -> int:
    """Bytes of one row of a tree `[N, ...]`."""
    return client_rows.num_bytes(tree) // num_rows


def _filled(size: int, count: int) -> int:
    """Returns the next multiple of the number of devices."""
    return -(-size // count) * count


def exchanges(
    process: FederatedProcess,
    state: core.State,
    federation: core.Federation,
    cohort: int,
    count: int,
    *,
    are_divided: bool = False,
) -> tuple[Exchange, ...]:
    """Lists what devices exchange in a round of one exchange with the clients."""
    if count == 1:
        return ()
    num_clients = federation.num_clients
    message = _message_bytes(state)
    transfers: list[Exchange] = []
    places = _filled(cohort, count)
    # Rows are divided by client: members of a cohort may all lie on one device.
    if cohort < num_clients:
        written = _row_bytes(state.of_clients(), num_clients)
        rows = federation.train.rows()
        if are_divided:
            index = rows.pop("index")
            client_bytes = index.shape[1] * divided_examples.num_bytes(federation.train)
            size = places * client_bytes
            transfers.append(Exchange("all-to-all", "examples of the cohort", size))
        read = written + _row_bytes(rows, num_clients)
        transfers.append(Exchange("all-to-all", "rows of the cohort", places * read))
        if written:
            transfers.append(Exchange("all-gather", "rows, back", places * written))
    rule = process.used_aggregator()
    # Means are sums of parts; other rules see all messages, divided by columns.
    if rule.incremental:
        return (*transfers, Exchange("all-reduce", "mean of messages", message))
    if process.algorithm.aggregate_over == "all":
        cohort, places = num_clients, _filled(num_clients, count)
    columns = places * message // count
    transfers.append(Exchange("all-to-all", "columns of messages", columns))
    transfers.append(Exchange("all-gather", "the rule's result", message))
    if rule.of_pairs:
        size = cohort**2 * jax.tree.leaves(state.server)[0].dtype.itemsize
        transfers.append(Exchange("all-reduce", "Gram matrix", size))
    return tuple(transfers)


def _message_bytes(state: core.State) -> int:
    """Returns bytes of a message, from last messages or from the server's state."""
    messages = state.rows.get("messages")
    if messages is None:
        return client_rows.num_bytes(state.server)
    return _row_bytes(messages, jax.tree.leaves(messages)[0].shape[0])


def estimate(planned: PlannedGroup, cluster: Cluster) -> Estimate:
    """Computes memory, bytes and time of a round."""
    process, federation = planned.processes[0], planned.group.federations[0]
    count, num_clients = cluster.count, federation.num_clients
    if num_clients % count:
        raise checks.InputError(
            f"Expected a number of clients that {count} devices divide, such as"
            f" {_filled(num_clients, count)}, got {num_clients}: else every device has"
            " the rows of all."
        )
    cohort = process.participation.cohort_size(num_clients)
    state = planned.state_shapes
    parts = layout.shares(planned, count)
    transfers = exchanges(
        *(process, state, federation, cohort, count), are_divided=parts is not None
    )
    sent = sum(e.sent(cluster) for e in transfers)
    left = sum(e.left(cluster) for e in transfers)
    # By identity, since parts and points share arrays.
    data = {id(leaf): leaf for leaf in jax.tree.leaves(_rows_of_data(federation))}
    rows = client_rows.num_bytes((state.of_clients(), data)) // count
    server = (state.server, state.with_memory(attack=None, steps=None).memory)
    shared = {
        id(leaf): leaf for leaf in jax.tree.leaves((server, _constants(federation)))
    }
    members = -(-cohort // count)
    step = auto_execution.bytes_of_a_step(process, planned.plan.model, federation)
    at_once = planned.plan.execution.chunk_size or members
    # An all-to-all needs buffers for both directions.
    work = min(at_once, members) * step + sum(
        e.size * (2 if e.kind == "all-to-all" else 1) for e in transfers
    )
    # Two operations per parameter and example forward, four backward.
    flops = 6 * planned.num_parameters * _examples(process, federation) * members
    latency = len(transfers) * 2 * (count - 1) * cluster.latency
    return Estimate(
        exchanges=transfers,
        rows=rows,
        examples=_bytes_of_examples(federation, parts),
        shared=client_rows.num_bytes(shared),
        work=work,
        sent=sent,
        left=left,
        compute=flops / cluster.flops,
        communication=sent / cluster.link + left / cluster.network + latency,
        cluster=cluster,
    )


def _rows_of_data(federation: core.Federation) -> Sequence[Any]:
    """Returns the rows of all parts of a federation."""
    parts = (federation.train, federation.validation, federation.test)
    return [*(part.rows() for part in parts), federation.malicious]


def _constants(federation: core.Federation) -> Sequence[Any]:
    """Returns arrays that clients share, except for examples."""
    parts = (federation.train, federation.validation, federation.test)
    return [dataclasses.replace(part.pool(), x=None, y=None) for part in parts]


def _bytes_of_examples(
    federation: core.Federation, parts: divided_examples.Shares | None
) -> int:
    """Counts the bytes of the examples on a device."""
    if parts is not None:
        return parts.size * divided_examples.num_bytes(federation.train)
    data = (federation.train, federation.validation, federation.test)
    distinct = {id(leaf): leaf for part in data for leaf in (part.x, part.y)}
    return client_rows.num_bytes(distinct)


def _examples(process: FederatedProcess, federation: core.Federation) -> float:
    """Counts E M, the examples of a client's work, from its solver or for one epoch."""
    solver, slots = process.algorithm.local, federation.train.index.shape[1]
    if solver is not None and solver.num_steps is not None:
        return solver.num_steps * min(solver.batch_size or slots, slots)
    epochs = None if solver is None else solver.epochs
    return (epochs or 1) * slots
