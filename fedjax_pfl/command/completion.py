"""Values for shell completion: names of presets, parts and fields.

The shell waits for them, so this module imports neither JAX nor NumPy.
"""

import pathlib
import re
from collections.abc import Callable, Iterable

import typer

import fedjax_pfl
from fedjax_pfl.algorithms import registry
from fedjax_pfl.command.components import COMPONENTS

__all__ = [
    "BENCHMARKS",
    "DATA_SETS",
    "FETCHED",
    "PARTITIONS",
    "PRESETS",
    "algorithms",
    "data_sets",
    "fetched",
    "fields",
    "methods",
    "partitions",
    "presets",
    "settings",
]

PRESETS = ("digits", "own_data", "quadratic", "mnist", "fashion_mnist", "cifar10")
PRESETS += ("cifar100", "medical_mnist", "femnist", "sent140", "shakespeare", "stocks")
BENCHMARKS = ("digits", "clusters", "fmnist_dir", "fmnist_labels2", "femnist")
BENCHMARKS += ("medical_mnist", "cifar10")
BENCHMARKS = tuple(f"benchmark_{name}" for name in BENCHMARKS)
DATA_SETS = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100")
DATA_SETS += ("medical_mnist", "femnist", "sent140", "shakespeare", "stocks", "csv")
DATA_SETS += ("npz", "images", "leaf", "quadratic", "linear_regression")
DATA_SETS += ("gaussian_classes", "clustered_classes", "synthetic")
DATA_SETS += ("synthetic_sentiment",)
FETCHED = ("mnist", "fashion_mnist", "cifar10")
PARTITIONS = ("iid", "dirichlet_labels", "label_shards", "pathological_blocks")
PARTITIONS += ("quantity_skew", "power_law", "class_windows", "quality_skew")
PARTITIONS += ("hybrid_skew", "by_client", "feature_skew", "leaky_dirichlet_labels")
PARTITIONS += ("leaky_quantity_skew", "leaky_hybrid_skew")

_NAMES = {"data.DATASETS": DATA_SETS, "data.PARTITIONS": PARTITIONS}
_PACKAGE = pathlib.Path(fedjax_pfl.__path__[0])
_SOURCES = {  # of the classes of a registry
    "algorithms.ALGORITHMS": ("algorithms/*.py", "algorithms/common_descent/*.py"),
    "algorithms.LOCAL_SOLVERS": ("local/*solvers.py", "local/private_sgd.py"),
    "algorithms.PHIS": ("algorithms/phi/*.py",),
    "algorithms.STEP_SEARCHES": ("algorithms/common_descent/*.py",),
    "algorithms.AGGREGATORS": ("aggregators/*.py",),
    "algorithms.SERVER_OPTIMIZERS": ("aggregators/server_optimizers.py",),
    "algorithms.ATTACKS": ("attacks/*.py",),
    "algorithms.TRANSFORMS": ("messages/*.py",),
    "algorithms.PARTICIPATIONS": ("local/*.py",),
    "algorithms.WORK": ("local/participation.py",),
    "algorithms.MODELS": ("portfolio/policies.py", "models/*.py"),
    "data.DATASETS": ("data/sources/*.py", "data/synthetic*.py"),
    "data.PARTITIONS": ("data/partition/*.py",),
    "data.LABEL_POISONINGS": ("data/corruption.py",),
    "data.FEATURE_NOISES": ("data/corruption.py",),
    "portfolio.MARKETS": ("portfolio/markets/*.py",),
}
_CLASS = re.compile(  # for formatted files, and faster than a parser
    r"^(@\S*dataclass.*\n)?class (\w+)(?:\((.*)\))?:\n((?:(?:    .*)?\n)*)",
    re.MULTILINE,
)
_FIELD = re.compile(r"^    ([a-z]\w*): (?!ClassVar)", re.MULTILINE)
_OWN = ("seed", "num_rounds", "eval_every", "on_nonfinite", "per_client")


def _one_of(names: Iterable[str]) -> Callable[[], list[str]]:
    """Makes a function that returns names; typer keeps those that begin as typed."""
    return lambda: list(names)


presets = _one_of((*PRESETS, *BENCHMARKS))
data_sets = _one_of(DATA_SETS)
fetched = _one_of(FETCHED)
partitions = _one_of(PARTITIONS)
methods = _one_of(registry.ALGORITHMS)


def algorithms(incomplete: str) -> list[str]:
    """Completes the last of several names of methods, with an optional `+` first."""
    plus = "+" if incomplete.startswith("+") else ""
    words = _extend(incomplete.removeprefix("+"), registry.ALGORITHMS)
    return [f"{plus}{word}" for word in words]


def fields(context: typer.Context, incomplete: str) -> list[str]:
    """Completes the last of several dotted names of fields."""
    return _extend(incomplete, _dotted(context, incomplete.rpartition(",")[2]))


def settings(context: typer.Context, incomplete: str) -> list[str]:
    """Completes a dotted name, and the name of a part after `=`."""
    name, equals, value = incomplete.partition("=")
    if not equals:
        return [f"{word}=" for word in _dotted(context, name)]
    return [f"{name}={word}" for word in _extend(value, _registered(name))]


def _extend(incomplete: str, names: Iterable[str]) -> list[str]:
    """Returns values with commas between them, with each name as the last one."""
    start, comma, _ = incomplete.rpartition(",")
    return [f"{start}{comma}{name}" for name in names]


def _dotted(context: typer.Context, incomplete: str) -> list[str]:
    """Returns names of fields: the first parts, or fields of a typed part."""
    owner = incomplete.rpartition(".")[0]
    names = {name for name in COMPONENTS if name.rpartition(".")[0] == owner}
    if owner == "federation":
        federation = _classes(("data/federation.py",))
        names |= {f"{owner}.{n}" for n in _fields("FederationSpec", federation)}
    elif owner in COMPONENTS:
        kinds = (context.params.get(owner) or "").removeprefix("+").split(",")
        names |= {f"{owner}.{field}" for field in _of_component(owner, kinds)}
    elif not owner:
        names |= {"federation", *_OWN}
    return sorted(names)


def _registered(component: str) -> Iterable[str]:
    """Returns the names of a component's classes."""
    path, _ = COMPONENTS.get(component, ("", False))
    return _NAMES.get(path) or getattr(registry, path.rpartition(".")[2], ())


def _of_component(component: str, kinds: Iterable[str]) -> set[str]:
    """Returns fields of a component's classes: the chosen ones, or else all."""
    path, _ = COMPONENTS[component]
    classes = _classes(_SOURCES[path])
    entries = getattr(registry, path.rpartition(".")[2], None)
    names = [name for name in classes if not name.startswith("_")]
    if entries is not None:
        # Names of classes, which the registry has without importing them.
        names = [entries.data[name] for name in kinds if name in entries]
        names = [name.rpartition(".")[2] for name in names or entries.data.values()]
    return set().union(*(_fields(name, classes) for name in names))


def _classes(patterns: Iterable[str]) -> dict[str, tuple[list[str], set[str]]]:
    """Reads bases and fields of the classes in files of the package."""
    # Fields are read from the sources: importing the classes would import JAX.
    classes = {}
    for file in (file for pattern in patterns for file in _PACKAGE.glob(pattern)):
        for is_data, name, bases, body in _CLASS.findall(file.read_text("utf-8")):
            if name in classes and not is_data:  # a module of the same name
                continue
            fields = _FIELD.findall(body.split('"""', 2)[-1]) if is_data else ()
            bases = [base.rpartition(".")[2] for base in bases.split(", ")]
            classes[name] = bases, set(fields)
    return classes


def _fields(name: str, classes: dict[str, tuple[list[str], set[str]]]) -> set[str]:
    """Returns the public fields of a class and of its bases among some classes."""
    bases, fields = classes.get(name, ((), set()))
    return fields.union(*(_fields(base, classes) for base in bases))
