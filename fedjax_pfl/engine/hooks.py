"""Error messages for hooks with wrong results, in place of JAX's tracebacks.

Only when a program cannot be traced, each hook is traced by itself.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks
from fedjax_pfl.engine import groups
from fedjax_pfl.round.parts import model_state
from fedjax_pfl.round.process import FederatedProcess

__all__ = ["check", "check_cohort", "explained"]

_HOOK_ERRORS = (TypeError, ValueError, AttributeError, LookupError)
_NAMES = 4  # most entries of a tree that a message names


@contextlib.contextmanager
def explained(group: groups.Group) -> Iterator[None]:
    """Replaces an error that a hook's result has caused by a clear message."""
    try:
        yield
    except checks.InputError:
        raise
    except _HOOK_ERRORS as error:
        sentence = _refusal(group)
        if sentence is None:
            raise
        raise sentence from error


def _refusal(group: groups.Group) -> checks.InputError | None:
    """Returns the error about the first hook that does not fit, or None."""
    # JAX reports a wrong result far from its hook: the first hook that does not fit is
    # found in the order of a round.
    process, federation = group.processes[0], group.federations[0]
    try:
        check(process, group.model.for_federation(federation), federation)
    except checks.InputError as sentence:
        return sentence
    except Exception:  # in a hook: its own traceback is more useful
        return None
    return None


def check(process: FederatedProcess, model: Any, federation: core.Federation) -> None:
    """Traces every hook by itself, in the order of a round."""
    key = jax.random.key(0)
    train = jax.eval_shape(
        lambda train: process.with_first_kept(key, model, train), federation.train
    )
    _check_model(model, train)
    _Round(process, model, federation, train).check()


def _traced(hook: Callable[..., Any], *inputs: Any) -> Any:
    """Returns a hook's result, of any kind, with shapes in place of arrays."""
    results = []

    def run(*arguments: Any) -> int:
        results.append(hook(*arguments))
        return 0

    jax.eval_shape(run, *inputs)
    return results[0]


def _shapes(tree: core.Tree) -> core.Tree:
    """Returns a tree with shapes in place of arrays and numbers."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree
    )


def _first_client(train: core.ClientData) -> core.ClientData:
    """Returns the examples of the first client."""
    return train.pool().with_rows(jax.tree.map(lambda leaf: leaf[0], train.rows()))


def _text(value: Any) -> str:
    """Describes a hook's result."""
    if value is None:
        return "None"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{jnp.dtype(value.dtype)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, tuple):
        return f"{len(value)} values"
    if isinstance(value, dict):
        names = [repr(name) for name in value][:_NAMES]
        ellipsis = ", ..." * (len(value) > _NAMES)
        return (
            f"a dictionary of {', '.join(names)}{ellipsis}"
            if names
            else "an empty dictionary"
        )
    return f"an object of the class {type(value).__name__}"


def _difference(result: core.Tree, template: core.Tree) -> str | None:
    """Describes the first place where two trees differ, or None."""
    if jax.tree.structure(result) != jax.tree.structure(template):
        return f"{_text(result)} in place of {_text(template)}"
    leaves = jax.tree_util.tree_leaves_with_path(_shapes(result))
    for (path, leaf), target in zip(leaves, jax.tree.leaves(template), strict=True):
        if leaf.shape != target.shape:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            at = f" at {name!r}" if name else ""
            return f"{_text(leaf)} in place of {_text(target)}{at}"
    return None


def _check_model(model: core.Model, train: core.ClientData) -> None:
    """Refuses a model if its loss is no number, or its metrics are no dictionary."""
    if isinstance(model, core.SequenceModel):  # its inputs need a carry
        return
    name = type(model).__name__
    params = _shapes(_traced(model.init, jax.random.key(0)))

    def measured(params: core.Params, train: core.ClientData) -> tuple[Any, Any]:
        data = _first_client(train)
        positions = jnp.arange(2, dtype=jnp.int32) % data.index.shape[0]
        batch = data.gather(positions, jnp.ones(2))
        outputs = model.apply(params, batch.x, constants=data.constants)
        return model.loss(outputs, batch), model.metrics(outputs, batch)

    loss, metrics = _traced(measured, params, train)
    if jnp.shape(loss) != ():
        raise checks.InputError(
            f"Expected loss of {name} to return the mean over a batch, one number, got"
            f" {_text(loss)} for a batch of 2."
        )
    if not isinstance(metrics, dict) or "loss" not in metrics:
        raise checks.InputError(
            f"Expected metrics of {name} to return a dictionary of arrays [B] with"
            f" 'loss' among them, got {_text(metrics)}."
        )


def check_cohort(process: FederatedProcess, num_clients: int) -> None:
    """Refuses a cohort with another size than `cohort_size` returns."""
    participation = process.participation
    size = participation.cohort_size(num_clients)
    round = jax.ShapeDtypeStruct((), jnp.int32)
    rows = _traced(
        lambda key, round: participation.in_round(key, num_clients, round),
        jax.random.key(0),
        round,
    )
    if jnp.shape(rows) != (size,):
        raise checks.InputError(
            f"Expected {type(participation).__name__} to draw as many clients as its"
            f" cohort_size says, int32[{size}], got {_text(rows)}."
        )


class _Round:
    """The hooks of a round, each traced with the results of earlier hooks."""

    def __init__(
        self,
        process: FederatedProcess,
        model: core.Model,
        federation: core.Federation,
        train: core.ClientData,
    ):
        self._process, self._model = process, model
        self._method = process.algorithm
        self._name = type(process.algorithm).__name__
        self._train, self._population = train, federation.population
        self._num_clients = federation.num_clients
        self._size = process.participation.cohort_size(federation.num_clients)

    def check(self) -> None:
        """Traces the hooks in their order."""
        server, client, message = self._first()
        if self._method.is_usual:
            server, message = self._exchange(server, client, message)
        self._predict(server, client)
        if message is not None:
            self._attack(message)

    def _expected(self, hook: str, form: str, result: str) -> checks.InputError:
        """Returns the error about a hook."""
        return checks.InputError(
            f"Expected {hook} of {self._name} to return {form}, got {result}."
        )

    def _rows(self, tree: core.Tree, count: int) -> core.Tree:
        """Returns shapes of rows `[count, ...]` of clients."""
        return jax.tree.map(
            lambda s: jax.ShapeDtypeStruct((count, *s.shape), s.dtype), tree
        )

    def _view(self, key: core.Key, train: core.ClientData) -> core.ClientView:
        """Returns the view of the first client."""
        data = _first_client(train)
        return core.ClientView(key=key, round=jnp.zeros((), jnp.int32), data=data)

    def _first(self) -> tuple[Any, Any, Any]:
        """Checks `first` or `init`; returns shapes of their values."""

        def start(key: core.Key, train: core.ClientData) -> Any:
            model = model_state.started(self._model, train)
            data = self._view(key, train).data
            return self._method.init(key, model, self._population, data)

        values = _traced(start, jax.random.key(0), self._train)
        if not isinstance(values, tuple) or len(values) != 3:
            form = "three values, (server, client, message), with None for"
            form += " those that are not needed"
            raise self._expected("init (or first)", form, _text(values))
        server, client, message = map(_shapes, values)
        return server, client, message

    def _exchange(self, server: Any, client: Any, message: Any) -> tuple[Any, Any]:
        """Checks the hooks of the exchange; returns the server and a message."""
        method, count = self._method, self._size
        read = self._num_clients if method.reads == "all" else count

        def ctx(key: core.Key) -> core.RoundContext:
            return core.RoundContext(
                key=key,
                round=jnp.zeros((), jnp.int32),
                cohort=jnp.arange(count, dtype=jnp.int32),
                num_clients=self._num_clients,
            )

        key = jax.random.key(0)
        rows = (self._rows(client, read), self._rows(message, read))
        down = _traced(
            lambda key, *args: method.down(ctx(key), *args), key, server, *rows
        )
        if not isinstance(down, core.Downlink):
            form = "a Downlink, such as core.Downlink(shared=server)"
            raise self._expected("down", form, _text(down))
        # A client gets its own row only.
        down = dataclasses.replace(
            _shapes(down),
            per_client=jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype),
                _shapes(down.per_client),
            ),
        )
        reference = _shapes(_traced(method.reference, server))
        upload = self._work(down, client, reference)
        uploads = self._rows(_shapes(upload), count)
        aggregate = self._aggregate(uploads, reference)
        new = _traced(
            lambda key, *args: method.server_update(ctx(key), *args),
            *(key, server, aggregate, uploads),
        )
        if text := _difference(new, server):
            form = "a server state like the one before"
            raise self._expected("server_update", form, text)
        return server, _shapes(upload.message)

    def _work(self, down: Any, client: Any, reference: core.Params) -> core.Upload:
        """Checks `client_update`; returns the upload."""
        method, hook = self._method, "client_update"
        values = _traced(
            lambda key, train, down, client: method.client_update(
                self._view(key, train), down, client, self._model
            ),
            *(jax.random.key(0), self._train, down, client),
        )
        # Each check reads what the one before it has found to be there.
        if not isinstance(values, tuple) or len(values) != 3:
            form = "three values, (client, upload, report)"
            raise self._expected(hook, form, _text(values))
        new, upload, report = values
        if not isinstance(upload, core.Upload):
            form = "the result of view.upload(message) as its second value"
            raise self._expected(hook, form, _text(upload))
        if text := _difference(new, client):
            form = "a client state like the one that it received"
            raise self._expected(hook, form, text)
        if text := _difference(upload.message, reference):
            raise checks.InputError(
                f"Expected {hook} of {self._name} to upload a message like its"
                f" `reference`, by default the server's state, got {text}. A solver"
                " returns three values: params, context, info."
            )
        values = report.values if isinstance(report, core.Report) else report
        if not isinstance(values, dict):
            form = "as its third value a report, a dictionary of numbers []"
            raise self._expected(hook, form, _text(report))
        for name, value in values.items():
            if jnp.shape(value) != ():
                form = f"one number [] as {name!r} of its report"
                raise self._expected(hook, form, _text(value))
        return upload

    def _aggregate(self, uploads: core.Upload, reference: core.Params) -> core.Tree:
        """Checks the aggregator, if the method has one; returns the aggregate."""
        if not self._method.aggregates:
            return None
        rule = self._process.used_aggregator()
        values = _traced(
            rule, jax.random.key(0), uploads.message, uploads.weight, reference
        )
        return _first_of_pair(
            *(rule, values, "aggregate, info"),
            *(reference, "an aggregate like one message"),
        )

    def _predict(self, server: core.ServerState, client: core.ClientState) -> None:
        """Checks `parameters`, or `predictors` if a method defines them."""
        method = self._method
        hook, form = "parameters", "a dictionary of parameters by name"
        try:
            values = _traced(method.parameters, server, client)
        except NotImplementedError:
            hook, form = "predictors", "a dictionary of functions by name"
            values = _traced(
                lambda key, train, server, client: method.predictors(
                    self._view(key, train), server, client, self._model
                ),
                *(jax.random.key(0), self._train, server, client),
            )
        if not isinstance(values, dict) or not values:
            form += ', such as {"global": server}' * (hook == "parameters")
            raise self._expected(hook, form, _text(values))

    def _attack(self, message: core.Message) -> None:
        """Checks the attack, if there is one."""
        attack = self._process.attack
        if attack is None:
            return
        messages = self._rows(message, self._size)
        state = _traced(attack.init, self._rows(message, self._num_clients))
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), self._size))
        values = _traced(
            attack,
            *(keys, _shapes(state), messages),
            *(jax.ShapeDtypeStruct((self._size,), bool), message),
        )
        _first_of_pair(
            *(attack, values, "messages, state"),
            *(messages, "messages like those that it received"),
        )


def _first_of_pair(part: Any, values: Any, names: str, template: Any, form: str) -> Any:
    """Returns shapes of the first of two values that a part has returned."""
    part = type(part).__name__
    if not isinstance(values, tuple) or len(values) != 2:
        raise checks.InputError(
            f"Expected {part} to return two values, ({names}), got {_text(values)}."
        )
    if text := _difference(values[0], template):
        raise checks.InputError(f"Expected {part} to return {form}, got {text}.")
    return _shapes(values[0])
