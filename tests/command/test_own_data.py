"""A user's own data on the command line, and evaluation options of the commands."""

import csv
import os
import pathlib

import numpy as np
import pytest

import fedjax_pfl as fp
from experiments import run, sweep
from fedjax_pfl.command import arguments, data_command, own_data, presets
from fedjax_pfl.core import checks, struct
from fedjax_pfl.data.readers import tokens
from tests.command.commands import call, refused

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def table(tmp_path):
    """What a stranger would write: text, categories, users in any order."""
    rng = np.random.default_rng(0)
    with open(tmp_path / "my.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "age", "color", "y", "score"])
        for k in range(120):
            age = rng.normal()
            color = ["red", "green, dark"][k % 2]
            label = "yes" if age + (k % 2) > 0.5 else "no"
            row = [f"user {k % 4}", f"{age:.4f}", color, label, f"{2 * age + 7:.4f}"]
            writer.writerow(row)
    return "my.csv"


def train(line):
    call(run.app, f"{line} --out out --quiet")
    return fp.Result.load("out")


OWN = "--data my.csv --label y --client user"


def test_a_strangers_table(table):
    result = train(f"{OWN} --rounds 6 --set 'federation.dataset.drop=[\"score\"]'")
    group = result.groups[0]
    assert group.num_train.shape == (1, 4)
    assert group.label_counts.shape == (1, 4, 2)
    assert group.config["federation.partition"] == "ByClient"
    shown = result.summary().set_index("model")["accuracy"].astype(float)
    assert shown["personal"] > 0.8  # a linear rule; the majority has about 0.5
    names = sorted(os.listdir("out/figures"))
    wanted = ("clients", "differences", "fairness", "learning_curves", "partition")
    assert names == [f"{name}.png" for name in wanted]


@pytest.mark.wide
def test_numbers_as_labels_take_a_linear_regression(table):
    result = train("--data my.csv --label score --client user --rounds 20")
    group = result.groups[0]
    assert group.config["model"] == "LinearRegression"
    assert group.label_counts is None
    # The score is linear in the age; its variance is 4, so a constant has loss 2.
    assert float(result.summary().set_index("model")["loss"]["personal"]) < 0.1


@pytest.mark.wide
def test_texts_get_an_encoder(table, monkeypatch):
    def count(texts, path, length):
        return np.array([[len(text), 0] for text in texts], np.int32)

    monkeypatch.setattr(tokens, "token_ids", count)
    pathlib.Path("own.json").write_text("{}")
    columns = {"data": table, "label": "y", "client": "user"}
    data = arguments.DataOptions(**columns, text="color", tokenizer="own.json")
    experiment = own_data.with_data(presets.get("own_data").single(), data)
    (grid,) = experiment.grids
    federation = grid.spec.build()
    assert federation.train.x.tolist()[:2] == [[3, 0], [11, 0]]
    model = grid.model.for_federation(federation)
    assert isinstance(model, fp.models.TextEncoder) and model.vocabulary == 12


def test_a_column_of_times_makes_the_last_rows_the_test_part(tmp_path):
    rows = [f"u{k % 4},{k // 4},{k % 3},{k / 7}" for k in range(120)]
    (tmp_path / "hours.csv").write_text("\n".join(["user,hour,y,a", *rows]))
    columns = {"data": "hours.csv", "label": "y", "client": "user", "time": "hour"}
    start = presets.get("own_data").single()
    (grid,) = own_data.with_data(start, arguments.DataOptions(**columns)).grids
    assert grid.spec.dataset.time == "hour" and grid.spec.build().num_clients == 4
    data = arguments.DataOptions(**columns, window=3)
    (grid,) = own_data.with_data(start, data).grids
    federation = grid.spec.build()
    assert federation.input_shape == (3, 4)  # a and the three classes
    assert grid.model.for_federation(federation).input_shape == (3, 4)
    assert "--window needs --data" in refused(run.app, "--window 3")
    assert "--time needs --data" in refused(run.app, "--time hour")


def test_every_seed_has_the_scale_of_its_training_rows(table):
    """Points with pools of their own are trained as each alone."""
    line = f"{OWN} --scale client --rounds 3 --set algorithm=fedavg --quiet"
    line += " --set 'federation.dataset.drop=[\"score\"]'"
    losses = {}
    for seeds in ("0,1", "0", "1"):
        out = f"out {seeds}"
        call(run.app, line, "--seed-list", seeds, "--out", out)
        (group,) = fp.Result.load(out).groups
        assert group.config["federation.dataset.scale"] == "client"
        losses[seeds] = np.asarray(group.metrics["loss"])
    alone = np.concatenate([losses["0"], losses["1"]])
    # Sums of float32 in another order.
    np.testing.assert_allclose(losses["0,1"], alone, rtol=1e-4, atol=1e-6)
    assert not np.array_equal(alone[0], alone[1])


def test_a_table_of_another_country(tmp_path):
    rows = [f"u{k % 4};{k},5;{'' if k == 7 else 'ab'[k % 2]}" for k in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["user;a;y", *rows]))
    line = "show --data a.csv --label y --client user --missing drop"
    hint = "--set federation.dataset.decimal=,"
    assert hint in refused(data_command.app, line)
    for decimal in (",", '","'):
        setting = f"federation.dataset.decimal={decimal}"
        done = call(data_command.app, line, "--set", setting)
        wanted = "1 of 60 rows were left out because of missing values."
        assert done.output.count(wanted) == 1


def test_settings_of_own_data_act_before_the_model_is_chosen(tmp_path):
    """`run`, `sweep`, `plan` and `data show` share what makes the experiment."""
    rows = [f"u{k % 4},{k / 7:.3f},day {k},{20 + k % 50}" for k in range(120)]
    (tmp_path / "ages.csv").write_text("\n".join(["user,a,when,age", *rows]))
    columns = {"data": "ages.csv", "label": "age", "client": "user"}
    start = presets.get("own_data").single()
    settings = ['federation.dataset.drop=["when"]']
    with pytest.raises(checks.InputError, match="120 texts"):
        own_data.with_data(start, arguments.DataOptions(**columns))
    made = []
    for task in ("classification", "regression"):
        chosen = [*settings, f"federation.dataset.task={task}"]
        options = arguments.DataOptions(**columns, set_=chosen)
        made.append(own_data.with_data(start, options))
    classes, numbers = made
    (first,), (second,) = classes.grids, numbers.grids
    assert first.model == start.grids[0].model and first.spec.build().num_classes == 50
    assert isinstance(second.model, fp.models.LinearRegression)
    assert second.spec.build().num_classes is None
    hint = "--set 'federation.dataset.drop=[\"when\"]'"
    assert hint in refused(run.app, "--data ages.csv --label age --client user")


def test_rows_without_clients_are_distributed(table):
    line = "--data my.csv --label y --rounds 1 --clients 6"
    result = train(f"{line} --set federation.partition=iid")
    assert result.groups[0].num_train.shape == (1, 6)


def test_numbers_without_clients_are_distributed_at_random(table):
    data = arguments.DataOptions(data=table, label="score")
    experiment = own_data.with_data(presets.get("own_data").single(), data)
    spec = experiment.grids[0].spec
    assert isinstance(spec.partition, fp.IID) and spec.num_clients == 20
    assert spec.build().num_classes is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--data my.csv", "label"),
        ("--data my.csv --label yy", "did you mean 'y'"),
        ("--data my.csv --label y --client users", "mean 'user'"),
        ("--data none.csv --label y", "none.csv"),
        ("--label y", "--label needs --data"),
        ("--tokenizer minilm", "--tokenizer needs --data"),
        (
            "--data my.csv --label y --text color",
            "Expected both text, a column, and its tokenizer",
        ),
        (
            "--data a.npz --tokenizer minilm",
            "Expected --tokenizer with a table of text, got 'a.npz'",
        ),
        ("--data my.csv --dataset digits", "not both"),
        ("--eval-on tset", "did you mean 'test'"),
        ("--eval-on test,test", "different names"),
        ("--eval-on test=x", "different names"),
        ("--eval-on test=4,train=6", "multiples of the smallest"),
        ("--eval-on test,others", "num_others of at least 1"),
        ("--eval-clients some", "Unknown eval_clients"),
        ("--eval-clients 61", "at most 60"),
        ("--eval-every 0", "eval-every"),
    ],
)
def test_wrong_options(table, line, message):
    assert message in refused(run.app, f"--rounds 2 {line}")


def test_text_among_numbers_names_the_line(table):
    lines = pathlib.Path(table).read_text("utf-8").splitlines()
    lines[7] = lines[7].rpartition(",")[0] + ",n/a?"
    pathlib.Path(table).write_text("\n".join(lines), "utf-8")
    assert "line 8" in refused(run.app, OWN)


@pytest.mark.wide
def test_evaluation_options_reach_the_result():
    result = train(
        "--rounds 4 --eval-every 1 --eval-on test,validation,others=2,everybody=4"
        " --eval-clients 5 --set federation.num_others=2 --set algorithm=fedavg"
    )
    group = result.groups[0]
    assert group.data == ("test", "validation", "others", "everybody")
    assert group.evaluated.sum(axis=-1)[0].tolist() == [
        [5, 5, 5, 5],
        [5, 5, 0, 0],
        [5, 5, 5, 0],
        [5, 5, 0, 0],
        [5, 5, 5, 5],
    ]
    table = result.table()
    assert "everybody's test" in set(table["data"])
    # The global model has one value on everybody's data, whoever evaluates it.
    rows = table[(table["data"] == "everybody's test") & (table["when"] == "last")]
    spread = rows[(rows["metric"] == "accuracy") & (rows["stat"] == "std")]
    assert (spread["value"] < 1e-6).all() and len(spread)


def test_the_leak_is_printed_before_training():
    line = "--set federation.partition=leaky_quantity_skew --seeds 1 --dry-run"
    line += " --set federation.partition.min_examples=20 --set algorithm=fedavg"
    leak = "of the test examples are training examples of another"
    assert leak in call(sweep.app, line).output


def test_presets_name_data_models_and_algorithms_that_exist():
    for name in presets.PRESETS:
        experiment = presets.get(name)
        assert experiment.name == name
        for grid in experiment.grids:
            network = struct.innermost(grid.model)
            assert type(network) in fp.algorithms.MODELS.values()
            assert type(grid.process.algorithm) in fp.algorithms.ALGORITHMS.values()


def test_kappa_is_printed_for_natural_clients(table):
    flame = "--set algorithm=flame --set algorithm.lam=0.5,2 --set algorithm.rho=0.5"
    done = call(sweep.app, f"{OWN} --dry-run {flame}")
    assert "algorithm.lam = 0.5, 2.0; algorithm.rho" not in done.stdout
    assert "kappa = 1, 4" in done.stdout  # rho N / lam, N = 4


def test_a_pipe_is_no_table():
    os.mkfifo("my.csv")
    assert "to be a file, but it is a pipe" in refused(run.app, OWN)


@pytest.mark.parametrize(
    ("options", "preset"),
    [
        ({}, "digits"),
        ({"data": "my.csv"}, "own_data"),
        ({"problem": "classification"}, "digits"),
        ({"problem": "classification", "data": "my.csv"}, "own_data"),
        ({"problem": "portfolio", "data": "my.csv"}, "portfolio"),
        ({"preset": "mnist", "data": "my.csv"}, "mnist"),
    ],
)
def test_own_data_have_a_preset_of_their_own(options, preset):
    assert arguments.Options(command="sweep", **options).preset_name == preset


def test_prices_are_learned_by_a_network_in_their_units(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    prices = 150_000 + 40_000 * (np.abs(x[:, 0]) + x[:, 1] / 2)
    rows = [
        f"u{k % 5},{a:.3f},{b:.3f},{c:.3f},{y:.2f}"
        for k, ((a, b, c), y) in enumerate(zip(x, prices, strict=True))
    ]
    (tmp_path / "houses.csv").write_text("\n".join(["user,a,b,c,y", *rows]))
    line = "--data houses.csv --label y --client user --set model=mlp --rounds 20"
    table = train(line).table()
    table = table[(table["when"] == "last") & (table["data"] == "own test")]
    rmse = table[(table["metric"] == "rmse") & (table["stat"] == "mean")]["value"]
    assert (rmse < prices.std() / 2).all() and (rmse > 100).all()
