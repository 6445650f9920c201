"""Property suite for methods, your own included.

`check_algorithm(MyMethod())` checks all properties with the package alone: no test
framework is needed. In a test file of your own:

    import pytest
    from fedjax_pfl import testing

    @pytest.mark.parametrize("name", testing.PROPERTIES)
    def test_conformance(name):
        testing.check(name, MyMethod())

and from a shell `python -m fedjax_pfl.testing my_module:MyMethod`. All run on
`toy.make_federation`, with padding that shows any use of it. Properties that a machine
cannot check are skipped with a reason.
"""

from fedjax_pfl.testing.subjects import Subject
from fedjax_pfl.testing.suite import (
    PROPERTIES,
    Outcome,
    check,
    check_algorithm,
    outcomes,
)

__all__ = [
    "PROPERTIES",
    "Outcome",
    "Subject",
    "check",
    "check_algorithm",
    "outcomes",
]
