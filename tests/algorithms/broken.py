"""Methods that break one property each, and the sound one that they are made of."""

import dataclasses
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import local
from fedjax_pfl.algorithms import base
from fedjax_pfl.core import struct


def own_examples(data):
    """A client's examples `[M, 4]` with zeros for padding, and which are real."""
    real = jnp.arange(data.index.shape[0]) < data.num_examples
    return jnp.where(real[:, None], data.x[data.index], 0), real


class Means(base.SingleExchange):
    """The server learns the mean of all inputs; clients count their rounds."""

    def init(self, key, model, population, data):
        zero = jnp.zeros(data.x.shape[1:], data.x.dtype)
        return {"mean": zero}, {"rounds": zero[0]}, None

    def mean(self, key, data):
        x, real = own_examples(data)
        return x.sum(axis=0) / real.sum()

    def client_update(self, view, down, client, model):
        mean = {"mean": self.mean(view.key, view.data)}
        return {"rounds": client["rounds"] + 1}, view.upload(mean), {}

    def server_update(self, ctx, server, aggregate, uploads):
        return base.mixture(aggregate, server, self.step)


@struct.pytree_dataclass
class Sound(Means):
    step: Any = 0.5


@struct.pytree_dataclass
class HalfPrecision(Means):
    """The server's state becomes float16."""

    step: Any = 0.5

    def server_update(self, ctx, server, aggregate, uploads):
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float16), aggregate)


@struct.pytree_dataclass
class OneRow(Means):
    """The state of all clients is that of one."""

    step: Any = 0.5

    def round(self, state, exchange):
        state, info = super().round(state, exchange)
        rows = jax.tree.map(lambda leaf: leaf[:1], state.clients)
        return dataclasses.replace(state, clients=rows), info


@struct.pytree_dataclass
class AsksTheHost(Means):
    """Python on the host computes the server's step."""

    step: Any = 0.5

    def server_update(self, ctx, server, aggregate, uploads):
        new = super().server_update(ctx, server, aggregate, uploads)
        return jax.pure_callback(lambda tree: tree, jax.eval_shape(lambda: new), new)


@struct.pytree_dataclass
class FirstOfCohort(Means):
    """The member in the first slot decides."""

    step: Any = 0.5

    def server_update(self, ctx, server, aggregate, uploads):
        return jax.tree.map(lambda leaf: leaf[0], uploads.message)


@struct.pytree_dataclass
class DrawnInPython(Means):
    """Python's random numbers become constants of the program."""

    step: Any = 0.5

    def mean(self, key, data):
        return super().mean(key, data) + random.random()


@struct.pytree_dataclass
class DrawnOnTheHost(Means):
    """NumPy's random numbers, in every round others."""

    step: Any = 0.5

    def mean(self, key, data):
        found = super().mean(key, data)
        noise = jax.pure_callback(
            lambda x: np.random.normal(size=x.shape).astype(x.dtype),
            found,
            found,
            vmap_method="broadcast_all",
        )
        return found + noise


@struct.pytree_dataclass
class DividedBySlots(Means):
    """Means over all slots, whose padding is zero."""

    step: Any = 0.5

    def mean(self, key, data):
        return own_examples(data)[0].mean(axis=0)


@struct.pytree_dataclass
class WithoutMask(Means):
    """Means that read the padding."""

    step: Any = 0.5

    def mean(self, key, data):
        return data.x[data.index].mean(axis=0)


@struct.pytree_dataclass
class LogarithmOfZero(Means):
    """Numbers that are not finite, whatever the data are."""

    step: Any = 0.5

    def server_update(self, ctx, server, aggregate, uploads):
        return jax.tree.map(lambda leaf: leaf + jnp.log(0 * self.step), aggregate)


@struct.pytree_dataclass
class Everybody(Means):
    """Clients count the rounds in which they took no part, too."""

    step: Any = 0.5

    def round(self, state, exchange):
        state, info = super().round(state, exchange)
        rows = jax.tree.map(lambda leaf: leaf + 1, state.clients)
        return dataclasses.replace(state, clients=rows), info


@struct.pytree_dataclass
class TracedOnly(Means):
    """Does something else where it is compiled."""

    step: Any = 0.5

    def mean(self, key, data):
        found = super().mean(key, data)
        return found + isinstance(found, jax.core.Tracer)


@struct.pytree_dataclass
class FewFields(Means):
    """Walks over minibatches with two of its solver's fields."""

    step: Any = 0.5
    local: Any = local.SGD()

    def client_update(self, view, down, client, model):
        def step(key, mean, batches):
            (batch,) = batches
            x = (batch.weight[:, None] * batch.x).sum(axis=0) / batch.weight.sum()
            return (mean + x) / 2

        mean, _ = local.local_scan(
            view,
            step,
            down.shared["mean"],
            batch_size=self.local.batch_size,
            epochs=self.local.epochs,
            dtype=down.shared["mean"].dtype,
        )
        return client, view.upload({"mean": mean}), {}

    def predictors(self, view, server, client, model):
        return {"global": lambda x: jnp.zeros((len(x), 3), x.dtype)}


@struct.pytree_dataclass
class Branch(Means):
    """Branches in Python on a traced field."""

    step: Any = 0.5

    def server_update(self, ctx, server, aggregate, uploads):
        return aggregate if self.step > 0 else server


BROKEN = {
    "HalfPrecision": (
        "states_keep_their_layout",
        r"\.server\['mean'\] is float16\[4\]",
    ),
    "OneRow": ("states_keep_their_layout", r"\.clients\['rounds'\] is float..\[1\]"),
    "WithoutMask": ("states_stay_finite", r"\d+ messages or rows .* not finite"),
    "LogarithmOfZero": ("states_stay_finite", "4 of the 4 numbers .*-inf"),
    "DrawnOnTheHost": ("same_key_same_result", r"\.server\['mean'\]"),
    "DrawnInPython": ("randomness_comes_from_keys", "compiled a second time"),
    "DividedBySlots": ("padding_changes_nothing", "5 more padded slots"),
    "FirstOfCohort": ("permuting_clients_permutes_results", r"\['server'\]\['mean'\]"),
    "Everybody": ("absent_clients_are_bit_identical", "rows of the absent clients"),
    "FewFields": (
        "solver_fields_act",
        "local.num_steps of SGD, local.order of SGD, local.remainder=full of SGD",
    ),
    "AsksTheHost": ("round_exports_for_tpu_and_cuda", "does not lower: .*callback"),
    "TracedOnly": ("loop_reference", r"\.server\['mean'\]"),
}
"""Name of the class -> the property that it breaks, and what the sentence says."""
