"""`fp.plot`, and the y-axes that curves can have."""

import dataclasses
import sys

import numpy as np
import pytest
from matplotlib import pyplot

import fedjax_pfl as fp
from fedjax_pfl import figures
from fedjax_pfl.figures import curves, drawing, lines
from fedjax_pfl.results import selection
from tests import histories
from tests.figures import test_figures


@pytest.fixture(autouse=True)
def closed():
    """Closes what pyplot keeps."""
    yield
    pyplot.close("all")


@pytest.mark.parametrize(
    "kind, xlabel, panels",
    [
        ("curves", "round", 1),
        ("clients", "accuracy of each client", 1),
        ("fairness", "variance of the loss", 1),
        ("grid", "algorithm.lam", 3),  # personal, global, hybrid
    ],
)
def test_every_kind_is_drawn_and_known_to_pyplot(kind, xlabel, panels):
    axes = fp.plot(test_figures.sweep_result(), kind=kind)
    assert len(axes) == panels
    assert axes[0].get_xlabel().startswith(xlabel)
    assert axes[0].figure is pyplot.gcf()


def test_a_grid_of_one_field_is_a_line_against_it():
    points = tuple({"seed": s, "algorithm.lam": x} for x in (0.1, 1.0) for s in (0, 1))
    result = histories.make_result(histories.make_history(points=points))
    labels = [axes.get_xlabel() for axes in fp.plot(result, "grid")]
    assert "algorithm.lam" in labels


def test_what_cannot_be_plotted_is_one_sentence():
    result = histories.make_result(histories.make_history(metrics=("loss",)))
    with pytest.raises(fp.InputError, match="did you mean 'curves'"):
        fp.plot(result, "curve")
    with pytest.raises(fp.InputError, match="kind='grid': no numeric field was swept"):
        fp.plot(result, "grid")
    with pytest.raises(fp.InputError, match="kind='fairness': there is no finite acc"):
        fp.plot(result, "fairness")
    with pytest.raises(fp.InputError, match="Expected a Result to plot, got DataFrame"):
        fp.plot(result.summary())


class WithoutMatplotlib:
    """A finder of modules where matplotlib is not installed."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name=name)


def test_without_matplotlib_the_line_that_installs_it_is_named(monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == "matplotlib":
            monkeypatch.delitem(sys.modules, name)
        elif name.startswith("fedjax_pfl.figures."):
            monkeypatch.delitem(sys.modules, name)
            monkeypatch.delattr(figures, name.rpartition(".")[2])
    monkeypatch.setattr(sys, "meta_path", [WithoutMatplotlib, *sys.meta_path])
    result = histories.make_result(histories.make_history())
    with pytest.raises(fp.InputError, match=r'pip install "fedjax_pfl\[experiments\]"'):
        fp.plot(result)


def flat_after_the_start(metric, start):
    """Learning curves between 0.5 and 0.6, but for the first evaluation."""
    made = histories.make_history(metrics=(metric,))
    values = made.metrics[metric] / 10 + 0.5
    values[:, 0] = start
    made = histories.with_metrics(made, **{metric: values})
    shown = lines.learning_curves(histories.make_result(made))
    assert shown is not None
    return shown


def test_curves_have_the_axes_that_suit_them():
    assert list(curves.views(flat_after_the_start("accuracy", 0.55))) == ["full"]
    views = curves.views(flat_after_the_start("accuracy", 0.1))
    assert list(views) == ["zoomed", "full"]
    limits = [curves.draw(view).axes[0].get_ylim()[0] for view in views.values()]
    assert limits[0] > 0.4 > 0.1 > limits[1]
    views = curves.views(flat_after_the_start("loss", 5.0))
    assert list(views) == ["zoomed", "full", "logarithmic"]
    assert curves.draw(views["logarithmic"]).axes[0].get_yscale() == "log"
    assert "logarithmic" not in curves.views(flat_after_the_start("loss", 0.0))
    training = dataclasses.replace(flat_after_the_start("loss", 5.0), log_y=True)
    assert list(curves.views(training))[0] == "logarithmic"


def test_the_best_setting_has_a_color_and_the_others_are_gray():
    result = test_figures.sweep_result()
    (axes,) = fp.plot(result, "fairness")
    colored = {
        tuple(np.ravel(c.lines[0].get_data()))
        for c in axes.containers
        if c.lines[0].get_color() != drawing.GRAY
    }
    best = selection.best_settings(result)
    best = best[best["algorithm"] == "Flame"].iloc[0]
    table = result.table().query("when == 'last' and data == 'own test'")
    table = table[table["algorithm.lam"] == best["algorithm.lam"]]
    table = table[table["algorithm.kappa"] == best["algorithm.kappa"]]
    mean = table.query(
        "stat == 'mean' and metric == 'accuracy' and model == 'personal'"
    )
    assert any(y == pytest.approx(mean["value"].mean()) for _, y in colored)
    (legend,) = axes.figure.legends
    assert "in color the best on validation data" in legend.get_title().get_text()


def test_without_validation_data_all_settings_have_colors():
    made = test_figures.sweep_result().groups[0]
    metrics = {name: values[:, :, :, :1] for name, values in made.metrics.items()}
    made = dataclasses.replace(
        made, data=("test",), metrics=metrics, evaluated=made.evaluated[:, :, :1]
    )
    (axes,) = fp.plot(histories.make_result(made), "fairness")
    assert all(c.lines[0].get_color() != drawing.GRAY for c in axes.containers)
