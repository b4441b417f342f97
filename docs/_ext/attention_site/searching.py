"""What the search of the site looks through: a script of all headings, equations and functions, with their text.

The page ``search.html`` loads it as it loads any script, so that search works in pages that are opened as files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

__all__ = ["ENTRIES", "SearchIndex"]

ENTRIES = "entries.js"  # beside the scripts of the theme
DOCUMENTED = {"class", "exception", "function", "method"}  # of the reference; what else it documents belongs to these
PROSE = (nodes.paragraph, nodes.caption, nodes.rubric)


class SearchIndex:
    """The entries of all pages, in the order of the build."""

    def __init__(self) -> None:
        self.entries: list[dict[str, object]] = []

    def add(self, doctree: nodes.document, address: str) -> None:
        """Take the headings, the equations and the documented functions of a finished page."""
        title = next(doctree.findall(nodes.title), None)
        if title is not None:
            self._add_part(doctree, address, "", title.astext(), [title.astext()])

    def _add_part(self, part: nodes.Element, address: str, anchor: str, heading: str, path: list[str]) -> None:
        """Take what stands in `part`, but for what stands in smaller parts, as one entry; then the smaller parts."""
        text: list[str] = []
        smaller: list[nodes.Element] = []
        _read(part, text, smaller)
        if anchor or text:
            self._append("section", address, anchor, heading, path, text)
        for inner in smaller:
            name = inner["ids"][0] if inner["ids"] else ""
            if isinstance(inner, nodes.section):
                title = next(inner.findall(nodes.title)).astext()
                self._add_part(inner, address, name, title, path if title == path[-1] else [*path, title])
            elif isinstance(inner, addnodes.desc):
                signature = next(inner.findall(addnodes.desc_signature))
                full = ".".join(filter(None, (signature.get("module"), signature.get("fullname"))))
                self._add_part(inner, address, signature["ids"][0], full, [path[0], full])
            else:
                formula = next(inner.findall(nodes.math_block)).astext()
                self._append("equation", address, name, f"({name})", path, [formula])

    def _append(self, kind: str, address: str, anchor: str, heading: str, path: list[str], text: list[str]) -> None:
        to = f"{address}#{anchor}" if anchor else address
        self.entries.append({"kind": kind, "to": to, "heading": heading, "path": path, "text": text})

    def write(self, folder: Path) -> None:
        """Write the script."""
        content = json.dumps(self.entries, ensure_ascii=False, separators=(",", ":"))
        (folder / ENTRIES).write_text(f"window.entries = {content};\n", encoding="utf-8")


def _read(node: nodes.Element, text: list[str], smaller: list[nodes.Element]) -> None:
    """Collect the paragraphs below `node` and, unread, its parts that are entries of their own."""
    for child in node.children:
        if not isinstance(child, nodes.Element):
            continue
        is_equation = isinstance(child, nodes.container) and "equation" in child["classes"]
        is_documented = isinstance(child, addnodes.desc) and child["objtype"] in DOCUMENTED
        if isinstance(child, nodes.section) or is_equation or (is_documented and _has_place(child)):
            smaller.append(child)
        elif isinstance(child, nodes.definition_list_item):  # a parameter, for one
            name, *meaning = child.findall(lambda node: isinstance(node, (nodes.term, *PROSE)))
            text.append(f"{name.astext()}: {' '.join(''.join(_words(part)) for part in meaning)}")
        elif isinstance(child, PROSE):
            text.append("".join(_words(child)))
        elif not isinstance(child, nodes.Invisible | addnodes.toctree):
            _read(child, text, smaller)


def _has_place(described: nodes.Element) -> bool:
    return any(signature["ids"] for signature in described.findall(addnodes.desc_signature))


def _words(node: nodes.Node) -> Iterator[str]:
    """The text of a paragraph on one line, its formulas between the marks that MathJax looks for."""
    if isinstance(node, nodes.math):
        yield rf"\({' '.join(node.astext().split())}\)"
    elif isinstance(node, nodes.Text):
        yield node.astext().replace("\n", " ")
    elif not isinstance(node, nodes.raw):
        for child in node.children:
            yield from _words(child)
