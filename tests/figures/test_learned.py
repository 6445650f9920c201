"""The picture of learned fields, and the tables behind it."""

import jax
import numpy as np
import pandas as pd

import fedjax_pfl as fp
from fedjax_pfl import figures, results
from fedjax_pfl.figures import learned as pictures
from fedjax_pfl.results import learned
from tests import histories

KEY = jax.random.key(0, impl="threefry2x32")
FIELDS = ("algorithm.lam", "algorithm.local.learning_rate")


def train(algorithm, fields, **options):
    spec = fp.FederationSpec("digits", num_clients=4, validation_fraction=0.2)
    process = fp.FederatedProcess(algorithm=algorithm)
    given = (KEY, process, fp.LogisticRegression(), spec, fields, 2)
    return fp.learn(*given, seeds=[0, 1], progress=False, **options)


def test_paths_survive_the_files(tmp_path):
    starts = [{"algorithm.lam": 0.1}, {"algorithm.lam": 1.0}]
    found = train(fp.Ditto(), FIELDS, eval_every=1, starts=starts)
    found.result.save(tmp_path / "kept")
    kept = results.Result.load(tmp_path / "kept")
    pd.testing.assert_frame_equal(learned.path(kept.groups), found.path)
    table = pd.read_csv(tmp_path / "kept/learned.csv")
    np.testing.assert_allclose(table["objective"], found.path["objective"])
    assert learned.fields(kept.groups) == FIELDS
    assert learned.objective(kept.groups) == "validation:loss:personal"
    shown = figures.catalog()["learned"][0](kept)
    panels = pictures.draw(shown).axes
    assert [len(axes.lines) for axes in panels] == [2, 2, 2]
    titles = ["validation:loss:personal", "lam", "learning_rate"]
    assert [axes.get_title() for axes in panels] == titles


def test_methods_side_by_side_share_a_picture():
    parts = [
        train(fp.Ditto(), FIELDS[1:], num_trainings=2),
        train(fp.FedAvg(), FIELDS[1:], num_trainings=2),
    ]
    merged = results.Result.merge([part.result for part in parts])
    path = learned.path(merged.groups)
    assert path["round"].tolist() == [2, 4, 2, 4]
    assert learned.settings(merged.groups)["algorithm"].tolist() == ["Ditto", "FedAvg"]
    shown = pictures.paths(merged)
    assert shown.objective == "validation:loss:personal, validation:loss:global"
    assert pictures.draw(shown).axes[0].get_title() == "objective"


def test_other_results_have_no_paths():
    result = histories.make_result(histories.make_history())
    assert pictures.paths(result) is None and learned.settings(result.groups) is None
