"""Exchanges between devices, read from the text of compiled programs."""

import math
import re

_KINDS = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
_LINE = re.compile(rf"= (.*?) ({_KINDS})(?:-start)?\(")
_ARRAY = re.compile(r"([a-z]+)(\d*)\[([\d,]*)\]")


def _num_bytes(shapes):
    """Bytes of all arrays in a text of shapes."""
    total = 0
    for kind, bits, shape in _ARRAY.findall(shapes):
        size = math.prod(map(int, filter(None, shape.split(","))))
        total += size * (1 if kind == "pred" else int(bits) // 8)
    return total


def results(text):
    """Pairs of a kind and its result's types and shapes on one device, as text."""
    found = filter(None, map(_LINE.search, text.splitlines()))
    return [(match[2], match[1]) for match in found]


def collectives(text):
    """Pairs of a kind and the bytes of its result on one device."""
    return [(kind, _num_bytes(shapes)) for kind, shapes in results(text)]


def sent(text, count):
    """Bytes that every one of `count` devices sends where all exchanges are rings."""
    share = (count - 1) / count
    factor = {"all-reduce": 2 * share, "all-gather": share, "all-to-all": share}
    factor |= {"collective-permute": 1, "reduce-scatter": count - 1}
    return sum(factor[kind] * size for kind, size in collectives(text))
