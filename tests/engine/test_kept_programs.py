"""Programs that a later process reads in place of tracing them."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.engine import groups, kept_programs
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.resident import Resident
from fedjax_pfl.round.process import FederatedProcess
from fedjax_pfl.testing import toy
from tests.lanes import wide

KEY = jax.random.key(0)
SGD = fp.SGD(learning_rate=0.2, batch_size=16)
FLAME = fp.Flame(lam=1.0, local=SGD)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Folder of kept programs, as a process with a cache of its own has it."""
    monkeypatch.setattr(kept_programs, "_is_edited", lambda: False)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path / "traced"
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture
def traced(monkeypatch):
    """Lists the methods whose rounds are traced."""
    names, run = [], FederatedProcess.round

    def counted(self, *arguments):
        names.append(type(self.algorithm).__name__)
        return run(self, *arguments)

    monkeypatch.setattr(FederatedProcess, "round", counted)
    return names


def train(algorithm=FLAME, model=None, **parts):
    """A short training as a new process runs it: nothing is traced yet."""
    jax.clear_caches()
    process = fp.FederatedProcess(algorithm=algorithm, **parts)
    model = model or fp.LogisticRegression()
    return fp.simulate(KEY, process, model, toy.make_federation(), 3, progress=False)


def values(result):
    """All numbers of a result but its seconds."""
    return {
        f"{name} {number}": np.asarray(array)
        for number, record in enumerate(result.groups)
        for name, array in {**record.metrics, **record.diagnostics}.items()
    }


def assert_same(result, other):
    numbers = values(other)
    assert numbers.keys() == values(result).keys()
    for name, array in values(result).items():
        np.testing.assert_array_equal(array, numbers[name], err_msg=name)


@pytest.mark.parametrize(
    ("algorithm", "parts"),
    [
        wide(FLAME, {}),
        (
            fp.Scaffold(local=SGD),
            {
                "participation": fp.UniformCohort(size=2),
                "attack": fp.SignFlip(),
                "aggregator": fp.GeometricMedian(),
                "transforms": (fp.TopK(fraction=0.5),),
            },
        ),
    ],
)
def test_what_is_read_trains_the_same(folder, traced, algorithm, parts):
    jax.config.update("jax_compilation_cache_dir", None)
    plain = train(algorithm, **parts)
    jax.config.update("jax_compilation_cache_dir", str(folder.parent))
    times = len(traced)
    first = train(algorithm, **parts)
    assert len(traced) > times
    files = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(files) >= 3  # first states, rounds, evaluation
    del traced[:]
    second = train(algorithm, **parts)
    assert not traced
    assert {path: path.read_bytes() for path in folder.iterdir()} == files
    assert_same(first, plain)
    assert_same(second, plain)


def program(algorithm=FLAME, model=None, kind="segment"):
    """One program of a training."""
    process = fp.FederatedProcess(algorithm=algorithm)
    model = model or fp.LogisticRegression()
    group = groups.single(KEY, process, model, toy.make_federation())
    return Resident(groups.plan(group, Options(num_rounds=3)))._program((kind,))


def test_values_share_a_program_and_what_is_traced_does_not(folder):
    place = program()._path
    assert program()._path == place
    assert program(dataclasses.replace(FLAME, lam=0.1))._path == place
    others = [
        program(kind="init"),
        program(fp.Ditto(local=SGD)),
        program(fp.Flame(local=dataclasses.replace(SGD, batch_size=8))),
        program(fp.Flame(local=fp.SGD(learning_rate=0.2, batch_size=16, num_steps=2))),
        program(model=fp.MLP(widths=(3,))),
        program(model=fp.MLP(widths=(4,))),
    ]
    paths = {other._path for other in others}
    with jax.default_matmul_precision("bfloat16"):
        paths.add(program()._path)
    with jax.enable_x64(False):
        paths.add(program()._path)
    assert len(paths) == 8 and not {place, None} & paths


def test_a_damaged_file_is_not_read_and_written_again(folder):
    first = program(kind="init")
    first.lowered()
    content = first._path.read_bytes()
    assert program(kind="init")._kept is not None
    damaged = [
        b"",
        content[: len(content) // 2],
        content[:200] + b"x" + content[201:],
        b"0" * 64 + content[64:],
        content.replace(b"\n", b" "),
    ]
    for damage in damaged:
        first._path.write_bytes(damage)
        again = program(kind="init")
        assert again._path == first._path and again._kept is None
    again.lowered()
    assert program(kind="init")._kept is not None


def test_names_in_a_file_lead_to_our_libraries_only():
    with pytest.raises(kept_programs._NotKept):
        kept_programs._decoded({"class": ["subprocess", "Popen"], "fields": {}})
    with pytest.raises(kept_programs._NotKept):
        kept_programs._decoded({"tuple of": ["os", "stat_result"], "items": []})
    with pytest.raises(TypeError):  # no class of tuples
        kept_programs._decoded({"tuple of": ["numpy", "save"], "items": []})


@fp.pytree_dataclass
class Own(fp.FedAvg):
    """A method of a user, whose sources have no version."""


def test_own_code_is_traced_anew(folder, traced):
    for _ in range(2):
        del traced[:]
        train(Own(local=SGD))
        assert traced
    assert not any(path.read_bytes().count(b"Own") for path in folder.glob("*"))


def test_sources_that_have_changed_keep_nothing(folder, monkeypatch):
    monkeypatch.setattr(kept_programs, "_is_edited", lambda: True)
    train()
    assert not folder.exists()


def test_a_file_newer_than_the_import_counts_as_a_change(tmp_path):
    code = (
        "import pathlib, sys, fedjax_pfl.core as core\n"
        "core.__file__ = sys.argv[1] + '/fedjax_pfl/core/__init__.py'\n"
        "from fedjax_pfl.engine import kept_programs\n"
        "place = pathlib.Path(sys.argv[1], 'fedjax_pfl', 'a.py')\n"
        "place.parent.mkdir()\n"
        "was = kept_programs._is_edited.__wrapped__()\n"
        "place.write_text('')\n"
        "print(was, kept_programs._is_edited())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_folder_that_cannot_be_written_ends_nothing(folder):
    folder.write_text("a file in its place")
    first = program(kind="init")
    first.lowered()
    assert folder.read_text() == "a file in its place"
    folder.unlink()
    first._path.mkdir(parents=True)
    again = program(kind="init")
    assert again._kept is None
    again.lowered()
    assert first._path.is_dir()


def test_files_that_nobody_uses_go_first(folder, monkeypatch):
    monkeypatch.setattr(kept_programs, "_MOST", 4)
    train()
    used = set(folder.iterdir())
    train(fp.FedAvg(local=SGD))
    left = set(folder.iterdir())
    assert 2 <= len(left) <= 4 and not used & left


def test_states_are_donated_and_placed_as_before(folder):
    rounds = program()
    plain = rounds.function.lower(*rounds.static, *rounds.arguments)
    kept = rounds.lowered()
    assert folder.is_dir()
    assert kept.args_info == plain.args_info
    assert jax.tree.structure(kept.out_info) == jax.tree.structure(plain.out_info)
    sizes = [lowered.compile().memory_analysis() for lowered in (kept, plain)]
    # XLA drops the round of the given states from the plain program.
    assert sizes[0].alias_size_in_bytes >= sizes[1].alias_size_in_bytes > 0


def test_trees_of_results_are_made_again():
    tree = {
        "b": (jnp.ones(3), None, [jnp.zeros((), jnp.int32)]),
        "a": fp.core.State(
            round=jnp.zeros((), jnp.int32),
            key=fp.core.seed_key(0),
            server={},
            clients=(),
        ),
    }
    shapes = jax.eval_shape(lambda: tree)
    again = kept_programs._decoded(kept_programs._encoded(shapes))
    assert jax.tree.structure(again) == jax.tree.structure(shapes)
    assert jax.tree.leaves(again) == jax.tree.leaves(shapes)
