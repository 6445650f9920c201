"""Rooms, the direction of imports, and constructs that only some files may use."""

import ast
import importlib
import os
import pathlib
import subprocess
import sys

from fedjax_pfl.testing import layers

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "fedjax_pfl"

# What calls LAPACK, of which a batch may hang a CPU: one file knows how not to.
_LAPACK = ("cholesky", "cond", "det", "eig", "eigh", "eigvals", "eigvalsh", "inv")
_LAPACK += ("lstsq", "matrix_rank", "pinv", "qr", "slogdet", "solve", "svd", "svdvals")
_MAY_FACTORIZE = {"core/factorizations.py", "testing/battery_products.py"}

ONLY_IN = {  # what is imported or used -> the files that may
    **{f"jax.numpy.linalg.{name}": _MAY_FACTORIZE for name in _LAPACK},
    "jax.lax.linalg": _MAY_FACTORIZE,
    "jax.scipy.linalg": _MAY_FACTORIZE,
    "flax": {
        "models/heads.py",
        "models/modules.py",
        "models/normalization.py",
        "models/own_flax.py",
        "models/transformer_modules.py",
        "testing/trainings.py",
    },
    "tokenizers": {"data/readers/tokens.py"},
    "tensorflow_datasets": {"data/sources/prepared.py"},
    "jax.jit": {
        "aggregators/functions.py",
        "core/client_map.py",
        "core/federation.py",
        "core/sharding.py",
        "engine/derivatives/implicit.py",
        "engine/derivatives/differentiated.py",
        "engine/kept_programs.py",
        "engine/resident.py",
        "engine/stacking.py",
        "engine/streaming/cohort_programs.py",
        "engine/timetables.py",
        "testing/battery_inputs.py",
        "testing/compiled_rounds.py",
        "testing/rounds.py",
    },
    "jax.experimental": set(),
    "jax.pmap": set(),
    "jax.random.PRNGKey": set(),
    "jax.tree_map": set(),
    "chex": set(),
    "experiments": set(),
    "tests": set(),
}
NEEDED_BY_SOME_CALLS = {
    *("tensorflow", "tensorflow_datasets", "pandas", "xarray", "h5py", "h5netcdf"),
    *("orbax", "safetensors", "sklearn", "scipy", "PIL", "matplotlib"),
    *("jinja2", "typer", "flax", "rich", "tokenizers"),
}
_ALIASES = {"jnp": "jax.numpy", "lax": "jax.lax"}
TREES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}


def used(tree):
    """Dotted names such as `jax.random.key` that a file reads."""
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name):
            first = _ALIASES.get(node.id, node.id)
            yield ".".join([first, *reversed(parts)])


def misused(name, tree):
    """Constructs of `ONLY_IN` in a file that may not use them."""
    names = [*layers.imported(tree), *used(tree)]
    return [
        f"{name}: {whole}"
        for whole, allowed in ONLY_IN.items()
        if name not in allowed
        and any(n == whole or n.startswith(f"{whole}.") for n in names)
    ]


def test_imports_run_from_room_to_room_downward():
    found = layers.edges(PACKAGE)
    assert layers.rooms(PACKAGE) == {room for row in layers.LEVELS for room in row}
    assert layers.violations(found) == []
    assert layers.draw(found).endswith(f"{len(found)} edges")


def test_upward_imports_are_found(tmp_path):
    for room, text in (
        ("core", "def late():\n  from fedjax_pfl import engine"),
        ("data", "from fedjax_pfl.core import checks"),
        ("engine", "from fedjax_pfl.data import splits\nimport fedjax_pfl as fp"),
        (
            "numerics",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
            "  from fedjax_pfl.data import splits",
        ),
    ):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text(text)
    (tmp_path / "__init__.py").write_text("")
    wrong = [line.split(",")[0] for line in layers.violations(layers.edges(tmp_path))]
    assert wrong == [
        "core imports engine",
        "engine imports __init__",
        "numerics imports data",
    ]


def test_constructs_stay_in_their_files():
    assert [line for item in TREES.items() for line in misused(*item)] == []


def test_misused_constructs_are_found():
    for source, expected in (
        ("import jax\nf = jax.jit(g)", ["x.py: jax.jit"]),
        ("from jax import jit", ["x.py: jax.jit"]),
        ("import jax\nwith jax.disable_jit(): pass", []),
        ("import flax.linen as nn", ["x.py: flax"]),
        ("from jax.experimental import shard_map", ["x.py: jax.experimental"]),
        ("from experiments import run", ["x.py: experiments"]),
        ("a = jnp.linalg.solve(b, c)", ["x.py: jax.numpy.linalg.solve"]),
        ("a = jnp.linalg.norm(b)", []),
        ("a = lax.linalg.cholesky(b)", ["x.py: jax.lax.linalg"]),
        ("from jax.scipy import linalg", ["x.py: jax.scipy.linalg"]),
    ):
        assert misused("x.py", ast.parse(source)) == expected


def test_importing_the_package_loads_little(tmp_path):
    for name in ("tensorflow", "tensorflow_datasets"):  # stand-ins, always there
        (tmp_path / f"{name}.py").write_text("")
    touch = "fp.simulate, fp.Flame"
    code = f"import sys, fedjax_pfl as fp; {touch}; print(*sys.modules, sep='\\n')"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "fedjax_pfl" in loaded
    assert not NEEDED_BY_SOME_CALLS & set(loaded)


def test_public_names_exist():
    for name in TREES:
        parts = name.removesuffix(".py").removesuffix("/__init__").split("/")
        if parts[-1] in ("__main__", "__init__"):
            continue
        module = importlib.import_module(".".join(["fedjax_pfl", *parts]))
        missing = [n for n in getattr(module, "__all__", ()) if not hasattr(module, n)]
        assert missing == [], name
