"""Searches whose settings an Optuna study suggests."""

import sys

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import data, models
from fedjax_pfl.core import checks
from fedjax_pfl.engine import tuning

KEY = jax.random.key(0, impl="threefry2x32")
# `|theta - x|^2 / 2` of one point per client: a step of size 1 is exact.
SPEC = fp.FederationSpec(
    data.Quadratic(dim=2), "by_client", num_clients=3, validation_fraction=0.3
)
PROCESS = fp.FederatedProcess(
    algorithm=fp.Local(local=fp.SGD(learning_rate=0.1, batch_size=64))
)
RATE = "algorithm.local.learning_rate"


@pytest.fixture
def optuna():
    found = pytest.importorskip("optuna")
    found.logging.set_verbosity(found.logging.WARNING)
    return found


def search(source, *, batch_size=6, num_rounds=10, **changes):
    options = {"space": {RATE: tuning.Range(0.01, 1000)}, "metric": "loss"}
    options |= {"num_settings": 30, "seeds": [0], "eval_every": num_rounds}
    options |= {"progress": False, "execution": "vmap"} | changes
    strategy = fp.engine.Optuna(source, batch_size=batch_size)
    model = models.Quadratic()
    base = (KEY, PROCESS, model, SPEC, num_rounds)
    return tuning.tune(*base, strategy=strategy, **options)


def sampler(optuna):
    return optuna.samplers.TPESampler(seed=0, n_startup_trials=6)


def test_a_study_finds_the_step_of_a_quadratic(optuna):
    study = optuna.create_study(sampler=sampler(optuna))
    tuned = search(study)
    assert abs(tuned.best[RATE] - 1) < 0.2  # in a range of five powers of ten
    assert len(study.trials) == len(tuned.trials()) == 30
    assert study.best_params[RATE] == pytest.approx(tuned.best[RATE], rel=1e-12)
    assert all(trial.state.name == "COMPLETE" for trial in study.trials)


def test_a_setting_that_diverges_is_told_as_infinitely_bad(optuna):
    study = optuna.create_study(sampler=sampler(optuna))
    # After 200 rounds of steps above 36, parameters are beyond all floats.
    tuned = search(study, num_rounds=200, num_settings=12)
    diverged = [trial for trial in study.trials if trial.params[RATE] > 36]
    assert diverged and all(trial.value == np.inf for trial in diverged)
    count = sum("diverged" in status for status in tuned.trials()["status"])
    assert count == len(diverged)


def test_nothing_is_compiled_between_batches(optuna, compilations):
    ends = []

    class Count(fp.Callback):
        def end(self, result):
            ends.append(len(compilations))

    jax.clear_caches()
    search(sampler(optuna), callbacks=[Count()])
    assert len(ends) == 5 and ends[0] > 0
    assert compilations[ends[0] :] == []


def test_a_seeded_sampler_repeats_and_resumes(optuna, tmp_path):
    whole = search(sampler(optuna))
    checkpoints = fp.Checkpoints(tmp_path / "search", min_seconds=0)

    class StopAt(fp.Callback):
        calls = 0

        def begin(self, trainings):
            StopAt.calls += 1
            if StopAt.calls == 3:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        search(sampler(optuna), checkpoints=checkpoints, callbacks=[StopAt()])
    again = search(sampler(optuna), checkpoints=checkpoints)
    assert again.trials().equals(whole.trials())


def test_budgets_end_a_study(optuna):
    tuned = search(sampler(optuna), num_settings=None, budget=fp.engine.Rounds(100))
    assert len(tuned.trials()) == 10 and tuned.rounds == 100
    study = optuna.create_study(sampler=sampler(optuna))
    minutes = fp.engine.Minutes(1e-9)
    tuned = search(study, num_settings=None, budget=minutes, eval_every=1)
    assert tuned.unfinished == 6
    assert [trial.state.name for trial in study.trials] == ["PRUNED"] * 6


def test_lists_are_suggested_by_value_or_by_number(optuna):
    space = {RATE: tuning.Range(0.1, 1.5), "algorithm.local.epochs": [1, 2]}
    space |= {"participation": [fp.AllClients(), fp.UniformCohort(size=2)]}
    study = optuna.create_study(sampler=sampler(optuna))
    tuned = search(study, space=space, num_settings=4, batch_size=2)
    assert tuned.best["algorithm.local.epochs"] in (1, 2)
    assert {t.params["participation"] for t in study.trials} <= {0, 1}
    assert {t.params["algorithm.local.epochs"] for t in study.trials} <= {1, 2}


def test_wrong_studies_get_one_sentence(optuna):
    with pytest.raises(checks.InputError, match="an Optuna study or sampler"):
        fp.engine.Optuna("tpe")
    with pytest.raises(checks.InputError, match="batch_size"):
        fp.engine.Optuna(sampler(optuna), batch_size=0)
    upward = optuna.create_study(direction="maximize")
    with pytest.raises(checks.InputError, match="direction minimize, as loss asks"):
        search(upward)
    several = optuna.create_study(directions=["minimize", "minimize"])
    with pytest.raises(checks.InputError, match="got minimize, minimize"):
        search(several)


def test_without_optuna_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(checks.InputError, match="fedjax_pfl.optuna."):
        fp.engine.Optuna("tpe")
