"""Trainings of populations beyond the device's memory."""

from typing import Any

from fedjax_pfl import core, results
from fedjax_pfl.engine import groups, simulation, validate
from fedjax_pfl.engine.options import Options, as_keywords, time_limit
from fedjax_pfl.engine.streaming.trainer import Streamed
from fedjax_pfl.round.process import FederatedProcess

__all__ = ["EVAL_CLIENTS", "simulate_streamed"]

EVAL_CLIENTS = 1000
"""Most clients evaluated by default."""


@as_keywords("points_per_chunk", "diagnostics", "memory_limit")
def simulate_streamed(
    key: core.Key,
    process: FederatedProcess,
    model: core.Model,
    federation: core.Specification | core.Federation,
    num_rounds: int,
    *,
    eval_clients: int | str = EVAL_CLIENTS,
    **options: Any,
) -> results.Result:
    """Runs one training with clients' states in a file, not on the device.

    For populations that do not fit in the device's memory: a round reads and writes the
    rows of its cohort only, and a client that never took part takes no space. Clients,
    cohorts and minibatches are those of `simulate`; results agree to rounding. The pool
    of examples stays on the device. Devices that share clients, of one process or of
    several, have a file each, with the rows of their clients. Methods that read all
    clients in a round, and rules other than means over all clients' messages, are
    refused.

    Args:
      key: see `simulate`.
      process: see `simulate`.
      model: see `simulate`.
      federation: data of N clients, whose rows may be NumPy arrays; or a specification.
      num_rounds: rounds R, at least 1.
      eval_clients: size of the sample of clients that is evaluated, drawn once per
        seed, or all clients if there are no more; `all`; or `participants` of the last
        round. The result is about the clients that are evaluated at some time.
      **options: as for `simulate`, without `diagnostics` and `memory_limit`.
        `others` and `everybody` in `evaluate_on` keep the numbers of all clients' test
        examples on the device. Files with rows are in the folder of `checkpoints`, or
        else in a temporary directory. Several processes need `execution="shard"`, and a
        folder that they share.

    Returns:
      The result for the sample of clients, which `client` names by their rows.

    Raises:
      InputError: if an argument does not fit, in one sentence.
      Interrupted: after `max_minutes`.
    """
    federation = validate.built(key, process, model, federation)
    parsed = Options(num_rounds=num_rounds, eval_clients=eval_clients, **options)
    # The default sample may be larger than the population.
    parsed = parsed.within(federation.num_clients)
    time_is_up = time_limit(parsed.max_minutes)
    group = groups.single(key, process, model, federation, is_described=False)
    planned = simulation.check_groups([group], parsed, trainer=Streamed)
    return simulation.run_groups(
        planned, parsed, trainer=Streamed, interrupt=time_is_up
    )
