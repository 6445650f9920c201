"""How much work a traced program does, before it is compiled: what, and how often.

Loops run as often as their bounds say. A bound that depends on inputs is found by
giving every input one typical value (or none), which is carried through the program:
an array of counts is one number. Every loop body is walked once, as in its first pass.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from fedjax_pfl import liveness

__all__ = ["Count", "Item", "count", "product_shape"]

Value = float | None

KINDS = {  # what is measured as a program of its own, by its primitive
    "dot_general": "matrix products",
    "conv_general_dilated": "convolutions",
    "gather": "gathers",
    "scatter": "scatters",
    "scatter-add": "scatters",
    "scatter_add": "scatters",
    "sort": "sorts",
    "top_k": "sorts",
    "random_bits": "random numbers",
    "random_fold_in": "random numbers",
    "random_split": "random numbers",
    "reduce_sum": "reductions",
    "reduce_max": "reductions",
    "reduce_min": "reductions",
    "reduce_and": "reductions",
    "reduce_or": "reductions",
    "argmax": "reductions",
    "argmin": "reductions",
    "cumsum": "reductions",
}
_HARD = frozenset(
    "exp exp2 expm1 log log1p logistic tanh sin cos tan erf erf_inv pow cbrt".split()
)
_PARTS = frozenset({"slice", "dynamic_slice"})  # read no more than they make
_PASSED_ON = frozenset(
    "broadcast_in_dim reshape squeeze expand_dims transpose rev slice dynamic_slice "
    "gather copy stop_gradient reduce_max reduce_min reduce_or reduce_and".split()
)
_SMALL = 256  # bytes; scalar arithmetic disappears in other operations


@dataclasses.dataclass(frozen=True)
class Item:
    """Work of one kind.

    Attributes:
      kind: for people.
      op: the operation, if it is worth a measurement of its own; else None.
      operands: its operands' abstract values.
      flops: floating point operations of products, once.
      bytes: read and written, once.
      hard: exponentials and the like, once.
      devices: that do this at the same time.
    """

    kind: str
    op: liveness.Op | None = None
    operands: tuple[Any, ...] = ()
    flops: float = 0.0
    bytes: float = 0.0
    hard: float = 0.0
    devices: int = 1

    @property
    def weight(self) -> float:
        """Seconds on some machine, to tell the large from the small."""
        return self.flops / 3e10 + self.bytes / 5e9 + self.hard / 1e9 + 1e-6


@dataclasses.dataclass
class Count:
    """Work of a program.

    Attributes:
      items: by a key that equal work shares: the work, and how often.
      is_bound: whether a loop may end earlier than counted.
    """

    items: dict[Any, tuple[Item, float]] = dataclasses.field(default_factory=dict)
    is_bound: bool = False

    def add(self, key: Any, item: Item, times: float) -> None:
        """Adds work."""
        before = self.items.get(key, (item, 0.0))[1]
        self.items[key] = item, before + times

    def merge(self, other: "Count") -> None:
        """Adds another program's work."""
        for key, (item, times) in other.items.items():
            self.add(key, item, times)
        self.is_bound |= other.is_bound

    @property
    def weight(self) -> float:
        """Seconds on some machine."""
        return sum(item.weight * times for item, times in self.items.values())

    def total(self, name: str) -> float:
        """Sum of `flops`, `bytes` or `hard`."""
        return sum(getattr(item, name) * n for item, n in self.items.values())


def count(program: core.Jaxpr, values: Sequence[Value] = ()) -> Count:
    """Counts the work of a program.

    Args:
      program: what a function was traced to.
      values: typical value of each input, None where it is not known.

    Returns:
      The work. A loop without a known bound is counted once; a conditional on something
      unknown takes the branch with less work, which is the usual one in this package.

    Example:
      >>> import jax
      >>> program = jax.make_jaxpr(lambda x: x @ x)(jnp.ones((8, 8))).jaxpr
      >>> count(program).total("flops")
      1024.0
    """
    found = Count()
    _Walk(found, times=1.0, devices=1).run(program, values)
    return found


@dataclasses.dataclass(frozen=True)
class _Walk:
    """A walk through one program, which runs `times` times on each device."""

    found: Count
    times: float
    devices: int

    def run(self, program: core.Jaxpr, values: Sequence[Value]) -> list[Value]:
        """Counts it; typical values of its outputs."""
        listing = liveness.Listing(program)
        known = {n: _number(v) for n, v in listing.literals.items()}
        known |= dict(zip(listing.inputs, values, strict=False))
        fused = listing.buffers()
        products = _only_read_by_products(listing)
        for op in listing.ops:
            given = [
                _number(literal) if value is None else known.get(value)
                for value, literal in zip(op.inputs, op.literals, strict=True)
            ]
            if self._inside(op, given):
                continue
            known[op.outputs[0]] = _typical(op, given, listing)
            if op.name in _HARD:
                size = math.prod(listing.avals[op.outputs[0]].shape)
                self._add(("hard", size), Item(kind="exponentials", hard=size))
            made = [o for o in op.outputs if o not in fused]
            if made and not products.issuperset(op.outputs):
                self._charge(op, made, listing, fused)
        return [known.get(value) for value in listing.outputs]

    def _add(self, key: Any, item: Item, times: float = 1.0) -> None:
        item = dataclasses.replace(item, devices=self.devices)
        self.found.add((key, self.devices), item, self.times * times)

    def _within(self, times: float = 1.0, devices: int = 1) -> "_Walk":
        return _Walk(self.found, self.times * times, self.devices * devices)

    def _inside(self, op: liveness.Op, given: Sequence[Value]) -> bool:
        """Counts the programs inside an operation, if it is made of programs."""
        if op.name == "scan":
            length = op.params["length"]
            self._add("step", Item(kind="loops"), length)
            self._within(length).run(op.params["jaxpr"].jaxpr, given)
        elif op.name == "while":
            self._loop(op, given)
        elif op.name == "cond":
            self._branch(op, given)
        elif op.name == "shard_map":
            walk = self._within(devices=op.params["mesh"].size)
            for program in liveness.inner_programs(op.params):
                walk.run(program, given)
        else:
            return False
        return True

    def _loop(self, op: liveness.Op, given: Sequence[Value]) -> None:
        tests, consts = op.params["cond_nconsts"], op.params["body_nconsts"]
        carried = given[tests + consts :]
        trips, is_exact = _trips(
            op.params["cond_jaxpr"].jaxpr, [*given[:tests], *carried]
        )
        self.found.is_bound |= not is_exact
        self._add("step", Item(kind="loops"), trips)
        self._within(trips).run(op.params["body_jaxpr"].jaxpr, given[tests:])

    def _branch(self, op: liveness.Op, given: Sequence[Value]) -> None:
        branches = [branch.jaxpr for branch in op.params["branches"]]
        chosen = given[0]
        if chosen is not None:
            number = min(max(int(chosen), 0), len(branches) - 1)
            self._within().run(branches[number], given[1:])
            return
        counts = []
        for branch in branches:
            counts.append(Count())
            _Walk(counts[-1], self.times, self.devices).run(branch, given[1:])
        self.found.merge(min(counts, key=lambda found: found.weight))

    def _charge(
        self,
        op: liveness.Op,
        made: Sequence[int],
        listing: liveness.Listing,
        fused: Mapping[int, frozenset[int]],
    ) -> None:
        """Adds an operation that writes memory."""
        given = [i for i in op.inputs if i is not None]
        read = {b for i in given for b in fused.get(i, (i,))}
        size = sum(listing.sizes[v] for v in made)
        if op.name in KINDS and len(given) == len(op.inputs):
            operands = tuple(listing.avals[i] for i in given)
            moved = size + sum(listing.sizes[i] for i in given)
            if op.name == "gather":
                moved = 2 * size
            elif op.name.startswith("scatter"):
                moved = 2 * listing.sizes[given[-1]]
            item = Item(
                kind=KINDS[op.name],
                op=op,
                operands=operands,
                flops=_flops(op, listing.avals[made[0]], operands),
                bytes=moved,
            )
            key = (op.name, str(operands), _text(op.params))
            if op.name == "dot_general":
                key = (op.name, *product_shape(op, operands))
            self._add(key, item)
            return
        if op.name in _PARTS:
            moved = 2 * size
        elif op.name == "dynamic_update_slice":
            moved = 2 * listing.sizes[given[1]] if len(given) > 1 else size
        else:
            moved = size + sum(listing.sizes[b] for b in read)
        if moved > _SMALL:
            item = Item(kind="element-wise", bytes=moved)
            self._add(("pass", moved), item)


def _text(params: Mapping[str, Any]) -> str:
    """Parameters as a key; programs among them are told apart by their place."""
    return str(
        {
            name: id(value)
            if isinstance(value, core.Jaxpr | core.ClosedJaxpr)
            else value
            for name, value in params.items()
        }
    )


def _only_read_by_products(listing: liveness.Listing) -> set[int]:
    """Transposes that a product does itself."""
    readers: dict[int, set[str]] = {o: {"output"} for o in listing.outputs}
    for op in listing.ops:
        for value in op.inputs:
            if value is not None:
                readers.setdefault(value, set()).add(op.name)
    transposed = (o for op in listing.ops if op.name == "transpose" for o in op.outputs)
    return {o for o in transposed if readers.get(o) == {"dot_general"}}


def product_shape(op: liveness.Op, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Batch, rows, inner length, columns and types of a product of matrices."""
    (inner, _), (batch, others) = op.params["dimension_numbers"]
    left, right = (operand.shape for operand in operands)
    depth = math.prod(left[axis] for axis in inner)
    lanes = math.prod(left[axis] for axis in batch)
    rows = math.prod(left) // max(depth * lanes, 1)
    columns = math.prod(right) // max(depth * lanes, 1)
    types = (str(operand.dtype) for operand in operands)
    return lanes, rows, depth, columns, *types, str(op.params["precision"])


def _flops(op: liveness.Op, made: Any, operands: Sequence[Any]) -> float:
    """Floating point operations of a product or a convolution; 0 for others."""
    if op.name == "dot_general":
        (contracted, _), _ = op.params["dimension_numbers"]
        inner = math.prod(operands[0].shape[axis] for axis in contracted)
        return 2.0 * math.prod(made.shape) * inner
    if op.name == "conv_general_dilated":
        kernel = operands[1].shape
        filters = kernel[op.params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * math.prod(made.shape) * math.prod(kernel) / filters
    return 0.0


def _number(value: Any) -> Value:
    """A literal as a number, or None."""
    if value is None or getattr(value, "shape", ()) != ():
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


_Binary = Callable[[float, float], float]
_BINARY: dict[str, _Binary] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "max": max,
    "rem": math.fmod,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
_UNARY: dict[str, Callable[[float], float]] = {
    "neg": operator.neg,
    "abs": abs,
    "sign": lambda x: math.copysign(1.0, x) if x else 0.0,
    "floor": lambda x: float(math.floor(x)),
    "ceil": lambda x: float(math.ceil(x)),
    "not": lambda x: float(not x),
}


def _typical(
    op: liveness.Op, given: Sequence[Value], listing: liveness.Listing
) -> Value:
    """The value of an operation's result where all operands have one value each."""
    first = given[0] if given else None
    known = [value for value in given if value is not None]
    if op.name == "min" and known:
        return min(known)  # a budget that is not known is not what binds
    if op.name == "and" and any(value == 0 for value in known):
        return 0.0
    if op.name == "or" and any(value != 0 for value in known):
        return 1.0
    if op.name == "select_n":
        chosen = first if first is None else given[1 + int(first)]
        return chosen if first is not None else _common(given[1:])
    if op.name == "concatenate":
        return _common(given)
    if first is None:
        return None
    if op.name in _PASSED_ON:
        return first
    if op.name == "convert_element_type":
        is_whole = jnp.issubdtype(op.params["new_dtype"], jnp.integer)
        return float(math.trunc(first)) if is_whole else first
    if op.name in _UNARY:
        return _UNARY[op.name](first)
    if len(known) < 2 or len(given) > 2:
        return None
    if op.name in ("and", "or"):
        return float(all(known) if op.name == "and" else any(known))
    if op.name == "div" and known[1]:
        is_whole = jnp.issubdtype(listing.avals[op.outputs[0]].dtype, jnp.integer)
        return float(math.trunc(first / known[1])) if is_whole else first / known[1]
    if op.name in _BINARY and not (op.name == "rem" and not known[1]):
        return float(_BINARY[op.name](*known))
    return None


def _common(values: Iterable[Value]) -> Value:
    """The value that all have, or None."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _trips(test: core.Jaxpr, values: Sequence[Value]) -> tuple[float, bool]:
    """How often a loop runs, from the test `i < bound`; whether it is that often."""
    listing = liveness.Listing(test)
    known: dict[int, Value] = {n: _number(v) for n, v in listing.literals.items()}
    known |= dict(zip(listing.inputs, values, strict=True))
    bounds = []
    is_exact = False
    for op in listing.ops:
        given = [
            _number(literal) if value is None else known.get(value)
            for value, literal in zip(op.inputs, op.literals, strict=True)
        ]
        known[op.outputs[0]] = _typical(op, given, listing)
        if op.name == "lt" and given[0] is not None and given[1] is not None:
            bounds.append(max(given[1] - given[0], 0.0))
            is_exact = op.outputs == listing.outputs
    return (min(bounds), is_exact) if bounds else (1.0, False)
