"""Saved results for tests of reports, made without training."""

import functools
import html.parser

from fedjax_pfl.report import sources, writing
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
        options = {"rng_seed": number, "config": {"attack": "SignFlip"}}
        options |= {"algorithm": algorithm, "malicious": (0, 1)}
        found.append(histories.make_history(points=points, **options))
    return histories.make_result(*found)


def content(*results):
    """What a report says of results."""
    found = [sources.Source("a", r.provenance, None, r.groups) for r in results]
    loaded = sources.Loaded(sources.merged(results), tuple(found), ())
    return writing.content_of(loaded)


@functools.cache
def grid_content():
    """What a report says of `grid_result`."""
    return content(grid_result())


def saved(folder, *results):
    """Saves results into directories, whose paths it returns."""
    folders = [folder / f"result-{number}" for number in range(len(results))]
    for place, result in zip(folders, results, strict=True):
        result.save(place)
    return folders


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

    def with_attribute(self, name):
        return [attributes for _, attributes in self.found if name in attributes]

    def titles(self):
        return [text for tag, text in self.texts if tag == "title"]

    def named(self, tag):
        return [attributes for name, attributes in self.found if name == tag]
