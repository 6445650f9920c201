"""Writers of logs: what TensorBoard and Weights & Biases get to see."""

import importlib
import json
import sys
import types

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import checks
from fedjax_pfl.engine import callbacks
from tests.engine.test_progress import evaluation


def trainings(*names, group=0):
    return [
        callbacks.Training(number, group, name, {"lam": number, "num_rounds": 4}, 4)
        for number, name in enumerate(names)
    ]


NAMES = ("Flame, lam=0.1, federation.data_dir=/a/b, seed=0", "Flame, seed=1")
PATHS = ("000-Flame,lam=0.1,federation.data_dir=_a_b,seed=0", "001-Flame,seed=1")


def play(writer, some, rounds=(0, 2, 4), result=None):
    """Tells a writer of evaluations; the second training diverges in round 4."""
    writer.begin(some)
    for round in rounds:
        losses = (10.0 + round, np.nan if round == 4 else 20.0 + round)
        is_last = round == 4
        writer.evaluated(evaluation(some, round, *losses, is_last=is_last))
    writer.end(result)


class Recorded(types.ModuleType):
    """A module whose objects write down what is asked of them."""

    class Error(Exception):
        pass

    def __init__(self, name):
        super().__init__(name)
        self.calls = []

    def object(self, label):
        calls = self.calls

        class Written:
            def __getattr__(self, method):
                return lambda *args, **kwargs: calls.append(
                    (label, method, *args, *kwargs.values())
                )

        return Written()

    def SummaryWriter(self, path, purge_step):  # noqa: N802
        self.calls.append((path, "open", purge_step))
        return self.object(path)

    def init(self, **options):
        self.calls.append((options["name"], "init", options))
        return self.object(options["name"])


@pytest.fixture
def recorded(monkeypatch):
    def stand_in(name):
        module = Recorded(name)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return stand_in


def test_tensorboard_gets_a_directory_per_training(recorded, tmp_path):
    module, folder = recorded("tensorboardX"), tmp_path / "new" / "logs"
    play(fp.engine.TensorBoard(folder), trainings(*NAMES))
    assert folder.is_dir()
    calls = [call for call in module.calls if call[1] not in ("flush", "add_text")]
    first, second = (str(folder / path) for path in PATHS)
    scalar = ("add_scalar", "global/test/loss")
    assert calls[:4] == [
        (first, "open", 0),
        (first, *scalar, 10.0, 0),
        (second, "open", 0),
        (second, *scalar, 20.0, 0),
    ]
    assert calls[4:7] == [
        (first, *scalar, 12.0, 2),
        (second, *scalar, 22.0, 2),
        (first, *scalar, 14.0, 4),
    ]
    assert sorted(calls[7:]) == [(first, "close"), (second, "close")]
    (text, _) = (call for call in module.calls if call[1] == "add_text")
    assert text[2] == "settings" and "| num_rounds | 4 |" in text[3]


def test_tensorboard_in_a_file_is_refused(recorded, tmp_path):
    recorded("tensorboardX")
    (tmp_path / "file").write_text("")
    with pytest.raises(checks.InputError, match="Cannot make the directory .*file"):
        fp.engine.TensorBoard(tmp_path / "file").begin([])


def test_an_interrupted_log_is_closed(recorded, tmp_path):
    module = recorded("tensorboardX")
    play(fp.engine.TensorBoard(tmp_path), trainings(*NAMES), rounds=(0, 2))
    assert [call[1] for call in module.calls].count("close") == 2


def test_wandb_gets_a_run_per_training(recorded):
    module = recorded("wandb")
    play(fp.engine.WeightsAndBiases("mine", group="sweep"), trainings(*NAMES))
    made = [call[2] for call in module.calls if call[1] == "init"]
    common = {"project": "mine", "group": "sweep", "reinit": "create_new"}
    assert made == [
        common | {"name": name, "config": {"lam": number, "num_rounds": 4}}
        for number, name in enumerate(NAMES)
    ]
    logged = [call for call in module.calls if call[1] == "log"]
    assert logged == [
        (NAMES[number], "log", {"global/test/loss": value}, round)
        for number, value, round in (
            *((0, 10.0, 0), (1, 20.0, 0), (0, 12.0, 2), (1, 22.0, 2), (0, 14.0, 4)),
        )
    ]
    ended = [call for call in module.calls if call[1] == "finish"]
    assert sorted(ended) == sorted((name, "finish", 0) for name in NAMES)


def test_an_interrupted_run_is_marked_as_failed(recorded):
    module = recorded("wandb")
    play(fp.engine.WeightsAndBiases(), trainings("only"), rounds=(0, 2))
    assert module.calls[0][2]["group"]  # the time
    assert [c for c in module.calls if c[1] == "finish"] == [("only", "finish", 1)]


def test_without_an_account_the_error_is_a_sentence(recorded, monkeypatch):
    module = recorded("wandb")

    def refuse(**options):
        raise module.Error("api_key not configured.\n  Log in.")

    monkeypatch.setattr(module, "init", refuse)
    with pytest.raises(checks.InputError) as caught:
        play(fp.engine.WeightsAndBiases(), trainings("only"))
    assert str(caught.value) == (
        "Weights & Biases made no run: api_key not configured. Log in;"
        " WANDB_MODE=offline needs no account."
    )


@pytest.mark.parametrize(
    ("make", "package", "extra"),
    [
        (lambda: fp.engine.TensorBoard("logs"), "tensorboardX", "tensorboard"),
        (lambda: fp.engine.WeightsAndBiases(), "wandb", "wandb"),
        (lambda: fp.engine.MLflow(), "mlflow", "mlflow"),
    ],
)
def test_a_missing_package_is_a_sentence(make, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(checks.InputError) as caught:
        make()
    text = str(caught.value)
    assert f"need the package {package}," in text and "\n" not in text
    assert text.endswith(f'pip install "fedjax_pfl[{extra}]".')


def quadratic_grid(**options):
    """Means of test losses `[points, rounds]`."""
    spec = fp.FederationSpec("quadratic", "by_client", num_clients=4)
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    axes = {"seed": [0, 1]}
    run = (jax.random.key(0), process, fp.models.Quadratic(), spec, axes, 6)
    (group,) = fp.grid(*run, eval_every=2, progress=False, **options).groups
    losses = group.metrics["loss"].mean(axis=-1)
    return losses[:, :, 0, group.data.index("test")]


def test_tensorboard_itself_reads_what_was_written(tmp_path):
    """Also after a resumption, which writes into the same directories."""
    pytest.importorskip("tensorboardX")
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )

    class Failing(fp.Callback):
        def evaluated(self, evaluation):
            if evaluation.round == 4:
                raise RuntimeError("the log is full")

    options = {"checkpoints": fp.Checkpoints(tmp_path / "run")}
    folder = tmp_path / "logs"
    with pytest.raises(RuntimeError):
        quadratic_grid(callbacks=[fp.engine.TensorBoard(folder), Failing()], **options)
    means = quadratic_grid(callbacks=[fp.engine.TensorBoard(folder)], **options)
    names = [path.name for path in sorted(folder.iterdir())]
    assert names == ["000-FedAvg,seed=0", "001-FedAvg,seed=1"]
    for point, name in enumerate(names):
        assert len(list((folder / name).iterdir())) == 2  # one file per process
        found = reader.EventAccumulator(str(folder / name))
        found.Reload()
        scalars = found.Scalars("global/test/loss")
        assert [s.step for s in scalars] == [0, 2, 4, 6]
        values = [s.value for s in scalars]
        np.testing.assert_allclose(values, means[point], rtol=1e-6)
        text = found.Tensors("settings/text_summary")[-1].tensor_proto
        assert b"| algorithm | FedAvg |" in text.string_val[0]


@pytest.mark.wide
def test_wandb_itself_works_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    writer = fp.engine.WeightsAndBiases("mine", group="sweep")
    means = quadratic_grid(callbacks=[writer])
    wandb.teardown()  # as at the end of a process: waits for the files
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    found = [history_of(path) for path in files]
    for name, group, rows in found:
        point = int(name.removeprefix("FedAvg, seed="))
        assert group == "sweep" and [r["_step"] for r in rows] == [0, 2, 4, 6]
        losses = [r["global/test/loss"] for r in rows]
        np.testing.assert_allclose(losses, means[point], rtol=1e-6)


def test_mlflow_itself_has_a_run_per_training(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    means = quadratic_grid(callbacks=[fp.engine.MLflow("mine")])
    client = mlflow.MlflowClient()
    place = client.get_experiment_by_name("mine").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([place])}
    for point, name in enumerate(["FedAvg, seed=0", "FedAvg, seed=1"]):
        run = runs[name]
        assert run.info.status == "FINISHED"
        assert run.data.params["algorithm"] == "FedAvg"
        history = client.get_metric_history(run.info.run_id, "global/test/loss")
        assert [m.step for m in history] == [0, 2, 4, 6]
        losses = [m.value for m in history]
        np.testing.assert_allclose(losses, means[point], rtol=1e-6)


def test_mlflow_without_a_store_is_a_sentence(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "gopher://nowhere")
    with pytest.raises(checks.InputError, match="MLflow takes no runs: .*gopher"):
        play(fp.engine.MLflow(), trainings("only"))


def history_of(path):
    """Name, group and rows of a run, from the file that `wandb sync` sends.

    After 7 bytes come records: 4 bytes checksum, 2 length, 1 for "whole", the message.
    """
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    content = path.read_bytes()
    assert len(content) < 2**15  # one block
    at, name, group, rows = 7, None, None, []
    while at < len(content):
        length = int.from_bytes(content[at + 4 : at + 6], "little")
        assert content[at + 6] == 1
        record = records.Record.FromString(content[at + 7 : at + 7 + length])
        kind = record.WhichOneof("record_type")
        if kind == "run":
            name, group = record.run.display_name, record.run.run_group
        elif kind == "history":
            items = record.history.item
            rows.append(
                {
                    i.key or ".".join(i.nested_key): json.loads(i.value_json)
                    for i in items
                }
            )
        at += 7 + length
    return name, group, rows
