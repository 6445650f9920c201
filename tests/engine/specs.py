"""Federations on which tests of several files train."""

import fedjax_pfl as fp
from fedjax_pfl import data


def classes(num_clients=6, examples=20, **fields):
    """Clients with examples of three classes in three dimensions."""
    source = data.GaussianClasses(dim=3, num_classes=3, examples_per_client=examples)
    return fp.FederationSpec(source, "by_client", num_clients=num_clients, **fields)


def validated(num_clients=6, examples=20):
    """The same, with three tenths of the examples for validation."""
    return classes(num_clients, examples, validation_fraction=0.3)
