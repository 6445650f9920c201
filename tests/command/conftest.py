"""Fixtures of tests of commands."""

import pytest

from fedjax_pfl.command import job
from fedjax_pfl.report import writing


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Commands write below an empty directory and keep no compiled programs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job.compilation_cache, "keep", lambda: None)
    monkeypatch.delenv("FEDJAX_PFL_DATA", raising=False)


@pytest.fixture
def no_figures(monkeypatch):
    """Commands draw nothing, which takes seconds each."""
    monkeypatch.setattr(job.figures, "save_all", lambda *_: [])
    monkeypatch.setattr(writing, "_write_figures", lambda *_: None)
