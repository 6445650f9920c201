"""Fixtures of tests of data."""

import pytest

from fedjax_pfl.data import splits


@pytest.fixture
def rows_of_the_file(monkeypatch):
    """Rows of a pool are then those of the file, whose order has no meaning."""
    monkeypatch.setattr(splits, "in_order_of_values", lambda dataset: dataset)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    """Tests find the files of data sets where they say."""
    monkeypatch.delenv("FEDJAX_PFL_DATA", raising=False)
