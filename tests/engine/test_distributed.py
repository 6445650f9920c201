"""A training over two processes, which JAX's own runtime connects on this machine."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

import fedjax_pfl as fp

ROOT = pathlib.Path(__file__).parents[2]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(processes, process, port, devices, out):
    given = map(str, (processes, process, port, devices, out))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engine.distributed_worker", *given],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": os.environ["FEDJAX_PFL_TESTS_XLA_FLAGS"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outputs(workers):
    """What the processes printed; all of them are ended, whatever happens."""
    try:
        return [worker.communicate(timeout=600)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder, and what two processes of two devices printed, and one of four."""
    folder = tmp_path_factory.mktemp("processes")
    port, names = free_port(), ["first.npz", "second.npz"]
    workers = [start(2, k, port, 2, folder / name) for k, name in enumerate(names)]
    texts = outputs(workers)
    for text in texts:
        if "UNIMPLEMENTED" in text or "Permission denied" in text:
            pytest.skip(f"no collectives between processes here: {text[-300:]}")
    for worker, text in zip(workers, texts, strict=True):
        assert worker.returncode == 0, text
        assert "finished on 4 devices of 2 processes" in text
    (text,) = outputs([start(1, 0, 0, 4, folder / "one.npz")])
    assert "finished on 4 devices of 1 processes" in text, text
    return folder, texts, text


def assert_equal(folder, kind):
    """What both processes found, and one, to rounding."""
    with np.load(folder / f"one.npz{kind}") as one:
        assert len(one.files) > 4
        for name in ("first", "second"):
            with np.load(folder / f"{name}.npz{kind}") as other:
                for key in one.files:
                    np.testing.assert_allclose(
                        other[key], one[key], rtol=1e-10, atol=1e-12, err_msg=key
                    )


def test_two_processes_equal_one(trained):
    """Two devices in each of two processes against four in one."""
    folder, texts, _ = trained
    for text in texts:
        for kind in ("rows", "examples"):
            sizes = re.search(rf"{kind}: (\d+) bytes here of (\d+)", text).groups()
            here, everywhere = map(int, sizes)
            assert 2 * here == everywhere > 0
    assert_equal(folder, "")
    assert not (folder / "second.npz.models").exists()
    alone, first = (
        fp.load_models(folder / f"{n}.npz.models") for n in ("one", "first")
    )
    for model in ("global", "personal"):
        found, expected = first.find(model=model), alone.find(model=model)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12),
            *(found.params, expected.params),
        )


def test_two_processes_stream_as_one_does(trained):
    """Each writes the rows of its clients only; interrupted, they end bit for bit."""
    folder, texts, alone = trained
    assert_equal(folder, ".streamed.npz")
    names = [f"rows-{k:010d}-{k + 2:010d}.bin" for k in range(0, 8, 2)]
    own = (names[:2], names[2:], names)
    for text, files in zip((*texts, alone), own, strict=True):
        assert "interrupted" in text
        assert f"files: {' '.join(files)}\n" in text
    (place,) = (folder / "halves-of-2").glob("0*")
    assert sorted(path.name for path in place.glob("*.bin")) == names
