"""Which JAX computes right: the battery, the refusals, the bounds of pyproject.toml."""

import os
import pathlib
import subprocess
import sys
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_pfl.core import checks, platforms
from fedjax_pfl.testing import __main__ as command
from fedjax_pfl.testing import battery

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FLAG = "--xla_cpu_experimental_ynn_fusion_type="


def test_this_jax_computes_right():
    command_line = [sys.executable, "-m", "fedjax_pfl.testing", "--platform"]
    # In a process of its own: as users run it, and not in the tests' 64 bits.
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    done = subprocess.run(
        command_line, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[-1] == "right"
    assert len(lines) == 1 + len(battery.CASES) + 1


def outcome(*comparison):
    def case():
        yield comparison

    (found,) = battery.run({"a case": case})
    return found


@pytest.mark.parametrize(
    ("found", "right", "bound", "problem"),
    [
        (jnp.ones(3), np.ones(3), 0, None),
        (jnp.ones(3) + 1e-3, np.ones(3), 1e-2, None),
        (jnp.ones(3) + 1e-3, np.ones(3), 1e-4, "3 of 3 values are wrong"),
        (jnp.asarray([1, np.nan]), np.ones(2), 1, "1 of 2 values are wrong"),
        (jnp.asarray([1, 1.0]), np.asarray([1, np.nan]), 9, "1 of 2 values are wrong"),
        (jnp.asarray([np.inf]), np.asarray([np.inf]), 0, None),
        (jnp.asarray([np.inf]), np.asarray([1.0]), 9, "1 of 1 values are wrong"),
        (jnp.arange(3), np.asarray([0, 1, 3]), 9, "1 of 3 values are wrong"),
        (jnp.ones(1), np.ones(2), 0, "shape (1,) in place of (2,)"),
    ],
)
def test_comparisons(found, right, bound, problem):
    said = outcome("it", found, right, bound).problem
    assert said == (None if problem is None else f"it: {problem}")


def test_a_crash_is_wrong():
    def case():
        raise RuntimeError("no such thing\nas that")
        yield

    (found,) = battery.run({"a case": case})
    assert str(found) == "a case: RuntimeError: no such thing"


@pytest.mark.parametrize(
    ("module", "name", "wrong", "case"),
    [
        (
            jnp,
            "matmul",
            lambda a, b: jnp.einsum("...ij,...jk->...ik", a, b) * 1.00001,
            "matrix products",
        ),
        (jnp, "sum", lambda x: jnp.mean(x) * 3, "vmapped products"),
        (jax.nn, "logsumexp", lambda x, axis: x.max(axis), "fused rows"),
        (jnp, "prod", lambda x, axis=None: jnp.sum(x, axis), "reductions"),
        (jnp, "max", lambda x, axis=None: jnp.nanmax(x, axis), "extremes of nan"),
        (lax, "top_k", lambda x, k: (x[:k], jnp.arange(k)), "sorts"),
        (lax, "conv_general_dilated", lambda x, *_, **__: x, "convolutions"),
        (jax.ops, "segment_sum", lambda x, *_: x[:11], "indexing"),
        (jnp, "cumsum", lambda x: x, "loops"),
        (jax.random, "bits", lambda _, n, dtype: jnp.zeros(n, dtype), "random bits"),
        (jnp, "exp", lambda x: 1 + x, "functions"),
        (jnp.linalg, "cholesky", lambda a: a, "linear systems"),
    ],
)
def test_cases_can_fail(monkeypatch, module, name, wrong, case):
    monkeypatch.setattr(module, name, wrong)
    (found,) = battery.run({case: battery.CASES[case]})
    assert found.problem is not None


@pytest.mark.parametrize(("status", "is_wrong"), [(0, False), (-11, True)])
def test_a_process_that_ends_by_a_signal_is_wrong(monkeypatch, status, is_wrong):
    done = subprocess.CompletedProcess((), status)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    (found,) = battery.run({"ranks": battery.CASES["crowded ranks"]})
    assert (found.problem is not None) == is_wrong


def test_the_command_names_what_is_wrong(monkeypatch, capsys):
    def broken():
        yield "two", jnp.ones(2), np.zeros(2), 0

    monkeypatch.setattr(battery, "CASES", {"fine": lambda: iter(()), "odd": broken})
    assert command.main(["--platform"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "fine: right",
        "odd: two: 2 of 2 values are wrong",
        "wrong: odd",
    ]


@pytest.mark.parametrize("arguments", [[], ["--platform", "flame"]])
def test_the_command_wants_a_method_or_the_platform(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    assert "a method or one of --platform" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["0.10.2", "0.11.0"])
def test_releases_that_compute_wrongly_are_refused(version):
    with pytest.raises(checks.InputError) as error:
        platforms.check_jax(version, "cpu", "--some_flag=1")
    sentence = str(error.value)
    assert f"JAX {version} computes wrongly, or crashes, on CPUs" in sentence
    assert "pip install" in sentence and FLAG in sentence
    platforms.check_jax(version, "gpu", "")
    platforms.check_jax(version, "cpu", f"--some_flag=1 {FLAG}")
    with pytest.raises(checks.InputError):
        platforms.check_jax(version, "cpu", f"{FLAG}1")


def test_other_releases_are_not():
    for version in ("0.8.1", "0.10.1", "0.12.0.1", "1.0"):
        platforms.check_jax(version, "cpu", "")


@pytest.mark.parametrize(
    ("check", "version", "error", "sentence"),
    [
        (platforms.check_python, (3, 10), ImportError, "needs Python 3.11 or newer"),
        (platforms.check_jax, "0.8.0", checks.InputError, "this is 0.8.0: install one"),
    ],
)
def test_what_is_too_old_is_refused(check, version, error, sentence):
    with pytest.raises(error, match=sentence):
        check(version)


def test_pip_is_told_the_same():
    for name in ("jax", "jaxlib"):
        (bound,) = (d for d in PROJECT["dependencies"] if d.startswith(f"{name}>"))
        command_line = platforms._command().replace("jax>", f"{name}>")
        assert bound in command_line
    assert PROJECT["requires-python"] == ">=3.11"


@pytest.fixture(scope="module")
def wrong_release(tmp_path_factory):
    """A Python with JAX 0.10.2; skips where it cannot be installed."""
    folder = tmp_path_factory.mktemp("wrong")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q"]
    needed = [d for d in PROJECT["dependencies"] if not d.startswith("jax")]
    wanted = ["jax==0.10.2", "jaxlib==0.10.2", "--no-deps", "-e", ROOT]
    for line in (install + needed, install + wanted):
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"JAX 0.10.2 cannot be installed: {done.stderr[-300:]}")
    return python


@pytest.mark.wide
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="no wheel of JAX 0.10.2")
def test_the_battery_finds_what_is_wrong_with_0_10_2(wrong_release):
    def run(flags):
        environment = os.environ | {"XLA_FLAGS": flags}
        environment.pop("JAX_ENABLE_X64", None)
        program = [
            wrong_release,
            "-c",
            "from fedjax_pfl.testing import battery\n"
            "for outcome in battery.run(): print(outcome)",
        ]
        return subprocess.run(
            program, env=environment, capture_output=True, text=True
        ).stdout

    found = run("")
    assert "vmapped products: 33000 rows of 3" in found
    assert "crowded ranks: exit status" in found
    right = run(FLAG).splitlines()
    assert len(right) == len(battery.CASES)
    assert all(line.endswith(": right") for line in right)
