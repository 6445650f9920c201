"""Saved results for tests of reports, made without training."""

import functools
import html.parser

from fedjax_pfl.report import page, sources, writing
from tests import histories

FRACTION = "federation.malicious_fraction"


@functools.cache
def grid_result(lams=(0.1, 1.0)):
    """FLAME with a grid of two fields, and FedAvg, over three seeds."""
    points = tuple(
        {"seed": seed, "algorithm.lam": lam, "algorithm.kappa": kappa}
        for seed in (0, 1, 2)
        for lam in lams
        for kappa in (0.5, 2.0)
    )
    seeds = tuple({"seed": seed} for seed in (0, 1, 2))
    return histories.make_result(
        histories.make_history(points=points),
        histories.make_history(
            points=seeds, algorithm="FedAvg", models=("global",), kappa=None, rng_seed=1
        ),
    )


def attacked(attack, fractions, algorithm="Flame", poisoning=None, **changes):
    """A group under attack, two seeds of each fraction of malicious clients."""
    config = {"attack": attack, "federation.label_poisoning": poisoning} | changes
    return histories.make_history(
        points=tuple({"seed": s, FRACTION: f} for f in fractions for s in (0, 1)),
        algorithm=algorithm,
        malicious=(0, 1) if any(fractions) else (),
        config=config,
    )


def content(*results):
    """What a report says of results."""
    found = [sources.Source("a", r.provenance, None, r.groups) for r in results]
    loaded = sources.Loaded(sources.merged(results), tuple(found), ())
    return writing.content_of(loaded)


@functools.cache
def grid_content():
    """What a report says of `grid_result`."""
    return content(grid_result())


@functools.cache
def grid_page():
    """The page of `grid_result`."""
    return page.render(grid_content())


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
