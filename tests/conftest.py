"""Test settings: eight simulated devices, 64-bit floats, strict shapes."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax

jax.config.update("jax_enable_x64", True)
# Tests compile hundreds of tiny programs and run each once: XLA's expensive passes
# would take most of their time. Tests that start commands in processes of their own
# keep them.
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_numpy_rank_promotion", "raise")
