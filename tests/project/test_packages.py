"""What the wheel and the source distribution hold."""

import pathlib
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest
import setuptools

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SOURCES = [p.relative_to(ROOT).as_posix() for p in ROOT.glob("fedjax_pfl/**/*.py")]
PAGE = {p.relative_to(ROOT).as_posix() for p in ROOT.glob("fedjax_pfl/report/page.*")}
IN_BOTH = {*SOURCES, *PAGE, "fedjax_pfl/py.typed"}
BUILD = "import sys; from setuptools import build_meta as b; b.build_{}(sys.argv[1])"


def test_every_directory_with_sources_is_a_package():
    patterns = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    found = setuptools.find_packages(str(ROOT), include=patterns)
    folders = {source.rpartition("/")[0].replace("/", ".") for source in SOURCES}
    assert set(found) == folders


def test_type_checkers_may_read_the_annotations():
    data = PROJECT["tool"]["setuptools"]["package-data"]
    assert data == {"fedjax_pfl": ["py.typed", "report/page.*"]}
    assert (ROOT / "fedjax_pfl/py.typed").read_bytes() == b""


def copied(folder):
    """A copy of what a build looks at, in which it may write."""
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "dist")
    return shutil.copytree(ROOT, folder / "tree", ignore=ignored)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return copied(tmp_path_factory.mktemp("clone"))


def built(tree, tmp_path, kind):
    """Builds a distribution with the setuptools of this environment; its one file."""
    command = [sys.executable, "-c", BUILD.format(kind), str(tmp_path)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (file,) = tmp_path.iterdir()
    return file


@pytest.mark.wide
def test_the_wheel_holds_the_package_only(tree, tmp_path):
    with zipfile.ZipFile(built(tree, tmp_path, "wheel")) as wheel:
        names = wheel.namelist()
        (about,) = [n for n in names if n.endswith("METADATA")]
        metadata = wheel.read(about).decode()
    assert {n for n in names if ".dist-info/" not in n} == IN_BOTH
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in names)
    assert (ROOT / "README.md").read_text("utf-8") in metadata
    for extra in PROJECT["project"]["optional-dependencies"]:
        assert f"Provides-Extra: {extra}\n" in metadata


@pytest.mark.wide
def test_the_source_distribution_holds_what_the_wheel_is_made_of(tree, tmp_path):
    with tarfile.open(built(tree, tmp_path, "sdist")) as archive:
        names = {m.name.partition("/")[2] for m in archive if m.isfile()}
    generated = {n for n in names if ".egg-info/" in n} | {"PKG-INFO", "setup.cfg"}
    texts = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in"}
    assert names - generated == IN_BOTH | texts | {"pyproject.toml"}
