"""The page on training settings: every line of it works."""

import ast
import pathlib
import re

import pytest

import fedjax_pfl as fp
from fedjax_pfl.command import presets
from fedjax_pfl.command.presets.experiment import apply_settings

PAGE = pathlib.Path(__file__).parents[2] / "docs/training.md"
ROWS = re.findall(
    r"^\|[^|]*\| `--set (algorithm\.local\.(\w+)=\S+)` \| `(\w+)=(.*)` \|$",
    PAGE.read_text("utf-8"),
    re.MULTILINE,
)


def test_the_page_has_the_settings():
    assert len(ROWS) == 9


@pytest.mark.parametrize(("setting", "name", "field", "value"), ROWS)
def test_every_line_is_the_same_in_python(setting, name, field, value):
    experiment = presets.get("own_data").single()
    (grid,) = apply_settings(experiment, ["algorithm=fedavg", setting]).grids
    (before,) = apply_settings(experiment, ["algorithm=fedavg"]).grids
    assert name == field
    solver, old = grid.process.algorithm.local, before.process.algorithm.local
    assert getattr(solver, field) == ast.literal_eval(value) != getattr(old, field)
    assert isinstance(solver, fp.SGD)


def test_schedules_work_on_the_command_line_and_in_a_grid():
    names = 'algorithm.local.learning_rate=["cosine",0.1,20],["linear",0.1,0.0,20]'
    settings = ["algorithm=fedavg,local", names, "algorithm.local.per_round=true"]
    for grid in apply_settings(presets.get("own_data"), settings).grids:
        values = grid.axes["algorithm.local.learning_rate"]
        assert values == (("cosine", 0.1, 20), ("linear", 0.1, 0.0, 20))
