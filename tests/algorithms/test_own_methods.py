"""Algorithms of users, by the names of their modules."""

import pytest

import fedjax_pfl as fp
from fedjax_pfl.algorithms import own_methods
from fedjax_pfl.command import presets
from fedjax_pfl.command.presets.experiment import apply_settings
from fedjax_pfl.core import checks

MODULE = '''
"""FedAvg with a step of its own."""

import jax
from typing import Any

from fedjax_pfl import core, local
from fedjax_pfl.core import struct
from fedjax_pfl.algorithms import base


@struct.pytree_dataclass
class Half(base.SingleExchange):
    local: Any = local.SGD()
    share: Any = 0.5

    def init(self, key, model, population, data):
        return model.init(key), None, None

    def client_update(self, view, down, client, model):
        w, objective = down.shared, local.DataLoss(model)
        theta, _, info = self.local.solve(view, objective, w, None)
        return None, view.upload(theta), info.report()

    def server_update(self, ctx, server, aggregate, uploads):
        return base.mixture(aggregate, server, self.share)

    def parameters(self, server, client):
        return {"global": server}


@struct.pytree_dataclass
class Bare(Half):
    rate: Any


class Plain(base.SingleExchange):
    pass


class Other:
    pass


nothing = 3
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    name = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE, "utf-8")
    monkeypatch.chdir(tmp_path)
    return name


def test_a_class_of_the_current_directory_is_trained_and_swept(here):
    settings = [
        f"algorithm=fedavg,{here}:Half",
        "algorithm.share=0.5,1.0",
        "federation.num_clients=4",
    ]
    experiment = apply_settings(presets.get("digits"), settings)
    kinds = [type(grid.process.algorithm).__name__ for grid in experiment.grids]
    assert kinds == ["FedAvg", "Half"]
    own = experiment.grids[1]
    assert own.axes == {"algorithm.share": (0.5, 1.0)}
    # It has the solver of the comparison, as the package's own methods have.
    assert own.process.algorithm.local == experiment.grids[0].process.algorithm.local


def test_names_of_the_package_stay_names():
    assert own_methods.find("flame") is fp.Flame


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nothing_there:Half", r"Cannot import .*nothing_there"),
        ("{module}:Missing", "Expected a class 'Missing'"),
        ("{module}:nothing", "Expected a class 'nothing'.*got 3"),
        ("{module}:Other", "without init, round, predictors"),
        ("{module}:Plain", "pytree_dataclass"),
        ("{module}:Bare", "to have defaults, which rate"),
        ("flam", "algorithm"),
    ],
)
def test_what_is_no_algorithm_gets_one_sentence(here, name, sentence):
    with pytest.raises(checks.InputError, match=sentence):
        own_methods.find(name.format(module=here))
