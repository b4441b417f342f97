"""What the last check said about an equation, in a few words."""

from __future__ import annotations

import re
from html import escape
from typing import NamedTuple

from attention_np.derivation import Record

__all__ = ["Badge", "badge", "badge_html", "in_chinese"]

MARKS = {"holds": "\N{CHECK MARK}", "refuted": "\N{MULTIPLICATION X}", "not executed": "\N{EN DASH}", "fails": "!"}
NUMBER = re.compile(r"\d\S*e[+-]\d+")
CHINESE = {  # {} is a number
    "by definition": "定义",
    "Gives a name to what stands on the right; later equations use it.": "给右边一个名字。后面的等式要用它。",
    "holds as printed": "所印各位相符",
    "What was computed rounds to the digits that are printed here.": "算出的数舍入之后就是这里所印的各位。",
    "holds exactly": "精确成立",
    "The sides did not differ at any draw of the last check.": "最近一次检验中两边处处相同。",
    "holds to {}": "误差 {} 内成立",
    "The largest relative difference of the last check: {}.": "最近一次检验的最大相对误差是 {}。",
    "false, as marked": "如所标明不成立",
    "A mistake, and the last check says so: the shapes do not fit.": "这是一个错误。最近一次检验中形状不合。",
    "A mistake, and the last check says so: at every draw the sides differ, by up to {}.": (
        "这是一个错误。最近一次检验中两边处处不同 (相差可达 {})。"
    ),
    "not executed": "未执行",
    "The reason stands below.": "理由见下文。",
}


class Badge(NamedTuple):
    """A word or two, and the sentence that explains them."""

    verdict: str
    text: str
    title: str


def badge(record: Record, latex: str = "", reason: str = "") -> Badge:
    """The verdict on the equation `latex`; `reason` is why it is not executed."""
    error = record.error
    if record.verdict == "holds":
        if _only_defines(record, latex):
            return Badge("holds", "by definition", "Gives a name to what stands on the right; later equations use it.")
        if record.rounded:
            return Badge("holds", "holds as printed", "What was computed rounds to the digits that are printed here.")
        if error is None or error == 0:
            return Badge("holds", "holds exactly", "The sides did not differ at any draw of the last check.")
        return Badge(
            "holds", f"holds to {error:.0e}", f"The largest relative difference of the last check: {error:.1e}."
        )
    if record.verdict == "refuted":
        found = "the shapes do not fit" if error is None else f"at every draw the sides differ, by up to {error:.1e}"
        return Badge("refuted", "false, as marked", f"A mistake, and the last check says so: {found}.")
    if record.verdict == "not executed":
        return Badge("not executed", "not executed", reason or "The reason stands below.")
    size = "" if error is None else f", off by {error:.0e}"
    return Badge("fails", f"fails{size}", "The last check found this equation wrong.")


def in_chinese(found: Badge) -> Badge:
    """The same in Chinese, but for reasons, which pages give."""
    text, title = (
        CHINESE[general].format(*NUMBER.findall(said)) if (general := NUMBER.sub("{}", said)) in CHINESE else said
        for said in (found.text, found.title)
    )
    return found._replace(text=text, title=title)


def _only_defines(record: Record, latex: str) -> bool:
    """Whether each equality sign gives a name, so that there is nothing to compare."""
    visible = latex
    while (stripped := re.sub(r"\{[^{}]*\}", "", visible)) != visible:
        visible = stripped
    return record.error == 0 and 0 < len(record.defines) == visible.count("=")


def badge_html(found: Badge, address: str) -> str:
    """The badge; it leads to `address`, where verdicts are explained."""
    kind = found.verdict.replace(" ", "-")
    return (
        f'<a class="verdict {kind}" href="{escape(address)}#{kind}" title="{escape(found.title)}">'
        f'<span aria-hidden="true">{MARKS[found.verdict]}</span> {escape(found.text)}</a>'
    )
