"""The presets of fine-tuning, without their data."""

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from experiments import presets as of_papers
from experiments.presets import finetune
from fedjax_pfl import core, models
from fedjax_pfl.core import struct, tree_paths

METHODS = {"Local", "FedAvg", "Ditto", "Flame", "FedRep"}


@pytest.mark.wide
@pytest.mark.parametrize("name", finetune.PRESETS)
def test_methods_train_the_same_part_from_the_same_start(name):
    experiment = of_papers.PAPERS[name]()
    assert experiment.name == name and len(experiment.seeds) == 5
    (model,) = {grid.model for grid in experiment.grids}
    (spec,) = {grid.spec for grid in experiment.grids}
    assert spec.held_out_users == 0.2
    methods = {type(grid.process.algorithm).__name__ for grid in experiment.grids}
    *_, part = name.split("_")
    assert methods == METHODS - ({"FedRep"} if part == "head" else set())
    if part == "head":
        assert model.trained == "^head/"
    if part == "adapters":
        assert isinstance(model.model, models.LowRank)
    if part == "whole":
        assert getattr(model, "frozen", None) in (None, "^embeddings/")
    whole = finetune.PRESETS[name.replace(part, "whole")]().grids[0].model
    assert struct.innermost(model) == struct.innermost(whole)


@pytest.mark.parametrize(
    ("dataset", "x"),
    [
        ("femnist", np.zeros((20, 28, 28), np.uint8)),
        ("sent140", np.tile(np.arange(5), (20, 1))),
    ],
)
def test_the_patterns_fit_the_networks(dataset, x):
    data = fp.Federation.from_arrays(x, np.arange(20) % 2, num_clients=2)
    for part in finetune.PARTS:
        model = finetune.PRESETS[f"finetune_{dataset}_{part}"]().grids[0].model
        params = jax.eval_shape(model.for_federation(data).init, core.seed_key(0))
        names = tree_paths.by_name(params)
        assert any(name.startswith("head/") for name in names)
        assert any("adapters/" in name for name in names) == (part == "adapters")
        assert not any(name.startswith("embeddings/words") for name in names)
