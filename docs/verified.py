"""The table of what is verified, in both READMEs: ``python -m docs.verified`` writes it again.

It counts what ``make check`` judges; ``make check`` fails unless every one of them comes out as its page says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from attention_np import cases
from attention_np.derivation import Page, read_pages
from docs.tables import table, written

__all__ = ["HEADINGS", "Row", "rows", "with_table"]

ROOT = Path(__file__).resolve().parents[1]
COMMENTS = "<!-- verified: written by python -m docs.verified -->", "<!-- end of verified -->"
HEADINGS = {
    "README.md": ("page", "cases", "gradients", "equations that hold", "refuted mistakes", "not executed"),
    "README.zh.md": ("页面", "算例", "梯度", "成立的等式", "推翻的错误", "未执行"),
}
TOTAL = {"README.md": "all", "README.zh.md": "合计"}


class Row(NamedTuple):
    """One line of the table: a page, and the op of the same name if there is one."""

    page: str
    cases: int
    gradients: int  # arrays, over all cases; each is checked by every method
    holding: int
    refuted: int
    not_executed: int


def rows() -> list[Row]:
    """What is verified, by page, the pages of ops first."""
    pages = {Path(page.path).stem: page for page in read_pages([ROOT / "derivations"])}
    order = [*cases.OPS, *(name for name in pages if name not in cases.OPS)]
    return [_row(name, pages[name]) for name in order]


def _row(name: str, page: Page) -> Row:
    examples = cases.all_cases([name])
    gradients = sum(1 for example in examples for _ in _arrays(example.inputs))
    marks = Counter(equation.mark for equation in page.equations)
    refuted = marks["refuted"] + marks["malformed"]
    return Row(name, len(examples), gradients, marks[""], refuted, marks["skipped"])


def _arrays(inputs: Mapping[str, Any]) -> Iterator[Any]:
    """The arrays of a case; parameters are several."""
    for value in inputs.values():
        yield from (part for part in (value if isinstance(value, tuple) else (value,)) if part is not None)


def _lines(total: str) -> Iterator[tuple[str, ...]]:
    found = rows()
    for row in found:
        yield f"[{row.page}](derivations/{row.page}.md)", *(str(number or "") for number in row[1:])
    sums = (sum(numbers) for numbers in zip(*(row[1:] for row in found), strict=True))
    yield f"**{total}**", *(f"**{number}**" for number in sums)


def with_table(name: str, text: str) -> str:
    """The `text` of the README called `name`, with the table as it is now.

    Raises
    ------
    ValueError
        If the text does not have the two comments that the table stands between.
    """
    return written(name, text, COMMENTS, table(HEADINGS[name], _lines(TOTAL[name])))


if __name__ == "__main__":
    for name in HEADINGS:
        file = ROOT / name
        file.write_text(with_table(name, file.read_text(encoding="utf-8")), encoding="utf-8")
