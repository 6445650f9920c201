"""A run that others are compared with."""

import functools

import pytest

from tests.trust import processes


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A directory with compiled programs and an uninterrupted result."""
    folder = tmp_path_factory.mktemp("trust")
    run = functools.partial(processes.start, folder, cache=folder / "cache")
    command = run(*processes.ARGUMENTS, "--quiet", "--out", "whole")
    assert command.wait() == 0, command.text()
    return folder, run
