"""One communication round, for all methods and parts. Read this page first.

    begin                                                 every part
    down      the broadcast to the cohort                 method
    train     for ONE client, mapped over the cohort:
                before                                    every part
                client_update                             method
                after, send                               every part
              attack                                      of malicious members
                arrive                                    every part
              received                                    every part
    aggregate                                             aggregator
    server_update, finish                                 method
    end                                                   every part

Without an attack, `arrive` runs in the same map.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, sharding
from fedjax_pfl.round.exchange import Exchange

if TYPE_CHECKING:
    from fedjax_pfl.round.process import FederatedProcess

__all__ = ["run", "usual"]


def run(
    process: "FederatedProcess",
    state: core.State,
    model: core.Model,
    federation: core.Federation,
    execution: core.Execution,
    members: core.Members | None,
) -> tuple[core.State, core.RoundInfo]:
    """Runs one round; see `FederatedProcess.round`."""
    parts = process.all_parts()
    for part in parts:
        state = part.begin(state)
    exchange = Exchange.of(process, parts, state, model, federation, execution, members)
    with sharding.over(execution):
        state, info = process.algorithm.round(state, exchange)
    report = core.Report.of(info.client)
    info = dataclasses.replace(info, client=report)
    for part in parts:
        state, info = part.end(exchange, state, info)
    info = dataclasses.replace(info, client=report.named())
    return dataclasses.replace(state, round=exchange.ctx.round + 1), info


def usual(
    method: Any, state: core.State, exchange: Exchange
) -> tuple[core.State, core.RoundInfo]:
    """Runs a round with one exchange: one message down and one up."""
    ctx, reference = exchange.ctx, method.reference(state.server)
    rows = (state.clients, state.rows.get("messages"))
    if method.reads != "all":
        # `down` of most methods reads the cohort only.
        rows = (exchange.take(rows[0]), exchange.take(rows[1]))
    down = method.down(ctx, state.server, *rows)
    state, clients, received, report = exchange.train(state, down)
    aggregate, aggregator_info = None, {}
    if method.aggregates:
        aggregate, aggregator_info = exchange.aggregate(state, received, reference)
    server = method.server_update(ctx, state.server, aggregate, received)
    state, server = exchange.step(state, server)
    clients = exchange.put(state.clients, method.finish(ctx, server, clients))
    state = dataclasses.replace(state, server=server, clients=clients)
    bytes_down = client_rows.num_bytes(down.shared) * ctx.cohort.shape[0]
    return state, exchange.info(
        report,
        aggregator_info,
        down.info,
        bytes_up=exchange.bytes_up(received.message),
        bytes_down=bytes_down + client_rows.num_bytes(down.per_client),
    )
