"""Multi-Krum: honest messages under attack, its fields."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from tests import problems
from tests.engine import faults
from tests.setups import process

LOCAL = problems.full_gradient_steps(2, 0.3)


def test_an_attacked_round_keeps_honest_messages_only():
    attack = faults.Sends(value=jnp.asarray(1e3), turn=jnp.asarray(1.0))
    rule = fp.MultiKrum(num_malicious=faults.NUM_MALICIOUS, local=LOCAL)
    whole = process(rule, attack=attack)
    problem = faults.problem()
    states, infos, _ = problems.run(whole, problem, 2)
    selected = np.asarray(infos.aggregator.selected)
    assert (selected == (np.arange(faults.NUM_CLIENTS) >= faults.NUM_MALICIOUS)).all()
    honest = problem.estimates[faults.NUM_MALICIOUS :].mean(axis=0)
    theta = np.asarray(states.server["theta"])
    kept = 0.7**2  # of the way to a minimizer, by two steps of 0.3
    np.testing.assert_allclose(theta[1], kept * theta[0] + (1 - kept) * honest)


def test_the_fields_are_those_of_krum():
    official = fp.MultiKrum.official(malicious_fraction=0.2)
    assert official.default_aggregator() == fp.Krum(
        malicious_fraction=0.2, num_selected=5, squared=False, guarantee=False
    )
    assert fp.MultiKrum().default_aggregator() == fp.Krum(
        num_selected=None, guarantee=False
    )
    with pytest.raises(fp.InputError, match="at most one of"):
        fp.MultiKrum(num_malicious=1, malicious_fraction=0.5)


def test_only_what_leaves_no_message_is_refused():
    half = process(fp.MultiKrum(malicious_fraction=0.8))
    half.check_cohort(50, 50)
    for fields, match in (
        ({"malicious_fraction": 1.0}, "f < K, got 1, so f=6, with K=6"),
        ({"num_malicious": 6}, "f < K, got 6 with K=6"),
        ({"num_malicious": 2, "guarantee": True}, "2 f . 3 <= K, got 2 with K=6"),
    ):
        algorithm = dataclasses.replace(algorithms.MultiKrum(), **fields)
        with pytest.raises(fp.InputError, match=match):
            process(algorithm).check_cohort(6, 6)
