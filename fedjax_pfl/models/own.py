"""Models made of networks without references to this package, and of functions."""

import abc
import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks, statistics, struct, tree_paths
from fedjax_pfl.models import inputs, objectives

__all__ = ["FunctionModel", "OwnModel", "from_functions"]

_HEAD = "head"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnModel(objectives.Supervised):
    """A network of the user's, as a model; abstract.

    If the federation has classes, outputs are logits `[B, C]`, judged as in
    `Classification`; else they are numbers `[B]` or `[B, 1]`, judged as in
    `Regression`. Parameters have the floating type of the run.

    Attributes:
      head: regular expression searched in the names of parameters; matches are
        moved below `head/` for methods with personal heads; None leaves them.
      input_shape: shape of one input, or None until `for_federation`.
      input_dtype: its type, or None until `for_federation`.
      num_classes: C, or None for targets that are numbers.
    """

    head: str | None = None
    input_shape: tuple[int, ...] | None = struct.static_field(default=None, at_least=1)
    input_dtype: str | None = None
    num_classes: int | None = struct.static_field(default=None, at_least=1)

    def __post_init__(self):
        super().__post_init__()
        if self.head is not None:
            tree_paths.check_pattern("head", self.head)

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Name of the network, for messages."""

    @abc.abstractmethod
    def _variables(self, key: core.Key, x: jax.Array) -> core.Params:
        """Draws parameters for `x [1, ...]`, as in `statistics.joined`."""

    def for_federation(self, federation: core.Federation) -> Self:
        """Returns the model with the federation's shapes, once it fits them."""
        inputs.targets_of(self, federation)
        dtype = federation.train.x.dtype
        if not inputs.are_tokens(federation):
            dtype = jnp.zeros(()).dtype
        model = dataclasses.replace(
            self,
            input_shape=federation.input_shape,
            input_dtype=str(dtype),
            num_classes=federation.num_classes,
        )
        model._check(federation)
        return model

    def _zeros(self, count: int = 1) -> jax.Array:
        """Returns inputs `[count, ...]` of zeros."""
        if self.input_shape is None:
            raise checks.InputError("Expected input_shape; call for_federation.")
        return jnp.zeros((count, *self.input_shape), self.input_dtype)

    def _check(self, federation: core.Federation) -> None:
        """Refuses a network that does not fit the data, or parameters of another."""
        # Two examples, since one hides outputs without an axis of the batch.
        key, x = core.seed_key(0), self._zeros(2)
        constants = core.Constants(
            given=federation.train.constants, weight=jnp.ones(len(x))
        )
        try:
            variables, _ = statistics.split(jax.eval_shape(self._variables, key, x[:1]))
            # A network may compute something else in training.
            for mode in (None, key):
                outputs = jax.eval_shape(self._trial, key, x, mode, constants)
        except checks.InputError as error:
            raise checks.InputError(str(error)) from None  # without JAX's notes
        except Exception as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise checks.InputError(
                f"Expected {self.name} to take inputs {self.input_dtype}"
                f"{[len(x), *x.shape[1:]]} of {federation.name!r}, but it raised"
                f" {type(error).__name__}: {reason}."
            ) from error
        self._check_params(variables)
        shape, target = tuple(getattr(outputs, "shape", ())), "[B] or [B, 1]"
        fits = shape in ((2,), (2, 1))
        if (classes := federation.num_classes) is not None:
            target = f"[B, {classes}], a logit per class of {federation.name!r},"
            fits = len(shape) == 2 and shape[0] == 2 and shape[1] >= classes
        if not fits:
            raise checks.InputError(
                f"Expected {self.name} to map inputs [B, ...] to {target} got"
                f" {[*shape]} for B = 2."
            )

    def _trial(
        self,
        key: core.Key,
        x: jax.Array,
        mode: core.Key | None,
        constants: core.Constants,
    ) -> core.Tree:
        """Runs the network once, with its draws in the floating type of the run."""
        variables = jax.tree.map(_of_run, self._variables(key, x[:1]))
        params, running = statistics.split(variables)
        constants = dataclasses.replace(constants, statistics=running)
        return self._call(objectives.Call(params, x, mode, constants))[0]

    def _check_params(self, params: core.Params) -> None:
        """Refuses parameters that cannot be trained or cut."""
        leaves = tree_paths.by_name(params)
        if not leaves:
            raise checks.InputError(f"Expected {self.name} to have parameters.")
        for name, leaf in leaves.items():
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise checks.InputError(
                    f"Expected parameters of floating-point numbers, but {name!r} of"
                    f" {self.name} is {leaf.dtype}."
                )
        if self.head is not None:
            tree_paths.head_and_body(params, self.head)
            _packed(params, self.head)

    def _draw(self, key: core.Key) -> core.Params:
        return self._variables(key, self._zeros())

    def init(self, key: core.Key) -> core.Params:
        """Draws the parameters, or returns those to start from."""
        dtype = jnp.zeros(()).dtype
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), super().init(key))
        return params if self.head is None else _packed(params, self.head)

    def own_params(self, params: core.Params) -> core.Params:
        """Returns parameters as the network itself names them."""
        if self.head is None:
            return params
        leaves = _leaves(params)
        # The slice leaves out a first name `head`: True counts as 1.
        return tree_paths.nested((p[p[0] == _HEAD :], leaf) for p, leaf in leaves)


def _of_run(leaf: jax.Array) -> jax.Array:
    """Returns an array in the floating type of the run, if it has one."""
    is_floating = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    return jnp.asarray(leaf, jnp.zeros(()).dtype if is_floating else None)


def _leaves(params: core.Params) -> list[tuple[list[str], Any]]:
    """Returns the paths and the leaves of nested dictionaries."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for path, _ in leaves:
        if not path or not all(isinstance(k, jax.tree_util.DictKey) for k in path):
            raise checks.InputError(
                "Expected parameters in nested dictionaries, whose head can be named,"
                f" got {type(params).__name__} with {jax.tree_util.keystr(path)!r}."
            )
    return [([str(key.key) for key in path], leaf) for path, leaf in leaves]


def _packed(params: core.Params, head: str) -> dict[str, Any]:
    """Moves the leaves with matching names below `head`."""
    entries = []
    for path, leaf in _leaves(params):
        if re.search(head, "/".join(path)):
            path = [_HEAD, *path]
        elif path[0] == _HEAD:
            raise checks.InputError(
                f"Expected head={head!r} to match every parameter below 'head/', the"
                f" place of heads, but not {'/'.join(path)!r}."
            )
        entries.append((path, leaf))
    return tree_paths.nested(entries)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FunctionModel(OwnModel):
    """A network of two functions; see `from_functions`."""

    draw: Callable[..., Any]  # (key) or (key, x) to parameters
    call: Callable[..., Any]  # (parameters, x) to outputs

    @property
    def name(self) -> str:
        """Name of the function that is applied."""
        return getattr(self.call, "__name__", type(self.call).__name__)

    def _variables(self, key: core.Key, x: jax.Array) -> core.Params:
        names = inspect.signature(self.draw).parameters.values()
        needed = [p for p in names if p.default is p.empty and p.kind < p.KEYWORD_ONLY]
        # A second argument without default is the input.
        params = self.draw(key, x) if len(needed) > 1 else self.draw(key)
        if statistics.split(params)[1] is not None:
            raise checks.InputError(
                f"Expected parameters of {self.name} without the name"
                f" {statistics.NAME!r}, which running statistics of flax modules have."
            )
        return params

    def _call(self, call: objectives.Call) -> tuple[Any, None]:
        names = inspect.signature(self.call).parameters
        arguments = {"key": call.key, "constants": call.constants.given}
        options = {name: value for name, value in arguments.items() if name in names}
        return self.call(call.params, call.x, **options), None


def from_functions(
    init: Callable[..., Any],
    apply: Callable[..., Any],
    *,
    initial_params: core.Params = None,
    head: str | None = None,
) -> FunctionModel:
    """Makes a model of two functions, of any library.

    Args:
      init: `(key) -> params` or `(key, x) -> params`, with `x [1, ...]` an input of
        zeros; `params` is any tree of floating-point arrays.
      apply: `(params, x) -> outputs` for inputs `[B, ...]`: logits `[B, C]` if the
        federation has classes, else numbers `[B]`. With an argument `key` it gets a key
        in training and None in evaluation; with `constants`, the federation's.
      initial_params: parameters from which every training starts, or None to draw them.
      head: regular expression searched in the names of parameters: the part that
        methods with personal heads keep at the client. None if it is named `head`.

    Returns:
      The model, for any method, `simulate` and `grid`.

    Raises:
      InputError: if an argument does not fit, in one sentence.

    Example:
      >>> import jax.numpy as jnp
      >>> model = from_functions(
      ...     init=lambda key, x: {"w": jnp.zeros((x.shape[1], 3))},
      ...     apply=lambda params, x: x @ params["w"],
      ... )
      >>> model.name
      '<lambda>'
    """
    for role, function in (("init", init), ("apply", apply)):
        # A class is callable, too, but returns objects.
        if not callable(function) or isinstance(function, type):
            raise checks.InputError(
                f"Expected {role} to be a function, got {checks.shown(function)}."
            )
    return FunctionModel(
        draw=init, call=apply, initial_params=initial_params, head=head
    )
