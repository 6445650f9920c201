"""Saved results for tests of reports, made without training."""

import dataclasses
import html.parser

from experiments.report import page, sources, writing
from tests import histories

FRACTION = "federation.malicious_fraction"


def grid_result():
    """FLAME with a grid of two fields, and FedAvg, over three seeds."""
    points = tuple(
        {"seed": seed, "algorithm.lam": lam, "algorithm.kappa": kappa}
        for seed in (0, 1, 2)
        for lam in (0.1, 1.0)
        for kappa in (0.5, 2.0)
    )
    seeds = tuple({"seed": seed} for seed in (0, 1, 2))
    return histories.make_result(
        histories.make_history(points=points),
        histories.make_history(
            points=seeds, algorithm="FedAvg", models=("global",), kappa=None, rng_seed=1
        ),
    )


def attacked_result():
    """Two methods under one attack, which no field names."""
    points = tuple({"seed": s, FRACTION: f} for f in (0.0, 0.2, 0.4) for s in (0, 1))
    found = []
    for number, algorithm in enumerate(("Flame", "FedAvg")):
        made = histories.make_history(
            points=points, algorithm=algorithm, malicious=(0, 1), rng_seed=number
        )
        config = made.config | {"attack": "SignFlip"}
        found.append(dataclasses.replace(made, config=config))
    return histories.make_result(*found)


def content(tmp_path, *results):
    """What a report says of results, which are saved first."""
    return writing.content_of(loaded(tmp_path, *results))


def loaded(tmp_path, *results):
    folders = []
    for number, result in enumerate(results):
        folders.append(tmp_path / f"result-{number}")
        result.save(folders[-1])
    return sources.read(folders)


def rendered(tmp_path, *results):
    return page.render(content(tmp_path, *results))


class Elements(html.parser.HTMLParser):
    """Elements of a page, with their attributes, and its texts."""

    def __init__(self, text):
        super().__init__()
        self.found, self.texts, self._open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_data(self, data):
        self.texts.append((self._open[-1] if self._open else "", data))

    def named(self, tag):
        return [attributes for name, attributes in self.found if name == tag]
