"""Fixtures of tests of commands."""

import pytest

from fedjax_pfl.command import job


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Commands write below an empty directory and keep no compiled programs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job.compilation_cache, "keep", lambda: None)
    monkeypatch.delenv("FEDJAX_PFL_DATA", raising=False)
