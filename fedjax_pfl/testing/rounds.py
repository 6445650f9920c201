"""Properties of one round."""

import dataclasses
import re
import unittest
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, sharding, struct
from fedjax_pfl.local import participation as participations
from fedjax_pfl.testing import compare, subjects, toy

__all__ = [  # in the order in which they are checked
    "states_keep_their_layout",
    "states_stay_finite",
    "same_key_same_result",
    "randomness_comes_from_keys",
    "padding_changes_nothing",
    "permuting_clients_permutes_results",
    "absent_clients_are_bit_identical",
    "nonfinite_messages_never_enter",
    "loop_reference",
    "chunks_change_rounding_only",
    "devices_change_rounding_only",
    "float32_changes_rounding_only",
    "round_exports_for_tpu_and_cuda",
]


def states_keep_their_layout(subject: subjects.Subject) -> None:
    """Checks that client rows lead with N and that a round keeps the layout."""
    at = subject.setting
    start = jax.eval_shape(at.first)
    # Shapes only: nothing is computed.
    rows = start.of_clients()
    for path, leaf in jax.tree_util.tree_leaves_with_path(rows):
        if leaf.shape[:1] != (toy.NUM_CLIENTS,):
            raise AssertionError(
                f"In the first state, leaf {jax.tree_util.keystr(path)} is"
                f" {leaf.dtype}{list(leaf.shape)}; expected one row for each of the"
                f" {toy.NUM_CLIENTS} clients."
            )
    after = jax.eval_shape(lambda state: at.round(state)[0], start)
    compare.same_layout(after, start, "After a round")


def states_stay_finite(subject: subjects.Subject) -> None:
    """Checks that three rounds on finite data leave finite numbers."""
    case = "After three rounds on finite data, whose padding alone holds NaN and 1e38"
    state, _ = subject.setting.round()
    compare.finite(state, case)
    if state.memory["nonfinite"]:
        raise AssertionError(
            f"{case}, {state.memory['nonfinite']} messages or rows of clients were not"
            " finite and did not enter the state."
        )


def same_key_same_result(subject: subjects.Subject) -> None:
    """Checks that two runs of one compiled round give the same bits."""
    at = subject.setting
    compare.same(at.round(), at.round(), "In a second run of the same round")


def randomness_comes_from_keys(subject: subjects.Subject) -> None:
    """Checks that a round that is traced again is the same program."""
    at = subject.setting
    # Random numbers of Python or NumPy, the time, or a counter outside of the state
    # would be constants of the program.
    again = jax.jit(lambda process, state, data: process.round(state, at.model, data))(
        at.process, at.warm, at.federation
    )
    compare.same(again, at.round(), "With the same round compiled a second time")


def execution_changes_rounding_only(
    subject: subjects.Subject, execution: sharding.Execution
) -> None:
    """Checks that a round in another execution agrees with `vmap`."""
    case = f"With execution={str(execution)!r} in place of 'vmap'"
    # Sums over clients are taken in another order.
    result = subject.setting.round(execution=execution)
    compare.close(subject.setting.round(), result, case, compare.tight())


def chunks_change_rounding_only(subject: subjects.Subject) -> None:
    """Checks that clients in chunks of three, by their work, agree with all at once."""
    execution = sharding.Execution(mode="chunk", chunk_size=3, by_size=True)
    execution_changes_rounding_only(subject, execution)


def devices_change_rounding_only(subject: subjects.Subject) -> None:
    """Checks that clients in chunks on two devices agree with all at once on one."""
    if jax.device_count() < 2:
        raise unittest.SkipTest(
            "there is one device; with JAX_NUM_CPU_DEVICES=2 a CPU counts as two"
        )
    execution = sharding.Execution(
        mode="shard", num_devices=2, chunk_size=3, by_size=True
    )
    execution_changes_rounding_only(subject, execution)


def loop_reference(subject: subjects.Subject) -> None:
    """Checks a compiled round against a Python loop over clients, not compiled."""
    at = subject.setting
    compiled, _ = at.round()  # and the warm state, which would not be compiled below
    with jax.disable_jit():
        state, _ = at.process.round(
            at.warm, at.model, at.federation, sharding.Execution(mode="loop")
        )
    case = "Against a Python loop over clients, nothing compiled"
    compare.close(compiled, state, case, compare.tight())


def permuting_clients_permutes_results(subject: subjects.Subject) -> None:
    """Checks that permuting clients only permutes results."""
    # Not for methods that have clients on two axes of a state, or that train the server
    # on the examples of all clients in their order.
    order = np.array([3, 0, 7, 5, 1, 2, 6, 4])
    # All clients take part, or the cohort would be another one.
    at = subject.everyone
    rows = client_rows.take(at.warm.of_clients(), jnp.asarray(order))
    permuted = at.warm.at(rows)
    new, _ = at.round()
    result, _ = at.round(permuted, federation=toy.make_federation(order=order))
    compare.close(
        client_rows.take(_client_results(new), jnp.asarray(order)) | _shared(new),
        _client_results(result) | _shared(result),
        f"With the clients in the order {order.tolist()}",
        compare.tight(),
    )


def _client_results(state: core.State) -> dict[str, Any]:
    """Returns values that clients compute from examples, not messages, by name."""
    rows = state.rows
    names = ("carry", "statistics")
    return {"clients": state.clients} | {n: rows[n] for n in names if n in rows}


def _shared(state: core.State) -> dict[str, Any]:
    """Returns the server's state and running statistics of all clients, by name."""
    statistics = state.memory.get("statistics")
    return {"server": state.server, "shared statistics": statistics}


def padding_changes_nothing(subject: subjects.Subject) -> None:
    """Checks that more padded slots per client agree with fewer."""
    at = subject.setting
    result, _ = at.round(federation=toy.make_federation(padding=5))
    case = "With 5 more padded slots per client"
    compare.close(at.round()[0], result, case, compare.tight())


def absent_clients_are_bit_identical(subject: subjects.Subject) -> None:
    """Checks that a round leaves the rows of clients outside of its cohort alone."""
    at = subject.setting
    start = _with_row_garbage(at.warm)
    after, info = at.round(start)
    members = np.asarray(info.cohort).tolist()
    absent = jnp.setdiff1d(jnp.arange(toy.NUM_CLIENTS), info.cohort)
    if len(absent) != toy.NUM_CLIENTS - subjects.COHORT:
        raise AssertionError(
            f"The round reports the cohort {members}; expected {subjects.COHORT}"
            " distinct clients."
        )
    now, then = (client_rows.take(s.of_clients(), absent) for s in (after, start))
    compare.same(now, then, f"In the rows of the absent clients {absent.tolist()}")


def _with_row_garbage(state: core.State) -> core.State:
    """Returns a state with distinct client rows, to see which are touched."""

    def marked(leaf: jax.Array) -> jax.Array:
        numbers = jnp.arange(leaf.shape[0]).reshape((-1,) + (1,) * (leaf.ndim - 1))
        if leaf.dtype == bool:
            return leaf ^ (numbers % 2 == 1)
        return leaf + numbers.astype(leaf.dtype)

    rows = state.of_clients()
    messages = {n: v for n, v in rows.items() if n == "messages"}
    return state.at(jax.tree.map(marked, rows) | messages)


def round_exports_for_tpu_and_cuda(subject: subjects.Subject) -> None:
    """Checks that a round lowers for accelerators, in its default floats."""
    at = subject.setting

    def step(key_data: jax.Array, state: core.State):
        key = core.new_key(key_data)
        state = dataclasses.replace(state, key=key)
        state, _ = at.process.round(state, at.model, at.federation)
        return jax.tree.leaves(dataclasses.replace(state, key=None))

    arguments = (
        jax.random.key_data(at.warm.key),
        dataclasses.replace(at.warm, key=None),
    )
    export = jax.export.export(jax.jit(step), platforms=("tpu", "cuda"))
    try:
        text = export(*arguments).mlir_module()
    except (NotImplementedError, ValueError) as error:  # such as calls of the host
        raise AssertionError(f"The round does not lower: {error}") from error
    # Accelerators have slow or no float64.
    is_wide = jnp.zeros(()).dtype == jnp.float64
    doubles = [] if is_wide else re.findall(r".*[<x]f64>.*", text)
    if doubles:
        raise AssertionError(f"The round computes in float64: {doubles[0].strip()}")


def float32_changes_rounding_only(subject: subjects.Subject) -> None:
    """Checks that a round in float32 agrees with one in float64."""
    if jnp.zeros(()).dtype != jnp.float64:
        raise unittest.SkipTest(
            "the other properties are checked in float32; with JAX_ENABLE_X64=1 this"
            " one compares it with float64"
        )
    at = subject.setting
    process, state = jax.tree.map(_single, (at.process, at.warm))
    federation = toy.make_federation(dtype=jnp.float32)
    model = subject.model.for_federation(federation)
    single = dataclasses.replace(at, process=process, model=model)
    state, _ = single.round(state, federation=federation)
    # One round: a few hundred operations of float32 on values of order one.
    compare.close(state, at.round()[0], "In float32 in place of float64", 3e-4)


def _single(leaf: jax.Array) -> jax.Array:
    """Casts a floating leaf to float32."""
    return (
        leaf.astype(jnp.float32) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    )


@struct.pytree_dataclass
class _Poison(core.Attack):
    """Attack in which malicious clients send NaN."""

    def __call__(
        self,
        key: core.Key,
        state: core.Tree,
        messages: core.Message,
        malicious: jax.Array,
        reference: core.Params,
    ):
        poison = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), messages)
        return client_rows.select_rows(malicious, poison, messages), state


def nonfinite_messages_never_enter(
    subject: subjects.Subject, mode: str = "drop"
) -> None:
    """Checks that NaN of a malicious client is only counted."""
    process = dataclasses.replace(
        subject.everyone.process,
        attack=_Poison(),
        on_nonfinite=mode,
        work=participations.FullWork(),
    )
    at = dataclasses.replace(subject.everyone, process=process)
    start = at.first()
    state, info = at.round(start)
    # Methods without messages have none that NaN could enter.
    if not info.bytes_up.any():
        raise unittest.SkipTest("clients send nothing")
    case = f"With on_nonfinite={mode!r} and NaN from one client"
    if info.num_nonfinite != 1:
        raise AssertionError(f"{case}, {info.num_nonfinite} messages were counted.")
    rows = [state.rows.get(name) for name in ("messages", "statistics")]
    compare.finite((_shared(state), rows), case)
    # The server moves exactly if it does without the attack.
    usually = _differ(start.server, subject.everyone.warm.server)
    has_moved = _differ(start.server, state.server)
    if has_moved != usually:
        words = "changed" if has_moved else "did not change"
        raise AssertionError(f"{case}, the server's state {words}.")
    if state.round != 1:
        raise AssertionError(f"{case}, round {state.round} follows round 0.")


def _differ(a: core.Tree, b: core.Tree) -> bool:
    """Returns whether any numbers of two trees differ."""
    pairs = zip(toy.leaves(a), toy.leaves(b), strict=True)
    return any((x != y).any() for x, y in pairs)
