"""Methods of the page about methods: their properties, and reductions to others."""

import functools
import pathlib
import re

import chex
import jax
import pytest

import fedjax_pfl as fp
from fedjax_pfl import testing
from fedjax_pfl.testing import compiled_rounds, toy
from tests.lanes import few

PAGE = pathlib.Path(__file__).parents[2] / "docs/write_a_method.md"
LOCAL = fp.SGD(learning_rate=0.2, epochs=2, batch_size=4)


@functools.cache
def page():
    """Names of the page's programs, run without their trainings."""
    names = {}
    for code in re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S
    ):
        code = re.sub(r"^train\(.*\n", "", code, flags=re.M)
        code = re.sub(r"^federation = fp.*?^\)\n", "", code, flags=re.M | re.S)
        exec(compile(code, str(PAGE), "exec"), names)
    return names


NAMES = "Average Pulled Heavy Duals Anchored Calibrated Tuned".split()


def test_all_methods_of_the_page_are_checked():
    found = [n for n, value in page().items() if is_method(value)]
    assert found == NAMES


def is_method(value):
    base = fp.SingleExchange
    return isinstance(value, type) and issubclass(value, base) and value is not base


# The others are compared with methods of the package below.
@pytest.mark.parametrize("name", few(NAMES[4:], NAMES))
def test_methods_of_the_page_keep_properties(name):
    method = testing.Subject(page()[name](local=LOCAL), model=fp.MLP(widths=(4,)))
    properties = ("states_keep_their_layout", "states_stay_finite")
    testing.check_algorithm(method, properties=(*properties, "same_key_same_result"))


def server(algorithm):
    federation = toy.make_federation()
    model = fp.LogisticRegression().for_federation(federation)
    process = fp.FederatedProcess(algorithm=algorithm)
    state = compiled_rounds.init(process, jax.random.key(0), model, federation)
    for _ in range(3):
        state, _ = compiled_rounds.run_round(process, state, model, federation)
    return state.server


def test_methods_of_the_page_are_the_packages():
    averaging = fp.FedAvg(local=LOCAL, drop_stragglers=False)
    prox, admm = fp.FedProx(mu=0.5, local=LOCAL), fp.FedADMM(mu=0.5, local=LOCAL)
    pairs = [("Average", {}, averaging), ("Pulled", {"mu": 0.5}, prox)]
    pairs += [("Duals", {"mu": 0.5}, admm), ("Heavy", {"momentum": 0.0}, averaging)]
    for name, fields, theirs in pairs:
        ours = server(page()[name](local=LOCAL, **fields))
        ours = ours.model if name == "Heavy" else ours
        chex.assert_trees_all_close(ours, server(theirs), rtol=1e-10, atol=1e-12)
