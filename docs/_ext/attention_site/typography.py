"""How text is set: where a line may end, and what has colours."""

from __future__ import annotations

import re

from docutils import nodes

__all__ = ["keep_punctuation", "leave_plain"]

PUNCTUATION = re.compile(r"[^\w\s]\S*")


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
