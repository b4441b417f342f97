"""The letters that the front matter of a derivation page declares: indices with their ranges, arrays with shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from docutils import nodes

from attention_np.derivation.header import Header
from attention_site.site import Site

__all__ = ["show_letters"]

ABOVE = {"guide", "ways", "language"}  # the lines under a title, which come first
ENGLISH = (
    "Letters",
    "Indices: ",
    "Given: ",
    "; ",
    " to ",
    "In the code: ",
    "All others are defined where they first stand alone on the left.",
)
CHINESE = "本页的字母", "指标：", "给定：", "；", " 到 ", "代码中：", "其余的字母，在第一次单独出现于等式左边处定义。"


def show_letters(site: Site, doctree: nodes.document, page: str) -> None:
    """Say under the title of a derivation, folded, what its letters are."""
    header = site.headers.get(page.replace("docs/zh/derivations/", "derivations/").removesuffix(".zh"))
    title = next(doctree.findall(nodes.title), None)
    if header is None or title is None or not page.startswith(("derivations/", "docs/zh/derivations/")):
        return
    name, indices, given, comma, to, code, others = CHINESE if page.endswith(".zh") else ENGLISH
    lines = [
        _line(indices, comma, _indices(header.indices, to)),
        _line(given, comma, _arrays(header)),
        _line(
            code,
            comma,
            ([_math(symbol), nodes.Text(" "), nodes.literal("", word)] for word, symbol in header.code.items()),
        ),
    ]
    folded = nodes.container("", *filter(len, lines), nodes.paragraph("", others), classes=["letters"])
    start = nodes.raw("", f'<details class="view letters"><summary>{name}</summary>', format="html")
    parent, place = title.parent, title.parent.index(title) + 1
    for below in parent[place:]:
        if not (isinstance(below, nodes.Element) and ABOVE & {*below["classes"]}):
            break
        place += 1
    parent[place:place] = [start, folded, nodes.raw("", "</details>", format="html")]


def _line(said: str, comma: str, items: Iterator[list[nodes.Node]]) -> nodes.paragraph:
    line = nodes.paragraph()
    for item in items:
        line += [nodes.Text(comma if len(line) else said), *item]
    return line


def _indices(indices: Mapping[str, str], to: str) -> Iterator[list[nodes.Node]]:
    for axis in dict.fromkeys(indices.values()):
        letters = ", ".join(letter for letter, own in indices.items() if own == axis)
        yield [_math(letters), nodes.Text(" = 1" + to), _math(axis)]


def _arrays(header: Header) -> Iterator[list[nodes.Node]]:
    for name, free in header.tensors.items():
        if not name.startswith(r"\dot"):  # a velocity, of the shape of what moves
            shape = r" \times ".join(free.axes)
            yield [_math(rf"{name} \, ({shape})" if shape else name)]


def _math(latex: str) -> nodes.math:
    return nodes.math(latex, latex)
