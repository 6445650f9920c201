"""Property suite for methods, your own included.

`check_algorithm(MyMethod())` checks all properties with the package alone: no test
framework is needed. In a test file of your own:

    import pytest
    from fedjax_pfl import testing

    @pytest.mark.parametrize("name", testing.PROPERTIES)
    def test_conformance(name):
        testing.check(name, MyMethod())

and from a shell `python -m fedjax_pfl.testing my_module:MyMethod`, with `--model mlp`
for another model. With `--platform`
the same command runs `battery`: whether the installed JAX computes right here. With
`--digests` it compares the numbers of short `trainings` with earlier ones, and with
`--walk` it measures the way from a call to the loss; both are for changes of the
package itself.

All run on `toy.make_federation`: eight clients with 1 to 9 examples; padded
slots point at NaN and at 1e38, so that any use of padding shows. Tolerances follow
JAX's default floats. Properties that a machine cannot check are skipped with a reason.
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
