"""Arrays that devices divide, assembled from the parts of all processes."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_pfl.core import sharding
from fedjax_pfl.core.aliases import Tree

__all__ = ["joined", "numbers", "of"]


def numbers(execution: sharding.Execution) -> list[int]:
    """Returns the numbers, from 0, of this process's devices among all devices."""
    devices = sharding.client_mesh(execution.num_devices).devices.flat
    process = jax.process_index()
    return [k for k, device in enumerate(devices) if device.process_index == process]


def joined(parts: Mapping[int, Any], execution: sharding.Execution) -> Tree:
    """Assembles `[n * C, ...]` from NumPy parts `[C, ...]` by number of the device."""
    mesh = sharding.client_mesh(execution.num_devices)
    split = NamedSharding(mesh, PartitionSpec(sharding.AXIS))

    def assemble(*leaves: np.ndarray) -> jax.Array:
        size, by_number = leaves[0].shape[0], dict(zip(parts, leaves, strict=True))
        shape = (mesh.size * size, *leaves[0].shape[1:])

        def part(place: Any) -> np.ndarray:
            return by_number[(place[0].start or 0) // size]

        # No process has all of the array; each provides the parts of its devices.
        return jax.make_array_from_callback(shape, split, part)

    return jax.tree.map(assemble, *parts.values())


def of(tree: Tree, execution: sharding.Execution) -> dict[int, Any]:
    """Inverts `joined`: brings the parts of this process's devices to the host."""
    count = sharding.client_mesh(execution.num_devices).size

    def by_number(leaf: jax.Array) -> dict[int, np.ndarray]:
        size = leaf.shape[0] // count
        return {
            (shard.index[0].start or 0) // size: np.asarray(shard.data)
            for shard in leaf.addressable_shards
        }

    leaves, structure = jax.tree.flatten(tree)
    maps = [by_number(leaf) for leaf in leaves]
    return {
        number: jax.tree.unflatten(structure, [parts[number] for parts in maps])
        for number in numbers(execution)
    }
