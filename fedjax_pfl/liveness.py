"""The most bytes that a traced program holds at once, before it is compiled.

Walking through its equations tells which values exist at the same time. What XLA makes
of them is modelled coarsely:

* element-wise results are fused into the element-wise operation or reduction that reads
  them, if that is one only; changes of shape are free;
* donated arguments, the carries of loops and values that are read for the last time are
  overwritten;
* what nobody reads is not computed.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
from jax.extend import core

__all__ = ["Listing", "Op", "inner_programs", "peak_bytes", "tree_bytes"]

_FUSED = frozenset(
    "abs add add_any and atan2 broadcast_in_dim cbrt ceil clamp convert_element_type "
    "cos cosh div eq erf erf_inv exp exp2 expm1 floor ge gt integer_pow iota is_finite "
    "le log log1p logistic lt max min mul ne neg not or pad pow rem rev round rsqrt "
    "select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt "
    "square sub tan tanh xor".split()
)
_REPEATED = frozenset({"broadcast_in_dim", "iota"})  # fused into any number of readers
_SAME_BUFFER = frozenset({"reshape", "squeeze", "expand_dims", "stop_gradient"})
_SAME_IF_WHOLE = frozenset({"slice", "dynamic_slice", "broadcast_in_dim"})
_IN_PLACE = _FUSED | {"scatter", "scatter-add", "scatter_add", "dynamic_update_slice"}
_CALLS = frozenset(
    "jit pjit closed_call core_call custom_jvp_call custom_vjp_call "
    "custom_vjp_call_jaxpr checkpoint remat remat2 custom_vmap_call".split()
)


def _bytes_of(leaf: Any) -> int:
    """Bytes of an array, its shape or its abstract value; keys by their words."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return 0
    return math.prod(leaf.shape) * dtype.itemsize


def tree_bytes(tree: Any) -> int:
    """Bytes of all leaves of a tree."""
    return sum(map(_bytes_of, jax.tree.leaves(tree)))


@dataclasses.dataclass(frozen=True)
class Op:
    """An equation on numbered values; None stands for a literal."""

    primitive: core.Primitive
    params: dict[str, Any]
    inputs: list[int | None]
    literals: list[Any]
    outputs: list[int]

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return self.primitive.name


def inner_programs(params: dict[str, Any]) -> Iterator[core.Jaxpr]:
    """The programs among the parameters of an equation."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            found = item.jaxpr if isinstance(item, core.ClosedJaxpr) else item
            if isinstance(found, core.Jaxpr):
                yield found


class Listing:
    """The equations of a program in order, those of its calls among them."""

    def __init__(self, program: core.Jaxpr):
        """Lists the equations that matter for the outputs."""
        self.sizes: list[int] = []
        self.avals: list[Any] = []
        self.literals: dict[int, Any] = {}  # that calls were given
        ops: list[Op] = []
        self.inputs = [self._new(v) for v in program.invars]
        names = dict(zip(program.invars, self.inputs, strict=True))
        self.outputs = [o for o in self._walk(program, names, ops) if o is not None]
        needed = set(self.outputs)
        self.ops: list[Op] = []
        for op in reversed(ops):
            if needed.intersection(op.outputs):
                needed.update(i for i in op.inputs if i is not None)
                self.ops.append(op)
        self.ops.reverse()

    def _new(self, variable: Any) -> int:
        self.sizes.append(_bytes_of(variable.aval))
        self.avals.append(variable.aval)
        return len(self.sizes) - 1

    def _walk(
        self, program: core.Jaxpr, names: dict[Any, int], ops: list[Op]
    ) -> list[int | None]:
        names |= {v: self._new(v) for v in program.constvars}

        def known(variable: Any) -> int | None:
            return None if isinstance(variable, core.Literal) else names[variable]

        for equation in program.eqns:
            inputs = [known(v) for v in equation.invars]
            literals = [getattr(v, "val", None) for v in equation.invars]
            name = equation.primitive.name
            called = (
                next(inner_programs(equation.params), None) if name in _CALLS else None
            )
            if called is not None and len(called.invars) == len(inputs):
                given = {
                    v: self._new(v) if i is None else i
                    for v, i in zip(called.invars, inputs, strict=True)
                }
                self.literals |= {
                    given[v]: literal
                    for v, literal in zip(called.invars, literals, strict=True)
                    if literal is not None
                }
                found = self._walk(called, given, ops)
                outputs = [
                    self._new(v) if o is None else o
                    for v, o in zip(equation.outvars, found, strict=True)
                ]
            else:
                outputs = [self._new(v) for v in equation.outvars]
                parts = inputs, literals, outputs
                ops.append(Op(equation.primitive, equation.params, *parts))
            names |= dict(zip(equation.outvars, outputs, strict=True))
        return [known(v) for v in program.outvars]

    def buffers(self) -> dict[int, frozenset[int]]:
        """For values that have no buffer of their own: those they are read from."""
        readers: dict[int, list[Op]] = {}
        for op in self.ops:
            for value in {i for i in op.inputs if i is not None}:
                readers.setdefault(value, []).append(op)
        found: dict[int, frozenset[int]] = {}
        fused: set[int] = set()
        for op in self.ops:
            inputs = [i for i in op.inputs if i is not None]
            made = op.outputs[0]
            is_whole = bool(inputs) and self.sizes[made] == self.sizes[inputs[0]]
            is_same = op.name in _SAME_BUFFER or (
                op.name in _SAME_IF_WHOLE and is_whole
            )
            if is_same and inputs[0] not in fused:
                inputs = inputs[:1]
            elif op.name in _FUSED and made not in self.outputs:
                by = readers[made]
                fits = all(r.name in _FUSED or r.name.startswith("reduce_") for r in by)
                if not fits or (len(by) > 1 and op.name not in _REPEATED):
                    continue
                fused.add(made)
            else:
                continue
            sources = (found.get(i, frozenset({i})) for i in inputs)
            found[made] = frozenset[int]().union(*sources)
        return found


def peak_bytes(program: core.Jaxpr, overwritten: Collection[int] = ()) -> int:
    """Estimates the most bytes that a program holds at once.

    Args:
      program: what a function was traced to.
      overwritten: positions of inputs whose memory the program may use.

    Returns:
      Bytes of its values and of these inputs, without the other inputs.

    Example:
      >>> import jax.numpy as jnp
      >>> program = jax.make_jaxpr(lambda x: jnp.sin(x @ x).sum())(jnp.ones((8, 8)))
      >>> peak_bytes(program.jaxpr) // program.jaxpr.invars[0].aval.dtype.itemsize
      65
    """
    listing = Listing(program)
    sizes, fused = listing.sizes, listing.buffers()

    def read(values: Sequence[int | None]) -> set[int]:
        """Buffers that values are read from."""
        given = (v for v in values if v is not None)
        return {b for v in given for b in fused.get(v, (v,))}

    def total(values: Collection[int]) -> int:
        return sum(sizes[v] for v in values)

    last = {b: n for n, op in enumerate(listing.ops) for b in read(op.inputs)}
    last |= dict.fromkeys(read(listing.outputs), len(listing.ops))
    alive = {listing.inputs[i] for i in overwritten} & last.keys()
    live = peak = total(alive)
    for number, op in enumerate(listing.ops):
        dying = {b for b in read(op.inputs) & alive if last[b] == number}
        made = [o for o in op.outputs if o not in fused]
        peak = max(peak, live + _extra_bytes(op, sizes, made, read, dying))
        kept = {o for o in made if o in last}
        live += total(kept) - total(dying)
        alive = (alive - dying) | kept
    seen: set[int] = set()
    for output in listing.outputs:  # one buffer each
        (buffer,) = read([output]) or (output,)
        live += sizes[output] if buffer in seen or buffer not in alive else 0
        seen.add(buffer)
    return max(peak, live)


def _extra_bytes(
    op: Op,
    sizes: list[int],
    made: list[int],
    read: Callable[[Sequence[int | None]], set[int]],
    dying: set[int],
) -> int:
    """Bytes while an equation runs, beyond those of what is alive before it."""

    def total(values: Collection[int]) -> int:
        return sum(sizes[v] for v in values)

    results = total(made)
    if op.name == "scan":
        consts, carries = op.params["num_consts"], op.params["num_carry"]
        body = op.params["jaxpr"].jaxpr
        inside = peak_bytes(body, range(consts, len(body.invars)))
        reused = read(op.inputs[consts : consts + carries]) & dying
        return inside + total(op.outputs[carries:]) - total(reused)
    if op.name == "while":
        consts = op.params["body_nconsts"]
        body = op.params["body_jaxpr"].jaxpr
        inside = peak_bytes(body, range(consts, len(body.invars)))
        reused = read(op.inputs[op.params["cond_nconsts"] + consts :]) & dying
        return inside - total(reused)
    if op.name == "cond":
        operands = [read([i]) for i in op.inputs[1:]]
        free = [n for n, buffers in enumerate(operands) if buffers and buffers <= dying]
        reused = total({b for n in free for b in operands[n]})
        branches = (branch.jaxpr for branch in op.params["branches"])
        return max(peak_bytes(branch, free) for branch in branches) - reused
    if op.name == "shard_map":
        on_host = jax.default_backend() == "cpu"  # whose devices share one memory
        inside = max(map(peak_bytes, inner_programs(op.params)))
        return results + inside * (op.params["mesh"].size if on_host else 1)
    if op.name == "random_bits":
        return 4 * results  # counters and results of the generator
    if op.name in _IN_PLACE and any(
        sizes[i] == results for i in dying & set(op.inputs)
    ):
        return 0
    return results + max(map(peak_bytes, inner_programs(op.params)), default=0)
