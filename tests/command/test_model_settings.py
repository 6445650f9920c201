"""Roles and adapters of models on the command line."""

import numpy as np
import pytest
import safetensors.numpy

import fedjax_pfl as fp
from experiments import sweep
from fedjax_pfl import core
from fedjax_pfl.command import presets
from fedjax_pfl.command.presets import experiment, wrappers
from fedjax_pfl.core import struct, tree_paths
from fedjax_pfl.results import labels
from tests.command.commands import call, refused

pytestmark = pytest.mark.usefixtures("elsewhere", "no_figures")
TARGETS = "model.adapters.targets=^hidden_0/"


def grids(*texts, preset="own_data"):
    return experiment.apply_settings(presets.get(preset), texts).grids


def with_adapters(model):
    """Adds a preset of one method that trains a model with adapters."""
    spec = fp.FederationSpec("digits", num_clients=4)
    made = experiment.grids_of([fp.FedAvg()], model, spec)
    return experiment.Experiment(name="adapted", grids=made, num_rounds=1)


@pytest.mark.parametrize(
    ("texts", "model"),
    [
        (
            (TARGETS, "model.adapters.rank=4"),
            fp.lora(fp.MLP(widths=(64,)), targets="^hidden_0/", rank=4),
        ),
        (
            ("model.roles.personal=^head/", TARGETS, "model.widths=[8,8]"),
            fp.lora(fp.MLP(widths=(8, 8)), targets="^hidden_0/", personal="^head/"),
        ),
        (
            (TARGETS, 'model.roles.trained="^adapters/|(?:^head/)"'),
            fp.lora(fp.MLP(widths=(64,)), targets="^hidden_0/", trained="^head/"),
        ),
        (
            ("model.roles.frozen=^hidden", "model.roles.seed=3"),
            fp.ParameterRoles(fp.MLP(widths=(64,)), frozen="^hidden", seed=3),
        ),
        (
            (TARGETS, "model.roles.frozen=^h", "model=logistic_regression"),
            fp.ParameterRoles(
                fp.models.LowRank(
                    model=fp.LogisticRegression(), targets="^hidden_0/", rank=8
                ),
                frozen="^h",
            ),
        ),
    ],
)
def test_settings_make_the_model_of_the_api(texts, model):
    assert {grid.model for grid in grids(*texts)} == {model}


def test_ranks_and_patterns_are_swept():
    (grid, *_) = grids(TARGETS, "model.adapters.rank=2,4", "model.roles.seed=0,1")
    assert grid.axes["model.adapters.rank"] == (2, 4)
    assert grid.axes["model.roles.seed"] == (0, 1)
    assert grid.model.model.rank == 2


def test_settings_change_and_remove_the_wrappers_of_a_preset(monkeypatch):
    model = fp.lora(fp.MLP(widths=(5,)), targets="^hidden_0/", trained="^head/")
    monkeypatch.setitem(presets.PRESETS, "adapted", lambda: with_adapters(model))

    def changed(*texts):
        (grid,) = grids(*texts, preset="adapted")
        return grid.model

    assert changed("model.adapters.rank=2").model.rank == 2
    assert changed("model.widths=[3]").model.model == fp.MLP(widths=(3,))
    assert changed("model=cnn").model.model == fp.CNN()
    whole = changed("model.adapters=none", "model.roles=none")
    assert whole == fp.MLP(widths=(5,))
    head = changed("model.adapters=none", "model.roles.trained=^head/")
    assert head == fp.ParameterRoles(fp.MLP(widths=(5,)), trained="^head/")
    start = {"params": np.ones(3)}
    (grid,) = grids(preset="adapted")
    started = grid.started(start).model
    assert started.model.rank == model.model.rank
    np.testing.assert_array_equal(started.initial_params.params["params"], np.ones(3))


def test_only_adapters_can_be_removed_with_what_they_froze():
    model = fp.lora(fp.MLP(widths=(5,)), targets="^hidden_0/")
    removed = wrappers.wrap(model, {"model.adapters": ("none",)})
    assert removed == fp.ParameterRoles(fp.MLP(widths=(5,)))


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (("model.adapters.rank=4",), "--set model.adapters.targets=PATTERN"),
        (("model.roles.personl=x",), "did you mean 'model.roles.personal'?"),
        (("model.adapter.rank=3",), "did you mean 'model.adapters.rank'?"),
        (("model.adapters=low_rank",), "or model.adapters=none, got 'low_rank'"),
        (("model.roles=^head",), "or model.roles=none, got '^head'"),
        ((TARGETS, "model.adapters.rank=0"), "rank to be a whole number of at least 1"),
        ((TARGETS, "model.adapters.rank=1.5"), "rank to be a whole number, got 1.5"),
        (("model.roles.personal=(",), "personal to be a regular expression"),
        (
            ("model.roles.frozen=a", "model.roles.trained=b"),
            "model.roles.frozen or model.roles.trained, got both",
        ),
        (
            ("model.roles.trained=^had",),
            "trained='^had' to match some of the model's parameters: head/bias",
        ),
        (
            (TARGETS, "model.adapters.rank=65"),
            "rank of at most 64, the smaller side of 'hidden_0/kernel'",
        ),
    ],
)
def test_wrong_settings_are_one_sentence(texts, words):
    asked = [part for text in texts for part in ("--set", text)]
    assert words in refused(sweep.app, "--preset own_data --dry-run", *asked)


@pytest.mark.wide
def test_a_sweep_over_ranks_names_them_and_starts_from_a_file():
    network = fp.MLP(widths=(6,))
    params = network.for_federation(fp.load_federation("digits")).init(core.seed_key(0))
    flat = {n: np.asarray(v) for n, v in tree_paths.by_name(params).items()}
    safetensors.numpy.save_file(flat, "start.safetensors")
    line = "--preset own_data --algorithm fedavg --clients 4 --seeds 1 --rounds 1"
    line += f" --set model.widths=[6] --set {TARGETS} --set model.adapters.rank=1,2"
    line += " --set algorithm.fine_tune=none --init start.safetensors"
    call(sweep.app, f"{line} --out out --save-models last")
    table = fp.Result.load("out").table()
    assert set(table["model.adapters.rank"]) == {1, 2}
    saved = fp.load_models("out").find(model="global", **{"model.adapters.rank": 2})
    assert saved.params["adapters"]["hidden_0"]["kernel"]["a"].shape == (64, 2)


def test_parts_that_some_models_lack_tell_trainings_apart():
    class Group:
        points = ()

        def __init__(self, model):
            self.config = struct.plain_fields(model, "model")

    whole, head, other = (
        fp.MLP(widths=(5,)),
        fp.ParameterRoles(fp.MLP(widths=(5,)), trained="^head/"),
        fp.LogisticRegression(),
    )
    assert labels.fields([Group(whole), Group(head)]) == ("model.roles",)
    assert labels.fields([Group(whole), Group(whole)]) == ()
    assert "model.roles" not in labels.fields([Group(head), Group(head)])
    assert "model.roles" not in labels.fields([Group(whole), Group(other)])
