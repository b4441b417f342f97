r"""Names of a page: the key of a run of LaTeX tokens, and the table of the symbols that are known.

A name is a base with optional scripts, and is known by a *key* in which spelling no longer matters: ``d_k`` and
``d_{k}`` have the same key, ``\\operatorname{max}`` and ``\\mathrm{max}`` too. A base is a letter, a Greek letter, or
either under an accent or in a font, with its primes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from attention_np.derivation import limits
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.tokens import ACCENTS, FONTS, Token, Tokens, argument, commands, tokenize

GREEK = commands(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi rho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell"
)
_SAME = {"\\operatorname": "\\mathrm", "\\bm": "\\boldsymbol", "\\widehat": "\\hat", "\\widetilde": "\\tilde"}

SymbolKind = Literal["tensor", "size", "index", "defined"]


@dataclass(frozen=True)
class Symbol:
    """A known name. ``axes`` are range names (None while a definition in matrix form is not evaluated)."""

    key: str
    kind: SymbolKind
    axes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Scripts:
    """The tokens below and above a base, and the position behind them; None for a script that a base has not."""

    below: tuple[Token, ...] | None
    above: tuple[Token, ...] | None
    stop: int
    above_span: Span = (0, 0)


class Names:
    """The names that are known at one place of a page."""

    def __init__(self, symbols: dict[str, Symbol] | None = None) -> None:
        self._symbols = dict(symbols or {})

    def copy(self) -> Names:
        """An independent table with the same names."""
        return Names(self._symbols)

    def get(self, key: str) -> Symbol | None:
        """The symbol of that key, if it is known."""
        return self._symbols.get(key)

    def lookup(
        self, stem: str, below: Tokens | None, above: Tokens | None
    ) -> tuple[Symbol | None, Tokens | None, Tokens | None]:
        """The longest known name among a base and its scripts, and the scripts that are left over."""
        front, index = without_index(above)
        choices: list[tuple[Tokens | None, Tokens | None, Tokens | None, Tokens | None]]
        choices = [(below, above, None, None), (None, above, below, None)]
        if index is not None:
            for name_below, rest_below in ((below, None), (None, below)):
                symbol = self.get(family(stem, name_below, front))
                if symbol is not None:
                    return symbol, rest_below, index
            choices += [(below, front, None, index), (None, front, below, index)]
        choices += [(below, None, None, above), (None, None, below, above)]
        for name_below, name_above, rest_below, rest_above in choices:
            symbol = self.get(make_key(stem, name_below, name_above))
            if symbol is not None:
                return symbol, rest_below, rest_above
        return self.known(stem), below, above

    def known(self, key: str) -> Symbol | None:
        """The symbol of that key, if it is known; a primed index runs over the range of the index without primes."""
        symbol = self.get(key)
        if symbol is None and key.endswith("'"):
            unprimed = self.get(key.rstrip("'"))
            if unprimed is not None and unprimed.kind == "index":
                symbol = Symbol(key, "index", unprimed.axes)
                self.add(symbol)
        return symbol

    def range_of(self, index: str) -> str:
        """The range that a known index runs over."""
        (axis,) = self._symbols[index].axes or ()
        return axis

    def add(self, symbol: Symbol, span: Span | None = None) -> None:
        """Make a name known; a name means one thing on a page."""
        if symbol.key in self._symbols:
            raise Fault("page", f"{symbol.key} is declared twice", span)
        if len(self._symbols) >= limits.NAMES:
            raise Fault("limit", f"more than {limits.NAMES} names on one page", span)
        self._symbols[symbol.key] = symbol

    @contextmanager
    def knowing(self, symbol: Symbol, span: Span) -> Iterator[None]:
        """Within this, one name more is known."""
        self.add(symbol, span)
        try:
            yield
        finally:
            del self._symbols[symbol.key]

    def settle(self, key: str, axes: tuple[str, ...]) -> None:
        """Write down the axes of a definition, once they are known."""
        self._symbols[key] = Symbol(key, self._symbols[key].kind, axes)

    def of_kind(self, *kinds: SymbolKind) -> list[Symbol]:
        """All symbols of these kinds, in the order in which they were added."""
        return [symbol for symbol in self._symbols.values() if symbol.kind in kinds]


def spelling(tokens: Sequence[Token]) -> str:
    """Tokens as one normal string."""
    parts = []
    for token in tokens:
        if token.type == "TEXT":
            parts.append("\\mathrm{" + token.inner + "}")
        else:
            parts.append(_SAME.get(token.text, token.text))
    # A command must not run into a letter that follows it, and "\top k" must not become "\topk".
    text = ""
    for part in parts:
        if text and text[-1].isalpha() and part[0].isalpha() and _ends_in_command(text):
            text += " "
        text += part
    return text


def _ends_in_command(text: str) -> bool:
    stem = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return stem.endswith("\\")


def base(tokens: Tokens, start: int) -> tuple[str, int] | None:
    """The key of the base name at ``start`` and the position behind it, or None if no name stands there."""
    if start >= len(tokens):
        return None
    token = tokens[start]
    stop = start + 1
    if token.type == "LETTER" or token.text in GREEK:
        key = token.text
    elif token.type == "TEXT":
        if not token.inner.isalpha():
            return None
        key = "\\mathrm{" + token.inner + "}"
    elif token.text in ACCENTS or token.text in FONTS:
        inside, stop = argument(tokens, start + 1, token.span)
        if token.text in FONTS:
            if not inside or any(item.type not in ("LETTER", "NUMBER") and item.text not in GREEK for item in inside):
                return None
        else:
            inner = base(inside, 0)
            if inner is None or inner[1] != len(inside):
                return None
        key = _SAME.get(token.text, token.text) + "{" + spelling(inside) + "}"
    else:
        return None
    while stop < len(tokens) and tokens[stop].type == "PRIME":
        key += tokens[stop].text
        stop += 1
    if len(key) > limits.NAME_CHARACTERS:
        raise Fault("limit", f"a name of more than {limits.NAME_CHARACTERS} characters", token.span)
    return key, stop


def scripts(tokens: Tokens, start: int) -> Scripts:
    """Up to one subscript and one superscript, in either order."""
    below: tuple[Token, ...] | None = None
    above: tuple[Token, ...] | None = None
    above_span = (0, 0)
    position = start
    while position < len(tokens) and tokens[position].text in ("_", "^"):
        mark = tokens[position]
        inside, after = argument(tokens, position + 1, mark.span)
        if mark.text == "_":
            if below is not None:
                raise Fault("syntax", "a second subscript", mark.span)
            below = tuple(inside)
        else:
            if above is not None:
                break  # (x^2)^3 without its brackets: TeX refuses it, and so does the reader
            above = tuple(inside)
            above_span = (mark.start, tokens[after - 1].stop)
        if not inside:
            raise Fault("syntax", "an empty script", mark.span)
        position = after
    if position < len(tokens) and tokens[position].text == "^":
        raise Fault("syntax", "a second superscript", tokens[position].span)
    return Scripts(below, above, position, above_span)


def make_key(stem: str, below: Tokens | None, above: Tokens | None) -> str:
    """The key of a base with those scripts."""
    key = stem
    if below:
        key += "_{" + spelling(below) + "}"
    if above:
        key += "^{" + spelling(above) + "}"
    return key


def family(stem: str, below: Tokens | None, above: Tokens | None) -> str:
    """The key of ``Q^{(h)}``, which is one tensor with h as its first index, and not the tensor ``Q``."""
    return make_key(stem, below, above) + "()"


def plain(key: str) -> str:
    """A name as it may stand in a message."""
    return key.replace("{", "").replace("}", "")


def of_tangent(key: str) -> str:
    r"""The key of X, if this one is that of its tangent ``\\dot{X}``."""
    if not key.startswith("\\dot{"):
        return ""
    depth = 0
    for position in range(4, len(key)):
        depth += (key[position] == "{") - (key[position] == "}")
        if depth == 0:
            break
    return key[5:position] + key[position + 1 :]


@lru_cache(1024)  # the same few names stand in all pages
def parse_name(text: str) -> str:
    """The key of a name as written in the front matter."""
    if len(text) > limits.NAME_CHARACTERS:
        raise Fault("limit", f"a name of more than {limits.NAME_CHARACTERS} characters")
    try:
        tokens = tokenize(text)
        name = base(tokens, 0)
        if name is None:
            raise Fault("page", f"{text!r} is not a name")
        stem, after = name
        rest = scripts(tokens, after)
        if rest.stop != len(tokens):
            raise Fault("page", f"{text!r} is not a single name")
    except Fault as fault:
        raise Fault("page", f"the name {text!r}: {fault.message}") from None
    front, index = without_index(rest.above)
    return make_key(stem, rest.below, rest.above) if index is None else family(stem, rest.below, front)


def without_index(above: Tokens | None) -> tuple[Tokens | None, Tokens | None]:
    """A superscript such as ``O(h)`` as the part of the name, ``O``, and the index part, ``(h)``."""
    if above is None or len(above) < 3 or above[-1].text != ")":
        return above, None
    for position in range(len(above) - 2, -1, -1):
        if above[position].text == "(":
            front = list(above[:position])
            while front and front[-1].text == ",":
                front.pop()
            return front or None, list(above[position:])
    return above, None
