"""Folders of a stranger, whose digests are right: read, or refused in one sentence.

Nothing outside a folder is ever written, whatever links it has.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import random
import shutil
import struct
import types
import zipfile

import filelock
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import rich.console
import safetensors.numpy

import fedjax_pfl as fp
from experiments import sweep
from fedjax_pfl.command import batch, data_command, job, run_folder, show
from fedjax_pfl.core import checks, temporaries
from fedjax_pfl.engine import profiling, save_models
from fedjax_pfl.engine.callbacks import tensorboard
from fedjax_pfl.engine.streaming import row_store
from fedjax_pfl.report import sources, writing
from fedjax_pfl.results import (
    checkpoint,
    directories,
    documents,
    model_files,
    plain_files,
)
from tests import histories
from tests.trust import inputs, test_result_folders
from tests.trust.test_result_folders import OPTIONS, mutated, refused

IDENTITY = {"algorithm": "Flame", "points": [{"seed": 0}]}
STATES = {"w": jnp.ones((2, 3)), "round": jnp.array([1, 1])}
PROGRESS = checkpoint.Progress(
    done=1,
    states=STATES,
    arrays={"rounds": np.arange(2)},
    seconds=(1.0, 1.0),
    ended=False,
)
RAW = [
    *(b"", b"[1]", b"null", b"1", b'"x"', b"{", b"{}", b"\xff\xfe{}", b"NaN", b"1e999"),
    *(b"[" * 10**5, b'{"a":' * 10**5, b"9" * 5000, '{"a": 1}'.encode("utf-16")),
    *(b'{"\xff": 1}', b'{"a": 1, "a": 2}', b"\xef\xbb\xbf{}", b"\0" * 100),
]


def listing(folder):
    """Everything below a folder, with times and contents."""
    entries = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        entries[path.name] = (status.st_mode, status.st_mtime_ns, content)
    return entries


@pytest.fixture
def outside(tmp_path):
    """A neighboring directory, which must be as it was at the end."""
    folder = tmp_path / "outside"
    (folder / "inner").mkdir(parents=True)
    for name in ("victim", "inner/victim", "victim.csv", "inner/.new-1"):
        (folder / name).write_text("mine")
    before, names = listing(folder), set(os.listdir(tmp_path))
    yield folder
    assert listing(folder) == before
    allowed = {"copy", "run"}
    assert set(os.listdir(tmp_path)) - names <= allowed


# Documents, each with a function that makes the file, and one that reads it.


def read_config():
    result = fp.Result.load("copy")
    for table in (result.table, result.clients, result.curves, result.reports):
        table()
    assert repr(result) and str(result)
    show.result(rich.console.Console(file=io.StringIO()), result)
    result.to_dataset(0)


def read_report():
    sources.read([pathlib.Path("copy")], run_folder)


def read_options():
    run_folder.command(run_folder.read(pathlib.Path("copy")))


def read_checkpoint():
    store = checkpoint.Checkpoints("copy/checkpoints").store(0, "Flame")
    store.has_ended()
    store.latest(IDENTITY, STATES)


def save_model(arrays, about):
    """A folder of one model, whose header says this."""
    folder = pathlib.Path("copy/models/000-flame")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "000-personal.safetensors"
    arrays = arrays | {"clients": np.arange(2, dtype=np.int32)}
    safetensors.numpy.save_file(arrays, file, {model_files.HEADER: about})
    list_model(file)


def list_model(file):
    """Puts the file into the table of models."""
    row = {"model": "personal", "clients": 2, "numbers": 3, "status": "ok"}
    row["file"] = f"000-flame/{file.name}"
    row["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    pd.DataFrame([row]).to_csv(file.parents[1] / model_files.TABLE, index=False)


def read_model():
    model = fp.load_models("copy").find(model="personal")
    assert repr(model)
    model.of(1)


def read_holder():
    with filelock.FileLock("copy/.lock"):  # by another process
        with directories.locked(pathlib.Path("copy")):
            raise AssertionError("the lock is taken")


ABOUT = {"format": model_files.FORMAT, "model": "personal", "status": "ok"}
CHECKPOINT = "checkpoints/000-flame/00000001"
DOCUMENTS = {
    "config.json": ("config.json", read_config),
    "experiment.json": ("experiment.json", read_options),
    "checkpoint.json": (f"{CHECKPOINT}/checkpoint.json", read_checkpoint),
    "model": (None, read_model),  # in the header of a file
    "owner": (".owner.json", read_holder),
}


def write(name, text):
    """Puts a text in the place of a document."""
    if name == "model":
        save_model({"params/w": np.ones((2, 3))}, text.decode("utf-8", "replace"))
    else:
        pathlib.Path("copy", DOCUMENTS[name][0]).write_bytes(text)


def valid(name):
    """The document as the program writes it, without its digest."""
    if name == "model":
        return ABOUT | {"settings": {"algorithm": "Flame", "seed": 0}}
    if name == "owner":
        return {"pid": 1, "host": "here", "since": "now"}
    document = json.loads(pathlib.Path("copy", DOCUMENTS[name][0]).read_text())
    document.pop("digest")
    return document


def sealed(name, document):
    """Its text, with the right digest where documents of this name have one."""
    seal = documents.seal if name.endswith(".json") else json.dumps
    return seal(document).encode()


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A finished run with checkpoints and a model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("template"))
        test_result_folders.save(pathlib.Path("copy"))
        store = checkpoint.Checkpoints("copy/checkpoints").store(0, "Flame")
        store.save(IDENTITY, PROGRESS)
        save_model({"params/w": np.ones((2, 3))}, json.dumps(valid("model")))
        return pathlib.Path("copy").absolute()


@pytest.fixture
def crafted(template, outside, monkeypatch):
    """The folder `copy` beside the neighboring directory."""
    monkeypatch.chdir(outside.parent)
    monkeypatch.setattr(job.compilation_cache, "keep", lambda: None)
    monkeypatch.setattr(job.figures, "save_all", lambda *_: [])
    return shutil.copytree(template, pathlib.Path("copy"))


def test_the_crafted_folder_is_good_as_it_is(crafted):
    for name, (_, read) in DOCUMENTS.items():
        assert refused(read) == (None, name == "owner")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_with_right_digests(crafted, request, name):
    """Every outcome is success or one sentence, and none takes long."""
    is_long = request.config.getoption("--long")
    count, rng = 1000 if is_long else 40, random.Random(name)
    (_, read), document = DOCUMENTS[name], valid(name)
    outcomes = [0, 0]
    for number in range(count):
        is_raw = number % 10 == 9
        text = rng.choice(RAW) if is_raw else sealed(name, mutated(rng, document))
        write(name, text)
        try:
            outcomes[refused(read)[1]] += 1
        except BaseException as error:
            error.add_note(f"document {number}: {text[:3000]!r}")
            raise
    print(f"{name}: {outcomes[0]} accepted, {outcomes[1]} refused")
    assert outcomes[1]


def edit(name, change):
    """Changes a document, and computes its digest again."""
    document = valid(name)
    change(document)
    write(name, sealed(name, document))


def a_file(name):
    return lambda document: document["groups"][0].update(file=name)


def an_option(name, value):
    return lambda document: document["options"].update({name: value})


CHANGES = [
    *(("config.json", a_file(name)) for name in ("/dev/zero", "../x", "a/history.nc")),
    ("config.json", a_file("summary.csv")),
    ("config.json", lambda document: document["groups"][0].update(points="x")),
    ("config.json", lambda document: document["groups"][0].update(points=[])),
    ("config.json", lambda document: document["groups"][0].update(config=[1])),
    ("config.json", lambda document: document.update(more=1)),
    ("experiment.json", an_option("devices", 10**8)),
    ("experiment.json", an_option("stop_on", 5)),
    ("experiment.json", an_option("set_", "algorithm=fedavg")),
    ("experiment.json", an_option("seeds", -1)),
    ("experiment.json", an_option("checkpoint_seconds", float("nan"))),
    ("checkpoint.json", lambda document: document.update(seconds=[1.0])),
    ("checkpoint.json", lambda document: document.update(done="1")),
    ("model", lambda document: document.pop("settings")),
]


@pytest.mark.smoke
@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_wrong_values_are_a_sentence(crafted, number):
    name, change = CHANGES[number]
    edit(name, change)
    assert refused(DOCUMENTS[name][1]) == (None, True)


def changed_history(change):
    """Changes the file of a history, and computes all digests again."""
    file = pathlib.Path("copy/history-0-flame.nc")
    with h5py.File(file, "r+") as opened:
        change(opened)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    edit("config.json", lambda d: d["groups"][0].update(sha256=digest))


def virtual(file):
    layout = h5py.VirtualLayout((1,), "f8")
    layout[:] = h5py.VirtualSource("outside/victim", "x", (1,))
    file.create_virtual_dataset("diagnostics.x", layout)


def external(file):
    where = [(os.path.abspath("outside/victim"), 0, 4)]
    file.create_dataset("diagnostics.x", (1,), "i4", external=where)


def linked(file):
    file["diagnostics.x"] = h5py.ExternalLink("outside/victim", "/x")


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.create_dataset("diagnostics.x", (375 * 10**9,), "f4"),
        lambda file: file.create_dataset(
            "diagnostics.x", (10**11,), "i1", chunks=(10**6,), compression="gzip"
        ),
        lambda file: file.create_group("diagnostics.x"),
        lambda file: file.pop("accuracy"),
        lambda file: file.pop("leak"),
        *(virtual, external, linked),
    ],
)
def test_histories_that_declare_more_than_they_have(crafted, change):
    changed_history(change)
    value, is_refused = refused(fp.Result.load, "copy")
    assert is_refused or value.groups[0].metrics.keys() == {"loss"}


HUGE = b"\x93NUMPY\x01\x00v\x00" + (
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (375000000000,), }".ljust(117)
    + b"\n"
)


@pytest.mark.parametrize("kind", ["promised", "deflated", "state"])
def test_checkpoints_that_declare_more_than_they_have(crafted, kind):
    folder = crafted / CHECKPOINT
    if kind == "state":
        other = dataclasses.replace(PROGRESS, states=STATES | {"w": jnp.ones((9, 3))})
        checkpoint.Checkpoints("other").store(0, "Flame").save(IDENTITY, other)
        shutil.rmtree(folder)
        shutil.move("other/000-flame/00000001", folder)
        shutil.rmtree("other")
    else:
        with zipfile.ZipFile(folder / "history.npz", "w") as archive:
            if kind == "promised":
                archive.writestr("rounds.npy", HUGE)
            else:
                file = io.BytesIO()
                np.save(file, np.zeros(10**6))
                method = zipfile.ZIP_DEFLATED
                archive.writestr("rounds.npy", file.getvalue(), method)
    files = checkpoint.files.digests(folder)
    files.pop("checkpoint.json")
    edit("checkpoint.json", lambda document: document.update(files=files))
    assert refused(read_checkpoint) == (None, True)


def packed(header, content=b""):
    """A file of safetensors with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


def tensors(*names, kind="F32", shape=(1,)):
    """Header of a model with such arrays, four bytes each."""
    offsets = [(4 * k, 4 * k + 4) for k in range(len(names))]
    arrays = {
        name: {"dtype": kind, "shape": shape, "data_offsets": offset}
        for name, offset in zip(names, offsets, strict=True)
    }
    about = json.dumps(ABOUT | {"settings": {}})
    header = {"__metadata__": {model_files.HEADER: about}, **arrays}
    return packed(header, bytes(4 * len(names)))


MODELS = {
    "list": packed([1]),
    "null": packed(b"null"),
    "deep": packed(b'{"a":' * 10**5),
    "long header": struct.pack("<Q", 2**62) + b"{}",
    "clash": tensors("params/a", "params/a/b"),
    "clash at the top": tensors("params", "params/a"),
    "foreign name": tensors("weights"),
    "deep name": tensors("params" + "/a" * 5000),
    "F8": tensors("params/a", kind="F8_E4M3", shape=(4,)),
    "huge": tensors("params/a", shape=(375 * 10**9,)),
    "rows": tensors("params/a", "clients"),
}


@pytest.mark.parametrize("name", MODELS)
def test_crafted_models(crafted, name):
    file = crafted / "models/000-flame/000-personal.safetensors"
    file.write_bytes(MODELS[name])
    list_model(file)
    assert refused(read_model) == (None, True)


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "directory"])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("config.json", read_config),
        ("history-1-local.nc", read_config),
        ("summary.csv", read_report),
        ("experiment.json", read_options),
        (f"{CHECKPOINT}/checkpoint.json", read_checkpoint),
        (f"{CHECKPOINT}/history.npz", read_checkpoint),
        (f"{CHECKPOINT}/state/manifest.ocdbt", read_checkpoint),
        ("models/models.csv", read_model),
        ("models/000-flame/000-personal.safetensors", read_model),
    ],
)
def test_only_regular_files_are_read(crafted, name, read, kind):
    path = crafted / name
    path.rename(path.with_name("moved"))
    if kind == "link":
        path.symlink_to("moved")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert refused(read) == (None, True)


# Writers, with a link to the neighboring directory in the place of what they write.

RUN = pathlib.Path("run")


def link(name, target="victim", how=os.symlink):
    """Puts a link in the place of an entry of the folder `run`."""
    path = RUN / name
    path.parent.mkdir(parents=True, exist_ok=True)
    how(os.path.abspath(f"outside/{target}"), path)
    return path


def lock(_):
    with directories.locked(RUN):
        pass


def write_result(_):
    fp.Result.load("copy").write(RUN)


def fill(_):
    with directories.filled(RUN, last="x") as folder:
        (folder / "figures").mkdir()
        (folder / "report.html").write_text("new")


def resume(_):
    shutil.copy("copy/experiment.json", RUN)
    with run_folder.opened(RUN, dataclasses.replace(OPTIONS, resume=RUN)):
        pass


def save_checkpoint(_):
    checkpoint.Checkpoints(RUN).store(0, "Flame").save(IDENTITY, PROGRESS)


def open_rows(path):
    folder = path.parent if path.suffix else path
    row_store.RowStore(folder / "rows.bin", 2, {"w": jnp.zeros(3)})


def save_models_to(path):
    with save_models.writer(path):
        pass


def write_events(_):
    writer = tensorboard.TensorBoard.__new__(tensorboard.TensorBoard)
    writer._directory, writer._writers = RUN, {}
    training = types.SimpleNamespace(number=0, name="Flame", settings={})
    writer._writer(training)


def profile(_):
    profiling.Profile(RUN)


def draw_federation(path):
    words = ["show", "--dataset", "digits", "--out", str(path)]
    if inputs.run(data_command.app, words):
        raise checks.InputError("It is a link.")


def run_all(_):
    batch._run_all(["quadratic"], OPTIONS, RUN, "go on")


EVENTS = "000-Flame/events.out.tfevents.1"
WRITERS = {  # entry of the folder, target of the link there, and the writer
    "owner": (".owner.json", "victim", lock),
    "lock": (".lock", "victim", lock),
    "config.json": ("config.json", "victim", write_result),
    "summary.csv": ("summary.csv", "victim", write_result),
    "reports.csv": ("reports.csv", "victim", write_result),
    "history.nc": ("history-1-local.nc", "victim", write_result),
    "figures": ("figures", "inner", fill),
    "filling": (".filling", "inner", fill),
    "page": ("report.html", "victim", fill),
    "checkpoints": ("checkpoints", "inner", resume),
    "models": ("models", "inner", resume),
    "events": ("tensorboard", "inner", resume),
    "group": ("000-flame", "inner", save_checkpoint),
    "rows": ("000-flame/rows.bin", "victim", open_rows),
    "rows of a group": ("000-flame", "inner", open_rows),
    "models_to": ("models", "inner", save_models_to),
    "training's events": ("000-Flame", "inner", write_events),
    "event file": (EVENTS, "victim", write_events),
    "profile": ("plugins", "inner", profile),
    "profiles": ("plugins/profile", "inner", profile),
    "figure of data": ("holdings.png", "victim", draw_federation),
    "run of several": ("quadratic", "inner", run_all),
}


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_written_through_a_link(crafted, name, monkeypatch):
    monkeypatch.setattr(job, "do", lambda options: None)
    entry, target, writer = WRITERS[name]
    assert refused(writer, link(entry, target)) == (None, True)


@pytest.mark.parametrize(
    ("entry", "writer"), [(".lock", lock), ("rows.bin", open_rows)]
)
def test_nothing_is_written_in_place_of_a_hard_link(crafted, entry, writer):
    assert refused(writer, link(entry, how=os.link)) == (None, True)


def test_a_new_file_takes_the_place_of_a_hard_link(outside, tmp_path):
    os.link(outside / "victim", tmp_path / "copy")
    with plain_files.created(tmp_path / "copy") as new:
        new.write_text("new")
    assert (tmp_path / "copy").read_text() == "new"


# Whole commands.


@pytest.mark.filterwarnings("default")
def test_a_finished_run_is_cleaned(crafted):
    (crafted / ".filling").mkdir()
    (crafted / ".filling/x").write_text("")
    (crafted / ".owner.json").write_text("{}")
    (crafted / ".new-1234-config.json").write_text("")
    expected = fp.Result.load(crafted)
    done = inputs.RUNNER.invoke(sweep.app, ["--resume", "copy"])
    assert done.exit_code == 0, done.output
    assert "The run in 'copy' is finished; what a killed process" in done.output
    kept = {".lock", "config.json", "experiment.json", "models", "reports.csv"}
    kept |= {"summary.csv", "history-0-flame.nc", "history-1-local.nc"}
    assert set(os.listdir(crafted)) == kept
    assert fp.Result.load(crafted) == expected
    done = inputs.RUNNER.invoke(sweep.app, ["--resume", "copy"])
    assert "The run in 'copy' is finished.\n" in done.output


@pytest.mark.filterwarnings("default")
@pytest.mark.smoke
def test_no_command_writes_outside_a_crafted_folder(crafted, request, monkeypatch):
    """Entries in turn are links to a neighbor; all commands are tried."""
    result = fp.Result.load("copy")
    monkeypatch.setattr(job.simulation, "run_groups", lambda *_, **__: result)
    monkeypatch.setattr(writing, "_write_figures", lambda content, folder: None)
    names = {".owner.json", "checkpoints", "history-1-local.nc", "report_files"}
    if request.config.getoption("--long"):
        names |= {*os.listdir(crafted), ".filling", ".models.1", "figures"}
        names |= {"tensorboard", "report.html"}
    for name in sorted(names):
        for is_finished in (True, False):
            shutil.copytree("copy", "run", symlinks=True)
            path = pathlib.Path("run", name)
            is_directory = path.is_dir() or path.suffix == ""
            temporaries.remove(path)
            link(name, "inner" if is_directory else "victim")
            if not is_finished:
                temporaries.remove(pathlib.Path("run/config.json"))
            inputs.run(sweep.app, ["--resume", "run", "--quiet"])
            with contextlib.suppress(checks.InputError):  # or how to go on
                if is_finished:
                    writing.write([pathlib.Path("run")], None, run_folder)
            refused(fp.Result.load, "run")
            refused(fp.load_models, "run")
            shutil.rmtree("run")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--algorithm", ":Y"], "Expected an algorithm of your own as module:Class"),
        (["--algorithm", "..x:Y"], "Expected an algorithm of your own as module:Class"),
        (["--set", "algorithm.lam=1e39"], "Expected algorithm.lam to be at most 3.4"),
        (["--out", "o\udcff"], "Expected the name of the directory to be text"),
    ],
)
def test_names_and_numbers_are_refused_before_training(
    outside, monkeypatch, arguments, sentence
):
    monkeypatch.chdir(outside.parent)
    monkeypatch.setattr(job.compilation_cache, "keep", lambda: None)
    command = ["--preset", "quadratic", "--rounds", "1", *arguments]
    with jax.enable_x64(False):
        done = inputs.RUNNER.invoke(sweep.app, command)
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith(sentence) and inputs.is_sentence(line)


def test_names_of_methods_are_plain_in_names_of_files(outside):
    name = "../outside/Ö" + "x" * 300
    record = histories.make_history(num_clients=2, rounds=(0, 1), algorithm=name)
    result = histories.make_result(record, record)
    result.save(outside.parent / "run")
    assert fp.Result.load(outside.parent / "run") == result
    store = checkpoint.Checkpoints(outside.parent / "copy").store(0, name)
    assert store.folder.parent == outside.parent / "copy"
    assert store.folder.name == f"000-outside-{'x' * 31}"
