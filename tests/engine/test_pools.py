"""Federations whose parts have pools of their own, against ones of a single pool."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import core
from fedjax_pfl.core import checks
from fedjax_pfl.engine import grids, simulation
from fedjax_pfl.models import inputs
from tests.lanes import wide

KEY = jax.random.key(0, impl="threefry2x32")
PROCESS = fp.FederatedProcess(
    algorithm=fp.FedAvg(local=fp.SGD(learning_rate=0.3, batch_size=4))
)
NUM, PARTS = 4, ("train", "validation", "test")
SIZES = {"train": 24, "validation": 8, "test": 40}  # rows of the pools


def part(x, y, index):
    """Examples of clients `index [N, M]` in a pool."""
    count = jnp.full(NUM, index.shape[1], jnp.int32)
    return core.ClientData(
        x=jnp.asarray(x),
        y=jnp.asarray(y),
        scale=jnp.asarray(1.0),
        shift=jnp.asarray(0.0),
        index=jnp.asarray(index, jnp.int32),
        num_examples=count,
        client_id=jnp.arange(NUM, dtype=jnp.int32),
    )


def arrays():
    """Inputs, classes and lists by the name of the part."""
    rng = np.random.default_rng(0)
    found = {}
    for name, size in SIZES.items():
        y = rng.integers(0, 3, size).astype(np.int32)
        x = rng.normal(size=(size, 2)) + y[:, None]
        found[name] = (x, y, rng.permutation(size).reshape(NUM, -1))
    return found


def federation(*, is_joined=False):
    """Pools of their own, or one after the other in a single one."""
    found = arrays()
    if is_joined:
        x, y = (jnp.concatenate([found[n][k] for n in PARTS]) for k in range(2))
        firsts = np.cumsum([0, *SIZES.values()])
        found = {
            n: (x, y, found[n][2] + f) for n, f in zip(PARTS, firsts, strict=False)
        }
    others = jnp.asarray([[1], [2], [3], [0]], jnp.int32)
    parts = {name: part(*found[name]) for name in PARTS}
    return fp.Federation(
        **parts, malicious=jnp.zeros(NUM, bool), others=others, num_classes=3
    )


@pytest.mark.parametrize("execution", ["vmap", wide("shard")])
def test_trainings_and_evaluations_are_those_of_one_pool(execution):
    options = {"evaluate_on": (*PARTS, "others", "everybody"), "progress": False}
    found, wanted = (
        simulation.simulate(
            *(KEY, PROCESS, fp.LogisticRegression(), federation(is_joined=is_joined)),
            num_rounds=3,
            execution=execution,
            **options,
        )
        for is_joined in (False, True)
    )
    columns = ["round", "metric", "model", "data", "population", "value"]
    values = [result.curves()[columns] for result in (found, wanted)]
    assert set(values[0]["data"]) >= {"own test", "own validation", "own training"}
    assert values[0].drop(columns="value").equals(values[1].drop(columns="value"))
    np.testing.assert_allclose(values[0]["value"], values[1]["value"], rtol=1e-9)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Federations whose test pools grow with the seed."""

    seed: int = 0

    def build(self):
        made = federation()
        x = jnp.pad(made.test.x, ((0, self.seed), (0, 0)))
        y = jnp.pad(made.test.y, (0, self.seed))
        return dataclasses.replace(made, test=dataclasses.replace(made.test, x=x, y=y))

    def describe(self):
        return {"dataset": "recipe", "seed": self.seed}


def test_pools_of_several_shapes_are_several_programs():
    setting = KEY, PROCESS, fp.LogisticRegression(), Recipe()
    groups = grids.groups_of(*setting, {"seed": [0, 5, 0]})
    assert [len(group.points) for group in groups] == [2, 1]


@pytest.mark.parametrize(
    ("name", "field", "leaf", "match"),
    [
        ("test", "x", jnp.zeros((40, 3)), r"test.x to hold float64\[2\].* got float64"),
        ("test", "x", jnp.zeros((40, 2), int), r"float64\[2\] .* got int64\[2\]"),
        ("validation", "y", jnp.zeros(8), r"validation.y to hold int32\[\] .* float64"),
    ],
)
def test_examples_of_another_form_are_refused(name, field, leaf, match):
    made = federation()
    other = dataclasses.replace(getattr(made, name), **{field: leaf})
    made = dataclasses.replace(made, **{name: other})
    with pytest.raises(checks.InputError, match=match):
        simulation.simulate(
            KEY, PROCESS, fp.LogisticRegression(), made, 2, progress=False
        )


def test_a_vocabulary_has_the_words_of_all_pools():
    made = federation()
    tokens = {
        name: dataclasses.replace(
            getattr(made, name), x=jnp.full((size, 5), number, jnp.int32)
        )
        for number, (name, size) in enumerate(SIZES.items())
    }
    assert inputs.vocabulary_of(dataclasses.replace(made, **tokens)) == 3
