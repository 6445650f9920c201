"""Figures of attacks and of training losses."""

import dataclasses

import numpy as np

from fedjax_pfl import figures
from tests import histories
from tests.figures import test_figures
from tests.report import reports


def many_fractions():
    return histories.make_result(
        reports.attacked(None, (0.0,)),
        reports.attacked("SignFlip", (0.2, 0.5)),
        reports.attacked(None, (0.2, 0.5), poisoning="UniformLabels"),
    )


def test_every_attack_has_a_panel_that_starts_without_attackers():
    result = many_fractions()
    figure = figures.draw("attacks", result)
    assert figure is not None
    titles = [axes.get_title() for axes in figure.axes]
    assert sorted(titles) == ["SignFlip", "UniformLabels"]
    title, labels = test_figures.legend_of(figure)
    assert "own test data, honest clients" in title
    (panel,) = [axes for axes in figure.axes if axes.get_title() == "SignFlip"]
    (line,) = [x for x in panel.lines if x.get_label().endswith(", personal")]
    np.testing.assert_array_equal(line.get_xdata(), [0.0, 0.2, 0.5])
    # Without attackers everybody counts; with them the honest, who are not 0 and 1.
    clean, flipped = (g.metrics["accuracy"][:, -1, 0, 0] for g in result.groups[:2])
    expected = [clean.mean(), flipped[:2, 2:].mean(), flipped[2:, 2:].mean()]
    np.testing.assert_allclose(line.get_ydata(), expected, rtol=1e-6)
    assert len(labels) == 3  # two models and the choice between them
    assert figures.draw("attacks_table", result) is None


def test_one_fraction_is_a_table_of_attacks():
    result = histories.make_result(
        reports.attacked(None, (0.0,)),
        reports.attacked("SignFlip", (0.2,)),
        reports.attacked("Gaussian", (0.2,)),
    )
    assert figures.draw("attacks", result) is None
    figure = figures.draw("attacks_table", result)
    assert figure is not None
    axes, _ = figure.axes  # and the scale
    columns = [text.get_text() for text in axes.get_xticklabels()]
    assert columns == ["no attack", "SignFlip", "Gaussian"]
    rows = [text.get_text() for text in axes.get_yticklabels()]
    assert len(rows) == 3 and all("Flame" in row for row in rows)
    (personal,) = [k for k, row in enumerate(rows) if row.endswith(", personal")]
    flipped = result.groups[1].metrics["accuracy"][:, -1, 0, 0, 2:].mean()
    shown = {t.get_position(): t.get_text() for t in axes.texts}
    assert shown[1, personal] == f"{100 * flipped:.0f}"
    assert "20 % malicious" in axes.get_title()


def test_training_losses_of_all_settings():
    points = tuple({"seed": s, "algorithm.lam": x} for x in (1.0, 3.0) for s in (0, 1))
    made = histories.make_history(points=points)
    result = histories.make_result(dataclasses.replace(made, data=("train", "test")))
    figure = figures.draw("training_loss", result)
    assert figure is not None
    (axes,) = figure.axes
    assert (axes.get_yscale(), len(axes.lines)) == ("log", 4)
    (line,) = [
        x
        for x in axes.lines
        if x.get_label().endswith(", personal") and "lam = 3" in x.get_label()
    ]
    wanted = made.metrics["loss"][2:, :, 0, 0].mean(axis=(0, 2))
    np.testing.assert_allclose(line.get_ydata(), wanted, rtol=1e-6)
