"""Test settings: eight simulated devices, 64-bit floats, strict shapes."""

import gc
import itertools
import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
# The commands keep compiled programs for their users; tests compile what they test.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import jax
import pytest

jax.config.update("jax_enable_x64", True)
# Tests compile hundreds of tiny programs and run each once: XLA's expensive passes
# would take most of their time. Tests that start commands in processes of their own
# keep them.
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_numpy_rank_promotion", "raise")

_finished = itertools.count(1)

# Commands: one instruments its imports, one is a process of several.
collect_ignore = ["trust/fuzz_reader.py", "distributed_worker.py"]


# Files whose tests of one case share compiled programs.
_BY_NAME = ("test_conformance.py", "test_models.py")


def _put_together(items):
    """Runs the tests of one case one after the other, and in one worker."""
    place = {}

    def key(item):
        first = place.setdefault(item.path, len(place))
        name = ""
        if item.path.name in _BY_NAME:
            name = getattr(item, "callspec", None) and item.callspec.params.get("name")
        if item.path.name == "test_processes.py":
            name = "processes"  # which share compiled programs and a whole result
        if getattr(item, "originalname", "") == "test_loop_reference":
            name = "loops"  # which share the programs of single operations
        if name:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.name} {name}"))
        return first, name or ""

    items.sort(key=key)


def pytest_addoption(parser):
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


def pytest_configure(config):
    config.addinivalue_line("markers", "wide: only run with --all-algorithms or --long")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config, items):
    _put_together(items)
    if config.getoption("--all-algorithms") or config.getoption("--long"):
        return
    wide = [item for item in items if item.get_closest_marker("wide")]
    config.hook.pytest_deselected(items=wide)
    items[:] = [item for item in items if item not in wide]


@pytest.fixture(autouse=True)
def _forget_compiled_programs():
    """Drops compiled programs now and then: each maps memory, and maps are limited."""
    yield
    if next(_finished) % 40 == 0:
        jax.clear_caches()
        gc.collect()
