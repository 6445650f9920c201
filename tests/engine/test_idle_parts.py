"""Parts that change nothing are said aloud, once, where someone trains with them."""

import warnings

import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import checks
from fedjax_pfl.engine import grids, groups
from fedjax_pfl.testing import toy
from tests.engine import specs
from tests.engine.test_training import KEY, SGD, quiet
from tests.lanes import wide


@pytest.mark.parametrize("how", [fp.simulate, fp.simulate_streamed])
def test_an_attack_without_malicious_clients_is_said(how):
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=SGD), attack=fp.SignFlip())
    federation = specs.classes().build()
    with pytest.warns(UserWarning, match="SignFlip changes nothing, since no client"):
        quiet(how, KEY, process, fp.LogisticRegression(), federation, 1)


def test_a_federation_to_compare_attacks_with_is_no_mistake():
    """Only fractions that are all zero are said; warnings are errors in these tests."""
    spec = specs.classes(label_poisoning="uniform_labels")
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=SGD))

    def warn(*fractions):
        axes = {"federation.malicious_fraction": fractions}
        model = fp.LogisticRegression()
        groups.warn_of_idle_parts(grids.groups_of(KEY, process, model, spec, axes))

    warn(0.0, 0.5)
    with pytest.warns(UserWarning, match="UniformLabels changes nothing"):
        warn(0.0)


def test_rounded_products_on_a_cpu_are_said_whatever_wraps_the_network():
    process, spec = fp.FederatedProcess(algorithm=fp.FedAvg(local=SGD)), specs.classes()
    network = fp.MLP(widths=(3,), bfloat16_products=True)
    for model in (network, fp.lora(network, targets="hidden", rank=1)):
        made = grids.groups_of(KEY, process, model, spec, {"seed": [0]})
        with pytest.warns(UserWarning, match="bfloat16_products=True is slower on a C"):
            groups.warn_of_idle_parts(made)


@pytest.mark.wide
@pytest.mark.parametrize(
    "algorithm",
    [
        fp.Local(local=SGD),
        wide(fp.Centralized(local=SGD)),
        wide(fp.Majority()),
        wide(fp.FedAMP(local=SGD)),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_an_aggregator_of_a_method_without_aggregate_is_said(algorithm):
    """And changes nothing, also one that could not take so few messages."""
    federation, model = toy.make_federation(), fp.LogisticRegression()
    cohort = fp.UniformCohort(size=3)
    plain = fp.FederatedProcess(algorithm=algorithm, participation=cohort)
    expected = quiet(fp.simulate, KEY, plain, model, federation, 2)
    for rule in (fp.CoordinateMedian(), fp.aggregators.Bulyan(num_malicious=1)):
        given = fp.FederatedProcess(
            algorithm=algorithm, aggregator=rule, participation=cohort
        )
        with pytest.warns(UserWarning) as said:
            found = quiet(fp.simulate, KEY, given, model, federation, 2)
        (warning,) = said
        assert str(warning.message) == (
            f"{type(rule).__name__} changes nothing for {type(algorithm).__name__}: no"
            " aggregate of messages is made there."
        )
        np.testing.assert_equal(found.groups[0].metrics, expected.groups[0].metrics)
    with warnings.catch_warnings(), pytest.raises(checks.InputError, match="Bulyan"):
        given = fp.FederatedProcess(
            algorithm=fp.FedAvg(local=SGD), aggregator=rule, participation=cohort
        )
        quiet(fp.simulate, KEY, given, model, federation, 2)
