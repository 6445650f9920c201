"""Work of a preset's trainings: gradients of single examples."""

import dataclasses

import jax

import fedjax_pfl as fp
from fedjax_pfl.command import presets
from fedjax_pfl.engine import grids, timetables

__all__ = ["gradients"]

# Counts do not depend on the network, and this one compiles fast.
_SMALL = fp.MLP(widths=(1,))


def gradients(
    name: str, data_dir: str | None = None, train_examples: int | None = None
) -> float:
    """Counts gradients of single examples in all trainings of a classifier's preset."""
    experiment = presets.get(name)
    key, total = jax.random.key(0, impl="threefry2x32"), 0.0
    federations = grids.Federations()
    for grid in experiment.grids:
        spec = dataclasses.replace(grid.spec, data_dir=data_dir or grid.spec.data_dir)
        if train_examples is not None:
            spec = dataclasses.replace(spec, train_examples=train_examples)
        parts = (grid.process, grid.model, spec)
        # One seed is enough: others do the same work, but in separate programs.
        axes = {"seed": experiment.seeds[:1], **grid.axes}
        for group in grids.groups_of(key, *parts, axes, federations=federations):
            for process, federation in zip(
                group.processes, group.federations, strict=True
            ):
                model = _SMALL.for_federation(federation)
                charges = timetables.charges(process, model, federation, key)
                size = process.participation.cohort_size(federation.num_clients)
                # Evaluations, the server's work and attacks are not counted.
                total += size * charges.examples.mean()
    return len(experiment.seeds) * experiment.num_rounds * total
