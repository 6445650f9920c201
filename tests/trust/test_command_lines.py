"""Command lines of all commands: done, one sentence or the usage, nothing halfway."""

import os
import pathlib
import shutil

import pytest
from hypothesis import strategies as st

import fedjax_pfl as fp
from experiments import run, sweep
from fedjax_pfl.command import data_command, job, presets
from tests import histories
from tests.trust import inputs

APPS = {"sweep": sweep.app, "run": run.app, "data": data_command.app}
NUMBERS = [*"0 1 2 3 5 -1 1.5 nan inf 1e9 many".split(), "", "1" * 30]
LONG = "9" * 5000
PATHS = """
    . .. there file file/x foreign finished loop loop/x pipe.csv good.csv new new/er - ~
    ~nobody/x /proc/x /dev/null new.png *
""".split()
PATHS += ["", "with blank", "\u00e9", "a\nb", "x" * 300, "a\0b", "\udcff"]
WORDS = ["y", "client", "a", "nothing", "", "\u00e9", "a\nb", "--seeds"]
SETTINGS = """
    algorithm.lam=1 algorithm.lam=1,2 algorithm=fedavg,local num_rounds=2 model=mlp x =1
    federation.num_clients=null federation.partition=iid federation.test_fraction=0
    federation.partition.min_examples=2 federation.dataset.scaling=none federation=1
    seed=7 algorithm.rho=1
""".split()
SETTINGS += ["a=\udcff"]
DATA = {
    "--dataset": [*fp.data.DATASETS, "mnits", "a,b", ""],
    "--data": PATHS,
    "--data-dir": PATHS,
    "--label": WORDS,
    "--client": WORDS,
    "--clients": NUMBERS,
    "--set": SETTINGS,
    "--out": PATHS,
}
TRAIN = DATA | {
    "--preset": ["quadratic", "quadratic", "digits", "mnist", "quadratics", ""],
    "--seeds": NUMBERS,
    "--seed-list": ["1", "1,10", "1,1", "1,x", ",", "-1", "\u0661", "\u00b2", LONG]
    + ["4294967296"],
    "--rounds": [*NUMBERS, LONG],
    "--eval-every": NUMBERS,
    "--eval-on": "test test,validation=2 test=0 others everybody=3 = tset".split()
    + ["test,test", "train=2,test=3", f"test={LONG}", "test=1e3", "validation"],
    "--eval-clients": ["all", "participants", "2", "0", "99", "al", LONG, "-1"],
    "--execution": "auto loop vmap chunk=2 chunk chunk=0 shard shard=3".split()
    + ["shard=99", "vmap=2", "chunk=-1", "", "=", "chunk=" + "9" * 30],
    "--devices": ["0", "-1", "two", "1.5", "1000000000"],
    "--patience": NUMBERS,
    "--target": [*NUMBERS, "-inf", "1e999"],
    "--stop-on": ["", *":: personal:: :test:loss a:b:c ::f1 : :train:".split()],
    "--max-minutes": NUMBERS,
    "--checkpoint-seconds": NUMBERS,
    "--resume": PATHS,
    "--diagnostics": None,
    "--dry-run": None,
    "--quiet": None,
    "--unknown": None,
}
SHOW = DATA | {
    "--partition": [*fp.data.PARTITIONS, "ii", "iid,quantity_skew", ""],
    "--seed": [*NUMBERS, "4294967296"],
    "--rows": NUMBERS,
}


@st.composite
def options(draw, pool, most):
    """Some options with values, good ones and others."""
    found = []
    for name in draw(
        st.lists(st.sampled_from(sorted(pool)), max_size=most, unique=True)
    ):
        found.append(name)
        if pool[name] is not None:
            listed = st.sampled_from(pool[name])
            is_odd = draw(st.sampled_from([False] * 7 + [True]))
            found.append(draw(st.text(max_size=6) if is_odd else listed))
    return found


@st.composite
def commands(draw):
    """Name of a command, and arguments."""
    name = draw(st.sampled_from(["sweep", "sweep", "run", "data"]))
    if name != "data":
        start = draw(st.sampled_from([["--preset", "quadratic"]] * 9 + [[]]))
        return name, [*start, *draw(options(TRAIN, 3))]
    what = draw(st.sampled_from(["show"] * 4 + ["list", "check", "chekc"]))
    pool = {"--data-dir": PATHS} if what == "check" else SHOW
    return name, [what, *draw(options(pool, 3))]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with all kinds of things in it; nothing is trained."""
    record = histories.make_history(num_clients=3, rounds=(0, 1))
    result = histories.make_result(record)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job.compilation_cache, "keep", lambda: None)
    monkeypatch.setattr(job.figures, "save_all", lambda *_: [])
    monkeypatch.setattr(job.simulation, "run_groups", lambda *_, **__: result)
    monkeypatch.delenv("FEDJAX_PFL_DATA", raising=False)
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])
    monkeypatch.setenv("HOME", str(tmp_path))
    pathlib.Path("there").mkdir()
    pathlib.Path("file").write_text("")
    pathlib.Path("foreign").mkdir()
    pathlib.Path("foreign/experiment.json").write_text('{"format": "mine"}')
    pathlib.Path("loop").symlink_to("loop")
    os.mkfifo("pipe.csv")
    rows = "".join(f"{k},{k % 7},{k % 2},c{k % 4}\n" for k in range(80))
    pathlib.Path("good.csv").write_text(f"a,b,y,client\n{rows}")
    result.save("finished")
    return tmp_path


def paths_below(folder):
    """Everything that is there."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.filterwarnings("default")
def test_command_lines(place, request):
    before = paths_below(place)

    def is_refused(command):
        name, arguments = command
        refused = inputs.run(APPS[name], arguments)
        for path in map(pathlib.Path, set(paths_below(place)) - set(before)):
            assert not refused, f"{command} left {path}"
            if path.name == "config.json":
                assert fp.Result.load(path.parent).groups
        for entry in set(os.listdir()) - {path.split("/")[0] for path in before}:
            if pathlib.Path(entry).is_dir():
                shutil.rmtree(entry)
            else:
                pathlib.Path(entry).unlink()
        assert paths_below(place) == before
        return refused

    trials = inputs.Trials(request, default=20, long=1800)
    trials.run("command lines", commands(), is_refused)


def _answers(name):
    """Whether it answers unlike others: of FLAME's many rows a few are enough."""
    return not name.startswith("flame") or "_mnist" in name and "labels" not in name


def _preset(name):
    """Plans of markets take seconds: one of them is enough every time."""
    is_wide = name.startswith("portfolio_") and name != "portfolio_stocks"
    return pytest.param(name, marks=[pytest.mark.wide] * is_wide)


@pytest.mark.parametrize(
    "name", [_preset(name) for name in sorted(presets.PRESETS) if _answers(name)]
)
def test_every_preset_answers(place, name):
    """Without its files: one sentence about them; with them: a plan."""
    arguments = ["--clients", "5", "--set", "algorithm=fedavg", "--dry-run"]
    inputs.run(sweep.app, ["--preset", name, *arguments])
