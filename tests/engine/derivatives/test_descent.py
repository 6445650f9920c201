"""Values per client that are learned in steps, and what going back keeps."""

import numpy as np
import optax
import pytest

import fedjax_pfl as fp
from fedjax_pfl import data
from fedjax_pfl.core import checks
from fedjax_pfl.engine import grids, groups
from fedjax_pfl.engine.derivatives import descent, reverse, trainer
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.trainer import Interrupted
from tests.engine.derivatives.test_per_client import KEY

FIELD = "algorithm.lam"
NAME = f"per_client.{FIELD}"
WHAT = trainer.Differentiation((NAME,), Objective.parse("validation:loss:personal"))
SPEC = fp.FederationSpec(
    data.GaussianClasses(dim=40, num_classes=5, examples_per_client=40),
    "by_client",
    num_clients=6,
    validation_fraction=0.2,
)


def planned(num_rounds=6, solver=None, **options):
    solver = solver or fp.SGD(learning_rate=0.2, epochs=2, batch_size=5)
    process = fp.FederatedProcess(algorithm=fp.Ditto(lam=0.5, local=solver))
    (group,) = grids.groups_of(KEY, process, fp.LogisticRegression(), SPEC, {})
    options = Options(num_rounds=num_rounds, **options)
    return groups.plan(descent.begun(group, [FIELD], per="client"), options)


@pytest.fixture(scope="module")
def backward():
    return reverse.Backward(planned(), WHAT)


def run(backward, directory, stop_at=None):
    """Takes five steps, ended after so many; returns the descent."""
    store = fp.Checkpoints(directory, min_seconds=1e9).store(0, "Ditto")
    made = descent.Descent(backward, optax.adam(0.3), 5, store)
    made.run(lambda: "asked" if made.done == stop_at else None, lambda done, text: None)
    return made


def test_a_descent_goes_on_from_its_checkpoint_bit_for_bit(backward, tmp_path):
    whole = run(backward, tmp_path / "whole")
    for stop in (1, 3):
        with pytest.raises(Interrupted, match=f"asked at round {6 * stop}"):
            run(backward, tmp_path / "parts", stop)
    parts = run(backward, tmp_path / "parts")
    np.testing.assert_array_equal(parts.path, whole.path)
    np.testing.assert_array_equal(parts.best[NAME], whole.best[NAME])
    assert (whole.path[:, -1] < whole.path[:, 0]).all()
    rounds = []
    again = descent.Descent(
        *(backward, optax.adam(0.3), 5),
        fp.Checkpoints(tmp_path / "parts").store(0, "Ditto"),
    )
    again.run(lambda: None, lambda done, text: rounds.append(done))
    assert rounds == [30]  # all of it, and nothing trained


def test_checkpoints_of_another_descent_are_refused(backward, tmp_path):
    run(backward, tmp_path)
    store = fp.Checkpoints(tmp_path).store(0, "Ditto")
    with pytest.raises(checks.InputError, match="another training: trainings was 5"):
        descent.Descent(backward, optax.adam(0.3), 6, store)


def test_other_files_beside_checkpoints_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    process = fp.FederatedProcess(algorithm=fp.Ditto())
    with pytest.raises(checks.InputError, match=r"checkpoints of learn, .*'notes.txt'"):
        fp.learn(
            *(KEY, process, fp.LogisticRegression(), SPEC, FIELD, 2),
            per="client",
            checkpoints=fp.Checkpoints(tmp_path),
        )


def test_pieces_have_the_derivatives_of_one_pass(backward, monkeypatch):
    """Of six rounds in pieces of two or three, each of which is trained once more."""
    value, slopes = backward()
    monkeypatch.setattr(reverse, "_ALL", 0)
    pieces = reverse.Backward(planned(), WHAT)
    assert pieces.kept.pieces in [(2, 3), (3, 2)]
    other, others = pieces()
    np.testing.assert_allclose(other, value, rtol=1e-13)
    np.testing.assert_allclose(others[NAME], slopes[NAME], rtol=1e-10, atol=1e-15)


@pytest.mark.wide
def test_memory_is_that_of_rows_and_of_local_steps(monkeypatch):
    """Of 205 numbers. Ditto's global part, in which lam has no say, keeps no step."""
    kept = [
        reverse.kept(planned(solver=fp.SGD(epochs=epochs, batch_size=5)), (NAME,))
        for epochs in (1, 2, 3)
    ]
    row = 205 * 8
    assert len({one.round for one in kept}) == 1
    assert 6 * row <= kept[0].round <= 5 * 6 * row
    more = kept[1].steps - kept[0].steps
    assert kept[2].steps - kept[1].steps == more
    steps = 6 * -(-int(SPEC.build().train.num_examples.max()) // 5)
    assert steps * row <= more <= 1.2 * steps * row
    assert kept[0].pieces == (1, 6)
    whole = kept[0].total
    monkeypatch.setattr(reverse, "_ALL", 0)
    assert kept[0].pieces[0] > 1 and kept[0].total < whole


def test_memory_is_about_what_the_compiler_says(backward):
    program = backward._program.memory_analysis()
    assert 0.8 * backward.kept.total <= program.temp_size_in_bytes
    assert program.temp_size_in_bytes <= 4 * backward.kept.total


def test_what_does_not_fit_is_refused_before_it_is_compiled():
    group = planned(200, memory_limit="1MB")
    sentence = r"200 rounds of 6 clients needs .* of which .* more than the 1 MB"
    with pytest.raises(checks.InputError, match=sentence):
        reverse.Backward(group, WHAT)
