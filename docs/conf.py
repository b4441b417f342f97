"""How Sphinx builds the site. The source folder is the repository itself: pages stand where GitHub shows them."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

import attention_np  # noqa: E402

project = "attention_np"
author = "The attention_np developers"
version = release = attention_np.__version__
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "derivations/*.md",
    "examples/*.py",
    "README*.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "attention_np/derivation/GRAMMAR.md",
]
exclude_patterns = [".*", "build", "dist", "tests", "benchmarks", "*.egg-info", "**/__pycache__"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx.ext.mathjax", "attention_site"]
myst_enable_extensions = ["amsmath", "attrs_block", "colon_fence", "dollarmath"]
myst_heading_anchors = 6
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_type_aliases = {"Array": "Array", "Mask": "Mask", "npt.ArrayLike": "ArrayLike"}
autodoc_typehints = "signature"
numpydoc_show_class_members = False
python_use_unqualified_type_names = True

mathjax_path = "tex-svg.js"
mathjax3_config = {
    "tex": {"packages": {"[-]": ["autoload", "require"]}},  # nothing is loaded later
    "options": {"enableMenu": False},  # its menu makes every formula a stop of the Tab key
    "svg": {"fontCache": "global", "displayAlign": "left", "displayIndent": "0", "scale": 0.92},
}

templates_path = ["_templates"]
html_theme = "furo"
html_title = "attention_np"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
html_js_files = ["attention.js", "moving.js", "reading.js", "atlas.js"]
html_additional_pages = {"index": "redirect.html"}
html_copy_source = False
html_show_copyright = False
html_show_sourcelink = False
html_domain_indices = False
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/contents.html",  # ours, where the table of contents has no room at the right
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {"color-brand-primary": "#0b5394", "color-brand-content": "#0b5394"},
    "dark_css_variables": {"color-brand-primary": "#7ab8f5", "color-brand-content": "#7ab8f5"},
}
