"""Trained models: what is saved is what was evaluated, whoever reads it."""

import collections
import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import fedjax_pfl as fp
from fedjax_pfl import models
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import held_models, save_models
from fedjax_pfl.results import model_files
from fedjax_pfl.testing import toy
from tests.lanes import few, wide
from tests.models import test_models

KEY = jax.random.key(0, impl="threefry2x32")
SGD = fp.SGD(learning_rate=0.1, epochs=1, batch_size=4)
FEW_STEPS = fp.SGD(learning_rate=0.1, epochs=1, batch_size=200)
HALF = fp.UniformCohort(size=4)
SPEC = fp.FederationSpec("digits", "dirichlet_labels", num_clients=6)
LINEAR, MLP = fp.LogisticRegression(), fp.MLP(widths=(3,))


def train(tmp_path, algorithm, model=LINEAR, rounds=3, **options):
    """Result, models and federation of a small training."""
    federation = toy.make_federation()
    process = fp.FederatedProcess(algorithm=algorithm, participation=HALF)
    given = {"models_to": tmp_path / "models", "progress": False} | options
    result = fp.simulate(KEY, process, model, federation, rounds, **given)
    return result, fp.load_models(tmp_path / "models"), federation


@pytest.fixture(scope="module")
def flame(tmp_path_factory):
    """The same of FLAME, for tests that change no file."""
    return train(tmp_path_factory.mktemp("flame"), fp.Flame(local=SGD))


@pytest.fixture
def copy(flame, tmp_path):
    """A copy of its models that a test may damage, with a path to one."""
    shutil.copytree(flame[1].directory, tmp_path / "models")
    found = fp.load_models(tmp_path / "models")
    return found, found.directory / found.table["file"][0]


def assert_predicts(result, found, federation, apply, names=None):
    """Accuracies of all clients are those of the saved models."""
    (group,) = result.groups
    assert sorted(found.table["model"]) == sorted(group.models)
    table = result.clients()
    table = table[(table["metric"] == "accuracy") & (table["population"] == "all")]
    for name in names or group.models:
        saved = found.find(model=name)
        evaluated = table[table["model"] == name].set_index("client")["value"]
        for client in range(federation.num_clients):
            batch = federation.test.examples(client)
            outputs = np.asarray(apply(saved.of(client), batch.x))
            accuracy = (outputs.argmax(-1) == np.asarray(batch.y)).mean()
            assert accuracy == pytest.approx(evaluated[client], rel=1e-12)


def close(found, expected):
    """Whether two trees are equal to rounding."""

    def compared(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)

    jax.tree.map(compared, found, expected)


NETWORKS = {
    "flame": fp.Flame(local=SGD),
    "fedavg": fp.FedAvg(local=SGD, fine_tune=SGD),
    "apfl": fp.APFL(local=SGD),
    "per_fedavg": fp.PerFedAvg(batch_size=4),
    "fedpg": fp.FedPG(),
    "centralized": fp.Centralized(local=SGD),
    "fedrep": fp.FedRep(local=SGD),
    "fedrod": fp.FedROD(local=SGD),
}


@pytest.mark.parametrize("name", few(("flame",), NETWORKS))
def test_saved_networks_predict_what_was_evaluated(tmp_path, flame, name):
    """Of every predictor, by the model alone; methods that adapt save the adapted."""
    kind = MLP if name in ("fedrep", "fedrod") else LINEAR
    is_flame = name == "flame"
    trained = flame if is_flame else train(tmp_path, NETWORKS[name], kind)
    model = kind.for_federation(trained[2])
    assert_predicts(*trained, model.apply)
    _, found, _ = trained
    shape = jax.tree.map(np.shape, jax.eval_shape(model.init, KEY))
    for predictor in found.table["model"]:
        saved = found.find(model=predictor)
        assert (saved.clients is None) == (predictor == "global")
        assert jax.tree.map(np.shape, saved.of(2)) == shape


def mixed(params, x):
    model = LINEAR.for_federation(toy.make_federation())
    own, common = (model.apply(params[n], x) for n in ("own", "global"))
    return params["alpha"] * own + (1 - params["alpha"]) * common


def routed(params, x):
    deep = MLP.for_federation(toy.make_federation())
    exits = models.EarlyExit(network=deep, exit_after=1)
    early, late = (np.asarray(part) for part in exits.apply(params, x))
    share = np.exp(early - early.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    entropy = -(share * np.log(share)).sum(-1, keepdims=True)
    return np.where(entropy <= 0.9, early, late)


def repeated(params, x):
    return np.tile(params["logits"], (len(x), 1))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("algorithm", "model", "apply"),
    [
        (fp.APFL(local=SGD, mix="outputs"), LINEAR, mixed),
        (fp.SplitGP(local=SGD, threshold=0.9), MLP, routed),
        (fp.Majority(), LINEAR, repeated),
    ],
)
def test_methods_without_one_network_save_their_parts(
    tmp_path, algorithm, model, apply
):
    """As their pages say: mixed outputs, two exits, frequencies."""
    result, found, federation = train(tmp_path, algorithm, model)
    assert_predicts(result, found, federation, apply, names=["personal"])


def test_single_numbers_are_saved(tmp_path):
    federation = toy.make_federation(classes=False)
    model = fp.models.LinearRegression(intercept=True)
    process = fp.FederatedProcess(algorithm=fp.Flame(local=SGD))
    how = {"models_to": tmp_path / "m", "progress": False}
    fp.simulate(KEY, process, model, federation, 1, **how)
    shapes = jax.eval_shape(model.for_federation(federation).init, KEY)
    for name in ("personal", "global"):
        found = fp.load_models(tmp_path / "m").find(model=name).of(1)
        assert jax.tree.map(np.shape, found) == jax.tree.map(np.shape, shapes)
    assert any(leaf.shape == () for leaf in jax.tree.leaves(shapes))


def test_a_result_opens_the_models_that_were_kept(tmp_path, flame):
    result, found, _ = flame
    assert result.models().table.equals(found.table)
    result.save(tmp_path / "saved")
    loaded = fp.Result.load(tmp_path / "saved")
    assert loaded == result
    with pytest.raises(checks.InputError, match="models_to='DIR' of simulate"):
        loaded.models()
    found.directory.rename(tmp_path / "elsewhere")
    with pytest.raises(checks.InputError, match="models_to='DIR' of simulate"):
        result.models()
    (tmp_path / "elsewhere").rename(found.directory)


def test_models_that_nobody_saved_are_still_in_memory(flame, monkeypatch):
    result, saved, _ = flame
    place = saved.directory.parent
    # Results of other tests in this process hold memory too.
    monkeypatch.setattr(held_models, "_holding", [])
    memory, _, _ = train(place, fp.Flame(local=SGD), models_to=None)
    opened = memory.models()
    assert opened.table.equals(saved.table)  # with the digests of all files
    assert memory.models() is opened
    with pytest.raises(checks.InputError, match="models_to='DIR' of simulate"):
        fp.Result.merge([result, memory]).models()

    # The newest result keeps the memory, the one before has given it back.
    (one,) = held_models._holding
    assert one()._size == 0  # written, so nothing is held
    earlier, _, _ = train(place, fp.Flame(local=SGD), models_to=None)
    size = held_models._holding[-1]()._size
    monkeypatch.setattr(held_models, "_LIMIT", size)
    newest, _, _ = train(place, fp.Flame(local=SGD), models_to=None)
    with pytest.raises(checks.InputError, match="newest ones of one process"):
        earlier.models()
    assert len(newest.models()) == 2


def test_every_point_of_every_group_is_found_by_what_names_it(tmp_path):
    axes = {"algorithm.lam": [0.1, 1.0], "seed": [0, 1]}
    process = fp.FederatedProcess(algorithm=fp.Flame(local=FEW_STEPS))
    result = fp.grid(
        KEY, process, MLP, SPEC, axes, 2, models_to=tmp_path / "m", progress=False
    )
    found = fp.load_models(tmp_path / "m")
    assert len(found) == 8 and "8 in" in repr(found)
    named = result.points().drop(columns="status").columns.tolist()
    assert found.table.columns.tolist() == [
        *(*named, "model", "clients", "numbers", "status", "file", "sha256")
    ]
    wanted = {"algorithm.lam": 1.0}
    saved = found.find(seed=1, model="personal", **wanted)
    assert repr(saved) == "TrainedModel(personal of Flame, of 6 clients)"
    settings = saved.about["settings"]
    assert (settings["model.widths"], settings["seed"]) == ([3], 1)
    federation = dataclasses.replace(SPEC, seed=1).build()
    model = MLP.for_federation(federation)
    (group,) = result.groups
    point = [p["algorithm.lam"] == p["seed"] == 1 for p in group.points].index(True)
    last = group.metrics["loss"][point, -1, group.models.index("personal"), 0]
    for client in (0, 5):
        batch = federation.test.examples(client)
        loss = model.loss(model.apply(saved.of(client), batch.x), batch)
        assert float(loss) == pytest.approx(float(last[client]), rel=1e-9)


def test_other_tools_read_the_files(flame):
    """Named arrays and, in the header, what they are."""
    found = flame[1]
    row = found.table[found.table["model"] == "personal"].iloc[0]
    path = found.directory / row["file"]
    arrays = safetensors.numpy.load_file(path)
    shapes = {name: array.shape for name, array in arrays.items()}
    assert shapes == {
        "clients": (8,),
        "params/head/bias": (8, 3),
        "params/head/kernel": (8, 3, 4),
    }
    with safetensors.safe_open(path, "numpy") as file:
        about = json.loads(file.metadata()["fedjax_pfl"])
    assert about["model"] == "personal" and about["status"] == "ok"
    assert about["settings"]["algorithm"] == "Flame"
    made = (found.directory / "models.csv").stat().st_mode
    assert path.stat().st_mode == made
    assert int(row["numbers"]) == 15 and int(row["clients"]) == 8


@pytest.mark.wide
def test_blocks_of_clients_and_devices_do_not_matter(tmp_path, flame, monkeypatch):
    """Each file's bytes; on several devices the values, to rounding."""
    whole = flame[1]
    monkeypatch.setattr(save_models, "_BLOCK_BYTES", 300)
    (tmp_path / "blocks").mkdir()
    _, blocks, _ = train(tmp_path / "blocks", fp.Flame(local=SGD))
    assert blocks.table.equals(whole.table)
    _, found, _ = train(tmp_path, fp.Flame(local=SGD), execution="shard=4")
    for model in ("personal", "global"):
        close(found.find(model=model).params, whole.find(model=model).params)


@pytest.mark.parametrize("chosen", [wide("participants"), 3])
def test_models_of_the_evaluated_clients_are_saved(tmp_path, flame, chosen):
    result, found, _ = train(tmp_path, fp.Flame(local=SGD), eval_clients=chosen)
    (group,) = result.groups
    expected = np.flatnonzero(group.evaluated[0, -1, 0])
    saved = found.find(model="personal")
    assert sorted(saved.clients.tolist()) == expected.tolist()
    every = flame[1].find(model="personal")
    for client in expected:
        jax.tree.map(np.testing.assert_array_equal, saved.of(client), every.of(client))
    other = min(set(range(8)) - set(expected.tolist()))
    with pytest.raises(checks.InputError, match=f"one of the {len(expected)} clients"):
        saved.of(other)


@pytest.mark.wide
def test_a_streamed_training_saves_those_of_its_sample(tmp_path):
    federation = toy.make_federation()
    process = fp.FederatedProcess(algorithm=fp.Flame(local=SGD), participation=HALF)
    given = (KEY, process, fp.LogisticRegression(), federation, 3)
    how = {"eval_clients": 5, "progress": False}
    fp.simulate(*given, **how, models_to=tmp_path / "a")
    fp.simulate_streamed(*given, **how, models_to=tmp_path / "b")
    for model in ("personal", "global"):
        one, other = (fp.load_models(tmp_path / n).find(model=model) for n in "ab")
        if model == "personal":
            assert set(one.clients) == set(other.clients)
        for client in other.clients if model == "personal" else [0]:
            close(one.of(client), other.of(client))


@pytest.mark.wide
def test_an_interrupted_training_saves_the_same_models_in_the_end(tmp_path):
    """Also of the groups that had ended before the interruption."""
    axes = {"model.widths": [(4,), (3,)]}
    process = fp.FederatedProcess(algorithm=fp.Flame(local=FEW_STEPS))
    given = (KEY, process, fp.MLP(), SPEC, axes, 4)
    how = {"eval_every": 2, "progress": False}
    fp.grid(*given, **how, models_to=tmp_path / "whole")
    saved = fp.Checkpoints(tmp_path / "checkpoints", min_seconds=0)

    class Stop(fp.Callback):
        def evaluated(self, event):
            if event.trainings[0].group == 1 and event.round == 2:
                raise KeyboardInterrupt

    resumed = how | {"checkpoints": saved, "models_to": tmp_path / "resumed"}
    with pytest.raises(KeyboardInterrupt):
        fp.grid(*given, **resumed, callbacks=[Stop()])
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "checkpoints"}
    fp.grid(*given, **resumed)
    one, other = (fp.load_models(tmp_path / n).table for n in ("whole", "resumed"))
    assert one.equals(other)


def test_what_cannot_be_saved_is_refused_before_training(tmp_path, monkeypatch):
    class Plain(fp.SingleExchange):
        pass

    @struct.pytree_dataclass
    class Function(Plain):
        def init(self, key, model, population, data):
            return model.init(key), None, None

        def predictors(self, view, server, client, model):
            return {"global": lambda x: model.apply(server, x)}

    with pytest.raises(checks.InputError, match="'global' of Function is a function"):
        train(tmp_path, Function())
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: collections.namedtuple("U", "free")(100)
    )
    with pytest.raises(checks.InputError, match="GB of free disk for the trained"):
        train(tmp_path, fp.Flame(local=SGD))
    monkeypatch.undo()
    (tmp_path / "models").mkdir()
    with pytest.raises(checks.InputError, match="that does not exist yet"):
        train(tmp_path, fp.Flame(local=SGD))
    assert list((tmp_path / "models").iterdir()) == []


def test_errors_of_callbacks_stay_what_they_are(tmp_path):
    class Fails(fp.Callback):
        def evaluated(self, event):
            raise FileNotFoundError("the callback's own")

    with pytest.raises(FileNotFoundError, match="the callback's own"):
        train(tmp_path, fp.Majority(), callbacks=[Fails()])
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_a_sentence_and_nothing_else(tmp_path, monkeypatch):
    def full(*_):
        raise safetensors.SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    with pytest.raises(checks.InputError, match="No space left on device"):
        train(tmp_path, fp.Flame(local=SGD))
    assert list(tmp_path.iterdir()) == []


def leading_out(directory, table):
    """The table of other files."""
    table = table.assign(file="../000-x/000-y.safetensors")
    table.to_csv(directory / "models.csv", index=False)


DAMAGES = {
    "no table": lambda d, t: (d / "models.csv").unlink(),
    "no column": lambda d, t: t.drop(columns="sha256").to_csv(d / "models.csv"),
    "a path outside": leading_out,
    "not text": lambda d, t: (d / "models.csv").write_bytes(b"\xff\xfe,\x00\n\x00"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_table_is_refused(copy, damage):
    found, _ = copy
    DAMAGES[damage](found.directory, found.table)
    with pytest.raises(checks.InputError, match=r"models(\.csv)?'"):
        fp.load_models(found.directory)


def test_a_damaged_file_is_refused(copy):
    found, path = copy
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], bytes([*whole[:-1], whole[-1] ^ 1])):
        path.write_bytes(damaged)
        with pytest.raises(checks.InputError, match="not what was written"):
            found.find(file=found.table["file"][0])
    path.unlink()
    with pytest.raises(checks.InputError, match="No such file"):
        found.find(file=found.table["file"][0])


def test_a_model_that_is_not_one_is_named(flame):
    for columns, sentence in (
        ({}, r"got nothing, which 2 of 2 have; model is global, personal\."),
        (
            {"model": "local"},
            r"'local', which 0 of 2 have; model is global, personal\.",
        ),
        ({"modell": "x"}, r"Unknown column 'modell' \(did you mean 'model'\?\)"),
    ):
        with pytest.raises(checks.InputError, match=sentence):
            flame[1].find(**columns)


@pytest.mark.parametrize("name", test_models.SMALL)
def test_parameters_of_every_network_are_read_as_they_were(name):
    _, params, _ = test_models.small(name)
    assert jax.tree.map(
        np.shape, model_files.nested(model_files.named(params))
    ) == jax.tree.map(np.shape, params)


def test_names_of_leaves():
    tree = {"a": [1, {"b": 2}], "c": 3}
    assert model_files.nested(model_files.named(tree)) == {
        "a": {"0": 1, "1": {"b": 2}},
        "c": 3,
    }
    assert model_files.nested(model_files.named(jnp.ones(2))).tolist() == [1, 1]
    with pytest.raises(checks.InputError, match="paths of their own"):
        model_files.named({"a": {"b": 1}, "a/b": 2})
    assert model_files.file_name(1, "FedPG", 12, "fine-tuned") == (
        "001-fedpg/012-fine-tuned.safetensors"
    )
    for text in ("../a", "/etc/passwd", "000-a/../../b.safetensors", ""):
        assert not model_files.is_file_name(text)
