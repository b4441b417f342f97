"""From LaTeX to tokens; brackets, arguments and pieces of runs of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from attention_np.derivation import limits
from attention_np.derivation.errors import Fault, Span

# Only what MathJax shows is a token. "%" would hide the rest of a line from the reader, "#" and "$" have
# other meanings, so they are refused by having no rule.
_WORD = re.compile(
    r"""
    (?P<LETTER> [A-Za-z])
    | (?P<NUMBER> [0-9]+(?:\.[0-9]+)? | \.[0-9]+)
    | (?P<PUNCTUATION> [-+*/^_{}()\[\]|,.:;=<>!&])
    | (?P<SPACE> (?: \s | ~ | \\[,;:!>\ ] | \\q?quad(?![A-Za-z]) )+)
    | (?P<LAYOUT> \\(?:displaystyle|textstyle|limits|nolimits|nonumber|[bB]igg?[lrm]?|(?:math)?strut)(?![A-Za-z]))
    | (?P<TYPEWRITER> \\texttt\s*\{[^{}]*\})
    | (?P<TEXT> \\(?:text|textrm|mbox)\s*\{[^{}]*\})
    | (?P<BEGIN> \\begin\s*\{[A-Za-z]+\*?\})
    | (?P<END> \\end\s*\{[A-Za-z]+\*?\})
    | (?P<BREAK> \\\\(?:\[\d*\.?\d+(?:em|ex|pt|mm)\])?)
    | (?P<COMMAND> \\[A-Za-z]+)
    | (?P<ESCAPED> \\[{}|])
    | (?P<PRIME> '+)
    """,
    re.VERBOSE,
)


def commands(names: str) -> frozenset[str]:
    """The commands of these names."""
    return frozenset("\\" + name for name in names.split())


ACCENTS = commands("hat bar tilde dot ddot vec check breve widehat widetilde overline underline acute")
FONTS = commands("mathrm mathbf mathsf mathit mathtt mathcal mathbb mathfrak boldsymbol bm operatorname")
TAKES_ARGUMENT = ACCENTS | FONTS
_BRACKETS = frozenset("()[]")
_TAKES_NOTHING = commands("partial cdot times odot circ oslash top")
_SPELLED = {"\\{": "(", "\\}": ")", "\\lbrace": "(", "\\rbrace": ")", "\\forall": "\\text{for all}"}
OPENING, CLOSING = frozenset("{(["), frozenset("})]")
RELATIONS = {
    "=": "=",
    "<": "<",
    ">": ">",
    "\\lt": "<",
    "\\gt": ">",
    "\\le": "<=",
    "\\leq": "<=",
    "\\leqslant": "<=",
    "\\ge": ">=",
    "\\geq": ">=",
    "\\geqslant": ">=",
    "\\ne": "!=",
    "\\neq": "!=",
    "\\approx": "~",
}


class Token(NamedTuple):
    """A word of LaTeX and where it stands."""

    type: str
    text: str
    start: int
    stop: int

    @property
    def span(self) -> Span:
        """Where it stands, as offsets."""
        return self.start, self.stop

    @property
    def inner(self) -> str:
        r"""The text between the braces of ``\\text{...}`` and the like."""
        return self.text[self.text.index("{") + 1 : -1].strip()


Tokens = Sequence[Token]


def tokenize(text: str) -> list[Token]:
    """The tokens of an equation, spaces and sizing commands left out, braces checked."""
    tokens: list[Token] = []
    stop = 0
    for match in _WORD.finditer(text):
        before, (start, stop), kind, word = stop, match.span(), str(match.lastgroup), match.group()
        if start > before:
            stop = before
            break
        if kind == "SPACE":
            if "quad" in word:
                tokens.append(Token("WIDE", word, start, stop))
        elif kind != "LAYOUT":
            word = "\\\\" if kind == "BREAK" else _SPELLED.get(word, word)
            tokens.append(Token("TEXT" if word.startswith("\\text{") else kind, word, start, stop))
    if stop < len(text):
        raise Fault("syntax", f"{text[stop]!r} is not part of the grammar", (stop, stop + 1))
    _check_braces(tokens)
    # A sized bracket is a bracket; \left and \right stay only where they tell an opening bar from a closing one.
    tokens = _without_idle_braces(tokens)
    behind = [*(token.text for token in tokens[1:]), ""]
    return [
        token
        for token, after in zip(tokens, behind, strict=False)
        if not (token.text in ("\\left", "\\right") and after in _BRACKETS)
    ]


def _without_idle_braces(tokens: list[Token]) -> list[Token]:
    """``{S}_{ij}`` as ``S_{ij}``, where the braces are no argument of the token before them."""
    out: list[Token] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if token.text == "{" and _is_idle(tokens[position + 1 : position + 4], out[-1] if out else None):
            out.append(tokens[position + 1])
            position += 3
        else:
            out.append(token)
            position += 1
    return out


def _is_idle(inside: list[Token], before: Token | None) -> bool:
    """Whether a brace, by the three tokens behind it and the one before, holds a letter that has scripts outside."""
    if len(inside) < 3 or inside[0].type != "LETTER" or inside[1].text != "}" or inside[2].text not in ("_", "^"):
        return False
    return before is None or not (
        before.text in ("}", "]", "_", "^")
        or (before.type == "COMMAND" and before.text not in _TAKES_NOTHING and before.text not in RELATIONS)
    )


def _check_braces(tokens: Tokens) -> None:
    stack: list[Token] = []
    for token in tokens:
        if token.text == "{":
            stack.append(token)
            if len(stack) > limits.DEPTH:
                raise Fault("limit", f"braces are nested more than {limits.DEPTH} deep", token.span)
        elif token.text == "}":
            if not stack:
                raise Fault("syntax", "this brace closes nothing", token.span)
            stack.pop()
    if stack:
        raise Fault("syntax", "this brace is never closed", stack[-1].span)


def closing(tokens: Tokens, start: int) -> int:
    """The position of the brace that closes the one at ``start``."""
    depth = 0
    for position in range(start, len(tokens)):
        depth += (tokens[position].text == "{") - (tokens[position].text == "}")
        if depth == 0:
            return position
    raise Fault("syntax", "this brace is never closed", tokens[start].span)


def ending(tokens: Tokens, start: int) -> int:
    r"""The position of the ``\\end`` that belongs to the ``\\begin`` at ``start``."""
    depth = 0
    for position in range(start, len(tokens)):
        depth += (tokens[position].type == "BEGIN") - (tokens[position].type == "END")
        if depth == 0:
            if tokens[position].inner != tokens[start].inner:
                raise Fault("syntax", "this \\end does not fit its \\begin", tokens[position].span)
            return position
    raise Fault("syntax", "this \\begin has no \\end", tokens[start].span)


def opened(token: Token) -> int:
    """1 where a bracket of any kind, or an environment, opens; -1 where one closes; else 0."""
    if token.text in OPENING or token.type == "BEGIN":
        return 1
    return -1 if token.text in CLOSING or token.type == "END" else 0


def argument(tokens: Tokens, start: int, owner: Span) -> tuple[list[Token], int]:
    r"""The argument of a TeX macro at ``start``, a group without its braces or one token, and the position behind it.

    As in TeX, ``\\frac12`` is one half and ``x^23`` is three times the square of x: without braces only one digit is
    taken. An accent or a font takes its own argument along (``x_\\mathrm{max}``).
    """
    while start < len(tokens) and tokens[start].type == "WIDE":
        start += 1
    if start >= len(tokens):
        raise Fault("syntax", "something is missing after this", owner)
    token = tokens[start]
    if token.text == "{":
        stop = closing(tokens, start)
        return list(tokens[start + 1 : stop]), stop + 1
    if token.text in "}^_&)]" or token.type in ("BREAK", "END", "BEGIN"):
        raise Fault("syntax", "something is missing before this", token.span)
    if token.type == "NUMBER" and len(token.text) > 1:
        # Splitting needs the rest of the number to stay a token; the caller passes a list it owns.
        if not isinstance(tokens, list) or not token.text.isdigit():
            raise Fault("syntax", "put braces around this number", token.span)
        tokens[start : start + 1] = [
            Token("NUMBER", token.text[0], token.start, token.start + 1),
            Token("NUMBER", token.text[1:], token.start + 1, token.stop),
        ]
        return [tokens[start]], start + 1
    if token.type == "COMMAND" and token.text in TAKES_ARGUMENT:
        inside, stop = argument(tokens, start + 1, token.span)
        left = Token("PUNCTUATION", "{", token.stop, token.stop)
        right = Token("PUNCTUATION", "}", token.stop, token.stop)
        return [token, left, *inside, right], stop
    return [token], start + 1


def split(tokens: Tokens, separators: frozenset[str]) -> Iterator[tuple[list[Token], Token | None]]:
    """Pieces between separators that stand outside of all brackets, each with the separator after it."""
    piece: list[Token] = []
    depth = 0
    for token in tokens:
        if depth == 0 and token.text in separators:
            yield piece, token
            piece = []
            continue
        depth += opened(token)
        piece.append(token)
    yield piece, None


def span_of(tokens: Tokens, otherwise: Span) -> Span:
    """From the first to the last token."""
    return (tokens[0].start, tokens[-1].stop) if tokens else otherwise


def text_of(tokens: Tokens) -> str:
    """The words of tokens, one after the other."""
    return "".join(token.text for token in tokens)
