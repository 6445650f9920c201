"""Settings of all parts, good, borderline and absurd: planned, trained, or a sentence.

Names and fields come from the registries, so that a new part is tested as it is added.
"""

import dataclasses
import json
import os
import shutil

import pytest
from hypothesis import strategies as st

import fedjax_pfl as fp
from experiments import sweep
from fedjax_pfl.command import job
from tests.trust import inputs

PARTS = {  # where a component is set, and what there is
    "algorithm": fp.algorithms.ALGORITHMS,
    "algorithm.local": fp.algorithms.LOCAL_SOLVERS,
    "algorithm.fine_tune": fp.algorithms.LOCAL_SOLVERS,
    "algorithm.head_local": fp.algorithms.LOCAL_SOLVERS,
    "algorithm.personal": fp.algorithms.LOCAL_SOLVERS,
    "aggregator": fp.algorithms.AGGREGATORS,
    "server_optimizer": fp.algorithms.SERVER_OPTIMIZERS,
    "aggregator.rule": fp.algorithms.AGGREGATORS,
    "attack": fp.algorithms.ATTACKS,
    "transforms": fp.algorithms.TRANSFORMS,
    "participation": fp.algorithms.PARTICIPATIONS,
    "work": fp.algorithms.WORK,
    "model": fp.algorithms.MODELS,
    "federation.dataset": fp.data.DATASETS,
    "federation.partition": fp.data.PARTITIONS,
    "federation.label_poisoning": fp.data.LABEL_POISONINGS,
    "federation.feature_noise": fp.data.FEATURE_NOISES,
}
OWN = {
    "federation": [field.name for field in dataclasses.fields(fp.FederationSpec)],
    "": ["seed", "num_rounds", "eval_every", "on_nonfinite"],
}
SMALL = ["--preset", "digits", "--seeds", "1", "--clients", "4"]
SMALL += ["--set", "algorithm=fedavg"]
NATURAL = [*SMALL, "--set", "federation.partition=by_client", "--dataset"]
STARTS = [
    ["--preset", "quadratic"],
    [*SMALL, "--set", "model=logistic_regression"],
    [*NATURAL, "gaussian_classes"],
    [*NATURAL, "clustered_classes"],
    [*NATURAL, "linear_regression", "--set", "model=linear_regression"],
]
WORDS = """
    all clip coarse difference drop epoch exact examples finite_difference first_order
    fine freeze glorot he joint keep local malicious minmax none outputs own parameters
    pytorch received refresh regression round standard stop uniform update
""".split()
NUMBERS = [1, 2, 3, 5, 0.1, 0.5, 0.9, 1.0, 2.0]
ODD = [
    *("0", "-1", "0.0", "-0.5", "1.5", "1e30", "1e-30", "1e308", "1e-320", "1e999"),
    *("NaN", "Infinity", "-Infinity", "true", "false", "null", '""', "[]", "[[]]"),
    *("[1]", "[1,2]", "[[1,2],[3]]", "[null]", '["a"]', "{}", '{"a":1}', "100000"),
    *("2147483647", "2147483648", "4294967296", "9223372036854775808", "1" + "0" * 30),
    *("1" + "0" * 400, "9" * 5000, "[" * 3000, "[" * 300 + "]" * 300, "a" * 5000),
    *("[1000000000000]", "\u00e9", "\u0661", '"\\u0000"', '"\\ud800"', '"a\\nb"', "'"),
    *("~nobody/x", "../..", "(", "(a+)+$", "1,1", "1,2,3", "0.1,0.2", "a,b", ",", ""),
    *(" ", "=", "#"),
]


def fields_of(registry):
    return sorted(
        {f.name for kind in registry.values() for f in dataclasses.fields(kind)}
    )


NAMES = sorted(
    {f"{part}.{field}" for part, kinds in PARTS.items() for field in fields_of(kinds)}
    | {
        f"{head}.{field}" if head else field
        for head, own in OWN.items()
        for field in own
    }
)


@st.composite
def misspelled(draw, name):
    """A name with a character cut out, repeated, or a part of it missing."""
    at = draw(st.integers(0, len(name) - 1))
    return draw(
        st.sampled_from(
            [name[:at] + name[at + 1 :], name[:at] + name[at] + name[at:], name[at:]]
        )
    )


def good_values(kind, field):
    """Values like the default of a field, as texts."""
    default = next(f.default for f in dataclasses.fields(kind) if f.name == field)
    if isinstance(default, bool):
        return ["true", "false"]
    if isinstance(default, str):
        return [default, *WORDS]
    if isinstance(default, tuple):
        return [json.dumps([4] * len(default)), "[3]", "[2,2]", json.dumps(default)]
    if isinstance(default, int):
        return [str(number) for number in NUMBERS if isinstance(number, int)]
    return [*map(str, NUMBERS), "null"]


@st.composite
def settings(draw):
    """Texts of `--set`: some components, some of their fields, few of them odd."""
    found, chosen = [], {"federation": fp.FederationSpec}
    for part in draw(st.lists(st.sampled_from(sorted(PARTS)), max_size=3)):
        name = draw(st.sampled_from(sorted(PARTS[part])))
        chosen[part] = PARTS[part][name]
        found.append(f"{part}={name}")
        if name == "uniform":
            found.append(f"{part}.size={draw(st.sampled_from(['2', '4', *ODD]))}")
    for part in draw(st.lists(st.sampled_from(sorted(chosen)), max_size=3)):
        fields = [field.name for field in dataclasses.fields(chosen[part])]
        if fields:
            field = draw(st.sampled_from(fields))
            values = good_values(chosen[part], field)
            is_odd = draw(st.sampled_from([False, False, False, True]))
            value = draw(st.sampled_from(ODD if is_odd else values))
            owner = "transforms.0" if part == "transforms" else part
            found.append(f"{owner}.{field}={value}")
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        name = draw(st.sampled_from([*NAMES, *PARTS]))
        if draw(st.sampled_from([False] * 5 + [True])):
            name = draw(misspelled(name))
        anything = st.one_of(
            st.sampled_from(ODD),
            st.sampled_from([*map(str, NUMBERS), *WORDS]),
            st.text(max_size=8),
        )
        found.append(f"{name}={draw(anything)}")
    return draw(st.permutations(found))


@st.composite
def commands(draw):
    """Arguments of a command."""
    texts = draw(settings())
    return [*draw(st.sampled_from(STARTS)), *(a for t in texts for a in ("--set", t))]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Commands write below an empty directory and keep no compiled programs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job.compilation_cache, "keep", lambda: None)
    monkeypatch.setattr(job.figures, "save_all", lambda *_: [])
    monkeypatch.delenv("FEDJAX_PFL_DATA", raising=False)
    return tmp_path


@pytest.mark.filterwarnings("default")
def test_plans(elsewhere, request):
    def is_refused(arguments):
        refused = inputs.run(sweep.app, [*arguments, "--dry-run"])
        assert not os.listdir()
        return refused

    trials = inputs.Trials(request, default=20, long=2500)
    trials.run("configurations", commands(), is_refused)


@pytest.mark.filterwarnings("default")
def test_trainings(elsewhere, request):
    def is_refused(arguments):
        given = ["--set", "num_rounds=2", "--out", "out", "--quiet"]
        refused = inputs.run(sweep.app, [*arguments, *given])
        assert os.listdir() == ([] if refused else ["out"])
        if not refused:
            result = fp.Result.load("out")
            assert result.groups and len(result.table())
            shutil.rmtree("out")
        return refused

    trials = inputs.Trials(request, default=8, long=60)
    trials.run("trainings", commands(), is_refused)
