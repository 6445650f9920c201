"""Options as editors see them, and representations of processes."""

import dataclasses
import typing

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.engine import options


def test_editors_see_every_option_of_a_training():
    fields = {f.name: f.type for f in dataclasses.fields(options.Options)}
    del fields["num_rounds"]
    assert typing.get_type_hints(options.TrainingOptions) == fields


def test_a_process_shows_what_is_not_default():
    process = fp.FederatedProcess(
        algorithm=fp.Flame(lam=2.0, local=fp.SGD(batch_size=5)),
        transforms=(fp.TopK(fraction=0.5),),
        participation=fp.UniformCohort(size=3),
    )
    assert repr(process) == (
        "FederatedProcess(algorithm=Flame(lam=2.0, local=SGD(batch_size=5)),"
        " participation=UniformCohort(size=3), transforms=(TopK(fraction=0.5),))"
    )


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fp.FederatedProcess(algorithm=fp.Flame), "the class Flame instead of"),
        (
            lambda: fp.FederatedProcess(algorithm=fp.FedAvg(), attack=fp.SignFlip),
            "attack .* the class SignFlip",
        ),
        (lambda: fp.UniformCohort(), r"UniformCohort\(size=...\), got it without size"),
        (lambda: fp.FederatedProcess(), r"FederatedProcess\(algorithm=...\), got it"),
    ],
)
def test_a_class_or_a_missing_field_is_one_sentence(make, sentence):
    with pytest.raises(fp.InputError, match=f"^Expected .*{sentence}"):
        make()


def test_one_training_takes_a_specification():
    spec = fp.FederationSpec("digits", num_clients=3)
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    given = (jax.random.key(0), process, fp.LogisticRegression())
    results = [
        fp.simulate(*given, federation, 2, progress=False)
        for federation in (spec, spec.build())
    ]
    np.testing.assert_equal(*(result.groups[0].metrics for result in results))
