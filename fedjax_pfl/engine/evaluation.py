"""Evaluation of every predictor of a client, on its own and on other clients' data."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_pfl import core, local
from fedjax_pfl.core import (
    checks,
    client_map,
    client_rows,
    divided_examples,
    loops,
    sharding,
    struct,
)
from fedjax_pfl.engine import auto_execution, schedule
from fedjax_pfl.results.metrics import IN_UNITS
from fedjax_pfl.round.parts import model_state
from fedjax_pfl.round.process import FederatedProcess

__all__ = [
    "Tested",
    "Unseen",
    "collaboration",
    "courses",
    "evaluate",
    "metric_names",
    "predictor_names",
    "predictors_of",
    "unseen",
    "unseen_rule",
    "varies",
]

BATCH = 128
"""Examples per pass; bounds memory, not the result."""
CHUNK = 16
"""Most clients evaluated at once."""
MAX_PAIRS = 2000
"""Most clients for which weights of pairs are computed."""
UNSEEN_EPOCHS = 5
"""Local epochs of a client that never trained, if the method does not adapt it."""

_ONE_DEVICE = sharding.Execution()

Metrics = dict[str, jax.Array]
Predictor = Callable[[jax.Array], jax.Array]
Predictors = dict[str, Predictor]


def predictors_of(
    process: FederatedProcess,
    state: core.State,
    client: core.ClientState,
    model: core.Model,
    data: core.ClientData,
) -> tuple[Predictors, core.Key]:
    """Returns predictors of ONE client by name, and its evaluation key."""
    key = core.stream_key(state.key, core.Stream.EVALUATION, state.round)
    key = jax.random.fold_in(key, data.client_id)
    return process.predictors(key, state, client, model, data), key


def _means(
    predictors: Predictors,
    model: core.Model,
    gather: Callable[[jax.Array, jax.Array, core.Key], core.Batch],
    total: jax.Array,
    slots: int,
    key: core.Key,
) -> list[Metrics]:
    """Measures predictors, in alphabetical order, on `total` examples; NaN if none."""
    size = min(BATCH, slots)

    def of_batch(number: jax.Array):
        positions = number * size + jnp.arange(size)
        weight = _weight(positions, total)
        access = jax.random.fold_in(key, number)
        batch = gather(jnp.minimum(positions, slots - 1), weight, access)
        # All predictors see the same batch, which is gathered once.
        outputs = [predictors[name](batch.x) for name in sorted(predictors)]
        sums = [_sums(model, o, batch) for o in outputs]
        if not isinstance(model, core.RankedModel):
            return sums, [None] * len(sums)
        return sums, [model.metric_rows(o, batch) for o in outputs]

    batches = -(-slots // size)
    sums, rows = jax.eval_shape(of_batch, jnp.zeros((), jnp.int32))
    for leaf in jax.tree.leaves(rows):
        _check_rows(model, "metric_rows", leaf, size)
    no_rows = jax.tree.map(
        lambda s: jnp.zeros((batches * size, *s.shape[1:]), s.dtype), rows
    )
    no_sums = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), sums)

    def add(number: jax.Array, state: tuple[Any, Any]):
        def put(buffer: jax.Array, batch: jax.Array):
            return lax.dynamic_update_slice_in_dim(buffer, batch, number * size, axis=0)

        sums, rows = of_batch(number)
        added = jax.tree.map(lambda a, b: a + b, state[0], sums)
        return added, jax.tree.map(put, state[1], rows)

    # One bound for all lanes of a vmap: a bound for each would need selects.
    bound = client_map.lane_max(-(-total // size))
    sums, rows = loops.bounded(bound, batches, add, (no_sums, no_rows))
    weight = jnp.arange(batches * size) < total
    metrics = [
        _finished(model, s, r, total, weight) for s, r in zip(sums, rows, strict=True)
    ]
    return jax.tree.map(lambda v: jnp.where(total > 0, v, jnp.nan), metrics)


def _sums(model: core.Model, outputs: jax.Array, batch: core.Batch) -> tuple[Any, Any]:
    """Returns sums of a model's values per example, and its own sums."""
    totals = {}
    for name, values in model.metrics(outputs, batch).items():
        _check_rows(model, f"metrics, {name!r},", values, *batch.weight.shape)
        totals[name] = jnp.where(batch.weight > 0, values, 0).sum()
    is_summed = isinstance(model, core.SummedModel)
    return totals, model.metric_sums(outputs, batch) if is_summed else None


def _check_rows(model: core.Model, name: str, values: jax.Array, size: int) -> None:
    """Refuses values that are not one row per example of a batch."""
    shape = jnp.shape(values)
    form = "[B]" if name.startswith("metrics") else "[B, ...]"
    if shape[:1] != (size,) or (form == "[B]" and len(shape) > 1):
        raise checks.InputError(
            f"Expected {name} of {type(model).__name__} to have the shape {form}, a"
            f" value per example, got {[*shape]} for B = {size}."
        )


def _finished(
    model: core.Model, sums: tuple[Any, Any], rows: Any, total: jax.Array, weight: Any
) -> Metrics:
    """Returns means over examples, and metrics of a model's sums and rows."""
    count = jnp.maximum(total, 1)
    metrics = {n: v / count.astype(v.dtype) for n, v in sums[0].items()}
    hook_values = {}
    if isinstance(model, core.SummedModel):
        hook_values["finish_metrics"] = model.finish_metrics(sums[1], count)
    if isinstance(model, core.RankedModel):
        hook_values["finish_rows"] = model.finish_rows(rows, weight)
    for hook, values in hook_values.items():
        for name, value in values.items():
            if jnp.shape(value) or name in metrics:
                got = f"has the shape {[*jnp.shape(value)]}"
                if name in metrics:
                    got = "is measured already"
                raise checks.InputError(
                    f"Expected {hook} of {type(model).__name__} to return one number []"
                    f" by name for all examples, but {name!r} {got}."
                )
            metrics[name] = jnp.asarray(value, jnp.zeros(()).dtype)
    return metrics


def _client_means(
    predictors: Predictors,
    model: core.Model,
    data: core.ClientData,
    key: core.Key,
) -> list[Metrics]:
    """Measures predictors on one client's own examples."""

    def gather(positions: jax.Array, weight: jax.Array, key: core.Key) -> core.Batch:
        return data.gather(positions, weight, key=key)

    slots = data.index.shape[0]
    return _means(predictors, model, gather, data.num_examples, slots, key)


def _weight(positions: jax.Array, total: jax.Array) -> jax.Array:
    """Returns 1 for the first `total` positions, 0 for padding."""
    return (positions < total).astype(jnp.zeros(()).dtype)


def _series(
    judge: core.SequenceModel, predictors: Predictors, data: core.ClientData
) -> list[tuple[Metrics, Metrics]]:
    """Measures predictors on a client's series: metrics, and their course."""
    # Not in batches: outputs of one moment are inputs of the next.
    positions = jnp.arange(data.index.shape[0])
    batch = data.gather(positions, _weight(positions, data.num_examples))
    return [
        judge.sequence_metrics(predictors[name](batch.x), batch)
        for name in sorted(predictors)
    ]


def _pooled(rows: dict[str, Any]) -> tuple[dict[str, Any], jax.Array]:
    """Pools examples of several clients, each as a client of one, padding last."""
    owners, slots = rows["index"].shape
    real = jnp.arange(slots)[None, :] < rows["num_examples"][:, None]
    order = jnp.argsort(~real.reshape(-1), stable=True)

    def per_slot(leaf: jax.Array):
        return leaf.reshape(-1)[order][:, None]

    def per_owner(leaf: jax.Array):
        return jnp.broadcast_to(leaf[:, None], (owners, slots)).reshape(-1)[order]

    # Every example keeps the identity, and with it the noise, of its owner.
    single = {
        "index": per_slot(rows["index"]),
        "labels": None if rows["labels"] is None else per_slot(rows["labels"]),
        "num_examples": jnp.ones(order.shape, jnp.int32),
        "client_id": per_owner(rows["client_id"]),
        "noise_scale": jax.tree.map(per_owner, rows["noise_scale"]),
    }
    return single, real.sum()


def _sampled(rows: dict[str, Any], sample: jax.Array) -> dict[str, Any]:
    """Returns the examples `int32[T, 2]`, owner and number, each as a client of one."""
    owner, number = sample[:, 0], sample[:, 1]

    def per_slot(leaf: jax.Array):
        return leaf[owner, number][:, None]

    return {
        "index": per_slot(rows["index"]),
        "labels": jax.tree.map(per_slot, rows["labels"]),
        "num_examples": jnp.ones(owner.shape, jnp.int32),
        "client_id": rows["client_id"][owner],
        "noise_scale": client_rows.take(rows["noise_scale"], owner),
    }


def _pooled_means(
    predictors: Predictors,
    model: core.Model,
    pool: core.ClientData,
    examples: dict[str, Any],
    total: jax.Array,
    key: core.Key,
) -> list[Metrics]:
    """Measures predictors on the first `total` examples of `_pooled` or `_sampled`."""

    def gather(positions: jax.Array, weight: jax.Array, access: core.Key) -> core.Batch:
        chosen = client_rows.take(examples, positions)

        def one(row: core.Tree, weight: jax.Array, slot: jax.Array):
            data = pool.with_rows(row)
            # Resampled noise needs a key per slot: every example is a client of one.
            slot_key = jax.random.fold_in(access, slot)
            batch = data.gather(jnp.zeros(1, jnp.int32), weight[None], key=slot_key)
            return batch.x[0], batch.y[0]

        x, y = jax.vmap(one)(chosen, weight, jnp.arange(len(weight)))
        return core.Batch(x=x, y=y, weight=weight, constants=pool.constants)

    slots = examples["index"].shape[0]
    return _means(predictors, model, gather, total, slots, key)


def predictor_names(
    process: Any, state: core.State, model: core.Model, federation: core.Federation
) -> tuple[str, ...]:
    """Returns the names of the algorithm's predictors, without computing anything."""
    names: list[str] = []

    def trace(state: core.State, federation: core.Federation):
        federation = model_state.with_kept(state, model, federation)
        client, row = jax.tree.map(
            lambda leaf: leaf[0], (state.clients, federation.train.rows())
        )
        data = federation.train.pool().with_rows(row)
        names.extend(sorted(predictors_of(process, state, client, model, data)[0]))
        return jnp.zeros(())

    jax.eval_shape(trace, state, federation)
    return tuple(names)


def metric_names(
    process: Any, state: core.State, model: core.Model, federation: core.Federation
) -> tuple[str, ...]:
    """Returns the names of the metrics, without computing anything; see `evaluate`."""

    def trace(state: core.State, federation: core.Federation) -> Metrics:
        return evaluate(process, state, model, federation, data=("test",))[0]

    return tuple(jax.eval_shape(trace, state, federation))


@struct.pytree_dataclass
class Tested:
    """Rows of test examples of all clients, for models that are tested on others'.

    Attributes:
      clients: `int32[K]` rows of the clients to be evaluated.
      rows: rows of the test examples of all N clients.
    """

    clients: jax.Array
    rows: dict[str, Any]

    @classmethod
    def of(cls, federation: core.Federation) -> "Tested":
        """Takes all clients of a federation."""
        clients = jnp.arange(federation.num_clients, dtype=jnp.int32)
        return cls(clients=clients, rows=federation.test.rows())


def evaluate(
    process: FederatedProcess,
    state: core.State,
    model: core.Model,
    federation: core.Federation,
    *,
    data: tuple[str, ...] = ("test", "validation"),
    members: jax.Array | None = None,
    diagnostics: bool = False,
    execution: sharding.Execution = _ONE_DEVICE,
    tested: Tested | None = None,
) -> tuple[Metrics, Metrics]:
    """Returns metrics `[predictors, data, K]` of clients, and diagnostics `[]`."""
    # `data` names a client's own `train`, `validation` or `test` examples; `others`,
    # its own test examples and those of `federation.others`; `everybody`, all test
    # examples. `federation.samples` limits the last two. Means are over examples, NaN
    # without any. A federation of some clients needs `tested` for the last two.
    judge = model if isinstance(model, core.SequenceModel) else None
    _check_data(judge, data)
    federation = model_state.with_kept(state, model, federation)
    state = process.before_evaluation(state, model, federation)
    if tested is None:
        tested = Tested.of(federation)
    test_pool, test_rows = federation.test.pool(), tested.rows
    all_examples = None
    if "everybody" in data and federation.samples is None:
        all_examples = _pooled(test_rows)  # once, since all clients have the same

    pools = {n: getattr(federation, n).pool() for n in ("train", *_client_data(data))}
    server = state.at(None).with_memory(steps=None)
    # Devices that share all clients measure their own clients, on their own examples;
    # XLA divides all other cases.
    is_shared = members is None and set(data) == set(_client_data(data))
    is_shared &= sharding.divides(federation.num_clients, execution)

    def examples_of(name: str, fields: dict[str, Any]):
        if federation.samples is not None:
            return _sampled(test_rows, fields["samples"][name]), fields["num_test"]
        if all_examples is not None and name == "everybody":
            return all_examples
        rows = jnp.concatenate([fields["row"][None], fields["others"]])
        return _pooled(client_rows.take(test_rows, rows))

    def client_of(pools: dict[str, Any], name: str, fields: dict[str, Any]):
        pool = pools[name]
        is_part = is_shared and pool.num_parts > 1
        return divided_examples.client(pool, fields[name], is_part=is_part)

    def measure(
        predictors: Predictors,
        name: str,
        fields: dict[str, Any],
        pools: dict[str, Any],
        key: core.Key,
    ):
        if name in schedule.POOLED:
            examples = examples_of(name, fields)
            return _pooled_means(predictors, model, test_pool, *examples, key)
        client_data = client_of(pools, name, fields)
        if judge is not None:
            return [metrics for metrics, _ in _series(judge, predictors, client_data)]
        return _client_means(predictors, model, client_data, key)

    def one(fields: dict[str, Any], shared: tuple[Any, ...]):
        process, server, pools = shared
        train = client_of(pools, "train", fields)
        predictors, key = predictors_of(process, server, fields["state"], model, train)
        columns = [measure(predictors, name, fields, pools, key) for name in data]
        return _stack([_stack(list(row)) for row in zip(*columns, strict=True)])

    rows = _rows(state, federation, data, tested)
    if members is not None:
        rows = client_rows.take(rows, members)
    shared = (process, server, pools)
    chunk = _at_once(model, federation, data)
    metrics = _mapped(one, rows, shared, chunk, execution if is_shared else None)
    metrics = {name: jnp.moveaxis(value, 0, -1) for name, value in metrics.items()}
    metrics = _in_units(metrics, federation.test)
    values = {}
    if diagnostics:
        values = process.algorithm.diagnostics(state, model, federation)
    return metrics, values


def _in_units(metrics: Metrics, data: core.ClientData) -> Metrics:
    """Returns metrics, converted to units of the targets if these have units."""
    if data.target_units is None:
        return metrics
    return {
        name: value * data.target_units[1] if name in IN_UNITS else value
        for name, value in metrics.items()
    }


def _mapped(
    fn: Callable[[Any, Any], Any],
    rows: core.Tree,
    shared: tuple[Any, ...],
    chunk: int,
    execution: sharding.Execution | None,
) -> Any:
    """Maps over clients; with an execution, on the devices that own them."""
    if execution is None:
        return client_map.map_chunks(fn, rows, shared, chunk)
    division = sharding.Execution("shard", chunk, execution.num_devices)
    # The last shared value holds the pools, which devices may divide.
    *replicated, pools = shared
    pool_specs = {name: divided_examples.specs(pool) for name, pool in pools.items()}
    specs = (*[PartitionSpec()] * len(replicated), pool_specs)
    return client_map.map_clients(fn, rows, shared, division, shared_specs=specs)


def _at_once(
    model: core.Model, federation: core.Federation, data: tuple[str, ...]
) -> int:
    """Picks how many clients are evaluated at once."""
    slots = [getattr(federation, name).index.shape[1] for name in _client_data(data)]
    together = min(BATCH, max(slots, default=BATCH))
    return auto_execution.evaluated_at_once(model, federation, together, CHUNK)


def _client_data(data: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names of clients' own examples among data."""
    return tuple(name for name in data if name in ("train", "validation", "test"))


def _check_data(judge: core.SequenceModel | None, data: tuple[str, ...]) -> None:
    """Refuses examples of other clients for a model of sequences."""
    if judge is not None and schedule.POOLED & set(data):
        raise checks.InputError(
            f"A {type(judge).__name__} is judged on the client's own series, train,"
            f" validation or test, not on {', '.join(data)}."
        )


def _rows(
    state: core.State,
    federation: core.Federation,
    data: tuple[str, ...],
    tested: Tested,
) -> dict[str, Any]:
    """Collects the rows of all clients that an evaluation on these data reads."""
    rows: dict[str, Any] = {
        "state": state.clients,
        "row": tested.clients,
        "others": federation.others if "others" in data else None,
        "samples": federation.samples,
        "num_test": federation.test.num_examples,
    }
    for name in ("train", "validation", "test"):
        if name in data or name == "train":
            rows[name] = getattr(federation, name).rows()
    return rows


def collaboration(
    process: FederatedProcess, state: core.State, federation: core.Federation
) -> Metrics:
    """Returns weights `[N, N]` of receivers, `own_cluster [N]`; none beyond 2,000."""
    if federation.num_clients > MAX_PAIRS:
        return {}
    weights = process.algorithm.collaboration(state, federation)
    if weights is None:
        return {}
    if federation.cluster is None:
        return {"weights": weights}
    # The share of weight on other clients that lies in the own cluster; NaN without any
    # weight on others.
    pair_weights = jnp.where(jnp.eye(weights.shape[0], dtype=bool), 0, jnp.abs(weights))
    is_same_cluster = federation.cluster[:, None] == federation.cluster[None, :]
    total = pair_weights.sum(axis=1)
    cluster_sum = jnp.where(is_same_cluster, pair_weights, 0).sum(axis=1)
    share = jnp.where(total > 0, cluster_sum / jnp.where(total > 0, total, 1), jnp.nan)
    return {"weights": weights, "own_cluster": share}


def courses(
    process: Any, state: core.State, model: core.Model, federation: core.Federation
) -> Metrics:
    """Returns metrics `[predictors, N, T]` along test series; none of other models."""
    if not isinstance(model, core.SequenceModel):
        return {}
    judge = model
    state = process.before_evaluation(state, model, federation)

    def one(row: core.Tree, _: Any):
        client, train, test = row
        data = federation.train.pool().with_rows(train)
        predictors, _ = predictors_of(process, state, client, model, data)
        series = federation.test.pool().with_rows(test)
        return _stack([course for _, course in _series(judge, predictors, series)])

    rows = (state.clients, federation.train.rows(), federation.test.rows())
    curves = client_map.map_chunks(one, rows, None, CHUNK)
    return {name: jnp.moveaxis(value, 0, 1) for name, value in curves.items()}


def _stack(rows: list[Metrics]) -> Metrics:
    """Stacks metrics along a new leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)


@dataclasses.dataclass(frozen=True)
class Unseen:
    """Service of clients that never trained."""

    as_is: tuple[str, ...]  # predictors alike for all clients: the global one
    own: tuple[str, ...]  # predictors that the method adapts to training examples
    start: str | None = None  # of local work if `own` is empty
    work: str = ""  # in words

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models, with the way in which they were adapted."""
        names = (*self.as_is, *(f"{name} (own rule)" for name in self.own))
        if self.start is not None:
            names += (f"{self.start} + {self.work}",)
        return names


def _of_newcomer(
    process: FederatedProcess,
    state: core.State,
    model: core.Model,
    population: core.Population,
    data: core.ClientData,
) -> tuple[Predictors, core.ClientView]:
    """Returns predictors of ONE client in its first state, and its view."""
    single = data.with_rows(jax.tree.map(lambda leaf: leaf[None], data.rows()))
    clients = process.first_rows(state.key, model, population, single)[1]["clients"]
    single = process.with_first_kept(state.key, model, single)
    if (shared := state.memory.get("statistics")) is not None:
        single = single.with_statistics(shared=shared)
        data = data.with_statistics(shared=shared)
    client, row = jax.tree.map(lambda leaf: leaf[0], (clients, single.rows()))
    data = data.with_rows(row)
    predictors, key = predictors_of(process, state, client, model, data)
    return predictors, core.ClientView(key=key, round=state.round, data=data)


def varies(
    fn: Callable[..., Any], state: core.State, federation: core.Federation, name: str
) -> bool:
    """Returns whether values `vmap(..., out_axes=None)` differ between clients."""
    try:
        jax.eval_shape(lambda s, f: fn(s, f, name), state, federation)
    except ValueError:  # raised by vmap for values that depend on its axis
        return True
    return False


def unseen_rule(
    process: Any, state: core.State, model: core.Model, federation: core.Federation
) -> Unseen:
    """Returns how a method serves clients that never trained, from shapes."""
    assert federation.unseen is not None

    def output(state: core.State, federation: core.Federation, name: str):
        pool, population = federation.train.pool(), federation.population
        x = pool.x[:1]
        if not jnp.issubdtype(x.dtype, jnp.signedinteger):
            x = x.astype(jnp.zeros(()).dtype)

        def one(row: dict[str, Any]):
            data = pool.with_rows(row)
            predictors = _of_newcomer(process, state, model, population, data)[0]
            return predictors[name](x)

        assert federation.unseen is not None
        return jax.vmap(one, out_axes=None)(federation.unseen.train.rows())

    # A method adapts a predictor if outputs for newcomers depend on their examples.
    names = predictor_names(process, state, model, federation)
    adapted_names = tuple(n for n in names if varies(output, state, federation, n))
    as_is = tuple(
        name for name in names if name == "global" and name not in adapted_names
    )
    if adapted_names:
        return Unseen(as_is, adapted_names)
    start = next((n for n in ("global", "personal") if n in names), names[0])
    _check_start(process, state, model, federation, start)
    has_epochs = _few_epochs(process.algorithm).epochs is not None
    work = f"{UNSEEN_EPOCHS} local epochs" if has_epochs else "local work"
    return Unseen(as_is, adapted_names, start, work)


def _check_start(
    process: FederatedProcess,
    state: core.State,
    model: core.Model,
    federation: core.Federation,
    name: str,
) -> None:
    """Refuses a predictor that is not a network of the model, so cannot be trained."""
    is_network = []

    def look(state: core.State, federation: core.Federation):
        train = federation.train
        data = train.with_rows(jax.tree.map(lambda leaf: leaf[0], train.rows()))
        predictors = _of_newcomer(process, state, model, federation.population, data)[0]
        network = jax.eval_shape(model.init, state.key)
        predictor = predictors[name]
        params = predictor.params if isinstance(predictor, core.Predictor) else None
        shapes = [jax.tree.map(jnp.shape, tree) for tree in (network, params)]
        is_network.append(shapes[0] == shapes[1])
        return jnp.zeros(())

    jax.eval_shape(look, state, federation)
    if not is_network[-1]:
        raise checks.InputError(
            f"Expected a method that adapts to clients which never trained, or whose"
            f" {name} predictor has the model's parameters, got"
            f" {type(process.algorithm).__name__}; give unseen_fraction=0."
        )


def unseen(
    process: Any,
    state: core.State,
    model: core.Model,
    population: core.Population,
    newcomers: core.Federation,
    rule: Unseen,
) -> Metrics:
    """Returns metrics `[models, U]` of clients that never trained, on their tests."""
    solver = _few_epochs(process.algorithm)

    def one(row: tuple[Any, Any], _: None):
        train = newcomers.train.pool().with_rows(row[0])
        predictors, view = _of_newcomer(process, state, model, population, train)
        # Newcomers are in the first state, with the trained server. Without an adapted
        # predictor, `start` is trained for a few epochs by the method's solver.
        models = [predictors[name] for name in (*rule.as_is, *rule.own)]
        if rule.start is not None:
            start: Any = predictors[rule.start]
            params, _, info = solver.solve(view, local.DataLoss(model), start.params)
            params = local.whole(view, params, info)
            models.append(core.Predictor(start.apply, params))
        test = newcomers.test.pool().with_rows(row[1])
        order = {f"{k:04}": predictor for k, predictor in enumerate(models)}
        return _stack(_client_means(order, model, test, view.key))

    rows = (newcomers.train.rows(), newcomers.test.rows())
    chunk = _at_once(model, newcomers, ("test",))
    metrics = client_map.map_chunks(one, rows, None, chunk)
    metrics = {name: jnp.moveaxis(value, 0, -1) for name, value in metrics.items()}
    return _in_units(metrics, newcomers.test)


def _few_epochs(algorithm: Any) -> Any:
    """Returns the method's local solver, or SGD, with a few epochs."""
    solver = local.SGD() if algorithm.local is None else algorithm.local
    if solver.epochs is None:  # it ends by a tolerance
        return solver
    return dataclasses.replace(solver, epochs=UNSEEN_EPOCHS, num_steps=None)
