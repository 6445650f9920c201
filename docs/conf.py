"""Settings of the documentation: `python -m sphinx -W docs build/docs`."""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent)]

import fedjax_pfl  # noqa: E402, of this repository

project = fedjax_pfl.__name__
author = "The fedjax_pfl contributors"
version = release = fedjax_pfl.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "benchmark",
    "cards",
    "docstrings",
    "mathml",
    "programs",
    "search_titles",
]
exclude_patterns = ["extensions", "learned.md", "reproduction.md", "speed_results.md"]

myst_enable_extensions = ["dollarmath", "colon_fence", "substitution"]
myst_substitutions = {"version": release}
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]
add_module_names = False

html_theme = "furo"
html_title = f"fedjax_pfl {release}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_math_renderer = "mathml"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
