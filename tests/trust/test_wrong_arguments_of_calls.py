"""Wrong values of every argument of public calls: a sentence, or the call goes on."""

import inspect

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.engine import resident
from fedjax_pfl.engine.streaming import trainer as streamed
from tests.lanes import wide
from tests.trust.test_wrong_values import is_sentence, wrong_values


class Reached(Exception):  # noqa: N818
    """Raised in place of a training."""


@pytest.fixture(scope="module")
def federation():
    x, owners = np.eye(24, 3), ["ann", "bob"] * 12
    return fp.Federation.from_arrays(x, [0, 1, 1] * 8, owners)


PROCESS = fp.FederatedProcess(algorithm=fp.Ditto())
KEY = jax.random.key(0)
SPEC = fp.FederationSpec("quadratic", "by_client", num_clients=4)
LAM = "algorithm.lam"
CALLS = {
    fp.simulate: {"num_rounds": 1},
    fp.simulate_streamed: {"num_rounds": 1},
    fp.grid: {"axes": {}, "num_rounds": 1},
    fp.tune: {"num_rounds": 1, "num_settings": 2},
    fp.learn: {"fields": LAM, "num_rounds": 1},
    fp.hypergradients: {"fields": LAM, "num_rounds": 1},
    fp.engine.search_space: {},
    fp.data.describe: {},
    fp.data.from_dataset: {
        "dataset": fp.data.Dataset(name="own", x=np.eye(24, 3), y=np.arange(24) % 2),
        "partition": fp.IID(),
        "num_clients": 2,
    },
    fp.data.load_dataset: {"name": "quadratic"},
    fp.load_federation: {"dataset": SPEC.dataset, "partition": SPEC.partition},
    fp.Federation.from_arrays: {"x": np.eye(24, 3), "y": np.arange(24) % 2},
    fp.Result.load: {"directory": "nosuch"},
    fp.Result.merge: {"results": []},
    fp.load_models: {"directory": "nosuch"},
    fp.load_params: {"path": "nosuch"},
    fp.plot: {"result": None},
    fp.from_functions: {"init": lambda key: {}, "apply": lambda params, x: x},
    fp.from_flax: {"module": None},
    fp.lora: {"model": fp.MLP(), "targets": "kernel"},
}
SAME = (fp.simulate_streamed,)  # with the options of simulate


@pytest.mark.parametrize(
    "call",
    [wide(call) if call in SAME else call for call in CALLS],
    ids=[call.__qualname__ for call in CALLS],
)
def test_wrong_arguments_get_a_sentence(call, federation, monkeypatch, tmp_path):
    def reached(*_, **__):
        raise Reached

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resident.Resident, "compile", reached)
    monkeypatch.setattr(streamed.Streamed, "__init__", reached)  # which opens files
    parameters = inspect.signature(call).parameters
    parts = {"key": KEY, "process": PROCESS, "model": fp.LogisticRegression()}
    parts |= {"spec": SPEC, "federation": federation, "progress": False}
    given = {name: part for name, part in parts.items() if name in parameters}
    given |= CALLS[call]
    problems = []
    for name, parameter in parameters.items():
        if parameter.kind == parameter.VAR_KEYWORD:
            continue
        for kind, value in wrong_values().items():
            try:
                call(**{**given, name: value})
            except Reached:
                continue
            except fp.InputError as error:
                if not is_sentence(error):
                    problems.append((name, kind, str(error)[:300]))
            except Exception as error:
                problems.append((name, kind, repr(error)[:300]))
    assert not problems, problems


def test_options_are_given_by_their_names(federation):
    arguments = (KEY, PROCESS, fp.LogisticRegression(), SPEC, 1)
    with pytest.raises(fp.InputError, match="options by their names, got 6"):
        fp.tune(*arguments, {LAM: [0.1]})
    with pytest.raises(fp.InputError, match="option of tune 'num_seting' .did you"):
        fp.tune(*arguments, num_seting=3)


def test_a_folder_stands_for_its_checkpoints(federation, tmp_path):
    arguments = (KEY, PROCESS, fp.LogisticRegression(), federation, 1)
    options = {"checkpoints": tmp_path / "saved", "progress": False}
    first = fp.simulate(*arguments, **options)
    assert list((tmp_path / "saved").iterdir())
    again = fp.simulate(
        *arguments, **options | {"checkpoints": str(tmp_path / "saved")}
    )
    seconds = [result.groups[0].compile_seconds for result in (first, again)]
    assert seconds[0] == seconds[1]  # which are read from the folder
