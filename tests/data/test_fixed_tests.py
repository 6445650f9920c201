"""Test examples that are the same for all seeds."""

import numpy as np
import pytest

import fedjax_pfl as fp
from tests.data import samples

X = np.arange(200.0)[:, None]
Y = np.arange(200) % 4
OWNERS = np.repeat([0, 1, 2], [100, 60, 40])


def values(part):
    """The inputs of a part, which identify its examples."""
    rows = [samples.rows(part, client) for client in range(len(part.index))]
    return set(np.asarray(part.x)[np.concatenate(rows)].ravel().tolist())


def build(seed, owners=None, test_fraction=0.3, **options):
    options = {"validation_fraction": 0.2, "fixed_test_split": True} | options
    if owners is None:
        options |= {"partition": fp.DirichletLabels(concentration=0.5)}
        options |= {"num_clients": 5}
    given = {"test_fraction": test_fraction, "seed": seed, **options}
    return fp.FederationSpec.from_arrays(X, Y, owners, **given).build()


def test_no_seed_trains_on_test_examples_of_another():
    federations = [build(seed) for seed in range(4)]
    tests = [values(f.test) for f in federations]
    assert len(tests[0]) == 60 and all(found == tests[0] for found in tests)
    used = [values(f.train) | values(f.validation) for f in federations]
    assert all(not found & tests[0] for found in used)
    # The partition and the validation examples are each seed's own.
    assert len({frozenset(values(f.validation)) for f in federations}) == 4
    # A split per seed does share examples.
    one, other = (build(seed, fixed_test_split=False) for seed in (0, 1))
    assert values(one.test) & values(other.train)


def test_natural_clients_have_their_share():
    built = build(0, OWNERS)
    np.testing.assert_array_equal(built.test.num_examples, [30, 18, 12])
    # A fifth of all of a client's examples.
    np.testing.assert_array_equal(built.validation.num_examples, [20, 12, 8])


def test_a_client_with_one_example_has_none_for_training():
    samples.refusal(build, 0, np.r_[OWNERS[:199], 3], match="has 1 example")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"test_fraction": 0.0}, "got test_fraction=0"),
        ({"ordered": True}, "the series 'arrays'"),
    ],
)
def test_there_must_be_test_examples_to_draw(options, sentence):
    samples.refusal(build, 0, **options, match=sentence)


def test_a_given_test_part_stays():
    is_test = np.arange(200) < 50
    for fixed in (False, True):
        built = build(1, OWNERS, test=is_test, fixed_test_split=fixed)
        assert values(built.test) == set(range(50))
