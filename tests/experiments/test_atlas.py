"""The page of privacy, attacks, rules and methods in one grid."""

import dataclasses
import itertools
import pathlib

import numpy as np
import pandas as pd
import pytest
from typer import testing

from experiments.atlas import __main__ as study
from experiments.atlas import page, silo
from fedjax_pfl.command import presets
from tests import histories

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def test_the_committed_page_is_that_of_its_tables():
    text, figures = page.render(study.FOLDER)
    assert (DOCS / "atlas.md").read_text("utf-8") == text
    files = {path.stem for path in (DOCS / "atlas_files").iterdir()}
    assert files == set(figures)
    assert "hybrid" not in text


def made(gain):
    """Rows in which Ditto's personal models lose by noise what `gain` says."""
    rows = []
    rules = ("Mean", "TrimmedMean", "GeometricMedian")
    cells = itertools.product(("none", "SignFlip", "ALIE"), rules, (0.0, 8.0), range(5))
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
    [(0.05, "It does if"), (-0.05, "It does not if"), (0.0, "It is open if")],
)
def test_the_first_finding_follows_the_numbers(gain, said):
    rows = made(gain)
    rows.loc[rows["method"] == "Local", "accuracy"] += 0.002 * rows["seed"] % 0.003
    first, _, third = page._findings(rows)
    assert said in first and f"{100 * gain:+.2f} [" in first
    assert f"loses {100 * 0.16:.1f} points" in third


def test_noise_helps_where_flips_pull_models_toward_zero():
    cells = {("message", 0.0): 0.5, ("message", 2.0): 0.65}
    cells |= {("reference", 0.0): 0.75, ("reference", 2.0): 0.72}
    rows = pd.DataFrame(
        [(a, z, s, v + 0.001 * s) for (a, z), v in cells.items() for s in range(3)],
        columns=["about", "multiplier", "seed", "accuracy"],
    )
    text = page._finding_on_flips(rows)
    assert "global model by +15.00 [" in text and "changes it by -3.00 [" in text


@pytest.mark.smoke
def test_flips_of_models_and_of_updates_are_in_the_grid():
    grids = presets.get("atlas_flips").grids
    cells = {
        (len(g.process.transforms), a) for g in grids for a in g.axes["attack.about"]
    }
    assert cells == {(k, a) for k in (1, 2) for a in ("message", "reference")}


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
    assert len(cells) == 1 + 3 * 3 * 4 * 4
    assert len(experiment.seeds) == 5


def trained(models, axes, config, epsilon=None, **fields):
    """A history of all settings with two seeds, of which some have an epsilon."""
    cells = itertools.product(*axes.values(), (0, 1))
    points = tuple(dict(zip((*axes, "seed"), cell, strict=True)) for cell in cells)
    made = histories.make_history(points=points, models=models, **fields)
    per_round = {}
    if epsilon is not None:
        name, values = epsilon
        per_round = {name: np.array([[values(point)] * 2 for point in points])}
    config = {"algorithm.kappa": None, "attack": None} | config
    return dataclasses.replace(made, per_round=per_round, config=made.config | config)


def test_rows_are_of_honest_clients_with_their_epsilon():
    swept, fields = {"transforms.1.multiplier": [2.0]}, {"aggregator": "Mean"}
    noise = {"attack": "SignFlip", "transforms.1.delta": 1e-2}
    spent = ("epsilon", lambda point: 3.0 + point["seed"])
    fedavg, alone = ({"malicious": (0, 1), "algorithm": a} for a in ("FedAvg", "Local"))
    result = histories.make_result(
        trained(("global",), swept, fields | noise, spent, **fedavg),
        trained(("global",), {}, fields, **fedavg),
        trained(("personal",), {}, {}, **alone),
    )
    rows = study.rows_of(result)
    assert len(rows) == 6 and rows["accuracy"].between(0, 1).all()
    noisy, clean, alone = (rows[k : k + 2] for k in (0, 2, 4))
    assert noisy["epsilon"].tolist() == [3.0, 4.0]
    assert np.isinf(clean["epsilon"]).all() and alone["epsilon"].isna().all()
    honest = result.groups[0].metrics["accuracy"][:, -1, 0, 0, 2:].mean(axis=-1)
    np.testing.assert_allclose(noisy["accuracy"], honest, atol=1e-5)


def made_silos(gain):
    """Rows in which mean-regularized models gain `gain` more where there is noise."""
    rows = []
    for noise, seed in itertools.product((0.0, 16.0), range(5)):
        alone = 0.9 - 0.01 * noise + 0.002 * seed
        near = alone + 0.01 + (gain * (1 + 0.1 * seed) if noise else 0)
        best = 3.0 if noise else 0.1
        head = {
            "multiplier": noise,
            "seed": seed,
            "epsilon": 1 / noise if noise else np.inf,
        }
        for rate in (0.1, 0.3):
            chosen = {"rate": rate, "validation": rate}  # the larger one is the best
            value = alone if rate == 0.3 else 1.0  # on validation data, not on these
            rows.append(head | chosen | {"method": "Local", "accuracy": value})
            rows.append(head | chosen | {"method": "FedAvg", "accuracy": value - 0.1})
            for lam in (0.1, 3.0):
                score = {"validation": rate + (lam == best)}
                value = near if lam == best and rate == 0.3 else 1.0
                rows.append(
                    head
                    | chosen
                    | score
                    | {"method": "Flame", "lam": lam, "accuracy": value}
                )
    return pd.DataFrame(rows)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("gain", "said"),
    [(0.05, "It does."), (-0.05, "It does not."), (0.0, "It is open.")],
)
def test_silos_say_whether_privacy_makes_federation_worth_more(gain, said, tmp_path):
    rows = made_silos(gain)
    helps, one_model, closer = silo.findings(rows)
    assert f"mean-regularized models: {said}" in helps
    assert f"a change of {100 * gain * 1.2:+.2f} [" in helps
    assert "FedAvg: It is open" in one_model and "a change of +0.00" in one_model
    assert "λ = 0.1 without noise and λ = 3 with the strongest" in closer
    rows.to_csv(tmp_path / "atlas_silo.csv", index=False)
    text, figures = page.render(tmp_path)
    assert list(figures) == ["atlas_silo"] and helps in text
    assert "| its λ | 0.1 | 3 |" in text and "| model | no noise | ε = 0.062 |" in text


@pytest.mark.smoke
def test_silos_have_the_same_noise_whatever_the_method():
    solvers, noises = set(), {}
    for grid in presets.get("atlas_silo").grids:
        algorithm = grid.process.algorithm
        solvers.add(algorithm.local)
        of_method = noises.setdefault(type(algorithm), [])
        of_method += grid.axes["algorithm.local.multiplier"]
    assert len(solvers) == 1
    assert list(noises.values()) == [[0.0, 4.0, 8.0, 16.0]] * 3


def test_rows_of_silos_are_of_the_models_that_they_take_home():
    axes = {"algorithm.local.multiplier": [0.0, 4.0]}
    axes["algorithm.local.learning_rate"] = [0.1]
    both, config = ("personal", "global"), {"algorithm.local.delta": 1e-2}
    kinds = {"Local": (both[:1], {}), "FedAvg": (both[1:], {})}
    kinds["Flame"] = (both, {"algorithm.lam": [0.1, 1.0]})

    def spent(point):
        noise = point["algorithm.local.multiplier"]
        return 1 / noise if noise else np.inf

    groups = [
        trained(models, axes | own, config, ("local_epsilon", spent), algorithm=name)
        for name, (models, own) in kinds.items()
    ]
    rows = silo.rows_of(histories.make_result(*groups))
    counts = {"Local": 4, "FedAvg": 4, "Flame": 8}
    assert rows["method"].value_counts().to_dict() == counts
    is_noisy = rows["multiplier"] > 0
    assert rows["epsilon"].tolist() == np.where(is_noisy, 0.25, np.inf).tolist()
    last = groups[2].metrics["accuracy"][:, -1, 0].mean(axis=-1)
    flame = rows[rows["method"] == "Flame"]
    for number, column in enumerate(("accuracy", "validation")):
        found = sorted(last[:, number])
        np.testing.assert_allclose(sorted(flame[column]), found, atol=1e-5)


def test_other_results_are_refused(tmp_path):
    done = testing.CliRunner().invoke(study.app, [str(tmp_path)])
    assert done.exit_code != 0 and "Traceback" not in done.output
