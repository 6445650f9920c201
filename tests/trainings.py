"""Trainings of one group, with the trainer at their end."""

from fedjax_pfl.engine import groups, simulation
from fedjax_pfl.engine.resident import Resident


def train(group, options, store=None):
    """History of a group, and its trainer with the last states."""
    trainer = Resident(groups.plan(group, options), store)
    return simulation.Run(trainer, store).train(), trainer
