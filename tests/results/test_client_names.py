"""Names of clients, from a table to everything that is said of a result."""

import json
import re

import jax
import numpy as np
import pandas as pd
import pytest
import typer.testing

import fedjax_pfl as fp
from experiments import sweep
from fedjax_pfl import figures
from fedjax_pfl.command import job, run_folder
from fedjax_pfl.data import describe
from fedjax_pfl.report import writing
from fedjax_pfl.results import named_clients
from tests import histories

NAMES = ["zoe", "ann", "bob"]


def table(path, order=None, names=NAMES):
    """Writes a table of three clients whose rows are in some order."""
    rng = np.random.default_rng(0)
    rows = [
        (name, *rng.normal(size=3).round(3), int(rng.integers(2)))
        for name in names
        for _ in range(30)
    ]
    frame = pd.DataFrame(rows, columns=["site", "a", "b", "c", "y"])
    frame = frame if order is None else frame.iloc[order]
    frame.to_csv(path, index=False)
    return path


def federation(path, **options):
    source = fp.data.Csv(path=str(path), label="y", client="site")
    spec = fp.FederationSpec(source, fp.ByClient(), num_clients=None, **options)
    return spec.build()


def trained(made, **options):
    process = fp.FederatedProcess(algorithm=fp.Local())
    args = (jax.random.key(0), process, fp.LogisticRegression(), made)
    return fp.simulate(*args, num_rounds=2, progress=False, **options)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A training whose models are saved."""
    folder = tmp_path_factory.mktemp("named")
    made = federation(table(folder / "one.csv"))
    return trained(made, models_to=folder / "models")


def test_federations_number_clients_by_their_names(tmp_path):
    made = federation(table(tmp_path / "one.csv"))
    assert made.client_names == ("ann", "bob", "zoe")
    assert describe(made).to_frame()["name"].tolist() == ["ann", "bob", "zoe"]
    assert re.search(r"0 +ann", describe(made).table())


def test_drawn_and_unseen_clients_keep_their_names(tmp_path):
    path = table(tmp_path / "one.csv")
    made = federation(path, unseen_fraction=0.34)
    assert made.unseen is not None
    assert {*made.client_names, *made.unseen.client_names} == set(NAMES)
    source = fp.data.Csv(path=str(path), label="y", client="site", scaling="none")
    few = fp.FederationSpec(source, fp.ByClient(), num_clients=2).build()
    data = source.load(data_dir=None, seed=0, num_clients=None)
    for number, name in enumerate(few.client_names):
        x = np.asarray(few.train.examples(number).x)
        own = data.x[data.client == data.client_names.index(name)]
        assert all((row == own).all(axis=1).any() for row in x)


def test_partitions_that_mix_clients_have_numbers(tmp_path):
    source = fp.data.Csv(path=str(table(tmp_path / "one.csv")), label="y")
    made = fp.FederationSpec(source, fp.IID(), num_clients=3).build()
    assert made.client_names is None
    writers = fp.data.Csv(path=source.path, label="y", client="site")
    skewed = fp.FederationSpec(writers, fp.data.FeatureSkew(), num_clients=3).build()
    assert set(skewed.client_names) == set(NAMES)
    paired = fp.data.FeatureSkew(clients_per_client=3)
    made = fp.FederationSpec(writers, paired, num_clients=1).build()
    assert made.client_names is None


def test_results_have_the_names_and_keep_them(result, tmp_path):
    clients = result.clients()
    named = clients.drop_duplicates("client").set_index("client")["name"]
    assert named.to_dict() == {0: "ann", 1: "bob", 2: "zoe"}
    result.save(tmp_path / "out")
    assert fp.Result.load(tmp_path / "out") == result
    labeled = result.to_dataset()
    assert labeled["client_name"].dims == ("point", "client")
    stored = pd.read_csv(tmp_path / "out/clients.csv")
    assert set(stored["name"]) == set(NAMES)


def test_results_keep_the_names_of_classes(tmp_path):
    rows = pd.read_csv(table(tmp_path / "one.csv"))
    rows["y"] = np.where(rows["y"] == 1, "ill", "=well")
    rows.to_csv(tmp_path / "one.csv", index=False)
    result = trained(federation(tmp_path / "one.csv"))
    assert result.groups[0].class_names == ("=well", "ill")
    assert result.to_dataset()["class"].to_numpy().tolist() == ["=well", "ill"]
    result.save(tmp_path / "out")
    again = fp.Result.load(tmp_path / "out")
    assert again == result and again.groups[0].class_names == ("=well", "ill")
    figure = figures.draw("partition", again)
    shown = [tick.get_text() for tick in figure.axes[1].get_yticklabels()]
    assert shown == ["=well", "ill"]


def test_clients_without_names_are_their_numbers():
    record = histories.make_history(num_clients=3)
    clients = histories.make_result(record).clients()
    assert clients["name"].tolist() == clients["client"].astype(str).tolist()


def test_saved_models_are_found_by_name(result):
    model = result.models().find(model="personal")
    assert model.names == ("ann", "bob", "zoe")
    same = jax.tree.map(np.array_equal, model.of("zoe"), model.of(2))
    assert jax.tree.all(same)
    with pytest.raises(fp.InputError, match="such as 'ann', got 'eve'"):
        model.of("eve")


def test_the_client_that_diverged_is_named():
    record = histories.make_history(num_clients=3, algorithm="Local")
    record.client_diverged_at[0] = -1, 1, -1
    record.diverged_at[0] = 1
    names = np.array([["ann", "bob", "zoe"]], object)
    fields = vars(record) | {"client_names": names}
    named = type(record)(**fields)
    assert named.status[0] == "diverged at round 1 (client bob)"


def test_whom_a_method_serves_worse_is_said_by_name():
    records = []
    for algorithm, values in (("FedAvg", [0.5, 0.9, 0.7]), ("Local", [0.8, 0.6, 0.7])):
        model = {"FedAvg": "global", "Local": "personal"}[algorithm]
        record = histories.make_history(
            points=({"seed": 0},), num_clients=3, algorithm=algorithm, models=(model,)
        )
        for name in record.metrics:
            record.metrics[name][...] = values
        names = np.array([["ann", "bob", "zoe"]] * len(record.points), object)
        records.append(type(record)(**(vars(record) | {"client_names": names})))
    (named,), metric = named_clients.of_result(histories.make_result(*records))
    assert metric == "accuracy"
    assert named.sentences == (
        "ann (-0.3000) is worse off with the global model of FedAvg than with the"
        " personal model of Local.",
    )
    assert [row[0] for row in named.rows] == ["ann", "zoe", "bob"]
    assert named.rows[0][2:] == ("0.5000", "0.8000")


@pytest.mark.wide
def test_the_report_has_a_table_of_names(tmp_path, monkeypatch):
    monkeypatch.setattr(job.compilation_cache, "keep", lambda: None)
    out = tmp_path / "out"
    words = ["--data", str(table(tmp_path / "one.csv")), "--label", "y"]
    words += ["--client", "site", "--algorithm", "fedavg,local", "--seeds", "1"]
    words += ["--rounds", "2", "--out", str(out), "--quiet"]
    answer = typer.testing.CliRunner().invoke(sweep.app, words)
    assert answer.exit_code == 0, answer.output
    page = writing.write([out], None, run_folder).read_text("utf-8")
    section = page.partition('<section id="named_clients">')[2].partition("</section>")
    for name in NAMES:
        assert f'<th scope="row">{name}</th>' in section[0]
    packed = re.search(r'type="application/json">(.*?)</script>', page)
    assert packed is not None
    assert json.loads(packed[1])[0]["clients"] == ["ann", "bob", "zoe"]


def test_rows_in_another_order_give_the_same_clients_and_the_same_bits(tmp_path):
    order = np.random.default_rng(1).permutation(90)
    one = federation(table(tmp_path / "one.csv"), unseen_fraction=0.34)
    two = federation(table(tmp_path / "two.csv", order), unseen_fraction=0.34)
    assert one.client_names == two.client_names
    for part in ("train", "validation", "test"):
        for client in range(one.num_clients):
            a, b = (getattr(f, part).examples(client) for f in (one, two))
            np.testing.assert_array_equal(a.x, b.x)
            np.testing.assert_array_equal(a.y, b.y)
    values = [trained(made).clients()["value"] for made in (one, two)]
    assert values[0].tolist() == values[1].tolist()


def test_rows_in_another_order_are_distributed_the_same(tmp_path):
    order = np.random.default_rng(1).permutation(90)
    paths = table(tmp_path / "one.csv"), table(tmp_path / "two.csv", order)
    sources = [fp.data.Csv(path=str(path), label="y") for path in paths]
    one, two = (fp.FederationSpec(s, fp.IID(), num_clients=4).build() for s in sources)
    for client in range(4):
        a, b = (made.train.examples(client).x for made in (one, two))
        np.testing.assert_array_equal(a, b)
