"""FLAME's comparisons: its table, its figures, and what it leaves out.

A row of the table is `flame_<profile>_<data>_<scheme>`. Profiles: `paper`, what the
text says, on clean partitions; `official`, what the released code does, leaks between
clients included; `fair`, as `paper` with pFedMe at 1 / lam too, and Ditto with as many
gradients behind its global model as the others have. Ten clients, all of them in every
round, one epoch of batches of 100, lam = 1, rho = 0.1 (kappa = 1), 100 rounds, which
the paper does not state.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fedjax_pfl as fp
from fedjax_pfl import data
from fedjax_pfl.command.presets.experiment import Experiment, Grid, grids_of

__all__ = [
    "DITTO_RATE",
    "EVEN",
    "PFEDME_RATE",
    "PRESETS",
    "PROFILES",
    "ROWS",
    "SEEDS",
    "WRITERS",
    "algorithms",
    "ditto",
    "experiment",
    "federation",
    "named",
    "process",
    "sgd",
]

PROFILES = ("paper", "official", "fair")
SEEDS = (1, 10, 100, 1000, 10000)  # the released code's
_GRID = (0.01, 0.05, 0.1, 0.2, 0.5)  # global learning rates of the paper
_RATES = _GRID[2:]
# Chosen on validation data in `flame_rates_mnist_labels2` and `flame_rates_fmnist_dir`,
# pFedMe's within the paper's grid; see the card.
PFEDME_RATE, DITTO_RATE = 0.5, 0.2

_DATA = {  # source, model
    "mnist": lambda: (data.Mnist(), fp.MLP(widths=(128, 64))),
    "fmnist": lambda: (data.FashionMnist(), fp.MLP(widths=(128, 64))),
    "mmnist": lambda: (data.MedicalMnist(), fp.models.CNN1()),
    "cifar10": lambda: (data.Cifar10(), fp.CNN()),
}


_LABELS = tuple(f"labels{q}" for q in range(2, 7))
_SCHEMES = ("hybrid", "dir", *_LABELS, "quality", "quantity")
WRITERS = "femnist_writers"
ROWS = (*(f"{d}_{scheme}" for d in _DATA for scheme in _SCHEMES), WRITERS)
"""The rows of Table III, `<data>_<scheme>`."""

EVEN = tuple(f"fmnist_{scheme}" for scheme in ("dir", "labels3", "labels6", "quantity"))
EVEN += ("mnist_labels2", "mnist_labels5")
"""Rows trained with batches of nearly one size.

Some of their clients would have a last batch of less than a tenth of the others, whose
step is the last before evaluation. All other rows have the released code's short last
batch, also where a few clients have a very short one.
"""


def _partition(scheme: str, released: bool) -> Any:
    """Returns the partition of a scheme, clean or as in the released code."""
    if scheme.startswith("labels"):
        count = int(scheme.removeprefix("labels"))
        return fp.LabelShards(labels_per_client=count, in_file_order=released)
    if scheme == "quality":
        return data.QualitySkew(sigma=0.1, resample=released, in_file_order=released)
    if scheme == "hybrid":
        kind = data.LeakyHybridSkew if released else data.HybridSkew
        return kind(labels_per_client=2, concentration=0.5)
    if scheme == "dir":
        kind = data.LeakyDirichletLabels if released else fp.DirichletLabels
        return kind(concentration=0.5, min_examples=100)
    if released:
        return data.LeakyQuantitySkew(concentration=0.5)
    return data.QuantitySkew(concentration=0.5, min_examples=100)


def federation(row: str, profile: str) -> tuple[fp.FederationSpec, Any]:
    """Returns federation and model of a row."""
    is_official = profile == "official"
    if row == WRITERS:
        source, model = data.Femnist(), fp.models.CNN2()
        partition = data.FeatureSkew()
    else:
        name, _, scheme = row.partition("_")
        source, model = _DATA[name]()
        partition = _partition(scheme, is_official)
    spec = fp.FederationSpec(
        source,
        partition,
        num_clients=10,
        test_fraction=0.2,
        validation_fraction=0.0 if is_official else 0.1,
    )
    return spec, model


def sgd(learning_rate: float = 0.01, **fields: Any) -> fp.SGD:
    """Returns SGD with the paper's batches, the last of which is short."""
    defaults = {"batch_size": 100, "remainder": "full"}
    return fp.SGD(**({"learning_rate": learning_rate} | defaults | fields))


def ditto(learning_rate: float, parity: str, **fields: Any) -> fp.Ditto:
    """Returns Ditto; its global model has one `update` or an epoch of `gradients`."""
    steps = {"num_steps": 1} if parity == "update" else {}
    return fp.Ditto(
        lam=1.0, local=sgd(learning_rate, **steps, **fields), personal=sgd(**fields)
    )


def algorithms(profile: str, **fields: Any) -> list[Any]:
    """Returns the compared methods of a profile, with fields of their solvers."""
    if profile == "official":
        return [
            fp.Flame.official(lam=1.0, kappa=1.0),
            fp.PFedMe.official(lam=1.0, learning_rate=PFEDME_RATE),
            fp.PFedMe.official(lam=1.0, learning_rate=1.0),
            fp.Ditto.official(lam=1.0),
        ]
    flame = fp.Flame(lam=1.0, kappa=1.0, local=sgd(**fields))
    pfedme = fp.PFedMe(lam=1.0, learning_rate=PFEDME_RATE, inner=sgd(**fields))
    methods = [flame, pfedme, ditto(DITTO_RATE, "update", **fields)]
    if profile == "fair":
        methods.insert(2, dataclasses.replace(pfedme, learning_rate=1.0))
        methods.append(ditto(DITTO_RATE, "gradients", **fields))
    return methods


def process(algorithm: Any, **fields: Any) -> fp.FederatedProcess:
    """Returns a process in which all clients count the same."""
    is_other = isinstance(algorithm, fp.PFedMe | fp.Ditto)
    fields = {"aggregator": fp.aggregators.Mean()} | fields if is_other else fields
    return fp.FederatedProcess(algorithm=algorithm, **fields)


def named(makers: Mapping[str, tuple[Any, ...]]) -> dict[str, Callable[[], Experiment]]:
    """Returns presets by name, of functions that take it and further arguments."""
    return {n: functools.partial(make, n, *rest) for n, (make, *rest) in makers.items()}


def experiment(name: str, grids: Sequence[Grid], **fields: Any) -> Experiment:
    """Returns an experiment with what all of them share."""
    defaults = {"num_rounds": 100, "seeds": SEEDS, "eval_every": 10}
    return Experiment(name=name, grids=tuple(grids), **(defaults | fields))


def _table(name: str, row: str, profile: str) -> Experiment:
    """Returns a row of Table III; its curves and fairness are figures of the paper."""
    spec, model = federation(row, profile)
    fields = {"remainder": "even"} if row in EVEN else {}
    methods = algorithms(profile, **fields)
    return experiment(name, grids_of(map(process, methods), model, spec))


def _rates(name: str, row: str) -> Experiment:
    """Returns global learning rates of pFedMe and of Ditto, seed 1."""
    spec, model = federation(row, "fair")
    pfedme = fp.PFedMe(lam=1.0, learning_rate=0.1, inner=sgd())
    methods = [(process(pfedme), {"algorithm.learning_rate": (*_GRID, 1.0)})]
    for parity in ("update", "gradients"):
        axes = {"algorithm.local.learning_rate": _GRID}
        methods.append((process(ditto(0.1, parity)), axes))
    return experiment(name, grids_of(methods, model, spec), seeds=SEEDS[:1])


def _switches(name: str, row: str) -> Experiment:
    """Returns the paper's methods with one thing at a time as in the released code."""
    spec, model = federation(row, "paper")
    flame, pfedme, plain = algorithms("paper")
    unsynced = fp.Ditto(lam=1.0, local=sgd(DITTO_RATE), personal=sgd(), unsynced=True)
    # pFedMe's rates, momentum, a Ditto that never loads the global model, and no
    # validation examples, which are for training then.
    methods = [flame, (pfedme, {"algorithm.learning_rate": _RATES}), plain, unsynced]
    methods += algorithms("paper", momentum=0.5)
    pairs = [m if isinstance(m, tuple) else (m, {}) for m in methods]
    grids = grids_of([(process(m), axes) for m, axes in pairs], model, spec)
    larger = dataclasses.replace(spec, validation_fraction=0.0)
    grids += grids_of(map(process, (flame, pfedme, plain)), model, larger)
    return experiment(name, grids)


def _curves(
    name: str,
    source: str,
    fields: dict[str, Any],
    axes: dict[str, Any],
    num_clients: int,
) -> Experiment:
    """Returns training losses of FLAME alone: figures 9 to 12, hybrid skew."""
    spec, model = federation(f"{source}_hybrid", "fair")
    spec = dataclasses.replace(spec, num_clients=num_clients)
    cohort, *_ = axes.get("participation.size", (None,))
    flame = fp.Flame(local=sgd(epochs=3), **fields)
    grids = grids_of([flame], model, spec, axes, cohort=cohort)
    where = (("test", None), ("train", None))
    return experiment(name, grids, eval_every=5, evaluate_on=where)


_CURVES = {
    "lam": ({"rho": 0.1, "lam": 1.0}, {"algorithm.lam": (1.0, 3.0, 5.0)}, 10),
    "epochs": ({"rho": 0.1, "lam": 5.0}, {"algorithm.local.epochs": (1, 5, 10)}, 10),
    "rho": ({"rho": 0.1, "lam": 3.0}, {"algorithm.rho": (0.1, 0.5, 1.0)}, 10),
    "cohort": ({"rho": 0.03, "lam": 3.0}, {"participation.size": (10, 30, 50)}, 100),
}
"""Fields of FLAME, what is compared, and clients: figures 9 to 12."""


def _presets() -> dict[str, Callable[[], Experiment]]:
    """Returns everything by name."""
    makers: dict[str, tuple[Any, ...]] = {}
    for row in ROWS:
        makers |= {f"flame_{p}_{row}": (_table, row, p) for p in PROFILES}
        makers[f"flame_rates_{row}"] = (_rates, row)
        makers[f"flame_switches_{row}"] = (_switches, row)
    for what, fields in _CURVES.items():
        makers |= {f"flame_{what}_{d}": (_curves, d, *fields) for d in _DATA}
    return named(makers)


PRESETS = _presets()
