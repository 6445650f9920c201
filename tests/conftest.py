"""Test settings: eight simulated devices, 64-bit floats, strict shapes."""

import gc
import itertools
import os
import shutil
import tempfile

from tests import compiler_flags

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
# The commands keep compiled programs for their users; tests compile what they test, and
# the workers of one run tell each other.
os.environ["JAX_COMPILATION_CACHE_DIR"] = (
    os.environ.get("FEDJAX_PFL_TESTS_COMPILED") or tempfile.mkdtemp()
)
os.environ["FEDJAX_PFL_TESTS_COMPILED"] = os.environ["JAX_COMPILATION_CACHE_DIR"]
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

os.environ["FEDJAX_PFL_TESTS_XLA_FLAGS"] = os.environ.get(
    "FEDJAX_PFL_TESTS_XLA_FLAGS"
) or compiler_flags.fast(os.environ["XLA_FLAGS"])

import jax
import pytest

import experiments.presets  # noqa: F401 (adds those of the papers)
from fedjax_pfl.engine import kept_programs
from tests import structures

# Not for the commands that tests start in processes of their own.
_for_commands = os.environ["XLA_FLAGS"]
os.environ["XLA_FLAGS"] = os.environ["FEDJAX_PFL_TESTS_XLA_FLAGS"]
jax.devices()  # reads the flags
os.environ["XLA_FLAGS"] = _for_commands
jax.config.update("jax_enable_x64", True)
# Tests compile hundreds of tiny programs and run each once: XLA's expensive passes
# would take most of their time. Tests that start commands in processes of their own
# keep them.
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Tests trace what they test: to keep a program for later costs a tenth of its tracing.
kept_programs._is_edited = lambda: True

# Traces make objects by the million and few cycles: collecting as often as Python does
# by default takes five to ten percent of the tests' time.
gc.set_threshold(200_000, 20, 50)

_finished = itertools.count(1)

# Commands: one instruments its imports, one is a process of several.
collect_ignore = ["trust/fuzz_reader.py", "engine/distributed_worker.py"]


# Files whose tests of one case share compiled programs.
_BY_CASE = ("test_conformance.py", "test_models.py")
# Few tests that take long: no worker should be left with them at the end.
_FIRST = (
    "test_readme.py",
    "test_processes.py",
    "test_signals.py",
    "test_shared.py",
    "test_distributed_command.py",
    "test_command_lines.py",
    "test_distributed.py",
    "test_determinism.py",
)


def _group(nodeid):
    """Name of the tests that share compiled programs or fixtures with this one."""
    path, _, test = nodeid.partition("::")
    if test.endswith("-loop_reference]"):
        return "loops"  # which share the programs of single operations
    case = test.rpartition("[")[2].rstrip("]").partition("-")[0]
    is_of_case = path.endswith(_BY_CASE) and "[" in test
    return f"{path} {case}" if is_of_case else path


def pytest_collection_finish():
    gc.freeze()  # modules and tests, which no collection needs to look at again


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Runs the tests of one group in one worker."""
    from xdist import scheduler

    class Grouped(scheduler.LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return _group(nodeid)

    config.option.loadscopereorder = False  # `_put_together` has ordered them
    return Grouped(config, log)


def _put_together(items):
    """Runs the tests of one group one after the other, and some files first."""
    place = {}

    def key(item):
        number = place.setdefault(item.path, len(place))
        return item.path.name not in _FIRST, number, _group(item.nodeid)

    items.sort(key=key)


# What needs commands, pages and processes rather than mathematics: a lane of its own.
_COMMANDS = (
    *("command/", "figures/", "project/", "report/"),
    *("experiments/test_bench", "experiments/test_card", "experiments/test_theory_com"),
    *("trust/test_command_lines", "trust/test_processes", "trust/test_signals"),
    *("trust/test_shared", "trust/test_distributed"),
    *("trust/test_code", "trust/test_crafted_folders"),
    *("engine/test_distributed", "engine/test_log_writers", "testing/test_platforms"),
)


def _is_of_commands(item):
    """Whether a test belongs to the lane of commands, and is no smoke test of it."""
    path = item.path.as_posix().rpartition("/tests/")[2]
    return path.startswith(_COMMANDS) and not item.get_closest_marker("smoke")


def pytest_addoption(parser):
    parser.addoption(
        "--lane",
        choices=("core", "commands", "all"),
        help="core: all but what only commands, pages, cards and killed processes need,"
        " of which smoke tests are left (the default where no file is named);"
        " commands: the others; all: both",
    )
    parser.addoption(
        "--all-algorithms",
        action="store_true",
        help="run every property for every variant of an algorithm, and slow tests",
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="kill and corrupt by the hundred, and generate inputs by the thousand",
    )
    parser.addoption(
        "--structures",
        action="store_true",
        help="print how many distinct programs the tests of each file compile, which is"
        " what most of their time goes into",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "wide: only run with --all-algorithms or --long")
    config.addinivalue_line(
        "markers", "smoke: of the lane of commands, but run in core"
    )
    if config.option.lane is None:  # workers are given what is decided here
        is_whole = config.args_source is not pytest.Config.ArgsSource.ARGS
        config.option.lane = "core" if is_whole else "all"
    if config.getoption("--structures"):
        config.pluginmanager.register(structures.Structures(config))


def pytest_collection_modifyitems(config, items):
    _put_together(items)
    lane = config.option.lane
    if lane != "all":
        others = [i for i in items if _is_of_commands(i) == (lane == "core")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
    if config.getoption("--all-algorithms") or config.getoption("--long"):
        return
    wide = [item for item in items if item.get_closest_marker("wide")]
    config.hook.pytest_deselected(items=wide)
    items[:] = [item for item in items if item not in wide]


def pytest_terminal_summary(terminalreporter, config):
    from tests.trust import counts

    if config.getoption("--long") and any(counts.COUNTS.values()):
        terminalreporter.section("counts of the long mode")
        for line in counts.lines():
            terminalreporter.write_line(line)


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["FEDJAX_PFL_TESTS_COMPILED"], ignore_errors=True)


@pytest.fixture(autouse=True)
def _forget_compiled_programs():
    """Drops compiled programs of tests that train without the package's loop."""
    from fedjax_pfl.engine import programs  # which needs the settings above

    yield
    if next(_finished) % 20 == 0:
        programs.forget_if_needed()
