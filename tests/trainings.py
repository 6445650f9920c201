"""Trainings of one group, with the trainer at their end."""

from fedjax_pfl.engine import driver, groups
from fedjax_pfl.engine.resident import Resident


def train(group, options, store=None):
    """History of a group, and its trainer with the last states."""
    trainer = Resident(groups.plan(group, options), store)
    return driver.Run(trainer, store).train(), trainer
