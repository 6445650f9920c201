"""Fixtures of tests of data."""

import pytest

from fedjax_pfl.data import splits


@pytest.fixture
def rows_of_the_file(monkeypatch):
    """Rows of a pool are then those of the file, whose order has no meaning."""
    monkeypatch.setattr(splits, "in_order_of_values", lambda dataset: dataset)
