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
# `|theta - x|^2 / 2` of one point per client: a step of size 1 is exact, and one above
# 2 diverges, beyond all floats after 100 rounds if it is above 40.
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


@pytest.fixture
def compilations():
    """Names of the programs that were compiled."""
    found = []

    def listen(event, duration_secs, fun_name=None, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def search(source, *, batch_size=6, **changes):
    options = {"space": {RATE: tuning.Range(0.01, 1000)}, "metric": "loss"}
    options |= {"num_settings": 30, "seeds": [0], "eval_every": 100}
    options |= {"progress": False, "execution": "vmap"} | changes
    strategy = fp.engine.Optuna(source, batch_size=batch_size)
    model = models.Quadratic()
    return tuning.tune(KEY, PROCESS, model, SPEC, 100, strategy=strategy, **options)


def sampler(optuna):
    return optuna.samplers.TPESampler(seed=0, n_startup_trials=6)


def test_a_study_finds_the_step_of_a_quadratic(optuna):
    study = optuna.create_study(sampler=sampler(optuna))
    tuned = search(study)
    assert 0.5 < tuned.best[RATE] < 1.5
    assert len(study.trials) == len(tuned.trials()) == 30
    assert study.best_params[RATE] == pytest.approx(tuned.best[RATE], rel=1e-12)
    # A setting that diverged is told as infinitely bad.
    diverged = [t for t in study.trials if t.params[RATE] > 45]
    assert diverged and all(trial.value == np.inf for trial in diverged)
    assert "diverged" in str(tuned.trials()["status"].tolist())
    assert all(trial.state.name == "COMPLETE" for trial in study.trials)


def test_nothing_is_compiled_between_batches(optuna, compilations):
    class Count(fp.Callback):
        starts = []

        def begin(self, trainings):
            self.starts.append(len(compilations))

        def end(self, result):
            self.ends = len(compilations)

    counter = Count()
    search(sampler(optuna), callbacks=[counter])
    assert len(counter.starts) == 5
    assert counter.starts[1] > counter.starts[0]
    assert compilations[counter.starts[1] :] == []


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
    tuned = search(sampler(optuna), num_settings=None, budget=fp.engine.Rounds(1000))
    assert len(tuned.trials()) == 10 and tuned.rounds == 1000
    study = optuna.create_study(sampler=sampler(optuna))
    minutes = fp.engine.Minutes(1e-9)
    tuned = search(study, num_settings=None, budget=minutes, eval_every=10)
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
