"""The table of properties finds what is wrong, here and on a machine of its users."""

import os
import pathlib
import re
import subprocess
import sys
import unittest

import pytest

import fedjax_pfl as fp
from fedjax_pfl import testing
from fedjax_pfl.core import checks
from fedjax_pfl.testing import __main__ as command
from tests.algorithms import broken

ROOT = pathlib.Path(__file__).parents[2]
# Compiled operation by operation, and traced for every field of two solvers.
SLOW = ("TracedOnly", "FewFields")
SKIPPED = {"loop_reference", "solver_fields_act"}  # by a method without a solver
FOUND = sorted({prop for prop, _ in broken.BROKEN.values()} - SKIPPED)


def as_users_have_it():
    """The environment of a process with one device and 32-bit floats."""
    hidden = ("XLA_FLAGS", "JAX_ENABLE_X64", "JAX_NUM_CPU_DEVICES")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return kept | {"PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.wide] * (name in SLOW))
        for name in broken.BROKEN
    ],
)
def test_a_broken_method_fails_its_property(name):
    prop, words = broken.BROKEN[name]
    with pytest.raises(AssertionError, match=f"^{name} fails {prop}: .*{words}"):
        testing.check(prop, getattr(broken, name)())


def test_what_the_broken_methods_are_made_of_is_sound():
    outcomes = testing.check_algorithm(broken.Sound(), properties=FOUND)
    assert [outcome.status for outcome in outcomes] == ["ok"] * len(FOUND)


def test_all_failures_are_in_one_error():
    properties = ["states_keep_their_layout", "states_stay_finite"]
    with pytest.raises(AssertionError) as failed:
        testing.check_algorithm(broken.HalfPrecision(), properties=properties)
    first, *lines = str(failed.value).splitlines()
    assert "HalfPrecision" in first
    assert [line.split()[0] for line in lines] == ["failed", "ok"]


def test_what_a_method_raises_is_a_failure():
    (outcome,) = testing.outcomes(broken.Branch(), ["states_keep_their_layout"])
    assert outcome.status == "failed"
    assert "Branch raises TracerBoolConversionError" in outcome.sentence


@pytest.mark.parametrize("method", [fp.algorithms.FedPer(), fp.algorithms.SplitGP()])
def test_a_method_of_networks_gets_one(method):
    (outcome,) = testing.outcomes(method, ["states_keep_their_layout"])
    assert outcome.status == "ok", outcome


def test_what_cannot_be_checked_is_skipped_with_a_reason():
    with pytest.raises(unittest.SkipTest, match="no traced field"):
        testing.check("scan_equals_python_loop", fp.Majority())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing_there:Method"], "Cannot import"),
        (["flame", "padding"], "Unknown property 'padding'"),
        (["flame", "--model", "perceptron"], "Unknown model 'perceptron'"),
        (["flame", "--model", "cnn"], "CNN"),
        (["moon", "--model", "logistic_regression"], "got LogisticRegression"),
    ],
)
def test_wrong_words_of_the_command(arguments, sentence, capsys):
    assert command.main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_a_method_is_checked_with_a_model_by_name(capsys):
    words = ["moon", "--model", "mlp", "states_keep_their_layout"]
    assert command.main(words) == 0
    assert capsys.readouterr().out.endswith("\n1 ok, 0 failed, 0 skipped\n")
    with pytest.raises(SystemExit):
        command.main(["--layers", "--model", "mlp"])
    assert "--model needs a method" in capsys.readouterr().err


def test_a_class_is_refused():
    with pytest.raises(checks.InputError, match=r"such as MyMethod\(\), got the class"):
        testing.Subject(fp.Flame)


def run(code, *arguments):
    """A program in a process of its own: its status and what it printed."""
    environment = as_users_have_it()
    # XLA warns of compiled programs of others that it loads.
    environment.pop("JAX_COMPILATION_CACHE_DIR")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


BROKEN_ALONE = """
import sys
from fedjax_pfl import testing
print(*sys.modules)
from tests.algorithms import broken
for name in sys.argv[1:]:
    print(name, *testing.outcomes(getattr(broken, name)(), [broken.BROKEN[name][0]]))
"""


@pytest.mark.wide
def test_broken_methods_are_found_in_float32_on_one_device():
    status, printed = run(BROKEN_ALONE, *broken.BROKEN)
    assert status == 0, printed
    modules, *lines = printed.splitlines()
    assert not {"pytest", "chex", "tests"} & set(modules.split())
    for name, line in zip(broken.BROKEN, lines, strict=True):
        prop, words = broken.BROKEN[name]
        assert re.match(f"{name} failed +{prop}: .*{words}", line), line


COMMAND = "import runpy; runpy.run_module('fedjax_pfl.testing', run_name='__main__')"


@pytest.mark.wide
@pytest.mark.parametrize("name", ["flame", "fedavg"])
def test_methods_pass_in_float32_on_one_device(name):
    status, printed = run(COMMAND, name)
    first, *lines, counts = printed.splitlines()
    assert status == 0, printed
    assert first == f"{name} in float32 on 1 x cpu"
    skipped = {line.split()[1].rstrip(":") for line in lines if "skipped" in line}
    assert skipped == {"devices_change_rounding_only", "float32_changes_rounding_only"}
    assert counts == f"{len(testing.PROPERTIES) - 2} ok, 0 failed, 2 skipped"
