"""Packages that import late offer what they say, and names are known without JAX."""

import importlib
import pathlib
import subprocess
import sys

import pytest

import fedjax_pfl as fp
from fedjax_pfl.algorithms.registry import __all__
from fedjax_pfl.core import lazy

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in (ROOT / "fedjax_pfl").rglob("__init__.py")
    if "lazy.attach(" in path.read_text("utf-8")
)
REGISTRIES = [n for n in __all__ if n.isupper()]


def run(code):
    """What a fresh process prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_offers_what_it_imports_for_type_checkers(package):
    module = importlib.import_module(package)
    offered = lazy._offered(package)
    assert offered.keys() == set(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    files = pathlib.Path(module.__file__).parent.iterdir()
    stems = {file.stem for file in files}  # of which one would hide the other
    assert not offered.keys() & stems
    for name, (home, attribute) in offered.items():
        assert getattr(module, name) is getattr(
            importlib.import_module(home), attribute
        )


def test_modules_are_attributes_and_other_names_are_refused():
    code = (
        "import fedjax_pfl as fp; from fedjax_pfl import engine;"
        "print(fp.aggregators.__name__, engine.schedule.__name__);"
        "print(hasattr(fp, 'nosuch'), hasattr(fp.models, 'nosuch'))"
    )
    modules = ("aggregators", "engine.schedule")
    shown = " ".join(f"fedjax_pfl.{name}" for name in modules)
    assert run(code) == f"{shown}\nFalse False"
    with pytest.raises(ImportError, match="nosuch"):
        from fedjax_pfl import nosuch  # noqa: F401


def test_a_module_that_cannot_be_imported_says_why(tmp_path, monkeypatch):
    (tmp_path / "late").mkdir()
    source = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    pass\n"
    (tmp_path / "late/__init__.py").write_text(source)
    (tmp_path / "late/broken.py").write_text("import not_there")
    monkeypatch.syspath_prepend(tmp_path)
    late = importlib.import_module("late")
    late.__getattr__, late.__dir__ = lazy.attach("late")
    with pytest.raises(ModuleNotFoundError, match="not_there"):
        late.broken  # noqa: B018


@pytest.mark.parametrize("name", REGISTRIES)
def test_registries_are_read_like_dictionaries(name):
    registry = getattr(fp.algorithms, name)
    assert len(registry) == len(list(registry)) == len(set(registry))
    assert all(isinstance(kind, type) for kind in registry.values())
    for key, kind in registry.items():
        assert key in registry and registry[key] is kind is getattr(
            importlib.import_module(kind.__module__), kind.__name__
        )
    assert "nosuch" not in registry
    with pytest.raises(KeyError):
        registry["nosuch"]


def test_names_are_known_without_jax():
    names = [f"algorithms.{name}" for name in REGISTRIES] + ["portfolio.MARKETS"]
    names += ["data.DATASETS", "data.PARTITIONS", "data.LABEL_POISONINGS"]
    names.append("data.FEATURE_NOISES")
    code = (
        "import operator, sys, fedjax_pfl as fp; print(all("
        f"sorted(operator.attrgetter(n)(fp)) for n in {names}), 'jax' in sys.modules)"
    )
    assert run(code) == "True False"


def test_models_are_made_and_compared_without_flax():
    code = (
        "import pickle, sys, fedjax_pfl as fp;"
        "models = [kind() for kind in fp.algorithms.MODELS.values()];"
        "assert pickle.loads(pickle.dumps(models)) == models and len({*models}) > 9;"
        "print('flax' in sys.modules)"
    )
    assert run(code) == "False"
