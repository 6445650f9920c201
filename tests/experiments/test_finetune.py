"""The page of parts of networks that are fine-tuned."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer import testing

from experiments.finetune import __main__ as study
from experiments.finetune import page
from tests import histories

DOCS = Path(__file__).parents[2] / "docs"
PARTS = ("head", "adapters", "whole")


def test_the_committed_page_is_that_of_its_tables():
    text, figures = page.render(study.FOLDER)
    assert (DOCS / "finetune.md").read_text("utf-8") == text
    files = {path.stem for path in (DOCS / "finetune_files").iterdir()}
    assert files == set(figures)


def made():
    """Rows in which parts, methods and seeds add up."""
    rows = []
    gains = {"Local": 0.0, "FedAvg": 0.01, "Ditto": 0.03, "Flame": 0.05}
    for (k, part), (method, gain), seed in itertools.product(
        enumerate(PARTS), [*gains.items(), ("FedRep", 0.2)], range(5)
    ):
        if (part, method) != ("head", "FedRep"):
            value = 0.5 + 0.1 * k + gain + 0.001 * seed
            cells = {"part": part, "method": method, "seed": seed, "rate": 0.1}
            cells |= {"lam": 1.0 if method == "Flame" else None, "start": 0.4}
            cells |= {"validation": value, "accuracy": value, "worst": value / 2}
            cells |= {"hurt": None if method == "Local" else 0.1 * k, "steps": 10}
            rows.append(cells | {"megabytes": 10.0**k, "seconds": 1.0})
    return pd.DataFrame(rows)


@pytest.mark.smoke
def test_findings_are_of_methods_that_train_every_part(tmp_path):
    parts, own, hurt = page._findings(made())
    assert "adapters gain +10.00 [+10.00, +10.00] points" in parts
    assert "whole network +20.00 [" in parts and "FedRep" not in parts
    assert "sends 10.0% of the bytes" in parts
    assert own.count("+3.00 [+3.00, +3.00]") == 3 and "Ditto and Flame" in own
    assert "the head 0 [0, 0], adapters 10 [10, 10], the whole network 20 [20" in hurt
    made().to_csv(tmp_path / "femnist.csv", index=False)
    text, figures = page.render(tmp_path)
    assert list(figures) == ["femnist"] and hurt in text and "Sent140" not in text
    row = "| adapters | Flame | 65.2 ± 0.2 | +5.0 [+5.0, +5.0] | 32.6 | 10 % | 10 |"
    assert row in text


def history(algorithm, models, axes):
    """A history of all settings with two seeds."""
    cells = itertools.product(*axes.values(), (0, 1))
    points = tuple(dict(zip((*axes, "seed"), cell, strict=True)) for cell in cells)
    made = histories.make_history(points=points, algorithm=algorithm, models=models)
    sent = {"bytes_up": 1e6, "bytes_down": 2e6 if algorithm != "Local" else 0.0}
    per_round = {n: np.full((len(points), 10), size) for n, size in sent.items()}
    return dataclasses.replace(made, per_round=per_round)


def test_rows_are_those_of_the_best_settings():
    """Kept numbers beside the histories, the settings beside a plain search."""
    rates = {"algorithm.local.learning_rate": (0.01, 0.3)}
    both = rates | {"algorithm.lam": (0.1, 1.0)}
    groups = [history("Local", ("personal",), rates)]
    groups += [history("FedAvg", ("global",), rates)]
    groups += [history("Ditto", ("global", "personal"), both)]
    rows = study.rows_of(histories.make_result(*groups)).set_index(["method", "seed"])
    served = {}
    for group in groups:
        name = group.config["algorithm"]
        values = group.metrics["accuracy"][:, :, -1]
        d = {data: group.data.index(data) for data in ("test", "validation")}
        settings = {}
        for number, point in enumerate(group.points):
            own = tuple(v for n, v in point.items() if n != "seed")
            settings.setdefault(own, []).append(number)
        best = max(
            settings.values(),
            key=lambda numbers: values[numbers, -1, d["validation"]].mean(),
        )
        for number in best:
            point, curve = group.points[number], values[number, :, d["test"]]
            last, first = curve[-1], curve[0]
            kept = rows.loc[(name, point["seed"])]
            served[name, point["seed"]] = last
            assert kept["rate"] == point["algorithm.local.learning_rate"]
            assert kept["accuracy"] == pytest.approx(last.mean())
            assert kept["start"] == pytest.approx(first.mean())
            assert kept["worst"] == pytest.approx(np.sort(last)[:2].mean())  # of 20
            assert kept["megabytes"] == (10 if name == "Local" else 30)
            if name != "Local":
                worse = last < served["Local", point["seed"]]
                assert kept["hurt"] == pytest.approx(np.mean(worse))
    assert rows["lam"].notna().sum() == 2 and len(rows) == 6


def test_other_folders_are_refused(tmp_path):
    done = testing.CliRunner().invoke(study.app, [str(tmp_path)])
    assert done.exit_code != 0 and "Traceback" not in done.output
    assert "finetune_<dataset>_*" in done.output


@pytest.mark.smoke
def test_pretraining_knows_the_presets_of_a_clone():
    from experiments import pretrain

    options = ["--preset", "nothing", "--out", "x.safetensors"]
    done = testing.CliRunner().invoke(pretrain.app, options)
    assert done.exit_code != 0 and "atlas_fmnist" in done.output
