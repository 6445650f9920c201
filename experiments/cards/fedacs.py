"""Card of FedACS: its tables, its claims, and our claims about it.

The numbers in `printed/fedacs_tables.csv` are printed in Chen, Li, Shen,
"Personalized Federated Learning with Attention-based Client Selection".
"""

import dataclasses
from collections.abc import Iterator, Mapping

import pandas as pd

from experiments.cards import claims, headlines, markdown, pages, tables, verdicts
from experiments.cards.runs import Run, Side

__all__ = ["CARD", "Concentrations"]

# As in the paper: the cosines of updates make another method.
_FEDACS = Side("FedACS", "personal", {"algorithm.similarity": "parameters"})
_BY_UPDATES = Side("FedACS", "personal", {"algorithm.similarity": "update"})
_OTHERS = {
    "local training": Side("Local", "personal"),
    "FedAvg": Side("FedAvg", "global"),
    "Ditto": Side("Ditto", "personal"),
    "Per-FedAvg": Side("PerFedAvg", "personal"),
    "pFedMe": Side("PFedMe", "personal"),
    "APFL": Side("APFL", "personal"),
    "FedAMP": Side("FedAMP", "personal"),
}
_FIELD = "federation.partition.concentration"
_DATA = ("fmnist", "cifar10")


@dataclasses.dataclass(frozen=True)
class Concentrations(tables.Table):
    """Table of accuracies by data set and concentration of the Dirichlet draw."""

    note = (
        "Percent, mean (± standard deviation) over seeds: the paper's → ours, with few"
        " training examples per client."
    )

    def body(
        self,
        runs: tables.Runs,
        rule: verdicts.Rule,
        reasons: Mapping[str, str],
    ) -> Iterator[str]:
        """Yields a line per printed number."""
        rows = []
        for numbers in self._printed.itertuples(index=False):
            values = self._values(numbers, runs)
            mean, std = 100 * numbers.mean, 100 * numbers.std
            paper_text = f"{mean:.2f}" if pd.isna(std) else f"{mean:.2f} ± {std:.2f}"
            our_text = "not run" if values is None else markdown.mean_and_std(values)
            label = f"{numbers.algorithm} {numbers.model}"
            where = f"{numbers.concentration:g}"
            rows.append((numbers.run, where, label, f"{paper_text} → {our_text}"))
        header = ("run", "concentration", "model", "accuracy")
        yield from ("", *markdown.table(header, rows))

    def cells(self, runs: tables.Runs) -> Iterator[tables.Cell]:
        """Yields a cell per printed number."""
        for numbers in self._printed.itertuples(index=False):
            run, values = runs.get(numbers.run), self._values(numbers, runs)
            yield self.cell(numbers.run, run, values)

    @property
    def _printed(self) -> pd.DataFrame:
        """The paper's numbers."""
        printed = pd.read_csv(tables.FOLDER / "fedacs_tables.csv")
        return printed[printed["table"] == self.title]

    def _values(self, numbers, runs: Mapping[str, Run]) -> pd.Series | None:
        """Returns our values by seed; None if they were not run."""
        if numbers.run not in runs:
            return None
        side = Side(numbers.algorithm, numbers.model)
        if numbers.algorithm == "FedACS":
            side = _FEDACS
        where = {_FIELD: numbers.concentration}
        parts = [part for _, part in runs[numbers.run].environments(where)]
        return parts[0].values(side) if parts else None


def _claims(data: str) -> list[claims.Claim]:
    """Returns the paper's claims on one data set; runs have the names of presets."""
    wins = [(f"FedACS is better than {n}", _FEDACS, s) for n, s in _OTHERS.items()]
    per_fedavg, pfedme, apfl = (_OTHERS[n] for n in ("Per-FedAvg", "pFedMe", "APFL"))
    per_fedavg_pairs = [("Per-FedAvg is better than pFedMe", per_fedavg, pfedme)]
    apfl_pairs = [("APFL is better than FedACS", apfl, _FEDACS)]
    local, fedavg = _OTHERS["local training"], _OTHERS["FedAvg"]
    local_pairs = [("local training is better than FedAvg", local, fedavg)]
    fedavg_pairs = [("FedACS is better than FedAvg", _FEDACS, _OTHERS["FedAvg"])]
    words = "FedACS by cosines of updates is better than by parameters"
    by_setting = (
        ("small", "few samples", wins),
        ("many", "many clients", wins),
        ("small", "few samples", per_fedavg_pairs),
        ("many", "many clients", per_fedavg_pairs),
        ("pat2", "two classes per client", apfl_pairs),
        ("dirichlet", "all samples", fedavg_pairs),
        *(
            (setting, words, local_pairs)
            for setting, words in (
                ("small", "few samples"),
                ("many", "many clients"),
                ("dirichlet", "all samples"),
            )
        ),
        ("small", "ours, few samples", [(words, _BY_UPDATES, _FEDACS)]),
    )
    return [
        claim
        for setting, subject, pairs in by_setting
        for claim in claims.of(f"fedacs_{data}_{setting}", subject, pairs)
    ]


_CLAIMS = [claim for data in _DATA for claim in _claims(data)]


def _claims_about(settings: tuple[str, ...], words: str) -> list[claims.Claim]:
    """Returns the claims about some settings with these words in their texts."""
    ends = tuple(f"_{setting}" for setting in settings)
    return [c for c in _CLAIMS if c.run.endswith(ends) and words in c.text]


_HEADLINES = headlines.of(
    "fedacs",
    {
        "few_examples": _claims_about(("small", "many"), "FedACS is better than"),
        "many_examples": _claims_about(("dirichlet",), "FedACS is better than FedAvg"),
        "two_classes": _claims_about(("pat2",), "APFL is better than FedACS"),
        "per_fedavg": _claims_about(
            ("small", "many"), "Per-FedAvg is better than pFedMe"
        ),
        "local": _claims_about(
            ("small", "many", "dirichlet"), "local training is better than"
        ),
    },
)

CARD = pages.Card(
    method="fedacs",
    title="FedACS",
    text=pages.text_of("fedacs"),
    reference=_OTHERS["local training"],
    rule=verdicts.Rule(delta=0.5),
    headlines=_HEADLINES,
    sides={
        "FedACS": _FEDACS,
        "FedACS by updates": _BY_UPDATES,
        "FedAvg personal": Side("FedAvg", "fine-tuned"),
        **_OTHERS,
    },
    settings=[f"fedacs_{data}_small" for data in _DATA],
    claims=_CLAIMS,
    printed=(Concentrations("Table 1"), Concentrations("Table 2")),
)
