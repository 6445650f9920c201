"""What is kept of compiled programs."""

import collections
import ctypes

import jax
import numpy as np
import psutil
import pytest

from fedjax_pfl.engine import programs


def test_memory_that_was_freed_goes_back_to_the_system(monkeypatch):
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("the C library is not glibc")
    process, kept = psutil.Process(), []
    programs._trim()(0)  # else blocks may fit into what earlier tests have freed
    before = process.memory_info().rss
    monkeypatch.setattr(programs, "_SPARE", 200_000_000)
    monkeypatch.setattr(programs, "_trimmed", collections.deque([before], maxlen=1))
    blocks = [np.ones(60_000, np.uint8) for _ in range(4_000)]
    kept.extend(blocks[::400])  # the heap cannot shrink past those
    taken = process.memory_info().rss - before
    del blocks
    held = process.memory_info().rss - before
    programs.give_memory_back()
    left = process.memory_info().rss - before
    assert taken > 200e6 and left < held - 150e6
    assert abs(programs._trimmed[-1] - before - left) < 10e6  # from here it may grow
    monkeypatch.setattr(programs, "_trim", lambda: pytest.fail("it has not grown"))
    programs.give_memory_back()


@pytest.fixture
def gpu(monkeypatch):
    """One GPU, with the JAX that its options were checked with."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", {"cuda": [None]}.__getitem__)
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 2))
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def test_loops_of_a_gpu_are_launched_whole(gpu):
    options = programs.options()
    assert "WHILE" in options["xla_gpu_enable_command_buffer"]
    # Names and values that the installed compiler knows.
    assert jax.jit(lambda x: 2 * x).lower(1.0).compile(options)(3.0) == 6.0


@pytest.mark.parametrize(
    ("backend", "devices", "version", "flags"),
    [
        ("cpu", 1, (0, 12, 0), ""),
        ("tpu", 1, (0, 12, 0), ""),
        ("gpu", 2, (0, 12, 0), ""),
        ("gpu", 1, (0, 11, 1), ""),
        ("gpu", 1, (0, 12, 0), "--xla_gpu_enable_command_buffer=FUSION"),
    ],
)
def test_elsewhere_the_compiler_has_its_own_options(
    gpu, monkeypatch, backend, devices, version, flags
):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "devices", lambda kind: [kind] * devices)
    monkeypatch.setattr(jax, "__version_info__", version)
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert programs.options() is None


def test_a_gpu_without_cuda_has_the_options_of_the_compiler(gpu, monkeypatch):
    def devices(kind):
        raise RuntimeError(f"Unknown backend {kind}")

    monkeypatch.setattr(jax, "devices", devices)
    assert programs.options() is None
