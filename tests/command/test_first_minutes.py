"""What a newcomer meets first: what objects look like, and wrong arguments."""

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import data


@pytest.fixture(scope="module")
def parts():
    """Key, process, model, federation and rounds of a training that works."""
    x, owner = np.eye(12, 3), ["ann", "bob"] * 6
    return {
        "key": jax.random.key(0),
        "process": fp.FederatedProcess(algorithm=fp.FedAvg()),
        "model": fp.LogisticRegression(),
        "federation": fp.Federation.from_arrays(x, [0, 1, 1] * 4, owner),
        "num_rounds": 1,
    }


def test_objects_are_one_short_line(parts):
    result = fp.simulate(**parts, progress=False)
    federation = parts["federation"]
    spec = fp.FederationSpec(num_clients=2)
    shown = [
        *(result, result.groups[0], federation, federation.train, parts["process"]),
        *(
            parts["model"],
            data.describe(federation),
            spec,
            fp.data.Dataset(name="d", x=np.zeros((5000, 2)), y=[0] * 5000),
        ),
    ]
    for text in map(repr, shown):
        assert "\n" not in text and len(text) < 1300 and "array(" not in text.lower()
    assert len(repr(result)) < 200 and len(repr(federation)) < 200
    assert "FedAvg" in repr(result) and "1 x 1 rounds, ok" in repr(result)
    assert "2 clients" in repr(federation) and "float32[3], 2 classes" in repr(
        federation
    )


def test_a_federation_inside_a_compiled_program_has_a_representation(parts):
    seen = jax.jit(lambda tree: repr(tree) and tree.num_clients)
    assert seen(parts["federation"]) == 2


def process(**fields):
    return {"process": fp.FederatedProcess(**{"algorithm": fp.FedAvg()} | fields)}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"key": 0}, ["key", "jax.random.key(seed)", "got 0"]),
        ({"key": np.random.default_rng(0)}, ["jax.random.key(seed)", "Generator"]),
        ({"process": fp.FedAvg()}, ["FederatedProcess(algorithm=", "FedAvg"]),
        (process(participation=10), ["participation", "UniformCohort(size=10)", "10"]),
        (process(work=None), ["work", "None"]),
        ({"model": "mlp"}, ["model", "MLP(widths=(64,))", "'mlp'"]),
        ({"model": fp.MLP}, ["model", "the class MLP instead of MLP(...)"]),
        ({"federation": "digits"}, ["federation", "load_federation", "'digits'"]),
        ({"num_rounds": 2.5}, ["num_rounds", "whole number", "2.5"]),
    ],
)
@pytest.mark.parametrize("call", [fp.simulate, fp.simulate_streamed])
def test_arguments_of_another_kind_are_refused_in_one_sentence(
    parts, call, wrong, words
):
    with pytest.raises(fp.InputError) as error:
        call(**parts | wrong)
    message = str(error.value)
    assert all(word in message for word in words), message


def test_a_grid_takes_a_specification_and_lists(parts):
    key, base, model = (parts[name] for name in ("key", "process", "model"))
    with pytest.raises(
        fp.InputError, match="FederationSpec.*a federation, got 'digits"
    ):
        fp.grid(key, base, model, "digits", {"seed": [0]}, 1)
    for values in (0.1, "0.1"):
        with pytest.raises(fp.InputError, match="a list of values for axis 'seed'"):
            fp.grid(key, base, model, fp.FederationSpec(), {"seed": values}, 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fp.SGD(0.1), "by their names.*learning_rate.*1 without: 0.1"),
        (lambda: fp.SGD(lr=0.1), "Unknown field of SGD 'lr'; allowed: .*learning_rate"),
        (lambda: fp.SGD(learnin_rate=1), "did you mean 'learning_rate'"),
        (lambda: fp.FedAvg(local=fp.SGD), "local of FedAvg .*class SGD instead of SGD"),
        (lambda: fp.SGD(learning_rate=-1), "learning_rate.* above 0, got -1"),
    ],
)
def test_fields_and_names_that_do_not_exist_are_named(make, words):
    with pytest.raises(fp.InputError, match=words):
        make()
