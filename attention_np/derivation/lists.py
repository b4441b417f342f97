"""Names and index lists: which symbol a run of tokens is, and what stands in a subscript or under a sum."""

from __future__ import annotations

from attention_np.derivation import limits, nodes
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.names import Names, Symbol, base, family, make_key, without_index
from attention_np.derivation.tokens import Token, Tokens, closing, span_of, split


class ListReader:
    """The part of the reader that knows the names of its place of a page."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def expression(self, tokens: Tokens, owner: Span) -> nodes.Node:
        """The tree of an expression that is not a condition."""
        raise NotImplementedError

    def condition(self, tokens: Tokens, owner: Span) -> nodes.Node:
        """The tree of a condition."""
        raise NotImplementedError

    def _number(self, token: Token) -> nodes.Number:
        if len(token.text) > limits.NUMBER_CHARACTERS:
            raise Fault("limit", f"a number of more than {limits.NUMBER_CHARACTERS} characters", token.span)
        return nodes.Number(token.span, token.text)

    def lookup(
        self, stem: str, below: Tokens | None, above: Tokens | None
    ) -> tuple[Symbol | None, Tokens | None, Tokens | None]:
        """The longest known name among a base and its scripts, and the scripts that are left over."""
        front, index = without_index(above)
        choices: list[tuple[Tokens | None, Tokens | None, Tokens | None, Tokens | None]]
        choices = [(below, above, None, None), (None, above, below, None)]
        if index is not None:
            for name_below, rest_below in ((below, None), (None, below)):
                symbol = self.names.get(family(stem, name_below, front))
                if symbol is not None:
                    return symbol, rest_below, index
            choices += [(below, front, None, index), (None, front, below, index)]
        choices += [(below, None, None, above), (None, None, below, above)]
        for name_below, name_above, rest_below, rest_above in choices:
            symbol = self.names.get(make_key(stem, name_below, name_above))
            if symbol is not None:
                return symbol, rest_below, rest_above
        return self._symbol(stem), below, above

    def _symbol(self, key: str) -> Symbol | None:
        """The symbol of a key; a primed index runs over the range of the index without primes."""
        symbol = self.names.get(key)
        if symbol is None and key.endswith("'"):
            plain = self.names.get(key.rstrip("'"))
            if plain is not None and plain.kind == "index":
                symbol = Symbol(key, "index", plain.axes)
                self.names.add(symbol)
        return symbol

    def index_list(self, inside: Tokens, symbol: Symbol | None, owner: Span) -> tuple[nodes.Node, ...]:
        """What stands in a subscript: letters side by side, or anything that counts, between commas."""
        tokens = [token for token in inside if token.type != "WIDE"]
        pieces = [piece for piece, _ in split(tokens, frozenset([","]))]
        if len(pieces) > limits.AXES:
            raise Fault("limit", f"more than {limits.AXES} indices", owner)
        if len(pieces) == 1:
            axes = len(symbol.axes) if symbol is not None and symbol.axes is not None else None
            found = self._side_by_side(pieces[0], axes)
            if found is not None:
                if len(found) > limits.AXES:
                    raise Fault("limit", f"more than {limits.AXES} indices", owner)
                return found
        return tuple(self._index(piece, owner) for piece in pieces)

    def _index(self, piece: list[Token], owner: Span) -> nodes.Node:
        if len(piece) == 1 and piece[0].text == ":":
            return nodes.Slice(piece[0].span)
        return self.expression(piece, owner)

    def _side_by_side(self, piece: list[Token], axes: int | None) -> tuple[nodes.Node, ...] | None:
        found: list[nodes.Node] = []
        position = 0
        while position < len(piece):
            token = piece[position]
            if token.text == ":":
                found.append(nodes.Slice(token.span))
                position += 1
            elif token.text == "{":
                stop = closing(piece, position)
                inside = self._side_by_side(piece[position + 1 : stop], axes)
                if not inside or (stop + 1 < len(piece) and piece[stop + 1].text in ("_", "^")):
                    return None
                found += inside
                position = stop + 1
            elif token.type == "NUMBER" and token.text.isdigit():
                if len(piece) == 1 and axes == 1:
                    found.append(self._number(token))
                else:
                    found += [
                        nodes.Number((token.start + k, token.start + k + 1), digit)
                        for k, digit in enumerate(token.text[: limits.AXES + 1])
                    ]
                position += 1
            else:
                name = base(piece, position)
                symbol = self._symbol(name[0]) if name else None
                if name is None or symbol is None or symbol.kind != "index":
                    return None
                if name[1] < len(piece) and piece[name[1]].text in ("_", "^"):
                    return None
                found.append(nodes.IndexRef((token.start, piece[name[1] - 1].stop), symbol.key))
                position = name[1]
        return tuple(found)

    def bound(self, below: Tokens, above: Tokens | None, owner: Span) -> nodes.Bound:
        """What stands under (and over) a sum or a maximum."""
        names: list[str] = []
        spans: list[Span] = []
        conditions: list[nodes.Node] = []
        span = span_of(below, owner)
        for piece, _ in split([token for token in below if token.type != "WIDE"], frozenset([",", ":"])):
            found = self._side_by_side(piece, None)
            if found is not None:
                for item in found:
                    if not isinstance(item, nodes.IndexRef):
                        raise Fault("syntax", "an index is needed here", item.span)
                    names.append(item.name)
                    spans.append(item.span)
                continue
            condition = self.condition(piece, owner)
            sides = condition.sides if isinstance(condition, nodes.Compare) else ()
            lone = [side for side in sides if isinstance(side, nodes.IndexRef)]
            # In "1 <= j <= i" the index in the middle is bound, in "j <= i" the first.
            if len(sides) == 3 and isinstance(sides[1], nodes.IndexRef):
                lone = [sides[1]]
            if lone and lone[0].name not in names:
                names.append(lone[0].name)
                spans.append(lone[0].span)
            elif not lone:
                raise Fault("syntax", "which index runs here? Write it first: j \\le i", condition.span)
            if above is not None and isinstance(condition, nodes.Compare) and condition.relations == ("=",):
                upper = self.expression(above, owner)
                condition = nodes.Compare(condition.span, (condition.sides[1], condition.sides[0], upper), ("<=", "<="))
                above = None
            conditions.append(condition)
        if above is not None:
            raise Fault("syntax", "an upper limit needs a lower one: j = 1", span_of(above, owner))
        if len(set(names)) < len(names):
            raise Fault("shape", "the same index is bound twice here", span)
        joined: nodes.Node | None = None
        if conditions:
            joined = conditions[0]
            if len(conditions) > 1:
                joined = nodes.Both((conditions[0].span[0], conditions[-1].span[1]), tuple(conditions), "and")
        return nodes.Bound(tuple(names), tuple(spans), joined, span)
