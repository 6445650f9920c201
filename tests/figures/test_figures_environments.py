"""Figures of runs with several environments: small multiples."""

import dataclasses

import numpy as np
import pytest

from fedjax_pfl import figures
from fedjax_pfl.figures import collaboration, drawing, lines, partitions
from tests import histories
from tests.figures import test_figures
from tests.report import reports

CONCENTRATION = "federation.partition.concentration"


def record(algorithm, concentrations, rng_seed=0, **fields):
    """A group of some partitions, two seeds each."""
    points = tuple(
        {"seed": seed, CONCENTRATION: c} | fields
        for c in concentrations
        for seed in (0, 1)
    )
    return histories.make_history(
        points=points, algorithm=algorithm, models=("global",), rng_seed=rng_seed
    )


def several(*concentrations):
    """Two methods; only one was trained everywhere."""
    return histories.make_result(
        record("Flame", concentrations), record("Ditto", concentrations[1:], 1)
    )


def test_who_holds_which_data_is_shown_of_every_environment():
    """Of its first seed; not again for what has the same clients."""
    result = several(0.1, 1.0)
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 9, size=(4, *result.groups[0].label_counts.shape[1:]))
    held = {"label_counts": counts, "num_train": counts.sum(axis=-1)}
    first = dataclasses.replace(result.groups[0], **held)
    second = dataclasses.replace(
        result.groups[1], **{name: value[2:] for name, value in held.items()}
    )
    result = histories.make_result(first, second)
    found = partitions.holdings(result)
    assert [shown.title for shown in found] == [
        "concentration = 0.1",
        "concentration = 1",
    ]
    for shown, point in zip(found, (0, 2), strict=True):
        np.testing.assert_array_equal(shown.sizes, held["num_train"][point])
        np.testing.assert_array_equal(shown.label_counts, counts[point])
    figure = figures.draw("partition", result)
    assert len(figure.axes) == 4 and figure.get_size_inches()[0] == 12
    same = {name: np.repeat(value[:1], 4, axis=0) for name, value in held.items()}
    (alone,) = partitions.holdings(
        histories.make_result(dataclasses.replace(first, **same))
    )
    assert "concentration" not in alone.title


def titles(figure):
    return [axes.get_title() for axes in figure.axes]


def named(axes, name):
    (line,) = [x for x in axes.lines if x.get_label() == name]
    return line


def test_every_environment_has_a_panel_where_methods_look_the_same():
    result = several(0.1, 1.0)
    figure = figures.draw("learning_curves", result)
    assert titles(figure) == [
        "concentration\u00a0=\u00a00.1",
        "concentration\u00a0=\u00a01",
    ]
    first, second = figure.axes
    (alone,) = first.lines
    both = [named(second, f"{name}, global") for name in ("Flame", "Ditto")]
    assert alone.get_color() == both[0].get_color() != both[1].get_color()
    assert alone.get_linestyle() == both[0].get_linestyle() == "--"
    assert (
        first.get_ylim() == second.get_ylim() and first.get_xlim() == second.get_xlim()
    )
    _, labels = test_figures.legend_of(figure)
    assert labels == ["Flame, global", "Ditto, global"]
    accuracy = result.groups[0].metrics["accuracy"][2:, :, 0, 0]
    np.testing.assert_allclose(
        both[0].get_ydata(), accuracy.mean(axis=(0, 2)), rtol=1e-6
    )


def test_what_is_not_shown_is_said():
    result = several(*range(1, drawing.MAX_PANELS + 2))
    figure = figures.draw("learning_curves", result)
    assert len(figure.axes) == drawing.MAX_PANELS
    title, _ = test_figures.legend_of(figure)
    assert "the first 12 of 13 panels" in title
    (section, *_) = reports.content(result).sections
    assert section.caption.count("This figure shows the first 12 of 13 panels.") == 1
    methods = [record(f"Method{k}", (0.1, 1.0), k) for k in range(19)]
    shown = lines.learning_curves(histories.make_result(*methods))
    assert [len(panel.marks) for panel in shown.panels] == [drawing.MAX_LINES] * 2
    assert shown.left_out == "the first 18 of 19 lines"


def test_lines_of_eighteen_methods_can_be_told_apart():
    methods = [record(f"Method{k}", (0.1,), k) for k in range(18)]
    result = histories.make_result(*methods)
    (axes,) = figures.draw("learning_curves", result).axes
    looks = {(x.get_color(), x.get_marker(), x.get_fillstyle()) for x in axes.lines}
    assert len(looks) == 18


def test_a_panel_none_of_whose_lines_is_shown_is_left_out():
    """The only fine-tuned model is of the last of too many methods."""
    concentrations = (0.1, 1.0)
    made = [record(f"Method{k}", concentrations, k) for k in range(18)]
    last = record("FedAvg", concentrations, 18)
    made.append(dataclasses.replace(last, models=("fine-tuned",)))
    result = histories.make_result(*made)
    (panel,) = lines.swept(result).panels
    assert panel.title == "global" and len(panel.marks) == 18
    assert len(figures.draw("sweep", result).axes) == 1


@pytest.mark.parametrize("better", [(1.0, 1.0), (1.0, 3.0)])
def test_a_setting_is_named_where_it_is_the_best_in_all_environments(better):
    """In the other case the method has one name, with one color."""
    made = [record("Flame", (0.1, 1.0), **{"algorithm.lam": lam}) for lam in (1.0, 3.0)]
    for lam, group in zip((1.0, 3.0), made, strict=True):
        for k, best in enumerate(better):  # rows 0 and 1 are concentration 0.1
            group.metrics["accuracy"][2 * k : 2 * k + 2] = 0.5 + 0.1 * (lam == best)
    shown = lines.learning_curves(histories.make_result(*made))
    names = [[line.setting for line in panel.marks] for panel in shown.panels]
    expected = "Flame (lam = 1)" if better[0] == better[1] else "Flame"
    assert names == [[expected], [expected]]
    values = [line.points["y"].to_numpy() for line in shown.marks]
    assert all(value == pytest.approx(0.6) for value in values)


def test_boxes_of_a_method_are_in_the_same_row_everywhere():
    figure = figures.draw("clients", several(0.1, 1.0))
    first, _ = figure.axes
    dots = [[dots.get_offsets()[:, 1] for dots in a.collections] for a in figure.axes]
    rows = [[round(heights.mean()) for heights in boxes] for boxes in dots]
    assert rows == [[0], [0, 1]]
    labels = [text.get_text() for text in first.get_yticklabels()]
    assert labels == ["global\nFlame", "global\nDitto"]


def test_attacks_and_swept_fields_have_panels_for_other_environments():
    made = [
        reports.attacked("SignFlip", (0.0, 0.2), **{CONCENTRATION: c})
        for c in (0.1, 1.0)
    ]
    figure = figures.draw("attacks", histories.make_result(*made))
    shown = [title.replace("\u00a0", " ").split() for title in titles(figure)]
    assert shown == [
        ["SignFlip,", "concentration", "=", value] for value in ("0.1", "1")
    ]
    swept = lines.swept(
        histories.make_result(
            record("Flame", (0.1, 1.0, 10.0), **{"federation.num_clients": 5}),
            record("Flame", (0.1, 1.0, 10.0), 1, **{"federation.num_clients": 9}),
        )
    )
    assert [p.title for p in swept.panels] == [
        "global, num_clients = 5",
        "global, num_clients = 9",
    ]
    assert [line.setting for p in swept.panels for line in p.marks] == ["Flame"] * 2
    assert swept.xlabel == CONCENTRATION


def test_equal_weights_are_those_of_the_panels_own_clusters():
    """Two clusters of three, then one client alone."""
    made = test_figures.mixing_history()
    alone = dataclasses.replace(
        made,
        cluster=np.array([[0, 1, 1, 1, 1, 1]] * 2),
        config=made.config | {CONCENTRATION: 0.1},
    )
    made = dataclasses.replace(made, config=made.config | {CONCENTRATION: 1.0})
    shown = collaboration.shares(histories.make_result(made, alone))
    levels = [panel.marks[-1].points["y"][0] for panel in shown.panels]
    assert levels == pytest.approx([2 / 5, (0 + 5 * 4 / 5) / 6])
