"""Low-rank adapters: small trained changes of the large matrices of a network.

A kernel W of `in` inputs and `out` outputs becomes `W + scale A B`, with A `[in, rank]`
drawn at random and B `[rank, out]` zero, so that the network is exactly the one without
adapters at the start.

Reference: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
There `scale` is called alpha over rank.
"""

import dataclasses
import math
import re
from typing import Any, Self

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks, statistics, struct, tree_paths
from fedjax_pfl.models import changed_kernels, roles

__all__ = ["ADAPTERS", "LowRank", "lora"]

_ADAPTERS = "adapters"
ADAPTERS = f"^{_ADAPTERS}/"
"""Pattern that finds the factors."""
_STREAM = 0x10A  # of the factors' draws


@dataclasses.dataclass(frozen=True)
class LowRank(roles.Wrapped):
    """A model with adapters; see `lora`, which freezes its other parameters.

    Parameters are the model's own, and `adapters/<name of a kernel>/a` and `.../b`.

    Attributes:
      model: any model with parameters in nested dictionaries.
      targets: regular expression searched in the names of parameters; matches have
        adapters, except vectors and biases.
      rank: columns of A, at least 1.
      scale: factor of the product A B.
      ranks: number of columns of A, the first ones, of every client, from 1 to `rank`;
        None for all columns.
    """

    model: Any = dataclasses.field(metadata=struct.inner("adapters"))
    targets: str
    rank: int = struct.static_field(default=8, at_least=1)
    scale: float = struct.traced_field(default=1.0)
    ranks: tuple[int, ...] | None = struct.static_field(default=None, at_least=1)

    def __post_init__(self):
        roles.check_model("adapters", self.model)
        tree_paths.check_pattern("targets", self.targets)
        struct.check_fields(self)
        for rank in self.ranks or ():
            checks.whole("every one of ranks", rank, at_least=1, at_most=self.rank)

    def for_federation(self, federation: core.Federation) -> Self:
        """Returns the model with the federation's shapes, once the targets fit it.

        Raises:
          InputError: if the targets find no kernel, or one that is smaller than the
            rank, or if there are not as many ranks as clients.
        """
        if self.ranks is not None and len(self.ranks) != federation.num_clients:
            raise checks.InputError(
                f"Expected ranks for the {federation.num_clients} clients of"
                f" {federation.name!r}, got {len(self.ranks)}."
            )
        model = dataclasses.replace(self, model=self.model.for_federation(federation))
        model.check_start()
        # Shapes are enough to check names and ranks.
        params = jax.eval_shape(model.model.init, core.seed_key(0))
        if not isinstance(params, dict) or _ADAPTERS in params:
            raise checks.InputError(
                "Expected a model for adapters whose parameters are nested dictionaries"
                f" without {_ADAPTERS!r}, got {', '.join(tree_paths.by_name(params))}."
            )
        kernels = model._kernels(params)
        if not kernels:
            raise checks.InputError(
                f"Expected targets={self.targets!r} to match some of the model's"
                f" kernels among {', '.join(tree_paths.by_name(params))}."
            )
        for name, kernel in kernels.items():
            if self.rank > min(model._sizes(kernel)):
                raise checks.InputError(
                    f"Expected a rank of at most {min(model._sizes(kernel))}, the"
                    f" smaller side of {name!r} {[*kernel.shape]}, got {self.rank}."
                )
        return model

    def _kernels(self, params: core.Params) -> dict[str, Any]:
        """Returns the parameters that have adapters, by name."""
        return {
            name: leaf
            for name, leaf in tree_paths.by_name(params).items()
            if re.search(self.targets, name)
            and leaf.ndim > 1
            and not name.endswith("bias")  # biases of attention have an axis of heads
        }

    def _is_transposed(self, kernel: jax.Array) -> bool:
        """Returns whether outputs come first."""
        return kernel.ndim == 2 and self.model.outputs_first

    def _cut(self, kernel: jax.Array) -> int:
        """Returns the number of axes before the cut between inputs and outputs."""
        last = kernel.ndim - 1
        if kernel.ndim != 3:
            return last

        def smaller(cut: int) -> int:
            return min(math.prod(kernel.shape[:cut]), math.prod(kernel.shape[cut:]))

        # Of three axes, as of attention heads, the cut with the largest smaller side.
        return max((last, 1), key=smaller)

    def _sizes(self, kernel: jax.Array) -> tuple[int, int]:
        """Returns numbers of inputs and of outputs."""
        if self._is_transposed(kernel):
            return kernel.shape[1], kernel.shape[0]
        cut = self._cut(kernel)
        return math.prod(kernel.shape[:cut]), math.prod(kernel.shape[cut:])

    def init(self, key: core.Key) -> core.Params:
        """Draws the model's parameters, A uniform in +-1/sqrt(in); B is zero."""
        params = self.model.init(key)
        key, adapters = jax.random.fold_in(key, _STREAM), []
        for number, (name, kernel) in enumerate(self._kernels(params).items()):
            inputs, outputs = self._sizes(kernel)
            bound, a_key = inputs**-0.5, jax.random.fold_in(key, number)
            a = jax.random.uniform(
                a_key, (inputs, self.rank), kernel.dtype, minval=-bound, maxval=bound
            )
            path = name.split("/")
            adapters.append(((*path, "a"), a))
            # Zero: the network starts as the one without adapters.
            adapters.append(((*path, "b"), jnp.zeros((self.rank, outputs), a.dtype)))
        return params | {_ADAPTERS: tree_paths.nested(adapters)}

    def at_rank(self, params: core.Params, rank: jax.Array) -> core.Params:
        """Returns parameters with zeros beyond the first columns of every A.

        Neither these columns nor their rows of B have a gradient then.

        Args:
          params: of ONE client.
          rank: `int32[]` number of columns.
        """

        def cut(name: str, leaf: jax.Array) -> jax.Array:
            if not name.endswith("/a"):
                return leaf
            return jnp.where((jnp.arange(self.rank) < rank)[None], leaf, 0)

        factors = params[_ADAPTERS]
        factors = jax.tree.map(cut, tree_paths.names(factors), factors)
        return params | {_ADAPTERS: factors}

    def _changed(self, params: core.Params) -> core.Tree:
        """Returns the model's own parameters, with changes for those with adapters."""
        base = {name: part for name, part in params.items() if name != _ADAPTERS}
        factors = tree_paths.by_name(params[_ADAPTERS])

        def with_change(name: str, kernel: jax.Array) -> core.Tree:
            a, b = (factors.get(f"{name}/{part}") for part in ("a", "b"))
            if a is None or b is None:
                return kernel
            if self._is_transposed(kernel):
                # A kernel `[out, in]` is W^T, and its change (A B)^T.
                return changed_kernels.Changed(kernel, self.scale * b.T, a.T)
            cut = self._cut(kernel)
            left = a.reshape(*kernel.shape[:cut], self.rank)
            right = (self.scale * b).reshape(self.rank, *kernel.shape[cut:])
            return changed_kernels.Changed(kernel, left, right)

        return jax.tree.map(with_change, tree_paths.names(base), base)

    def merged(self, params: core.Params) -> core.Params:
        """Returns the model's own parameters with the adapters added to them."""
        return jax.tree.map(
            lambda leaf: getattr(leaf, "added", lambda: leaf)(), self._changed(params)
        )

    def _inner(self, params: core.Params, constants: core.Tree) -> tuple[Any, Any]:
        # Statistics are no kernels: they go to the constants.
        if statistics.split(params)[1] is not None:
            params, constants = statistics.taken(params, constants)
        # Kernels and their changes are not added up.
        return self._changed(params), constants

    def check_start(self) -> None:
        """Refuses initial parameters that do not fit the model."""
        self.model.check_start()


def lora(
    model: core.Model,
    *,
    targets: str,
    rank: int = 8,
    scale: float = 1.0,
    ranks: tuple[int, ...] | None = None,
    trained: str | None = None,
    personal: str | None = None,
    seed: int = 0,
) -> roles.ParameterRoles:
    """Gives a model low-rank adapters, and freezes its other parameters.

    Args:
      model: ours, or of `from_flax` or `from_functions`, with `initial_params` if it is
        pretrained.
      targets: regular expression searched in the names of parameters: the dense and
        convolution kernels that get adapters, such as `"query|value"`.
      rank: columns of A, at least 1.
      scale: factor of the product A B.
      ranks: number of columns of A, the first ones, of every client, from 1 to `rank`;
        None for all columns.
      trained: pattern of the model's own parameters that are trained directly, such
        as `"^head/"`, or None.
      personal: pattern of parameters of the client, such as `"^adapters/"`, or None;
        see `ParameterRoles`.
      seed: see `ParameterRoles`.

    Returns:
      The model; its `merged` turns trained parameters into those of the network.

    Raises:
      InputError: if an argument does not fit, in one sentence.

    Example:
      >>> import fedjax_pfl as fp
      >>> model = lora(fp.MLP(widths=(64,)), targets="^hidden_0/", rank=4)
      >>> model.model.rank
      4
    """
    # Adapters are trained in any case.
    pattern = ADAPTERS
    if trained is not None:
        tree_paths.check_pattern("trained", trained)
        pattern += f"|(?:{trained})"
    adapted = LowRank(model=model, targets=targets, rank=rank, scale=scale, ranks=ranks)
    return roles.ParameterRoles(adapted, personal=personal, trained=pattern, seed=seed)
