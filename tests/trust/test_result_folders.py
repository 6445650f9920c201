"""Damaged result folders: the result that was saved, or one sentence."""

import copy
import dataclasses
import json
import pathlib
import shutil

import pytest
from hypothesis import strategies as st

import fedjax_pfl as fp
from experiments import sweep
from fedjax_pfl.command import arguments, job, run_folder
from fedjax_pfl.core import checks
from tests import histories
from tests.trust import inputs

RESULT = ("config.json", "history-0-flame.nc", "history-1-local.nc")
OPTIONS = arguments.Options(
    command="sweep",
    preset="quadratic",
    set_=["algorithm.lam=1,2"],
    seeds=2,
    execution="vmap",
    points_per_chunk=3,
    eval_on="test,train=2",
    eval_clients="all",
)
ODD = [
    *(None, True, False, 0, -1, 1.5, 10**9, 10**20, 10**400, -(10**30), 1e300),
    *(float("nan"), float("inf"), "", "x", "\0", "a\nb", "\ud800", "é" * 300),
    *("/dev/zero", "../outside/victim", "outside/victim", "history.nc", "test", "loss"),
    *([], [[]], [1], ["x"], {}, {"x": 1}, {"": []}, {"seed": {"a": [None]}}),
    *([{}], [{"seed": 1}] * 3),
]


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A finished run in the folder `saved`, and its result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job.compilation_cache, "keep", lambda: None)
    monkeypatch.setattr(job.figures, "save_all", lambda *_: [])
    return save(pathlib.Path("saved"))


def save(folder):
    """Makes the folder of a finished run, whose result it returns."""
    records = []
    for name in ("Flame", "Local"):
        points = ({"algorithm.lam": 0.1, "seed": 0},)
        options = {"num_clients": 3, "rounds": (0, 1), "algorithm": name}
        records.append(histories.make_history(points=points, **options))
    result = histories.make_result(*records)
    with run_folder.begun(folder, OPTIONS):
        result.write(folder)
    assert fp.Result.load(folder) == result
    return result


def places(value):
    """Paths to all values in nested lists and objects."""
    waiting = [((), value)]
    while waiting:  # values are nested too deeply for a recursion
        path, value = waiting.pop()
        yield path
        if isinstance(value, dict | list):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += [((*path, name), inner) for name, inner in pairs]


def mutated(rng, document):
    """A copy with one to three values replaced, dropped, added, renamed or nested."""
    changed = copy.deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        inner = [path for path in places(changed) if path]
        if not inner:
            return changed
        *path, last = rng.choice(inner)
        owner = changed
        for step in path:
            owner = owner[step]
        kind = rng.choice(["replace"] * 5 + ["drop", "add", "rename", "nest", "wrap"])
        if kind == "drop":
            del owner[last]
        elif kind == "add" and isinstance(owner, dict):
            owner[rng.choice(["x", "", "\ud800", "digest"])] = rng.choice(ODD)
        elif kind == "rename" and isinstance(owner, dict):
            owner[rng.choice(["x", "file", "seed", "é"])] = owner.pop(last)
        elif kind == "nest":
            for _ in range(rng.choice([3, 60, 400])):
                owner[last] = [owner[last]]
        elif kind == "wrap":
            owner[last] = {str(last): owner[last]}
        else:
            owner[last] = copy.deepcopy(rng.choice(ODD))
    return changed


def damaged(draw, before, names):
    """Files of a folder, one of them changed, gone, or in the place of another."""
    name = draw(st.sampled_from(names))
    kind = draw(st.sampled_from(["bytes", "bytes", "edit", "edit", "remove", "swap"]))
    after = dict(before)
    if kind == "remove":
        del after[name]
    elif kind == "swap":
        after[name] = before[draw(st.sampled_from(names))]
    elif kind == "edit" and name.endswith(".json"):
        changed = mutated(draw(st.randoms()), json.loads(before[name]))
        after[name] = json.dumps(changed).encode()
    else:
        after[name] = inputs.mutated(draw, before[name])
    return after


def put(files):
    """Makes the folder `copy` of these files."""
    shutil.rmtree("copy", ignore_errors=True)
    for name, content in files.items():
        path = pathlib.Path("copy", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def refused(function, *arguments):
    """What a function returns, and whether it refused in one sentence."""
    try:
        with inputs.bounded():
            return function(*arguments), False
    except checks.InputError as error:
        assert inputs.is_sentence(str(error)), str(error)
        return None, True


def test_results(saved, request):
    before = inputs.contents(pathlib.Path("saved"))

    def is_refused(data):
        put(damaged(data.draw, before, ["summary.csv", *RESULT, *RESULT]))
        found, is_refused = refused(fp.Result.load, "copy")
        assert is_refused or found == saved
        return is_refused

    inputs.Trials(request, default=20, long=1500).run("results", st.data(), is_refused)


def test_options(saved, request):
    """What a continued run does is what the first command said."""
    before = inputs.contents(pathlib.Path("saved"))
    expected = run_folder.read(pathlib.Path("saved"))
    expected = dataclasses.replace(expected, out="copy", resume="copy")

    def is_refused(data):
        put(damaged(data.draw, before, ["experiment.json"]))
        found, is_refused = refused(run_folder.read, pathlib.Path("copy"))
        if not is_refused:
            assert dataclasses.replace(found, out="copy", resume="copy") == expected
        return is_refused

    trials = inputs.Trials(request, default=40, long=1500)
    trials.run("options of runs", st.data(), is_refused)


def test_changed_options_are_refused(saved):
    path = pathlib.Path("saved/experiment.json")
    path.write_text(path.read_text().replace("lam=1,2", "lam=1,3"))
    with pytest.raises(checks.InputError, match="experiment.json': it is damaged"):
        run_folder.read(path.parent)


@pytest.mark.filterwarnings("default")
def test_resume(saved, request, monkeypatch):
    """Finished runs are shown, others trained; what is written is whole."""
    before = inputs.contents(pathlib.Path("saved"))
    monkeypatch.setattr(job.simulation, "run_groups", lambda *_, **__: saved)

    def is_refused(data):
        after = damaged(data.draw, before, ["experiment.json", *RESULT])
        put(after)
        is_refused = inputs.run(sweep.app, ["--resume", "copy"])
        left = inputs.contents(pathlib.Path("copy"))
        changed = {n for n in left.keys() | after.keys() if left.get(n) != after.get(n)}
        if is_refused:
            assert changed <= {".lock"}
        else:
            assert fp.Result.load("copy") == saved
        return is_refused

    trials = inputs.Trials(request, default=10, long=200)
    trials.run("continued runs", st.data(), is_refused)
