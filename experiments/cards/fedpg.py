"""Card of FedPG: its tables, its figures and its claims.

The numbers in `printed/fedpg_tables.csv` are printed in the supplement of
"Preserving Global Performance in Personalized Federated Learning", anonymous ICCV
submission 6989.
"""

import itertools
from collections.abc import Mapping

from experiments.cards import claims, headlines, methods, pages, verdicts
from experiments.cards.runs import DATA, WIDER, Side
from experiments.presets import fedpg as presets

__all__ = ["CARD"]

_OTHER_DATA, _ALL_DATA = WIDER
_MEASURES = (
    methods.Measure("L-acc", "L", "personal", DATA[0]),
    methods.Measure("S-acc", "S", "personal", _OTHER_DATA),
    methods.Measure("G-acc", "G", "personal", _ALL_DATA),
    methods.Measure("GM", "GM", "global", _ALL_DATA),
)
_GAMMAS = (0.0, 0.3, 0.6, 1.0)
_SETTINGS = {
    gamma: {"algorithm.gamma": gamma, "algorithm.search": None} for gamma in _GAMMAS
}
_SEARCH = {"algorithm.gamma": 0.0, "algorithm.search": "Armijo"}
_MEDIAN = {"algorithm.scale": "median"}
_METHODS = (
    methods.Method("Local", "Local"),
    methods.Method("FedAvg", "FedAvg", why="not known: their settings give ours"),
    methods.Method("FedProx", "FedProx", why="theirs: one step per round"),
    methods.Method("APFL", "APFL", why="theirs starts at alpha = 0.1, ours at 0.5"),
    methods.Method("pFedMe", "PFedMe", why="theirs: one step per round"),
    methods.Method("Ditto", "Ditto", why="theirs: no model of its own"),
    methods.Method("FedAMP", "FedAMP", why="theirs mixes nothing"),
    methods.Method("FedFomo", "FedFomo", why="theirs: a tenth of the rounds"),
    methods.Method("FedRep", "FedRep", why="theirs: the head is one bias"),
    methods.Method("FedROD", "FedROD", why="theirs: of the head only the bias"),
    methods.Method("SplitGP", "SplitGP", why="theirs: two whole networks"),
    methods.Method("FedMGDA+", "FedMGDA", why="theirs: server step 0.1 or less"),
    methods.Method(
        "FedPG",
        "FedPG",
        _SETTINGS[0.0],
        by_run={"fedpg_fmnist_a1": _MEDIAN, "fedpg_fmnist_a2": _MEDIAN},
    ),
    methods.Method("S-FedPG", "FedPG", _SEARCH),
    *(
        methods.Method(f"FedPG γ={gamma}", "FedPG", _SETTINGS[gamma])
        for gamma in _GAMMAS[1:]
    ),
)


def _fedpg(
    model: str, where: Mapping[str, object] = _SETTINGS[0.0], data: str = _ALL_DATA
) -> Side:
    """Returns FedPG with some values of its fields."""
    return Side("FedPG", model, where, data)


def _rival(algorithm: str, model: str = "global") -> Side:
    """Returns a baseline on the data of all clients."""
    return Side(algorithm, model, data=_ALL_DATA)


def _table_claims(run: str, subject: str) -> list[claims.Claim]:
    """Returns the claims of the tables that one run decides."""
    fedavg, fedavg_personal = _rival("FedAvg"), _rival("FedAvg", "personal")
    global_side, personal_side = _fedpg("global"), _fedpg("personal", data=DATA[0])
    pairs = [
        ("FedPG's GM is better than FedAvg's", global_side, fedavg),
        ("FedPG's GM is better than FedMGDA+'s", global_side, _rival("FedMGDA")),
        (
            "FedAvg's GM is better on everybody's data than its P-models",
            fedavg,
            fedavg_personal,
        ),
        ("FedPG's G-acc is better than FedAvg's", _fedpg("personal"), fedavg_personal),
        ("FedPG's L-acc is better than its GM", personal_side, global_side),
        ("S-FedPG's GM is better than FedPG's", _fedpg("global", _SEARCH), global_side),
    ]
    for low, high in itertools.pairwise(_GAMMAS):
        for text, data, better, worse in (
            ("L-acc rises", DATA[0], high, low),
            ("G-acc falls", _ALL_DATA, low, high),
        ):
            sides = (_fedpg("personal", _SETTINGS[g], data) for g in (better, worse))
            pairs.append((f"{text} from gamma {low} to {high}", *sides))
    return claims.of(run, subject, pairs)


def _ablation_claims(run: str, subject: str) -> list[claims.Claim]:
    """Returns the claims of the unchanged FedPG against one change each."""
    plain = presets.fedpg()
    fields = {f"algorithm.{n}": getattr(plain, n) for c in presets.CHANGES for n in c}
    changes = {
        "without history": {"algorithm.history": "none"},
        "with the last round's history only": {"algorithm.history": "last_round"},
        "with raw gradients in the fairness row": {"algorithm.fair_from": "raw"},
        "with a program per layer": {"algorithm.layerwise": True},
        "with exact gradients": {"algorithm.gradient": "exact"},
    }
    base = _fedpg("global", fields)
    pairs = [
        (f"FedPG's GM is better than {text}", base, _fedpg("global", fields | change))
        for text, change in changes.items()
    ]
    fair, unfair = (
        _fedpg("global", fields | {"algorithm.fair_row": is_fair}, DATA[0])
        for is_fair in (True, False)
    )
    text = "the fairness row makes the angle of GM's accuracies smaller"
    return [
        *claims.of(run, subject, pairs),
        *claims.of(run, subject, [(text, fair, unfair)], measure="angle"),
    ]


_NAMES = {"fmnist": "FMNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
_TABLES = {  # runs with their headings
    "Table 1": {f"fedpg_{data}_10": name for data, name in _NAMES.items()},
    "Table 2": {f"fedpg_cifar10_{n}": f"{n} % online" for n in (10, 50, 100)},
    "Table 3": {
        "fedpg_fmnist_10": "clean",
        "fedpg_fmnist_a1": "A1, noise",
        "fedpg_fmnist_a2": "A2, 100 times the update",
    },
}


def _attack_claims(run: str, subject: str) -> list[claims.Claim]:
    """Returns the claims of Table 3 on an attack."""
    median = _fedpg("global", _MEDIAN)
    mean = _fedpg("global", {"algorithm.scale": "mean"})
    baselines = {"FedAvg": "FedAvg", "FedMGDA+": "FedMGDA", "Ditto": "Ditto"}
    pairs = [
        (f"FedPG's GM is better than {name}'s", median, _rival(algorithm))
        for name, algorithm in baselines.items()
    ]
    scale_pairs = [("the median scale is better than the mean", median, mean)]
    return [
        *claims.of(run, subject, pairs),
        *claims.of(run, f"ours, {subject}", scale_pairs),
    ]


def _figures() -> list[claims.Drawing]:
    """Returns the figures; their claims: more than one doubling does not help."""
    one, five = (
        _fedpg("global", {"algorithm.search.doublings": count}) for count in (1, 5)
    )
    figures = []
    for data, name in _NAMES.items():
        run, text = f"fedpg_steps_{data}", f"{name}: S-acc by s, everybody online"
        better = claims.of(run, name, [("s = 5 is better than s = 1", five, one)])
        figures.append(claims.Drawing("1", text, run, better))
    kinds = {
        "cnn50": "CNN, batch 50",
        "cnn200": "CNN, batch 200",
        "lenet200": "LeNet-5, batch 200",
    }
    for kind, words in kinds.items():
        text, run = f"CIFAR-10, 10 clients, {words}", f"fedpg_ten_{kind}"
        figures.append(claims.Drawing("2", text, run, []))
    return figures


def _headlines() -> list[headlines.Headline]:
    """Returns the paper's headlines."""
    global_side, personal = _fedpg("global"), _fedpg("personal")
    rivals = ("FedAvg", "FedProx", "APFL", "Ditto", "FedRep", "FedROD", "FedMGDA")
    # The other data sets were not run: their networks want a GPU.
    pairs = {
        "global": [(n, global_side, _rival(n)) for n in rivals],
        "personal": [(n, personal, _rival(n, "personal")) for n in rivals],
    }
    by_key = {n: claims.of("fedpg_fmnist_10", "FMNIST", p) for n, p in pairs.items()}
    attack_claims = [
        claim
        for kind in ("a1", "a2")
        for claim in _attack_claims(f"fedpg_fmnist_{kind}", kind.upper())
        if not claim.is_ours
    ]
    step_claims = [claim for figure in _figures() for claim in figure.claims]
    by_key |= {"attacks": attack_claims, "steps": step_claims}
    return headlines.of("fedpg", by_key)


_GPU = "convolutional networks of 100 clients want a GPU"
CARD = pages.Card(
    method="fedpg",
    title="FedPG and S-FedPG",
    text=pages.text_of("fedpg"),
    reference=_fedpg("global", data=DATA[0]),
    rule=verdicts.Rule(delta=1.0),
    headlines=_headlines(),
    sides={
        "FedPG": _fedpg("global"),
        "FedPG personal": _fedpg("personal"),
        "FedPG at gamma": _fedpg("personal", _SETTINGS[_GAMMAS[1]]),
        "S-FedPG": _fedpg("global", _SEARCH),
        "FedPG with the median": _fedpg("global", _MEDIAN),
        "FedPG with the mean": _fedpg("global", {"algorithm.scale": "mean"}),
        **{n: _rival(n) for n in ("FedAvg", "FedMGDA", "Ditto", "FedRep")},
        **{f"{n} personal": _rival(n, "personal") for n in ("FedAvg", "Ditto")},
    },
    settings=("fedpg_fmnist_10",),
    claims=[
        *_table_claims("fedpg_fmnist_10", "FMNIST"),
        *_attack_claims("fedpg_fmnist_a1", "A1"),
        *_attack_claims("fedpg_fmnist_a2", "A2"),
        *_ablation_claims("fedpg_ablations_fmnist", "ours, FMNIST"),
    ],
    figures=_figures(),
    reasons={"cifar10": _GPU, "cifar100": _GPU, "_ten_": _GPU},
    printed=[
        methods.Methods(title, runs, "fedpg_tables.csv", _MEASURES, _METHODS)
        for title, runs in _TABLES.items()
    ],
)
