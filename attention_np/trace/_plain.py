r"""LaTeX and Markdown as plain text: ``\frac{\partial L}{\partial Q_{ia}}`` is dL/dQ_ia."""

from __future__ import annotations

import re

from attention_np.derivation.errors import Fault
from attention_np.derivation.tokens import ACCENTS, FONTS, RELATIONS, Token, argument, tokenize

_OPERATORS = {
    **RELATIONS,
    r"\cdot": "*",
    r"\odot": "*",
    r"\oslash": "/",
    r"\times": "x",
    r"\infty": "inf",
    r"\to": "->",
    r"\top": "T",
    r"\partial": "d",
    r"\left": "",
    r"\right": "",
}
_FUNCTIONS = frozenset(["exp", "log", "tanh", "max", "min", "cosh"])
_NAME = "\1"  # behind the name of a function, whose bracket stands close to it
_TIGHT = (
    (r" ?\0 ?", ""),
    (rf"{_NAME}(_\w+)? \(", r"\1("),
    (_NAME, ""),
    (r" ?\n ?", "\n"),
    (r"([(\[]) ", r"\1"),
    (r" ([)\],;:.])", r"\1"),
    (r"\bdL / d", "dL/d"),
    (r"  +", " "),
)


def prose(markdown: str) -> str:
    """A paragraph, on one line."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(markdown.split()))
    text = re.sub(r"\$([^$]+)\$", lambda match: formula(match.group(1)), text)
    return re.sub(r"(?<!\w)\*+(\w[^*]*)\*+", r"\1", text)


def formula(latex: str) -> str:
    """A formula; one of several lines stays one."""
    try:
        tokens = tokenize(latex)
        lines = _written([token for token in tokens if token.text not in ("&", r"\begin{aligned}", r"\end{aligned}")])
    except Fault:
        return latex.strip()
    return "\n".join(line.strip(" ,") for line in lines.split("\n") if line.strip(" ,"))


def _written(tokens: list[Token]) -> str:
    r"""The tokens one after another; ``\x00`` marks where nothing stands between two of them."""
    out: list[str] = []
    place = 0
    while place < len(tokens):
        token = tokens[place]
        text, place = token.text, place + 1
        if text in ("_", "^"):
            inside, place = argument(tokens, place, token.span)
            out.append("\0" + _script(text, _written(inside)))
        elif text == r"\frac":
            above, place = argument(tokens, place, token.span)
            below, place = argument(tokens, place, token.span)
            out.append(f"{_one(_written(above))}/{_one(_written(below))}")
        elif text == r"\sqrt":
            inside, place = argument(tokens, place, token.span)
            out.append(f"sqrt({_written(inside)})")
        elif text in ACCENTS or text in FONTS:
            inside, place = argument(tokens, place, token.span)
            word = "".join(item.text for item in inside)
            if text in FONTS:
                out.append(f"{word}{_NAME}" if len(word) > 1 else word)
            else:
                out.append(f"{_written(inside)}_{text[1:]}")
        elif text == r"\partial":
            out.append("d\0")
        elif text in ("{", "}") or token.type in ("BEGIN", "END"):
            continue
        elif token.type in ("BREAK", "WIDE"):
            out.append("\n")
        elif token.type in ("TEXT", "TYPEWRITER"):
            out.append(token.inner)
        elif token.type == "PRIME":
            out.append("\0'")
        else:
            out.append(_OPERATORS.get(text, text.removeprefix("\\")))
        if text[1:] in _FUNCTIONS:
            out[-1] += _NAME
    line = " ".join(out)
    for pattern, instead in _TIGHT:
        line = re.sub(pattern, instead, line)
    return line


def _script(mark: str, inside: str) -> str:
    if mark == "^" and re.fullmatch(r"\([\w: +-]+\)", inside):
        return inside  # the head of Q^(h)
    if re.fullmatch(r"\w+([ ,]+\w+)*|\w ?\(\w\)", inside):
        return mark + re.sub("[ ,]", "", inside)
    return f"_{{{inside}}}" if mark == "_" else f"^({inside})"


def _one(text: str) -> str:
    """The text as one factor of a fraction."""
    return f"({text})" if " " in text and not re.fullmatch(r"d[^ {]+(\{[^}]*\})?", text) else text
