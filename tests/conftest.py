"""Test settings: eight simulated devices, 64-bit floats, strict shapes."""

import gc
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

_PROGRAMS_PER_PROCESS = 40  # tests


@pytest.fixture(autouse=True)
def _forget_compiled_programs(counter=[0]):  # noqa: B006 (counts tests)
    """Every compiled CPU program maps memory, and a process may hold only so many maps."""
    yield
    counter[0] += 1
    if counter[0] % _PROGRAMS_PER_PROCESS == 0:
        jax.clear_caches()
        gc.collect()
