"""What a page is called, and in which language it is."""

from __future__ import annotations

from functools import partial
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.environment.adapters.toctree import TocTree

__all__ = ["HOME", "name_pages", "set_language"]

HOME = "docs/zh/index.zh"  # the front page in Chinese
OF_THE_THEME = {"Search": "搜索", "Next": "下一页", "Previous": "上一页", "Home": "首页", "On this page": "本页内容"}


def name_pages(_app: object, env: BuildEnvironment) -> list[str]:
    """Call a page everywhere what the navigation calls it; the title of the README is the name of the project."""
    for name in env.found_docs:
        for contents in env.get_doctree(name).findall(addnodes.toctree):
            for title, page in contents["entries"]:
                if title:
                    env.titles[page] = env.longtitles[page] = nodes.title("", title)
    return []


def set_language(app: Sphinx, page: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    """Say that a page such as README.zh is Chinese, to browsers and to those who let a page be read to them.

    The navigation beside it is that of the front page in Chinese, and so are the few words of the theme.
    """
    if page.endswith(".zh"):
        context |= {
            "language": "zh-Hans",
            "master_doc": HOME,
            "toctree": partial(_navigation, app, page),
            "_": lambda text: OF_THE_THEME.get(text, text),
        }


def _navigation(app: Sphinx, page: str, **options: Any) -> str:
    whole = addnodes.compact_paragraph("", toctree=True)
    for group in app.env.get_doctree(HOME).findall(addnodes.toctree):
        resolved = TocTree(app.env).resolve(page, app.builder, group, **options)
        whole += resolved.children if resolved is not None else []
    builder: Any = app.builder  # of HTML
    navigation: str = builder.render_partial(whole)["fragment"]
    return navigation
