"""Answer to the question of a comparison: alone, one model for all, or one's own?"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_pfl.results import metrics, shares

__all__ = ["answer"]

_OWN = "models of their own that learn from others"
_REFERENCES = shares.REFERENCES
_NAMES = {"FedAvg": "one model", "Local": "training alone"}
_NOT_OWN = ("Local", "Majority")  # learn from no others
_FEW = 0.05  # more or fewer steps, as a share, that a reader need not know of


def answer(rows: Sequence[Any], metric: str, steps: Mapping[str, float]) -> str:
    """Answers in a sentence whether models of their own that learn help the clients."""
    places = {(row.algorithm, row.model): k for k, row in enumerate(rows)}
    best = next(filter(_is_own, rows), None)
    if best is None or math.isnan(best.value) or not places.keys() >= {*_REFERENCES}:
        return ""
    gaps = {pair[0]: best.differences[places[pair]] for pair in _REFERENCES}
    verdicts = {gap.verdict for gap in gaps.values()}
    texts = {name: _amount(abs(gap.mean), metric) for name, gap in gaps.items()}
    if verdicts == {"better"}:
        return f"Yes: {_OWN} gain {_over(texts)}{_price(best, rows, steps)}."
    ahead = [name for name, gap in gaps.items() if gap.verdict == "worse"]
    if ahead:
        leads = " and ".join(f"{_NAMES[n]} is {texts[n]} ahead of" for n in ahead)
        return f"No: {leads} {_OWN}."
    gained = {n: texts[n] for n, gap in gaps.items() if gap.verdict == "better"}
    unclear = " or ".join(_NAMES[name] for name in gaps if name not in gained)
    if gained:
        return f"Open: {_OWN} gain {_over(gained)}, but not clearly over {unclear}."
    return f"Open: {_OWN} are not clearly ahead of {unclear}."


def _is_own(row: Any) -> bool:
    """Returns whether a row is of personal models that learn from others."""
    return row.model != "global" and row.algorithm not in _NOT_OWN


def _amount(difference: float, metric: str) -> str:
    """Formats a difference: of shares in points."""
    if metric in metrics.SHARES:
        return f"{100 * difference:.1f} points"
    return f"{difference:.3g} of {metric.replace('_', ' ')}"


def _over(texts: Mapping[str, str]) -> str:
    """Formats gains over references, equal ones once."""
    reference, *references = texts
    text = f"{texts[reference]} over {_NAMES[reference]}"
    for name in references:
        amount = "" if texts[name] == texts[reference] else f"{texts[name]} "
        text += f" and {amount}over {_NAMES[name]}"
    return text


def _price(best: Any, rows: Sequence[Any], steps: Mapping[str, float]) -> str:
    """Returns a sentence on losing clients, steps, and the leading method."""
    lost = {name: f"{100 * share:.0f} %" for name, share in best.worse.items()}
    text = ""
    if len(set(lost.values())) == 1:
        text += f"; {next(iter(lost.values()))} of clients lose"
    elif lost:
        losers = [f"{share} to {_NAMES[name]}" for name, share in lost.items()]
        text += f"; clients that lose: {', '.join(losers)}"
    ratio = steps.get(best.algorithm, 1.0) / steps.get("FedAvg", 1.0)
    if abs(ratio - 1) > _FEW:
        text += f"; {best.algorithm} takes {ratio:.2g} times the steps of FedAvg"
    rivals = (row for row in rows if _is_own(row) and row.algorithm != best.algorithm)
    rival = next(rivals, None)
    if rival is None:
        return text
    if best.differences[rows.index(rival)].verdict == "better":
        return f"{text}; {best.setting} gives the most"
    return f"{text}; which method gives it is open"
