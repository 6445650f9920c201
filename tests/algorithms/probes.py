"""Toy algorithms, each of which needs one corner of the contract."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base
from fedjax_pfl.core import client_rows, struct, tree_paths


def _full_batch(solver_rate, view, model, params, rate=1.0):
    """One full-batch step of plain SGD on a client's loss."""
    solver = local.SGD(learning_rate=solver_rate * rate, batch_size=64)
    theta, _, _ = solver.solve(view, local.DataLoss(model), params, None)
    return theta


def _mean(trees, weights):
    return client_rows.weighted_mean(trees, weights)


@struct.pytree_dataclass
class OwnDown(base.SingleExchange):
    """Own down-messages, mixed from the RECEIVED (attacked) messages of the others."""

    mixing: Any = 0.5
    learning_rate: Any = 0.3

    @property
    def reads(self):
        return "all"

    def init(self, key, model, population, data):
        params = model.init(key)
        return params, params, params

    def down(self, ctx, server, clients, messages):
        mean = jax.tree.map(lambda leaf: leaf.mean(axis=0, keepdims=True), messages)
        mixed = jax.tree.map(
            lambda leaf, m: (1 - self.mixing) * leaf + self.mixing * m, messages, mean
        )
        return core.Downlink(
            shared=None, per_client=jax.tree.map(lambda leaf: leaf[ctx.cohort], mixed)
        )

    def client_update(self, view, down, client, model):
        theta = _full_batch(self.learning_rate, view, model, down.per_client)
        upload = view.upload(theta)
        return theta, upload, {}

    def predictors(self, view, server, client, model):
        return {"personal": base.model_predictor(model, client, view.data.constants)}


@struct.pytree_dataclass
class TwoExchanges(base.SingleExchange):
    """Gradients up, a direction, then a line search whose trials are maps in a loop."""

    step: Any = 2.0
    decrease: Any = 1e-4

    def init(self, key, model, population, data):
        return model.init(key), None, None

    def reference(self, server):
        return jax.tree.map(jnp.zeros_like, server)  # messages are gradients

    def round(self, state, exchange):
        w = state.server
        objective = local.DataLoss(exchange.model)

        def gradients(view, row, shared):
            loss, gradient = local.full_value_and_gradient(
                objective, shared, None, view.data, 16
            )
            return view.upload(gradient, aux=loss)

        def losses(view, row, shared):
            return local.full_value_and_gradient(
                objective, shared, None, view.data, 16
            )[0]

        sent = exchange.map(gradients, (), w)
        state, received = exchange.upload(state, sent)
        gradient, info = exchange.aggregate(state, received, self.reference(w))
        before = jnp.vdot(received.aux, received.weight) / received.weight.sum()
        square = sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradient))

        def trial(step):
            point = jax.tree.map(lambda a, g: a - step * g, w, gradient)
            values = exchange.map(losses, (), point, exchange=1)
            return jnp.vdot(values, received.weight) / received.weight.sum()

        def rejected(carry):
            step, value, tries = carry
            return (value > before - self.decrease * step * square) & (tries < 20)

        def halve(carry):
            step, _, tries = carry
            return step / 2, trial(step / 2), tries + 1

        first = (self.step, trial(self.step), jnp.zeros((), jnp.int32))
        step, _, tries = lax.while_loop(rejected, halve, first)
        w = jax.tree.map(lambda a, g: a - step * g, w, gradient)
        report = {"trials": jnp.broadcast_to(tries, exchange.ctx.cohort.shape)}
        return dataclasses.replace(state, server=w), exchange.info(
            report, info, bytes_up=exchange.bytes_up(sent.message), bytes_down=0
        )

    def predictors(self, view, server, client, model):
        return {"global": base.model_predictor(model, server, view.data.constants)}


@struct.pytree_dataclass
class Memory(base.SingleExchange):
    """Clients remember a velocity between their rounds; two batches make one step."""

    learning_rate: Any = 0.2
    momentum: Any = 0.5

    def init(self, key, model, population, data):
        params = model.init(key)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return params, zeros, None

    def client_update(self, view, down, client, model):
        objective = local.DataLoss(model)

        def step(step_key, carry, batches):
            theta, velocity = carry
            grad = jax.grad(objective, argnums=1)
            sums = [grad(step_key, theta, batch, None) for batch in batches]
            velocity = jax.tree.map(
                lambda v, *g: self.momentum * v + sum(g) / len(g), velocity, *sums
            )
            theta = jax.tree.map(
                lambda x, v: x - self.learning_rate * v, theta, velocity
            )
            return theta, velocity

        (theta, velocity), info = local.local_scan(
            view,
            step,
            (down.shared, client),
            batch_size=2,
            batches_per_step=2,
            dtype=jnp.result_type(*jax.tree.leaves(down.shared)),
        )
        upload = view.upload(theta)
        return velocity, upload, {"steps": info.num_steps}

    def predictors(self, view, server, client, model):
        return {"global": base.model_predictor(model, server, view.data.constants)}


@struct.pytree_dataclass
class OwnSampler(base.SingleExchange):
    """Examples drawn with replacement by a sampler of the algorithm's own."""

    learning_rate: Any = 0.3
    batch_size: int = struct.static_field(default=3)

    def init(self, key, model, population, data):
        return model.init(key), None, None

    def client_update(self, view, down, client, model):
        objective = local.DataLoss(model)

        def sampler(key, data, batch_size):
            drawn = jax.random.randint(key, (batch_size,), 0, data.num_examples)
            return drawn, jnp.ones((batch_size,))

        def step(step_key, theta, batches):
            gradient = jax.grad(objective, argnums=1)(step_key, theta, batches[0], None)
            return jax.tree.map(
                lambda x, g: x - self.learning_rate * g, theta, gradient
            )

        theta, _ = local.local_scan(
            view,
            step,
            down.shared,
            batch_size=self.batch_size,
            sampler=sampler,
            dtype=jnp.result_type(*jax.tree.leaves(down.shared)),
        )
        upload = view.upload(theta)
        return client, upload, {}

    def predictors(self, view, server, client, model):
        return {"global": base.model_predictor(model, server, view.data.constants)}


@struct.pytree_dataclass
class BodyHead(base.SingleExchange):
    """The body is federated, the head stays with the client; predicts with both."""

    learning_rate: Any = 0.3
    head: str = struct.static_field(default="^bias")

    def init(self, key, model, population, data):
        head, body = tree_paths.split(model.init(key), self.head)
        return body, head, None

    def client_update(self, view, down, client, model):
        params = tree_paths.join(client, down.shared)
        theta = _full_batch(self.learning_rate, view, model, params)
        head, body = tree_paths.split(theta, self.head)
        upload = view.upload(body)
        return head, upload, {}

    def predictors(self, view, server, client, model):
        params = tree_paths.join(client, server)
        return {"personal": base.model_predictor(model, params, view.data.constants)}


@struct.pytree_dataclass
class WeightZero(base.SingleExchange):
    """Odd clients send NaN (even ids of them 1e38) with weight 0: nothing may enter."""

    learning_rate: Any = 0.3

    def init(self, key, model, population, data):
        return model.init(key), None, None

    def client_update(self, view, down, client, model):
        theta = _full_batch(self.learning_rate, view, model, down.shared)
        odd = view.data.client_id % 2 == 1
        poison = jnp.where(view.data.client_id % 4 == 1, jnp.nan, 1e38)
        theta = jax.tree.map(lambda x: jnp.where(odd, poison.astype(x.dtype), x), theta)
        upload = view.upload(theta)
        weight = jnp.where(odd, 0, upload.weight)
        return client, dataclasses.replace(upload, weight=weight), {}

    def predictors(self, view, server, client, model):
        return {"global": base.model_predictor(model, server, view.data.constants)}


@struct.pytree_dataclass
class Schedule(base.SingleExchange):
    """A step size that depends on the round, and a finish that reads the new server."""

    learning_rate: Any = 0.4
    decay: Any = 0.95

    def init(self, key, model, population, data):
        params = model.init(key)
        return params, params, None

    def client_update(self, view, down, client, model):
        rate = self.decay**view.round
        theta = _full_batch(self.learning_rate, view, model, down.shared, rate)
        upload = view.upload(theta)
        return client, upload, {}

    def finish(self, ctx, server, clients):
        return jax.tree.map(lambda c, s: (c + s[None]) / 2, clients, server)

    def predictors(self, view, server, client, model):
        return {
            "global": base.model_predictor(model, server, view.data.constants),
            "personal": base.model_predictor(model, client, view.data.constants),
        }
