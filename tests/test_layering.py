"""The layers of the package and the few constructs that only some files may use."""

import ast
import importlib
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = "fedjax_pfl"

# A module imports from earlier rows only, and inside its own subpackage.
LAYERS = (
    ("checks", "lazy", "measures", "naming", "registries"),
    ("struct", "leaves", "platforms"),
    ("types",),
    ("clients", "portfolio"),
    ("qp",),
    ("data", "models", "local", "aggregators", "server_optimizers", "attacks")
    + ("participation", "execution"),
    ("phi", "common_descent"),
    ("algorithms", "stopping", "checkpoint"),
    ("link", "own_methods"),
    ("process", "evaluate", "history", "summaries", "schedule", "stacking", "folders"),
    ("networks",),
    ("compiled", "settings", "profiling", "given", "recorder"),
    ("programs",),
    ("cost",),
    ("planning", "labeled"),
    ("driver",),
    ("results", "grids"),
    ("callbacks", "trained"),
    ("training", "theory"),
    ("streaming",),
    ("testing",),
)
# `Federation.from_arrays` is a user's entry to the data layer, which it imports late.
UPWARD = {("types/examples.py", "data")}
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}

ONLY_IN = {  # what is imported or used -> the files that may
    "flax": {"models/modules.py"},
    "tensorflow_datasets": {"data/sources/prepared.py"},
    "jax.jit": {
        "compiled.py",
        "streaming/programs.py",
        "clients/mapping.py",
        "stacking.py",
        "testing/battery_inputs.py",
        "testing/programs.py",
    },
    "jax.experimental": set(),
    "jax.pmap": set(),
    "jax.random.PRNGKey": set(),
    "jax.tree_map": set(),
    "chex": set(),
    "experiments": set(),
    "tests": set(),
}
NOT_AT_IMPORT = ("tensorflow", "tensorflow_datasets")
SLOW = (  # needed by some calls only, which import them
    *(
        "pandas",
        "xarray",
        "h5py",
        "h5netcdf",
        "orbax",
        "safetensors",
        "sklearn",
        "scipy",
        "PIL",
    ),
    *("matplotlib", "plotly", "jinja2", "typer"),
    *("flax", "rich"),
)

FILES = sorted((ROOT / PACKAGE).rglob("*.py"))
NAMES = [path.relative_to(ROOT / PACKAGE).as_posix() for path in FILES]
MODULES = [
    ".".join([PACKAGE, *name.removesuffix(".py").split("/")]).removesuffix(".__init__")
    for name in NAMES
]


def imported(tree, *, at_import=False):
    """Dotted names that a file imports; those inside functions only where asked for."""
    todo, found = [tree], []
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        todo += ast.iter_child_nodes(node)
    return found


def used(tree):
    """Dotted names such as `jax.random.key` that a file reads."""
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name):
            yield ".".join([node.id, *reversed(parts)])


def is_within(name, whole):
    return name == whole or name.startswith(f"{whole}.")


def layer_violations(name, tree):
    """Imports of one file, by its path in the package, from its own layer or above."""
    own = name.split("/")[0].removesuffix(".py")
    targets = [target.split(".")[1] for target in imported(tree) if is_package(target)]
    above = [t for t in targets if t != own and LAYER[t] >= LAYER[own]]
    return [t for t in above if (name, t) not in UPWARD]


def is_package(target):
    return is_within(target, PACKAGE)


def construct_violations(name, tree):
    """Constructs of `ONLY_IN` in a file that may not use them."""
    names = [*imported(tree), *used(tree)]
    return [
        whole
        for whole, allowed in ONLY_IN.items()
        if name not in allowed and any(is_within(n, whole) for n in names)
    ]


def parse(path):
    return ast.parse(path.read_text("utf-8"))


def test_every_module_has_a_layer():
    parts = {name.split("/")[0].removesuffix(".py") for name in NAMES} - {"__init__"}
    assert parts == set(LAYER)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "__init__.py"])
def test_imports_come_from_lower_layers(name):
    assert layer_violations(name, parse(ROOT / PACKAGE / name)) == []


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("types.py", "from fedjax_pfl import checks, struct", []),
        ("types.py", "from fedjax_pfl import clients", ["clients"]),
        ("types.py", "def f():\n  import fedjax_pfl.local", ["local"]),
        ("data/readers.py", "from fedjax_pfl.data import dataset", []),
        ("data/readers.py", "from fedjax_pfl.models import linear", ["models"]),
        (
            "history.py",
            "from fedjax_pfl.engine.evaluation import evaluate",
            ["evaluate"],
        ),
    ],
)
def test_layer_violations_are_found(name, source, expected):
    assert layer_violations(name, ast.parse(source)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_constructs_stay_in_their_files(name):
    assert construct_violations(name, parse(ROOT / PACKAGE / name)) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import jax\nf = jax.jit(g)", ["jax.jit"]),
        ("from jax import jit", ["jax.jit"]),
        ("import jax\nwith jax.disable_jit(): pass", []),
        ("import flax.linen as nn", ["flax"]),
        ("from jax.experimental import shard_map", ["jax.experimental"]),
        ("import jax\nk = jax.random.PRNGKey(0)", ["jax.random.PRNGKey"]),
        ("from fedjax_pfl.command.presets import experiment", ["experiments"]),
    ],
)
def test_construct_violations_are_found(source, expected):
    assert construct_violations("clients.py", ast.parse(source)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_tensorflow_is_imported_inside_functions_only(name):
    found = imported(parse(ROOT / PACKAGE / name), at_import=True)
    assert not [n for n in found if any(is_within(n, t) for t in NOT_AT_IMPORT)]


def test_importing_the_package_does_not_import_what_some_calls_need(tmp_path):
    for name in NOT_AT_IMPORT:  # stand-ins, so that it could be imported anywhere
        (tmp_path / f"{name}.py").write_text("")
    touch = "fp.simulate, fp.Flame"
    code = f"import sys, {PACKAGE} as fp; {touch}; print(*sys.modules, sep='\\n')"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert PACKAGE in loaded
    assert not {*NOT_AT_IMPORT, *SLOW} & set(loaded)


@pytest.mark.parametrize("module", MODULES)
def test_public_names_exist(module):
    module = importlib.import_module(module)
    assert len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
