"""How text is set: where a line may end, and what has colours."""

from __future__ import annotations

import re

from docutils import nodes

__all__ = ["join_lines", "keep_punctuation", "leave_plain", "tell_asides"]

HAN, WIDE = r"\u4e00-\u9fff", r"\u3000-\u303f\uff00-\uffef\u201c\u201d"  # Chinese characters and punctuation
PUNCTUATION = re.compile(rf"[^\w\s][^\s{HAN}]*")
BETWEEN = re.compile(rf"(?<=[{HAN}{WIDE}])\n(?=[{HAN}{WIDE}])|(?<=[{WIDE}])\n|\n(?=[{WIDE}])")


def join_lines(doctree: nodes.document) -> None:
    """Leave out the end of a line of the source between Chinese characters, where a browser would show a space."""
    for end in list(doctree.findall(lambda node: isinstance(node, nodes.Text) and node == "\n")):
        place = end.parent.index(end)
        before, behind = (part.astext() for part in (end.parent[place - 1], end.parent[place + 1]))
        if BETWEEN.search(f"{before[-1:]}\n{behind[:1]}"):
            end.parent.remove(end)


def tell_asides(doctree: nodes.document) -> None:
    """Tell paragraphs that are emphasised whole from words that are: Chinese characters are not slanted for either."""
    for emphasis in doctree.findall(nodes.emphasis):
        if len(emphasis.parent) == 1:
            emphasis["classes"].append("aside")


def keep_punctuation(doctree: nodes.document) -> None:
    """Let no line end between a formula and the punctuation behind it, as a browser would else allow."""
    for formula in list(doctree.findall(nodes.math)):
        behind = formula.next_node(nodes.Text, descend=False, siblings=True)
        match = PUNCTUATION.match(behind) if behind is not None else None
        if match and behind is not None and behind.parent.index(behind) == behind.parent.index(formula) + 1:
            behind.parent.replace(behind, nodes.Text(behind[match.end() :]))
            formula.replace_self(nodes.inline("", "", formula.deepcopy(), nodes.Text(match[0]), classes=["together"]))


def leave_plain(doctree: nodes.document) -> None:
    """Colour no block that does not say its language: Sphinx would take a table that a program printed for Python."""
    for block in doctree.findall(nodes.literal_block):
        if block.get("language") == "default" and not block.astext().startswith(">>>"):
            block["language"] = "text"
