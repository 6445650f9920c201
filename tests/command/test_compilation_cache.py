"""Where commands keep compiled programs, and what they say when they cannot."""

import contextlib
import importlib.metadata
import os
import warnings

import jax
import pytest

from fedjax_pfl.command import arguments, cli, compilation_cache, run_folder
from fedjax_pfl.core import checks
from tests.command.commands import python

OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
SMALL = (
    "import jax; from fedjax_pfl.command import compilation_cache as c; c.keep();"
    "print(jax.jit(lambda x: x + 1)(1.0))"
)


@pytest.fixture(autouse=True)
def options():
    """JAX's options as they were."""
    values = {name: getattr(jax.config, name) for name in OPTIONS}
    yield
    for name, value in values.items():
        jax.config.update(name, value)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_small_programs_are_kept_at_home(home):
    for _ in range(2):
        done = python("-c", SMALL, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="1")
        assert done.stdout == "2.0\n", done.stderr
    (machine,) = (home / "fedjax_pfl/jax").iterdir()
    assert any(machine.iterdir())


def test_every_kind_of_machine_has_a_directory_of_its_own(home, monkeypatch):
    one = compilation_cache._home()
    assert compilation_cache._home() == one
    monkeypatch.setattr(
        compilation_cache.Path, "read_text", lambda *_: "flags\t\t: sse"
    )
    assert compilation_cache._home() != one


def test_the_directory_of_a_user_is_used_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "own"))
    compilation_cache.keep()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0
    assert list((tmp_path / "own").iterdir()) == []


@pytest.mark.parametrize("name", ["", "gs://bucket/programs"])
def test_what_is_no_local_directory_is_left_to_jax(name, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", name)
    before = jax.config.jax_compilation_cache_dir
    compilation_cache.keep()
    assert jax.config.jax_compilation_cache_dir == (name or before)


def test_a_directory_of_a_user_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "file/own"))
    with pytest.raises(checks.InputError, match="file/own'.*JAX_COMPILATION_CACHE_DIR"):
        compilation_cache.keep()


def test_a_home_that_cannot_be_written_is_said_once(home, monkeypatch, capsys):
    (home / "fedjax_pfl").write_text("")
    before = jax.config.jax_compilation_cache_dir
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("always")
        cli.answer(lambda: [compilation_cache.keep() for _ in range(2)] and None)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "every command compiles its own" in said
    assert jax.config.jax_compilation_cache_dir == before


def test_programs_that_jax_cannot_use_are_one_sentence(capsys):
    def work():
        warnings.simplefilter("always")
        for name in ("jit_a", "jit_b"):
            warnings.warn(
                f"Error reading persistent compilation cache entry for '{name}':"
                " XlaRuntimeError: machine features",
                stacklevel=1,
            )

    with warnings.catch_warnings():
        cli.answer(work)
    said = capsys.readouterr().err
    assert said.startswith("Warning: JAX cannot use its cached programs")
    assert said.count("\n") == 1 and "jit_a" not in said


@pytest.mark.parametrize(("version", "level"), [("0.10.1", "3"), ("0.12.0", None)])
def test_false_alarms_of_older_versions_are_silenced(version, level, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    compilation_cache.silence()
    assert os.environ.get("TF_CPP_MIN_LOG_LEVEL") == level


def test_a_resumed_run_is_silent_before_jax_is_imported(tmp_path):
    options = arguments.Options(command="sweep", preset="quadratic")
    with run_folder.begun(tmp_path / "run", options):
        pass
    code = (
        "import sys\n"
        "from experiments import sweep\n"
        "from fedjax_pfl.command import compilation_cache\n"
        "def silence():\n    print('jax' in sys.modules)\n    raise SystemExit\n"
        "compilation_cache.silence = silence\n"
        f"sweep.app(['--resume', {str(tmp_path / 'run')!r}])"
    )
    done = python("-c", code)
    assert done.stdout == "False\n", done.stderr


def test_a_cache_that_others_can_write_is_not_used(home):
    folder = compilation_cache.Path(compilation_cache._home())
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    before = jax.config.jax_compilation_cache_dir
    with pytest.warns(UserWarning, match="other users can write there"):
        compilation_cache.keep()
    assert jax.config.jax_compilation_cache_dir == before
    folder.chmod(0o755)
    compilation_cache.keep()
    assert jax.config.jax_compilation_cache_dir == str(folder)
