"""The card of a paper: everything of it that is not computed."""

import dataclasses
from collections.abc import Mapping, Sequence

from experiments.cards import claims as card_claims
from experiments.cards import tables
from experiments.cards.methods import Methods
from experiments.cards.runs import Side

__all__ = ["Card"]


@dataclasses.dataclass(frozen=True)
class Card:
    """Card without what is computed.

    Attributes:
      method: name of the card and of its directory of runs.
      title: heading.
      text: what the paper reports and why it is not comparable; Markdown.
      reference: what all others are compared with.
      claims: what the runs are to decide.
      figures: figures of the paper, with what each is said to show.
      reasons: why runs were not run, by a part of their names.
      printed: tables of the paper beside our runs.
      by_field: runs, by the start of their names, whose tables have one column per
        value of some fields.
      headline: the metric of the runs, in words.
      pages: further pages by name, with their titles and the starts of the names of
        the runs that they show; none for a card of one page.
    """

    method: str
    title: str
    text: str
    reference: Side
    claims: Sequence[card_claims.Claim] = ()
    figures: Sequence[card_claims.Drawing] = ()
    reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)
    printed: Sequence[tables.Printed | Methods] = ()
    by_field: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    headline: str = "accuracy"
    pages: Mapping[str, tuple[str, tuple[str, ...]]] = dataclasses.field(
        default_factory=dict
    )
