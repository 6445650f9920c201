"""Commands that are written down make the same options again; what commands say."""

import io
import os
import pathlib
import shlex
import shutil
import sys

import pandas as pd
import pytest
import rich.console

import fedjax_pfl as fp
from experiments import presets as papers
from experiments import run, sweep
from fedjax_pfl.command import (
    application,
    batch,
    invocation,
    job,
    logs,
    presets,
    run_folder,
    show,
)
from fedjax_pfl.command import arguments as arguments_of
from fedjax_pfl.command.presets import experiment
from fedjax_pfl.core import checks
from tests.command.commands import call, python, refused


def begin(folder, arguments):
    """Leaves the options of a sweep in a folder, and returns its command line."""
    options = options_of(arguments)
    begun = folder.parent / f"begun-{folder.name}"
    with run_folder.begun(begun, options):
        shutil.copyfile(begun / "experiment.json", folder / "experiment.json")
    return run_folder.command(options)


def options_of(arguments, app=sweep.app):
    """What a command makes of its arguments."""
    with pytest.MonkeyPatch.context() as patch:
        found = []
        patch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
        patch.setattr(batch, "do", found.append)
        call(app, "", *arguments)
    return found[0]


@pytest.mark.parametrize(
    "line",
    [
        "sweep --preset 'flame_fair_*' --rounds 5 --seed-list 1,10 --data-dir DIR",
        "sweep --preset digits --set algorithm.lam=0.1,1 --set 'model.widths=[64, 32]'",
        "run --preset digits --eval-every 2 --eval-on test,train=4 --eval-clients 3"
        " --patience 3 --stop-on personal::loss --execution vmap --streamed",
        "sweep --preset digits --data DIR --label y --client user --diagnostics"
        " --save-models last --devices 2 --points-per-chunk 4 --target 0.9",
        "run --preset digits --data DIR --label y --text note --tokenizer FILE",
        "run --preset digits --data DIR --label y --text note --tokenizer minilm",
    ],
)
def test_the_command_of_a_run_makes_the_same_run(line):
    name, *arguments = shlex.split(line)
    app = sweep.app if name == "sweep" else run.app
    options = options_of(arguments, app)
    words = shlex.split(run_folder.command(options))
    assert words[:3] == ["python", "-m", f"experiments.{name}"]
    assert options_of(words[3:], app) == options


def test_a_fairness_objective_that_was_left_out_is_said_aloud():
    class Found:
        def reports(self):
            columns = ("algorithm", "name", "value")
            rows = [("FedPG", "fair_row", 0.75), ("FedPG", "sigma", 0.5)]
            rows += [("Other", "fair_row", 1.0), ("FedAvg", "coverage", 0.1)]
            return pd.DataFrame(rows, columns=columns)

    console = rich.console.Console(file=io.StringIO(), width=200)
    show._print_left_out(console, Found())
    said = console.file.getvalue()
    assert said.startswith("FedPG: 25.0% of rounds left the fairness objective out")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ()),
        (["--log", "tensorboard"], (("tensorboard", None),)),
        (
            ["--log", "wandb=a=b", "--log", "tensorboard=/my logs"],
            (("wandb", "a=b"), ("tensorboard", "/my logs")),
        ),
    ],
)
def test_logs_are_read(words, expected):
    assert arguments_of.logs(options_of(words).log) == expected


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ("--log csv", "csv"),
        ("--log tensorboard=", "tensorboard="),
        ("--log wandb --log wandb=x", "wandb=x"),
    ],
)
def test_wrong_logs_are_a_sentence(line, got):
    text = refused(run.app, line)
    assert "expected each --log once, as tensorboard[=DIR], " in text
    assert f"got {got!r}" in text


def test_a_resumed_run_has_the_log_that_is_given_now(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    begin(folder, ["--preset", "digits", "--log", "wandb"])
    assert not options_of(["--resume", str(folder)]).log
    words = ["--resume", str(folder), "--log", "tensorboard", "--max-minutes", "5"]
    options = options_of(words)
    assert options.log == ["tensorboard"] and options.max_minutes == 5
    (folder / "config.json").write_text("{}")  # it is finished
    with pytest.raises(checks.InputError, match="is finished; --log is for trainings"):
        job.do(options)


def test_logs_have_places_of_their_own(monkeypatch, capsys):
    made = []
    monkeypatch.setattr(logs.fp.engine, "TensorBoard", made.append)
    monkeypatch.setattr(
        logs.fp.engine, "WeightsAndBiases", lambda **options: made.append(options)
    )
    for words in (["--log", "tensorboard", "--log", "wandb"], ["--log", "wandb=mine"]):
        logs.callbacks(options_of(words), pathlib.Path("results/a"))
    shared = options_of(["--log", "tensorboard=my logs"])
    logs.callbacks(shared, pathlib.Path("results/a"))
    assert made == [
        pathlib.Path("results/a/tensorboard"),
        {"group": "a"},
        {"group": "a", "project": "mine"},
        pathlib.Path("my logs/a"),
    ]
    logs.print_hint(shared, pathlib.Path("results/a"))
    logs.print_hint(options_of(["--log", "wandb"]), pathlib.Path("results/a"))
    assert capsys.readouterr().out == "TensorBoard: tensorboard --logdir 'my logs/a'\n"


WRONG = {
    "--algorithm nosuch": "Unknown algorithm 'nosuch'; allowed: apfl, ",
    "--set algorithm=flme": "Unknown algorithm 'flme' (did you mean 'flame'?)",
    "--set algorithm.local=nosuch": "Unknown local 'nosuch'; allowed: optax,",
    "--set algorithm.phi=nosuch": "Unknown phi 'nosuch'",
    "--set algorithm.search=nosuch": "Unknown search 'nosuch'",
    "--set aggregator=nosuch": "Unknown aggregator 'nosuch'",
    "--set aggregator.rule=none": "Unknown rule 'none'",
    "--set server_optimizer=nosuch": "Unknown server optimizer 'nosuch'",
    "--set attack=sign_flop": "did you mean 'sign_flip'",
    "--set participation=nosuch": "Unknown participation 'nosuch'; allowed: all, buf",
    "--set work=nosuch": "Unknown work 'nosuch'",
    "--set model=3": "Unknown model 3",
    "--dataset mnits": "Unknown dataset 'mnits' (did you mean 'mnist'?)",
    "--set federation.dataset=nosuch": "Unknown dataset 'nosuch'",
    "--set federation.partition=nosuch": "Unknown partition 'nosuch'",
    "--set federation.market=nosuch": "Unknown market 'nosuch'",
    "--set federation.label_poisoning=nosuch": "Unknown label poisoning 'nosuch'",
    "--set federation.feature_noise=nosuch": "Unknown feature noise 'nosuch'",
    "--preset flame_fair_minst_dir": "did you mean 'flame_fair_mnist_dir'",
    "--preset nosuch_*": "Unknown preset 'nosuch_*'",
    "--set algorithm": "Expected --set name=value, got 'algorithm'.",
    "--problem nosuch": "expected --problem classification or portfolio",
    "--nosuch": "No such option",
}


@pytest.mark.parametrize("name", ["portfolio", "flame_fair_*", "atlas_small"])
def test_presets_of_a_clone_are_known_elsewhere(monkeypatch, name):
    """As `fedjax-pfl` has them, to which nobody has added those of the papers."""
    assert set(arguments_of.PAPERS) == {
        next(start for start in arguments_of.PAPERS if paper.startswith(start))
        for paper in papers.PAPERS
    }
    others = set(presets.PRESETS) - set(papers.PAPERS)
    own = {each: presets.PRESETS[each] for each in others}
    monkeypatch.setattr(presets, "PRESETS", own)
    with pytest.raises(checks.InputError, match="for python -m experiments.sweep"):
        presets.matching(name)
    with pytest.raises(checks.InputError, match="Unknown preset 'fedavg_x'"):
        presets.matching("fedavg_x")


def test_wrong_names_are_answered_without_jax():
    code = (
        "import shlex, sys\n"
        "from experiments import sweep\n"
        f"for line in {list(WRONG)}:\n"
        "    try:\n        sweep.app(shlex.split(line))\n"
        "    except SystemExit as end:\n"
        "        heavy = {'jax', 'pandas', 'matplotlib'} & set(sys.modules)\n"
        "        print(end.code, heavy or 'light', '<<', line, file=sys.stderr)"
    )
    done = python("-c", code)
    answers = done.stderr.split("2 light << ")
    assert len(answers) == len(WRONG) + 1, done.stderr
    for sentence, answer in zip(WRONG.values(), answers, strict=False):
        assert sentence in answer


def test_names_that_exist_are_left_to_the_experiment():
    settings = ["algorithm=flame,mine:Own", "attack=none", "attack=null"]
    found = experiment.parse(
        [*settings, "federation.dataset=digits", "algorithm.lam=x"]
    )
    assert found["algorithm"] == ("flame", "mine:Own") and found["attack"] == (None,)
    assert found["algorithm.lam"] == ("x",)


def test_messages_name_the_command_that_there_is(monkeypatch):
    """An installed package has no `experiments`; a clone may not be installed."""
    folder = pathlib.Path("a b")
    assert invocation.of("report", folder) == "python -m experiments.report 'a b'"
    monkeypatch.delitem(sys.modules, "experiments")
    assert invocation.of("report", folder) == "fedjax-pfl report 'a b'"


@pytest.mark.parametrize("line", ["--version", "sweep --version"])
def test_the_version_is_printed_alone(line):
    assert call(application.app, line).stdout == f"fedjax_pfl {fp.__version__}\n"
