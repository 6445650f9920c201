"""The list of methods, and the fields of one."""

import pytest

from fedjax_pfl import algorithms
from fedjax_pfl.command.application import app
from tests.command.commands import call, refused


@pytest.mark.parametrize("line", ["methods", "methods list"])
def test_every_method_is_listed_with_a_sentence(line):
    lines = call(app, line).stdout.splitlines()
    for name in algorithms.ALGORITHMS:
        (row,) = [line for line in lines if line.split()[:1] == [name]]
        assert len(row.split()) > 2


def test_fields_of_a_method_have_defaults_and_ranges():
    text = " ".join(call(app, "methods flame").stdout.split())
    assert "algorithm.lam 1.0 an axis `[]` Moreau weight, at least 0." in text
    assert "algorithm.center local one program per" in text
    assert "algorithm.local SGD by its fields" in text
    assert "algorithm.local.momentum none an axis" in text
    assert "algorithm.local.epochs 1 one program per" in text
    assert "--tune searches local, received." in text
    assert "--tune searches 0.0003 to 30." in text  # kappa, which None stands for
    assert "--tune leaves it: given in place of `kappa`." in text


def test_unknown_methods_are_one_sentence():
    assert "did you mean 'flame'?" in refused(app, "methods flme")
