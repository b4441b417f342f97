"""From a derivation page to the functions that carry it out, to the trace of its op, and to examples that use it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from docutils import nodes

from attention_np import OPS
from attention_site.site import Site

__all__ = ["show_ways"]

MOST = 3  # examples
ENGLISH = "Functions: ", "on paper, step by step: ", "examples: "
CHINESE = "函数 ", "逐步手算 ", "示例 "


def show_ways(site: Site, doctree: nodes.document, page: str, documents: Collection[str]) -> None:
    """Say under the title of a derivation where else its op is found."""
    if not page.startswith(("derivations/", "docs/zh/derivations/")):
        return
    name = PurePosixPath(page).name.removesuffix(".zh")
    groups = [
        [(f"attention_np.{name}", f"docs/api/{name}")],
        [("trace", "docs/trace")] if name in OPS else [],
        [(f"{example}.py", f"examples/{example}") for example in _examples(site.root, name)],
    ]
    line = nodes.paragraph("", classes=["ways"])
    for said, group in zip(CHINESE if page.endswith(".zh") else ENGLISH, groups, strict=True):
        targets = [(text, target) for text, target in group if target in documents]
        if targets:
            line += nodes.Text((". " if len(line) else "") + said)
            line += _links(site, page, targets)
    title = next(doctree.findall(nodes.title), None)
    if title is not None and len(line):
        title.parent.insert(title.parent.index(title) + 1, line)


def _links(site: Site, page: str, targets: list[tuple[str, str]]) -> Iterator[nodes.Node]:
    for place, (text, target) in enumerate(targets):
        if place:
            yield nodes.Text(", ")
        link = nodes.reference("", "", internal=True, refuri=site.address(target, page))
        link += nodes.literal("", text)
        yield link


@cache
def _examples(root: Path, name: str) -> list[str]:
    """The examples that speak most of an op, by their names."""
    counts = {
        file.stem: len(re.findall(rf"\b{name}\.\w", file.read_text(encoding="utf-8")))
        for file in sorted((root / "examples").glob("*.py"))
    }
    return sorted((example for example, count in counts.items() if count), key=lambda example: -counts[example])[:MOST]
