"""Checkpoints: what was saved comes back, and nothing else does."""

import dataclasses
import json
import os
import pathlib
import shutil
import warnings

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import fedjax_pfl as fp
from fedjax_pfl import core
from fedjax_pfl.core import checks
from fedjax_pfl.results import checkpoint, directories, documents, leases, provenance
from fedjax_pfl.results.checkpoint import files
from tests.trust import counts, inputs

IDENTITY = {"algorithm": "Flame", "algorithm.lam": 0.5, "points": [{"seed": 0}]}


def states(value):
    """A tree like a `State`: shapes of all kinds, and keys."""
    return {
        "w": jnp.full((2, 3), value),
        "empty": jnp.zeros((2, 0)),
        "none": None,
        "flags": jnp.array([True, False]),
        "round": jnp.array([value, value], jnp.int32),
        "key": jax.random.split(core.seed_key(int(value)), 2),
    }


def progress(done):
    arrays = {"rounds": np.arange(done), "metrics/loss": np.full((done, 2), np.nan)}
    return checkpoint.Progress(
        done=done,
        states=states(done),
        arrays=arrays,
        seconds=(1.5, 2.5),
        ended=done == 30,
    )


LIKE = jax.eval_shape(lambda: states(0))


def store(path, **options):
    return checkpoint.Checkpoints(path, **options).store(0, "Flame")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory with the checkpoints of rounds 10 and 20."""
    path = tmp_path_factory.mktemp("saved")
    for done in (10, 20):
        store(path).save(IDENTITY, progress(done))
    return path


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that a test may damage."""
    shutil.copytree(saved, tmp_path / "copy")
    return tmp_path / "copy"


def assert_is(found, done):
    assert found is not None
    assert (found.done, found.seconds, found.ended) == (done, (1.5, 2.5), done == 30)
    expected = progress(done)
    assert found.arrays.keys() == expected.arrays.keys()
    for name, value in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], value, strict=True)
    assert jax.tree.structure(found.states) == jax.tree.structure(expected.states)
    for one, other in zip(
        jax.tree.leaves(found.states), jax.tree.leaves(expected.states), strict=True
    ):
        assert one.dtype == other.dtype
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(one, other)


def refused(path, identity=IDENTITY):
    """The one sentence with which the checkpoints of a directory are refused."""
    with pytest.raises(checks.InputError) as caught:
        store(path).latest(identity, LIKE)
    text = str(caught.value)
    assert text.endswith(".") and "\n" not in text
    return text


def test_what_was_saved_comes_back(folder):
    assert_is(store(folder).latest(IDENTITY, LIKE), 20)
    assert store(folder.parent / "none").latest(IDENTITY, LIKE) is None


def test_nothing_is_written_or_removed_where_a_guard_says_no(folder):
    def refuse():
        raise leases.LostError("unit-000")

    options = fp.Checkpoints(folder)
    with pytest.raises(leases.LostError):
        options.store(0, "Flame", refuse).save(IDENTITY, progress(30))
    assert_is(store(folder).latest(IDENTITY, LIKE), 20)


def test_a_save_leaves_what_others_are_writing(folder):
    """Another process may have stood still; `latest` removes what killed ones left."""
    other = folder / "000-flame" / ".new-1234"
    other.mkdir()
    store(folder).save(IDENTITY, progress(30))
    assert other.exists()
    assert_is(store(folder).latest(IDENTITY, LIKE), 30)
    assert not other.exists()


@pytest.mark.parametrize(("keep", "done"), [(1, 25), (2, 30)])  # 30 is the end
def test_only_the_newest_are_kept_and_rests_are_removed(folder, keep, done):
    group = folder / "000-flame"
    (group / ".new-00000030-1" / "state").mkdir(parents=True)
    (group / ".old-00000010-1").mkdir()
    kept = store(folder, keep=keep)
    assert_is(kept.latest(IDENTITY, LIKE), 20)
    assert sorted(os.listdir(group)) == ["00000010", "00000020"]
    kept.save(IDENTITY, progress(done))
    assert os.listdir(group) == [f"000000{done}"]
    assert_is(store(folder).latest(IDENTITY, LIKE), done)


def test_a_checkpoint_is_written_when_the_last_is_old_enough(tmp_path):
    assert not store(tmp_path, min_seconds=1e6).due()
    assert store(tmp_path, min_seconds=0).due()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"algorithm.lam": 0.25}, "algorithm.lam was 0.5 there and is 0.25 here"),
        ({"algorithm": "FedAvg"}, 'algorithm was "Flame" there and is "FedAvg" here'),
        ({"model": "MLP"}, 'model was null there and is "MLP" here'),
        ({"points": [{"seed": 1}]}, 'points was [{"seed": 0}] there'),
    ],
)
def test_another_training_is_named(folder, change, named):
    text = refused(folder, IDENTITY | change)
    assert "belongs to another training" in text and named in text


def code(**changes):
    """The code of an identity, with other versions or digests."""
    return {"code": provenance.code() | changes}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"jax": "0.1"}, f"jax was 0.1 and is {jax.__version__}"),
        ({"fedjax_pfl": "99.0"}, "fedjax_pfl was 99.0 and is 0"),
        (
            {"sources": "ab" * 32, "commit": "cd" * 20, "clean": False},
            "of fedjax_pfl were abababababab (commit cdcdcdcdcdcd, changed) and",
        ),
        ({"own_sources": {"mine": "ab" * 32}}, "source of mine was abababababab and"),
        ({"own_sources": 3, "python": [3]}, "python was [3] and is 3."),
    ],
)
def test_other_code_is_named_and_goes_on_when_asked(tmp_path, changes, named):
    identity = IDENTITY | code(**changes)
    store(tmp_path).save(identity, progress(10))
    text = refused(tmp_path, IDENTITY | code())
    assert named in text and "--resume-anyway" in text
    anyway = store(tmp_path, resume_anyway=True)
    with pytest.warns(UserWarning, match="Resuming with other code"):
        found = anyway.latest(IDENTITY | code(), LIKE)
    assert_is(found, 10)
    (said,) = found.continued
    assert named in said
    # The next checkpoint still says so, though the code is that of now.
    anyway.save(IDENTITY | code(), dataclasses.replace(found, done=20))
    assert store(tmp_path).latest(IDENTITY | code(), LIKE).continued == (said,)


def test_another_commit_with_the_same_sources_is_the_same_code(tmp_path):
    store(tmp_path).save(IDENTITY | code(commit="0" * 40, clean=False), progress(10))
    assert store(tmp_path).latest(IDENTITY | code(), LIKE).continued == ()


def test_another_backend_is_a_warning(folder, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pytest.warns(UserWarning, match="backend cpu, this is tpu: results agree"):
        assert_is(store(folder).latest(IDENTITY, LIKE), 20)


def become_file(path):
    shutil.rmtree(path)
    path.write_text("a file")


DAMAGES = {
    "list": lambda path: (path / "checkpoint.json").write_text("[1, 2]"),
    "no description": lambda path: (path / "checkpoint.json").unlink(),
    "no state": lambda path: shutil.rmtree(path / "state"),
    "one more file": lambda path: (path / "state" / "more").write_text("mine"),
    "file": become_file,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(folder, damage):
    group = folder / "000-flame"
    DAMAGES[damage](group / "00000020")
    pattern = "00000020' is damaged .*continuing from '.*00000010', the newest intact"
    with pytest.warns(UserWarning, match=pattern):
        assert_is(store(folder).latest(IDENTITY, LIKE), 10)
    shutil.rmtree(group / "00000010")
    text = refused(folder)
    assert "00000020' is damaged" in text and "no other one exists" in text


def test_a_damaged_checkpoint_is_written_again(folder):
    (folder / "000-flame/00000020/history.npz").write_bytes(b"")
    store(folder).save(IDENTITY, progress(20))
    assert_is(store(folder).latest(IDENTITY, LIKE), 20)


def test_no_changed_byte_goes_unseen(saved, tmp_path_factory, request):
    """Bits flipped, bytes cut, put in or overwritten anywhere in the newest one."""
    is_long = request.config.getoption("--long")
    tried = 0

    @hypothesis.settings(
        max_examples=1000 if is_long else 40, deadline=None, database=None
    )
    @hypothesis.given(st.data())
    def check(data):
        nonlocal tried
        folder = tmp_path_factory.mktemp("copy")
        shutil.copytree(saved, folder, dirs_exist_ok=True)
        newest = folder / "000-flame/00000020"
        paths = sorted(p for p in newest.rglob("*") if p.is_file())
        path = data.draw(st.sampled_from(paths))
        before = path.read_bytes()
        after = inputs.mutated(data.draw, before)
        hypothesis.assume(after != before)
        path.write_bytes(after)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = store(folder).latest(IDENTITY, LIKE)
        shutil.rmtree(folder)
        tried += 1
        if path.name == "checkpoint.json" and not said:
            assert json.loads(after) == json.loads(before)  # white space
            assert_is(found, 20)
        else:
            assert "is damaged" in str(said[0].message)
            assert_is(found, 10)

    check()
    counts.add("inputs", "corruptions of a checkpoint", tried)


class _Trap:
    """Pickled, it writes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (pathlib.Path.write_text, (self.path, "sprung"))


def test_nothing_is_unpickled(folder, tmp_path):
    """Also where somebody has made all checksums fit."""
    path, trap = folder / "000-flame/00000020", tmp_path / "trap"
    array = np.empty(1, object)
    array[0] = _Trap(trap)
    np.savez(path / "history.npz", rounds=array)
    stored = json.loads((path / "checkpoint.json").read_text())
    del stored["digest"]
    stored["files"] = files.digests(path, skip=["checkpoint.json"])
    (path / "checkpoint.json").write_text(documents.seal(stored))
    with pytest.warns(UserWarning, match="are not those of this training"):
        assert_is(store(folder).latest(IDENTITY, LIKE), 10)
    assert not trap.exists()


def test_foreign_directories_are_refused(tmp_path):
    (tmp_path / "holiday.jpg").write_text("")
    options = checkpoint.Checkpoints(tmp_path)
    with pytest.raises(checks.InputError, match="Expected only checkpoints.*holiday"):
        options.check(2)
    (tmp_path / "holiday.jpg").unlink()
    (tmp_path / "002-flame").mkdir()
    options.check(3)
    with pytest.raises(checks.InputError, match="found '002-flame'"):
        options.check(2)


@pytest.mark.parametrize("fields", [{"keep": 0}, {"min_seconds": -1.0}])
def test_wrong_options(fields):
    with pytest.raises(checks.InputError, match=next(iter(fields))):
        checkpoint.Checkpoints("there", **fields)


def test_python_users_go_on_where_they_stopped(tmp_path):
    """An interrupted `grid` is continued by the same call, groups and all."""
    spec = fp.FederationSpec("quadratic", "by_client", num_clients=4)
    axes = {"algorithm": [fp.Flame(), fp.FedAvg()], "seed": [0, 1]}
    process = fp.FederatedProcess(algorithm=fp.Flame())
    arguments = (jax.random.key(0), process, fp.models.Quadratic(), spec, axes, 4)
    whole = fp.grid(*arguments, progress=False)
    options = fp.Checkpoints(tmp_path / "run", min_seconds=0)
    for _ in range(2):
        with pytest.raises(fp.Interrupted, match="The time of 1e-09 minutes was up"):
            fp.grid(*arguments, checkpoints=options, max_minutes=1e-9, progress=False)
    resumed = fp.grid(*arguments, checkpoints=options, progress=False)
    again = fp.grid(*arguments, checkpoints=options, progress=False)
    for one, other in zip(whole.groups, resumed.groups, strict=True):
        np.testing.assert_equal(other.metrics, one.metrics)
        np.testing.assert_equal(other.per_round, one.per_round)
    assert [g.run_seconds for g in again.groups] == pytest.approx(
        [g.run_seconds for g in resumed.groups], abs=5.0
    )
    with pytest.raises(checks.InputError, match="num_rounds was 4 there and is 5 here"):
        fp.grid(*arguments[:-1], 5, checkpoints=options, progress=False)


def test_a_second_training_in_one_directory_is_refused(tmp_path):
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    federation = fp.FederationSpec("quadratic", "by_client", num_clients=4).build()
    with directories.locked(tmp_path):
        with pytest.raises(checks.InputError, match=f"process {os.getpid()} on "):
            fp.simulate(
                *(jax.random.key(0), process, fp.models.Quadratic(), federation, 1),
                checkpoints=fp.Checkpoints(tmp_path),
                progress=False,
            )
    assert not (tmp_path / ".owner.json").exists()


def test_other_data_are_another_training(tmp_path):
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    options = fp.Checkpoints(tmp_path / "run")
    for noise, message in ((0.0, None), (1e-3, "data, seeds and settings was")):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(60, 3)) + noise, rng.integers(3, size=60)
        federation = fp.Federation.from_arrays(x, y, client=np.arange(60) % 5)
        run = (jax.random.key(0), process, fp.LogisticRegression(), federation, 2)
        if message is None:
            fp.simulate(*run, checkpoints=options, progress=False)
        else:
            with pytest.raises(checks.InputError, match=message):
                fp.simulate(*run, checkpoints=options, progress=False)
