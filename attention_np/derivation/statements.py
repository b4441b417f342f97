"""A displayed equation as statements: chains of sides with a relation between neighbours.

One display can hold several statements, on the lines of an ``aligned`` or between commas. A line of an ``aligned``
that begins with ``&``, or that has no relation, continues the statement before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from attention_np.derivation import nodes
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.lists import IndexLists
from attention_np.derivation.names import Names, Scripts, Symbol, base, family, make_key, scripts, without_index
from attention_np.derivation.reader import Reader
from attention_np.derivation.tokens import (
    RELATIONS,
    Token,
    Tokens,
    closing,
    ending,
    opened,
    span_of,
    split,
    text_of,
    tokenize,
)

_ALIGNED = frozenset(["aligned", "align", "align*", "split", "gathered", "alignedat"])
_JOINS = frozenset([*RELATIONS, "+", "-", "\\cdot", "\\times", "\\odot", ":"])
_CONDITION_WORDS = frozenset(["if", "for", "when", "where"])
_ALL_WORDS = frozenset(["for all", "for every", "for each"])


@dataclass(frozen=True)
class Target:
    """The left side of a definition: the new name and its indices."""

    key: str
    indices: tuple[str, ...]
    span: Span


@dataclass(frozen=True)
class Statement:
    """``sides[k] relations[k] sides[k + 1]``; the first side is None where ``target`` is defined."""

    sides: tuple[nodes.Node | None, ...]
    relations: tuple[str, ...]
    places: tuple[Span, ...]  # of the relations
    target: Target | None
    condition: nodes.Node | None
    span: Span

    @property
    def first(self) -> nodes.Node:
        """The first side, or the one that a definition gives to its name."""
        return next(side for side in self.sides if side is not None)

    @property
    def claims(self) -> range:
        """The positions of the relations that must hold: all but the one of a definition."""
        return range(self.target is not None, len(self.relations))

    @property
    def uses(self) -> frozenset[str]:
        """The tensors in it, but for the one that it defines: `X = a = X` does not hold that to account."""
        parts = [node for node in (*self.sides, self.condition) if node is not None]
        return frozenset().union(*(node.tensors for node in parts)) - {self.target.key if self.target else ""}

    @property
    def has_derivative(self) -> bool:
        """Whether something is differentiated in one of its sides."""
        return any(side.has_derivative for side in self.sides if side is not None)

    @property
    def mentions_name(self) -> bool:
        """Whether a tensor, an index or a size stands in one of its sides."""
        walked = (node for side in self.sides if side is not None for node in side.walk)
        return any(isinstance(node, (nodes.Ref, nodes.IndexRef, nodes.SizeRef)) for node in walked)


@dataclass(frozen=True)
class Chain:
    """A statement before its sides are read."""

    sides: tuple[list[Token], ...]
    relations: tuple[Token, ...]
    condition: list[Token]
    span: Span


@lru_cache(256)  # an equation of a worked example is read twice
def chains(text: str) -> tuple[Chain, ...]:
    """The statements of an equation, still as tokens."""
    tokens = tokenize(text)
    while tokens and (tokens[-1].type == "WIDE" or tokens[-1].text in (",", ".", ";")):
        tokens.pop()
    if not tokens:
        raise Fault("syntax", "the equation is empty", (0, max(1, len(text))))
    statements: list[Chain] = []
    for line in _lines(tokens):
        statements += _separate(line)
    return tuple(statements)


def _lines(tokens: list[Token]) -> list[list[Token]]:
    if tokens[0].type != "BEGIN" or tokens[0].inner not in _ALIGNED:
        for token in tokens:
            if token.type == "BEGIN" and token.inner in _ALIGNED:
                raise Fault("syntax", "an aligned block must be the whole equation", token.span)
        _refuse_breaks(tokens)
        return [tokens]
    stop = ending(tokens, 0)
    if stop != len(tokens) - 1:
        raise Fault("syntax", "an aligned block must be the whole equation", tokens[stop + 1].span)
    lines: list[list[Token]] = []
    for row, mark in split(tokens[1:stop], frozenset(["\\\\"])):
        content = [token for piece, _ in split(row, frozenset(["&"])) for token in piece]
        if not content:
            if mark is not None and not row:
                raise Fault("syntax", "an empty line", mark.span)
            continue
        continues = row[0].text == "&" or not any(True for _ in _relations(content))
        if lines and continues:
            lines[-1] += content
        else:
            lines.append(content)
    if not lines:
        raise Fault("syntax", "the equation is empty", tokens[0].span)
    return lines


def _refuse_breaks(tokens: list[Token]) -> None:
    depth = 0
    for token in tokens:
        depth += (token.type == "BEGIN") - (token.type == "END")
        if depth == 0 and (token.type == "BREAK" or token.text == "&"):
            raise Fault("syntax", "this needs an aligned block around it", token.span)


def _relations(tokens: list[Token]) -> list[int]:
    """Where relations stand outside of all brackets."""
    depth = 0
    places: list[int] = []
    for position, token in enumerate(tokens):
        depth += opened(token)
        if depth < 0:
            raise Fault("syntax", "this bracket cannot stand here: it closes nothing", token.span)
        if depth == 0 and token.text in RELATIONS:
            places.append(position)
    if depth > 0:
        raise Fault("syntax", "a bracket is opened here and never closed", span_of(tokens, (0, 1)))
    return places


def _separate(tokens: list[Token]) -> list[Chain]:
    pieces: list[list[Token]] = [[]]
    conditions: list[list[Token]] = [[]]
    in_condition = False
    depth = 0
    for token in tokens:
        depth += opened(token)
        word = token.inner if token.type == "TEXT" else ""
        if depth == 0 and word and word in _CONDITION_WORDS | _ALL_WORDS:
            in_condition = True
            conditions[-1].append(token)
        elif depth == 0 and (token.text in (",", ";") or (word == "and" and not in_condition)):
            if in_condition:
                conditions[-1].append(token)
            elif pieces[-1]:
                pieces.append([])
                conditions.append([])
        elif in_condition:
            conditions[-1].append(token)
        else:
            pieces[-1].append(token)
    statements: list[Chain] = []
    for piece, condition in zip(pieces, conditions, strict=True):
        piece = _without_wide(piece)
        if not piece:
            if condition and statements:
                if statements[-1].condition:
                    raise Fault("syntax", "a second condition", condition[0].span)
                statements[-1] = Chain(statements[-1].sides, statements[-1].relations, condition, statements[-1].span)
                continue
            if condition:
                raise Fault("syntax", "a condition of what?", condition[0].span)
            continue
        statements.append(_chain(piece, condition))
    return statements


def _without_wide(piece: list[Token]) -> list[Token]:
    """A piece without its wide spaces, which cannot stand between two factors: there a comma is missing."""
    depth = 0
    for position, token in enumerate(piece):
        depth += opened(token)
        if depth == 0 and token.type == "WIDE":
            around = piece[max(0, position - 1) : position], piece[position + 1 : position + 2]
            if all(side and side[0].type != "WIDE" and side[0].text not in _JOINS for side in around):
                raise Fault("syntax", "a wide space inside of an expression: is a comma missing?", token.span)
    return [token for token in piece if token.type != "WIDE"]


def _chain(piece: list[Token], condition: list[Token]) -> Chain:
    span = span_of(piece, (0, 1))
    places = _relations(piece)
    if not places:
        raise Fault("syntax", "there is no relation here: nothing is claimed", span)
    sides = []
    for first, last in zip([-1, *places], [*places, len(piece)], strict=True):
        side = piece[first + 1 : last]
        if side and side[-1].text == ":":  # ":=" is "="
            side = side[:-1]
        while side and side[0].text == "{" and closing(side, 0) == len(side) - 1:
            side = side[1:-1]
        if not side:
            raise Fault("syntax", "this relation has an empty side", piece[min(last, len(piece) - 1)].span)
        sides.append(side)
    return Chain(tuple(sides), tuple(piece[place] for place in places), condition, span)


def read_statement(chain: Chain, names: Names) -> Statement:
    """Read the sides of a chain with the names that are known at its place."""
    reader = Reader(names)
    target = find_target(chain, names)
    sides: list[nodes.Node | None] = []
    for position, side in enumerate(chain.sides):
        if position == 0 and target is not None:
            sides.append(None)
        elif position == 1 and target is not None and target.indices:
            axes = tuple(names.range_of(index) for index in target.indices)
            with names.knowing(Symbol(target.key, "defined", axes), target.span):  # for a recurrence
                sides.append(reader.expression(side, chain.span))
        else:
            sides.append(reader.expression(side, chain.span))
    condition = _condition(chain.condition, reader)
    if target is not None and condition is not None:
        raise Fault("syntax", "a definition has no condition: use cases", chain.condition[0].span)
    return Statement(
        tuple(sides),
        tuple(RELATIONS[token.text] for token in chain.relations),
        tuple(token.span for token in chain.relations),
        target,
        condition,
        chain.span,
    )


def _condition(tokens: list[Token], reader: Reader) -> nodes.Node | None:
    if not tokens:
        return None
    word, rest = tokens[0], [token for token in tokens[1:] if token.type != "WIDE"]
    while rest and rest[-1].text in (",", ";"):
        rest.pop()
    if word.inner in _ALL_WORDS:
        listed = reader.lists.subscript(rest, None, word.span)
        for item in listed:
            if not isinstance(item, nodes.IndexRef):
                raise Fault("syntax", "only indices can be listed here", item.span)
        return None
    return reader.condition(rest, word.span)


def find_target(chain: Chain, names: Names) -> Target | None:
    """The name that a chain defines, if its first side is a name that nobody knows yet."""
    side = list(chain.sides[0])
    name = base(side, 0)
    around = scripts(side, name[1]) if name is not None else None
    if name is None or around is None or around.stop != len(side):
        return None
    stem, lists, span = name[0], Reader(names).lists, span_of(side, (0, 1))
    if not _is_new(stem, around, lists) or _has_a_meaning(stem, around):
        return None
    indices: list[nodes.Node] = []
    below, (above, index) = around.below, without_index(around.above)
    if index is not None:
        indices += lists.subscript(list(index[1:-1]), None, span)
    if above is not None and (text_of(above) in ("T", "\\top", "-1") or any(token.type == "NUMBER" for token in above)):
        raise Fault("name", f"the symbol {stem} is not known here", span)
    if below is not None:
        letters = lists.side_by_side([token for token in below if token.type != "WIDE" and token.text != ","])
        if letters is not None and all(isinstance(letter, nodes.IndexRef) for letter in letters):
            if stem == "\\delta" and len(letters) == 2:
                return None
            indices += letters
            below = None
        elif _is_entry(below):
            raise Fault("shape", "a definition holds for all indices: letters, not numbers", span)
    keys = _distinct_letters(indices, span)
    if chain.relations[0].text != "=":
        raise Fault("name", f"the symbol {make_key(stem, below, around.above)} is not known here", span)
    return Target(make_key(stem, below, above) if index is None else family(stem, below, above), keys, span)


def _is_new(stem: str, around: Scripts, lists: IndexLists) -> bool:
    """Whether nobody knows a name, or only one that cannot have these indices.

    ``Q^{(h)}`` is a new name beside a known ``Q`` if h cannot run over the first axis of that.
    """
    symbol, below, _ = lists.names.lookup(stem, around.below, around.above)
    if symbol is None:
        return True
    index = without_index(around.above)[1]
    if index is None or symbol.key.endswith("()") or symbol.kind in ("size", "index"):
        return False
    leading = lists.subscript(list(index[1:-1]), None, (index[0].start, index[-1].stop))
    first = leading[0]
    known = lists.names.get(first.name) if isinstance(first, nodes.IndexRef) else None
    if known is None:
        return False
    if symbol.axes is None or known.axes != symbol.axes[:1]:
        return True
    count = len(leading) + (0 if below is None else len(lists.subscript(list(below), symbol, (0, 1))))
    return count > len(symbol.axes)


def _has_a_meaning(stem: str, around: Scripts) -> bool:
    """Whether a name means something although no page defines it: I, a bold 1 or 0, pi, a power of e."""
    if stem == "\\pi":
        return around.below is None
    if stem in ("e", "\\mathrm{e}"):
        return around.above is not None and around.below is None
    return stem in ("I", "\\mathbf{1}", "\\mathbb{1}", "\\mathbf{0}", "\\mathbf{I}")


def _is_entry(below: Tokens) -> bool:
    r"""Whether a subscript is that of one entry, such as ``1j``, and not that of a name, such as ``\\max``."""
    plain = all(token.type in ("NUMBER", "LETTER") or token.text == "," for token in below)
    return plain and any(token.type == "NUMBER" for token in below[1:])


def _distinct_letters(indices: list[nodes.Node], span: Span) -> tuple[str, ...]:
    keys = []
    for index in indices:
        if not isinstance(index, nodes.IndexRef):
            raise Fault("shape", "a definition has letters as indices", index.span)
        keys.append(index.name)
    if len(set(keys)) < len(keys):
        raise Fault("shape", "the same index twice on the left of a definition", span)
    return tuple(keys)
