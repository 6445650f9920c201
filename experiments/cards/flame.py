"""Card of FLAME: its table, its figures and its claims, and our claims about it.

The numbers of tables in `printed/flame_table3.csv` and of figures in
`printed/flame_figures.csv` are printed in Zhu, Zeng, Wang, Sun, Li,
Yao, Peng, "On ADMM in Heterogeneous Federated Learning: Personalization, Robustness,
and Fairness". Runs have the names of presets.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import pandas as pd

from experiments.cards import claims, headlines, pages, tables, verdicts
from experiments.cards.claims import Claim, Drawing
from experiments.cards.runs import Side
from experiments.presets.flame import PFEDME_RATE, ROWS, SEEDS

__all__ = ["CARD"]

_MODELS = {"PM": "personal", "GM": "global"}
_PFEDME_PAPER = {"algorithm.learning_rate": PFEDME_RATE}
_PFEDME_INVERSE = {"algorithm.learning_rate": 1.0}  # 1 / lam, which the grid leaves out
_DITTO_STEP = {"algorithm.local.num_steps": 1}
_DITTO_EPOCH = {"algorithm.local.num_steps": None}

_COLUMNS = (
    tables.Column(
        "FLAME HM",
        Side("Flame", "hybrid (validation)"),
        Side("Flame", "hybrid (oracle)"),
    ),
    *(
        tables.Column(f"{name} {short}", Side(algorithm, model, where))
        for name, algorithm, where in (
            ("FLAME", "Flame", {}),
            ("pFedMe", "PFedMe", _PFEDME_PAPER),
            ("Ditto", "Ditto", _DITTO_STEP),
        )
        for short, model in _MODELS.items()
    ),
)
_SIDES = {column.title: column.side for column in _COLUMNS}
_HM, _PM, _GM = (_SIDES[f"FLAME {short}"] for short in ("HM", "PM", "GM"))

_DATA = {"mnist": "MNIST", "fmnist": "FMNIST", "mmnist": "MMNIST", "cifar10": "CIFAR10"}
_LABELS = range(2, 7)
_SCHEMES = {
    "hybrid": "hybrid skew",
    **{f"labels{q}": f"# label = {q}" for q in _LABELS},
    "dir": "Dir(0.5) label skew",
    "quality": "quality skew",
    "quantity": "quantity skew",
}

# A preset with results needs no reason: these are used for missing runs only.
_REASONS = {
    f"flame_{kind}_{data}": "convolutional networks of many clients want a GPU"
    for kind in ("attacks_paper", "beyond", "lam", "epochs", "rho", "cohort")
    for data in ("mmnist", "cifar10")
}
_RELEASED = [row for row in ROWS if row.startswith(("mnist", "fmnist"))]
"""Rows that are also trained like the released code."""
_SWITCHED_ROWS = ("mnist_dir", "mnist_labels2")
_ATTACKS = {
    "label poisoning": {"federation.label_poisoning": "UniformLabels"},
    "same-value": {"attack": "SameValue"},
    "sign-flipping": {"attack": "SignFlip"},
    "Gaussian": {"attack": "Gaussian"},
}
_LOSSES = {  # by preset: field, values from low to high loss, variation
    "lam": ("algorithm.lam", (1.0, 3.0, 5.0), "at lam = 1, 3, 5"),
    "epochs": ("algorithm.local.epochs", (10, 5, 1), "at H = 1, 5, 10"),
    "rho": ("algorithm.rho", (0.1, 0.5, 1.0), "at rho = 0.1, 0.5, 1"),
    "cohort": ("participation.size", (50, 30, 10), "with 10, 30, 50 of 100 clients"),
}


def _words(row: str) -> str:
    """Returns a row in words."""
    data, _, scheme = row.partition("_")
    if scheme == "writers":
        return "FEMNIST by writers"
    return f"{_DATA[data]}, {_SCHEMES[scheme]}"


Pairs = list[tuple[str, Side, Side]]


def _pairs_with(baselines: Iterable[tuple[str, str, dict[str, Any]]]) -> Pairs:
    """Returns pairs: both models of FLAME are better than a baseline's."""
    return [
        (f"FLAME {short} is better than {name}", side, Side(method, side.model, where))
        for name, method, where in baselines
        for short, side in (("PM", _PM), ("GM", _GM))
    ]


_LEFT_OUT = _pairs_with(  # settings of baselines that the paper omits
    (
        ("pFedMe at eta = 1 / lam", "PFedMe", _PFEDME_INVERSE),
        (
            "Ditto with an epoch of gradients for its global model",
            "Ditto",
            _DITTO_EPOCH,
        ),
    )
)
_AS_RELEASED = _pairs_with(
    (
        ("pFedMe's at eta = 1 / lam", "PFedMe", _PFEDME_INVERSE),
        ("pFedMe's at 0.5", "PFedMe", _PFEDME_PAPER),
        ("Ditto's", "Ditto", {}),
    )
)


def _switch(algorithm: str, model: str, momentum: Any = None, **where: Any) -> Side:
    """Returns a side of the runs that change one setting at a time."""
    solver = "inner" if algorithm == "PFedMe" else "local"
    fields = {f"algorithm.{name}": value for name, value in where.items()}
    fields[f"algorithm.{solver}.momentum"] = momentum
    return Side(algorithm, model, fields)


_SWITCHES = [
    (
        f"pFedMe {short} at {high} is better than at {low}",
        _switch("PFedMe", model, learning_rate=high),
        _switch("PFedMe", model, learning_rate=low),
    )
    for short, model in _MODELS.items()
    for low, high in ((0.1, 0.2), (0.2, 0.5))
] + [
    (
        f"Ditto {short} with the global model loaded is better than without",
        _switch("Ditto", model, unsynced=False),
        _switch("Ditto", model, unsynced=True),
    )
    for short, model in _MODELS.items()
]
_CHOICE = [
    (f"HM by validation is better than {short}", _HM, side)
    for short, side in (("PM", _PM), ("GM", _GM))
]


def _by_labels(data: str) -> list[Claim]:
    """Returns (a): more labels per client make PM worse and GM better."""
    falls, rises = [], []
    for q in _LABELS[:-1]:
        low, high = (f"flame_fair_{data}_labels{k}" for k in (q, q + 1))
        text = f"(a) {_DATA[data]}, # label = {q} against {q + 1}"
        falls += claims.of(low, text, [("PM falls", _PM, _PM)], worse_run=high)
        rises += claims.of(high, text, [("GM rises", _GM, _GM)], worse_run=low)
    return falls + rises


def _curve_claims(row: str, text: str = "", **fields: Any) -> list[Claim]:
    """Returns the claims of learning curves, or of a figure with equal sides."""
    pairs = [
        (f"{flame} is better than {rival}{text}", _SIDES[flame], _SIDES[rival])
        for method in ("pFedMe", "Ditto")
        for flame, rival in ((f"FLAME {m}", f"{method} {m}") for m in _MODELS)
    ]
    return claims.of(f"flame_fair_{row}", _words(row), pairs, **fields)


def _attack(row: str, attack: dict[str, Any]) -> list[Claim]:
    """Returns the claims of an attack's figures: FLAME is ahead at all fractions."""
    krum = Side("MultiKrum", "global")
    pairs = (
        ("FLAME HM is better than pFedMe PM", _HM, Side("PFedMe", "personal")),
        ("FLAME HM is better than Ditto PM", _HM, _SIDES["Ditto PM"]),
        ("FLAME PM is better than multi-Krum", _PM, krum),
        ("FLAME GM is better than multi-Krum", _GM, krum),
    )
    return claims.of(f"flame_attacks_paper_{row}", _words(row), pairs, only=attack)


def _convergence(data: str) -> list[Drawing]:
    """Returns figures 9 to 12: the training loss rises from each value to the next."""
    figures = []
    for number, (preset, (field, values, varies)) in enumerate(_LOSSES.items(), 9):
        name = field.rpartition(".")[2]
        # In the first figure, of lam, it falls for the global model.
        pairs = [
            (
                f"{short} loss lower at {name} = {low} than {high}",
                Side("Flame", model, {field: low}),
                Side("Flame", model, {field: high}),
            )
            for short, model in _MODELS.items()
            for low, high in itertools.pairwise(
                values[::-1] if (preset, short) == ("lam", "GM") else values
            )
        ]
        run, text = f"flame_{preset}_{data}", f"{_DATA[data]}: training losses {varies}"
        fields = {"measure": "training loss", "across": preset == "cohort"}
        loss_claims = claims.of(run, _DATA[data], pairs, **fields)
        figures.append(Drawing(str(number), text, run, loss_claims))
    return figures


def _rule_pairs() -> Pairs:
    """Returns pairs of FLAME with robust rules or a tuned kappa against baselines."""
    plain = {"aggregator": None}
    variants = {
        "tuned kappa": plain,
        "the geometric median": {"aggregator": "GeometricMedian"},
        "the coordinate median": {"aggregator": "CoordinateMedian"},
        "the trimmed mean": {"aggregator": "TrimmedMean"},
        "multi-Krum for its messages": {"aggregator": "Krum"},
        "mixing and the trimmed mean": {"aggregator": "NearestNeighborMixing"},
    }
    pairs = []
    for short, model in _MODELS.items():
        baselines = {
            "plain FLAME": Side("Flame", model, plain | {"algorithm.kappa": 1.0}),
            "Ditto": Side("Ditto", model),
            "multi-Krum": Side("MultiKrum", "global"),
        }
        for kind, where in variants.items():
            side, name = Side("Flame", model, where), f"FLAME {short} with {kind}"
            pairs += [
                (f"{name} is better than {n}", side, o) for n, o in baselines.items()
            ]
    return pairs


def _figures() -> list[Drawing]:
    """Returns all figures of the paper's experiments, in order of their numbers."""
    table = pd.read_csv(tables.FOLDER / "flame_figures.csv", dtype=str)
    figures = [figure for data in _DATA for figure in _convergence(data)]
    for data, fields in itertools.product(_DATA, table.itertuples(index=False)):
        number, shows, scheme = map(str, fields)
        row, run = f"{data}_{scheme}", f"flame_fair_{data}_{scheme}"
        if shows in _ATTACKS:
            run, group = f"flame_attacks_paper_{row}", _attack(row, _ATTACKS[shows])
            shows += ", fractions"
        elif "variance" in shows:
            text = ", variance of test losses"
            group = _curve_claims(row, text, measure="loss variance")
        else:
            group = _curve_claims(row)
        figures.append(Drawing(number, f"{_words(row)}: {shows}", run, group))
    return sorted(figures, key=lambda figure: int(figure.number))


def _claims() -> list[Claim]:
    """Returns all claims, those of the paper first."""
    global_rows = [row for row in ROWS if row.endswith(("quantity", "writers"))]
    global_rows += ["fmnist_quality", "cifar10_quality"]  # or if clients are similar
    hybrid_rows = [row for row in ROWS if row.endswith("hybrid")]
    everywhere = [f"{data}_hybrid" for data in _DATA]
    kinds = (
        ("fair", "(b) ", global_rows, [("GM is better than PM", _GM, _PM)]),
        ("fair", "(c) ", hybrid_rows, _CHOICE),
        ("fair", "ours, ", ROWS, _LEFT_OUT),
        ("official", "released code, ", _RELEASED, _AS_RELEASED),
        ("switches", "ours, one change, ", _SWITCHED_ROWS, _SWITCHES),
        ("beyond", "ours, ", everywhere, _rule_pairs()),
    )
    all_claims = [claim for data in _DATA for claim in _by_labels(data)]
    for preset, subject, names, pairs in kinds:
        for row in names:
            run, text = f"flame_{preset}_{row}", f"{subject}{_words(row)}"
            all_claims += claims.of(run, text, pairs)
    return all_claims


_CLAIMS, _FIGURES = _claims(), _figures()


def _gain_claims(short: str) -> list[Claim]:
    """Returns the claims, per row, that a model of FLAME beats both baselines'."""
    pairs = [
        (f"FLAME {short} is better than {name}'s", _SIDES[f"FLAME {short}"], side)
        for name in ("pFedMe", "Ditto")
        for side in (_SIDES[f"{name} {short}"],)
    ]
    return [
        claim for row in ROWS for claim in claims.of(f"flame_fair_{row}", row, pairs)
    ]


def _headlines() -> list[headlines.Headline]:
    """Returns the paper's headlines."""
    attack_claims = [c for d in _FIGURES if "fractions" in d.text for c in d.claims]
    loss_claims = [c for d in _FIGURES if "training losses" in d.text for c in d.claims]
    variance_claims = [c for d in _FIGURES if "variance" in d.text for c in d.claims]
    by_key = {
        "hybrid": [claim for claim in _CLAIMS if claim.text.startswith("(c)")],
        "labels": [claim for data in _DATA for claim in _by_labels(data)],
        "global_over_personal": [c for c in _CLAIMS if c.text.startswith("(b)")],
        "variance_hybrid": [
            claim
            for row in ROWS
            if row.endswith("hybrid")
            for claim in claims.of(
                f"flame_fair_{row}",
                f"(c) {_words(row)}",
                [("variance of HM below PM's", _HM, _PM)],
                measure="loss variance",
            )
        ],
        "attacks": attack_claims,
        "training_losses": loss_claims,
    }
    for short, model in _MODELS.items():
        name = f"FLAME {short} is"
        by_key[f"{model}_gain"] = _gain_claims(short)
        # The paper's Ditto takes one step for its global model; with an epoch the
        # comparison is even.
        by_key[f"{model}_over_epoch"] = [
            c for c in _CLAIMS if name in c.text and "Ditto with an epoch" in c.text
        ]
        by_key[f"variance_{model}"] = [c for c in variance_claims if name in c.text]
    return headlines.of("flame", by_key)


_OTHER_SIDES = {
    "pFedMe at 1 / lam PM": Side("PFedMe", "personal", _PFEDME_INVERSE),
    "pFedMe at 1 / lam GM": Side("PFedMe", "global", _PFEDME_INVERSE),
    "Ditto with an epoch PM": Side("Ditto", "personal", _DITTO_EPOCH),
    "Ditto with an epoch GM": Side("Ditto", "global", _DITTO_EPOCH),
    "their pFedMe PM": Side("PFedMe", "personal"),  # of runs that have one
    "their Ditto PM": Side("Ditto", "personal"),
    "their Ditto GM": Side("Ditto", "global"),
    "multi-Krum": Side("MultiKrum", "global"),
    **{
        f"{name} {short}{suffix}": _switch(algorithm, model, **fields)
        for short, model in _MODELS.items()
        for name, algorithm, suffix, fields in (
            ("switched FLAME", "Flame", "", {}),
            ("switched FLAME", "Flame", ", momentum", {"momentum": 0.5}),
            ("switched pFedMe", "PFedMe", " at 0.1", {"learning_rate": 0.1}),
            ("switched pFedMe", "PFedMe", " at 0.2", {"learning_rate": 0.2}),
            ("switched pFedMe", "PFedMe", " at 0.5", {"learning_rate": PFEDME_RATE}),
            ("switched pFedMe", "PFedMe", ", momentum", {"momentum": 0.5}),
            ("switched Ditto", "Ditto", "", {"unsynced": False}),
            ("switched Ditto", "Ditto", ", momentum", {"momentum": 0.5}),
            ("switched Ditto", "Ditto", ", never loaded", {"unsynced": True}),
        )
    },
    **{
        f"FLAME {short} with {kind}": Side("Flame", model, {"aggregator": rule})
        for short, model in _MODELS.items()
        for kind, rule in (("the geometric median", "GeometricMedian"), ("mean", None))
    },
}

CARD = pages.Card(
    method="flame",
    title="FLAME",
    text=pages.text_of("flame"),
    reference=_PM,
    rule=verdicts.Rule(delta=0.25, tolerance=0.15),
    headlines=_headlines(),
    sides=_SIDES | _OTHER_SIDES,
    settings=("flame_fair_mnist_dir", "flame_fair_fmnist_labels3"),
    claims=_CLAIMS,
    figures=_FIGURES,
    reasons=_REASONS,
    printed=(
        tables.Printed(
            title="Table III",
            file="flame_table3.csv",
            run="flame_fair_{row}",
            columns=_COLUMNS,
            orders=((1, 3, 5), (2, 4, 6)),
            seeds=len(SEEDS),
        ),
    ),
    by_field={
        "flame_attacks": ("federation.malicious_fraction",),
        "flame_beyond": ("attack", "federation.label_poisoning"),
    },
    pages={
        "mnist": ("heterogeneity, MNIST", ("flame_fair_mnist", "flame_official")),
        "fmnist": ("heterogeneity, FMNIST", ("flame_fair_fmnist",)),
        "mmnist": ("heterogeneity, Medical MNIST", ("flame_fair_mmnist",)),
        "cifar10": (
            "heterogeneity, CIFAR-10 and FEMNIST",
            ("flame_fair_cifar10", "flame_fair_femnist"),
        ),
        "attacks-mnist": ("attacks, MNIST", ("flame_attacks_paper_mnist",)),
        "attacks-fmnist": ("attacks, FMNIST", ("flame_attacks_paper_fmnist",)),
        "beyond": ("attacks beyond the paper", ("flame_beyond",)),
        "settings": (
            "rates, penalties, epochs and cohorts",
            (
                "flame_switches",
                "flame_rates",
                "flame_lam",
                "flame_rho",
                "flame_epochs",
                "flame_cohort",
            ),
        ),
    },
)
