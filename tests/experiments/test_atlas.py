"""The page of privacy, attacks, rules and methods in one grid."""

import itertools

import jax
import numpy as np
import pandas as pd
import pytest
from typer import testing

import fedjax_pfl as fp
from experiments.atlas import __main__ as study
from experiments.atlas import page
from fedjax_pfl.command import presets


def made(gain):
    """Rows in which Ditto's personal models lose by noise what `gain` says."""
    rows = []
    cells = itertools.product(
        ("none", "SignFlip", "ALIE"), ("Mean", "GeometricMedian"), (0.0, 8.0), range(5)
    )
    for attack, rule, noise, seed in cells:
        epsilon = 0.5 if noise else float("inf")
        head = (rule, attack, noise, seed)
        wobble = 0.001 * seed
        for method, model, value in (
            ("FedAvg", "global", 0.7 - 0.02 * noise),
            ("Ditto", "personal", 0.9 + wobble + (gain if noise else 0)),
        ):
            rows.append((method, *head, model, value, epsilon))
    rows += [
        ("Local", "none", "none", 0.0, s, "personal", 0.8, np.nan) for s in range(5)
    ]
    names = ["method", "rule", "attack", "multiplier", "seed", "model", "accuracy"]
    return pd.DataFrame(rows, columns=[*names, "epsilon"])


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("gain", "said"),
    [(0.05, "It does,"), (-0.05, "It does not,"), (0.0, "It is open,")],
)
def test_the_first_finding_follows_the_numbers(gain, said):
    rows = made(gain)
    rows.loc[rows["method"] == "Local", "accuracy"] += 0.002 * rows["seed"] % 0.003
    first, _, third = page._findings(rows)
    assert said in first and f"{100 * gain:+.2f} [" in first
    assert f"loses {100 * 0.16:.1f} points" in third


@pytest.mark.smoke
def test_every_cell_of_the_atlas_is_in_the_grid():
    """Noise x attack x rule x method, and training alone once."""
    experiment = presets.get("atlas_fmnist")
    cells = set()
    for grid in experiment.grids:
        process, noises = grid.process, grid.axes.get("transforms.1.multiplier", (0,))
        parts = (process.algorithm, process.used_aggregator(), process.attack)
        names = tuple(type(part).__name__ for part in parts)
        cells |= {(*names, noise) for noise in noises}
        assert grid.spec.malicious_fraction == 0.2
    assert len(cells) == 1 + 3 * 3 * 3 * 4
    assert len(experiment.seeds) == 5


def test_rows_are_of_honest_clients_with_their_epsilon():
    spec = fp.FederationSpec(
        "digits", num_clients=10, malicious_fraction=0.2, validation_fraction=0.0
    )
    noise = fp.GaussianNoise(multiplier=2.0, delta=1e-2)
    clip, swept = fp.ClipNorm(norm=1.0), {"transforms.1.multiplier": [2.0]}
    parts = [
        (fp.FedAvg(), fp.SignFlip(), (clip, noise), swept),
        (fp.FedAvg(), None, (clip,), {}),
        (fp.Local(), None, (), {}),
    ]
    result = fp.Result.merge(
        [
            fp.grid(
                jax.random.key(0),
                fp.FederatedProcess(
                    algorithm=method,
                    aggregator=fp.aggregators.Mean() if transforms else None,
                    attack=attack,
                    transforms=transforms,
                ),
                fp.LogisticRegression(),
                spec,
                axes | {"seed": [0, 1]},
                num_rounds=1,
            )
            for method, attack, transforms, axes in parts
        ]
    )
    rows = study.rows_of(result)
    assert len(rows) == 6 and rows["accuracy"].between(0, 1).all()
    (spent,) = set(result.privacy()["epsilon"])
    noisy, clean, alone = (rows[k : k + 2] for k in (0, 2, 4))
    assert np.allclose(noisy["epsilon"], spent, atol=1e-4)
    assert np.isinf(clean["epsilon"]).all() and alone["epsilon"].isna().all()
    group = result.groups[0]
    m, d = group.models.index("global"), group.data.index("test")
    who = ~group.malicious[0]
    wanted = group.metrics["accuracy"][0, -1, m, d][who].mean()
    assert noisy["accuracy"].iloc[0] == pytest.approx(wanted, abs=1e-5)


def test_other_results_are_refused(tmp_path):
    done = testing.CliRunner().invoke(study.app, [str(tmp_path)])
    assert done.exit_code != 0 and "Traceback" not in done.output
