"""Suggestions: names that are near get one, far-off names get none."""

import pytest

from fedjax_pfl import algorithms, data, portfolio
from fedjax_pfl.command import presets
from fedjax_pfl.core import checks

REGISTRIES = {
    name: tuple(registry)
    for name, registry in {
        "algorithm": algorithms.ALGORITHMS,
        "local": algorithms.LOCAL_SOLVERS,
        "phi": algorithms.PHIS,
        "search": algorithms.STEP_SEARCHES,
        "aggregator": algorithms.AGGREGATORS,
        "server optimizer": algorithms.SERVER_OPTIMIZERS,
        "attack": algorithms.ATTACKS,
        "transform": algorithms.TRANSFORMS,
        "participation": algorithms.PARTICIPATIONS,
        "work": algorithms.WORK,
        "model": algorithms.MODELS,
        "dataset": data.DATASETS,
        "partition": data.PARTITIONS,
        "label poisoning": data.LABEL_POISONINGS,
        "feature noise": data.FEATURE_NOISES,
        "market": portfolio.MARKETS,
        "preset": presets.PRESETS,
    }.items()
}
FAR = ("nosuch", "perceptron", "celeba", "iris", "linear", "forest", "weather", "xy")


def said(name, allowed):
    with pytest.raises(checks.InputError) as error:
        checks.known(name, allowed, "name")
    return str(error.value)


@pytest.mark.parametrize("kind", REGISTRIES)
def test_far_off_names_get_no_suggestion(kind):
    for name in FAR:
        assert "did you mean" not in said(name, REGISTRIES[kind]), name


@pytest.mark.parametrize("kind", REGISTRIES)
def test_a_letter_too_few_or_too_many_gets_one(kind):
    names = REGISTRIES[kind]
    for name in names[:: 1 + len(names) // 50]:
        for slip in (f"{name}x", f"{name[:2]}{name[3:]}"):
            if slip not in REGISTRIES[kind]:
                assert "did you mean" in said(slip, REGISTRIES[kind]), slip


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("algorithm.lma", "algorithm.lam"),
        ("lam", "algorithm.lam"),
        ("algoritm.lam", "algorithm.lam"),
        ("algorithm.nosuch", None),  # though it has most letters of all others
        ("learning_rates", "algorithm.learning_rate"),
    ],
)
def test_dotted_names_are_near_by_their_last_part(name, near):
    fields = ["algorithm.lam", "algorithm.learning_rate", "algorithm.kappa"]
    fields += ["algorithm.local.learning_rate"]
    text = said(name, fields)
    assert (f"did you mean '{near}'" in text) == (near is not None)
    assert ("did you mean" in text) == (near is not None)
