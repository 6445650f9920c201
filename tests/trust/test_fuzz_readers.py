"""The readers of files under a coverage-guided fuzzer; only with `--long`."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.trust import counts

pytest.importorskip("atheris")

ROOT = pathlib.Path(__file__).parents[2]
RUNS = 4000
NAMES = """
    csv dialect folder parquet npz npy leaf png bmp idx tar cifar sheets tweets vectors
    speeches prices
""".split()


@pytest.fixture(autouse=True)
def only_long(request):
    """Skips without `--long`."""
    if not request.config.getoption("--long"):
        pytest.skip("takes minutes")


def fuzz(name, folder, runs):
    """Status, number of inputs and output of a run."""
    command = [sys.executable, "-m", "tests.trust.fuzz_reader", name, str(folder)]
    limits = [
        f"-atheris_runs={runs}",
        "-max_total_time=600",
        "-max_len=20000",
        "-seed=1",
    ]
    done = subprocess.run(
        [*command, *limits],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        errors="replace",
    )
    output = done.stdout + done.stderr
    counts = [int(n) for n in re.findall(r"^(?:Done |#)(\d+)", output, re.MULTILINE)]
    return done.returncode, max(counts, default=0), output


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_returns_a_data_set_or_refuses(name, tmp_path):
    status, count, output = fuzz(name, tmp_path, RUNS)
    found = sorted(tmp_path.glob("crash-*")) + sorted(tmp_path.glob("*-*"))
    assert (status, found) == (0, []), output[-3000:]
    counts.add("inputs", f"fuzzed bytes for the reader of {name}", count)
    assert count > 100


def test_a_planted_fault_is_found_and_its_bytes_are_kept(tmp_path):
    status, _, output = fuzz("planted", tmp_path, 200_000)
    assert status != 0 and "IndexError" in output
    (found,) = tmp_path.glob("crash-*")
    assert found.read_bytes().startswith(b"FU")
