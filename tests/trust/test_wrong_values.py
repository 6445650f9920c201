"""Wrong values of every public field: an object, or one sentence that names it."""

import dataclasses
import importlib
import pathlib
import types
import typing

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import fedjax_pfl as fp
from tests.project.test_docs import INNER_ROOMS, ROOMS


class Foreign:
    """A class that is no part of anything."""


def wrong_values():
    """Values of every kind, by their names; new ones, as some can be used up."""
    return {
        "None": None,
        "true": True,
        "minus one": -1,
        "zero": 0,
        "half": 0.5,
        "NaN": float("nan"),
        "infinity": float("inf"),
        "minus infinity": float("-inf"),
        "huge": 10**400,
        "too many digits": 10**5000,
        "complex": 1j,
        "empty text": "",
        "text": "nosuch",
        "long text": "a" * 10**6,
        "character 0": "a\0b",
        "bytes": b"x",
        "empty tuple": (),
        "tuple of None": (None,),
        "list": [1],
        "dict": {"a": 1},
        "set": {3},
        "vector": np.zeros(3),
        "empty array": np.zeros((2, 0)),
        "array of NaN": np.array(np.nan),
        "matrix": jnp.ones((2, 2)),
        "array of text": np.array(["a", "b"]),
        "array of objects": np.array([None, {}], object),
        "date": np.datetime64("2020-01-01"),
        "class": Foreign,
        "object": Foreign(),
        "function": lambda *args, **kwargs: None,
        "iterator": iter([1]),
        "path": pathlib.Path("nosuch"),
        "method": fp.Flame(),
        "class of a method": fp.Flame,
    }


def public_classes():
    """Public dataclasses by the name under which the reference has them."""
    found = {}
    for room in ("", *(f".{name}" for name in (*ROOMS, *INNER_ROOMS, "benchmark"))):
        module = importlib.import_module(f"fedjax_pfl{room}")
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                found.setdefault(value, f"fp{room}.{name}")
    return found


EXAMPLES = {  # fields that have no default, of classes that users make
    "Blockwise": {
        "parts": (fp.CoordinateMedian(), fp.Krum(num_malicious=1)),
        "patterns": ("^head/", ""),
    },
    "Buffered": {"size": 3},
    "Checkpoints": {"directory": "runs"},
    "CyclicCohorts": {"size": 3},
    "Dataset": {"name": "own", "x": np.eye(4), "y": np.arange(4)},
    "DataLoss": {"model": fp.MLP()},
    "Downlink": {"shared": np.zeros(3)},
    "EarlyExit": {"network": fp.MLP(input_shape=(4,), num_classes=3)},
    "LowRank": {"model": fp.MLP(), "targets": "kernel"},
    "NoisyRound": {"number": 0, "key_of": lambda at: at},
    "PriceTables": {"prices": np.zeros((90, 2)), "days": 80, "train_days": 60},
    "Tables": {"scores": pd.DataFrame(), "searches": pd.DataFrame()},
    "TrainedModels": {"directory": pathlib.Path("models"), "table": pd.DataFrame()},
    "FederatedProcess": {"algorithm": fp.Flame()},
    "Gradients": {"count": 10},
    "Joint": {"objective": fp.local.DataLoss(fp.MLP())},
    "Minutes": {"count": 10},
    "Optax": {"hyperparameters": {"learning_rate": 0.1}, "optimizer": optax.adam},
    "Options": {"num_rounds": 2},
    "ParameterRoles": {"model": fp.MLP(), "personal": "^head/"},
    "Partition": {"index": np.zeros((2, 2), int), "num_examples": np.ones(2, int)},
    "Predictor": {"apply": lambda params, x: x, "params": {}},
    "Preparation": {"numbers": np.zeros((4, 1)), "columns": np.arange(1)},
    "PriceFile": {"path": "prices.csv"},
    "Range": {"low": 0.1, "high": 1.0},
    "Rounds": {"count": 10},
    "StopWhen": {"patience": 2},
    "Subject": {"algorithm": fp.Flame()},
    "Synchronous": {"size": 3},
    "Task": {
        "name": "own",
        "methods": {"flame": fp.FederatedProcess(algorithm=fp.Flame())},
        "model": fp.MLP(),
        "spec": fp.FederationSpec(),
        "num_rounds": 2,
    },
    "UniformCohort": {"size": 3},
    "Upload": {"message": np.zeros(3), "weight": 1.0},
}


def of_annotation(kind):
    """A value of an annotation, for records that the package makes itself."""
    origin, of = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Annotated, typing.Union, types.UnionType):
        return of_annotation(of[0])
    if origin is tuple:
        return tuple(of_annotation(part) for part in of if part is not ...)
    if dataclasses.is_dataclass(origin):
        return example(origin)
    if origin is np.ndarray or origin is jax.Array:
        return np.zeros(2)
    plain = {int: 1, float: 0.5, str: "a", bool: True, dict: {}}
    if origin in plain:
        return plain[origin]
    return {} if "Mapping" in str(origin) else None


UNNAMED = (fp.messages.LowRank,)  # which has the name of a model


def example(cls):
    """A valid object of a class."""
    if cls is fp.engine.Optuna:
        optuna = pytest.importorskip("optuna")
        return cls(optuna.samplers.RandomSampler())
    given = EXAMPLES.get(cls.__name__, {}) if cls not in UNNAMED else {}
    for field in dataclasses.fields(cls):
        missing = dataclasses.MISSING
        is_required = field.default is missing and field.default_factory is missing
        if is_required and field.name not in given:
            given = {field.name: of_annotation(field.type)} | given
    return cls(**given)


CLASSES = public_classes()


def is_any(field):
    """Whether a field takes any tree."""
    return "Any" in str(field.type) or isinstance(field.type, str)


def is_sentence(error):
    """Whether an error is one sentence, of some length."""
    words = str(error)
    return len(words) < 4000 and words[0].isupper() and words[-1] in ".?"


@pytest.mark.parametrize("cls", CLASSES, ids=CLASSES.values())
def test_wrong_values_get_a_sentence_or_make_an_object(cls):
    base = example(cls)
    problems = []
    for field in dataclasses.fields(cls):
        refused = 0
        for name, value in wrong_values().items():
            try:
                dataclasses.replace(base, **{field.name: value})
            except fp.InputError as error:
                refused += 1
                if not is_sentence(error):
                    problems.append((field.name, name, str(error)[:300]))
            except Exception as error:
                problems.append((field.name, name, repr(error)[:300]))
        if not refused and not is_any(field):
            problems.append((field.name, "anything is accepted"))
    assert not problems, problems


PARTS = {  # field of a process -> classes of such parts
    "algorithm": fp.algorithms.ALGORITHMS,
    "aggregator": fp.algorithms.AGGREGATORS,
    "attack": fp.algorithms.ATTACKS,
    "participation": fp.algorithms.PARTICIPATIONS,
    "work": fp.algorithms.WORK,
    "transforms": fp.algorithms.TRANSFORMS,
    "model": fp.algorithms.MODELS,
}
CASES = [
    pytest.param(place, registry[name], id=f"{place}-{name}", marks=pytest.mark.wide)
    for place, registry in PARTS.items()
    for name in registry
]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of settings that do nothing
@pytest.mark.parametrize(("place", "cls"), CASES)
def test_objects_of_wrong_values_train_or_get_a_sentence(place, cls):
    """What a constructor accepts is a setting: nothing else is raised in a round."""
    x = np.random.default_rng(0).normal(size=(48, 16, 16, 3))
    y, owners = [0, 1, 1] * 16, list("abcd") * 12
    federation = fp.Federation.from_arrays(x, y, owners, malicious_fraction=0.25)
    base, problems = example(cls), []
    for field in dataclasses.fields(cls):
        for name, value in wrong_values().items():
            try:
                part = dataclasses.replace(base, **{field.name: value})
                model = part if place == "model" else fp.LogisticRegression()
                own = {place: (part,) if place == "transforms" else part}
                own.pop("model", None)
                process = fp.FederatedProcess(**{"algorithm": fp.FedAvg()} | own)
                fp.simulate(
                    jax.random.key(0), process, model, federation, 1, progress=False
                )
            except fp.InputError as error:
                if not is_sentence(error):
                    problems.append((field.name, name, str(error)[:300]))
            except Exception as error:
                problems.append((field.name, name, repr(error)[:300]))
    assert not problems, problems
