"""What a page is called, and in which language it is."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.environment import BuildEnvironment

__all__ = ["name_pages", "set_language"]


def name_pages(_app: object, env: BuildEnvironment) -> list[str]:
    """Call a page everywhere what the navigation calls it; the title of the README is the name of the project."""
    for name in env.found_docs:
        for contents in env.get_doctree(name).findall(addnodes.toctree):
            for title, page in contents["entries"]:
                if title:
                    env.titles[page] = env.longtitles[page] = nodes.title("", title)
    return []


def set_language(_app: object, page: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    """Say that a page such as README.zh is Chinese, to browsers and to those who let a page be read to them."""
    if page.endswith(".zh"):
        context["language"] = "zh-Hans"
