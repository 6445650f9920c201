"""Data sets from the network: what is asked for, and what is said without one."""

import pathlib
import sys
import types

import pytest

from fedjax_pfl import data
from fedjax_pfl.core import checks
from fedjax_pfl.data import sources
from fedjax_pfl.data.sources import fetching
from tests.data import samples


def _replace(monkeypatch, download):
    """Puts a builder in the place of tensorflow-datasets; returns what it was told."""
    told = []

    def builder(name, **options):
        told.append((name, options))
        return types.SimpleNamespace(download_and_prepare=download)

    fake = types.SimpleNamespace(builder=builder)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", fake)
    monkeypatch.setattr(fetching, "_check_network", lambda: None)
    return told


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_a_data_set_is_prepared_where_readers_look(monkeypatch, tmp_path, name):
    told = _replace(monkeypatch, lambda: None)
    loaded = []
    monkeypatch.setattr(sources, "load_dataset", lambda *a, **b: loaded.append((a, b)))
    data.fetch(name, str(tmp_path))
    place = str(tmp_path.resolve())
    assert told == [(name, {"data_dir": place, "file_format": "array_record"})]
    assert loaded == [((name,), {"data_dir": place})]


def test_without_a_network_there_is_one_sentence(monkeypatch, tmp_path):
    def fail():
        raise ConnectionError("no route")

    _replace(monkeypatch, fail)
    with pytest.raises(checks.InputError, match="Cannot fetch 'mnist', which needs a"):
        data.fetch("mnist", str(tmp_path))


def test_other_input_is_refused(monkeypatch, tmp_path):
    for name, place, words in (
        ("femnist", str(tmp_path), "Unknown data set that can be fetched"),
        ("mnist", None, "pass --data-dir"),
        ("mnist", str(pathlib.Path(tmp_path) / "none"), "none"),
    ):
        samples.refusal(data.fetch, name, place, match=words)
    monkeypatch.setattr(fetching, "_check_network", lambda: None)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(checks.InputError, match="needs tensorflow-datasets"):
        data.fetch("mnist", str(tmp_path))
