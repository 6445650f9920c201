"""Figures: what they show, and that their names and axes say it."""

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib import image

from fedjax_pfl import figures
from fedjax_pfl.figures import clients, contents, drawing
from fedjax_pfl.results import comparison
from tests import histories
from tests.report import reports


def legend_of(figure):
    (legend,) = figure.legends
    names = [t.get_text() for t in legend.get_texts()]
    names += [t.get_text() for axes in figure.axes for t in axes.texts]  # at ends
    return legend.get_title().get_text(), names


def sweep_result():
    return reports.grid_result((0.1, 1.0, 10.0))


@pytest.mark.smoke
def test_learning_curves_name_model_population_data_and_band():
    result = sweep_result()
    figure = figures.draw("learning_curves", result)
    title, labels = legend_of(figure)
    assert "mean over 3 seeds, bar at the end from min to max" in title
    assert len(labels) == 4  # three models of FLAME's best setting, one of FedAvg
    assert "own test data, all clients" in title
    assert "FedAvg, global" in labels
    assert any(re.fullmatch(r"Flame \(.*\), personal", label) for label in labels)
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "round",
        "mean accuracy over clients",
    )
    # The line of FedAvg is the mean over seeds of the mean over clients.
    wanted = result.groups[1].metrics["accuracy"][:, :, 0, 0].mean(axis=(0, 2))
    (line,) = [x for x in axes.lines if "FedAvg" in x.get_label()]
    np.testing.assert_allclose(line.get_ydata(), wanted, rtol=1e-6)


def test_learning_curves_show_the_setting_that_validates_best():
    result = sweep_result()
    _, labels = legend_of(figures.draw("learning_curves", result))
    rows = result.curves()
    last = rows[
        (rows["round"] == rows["round"].max())
        & (rows["metric"] == "accuracy")
        & (rows["data"] == "own validation")
        & (rows["algorithm"] == "Flame")
    ]
    means = last.groupby(["algorithm.lam", "algorithm.kappa", "model"])["value"].mean()
    lam, kappa = means.groupby(level=[0, 1]).max().idxmax()
    assert any(f"(lam = {lam:g}, kappa = {kappa:g})" in label for label in labels)


def test_sweep_figure_has_log_axis_and_seed_bars():
    figure = figures.draw("sweep", sweep_result())
    assert figure is not None
    title, labels = legend_of(figure)
    assert "mean ± std over 3 seeds" in title
    assert set(labels) == {"FedAvg", "Flame (kappa = 0.5)", "Flame (kappa = 2)"}
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:2] == ["personal", "global"]
    assert "own test data, all clients" in title
    assert {axes.get_xscale() for axes in figure.axes} == {"log"}
    assert [axes.get_xlabel() for axes in figure.axes][1] == "algorithm.lam"
    assert figure.axes[0].get_ylabel() == "mean accuracy, last round"


def test_figures_are_files_of_at_least_600_pixels(tmp_path):
    files = figures.save_all(sweep_result(), tmp_path)
    names = ["differences", "learning_curves", "megabytes", "sweep", "grid"]
    names += ["clients", "fairness", "partition"]
    assert [file.stem for file in files] == names
    assert all(image.imread(file).shape[1] >= 600 for file in files)
    diverged = histories.make_result(histories.make_history(diverged_at=[5, 5]))
    drawn = [name for name in figures.catalog() if figures.draw(name, diverged)]
    assert drawn == ["differences", "learning_curves", "megabytes", "partition"]


def test_distribution_shows_every_client_of_the_drawn_settings():
    result = sweep_result()
    figure = figures.draw("clients", result)
    (axes,) = figure.axes
    dots = [points.get_offsets()[:, 0] for points in axes.collections]
    rows = [label.get_text().split("\n")[0] for label in axes.get_yticklabels()]
    assert sorted(rows) == ["global", "global", "hybrid (validation)", "personal"]
    assert [len(values) for values in dots] == [3 * 20] * 4  # seeds x clients
    record = result.groups[1]
    wanted = record.metrics["accuracy"][:, -1, 0, 0].ravel()
    assert any(np.array_equal(np.sort(values), np.sort(wanted)) for values in dots)
    label = axes.get_xlabel().replace("\n", " ")
    assert "own test data (20 examples of a client), last round (3 seeds)" in label


def test_differences_are_those_of_the_ranking():
    result = sweep_result()
    (environment,) = comparison.rank(result).environments
    figure = figures.draw("differences", result)
    (axes,) = figure.axes
    ticks = [tick.get_text() for tick in axes.get_yticklabels()]
    labels = [tick.replace("\n", " ") for tick in ticks]
    assert labels == [f"{row.setting}, {row.model}" for row in environment.rows]
    drawn = [bars.lines[0].get_xdata()[0] for bars in axes.containers]
    gaps = [row.differences[environment.reference] for row in environment.rows]
    expected = [0.0 if gap is None else 100 * gap.mean for gap in gaps]
    np.testing.assert_allclose(drawn, expected)
    assert "accuracy minus that of FedAvg, global, points" in axes.get_xlabel()


def test_lines_are_in_the_order_of_the_ranking():
    result = sweep_result()
    ranked = comparison.rank(result).environments[0].rows
    order = [f"{row.setting}, {row.model}" for row in ranked]
    _, labels = legend_of(figures.draw("learning_curves", result))
    assert sorted(labels, key=order.index) == labels
    rows = figures.draw("clients", result).axes[0].get_yticklabels()
    drawn = [", ".join(row.get_text().splitlines()[::-1]) for row in rows]
    assert sorted(drawn, key=order.index) == drawn


def test_a_sweep_shows_the_bar_to_beat():
    swept, other = sweep_result().groups
    tuned = dataclasses.replace(other, models=("fine-tuned",))
    figure = figures.draw("sweep", histories.make_result(swept, tuned))
    _, labels = legend_of(figure)
    assert "FedAvg, fine-tuned" in labels
    (line,) = [x for x in figure.axes[0].lines if "fine-tuned" in x.get_label()]
    wanted = tuned.metrics["accuracy"][:, -1, 0, 0].mean()
    np.testing.assert_allclose(line.get_ydata(), wanted, rtol=1e-6)


def test_fairness_has_one_point_per_setting():
    result = sweep_result()
    figure = figures.draw("fairness", result)
    (axes,) = figure.axes
    _, labels = legend_of(figure)
    flame = {f"Flame, {m}" for m in ("personal", "global", "hybrid (validation)")}
    assert set(labels) == flame | {"FedAvg, global"}
    lines = {c.get_label(): c.lines[0] for c in axes.containers}
    assert len(lines["Flame, personal"].get_xdata()) == 1  # the best one
    others = [c.lines[0] for c in axes.containers if c.get_label().startswith("_")]
    assert [len(line.get_xdata()) for line in others] == [5, 5, 5]
    assert {line.get_color() for line in others} == {drawing.GRAY}
    (x,), (y,) = lines["FedAvg, global"].get_data()
    metrics = result.groups[1].metrics
    assert y == pytest.approx(metrics["accuracy"][:, -1, 0, 0].mean(-1).mean())
    assert x == pytest.approx(metrics["loss"][:, -1, 0, 0].var(-1).mean(), rel=1e-6)


def test_no_two_algorithms_look_alike_in_the_scatter():
    """Of twelve methods three have a color for the second time."""
    spot = {"x": 0.1, "y": 0.5, "x_std": 0.0, "y_std": 0.0, "is_best": True}
    points = pd.DataFrame([spot])
    spots = tuple(
        contents.Mark(f"m{k}", f"m{k}", "personal", k, points) for k in range(12)
    )
    shown = contents.Chart(panels=(contents.Panel("", spots),), xlabel="x")
    (axes,) = clients.draw_spots(shown).axes
    marks = [bar.lines[0] for bar in axes.containers]
    looks = {(m.get_color(), m.get_marker(), m.get_fillstyle()) for m in marks}
    assert len(looks) == 12


def mixing_history(cluster=True):
    """A history whose clients 0, 2, 4, ... and 1, 3, 5, ... are two clusters."""
    record = histories.make_history(points=({"seed": 0}, {"seed": 1}), num_clients=6)
    group = np.arange(6) % 2
    weights = np.where(group[:, None] == group, 1.0, 0.25) / 4
    share = np.full((2, 3, 6), 2 / (2 + 3 * 0.25))
    share[:, 0] = np.nan  # nobody has received anything yet
    return dataclasses.replace(
        record,
        collaboration=np.stack([weights, weights]),
        own_cluster=share if cluster else None,
        cluster=np.stack([group, group]) if cluster else None,
    )


def test_collaboration_is_ordered_by_cluster():
    figure = figures.draw("collaboration", histories.make_result(mixing_history()))
    axes = figure.axes[0]
    shown = axes.images[0].get_array().filled(np.nan)
    inside = shown[:3, :3][~np.eye(3, dtype=bool)]
    assert (inside == 0.25).all() and (shown[:3, 3:] == 0.0625).all()
    assert np.isnan(np.diag(shown)).all()
    assert "73% in the own cluster" in axes.get_title()
    plain = figures.draw("collaboration", histories.make_result(mixing_history(False)))
    assert plain.axes[0].get_ylabel() == "receiver"


def test_share_of_the_own_cluster_over_rounds():
    figure = figures.draw("own_cluster", histories.make_result(mixing_history()))
    (axes,) = figure.axes
    line, chance = axes.lines
    assert line.get_ydata()[1:] == pytest.approx([8 / 11] * 2)
    assert chance.get_ydata()[0] == pytest.approx(2 / 5)  # 2 of 5 others


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("differences", histories.make_history(points=({},), models=("global",))),
        ("fairness", histories.make_history(metrics=("loss",))),
        ("training_loss", histories.make_history()),
        ("own_cluster", mixing_history(cluster=False)),
        *((n, histories.make_history()) for n in ("sweep", "grid", "collaboration")),
        *((n, reports.attacked(None, (0.0,))) for n in ("attacks", "attacks_table")),
        *((n, histories.make_history()) for n in ("attacks", "attacks_table")),
    ],
)
def test_results_without_content_have_no_figure(name, made):
    assert figures.draw(name, histories.make_result(made)) is None


@pytest.mark.parametrize(("late", "is_cut"), [(0.0, False), (0.01, True), (2.0, False)])
def test_axes_leave_first_rounds_out_only_where_they_flatten_the_rest(late, is_cut):
    made = histories.make_history()
    accuracy = np.full_like(made.metrics["accuracy"], 0.5)
    accuracy[:, 0], accuracy[:, 2] = 0.4, 0.5 + 0.2 * late
    made = histories.with_metrics(made, accuracy=accuracy)
    figure = figures.draw("learning_curves", histories.make_result(made))
    title, _ = legend_of(figure)
    assert ("outside of the axes" in title) == is_cut
    low, high = figure.axes[0].get_ylim()
    assert (low > 0.4) == is_cut and low < high
