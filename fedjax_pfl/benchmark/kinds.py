"""Kinds of methods: personal ones, global models, references, and copies of Local."""

from fedjax_pfl.benchmark import tables

__all__ = [
    "COPY",
    "GLOBAL",
    "KINDS",
    "PERSONAL",
    "REFERENCE",
    "copies",
    "of_methods",
    "plural",
]

PERSONAL, GLOBAL, REFERENCE, COPY = "personal", "global", "reference", "copy of Local"
KINDS = (PERSONAL, GLOBAL, REFERENCE, COPY)
_NOUNS = {
    PERSONAL: ("personal method", "personal methods"),
    GLOBAL: ("global model", "global models"),
    REFERENCE: ("reference", "references"),
    COPY: ("copy of Local", "copies of Local"),
}
_ALONE = "Local"
_REFERENCES = (_ALONE, "Centralized", "Majority")
_SAME = 1e-6
"""Largest difference of accuracies that still equal Local's."""


def copies(all_tasks: tables.Tables) -> dict[str, list[str]]:
    """Returns the methods that equal Local in every seed, with the data sets."""
    places: dict[str, list[str]] = {}
    for name in all_tasks.tasks:
        scores = all_tasks.of_tasks(name).scores
        values = scores.pivot(index="method", columns="seed", values="value")
        if _ALONE not in values.index:
            continue
        distance = values.sub(values.loc[_ALONE]).abs().max(axis=1, skipna=False)
        for method in distance.index[distance <= _SAME].drop(_ALONE, errors="ignore"):
            places.setdefault(str(method), []).append(name)
    return places


def of_methods(all_tasks: tables.Tables) -> dict[str, str]:
    """Returns the kind of every method."""
    places = copies(all_tasks)
    kinds = {}
    for method, rows in all_tasks.scores.groupby("method", sort=False):
        name = str(method)
        kinds[name] = PERSONAL
        if name in _REFERENCES:
            kinds[name] = REFERENCE
        # A copy equals Local on every data set of the method.
        elif set(places.get(name, ())) == set(rows["task"]):
            kinds[name] = COPY
        elif set(rows["model"]) == {"global"}:
            kinds[name] = GLOBAL
    return kinds


def plural(kind: str, count: int) -> str:
    """Returns the noun of a kind for a number of methods."""
    return _NOUNS[kind][count != 1]
