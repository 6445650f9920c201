"""The commands: what they refuse, what they plan, what they leave behind."""

import json
import pathlib
import signal

import pytest

import fedjax_pfl as fp
from experiments import run, sweep
from fedjax_pfl import results
from fedjax_pfl.command import cli, job, presets
from fedjax_pfl.command.presets.experiment import apply_settings
from fedjax_pfl.core import checks
from fedjax_pfl.engine import simulation
from fedjax_pfl.engine.trainer import Interrupted
from tests.command.commands import call, python, refused
from tests.lanes import wide

pytestmark = pytest.mark.usefixtures("elsewhere")


def settings(*texts, preset="own_data"):
    return apply_settings(presets.get(preset), texts)


def test_named_methods_take_what_they_use_of_the_solver():
    grids = settings("algorithm=fedavg,fedpg,lp_proj", preset="digits").grids
    shared, fedpg, lp_proj = (grid.process.algorithm for grid in grids)
    assert fedpg.gradient == "exact" and fedpg.local.epochs == 1 < shared.local.epochs
    assert fedpg.local.learning_rate == shared.local.learning_rate
    assert lp_proj == fp.LpProj()
    epochs = ("algorithm.gradient=epochs", "algorithm.local.epochs=3")
    (grid,) = settings("algorithm=fedpg", *epochs, preset="digits").grids
    assert grid.process.algorithm.local.epochs == 3
    with pytest.raises(checks.InputError, match="gradient='epochs' uses it"):
        settings("algorithm=fedpg", epochs[1], preset="digits")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("algorithm.lamb=1", "did you mean 'algorithm.lam'?"),
        ("algoritm=flame", "did you mean 'algorithm'?"),
        ("aggregator=geometric_mean", "did you mean 'geometric_median'?"),
        ("model=mpl", "did you mean 'mlp'?"),
        ("federation.partition=dirichlet", "did you mean 'dirichlet_labels'?"),
        ("federation.partition=3", "Unknown partition 3"),
        ("algorithm.weighting=exampels", "did you mean 'examples'?"),
        ("algorithm.weighting=3", "algorithm.weighting to be a name, got 3"),
        ("on_nonfinite=halt", "Unknown on_nonfinite 'halt'"),
        ("algorithm.lam=abc", 'algorithm.lam to be a number, got "abc"'),
        ("algorithm.lam=true", "algorithm.lam to be a number, got true"),
        ("algorithm.lam=NaN", "finite number at least 0, got nan"),
        ("algorithm.lam=1,-1", "at least 0, got -1.0"),
        (
            "algorithm.kappa=0",
            "--set algorithm.kappa to be a finite number above 0, got 0",
        ),
        ("algorithm.rho=-1", "Expected --set algorithm.rho to be a finite number abo"),
        ("algorithm.lam=1,1.0", "Expected different values of algorithm.lam"),
        ("algorithm.local.epochs=1.5", "epochs to be a whole number, got 1.5"),
        ("algorithm.local.epochs=0", "whole number of at least 1, got 0"),
        ("model.widths=64", "model.widths to be a list of whole numbers, got 64"),
        ("model.widths=[64,", "to be JSON such as"),
        ("model.widths=[6.5]", "list of whole numbers, got [6.5]"),
        ("federation=3", "one of the fields of federation: federation.dataset"),
        ("federation.num_clients=0", "num_clients to be a whole number of at least 1"),
        ("federation.num_clients=2000", "2000 clients"),
        ("federation.num_clients=two", "to be a whole number"),
        ("federation.data_dir=3", "to be a name or null, got 3"),
        ("federation.test_fraction=0", "got an empty test split"),
        ("participation=uniform", "--set participation.size=..."),
        ("num_rounds=0", "num_rounds to be a whole number of at least 1"),
        ("num_rounds=1,2", "one value of num_rounds"),
        ("seed=-1", "seed to be a whole number of at least 0"),
        ("seed=1.5", "seed to be a whole number"),
        ("model= ", "Expected --set name=value, got 'model= '"),
        ("seed=4294967296", "of at least 0 and at most 4294967295, got 4294967296"),
        ("num_rounds=2147483648", "of at least 1 and at most 2147483647"),
        ("model.widths=[1000000000000]", "of at least 1 and at most 2147483647"),
        ("algorithm.lam=1" + 400 * "0", "algorithm.lam to be a finite number, got 1"),
        ("algorithm.lam=" + 5000 * "9", "to be shorter, got 5000 characters"),
        ("model.widths=" + 9999 * "[", "to be shorter, got 9999 characters"),
        ('federation.data_dir="a\\u0000b"', "text in UTF-8 without the character 0"),
        ("federation.data_dir=\udcff", "text in UTF-8 without the character 0"),
    ],
    ids=lambda text: text[:40],
)
def test_wrong_settings(setting, message):
    assert message in refused(sweep.app, "--preset own_data --set", setting)


def test_fields_that_are_one_of_some_names_take_their_names():
    grids = settings("algorithm=flame", "algorithm.weighting=uniform,examples").grids
    weightings = {grid.process.algorithm.weighting for grid in grids}
    swept = [v for grid in grids for v in grid.axes.get("algorithm.weighting", ())]
    assert {*weightings, *swept} >= {"uniform", "examples"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--dataset mnist", "--data-dir"),
        ("--dataset mnist --data-dir missing", "missing"),
        ("--execution vmapp", "did you mean 'vmap'?"),
        ("--seed-list 1,1", "Expected different seeds"),
        ("--dataset mnist --data-dir ~nobody/x", "does not exist"),
        ("--dataset mnist --data-dir 'a\nb'", r"/a\nb' does not exist"),
        ("--dataset quadratic", "Partition 'label_shards' needs one class"),
        (
            "--preset quadratic --set model=linear_regression",
            "needs one number per example as the target, but those of 'quadratic'",
        ),
        (
            "--preset quadratic --clients 2147483647",
            "Data set 'quadratic' of 2147483647 clients would take 2.06e+03 GB",
        ),
        (
            "--set participation=uniform --set participation.size=61",
            "cohort size to be at most the number of clients 60, got size=61",
        ),
        (
            "--set algorithm.rho=1 --set algorithm.kappa=1",
            "algorithm.rho or algorithm.kappa, got both",
        ),
        ("--seeds many", "--seeds"),
        ("--seeds 0", "--seeds"),
        ("--seeds 10001", "--seeds"),
        ("--seeds 2 --seed-list 1", "give --seeds or --seed-list, not both"),
        ("--seed-list 1,x", "expected whole numbers like 1,10,100, got '1,x'"),
        (f"--seed-list {5000 * '1'}", 5000 * "1"),
        (f"--eval-on test={5000 * '1'}", 5000 * "1"),
        ("--devices 1001", "--devices"),
        ("--rounds 1.5", "--rounds"),
        ("--devices 0", "--devices"),
        ("--seed 1", "--seed"),
    ],
    ids=lambda text: text[:30],
)
def test_wrong_options(line, message):
    assert message in refused(sweep.app, line)


def test_output_directories_are_checked_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(
        simulation, "run_groups", lambda *a, **k: pytest.fail("trained")
    )
    (tmp_path / "there").mkdir()
    assert "does not exist yet, got 'there'" in refused(sweep.app, "--out there")
    (tmp_path / "file").write_text("")
    message = "Cannot write the directory 'file/out'"
    assert message in refused(sweep.app, "--out file/out")


def test_dry_run_counts_static_groups():
    line = "--set algorithm=flame --set algorithm.local.epochs=1,2 --rounds 1 --dry-run"
    done = call(sweep.app, f"{line} --set algorithm.rho=0.1 --seed-list 1,10")
    # lam x epochs x seeds; one group per number of epochs
    assert "20 grid points x 1 round, 2 static groups, 2 comp" in done.stdout
    assert "kappa = 2, 6, 20, 60, 200" in done.stdout  # rho N / lam


def test_run_is_one_training():
    done = call(run.app, "--dry-run")
    assert "1 grid point x 100 rounds, 1 static group" in done.stdout
    wrong = refused(run.app, "--set algorithm.lam=1,2")
    assert "use python -m experiments.sweep" in wrong
    assert "FedAvg" in call(run.app, "--dry-run --set algorithm=fedavg").stdout


def test_settings_reach_every_grid_that_has_the_field():
    experiment = settings("algorithm.local.learning_rate=1", "algorithm.kappa=3")
    rates = [g.process.algorithm.local.learning_rate for g in experiment.grids]
    assert rates == [1.0] * len(experiment.grids)
    assert all(type(rate) is float for rate in rates)
    assert experiment.grids[0].process.algorithm.kappa == 3.0
    assert list(experiment.grids[0].axes) == ["algorithm.lam"]


def test_algorithms_are_those_named():
    experiment = settings("algorithm=fedavg,centralized")
    kinds = [type(grid.process.algorithm) for grid in experiment.grids]
    assert kinds == [fp.FedAvg, fp.Centralized]
    assert experiment.grids[1].process.algorithm.local == fp.SGD()
    assert settings("algorithm=flame").num_points == 9  # lam x seeds


def test_components_make_grids_of_their_own():
    experiment = settings(
        "algorithm=fedavg", "aggregator=geometric_median,none", "model=mlp"
    )
    aggregators = [grid.process.aggregator for grid in experiment.grids]
    assert aggregators == [fp.GeometricMedian(), None]
    assert experiment.grids[0].model == fp.MLP(widths=(64,))  # the preset's own


def test_fields_of_a_new_component():
    experiment = settings(
        "attack.scale=2", "attack=sign_flip", "federation.malicious_fraction=0.2"
    )
    assert {g.process.attack for g in experiment.grids} == {fp.SignFlip(scale=2.0)}
    assert experiment.grids[0].spec.malicious_fraction == 0.2
    experiment = settings("participation=uniform", "participation.size=5,10")
    assert experiment.grids[0].process.participation == fp.UniformCohort(size=5)
    assert experiment.grids[0].axes["participation.size"] == (5, 10)


def test_lists_are_tuples_and_rho_replaces_kappa():
    experiment = settings("model.widths=[64,32],[8]", "algorithm.rho=0.1,0.2")
    grid = experiment.grids[0]
    assert grid.axes["model.widths"] == ((64, 32), (8,))
    assert grid.process.algorithm.kappa is None
    assert "algorithm.kappa" not in grid.axes


def test_the_seed_of_the_data_can_be_fixed():
    grid = settings("federation.seed=7").grids[0]
    assert grid.axes["federation.seed"] == (7,)


@pytest.mark.smoke
def test_sweep_leaves_one_directory(tmp_path):
    line = "--preset quadratic --set algorithm.lam=1,2 --seeds 2 --rounds 4"
    done = call(sweep.app, f"{line} --out a/out")
    *_, place, hint = done.stdout.splitlines()
    assert place == "Results: a/out"
    assert hint == "Report: python -m experiments.report a/out"
    assert "loss, clients' own test data, last round" in done.stdout
    written = {
        path.relative_to("a/out").as_posix()
        for path in pathlib.Path("a/out").rglob("*.*")
        if path.name != ".lock"
    }
    drawn = ("clients", "differences", "learning_curves", "partition", "sweep")
    assert written == {f"figures/{name}.png" for name in drawn} | {
        *("experiment.json", "config.json", "reports.csv", "summary.csv", "history.nc")
    }
    assert not pathlib.Path("a/out/checkpoints").exists()
    stored = json.loads(pathlib.Path("a/out/config.json").read_text())
    assert {"jax", "started", "commit"} <= set(stored["provenance"])
    (group,) = results.Result.load("a/out").groups
    assert [p["algorithm.lam"] for p in group.points] == [1.0, 2.0] * 2
    assert [p["seed"] for p in group.points] == [0, 0, 1, 1]
    # A strong pull makes one's own model worse on one's own data, in every seed.
    loss = group.metrics["loss"][:, -1, group.models.index("personal"), 0].mean(-1)
    assert loss[0] < loss[1]
    assert loss[2] < loss[3]


@pytest.mark.wide
def test_a_diverging_point_is_listed_and_the_others_go_on():
    line = "--preset quadratic --set algorithm.local=sgd --out out"
    done = call(sweep.app, f"{line} --set algorithm.local.learning_rate=0.1,1e30")
    assert "Flame with seed = 0, algorithm.local.learning_rate = 1e+30 diver" in (
        done.stdout
    )
    result = results.Result.load("out")
    assert result.status[0] == "ok"
    assert result.status[1].startswith("diverged at round")
    table = result.table()
    last = table[table["when"] == "last"]
    bad = last["status"] != "ok"
    assert last.loc[bad, "value"].isna().all()
    assert last.loc[~bad, "value"].notna().all()


def test_diagnostics_are_recorded_when_asked_for():
    call(run.app, "--preset quadratic --rounds 3 --quiet --diagnostics --out out")
    (group,) = results.Result.load("out").groups
    residual = group.diagnostics["residual_theta"][0]
    assert residual[-1] < residual[0]
    assert group.per_round["bytes_up"].shape == (1, 3)


def test_an_interrupt_says_how_to_go_on(monkeypatch):
    def interrupt(*_args, **_kwargs):
        raise Interrupted("Interrupted by SIGINT", 0)

    with monkeypatch.context() as patched:
        patched.setattr(simulation, "run_groups", interrupt)
        patched.setattr(job.signals, "number", lambda: signal.SIGINT)
        line = "--preset quadratic --rounds 2 --out 'a b'"
        done = call(sweep.app, line, status=130)
    sentence = "Interrupted by SIGINT at round 0; continue with: python -m experiments."
    assert done.stderr == f"{sentence}sweep --resume 'a b'\n"
    assert call(sweep.app, "--resume 'a b' --quiet").stdout == "a b\n"
    assert results.Result.load("a b").groups[0].rounds[-1] == 2


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--resume nowhere", "Expected a directory that python -m experiments"),
        ("--resume empty", "Expected a directory that python -m experiments"),
        ("--resume foreign", "Cannot read 'foreign/experiment.json'"),
        ("--stop-on a:b --target 1", "expected --stop-on like"),
        ("--stop-on ::loss", "--stop-on needs --patience or --target"),
        ("--target 0.9 --stop-on mine::", "Unknown model to stop on 'mine'"),
        ("--target 0.9 --stop-on :train:", "one of test, validation"),
        ("--target 0.9 --stop-on ::f1", "macro_f1, got 'f1'"),
        ("--target nan", "Expected target to be a finite number, got nan"),
        ("--patience 0", "greater than or equal to 1"),
        ("--eval-on train", "Expected test among the data of --eval-on"),
        ("--max-minutes 0", "Expected max_minutes to be a finite number above 0"),
        ("--resume empty --rounds 3", "--resume continues with the options"),
    ],
)
def test_wrong_options_of_long_work(line, sentence):
    pathlib.Path("empty").mkdir()
    pathlib.Path("foreign").mkdir()
    pathlib.Path("foreign/experiment.json").write_text('{"format": "mine"}')
    assert sentence in refused(sweep.app, line)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("sweep --help", "--seed-list"),
        ("data show --help", "federation.partition.concentration=0.1"),
    ],
)
def test_help_does_not_import_jax(line, text):
    code = (
        "import sys\n"
        "from fedjax_pfl.command import application\n"
        f"try:\n    application.app({line.split()})\n"
        "except SystemExit as end:\n    print(end.code, 'jax' in sys.modules)"
    )
    done = python("-c", code)
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr
    assert text in " ".join(done.stdout.split())


def alone(folder, line):
    """The result of `python -m experiments.run` in a process of its own."""
    variables = {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    variables |= {"XDG_CACHE_HOME": str(folder / "cache")}
    words = ["-m", "experiments.run", "--quiet", *line.split()]
    done = python(*words, "--out", folder / "out", timeout=120, **variables)
    assert done.returncode == 0, done.stderr
    return results.Result.load(folder / "out")


@pytest.mark.parametrize("devices", [3, wide(None)])
def test_devices_are_made_before_jax_starts(tmp_path, devices):
    """By default one per core."""
    option = f"--devices {devices}" if devices else ""
    result = alone(tmp_path, f"--preset quadratic --rounds 2 {option}")
    assert result.provenance["num_devices"] == (devices or cli.num_cores())


def test_seeds_on_two_devices_end(tmp_path):
    """FedPG's factorizations waited for each other's threads."""
    line = "--algorithm fedpg --rounds 1 --seeds 2 --devices 2"
    assert len(alone(tmp_path, line).status) == 2
