"""Names of others in figures: every figure shows them as they are."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from fedjax_pfl import figures
from fedjax_pfl.benchmark import differences, pictures, ranking
from fedjax_pfl.core import texts
from fedjax_pfl.figures import drawing, learned, partitions
from fedjax_pfl.report import svg
from fedjax_pfl.results import paired
from tests import histories
from tests.figures import test_figures, test_figures_attacks
from tests.report import reports

NAME = "$\\frac$ \x1b[31m [b]<i>"  # no formula, no color, no bold
SHOWN = "$\\frac$ \\x1b[31m [b]<i>"


def renamed(result):
    """The result with the name in the place of all names."""

    def of(group):
        words = ("algorithm", "attack", "federation.dataset", "model")
        names = {n: NAME for n in words if group.config.get(n)}
        names["algorithm"] += group.config["algorithm"]
        points = tuple(
            {n.replace("lam", NAME): v for n, v in point.items()}
            for point in group.points
        )
        models = (f"personal {NAME}", *group.models[1:])
        config = group.config | names
        return dataclasses.replace(group, config=config, points=points, models=models)

    return histories.make_result(*map(of, result.groups))


def of_catalog():
    """Figures of all kinds that results without training have, with their names."""
    made = (
        reports.grid_result(),
        histories.make_result(test_figures.mixing_history()),
        test_figures_attacks.many_fractions(),
        histories.make_result(
            reports.attacked(None, (0.0,)), reports.attacked("SignFlip", (0.2,))
        ),
    )
    for result in map(renamed, made):
        for name in figures.catalog():
            figure = figures.draw(name, result)
            if figure is not None:
                yield name, figure


def others():
    """Figures that need trainings, of what they show."""
    steps = pd.DataFrame({"round": [0, 1], "algorithm": NAME, "objective": 1.0})
    steps = steps.assign(**{NAME: [1.0, 2.0], f"start {NAME}": 1.0})
    yield "learned", learned.draw(learned.Paths(steps, (NAME,), NAME))
    counts = np.ones((2, 2), int)
    held = partitions.Holdings(NAME, counts, counts.sum(1), (NAME[:12], "a"))
    yield "partition", partitions.draw([held])
    place = ranking.Place(NAME, pd.Series([0.1, 0.2]), 1, NAME)
    gaps = {NAME: differences.Gap(paired.of_mean(100 * place.values), None)}
    yield "gaps", pictures.of_gaps([place], gaps, NAME[1:], "accuracy")
    ranks = ranking.Ranks(pd.Series({NAME: 1.0, "a": 2.0}), [NAME], 0.5, 0.5)
    yield "ranks", pictures.of_ranks(ranks)


def test_every_figure_shows_names_as_they_are():
    """A formula would be drawn as one, or be an error; SVG knows no control."""
    drawn = dict([*of_catalog(), *others()])
    for name, figure in drawn.items():
        svg.inline(figure, name, name)
        words = [t.get_text() for t in figure.findobj(Text) if "frac" in t.get_text()]
        assert words, name
        assert all(text.count("$") == text.count("\\$") for text in words)
    kinds = figures.catalog()
    assert {kinds[n][1] for n in drawn.keys() & kinds} == {k for _, k in kinds.values()}


def test_matplotlib_shows_what_the_name_is():
    assert Text(text=drawing.text(NAME))._preprocess_math(drawing.text(NAME)) == (
        SHOWN,
        False,
    )


@pytest.mark.parametrize("text", ["Ünicode ✓ 名\tx\ny", "\u200d", "a b"])
def test_other_characters_stay(text):
    assert texts.printable(text) == drawing.text(text) == text
