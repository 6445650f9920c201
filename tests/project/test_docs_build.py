"""The documentation builds without a warning, and needs no network to be read."""

import html.parser
import importlib.util
import json
import pathlib
import subprocess
import sys
import zlib

import pytest

import fedjax_pfl as fp

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs/gallery.md").read_text("utf-8")
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src"}

pytestmark = [
    pytest.mark.wide,  # a minute
    pytest.mark.skipif(
        importlib.util.find_spec("sphinx") is None,
        reason="the extra docs is not installed",
    ),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("docs")
    line = [sys.executable, "-m", "sphinx", "-W", "-q", "docs", str(out)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


class Loaded(html.parser.HTMLParser):
    """What a page loads, and how many formulas it has."""

    def __init__(self):
        super().__init__()
        self.addresses, self.formulas = [], 0

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.formulas += tag == "math"
        if tag in LOADS and attributes.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(attributes.get(LOADS[tag]) or "")


def test_pages_load_nothing_from_elsewhere_and_have_their_formulas(built):
    formulas = {}
    for page in built.rglob("*.html"):
        loaded = Loaded()
        loaded.feed(page.read_text("utf-8"))
        assert not [a for a in loaded.addresses if "//" in a], page
        formulas[page.relative_to(built).as_posix()] = loaded.formulas
    assert all(formulas[f"methods/{name}.html"] for name in fp.algorithms.ALGORITHMS)
    assert formulas["errata.html"] > 50


def test_public_names_are_where_they_can_be_linked_to(built):
    inventory = (built / "objects.inv").read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(inventory).decode().splitlines()
    listed = {line.split()[0] for line in lines if line.split()[1].startswith("py:")}
    assert {f"fedjax_pfl.{name}" for name in fp.__all__} <= listed


def test_pages_of_cards_have_pictures_of_their_runs(built):
    name = "flame_lam_mnist-swept.png"
    assert (built / "_images" / name).exists()
    assert f"_images/{name}" in (built / "cards/flame-settings.html").read_text("utf-8")


def test_programs_show_what_they_print_and_draw(built):
    tutorial = (built / "tutorial.html").read_text("utf-8")
    assert "has the best mean accuracy" in tutorial and "_images/tutorial-" in tutorial
    pictures = list((built / "_images").glob("gallery-*.png"))
    assert len(pictures) == PAGE.count(":alt:")


def test_the_front_page_has_numbers_with_their_machine(built):
    front = (built / "index.html").read_text("utf-8")
    run = json.loads((ROOT / "docs/speed-one-core.json").read_text("utf-8"))
    assert all(workload["title"] in front for workload in run["workloads"])
    assert run["machine"]["processor"] in front and "reference" in front


def test_titles_in_search_results_name_the_kind_of_page(built):
    index = (built / "searchindex.js").read_text("utf-8")
    assert "API reference: data" in index and "Card: FLAME" in index
    assert '"Data"' in index  # the guide
