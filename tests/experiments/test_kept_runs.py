"""Kept runs are repeated by the command that is printed beside them."""

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedjax_pfl as fp
from experiments.cards import kept
from tests.data.samples import SHARED

RUNS = Path(__file__).parents[2] / "experiments" / "results"
FIRST = {  # file of a card -> a method, a seed and the second evaluated round
    "flame/flame_fair_mnist_labels2": ("Flame", 1, 10),
}


@pytest.mark.wide
@pytest.mark.parametrize("file", FIRST)
def test_the_first_rounds_are_those_of_the_kept_run(file, tmp_path):
    if not SHARED.is_dir():
        pytest.skip("the data files are not here")
    method, seed, rounds = FIRST[file]
    run = kept.read(RUNS / f"{file}.nc")
    # Options that are given again have the last word.
    few = f"--algorithm {method.lower()} --seed-list {seed} --rounds {rounds}"
    more = f"--eval-every {rounds} --data-dir {SHARED} --quiet --out {tmp_path}/run"
    command = shlex.split(f"{run.command} {few} {more}")
    assert command[0] == "python"
    subprocess.run([sys.executable, *command[1:]], check=True, capture_output=True)
    again = fp.Result.load(tmp_path / "run").curves()
    assert run.rounds is not None
    keys = [name for name in again if name in run.rounds and name != "value"]
    both = again.merge(run.rounds, on=keys, suffixes=("", "_kept"))
    assert set(both["round"]) == {0, rounds} and {"accuracy"} <= set(both["metric"])
    # Processors round sums differently, which many rounds of training would amplify.
    np.testing.assert_allclose(both["value"], both["value_kept"], rtol=1e-3)
