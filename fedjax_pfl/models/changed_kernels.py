"""Functions of matrices with low-rank changes, which are never added up."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from fedjax_pfl import core

__all__ = ["Changed", "call"]

_INLINED = ("closed_call", "jit", "pjit")


@dataclasses.dataclass(frozen=True, eq=False)
class Changed:
    """An array `[*first, *rest]` to which the product of two factors is to be added."""

    kernel: jax.Array
    left: jax.Array  # [*first, rank]
    right: jax.Array  # [rank, *rest]

    @property
    def cut(self) -> int:
        """Number of the first axes."""
        return self.left.ndim - 1

    def added(self) -> jax.Array:
        """Returns the sum `[*first, *rest]`."""
        return self.kernel + jnp.tensordot(self.left, self.right, axes=1)


def call(fn: Callable[..., Any], *args: core.Tree) -> core.Tree:
    """Calls a function of trees, of sums for `Changed` leaves, up to rounding."""
    leaves, structure = jax.tree.flatten(args, is_leaf=_is_changed)
    if not any(map(_is_changed, leaves)):
        return fn(*args)
    kernels = [leaf.kernel if _is_changed(leaf) else leaf for leaf in leaves]

    def flat(*leaves: jax.Array) -> core.Tree:
        return fn(*jax.tree.unflatten(structure, leaves))

    # Traced with unchanged kernels, which have the shapes of the sums.
    closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*kernels)
    outputs = map(_added, _evaluated(closed, leaves))
    return jax.tree.unflatten(jax.tree.structure(shapes), outputs)


def _is_changed(value: object) -> bool:
    return isinstance(value, Changed)


def _added(value: Any) -> jax.Array:
    """Returns the sum for a changed kernel, other leaves unchanged."""
    return value.added() if _is_changed(value) else value


def _evaluated(closed: ClosedJaxpr, args: list[Any]) -> list[Any]:
    """Evaluates a traced function, equation by equation."""
    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values |= dict(zip(closed.jaxpr.invars, args, strict=True))

    def value_of(variable: Any) -> Any:
        is_literal = hasattr(variable, "val")
        return variable.val if is_literal else values[variable]

    for equation in closed.jaxpr.eqns:
        operands = [value_of(variable) for variable in equation.invars]
        outputs = None
        if any(map(_is_changed, operands)):
            outputs = _with_factors(equation, operands)
        # Anything but matrix products, and convolutions with filters last, needs the
        # sum.
        if outputs is None:
            outputs = _bound(equation, list(map(_added, operands)))
        values |= dict(zip(equation.outvars, outputs, strict=True))
    return [value_of(variable) for variable in closed.jaxpr.outvars]


def _bound(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    """Evaluates one equation unchanged."""
    bound = equation.primitive.get_bind_params(equation.params)
    # Up to JAX 0.9 functions among the parameters come apart from the others.
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    outputs = equation.primitive.bind(*functions, *operands, **params)
    return outputs if equation.primitive.multiple_results else [outputs]


def _with_factors(equation: JaxprEqn, operands: list[Any]) -> list[Any] | None:
    """Evaluates an equation with the factors of its operands; None if it cannot."""
    name, params = equation.primitive.name, equation.params
    # Functions inside are evaluated in the same way.
    if name in _INLINED:
        return _evaluated(params.get("jaxpr") or params["call_jaxpr"], operands)
    operand, *extra = operands
    if name == "convert_element_type" and not extra:
        cast = (_bound(equation, [leaf])[0] for leaf in _parts(operand))
        return [Changed(*cast)]
    if name == "transpose" and operand.kernel.ndim == 2:
        kernel, left, right = _parts(operand)
        # (W + A B)^T = W^T + B^T A^T.
        return [Changed(kernel.T, right.T, left.T)]
    if name == "dot_general":
        return _product(equation, *operands)
    if name == "conv_general_dilated" and not _is_changed(operand):
        return _convolution(equation, *operands)
    return None


def _parts(changed: Changed) -> tuple[jax.Array, jax.Array, jax.Array]:
    return changed.kernel, changed.left, changed.right


def _product(equation: JaxprEqn, lhs: Any, rhs: Any) -> list[Any] | None:
    """Multiplies an array and a changed one, by way of the smaller products."""
    is_first = _is_changed(lhs)
    changed, x = (lhs, rhs) if is_first else (rhs, lhs)
    (contracted, batched) = equation.params["dimension_numbers"]
    kernel_axes, x_axes = contracted if is_first else contracted[::-1]
    axes, cut = sorted(kernel_axes), changed.cut
    last = list(range(cut, changed.kernel.ndim))
    if _is_changed(x) or any(batched) or axes not in (list(range(cut)), last):
        return None
    near, far = changed.left, changed.right
    if axes == last:  # the factor that meets x is the right one
        near, far = jnp.moveaxis(far, 0, -1), jnp.moveaxis(near, -1, 0)
        kernel_axes = [axis - cut for axis in kernel_axes]
    options = {
        name: equation.params[name] for name in ("precision", "preferred_element_type")
    }

    def multiply(
        a: jax.Array, b: jax.Array, of_a: Sequence[int], of_b: Sequence[int]
    ) -> jax.Array:
        return lax.dot_general(a, b, ((of_a, of_b), ((), ())), **options)

    # `x (W + A B)` is `x W + (x A) B`: under `vmap` over clients with changes of their
    # own, all clients share the first product, as W has no client axis.
    (product,) = _bound(equation, [_kernel_of(lhs), _kernel_of(rhs)])
    if is_first:
        narrow = multiply(near, x, kernel_axes, x_axes)  # [rank, ...]
        return [product + multiply(far, narrow, (0,), (0,))]
    narrow = multiply(x, near, x_axes, kernel_axes)  # [..., rank]
    return [product + multiply(narrow, far, (narrow.ndim - 1,), (0,))]


def _kernel_of(value: Any) -> Any:
    return value.kernel if _is_changed(value) else value


def _convolution(
    equation: JaxprEqn, x: jax.Array, changed: Changed
) -> list[Any] | None:
    """Convolves with as few filters as the rank, and combines their outputs."""
    params, filters = equation.params, changed.kernel.ndim - 1
    numbers = params["dimension_numbers"]
    is_grouped = math.prod(params[f"{n}_group_count"] for n in ("feature", "batch")) > 1
    features_last = numbers.rhs_spec[0] == numbers.out_spec[1] == filters
    if is_grouped or changed.cut != filters or not features_last:
        return None
    (output,) = _bound(equation, [x, changed.kernel])
    # A convolution with A, then a product with B: filters are the last axis.
    (narrow,) = _bound(equation, [x, changed.left])
    change = jnp.tensordot(narrow, changed.right, 1, precision=params["precision"])
    return [output + change]
