"""Card of FedACS: its claims, and ours about it.

The numbers are those printed in Chen, Li, Shen, "Personalized Federated Learning with
Attention-based Client Selection".
"""

from experiments.cards import claims, pages
from experiments.cards.runs import Side

__all__ = ["CARD"]

# As in the paper; with the cosines of updates it is another method.
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


def _claims(data: str) -> list[claims.Claim]:
    """Returns the paper's claims on one data set; runs have the names of presets."""
    best = [(f"FedACS is better than {n}", _FEDACS, s) for n, s in _OTHERS.items()]
    per_fedavg, pfedme, apfl = (_OTHERS[n] for n in ("Per-FedAvg", "pFedMe", "APFL"))
    above = [("Per-FedAvg is better than pFedMe", per_fedavg, pfedme)]
    worse = [("APFL is better than FedACS", apfl, _FEDACS)]
    close = [("FedACS is better than FedAvg", _FEDACS, _OTHERS["FedAvg"])]
    words = "FedACS by cosines of updates is better than by parameters"
    by_setting = (
        ("small", "few samples", best),
        ("many", "many clients", best),
        ("small", "few samples", above),
        ("many", "many clients", above),
        ("pat2", "two classes per client", worse),
        ("dirichlet", "all samples", close),
        ("small", "ours, few samples", [(words, _BY_UPDATES, _FEDACS)]),
    )
    return [
        claim
        for setting, subject, pairs in by_setting
        for claim in claims.of(f"fedacs_{data}_{setting}", subject, pairs)
    ]


CARD = pages.Card(
    method="fedacs",
    title="FedACS",
    text=pages.text_of("fedacs"),
    reference=Side("Local", "personal"),
    claims=(*_claims("fmnist"), *_claims("cifar10")),
)
