"""The command `benchmark`: a method of one's own beside others, and bad input."""

import re
import shutil

import pytest

from experiments import benchmark
from fedjax_pfl.benchmark import tables
from fedjax_pfl.command import application, presets
from fedjax_pfl.command import benchmark as benchmarks
from fedjax_pfl.command.presets import experiment
from tests.command.commands import ROOT, call

pytestmark = pytest.mark.usefixtures("elsewhere")
IID = "--set federation.unseen_fraction=0 --set federation.partition=iid"
SMALL = f"--clients 6 --seeds 2 --rounds 9 {IID}"


def test_a_template_is_ranked_with_one_option(tmp_path):
    shutil.copy(ROOT / "templates/my_method.py", tmp_path)
    own = "--algorithm +my_method:MyMethod --only majority,mymethod"
    done = call(benchmark.app, f"{SMALL} {own} --metric macro_f1 --out found")
    assert "MyMethod" in done.stdout and "Page: found/benchmark.html" in done.stdout
    found = tables.Tables.load(tmp_path / "found")
    assert found.tasks == ["digits"]
    assert set(found.scores["method"]) == {"Majority", "MyMethod"}
    assert set(found.scores["seed"]) == {0, 1}
    assert set(found.scores["metric"]) == {"macro_f1"}
    for name in ("benchmark.html", "benchmark/digits.html"):
        page = (tmp_path / "found" / name).read_text("utf-8")
        assert "acro f1" in page and "accuracy" not in page
    row = found.searches.set_index("method").loc["MyMethod"]
    assert "local.learning_rate = " in row["settings"]
    assert "--algorithm +my_method:MyMethod" in row["command"]
    assert row["command"].endswith("--only mymethod") and "--metric" in row["command"]
    # A finished run is shown again, its own modules named anew.
    done = call(benchmark.app, "--resume found", status=2)
    assert "name them with" in done.output
    done = call(benchmark.app, "--resume found --algorithm my_method:MyMethod")
    assert "digits is finished" in done.stdout


def test_a_plus_keeps_the_presets_methods():
    whole = presets.get("benchmark_digits")
    more = experiment.apply_settings(whole, ["algorithm=+splitgp,local"])
    assert more.grids[:-1] == whole.grids
    assert more.grids[-1].process.algorithm.local.batch_size == 10
    named = experiment.apply_settings(whole, ["algorithm=local"])
    assert len(named.grids) == 1


@pytest.mark.parametrize("name", presets.matching("benchmark_*"))
def test_every_data_set_has_its_methods(name):
    task = benchmarks.task_of(
        benchmarks.arguments.Options(command="benchmark", preset=name)
    )
    assert {"Local", "FedAvg", "FedAvg fine-tuned", "Centralized"} <= set(task.methods)
    assert len(task.methods) >= 29
    for process in task.methods.values():
        process.check_cohort(10, 10)
    assert task.seeds == (10, 11, 12, 13, 14) and task.search_seeds == (0, 1, 2)
    assert task.command == f"python -m experiments.benchmark --preset {name}"
    assert list(task.learned) == ["FedAvg", "Flame", "Ditto"]
    assert all(task.learned[n] == task.methods[n] for n in task.learned)


def test_rows_with_learned_fields_are_chosen_by_their_folders():
    """Those of methods without such a row in the preset, too."""
    options = {"command": "benchmark", "only": ["local,apfl-learned,flame-learned"]}
    task = benchmarks.task_of(benchmarks.arguments.Options(**options))
    assert list(task.rows) == [
        *("Local", "APFL learned", "Flame learned"),
        *("APFL start", "Flame start"),
    ]
    named = {"command": "benchmark", "set_": ["algorithm=local,flame"]}
    task = benchmarks.task_of(benchmarks.arguments.Options(**named))
    assert list(task.rows) == ["Local", "Flame", "Flame learned", "Flame start"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--only flames", "method of --only"),
        ("--only flame --only ditto", "give --only once"),
        ("--only majority-learned", "declares ranges"),
        ("--tune-budget 10min", "--tune-budget in gradients"),
        ("--tune-budget many", "such as 3000rounds"),
        ("--seeds 1", "two or more different seeds"),
        ("--set algorithm.lam=0.1,1", "one value of each field"),
        ("--algorithm +nonsense", "nonsense"),
        ("--tune-budget 1gradients --only local", "budget of at least"),
        ("--preset benchmark_nothing", "benchmark_nothing"),
        ("--only local --set federation.validation_fraction=0", "valida"),
        ("--max-minutes 0", "max_minutes"),
        ("--metric rmse", "Unknown metric of a benchmark 'rmse'"),
        ("--metric auc --only majority", "measured, accuracy, .* got 'auc'"),
    ],
)
def test_wrong_benchmarks_are_refused(line, message, tmp_path):
    done = call(application.app, f"benchmark --rounds 9 {IID} {line}", status=2)
    assert re.search(message, done.output)
    assert not list(tmp_path.iterdir()) or not list(tmp_path.rglob("method.json"))
