"""Numbers of programs that the tests of each file compile: `pytest --structures`."""

import collections

import jax
import pytest

_COMPILED = "/jax/core/compile/backend_compile_duration"


class Structures:
    """Counts compilations by file: a program counts once in each process that needs it.

    A structure that an earlier test of the same process has compiled costs nothing, and
    counts for that test's file alone.
    """

    def __init__(self, config):
        self._config = config
        self._counts = collections.Counter()
        self._file = "imports"
        jax.monitoring.register_event_duration_secs_listener(self._see)

    def _see(self, event, duration, **_):
        del duration
        self._counts[self._file] += event == _COMPILED

    def pytest_runtest_logstart(self, nodeid):
        self._file = nodeid.partition("::")[0]

    def pytest_sessionfinish(self):
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["structures"] = dict(self._counts)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self._counts.update(getattr(node, "workeroutput", {}).get("structures", {}))

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("distinct structures that were compiled")
        for file, count in self._counts.most_common():
            terminalreporter.write_line(f"{count:6,} {file}")
        terminalreporter.write_line(f"{self._counts.total():6,} in all")
