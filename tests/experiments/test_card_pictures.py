"""Pictures of kept runs, which the documentation shows in the pages of cards."""

import pytest

from experiments.cards import __main__, kept, pictures
from tests import histories

RESULTS = __main__.FOLDER / "results"


@pytest.mark.parametrize(
    "run",
    [
        "flame/flame_lam_mnist",  # three values of a field
        "flame/flame_attacks_paper_mnist_hybrid",  # fractions of malicious clients
        "flame/flame_beyond_mnist_hybrid",  # attacks of one fraction
        "fedplus/fedplus_attacks",  # one attack, which only the command names
    ],
)
def test_what_was_swept_is_drawn(tmp_path, run):
    files = {file.name: file for file in pictures.draw(RESULTS / f"{run}.nc", tmp_path)}
    name = run.partition("/")[2]
    kinds = {"swept"}
    if kept.read(RESULTS / f"{run}.nc").rounds is not None:
        kinds |= {"curves", "loss"}
    assert set(files) == {f"{name}-{kind}.png" for kind in kinds}
    file = files[f"{name}-swept.png"]
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_run_without_a_sweep_and_curves_has_no_picture(tmp_path):
    path = RESULTS / "flame/flame_fair_mnist_dir.nc"
    assert pictures.draw(path, tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_recorded_curves_are_drawn(tmp_path):
    result = histories.make_result(histories.make_history())
    groups, attributes = kept.record_of(result)
    path = tmp_path / "run.nc"
    kept.write(path, "command", result.table(), None, groups, **attributes)
    assert "run-curves.png" in [file.name for file in pictures.draw(path, tmp_path)]
