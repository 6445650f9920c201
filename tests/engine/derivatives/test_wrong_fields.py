"""What has no derivative is refused in one sentence, before any training."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import aggregators, algorithms, attacks, local
from fedjax_pfl.algorithms import common_descent
from fedjax_pfl.core import checks
from fedjax_pfl.engine.derivatives import fields
from fedjax_pfl.testing import toy
from tests.engine import specs

KEY = jax.random.key(0, impl="threefry2x32")
SPEC = specs.validated(4)
PROCESS = fp.FederatedProcess(algorithm=fp.Flame(lam=1.0, kappa=2.0))
RATE = "algorithm.local.learning_rate"


def differentiate(names=RATE, process=PROCESS, spec=SPEC, num_rounds=2, **options):
    given = KEY, process, fp.LogisticRegression(), spec, names, num_rounds
    return fp.hypergradients(*given, progress=False, **options)


@pytest.fixture(autouse=True)
def _without_training(monkeypatch):
    def train(*args, **kwargs):
        raise AssertionError("A training began.")

    monkeypatch.setattr(fp.engine.simulation, "run_groups", train)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "at least one field .* got none"),
        ((), "at least one field"),
        ([RATE, "algorithm.lam", RATE], f"each field once, got {RATE}, algo.*, {RATE}"),
        ("algorithm.local.batch_size", "batch_size to be a traced number.* got 20"),
        ("algorithm.local.epochs", "to be a traced number.* got 1; .*kappa.*are"),
        ("algorithm.center", "center to be a traced number.* got 'local'"),
        ("algorithm.local", "algorithm.local to be a traced number.* got 'SGD'"),
        ("algorithm", "algorithm to be a traced number"),
        ("algorithm.rho", "rho to be a traced number.* got None; algorithm.l"),
        ("algorithm.local.momentum", "momentum to be a traced number.* got None"),
        ("aggregator.rho", "aggregator"),
        ("attack", "attack to be a traced number.* got None"),
        ("algorithm.lmbda", "Unknown field of algorithm 'lmbda'"),
        ("algorithm.local.rate", "Unknown field of algorithm.local 'rate'"),
        ("lam", "the whole name of field 'lam': did you mean 'algorithm.lam'?"),
        ("learning_rate", f"did you mean '{RATE}'?"),
        ("local.learning_rate", f"did you mean '{RATE}'?"),
        ("algoritm.lam", "part of a process 'algoritm' .did you mean 'algorithm'"),
        ("", "part of a process"),
        ("federation.seed", "fields of the process.* got 'federation.seed'"),
        ("federation.partition.concentration", "fields of the process"),
        ("model.curvature", "fields of the process.* got 'model.curvature'"),
        ("seed", "fields of the process.* got 'seed'"),
        (["algorithm.lam", "seed"], "fields of the process.* got 'seed'"),
    ],
)
def test_fields_without_derivatives(names, message):
    with pytest.raises(checks.InputError, match=message) as caught:
        differentiate(names)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("test:loss", "validation or train data, .* got 'test'"),
        ("loss:test", "nothing is chosen on test data, got 'test'"),
        ("others:loss", "validation or train data"),
        ("everybody", "validation or train data"),
        ("validation:accuracy", "has a derivative.* got 'accuracy', .* 0 almost every"),
        ("validation:loss:person", "Unknown model .*'person'.*did you mean 'personal'"),
        ("validation:los", "Unknown model of an objective 'los'"),
        ("validation:loss:train", "such as validation:loss:personal, got 'valida"),
        ("loss:loss", "such as validation:loss:personal, got 'loss:loss'"),
        ("loss:mean:worst_decile", "such as validation:loss:personal"),
        ("loss:personal:global", "such as validation:loss:personal"),
        ("", "such as validation:loss:personal, got ''"),
        ("loss::personal", "such as validation:loss:personal"),
        ("loss:client=4", "an honest client with validation examples below 4"),
        ("loss:client=one", "mean over clients 'one'"),
        ("loss:client=-1", "mean over clients '-1'"),
        ("loss:client=", "mean over clients ''"),
        ("worst_decil", "Unknown model of an objective 'worst_decil'"),
    ],
)
def test_objectives_without_derivatives(objective, message):
    with pytest.raises(checks.InputError, match=message):
        differentiate(objective=objective)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"execution": "loop"}, "a compiled execution for derivatives, got 'loop'"),
        ({"num_rounds": 0}, "num_rounds to be a whole number of at least 1, got 0"),
        ({"evaluate_on": "tests"}, "did you mean 'test'"),
        ({"axes": {"algorithm.lam": [-1.0]}}, "lam to be a finite number at least 0"),
        ({"axes": {"lam": [1.0]}}, "did you mean 'algorithm.lam'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(checks.InputError, match=message):
        differentiate(**options)


def test_a_training_that_may_end_early_is_no_option():
    with pytest.raises(fp.InputError, match="stop_when"):
        differentiate(stop_when=fp.StopWhen(patience=1))


def test_there_must_be_somebody_in_the_objective():
    empty = dataclasses.replace(SPEC, validation_fraction=0.0)
    message = "clients with validation examples.*validation_fraction above 0"
    with pytest.raises(checks.InputError, match=message):
        differentiate(spec=empty)
    federation = toy.make_federation(malicious=range(toy.NUM_CLIENTS))
    with pytest.raises(checks.InputError, match="honest clients with train examples"):
        differentiate(spec=federation, objective="train:loss")


@pytest.mark.parametrize("client", [2, 5, 8])
def test_a_client_of_an_objective_is_honest_and_has_examples(client):
    """Of eight the third is malicious, and the sixth has nothing to validate on."""
    federation = toy.make_federation(malicious=[2])
    counts = jnp.asarray(toy.COUNTS).at[5].set(0)
    validation = dataclasses.replace(federation.validation, num_examples=counts)
    federation = dataclasses.replace(federation, validation=validation)
    message = f"an honest client with validation examples below 8.* client {client}"
    with pytest.raises(checks.InputError, match=message):
        differentiate(spec=federation, objective=f"validation:loss:client={client}")


def test_a_federation_has_no_axes():
    with pytest.raises(checks.InputError, match="a specification .* got a federation"):
        differentiate(spec=toy.make_federation(), axes={"seed": [0, 1]})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"algorithm": algorithms.FedPG(search=common_descent.Armijo())},
            "Expected parts that have derivatives, got Armijo, which searches along a",
        ),
        (
            {"attack": attacks.MinMax(direction="sign")},
            "Expected parts that have derivatives, got MinMax, which takes signs",
        ),
        ({"attack": attacks.MinSum(direction="sign")}, "got MinSum, which takes signs"),
    ],
)
def test_parts_without_derivatives_are_named(parts, message):
    process = dataclasses.replace(PROCESS, **{"algorithm": fp.FedAvg()} | parts)
    with pytest.raises(checks.InputError, match=message):
        differentiate(process=process)


def rule(aggregator):
    return {"aggregator": aggregator}


KRUM = "Krum: which rows are averaged"
LEFT_OUT, IN_THE_MIDDLE = "which values are left out", "which values are in the middle"
TO_TOLERANCE = {"algorithm": fp.Flame(local=local.ToTolerance())}
TWO_CHOICES = {
    "algorithm": algorithms.FedACS(pick_quantile=0.5),
    "attack": attacks.Mimic(),
}


@pytest.mark.parametrize(
    ("parts", "texts"),
    [
        ({}, ()),
        (rule(fp.Krum()), (KRUM,)),
        (rule(aggregators.TrimmedMean(num_malicious=1)), (f"TrimmedMean: {LEFT_OUT}",)),
        (rule(fp.CoordinateMedian()), (f"CoordinateMedian: {IN_THE_MIDDLE}",)),
        (rule(fp.CoordinateMedian(rho=0.1)), ()),
        (rule(fp.GeometricMedian()), ()),
        (rule(aggregators.NormClipping()), ("NormClipping: whose norm is the limit",)),
        (rule(aggregators.Bucketing(rule=fp.Krum())), (KRUM,)),
        ({"algorithm": algorithms.MultiKrum()}, (KRUM,)),
        (TWO_CHOICES, ("FedACS: which clients are similar", "Mimic: who is copied")),
        (TO_TOLERANCE, ("ToTolerance: the number of steps",)),
    ],
)
def test_choices_that_are_held_fixed_are_named(parts, texts):
    process = dataclasses.replace(PROCESS, **parts)
    assert fields.held_fixed(process) == texts


@pytest.mark.parametrize("rule", [aggregators.MeaMed(), aggregators.Bulyan()])
def test_values_that_are_found_by_their_bits_have_no_derivative(rule):
    process = fp.FederatedProcess(algorithm=fp.FedAvg(), aggregator=rule)
    with pytest.raises(checks.InputError, match=f"{type(rule).__name__}, which finds"):
        differentiate(process=process)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (RATE, "names a model where methods differ in it"),
        ("algorithm.lam", "Unknown field of algorithm 'lam'"),
    ],
)
def test_methods_side_by_side_have_to_share_field_and_model(names, message):
    axes = {"algorithm": [fp.Flame(), fp.FedAvg()]}
    with pytest.raises(checks.InputError, match=message):
        differentiate(names, axes=axes)


def test_one_client_has_to_be_evaluated():
    with pytest.raises(checks.InputError, match="eval_clients='all'.* got 2"):
        differentiate(objective="validation:loss:client=1", eval_clients=2)


@pytest.mark.parametrize("kind", ["log", "logit", "linear"])
def test_scales_are_inverted_and_have_slopes(kind):
    scale, values = fields.Scale(kind), np.array([[0.02, 0.5], [0.9, 0.3]])
    free = scale.free(values)
    np.testing.assert_allclose(scale.value(free), values, rtol=1e-12)
    step = 1e-6
    slopes = (scale.value(free + step) - scale.value(free - step)) / (2 * step)
    np.testing.assert_allclose(scale.slope(values), slopes, rtol=1e-8)


def test_scales_have_values_of_any_number():
    """Beyond the largest number, too, without a warning."""
    far = np.array([-1e4, 1e4])
    np.testing.assert_array_equal(fields.Scale("log").value(far), [0, np.inf])
    np.testing.assert_array_equal(fields.Scale("logit").value(far), [0, 1])
