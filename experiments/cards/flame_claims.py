"""Claims of FLAME's paper, and ours about it: sides and runs.

Runs have the names of presets. Of two sides the first is claimed to be better.
"""

from typing import Any

from experiments.cards import claims, runs, tables
from experiments.presets import flame

__all__ = [
    "COLUMNS",
    "NAMES",
    "PM",
    "SCHEMES",
    "against_others",
    "beyond",
    "by_labels",
    "convergence",
    "fairness",
    "global_wins",
    "hybrid_choice",
    "learning",
    "released",
    "under",
    "words",
]

_PAPERS_RATE = {"algorithm.learning_rate": flame.PFEDME_RATE}
_LEFT_OUT = {"algorithm.learning_rate": 1.0}
_ONE_STEP = {"algorithm.local.num_steps": 1}
_EPOCH = {"algorithm.local.num_steps": None}


def _side(algorithm: str, model: str, where: Any = None) -> runs.Side:
    return runs.Side(algorithm, model, where or {})


COLUMNS = (
    tables.Column(
        "FLAME HM",
        "Flame",
        "hybrid",
        _side("Flame", "hybrid (validation)"),
        _side("Flame", "hybrid (oracle)"),
    ),
    tables.Column("FLAME PM", "Flame", "personal", _side("Flame", "personal")),
    tables.Column("FLAME GM", "Flame", "global", _side("Flame", "global")),
    tables.Column(
        "pFedMe PM", "PFedMe", "personal", _side("PFedMe", "personal", _PAPERS_RATE)
    ),
    tables.Column(
        "pFedMe GM", "PFedMe", "global", _side("PFedMe", "global", _PAPERS_RATE)
    ),
    tables.Column(
        "Ditto PM", "Ditto", "personal", _side("Ditto", "personal", _ONE_STEP)
    ),
    tables.Column("Ditto GM", "Ditto", "global", _side("Ditto", "global", _ONE_STEP)),
)
_HM, _BOUND = COLUMNS[0].side, COLUMNS[0].bound
PM, _GM, _PFEDME_PM, _PFEDME_GM, _DITTO_PM, _DITTO_GM = (c.side for c in COLUMNS[1:])
_OTHERS = {
    "pFedMe at eta = 1 / lam": ("PFedMe", _LEFT_OUT),
    "Ditto with an epoch of gradients for its global model": ("Ditto", _EPOCH),
}
NAMES = {
    "mnist": "MNIST",
    "fmnist": "FMNIST",
    "mmnist": "MMNIST",
    "cifar10": "CIFAR10",
}
SCHEMES = {
    "hybrid": "hybrid skew",
    **{f"labels{q}": f"# label = {q}" for q in range(2, 7)},
    "dir": "Dir(0.5) label skew",
    "quality": "quality skew",
    "quantity": "quantity skew",
}


def words(row: str) -> str:
    """Returns a row in words."""
    name, _, scheme = row.partition("_")
    if scheme == "writers":
        return "FEMNIST by writers"
    return f"{NAMES[name]}, {SCHEMES[scheme]}"


def against_others(row: str) -> list[claims.Claim]:
    """FLAME against baselines that the paper leaves out."""
    run = f"flame_fair_{row}"
    return [
        claims.Claim(
            f"ours, {words(row)}: FLAME {short} is better than {name}",
            run,
            side,
            runs.Side(algorithm, side.model, where),
        )
        for name, (algorithm, where) in _OTHERS.items()
        for short, side in (("PM", PM), ("GM", _GM))
    ]


def released(row: str) -> list[claims.Claim]:
    """Returns the paper's orderings where everything is as in the released code."""
    pairs = (
        ("PM is better than pFedMe's at eta = 1 / lam", PM, "PFedMe", _LEFT_OUT),
        ("GM is better than pFedMe's at eta = 1 / lam", _GM, "PFedMe", _LEFT_OUT),
        ("PM is better than pFedMe's at 0.5", PM, "PFedMe", _PAPERS_RATE),
        ("GM is better than pFedMe's at 0.5", _GM, "PFedMe", _PAPERS_RATE),
        ("PM is better than Ditto's", PM, "Ditto", {}),
        ("GM is better than Ditto's", _GM, "Ditto", {}),
    )
    return [
        claims.Claim(
            f"released code, {words(row)}: FLAME {text}",
            f"flame_official_{row}",
            side,
            _side(algorithm, side.model, where),
        )
        for text, side, algorithm, where in pairs
    ]


def hybrid_choice(row: str) -> list[claims.Claim]:
    """(c): the choice between both models, made on validation data, helps."""
    return [
        claims.Claim(
            f"(c) {words(row)}: HM by validation is better than {short}",
            f"flame_fair_{row}",
            _HM,
            side,
        )
        for short, side in (("PM", PM), ("GM", _GM))
    ]


def by_labels(data: str) -> list[claims.Claim]:
    """(a): more labels per client make PM worse and GM better."""
    found = []
    for q in range(2, 6):
        few, many = (f"flame_fair_{data}_labels{k}" for k in (q, q + 1))
        text = f"(a) {NAMES[data]}, # label = {q} against {q + 1}"
        found += [
            claims.Claim(f"{text}: PM falls", few, PM, PM, worse_run=many),
            claims.Claim(f"{text}: GM rises", many, _GM, _GM, worse_run=few),
        ]
    return found


def global_wins(row: str) -> claims.Claim:
    """(b): where clients are alike or have little, the global model is better."""
    return claims.Claim(
        f"(b) {words(row)}: GM is better than PM", f"flame_fair_{row}", _GM, PM
    )


def learning(row: str) -> tuple[claims.Claim, ...]:
    """Returns the claims of the paper's learning curves."""
    run = f"flame_fair_{row}"
    pairs = (
        ("FLAME PM is better than pFedMe PM", PM, _PFEDME_PM),
        ("FLAME GM is better than pFedMe GM", _GM, _PFEDME_GM),
        ("FLAME PM is better than Ditto PM", PM, _DITTO_PM),
        ("FLAME GM is better than Ditto GM", _GM, _DITTO_GM),
    )
    return tuple(
        claims.Claim(f"{words(row)}: {text}", run, *sides) for text, *sides in pairs
    )


def fairness(row: str) -> tuple[claims.Claim, ...]:
    """Returns the claims of the scatter of accuracies and variances."""
    return tuple(
        claims.Claim(
            f"{claim.text}, variance of test losses",
            claim.run,
            claim.better,
            claim.worse,
            measure="loss variance",
        )
        for claim in learning(row)
    )


def under(row: str, attack: dict[str, Any]) -> tuple[claims.Claim, ...]:
    """Returns the claims of an attack's figures: FLAME is ahead throughout."""
    pairs = (
        ("FLAME HM is better than pFedMe PM", _HM, _side("PFedMe", "personal")),
        ("FLAME HM is better than Ditto PM", _HM, _DITTO_PM),
        ("FLAME PM is better than multi-Krum", PM, _side("MultiKrum", "global")),
        ("FLAME GM is better than multi-Krum", _GM, _side("MultiKrum", "global")),
    )
    return tuple(
        claims.Claim(
            f"{words(row)}: {text}", f"flame_attacks_paper_{row}", *sides, only=attack
        )
        for text, *sides in pairs
    )


def _loss(text: str, run: str, field: str, *values: Any, model: str, **more: Any):
    """That the training loss is lower at each value than at the next."""
    sides = [_side("Flame", model, {field: value}) for value in values]
    short = {"personal": "PM", "global": "GM"}[model]
    return tuple(
        claims.Claim(
            f"{text}: {short} loss lower at {field.rpartition('.')[2]} = {a} than {b}",
            run,
            *pair,
            measure="training loss",
            **more,
        )
        for a, b, pair in zip(
            values, values[1:], zip(sides, sides[1:], strict=False), strict=False
        )
    )


def convergence(data: str) -> list[claims.Drawing]:
    """Figures 9 to 12."""
    name = NAMES[data]
    lam, epochs, rho, cohort = (
        f"flame_{what}_{data}" for what in ("lam", "epochs", "rho", "cohort")
    )
    field = "algorithm.lam"
    both = ("personal", "global")
    return [
        claims.Drawing(
            "9",
            f"{name}: training losses at lam = 1, 3, 5",
            lam,
            (
                *_loss(name, lam, field, 1.0, 3.0, 5.0, model="personal"),
                *_loss(name, lam, field, 5.0, 3.0, 1.0, model="global"),
            ),
        ),
        claims.Drawing(
            "10",
            f"{name}: training losses at H = 1, 5, 10",
            epochs,
            tuple(
                claim
                for m in both
                for claim in _loss(
                    name, epochs, "algorithm.local.epochs", 10, 5, 1, model=m
                )
            ),
        ),
        claims.Drawing(
            "11",
            f"{name}: training losses at rho = 0.1, 0.5, 1",
            rho,
            tuple(
                claim
                for m in both
                for claim in _loss(name, rho, "algorithm.rho", 0.1, 0.5, 1.0, model=m)
            ),
        ),
        claims.Drawing(
            "12",
            f"{name}: training losses with 10, 30, 50 of 100 clients",
            cohort,
            tuple(
                claim
                for m in both
                for claim in _loss(
                    name, cohort, "participation.size", 50, 30, 10, model=m, across=True
                )
            ),
        ),
    ]


def beyond(row: str) -> list[claims.Claim]:
    """FLAME with robust rules or a tuned kappa against what it is compared with."""
    plain = {"aggregator": None}
    ours = {
        "tuned kappa": plain,
        "the geometric median": {"aggregator": "GeometricMedian"},
        "the coordinate median": {"aggregator": "CoordinateMedian"},
        "the trimmed mean": {"aggregator": "TrimmedMean"},
        "multi-Krum for its messages": {"aggregator": "Krum"},
        "mixing and the trimmed mean": {"aggregator": "NearestNeighborMixing"},
    }
    others = {
        "plain": ("Flame", plain | {"algorithm.kappa": 1.0}),
        "Ditto": ("Ditto", {}),
        "multi-Krum": ("MultiKrum", {}),
    }
    return [
        claims.Claim(
            f"ours, {words(row)}: FLAME {short} with {what} is better than {other}"
            f"{' FLAME' if other == 'plain' else ''}",
            f"flame_beyond_{row}",
            _side("Flame", model, where),
            _side(algorithm, "global" if algorithm == "MultiKrum" else model, than),
        )
        for short, model in (("PM", "personal"), ("GM", "global"))
        for what, where in ours.items()
        for other, (algorithm, than) in others.items()
    ]
