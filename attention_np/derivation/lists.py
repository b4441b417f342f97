"""Index lists: subscripts, and the indices and conditions under a sum."""

from __future__ import annotations

from collections.abc import Callable

from attention_np.derivation import limits, nodes
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.names import Names, Symbol, base
from attention_np.derivation.tokens import Token, Tokens, closing, span_of, split

Read = Callable[[Tokens, Span], nodes.Node]


class IndexLists:
    """Reads index lists with the names of one place of a page; two functions read the expressions in them."""

    def __init__(self, names: Names, expression: Read, condition: Read) -> None:
        self.names = names
        self._expression = expression
        self._condition = condition

    def subscript(self, inside: Tokens, symbol: Symbol | None, owner: Span) -> tuple[nodes.Node, ...]:
        """The indices in a subscript: letters side by side, or anything that counts, between commas."""
        tokens = [token for token in inside if token.type != "WIDE"]
        pieces = [piece for piece, _ in split(tokens, frozenset([","]))]
        indices: tuple[nodes.Node, ...] | None = None
        if len(pieces) == 1:
            axes = len(symbol.axes) if symbol is not None and symbol.axes is not None else None
            indices = self.side_by_side(pieces[0], axes)
        if len(pieces if indices is None else indices) > limits.AXES:
            raise Fault("limit", f"more than {limits.AXES} indices", owner)
        return tuple(self._index(piece, owner) for piece in pieces) if indices is None else indices

    def _index(self, piece: list[Token], owner: Span) -> nodes.Node:
        if len(piece) == 1 and piece[0].text == ":":
            return nodes.Slice(piece[0].span)
        return self._expression(piece, owner)

    def side_by_side(self, piece: list[Token], axes: int | None = None) -> tuple[nodes.Node, ...] | None:
        """The indices in a piece that has no operations, None if it has some; ``axes`` are those of the symbol."""
        indices: list[nodes.Node] = []
        position = 0
        while position < len(piece):
            token = piece[position]
            if token.text == ":":
                indices.append(nodes.Slice(token.span))
                position += 1
            elif token.text == "{":
                stop = closing(piece, position)
                inside = self.side_by_side(piece[position + 1 : stop], axes)
                if not inside or _has_script(piece, stop + 1):
                    return None
                indices += inside
                position = stop + 1
            elif token.type == "NUMBER" and token.text.isdigit():
                indices += [literal(token)] if len(piece) == 1 and axes == 1 else _digits(token)
                position += 1
            else:
                name = base(piece, position)
                symbol = self.names.known(name[0]) if name else None
                if name is None or symbol is None or symbol.kind != "index" or _has_script(piece, name[1]):
                    return None
                indices.append(nodes.IndexRef((token.start, piece[name[1] - 1].stop), symbol.key))
                position = name[1]
        return tuple(indices)

    def bound(self, below: Tokens, above: Tokens | None, owner: Span) -> nodes.Bound:
        """The indices that a sum or a maximum binds, and the condition on them, from the tokens below and above it."""
        indices: dict[str, Span] = {}
        conditions: list[nodes.Node] = []
        span = span_of(below, owner)
        for piece, _ in split([token for token in below if token.type != "WIDE"], frozenset([",", ":"])):
            letters = self.side_by_side(piece)
            if letters is None:
                condition = self._condition(piece, owner)
                index = _running(condition)
                indices.setdefault(index.name, index.span)
                if above is not None and isinstance(condition, nodes.Compare) and condition.relations == ("=",):
                    left, right = condition.sides
                    upper, above = self._expression(above, owner), None
                    condition = nodes.Compare(condition.span, (right, left, upper), ("<=", "<="))
                conditions.append(condition)
            for letter in letters or ():
                if not isinstance(letter, nodes.IndexRef):
                    raise Fault("syntax", "an index is needed here", letter.span)
                if letter.name in indices:
                    raise Fault("shape", "the same index is bound twice here", span)
                indices[letter.name] = letter.span
        if above is not None:
            raise Fault("syntax", "an upper limit needs a lower one: j = 1", span_of(above, owner))
        joined = conditions[0] if conditions else None
        if len(conditions) > 1:
            joined = nodes.Both((conditions[0].span[0], conditions[-1].span[1]), tuple(conditions), "and")
        return nodes.Bound(tuple(indices), tuple(indices.values()), joined, span)


def literal(token: Token) -> nodes.Number:
    """A number as printed."""
    if len(token.text) > limits.NUMBER_CHARACTERS:
        raise Fault("limit", f"a number of more than {limits.NUMBER_CHARACTERS} characters", token.span)
    return nodes.Number(token.span, token.text)


def _digits(token: Token) -> list[nodes.Number]:
    """The indices of ``S_{12}``, no more of them than are needed to see that they are too many."""
    digits = enumerate(token.text[: limits.AXES + 1], token.start)
    return [nodes.Number((place, place + 1), digit) for place, digit in digits]


def _has_script(piece: Tokens, position: int) -> bool:
    return position < len(piece) and piece[position].text in ("_", "^")


def _running(condition: nodes.Node) -> nodes.IndexRef:
    """The index that a condition under a sum binds: in "1 <= j <= i" the one in the middle, in "j <= i" the first."""
    sides = condition.sides if isinstance(condition, nodes.Compare) else ()
    if len(sides) == 3 and isinstance(sides[1], nodes.IndexRef):
        return sides[1]
    for side in sides:
        if isinstance(side, nodes.IndexRef):
            return side
    raise Fault("syntax", "which index runs here? Write it first: j \\le i", condition.span)
