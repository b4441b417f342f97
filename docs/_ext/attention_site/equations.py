"""Puts each equation of a derivation page beside its verdict and the code that carries it out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from docutils import nodes

from attention_site.excerpts import citing_only, excerpts
from attention_site.listings import TAG, excerpt_html, listing_html, output_html, source_page, view_html
from attention_site.site import EXPLAINED, Site
from attention_site.verdicts import badge, badge_html, in_chinese

__all__ = ["link_mentions", "link_tags_of_code", "show_equations"]

FOR_THE_CHECKER = re.compile(r"Text only\.|Same as \(.*\)\.", re.DOTALL)
IN_ENGLISH = (
    "Below an equation stands the same in NumPy, printed from the formula, and its numbers in the worked example; "
    "beside it the code of the library that carries it out. An equation without code is a definition, an example or a "
    "step of a proof.",
    "Below an equation stands the same in NumPy, printed from the formula. The equations of this page are definitions, "
    "examples and steps of arguments: no code has to carry them out.",
)
IN_CHINESE = (
    "等式下面有由公式印出的 NumPy 写法和算例中的数值。旁边是库中实现它的代码。"
    "旁边没有代码的等式是定义、例子或证明的一步。",
    "等式下面有由公式印出的 NumPy 写法。本页的等式是定义、例子和论证的步骤。没有代码需要实现它们。",
)
NUMBERS = "Numbers in the worked example", "算例中的数值"
SHORT, WIDE = 2, 72  # lines, and characters of a line, of the NumPy that is open when a page is opened
NOT_PROSE = (nodes.title, nodes.reference, nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.raw)


def show_equations(site: Site, doctree: nodes.document, page: str) -> None:
    """Make a card of each equation that has a tag, and say at the top of a derivation what stands beside them."""
    shown = []
    for block in list(doctree.findall(nodes.math_block)):
        tag = site.tag_of(block.astext())
        if tag is not None:
            outer = block.parent if "math-wrapper" in block.parent.get("classes", []) else block  # from the theme
            _drop_marks(outer)
            outer.parent.replace(outer, _card(site, block, tag, page))  # without its classes
            shown.append(tag)
    of_derivation = page.startswith(("derivations/", "docs/zh/derivations/"))
    if shown and of_derivation:
        has_code = any(site.records[tag].cited_by for tag in shown)
        with_code, without_code = IN_CHINESE if page.endswith(".zh") else IN_ENGLISH
        guide = nodes.paragraph("", with_code if has_code else without_code, classes=["guide"])
        title = next(iter(doctree.findall(nodes.title)))
        title.parent.insert(title.parent.index(title) + 1, guide)


def _card(site: Site, block: nodes.math_block, tag: str, page: str) -> nodes.container:
    record = site.records[tag]
    of_ops = [place for place in record.cited_by if not place.startswith("attention_np/atlas/")]  # it has a page
    carried_out = "".join(
        excerpt_html(
            excerpt._replace(text=citing_only(record.tags, excerpt.text)),
            lambda other: site.equation(other, page),
            site.address(source_page(excerpt.file), page),
        )
        for excerpt in excerpts(site.root, of_ops or record.cited_by)
    )
    judged = badge(record, block.astext(), site.reasons.get(tag, ""))
    explained = site.address(site.in_language_of(page, EXPLAINED), page)
    verdict = badge_html(in_chinese(judged) if page.endswith(".zh") else judged, explained)
    permalink = f'<a class="number" href="#{tag}" title="Link to this equation">({tag})</a>'
    latex = rf"\[{site.without_tag(block.astext())}\]"
    formula = nodes.math_block(latex, latex, number=None)
    formula["nowrap"] = formula["no-wrap"] = True  # the page has its own environments
    shown = nodes.container(classes=["shown"])
    shown += nodes.container("", formula, classes=["formula"])
    shown += _html(f'<p class="said">{verdict}{permalink}</p>')
    card = nodes.container("", shown, classes=["equation"], ids=[tag])
    if seen := _views(site, tag, page):
        card += _html(f'<div class="views">{seen}</div>')
    if carried_out:
        card += _html(f'<div class="carried-out" role="group" aria-label="Code of {escape(tag)}">{carried_out}</div>')
    return card


def _views(site: Site, tag: str, page: str) -> str:
    """The equation in NumPy, open where that is short, and its numbers in the worked example."""
    view = site.views.get(tag)
    if view is None:
        return ""
    lines = view.lines.split("\n")
    is_short = len(lines) <= SHORT and max(map(len, lines)) <= WIDE and site.records[tag].example < 0
    label = NUMBERS[page.endswith(".zh")]
    numpy = view_html("numpy", "NumPy", view.lines, is_short) if view.lines else ""
    return numpy + (view_html("numbers", label, view.numbers, shown=False) if view.numbers else "")


def _drop_marks(equation: nodes.Element) -> None:
    """What tells the checker which code cites an equation, or that none does, tells a reader nothing."""
    parent = equation.parent
    following = parent[parent.index(equation) + 1 :][:1]
    if following and isinstance(following[0], nodes.paragraph):
        paragraph = following[0]
        for word in [node for node in paragraph.findall(nodes.emphasis) if FOR_THE_CHECKER.fullmatch(node.astext())]:
            behind = word.next_node(nodes.Text, descend=False, siblings=True)
            word.parent.remove(word)
            if behind is not None and behind.parent is not None:
                behind.parent.replace(behind, nodes.Text(behind.lstrip()))
        if not paragraph.astext().strip():
            parent.remove(paragraph)


def link_mentions(site: Site, doctree: nodes.document, page: str) -> None:
    """Let each tag in the prose lead to its equation."""
    for text in list(doctree.findall(nodes.Text)):
        if not any(isinstance(node, NOT_PROSE) for node in _ancestors(text)):
            pieces = list(_pieces(site, str(text), page))
            if len(pieces) > 1 and text.parent is not None:
                text.parent.replace(text, pieces)


def _pieces(site: Site, text: str, page: str) -> Iterator[nodes.Node]:
    behind = 0
    for match in TAG.finditer(text):
        address = site.equation(match[0], page)
        if address is not None:
            yield nodes.Text(text[behind : match.start()])
            yield nodes.reference(match[0], match[0], internal=True, refuri=address, classes=["tag"])
            behind = match.end()
    yield nodes.Text(text[behind:])


def _ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    while node.parent is not None:
        node = node.parent
        yield node


def link_tags_of_code(site: Site, doctree: nodes.document, page: str) -> None:
    """Let each tag in the Python code of a page, or in the output of a program, lead to its equation."""

    def link(tag: str) -> str | None:
        return site.equation(tag, page)

    for block in list(doctree.findall(nodes.literal_block)):
        code = block.astext()
        if any(map(link, TAG.findall(code))):
            if block.get("language") == "python":
                block.replace_self(_html(listing_html(code, link)))
            elif "output" in block["classes"]:
                block.replace_self(_html(output_html(code, link)))


def _html(text: str) -> nodes.raw:
    return nodes.raw("", text, format="html")
