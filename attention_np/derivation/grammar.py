r"""How resolved tokens make an expression: the precedence rules, for Lark's LALR parser.

The reader (:mod:`.reader`) has by then turned everything that has its own braces (fractions, roots, names with their
indices, the head of a sum) into a single token. What is left is what mathematicians leave to convention:

- a sum, a product and the operator ``\\frac{\\partial}{\\partial x}`` take the whole product term that follows;
- a function takes its brackets, or one factor; when another factor follows the latter, the reader of the page would
  have to guess (``\\exp x y``), so that is an error;
- ``a / b c`` is an error for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedInput, VisitError

from attention_np.derivation import nodes
from attention_np.derivation.errors import Fault, Span

_GRAMMAR = r"""
    ?start: condition
    ?condition: relation ((AND | OR) relation)*
    ?relation: expression (RELATION expression)*
    ?expression: (MINUS | PLUS)? term ((PLUS | MINUS) term)*
    ?term: factor (OPERATOR? factor)*
    ?factor: postfix | bare | big
    big: BIG term
    bare: FUNCTION (plain | bare | big | call)
    ?call: FUNCTION OPEN arguments CLOSE -> called
    ?plain: simple
          | plain SUPERSCRIPT             -> superscript
          | plain SUBSCRIPT               -> subscript
    ?postfix: simple
            | call
            | OPEN arguments CLOSE            -> bracket
            | postfix SUPERSCRIPT             -> superscript
            | postfix SUBSCRIPT               -> subscript
    ?simple: NODE                         -> node
           | LBAR expression RBAR         -> magnitude
    arguments: condition (COMMA condition)*
    %declare PLUS MINUS OPERATOR BIG FUNCTION SUPERSCRIPT SUBSCRIPT OPEN CLOSE LBAR RBAR NODE COMMA AND OR RELATION
"""


@dataclass(frozen=True)
class Head:
    r"""The content of a BIG or FUNCTION token: ``\\sum_{j}``, ``\\tanh^2``; ``below`` makes a derivative."""

    kind: str
    bound: nodes.Bound | None = None
    power: nodes.Node | None = None
    below: Callable[[Span, nodes.Node], nodes.Node] | None = None


@dataclass(frozen=True)
class Script:
    """The content of a SUPERSCRIPT or SUBSCRIPT token."""

    transpose: bool = False
    elementwise: bool = False
    exponent: nodes.Node | None = None
    indices: tuple[nodes.Node, ...] = ()


class Resolved(Token):
    """A token for the parser that carries a piece of the tree."""

    content: Any

    @classmethod
    def make(cls, kind: str, span: Span, content: Any = None, text: str = "") -> Resolved:
        """A token of the given type, with its place."""
        token = cls(kind, text, start_pos=span[0], end_pos=span[1])
        token.content = content
        return token


def _place(token: Token) -> Span:
    return token.start_pos or 0, token.end_pos or 0


def _join(first: Span, last: Span) -> Span:
    return min(first[0], last[0]), max(first[1], last[1])


def _span_of_both(left: Token, right: Token) -> Span:
    """From a bracket or bar to the one that closes it, which must be of its kind."""
    if f"{left}{right}" not in ("()", "[]", "absabs", "normnorm"):
        raise Fault("syntax", f"{_MISPLACED[right.type]} cannot stand here", _place(right))
    return _join(_place(left), _place(right))


def number(node: nodes.Node) -> nodes.Node:
    """The expression, unless it is a condition."""
    if isinstance(node, nodes.CONDITIONS):
        raise Fault("syntax", "a condition cannot stand here; for its truth value write [condition]", node.span)
    return node


_ENDS_A_TERM = {
    "slash": "what does the slash divide by? Use \\frac, or brackets",
    "mod": "put brackets around the remainder",
}
_SIGNS = {"PLUS": 1, "MINUS": -1}
Item: TypeAlias = "Token | nodes.Node"


@v_args(inline=True)
class _Builder(Transformer[Token, Any]):
    """Makes nodes while the parser reduces, so no tree is walked recursively."""

    def expression(self, *items: Item) -> nodes.Node:
        terms: list[nodes.Node] = []
        signs: list[tuple[int, Span | None]] = [] if isinstance(items[0], Token) else [(1, None)]
        for item in items:
            if isinstance(item, Token):
                signs.append((_SIGNS[item.type], _place(item)))
            else:
                terms.append(item)
        span = _join(signs[0][1] or terms[0].span, terms[-1].span)
        return nodes.Add(span, tuple(terms), tuple(signs))

    def term(self, *items: Item) -> nodes.Node:
        factors, operators, operator = [], [], ""
        for item in items:
            if isinstance(item, Token):
                operator = str(item)
            else:
                factors.append(item)
                operators.append(operator)
                operator = ""
        for before, after in pairwise(factors):
            if isinstance(before, nodes.Call) and before.bare and not isinstance(after, nodes.Call):
                message = f"does the argument of {before.text} go on here? Put it in brackets"
                raise Fault("syntax", message, after.span)
        for operator, factor in zip(operators[1:], factors[2:], strict=False):
            if operator in _ENDS_A_TERM:
                raise Fault("syntax", _ENDS_A_TERM[operator], factor.span)
        return nodes.Mul(_join(factors[0].span, factors[-1].span), tuple(factors), tuple(operators))

    def big(self, token: Resolved, body: nodes.Node) -> nodes.Node:
        head: Head = token.content
        span = _join(_place(token), body.span)
        if head.below is not None:
            return head.below(span, body)
        assert head.bound is not None
        return nodes.Reduce(span, head.kind, head.bound, body)

    def bare(self, token: Resolved, body: nodes.Node) -> nodes.Node:
        return self._call(token, (body,), _join(_place(token), body.span), True)

    def called(self, token: Resolved, left: Token, body: list[nodes.Node], right: Token) -> nodes.Node:
        span = _span_of_both(left, right)
        return self._call(token, tuple(map(number, body)), _join(_place(token), span), False)

    def _call(self, token: Resolved, body: tuple[nodes.Node, ...], span: Span, bare: bool) -> nodes.Node:
        head: Head = token.content
        call = nodes.Call(span, head.kind, body, head.bound, bare, str(token))
        return call if head.power is None else nodes.Power(span, call, head.power)

    def superscript(self, base: nodes.Node, token: Resolved) -> nodes.Node:
        script: Script = token.content
        place = _place(token)
        span = _join(base.span, place)
        if script.transpose:
            return nodes.Transpose(span, base, place)
        assert script.exponent is not None
        return nodes.Power(span, base, script.exponent, script.elementwise, place)

    def subscript(self, base: nodes.Node, token: Resolved) -> nodes.Node:
        return nodes.Indexed(_join(base.span, _place(token)), base, token.content.indices)

    def node(self, token: Resolved) -> nodes.Node:
        content: nodes.Node = token.content
        return content

    def magnitude(self, left: Token, body: nodes.Node, right: Token) -> nodes.Node:
        text = "|...|" if left == "abs" else "\\lVert...\\rVert"
        return nodes.Call(_span_of_both(left, right), str(left), (body,), text=text)

    def bracket(self, left: Token, body: list[nodes.Node], right: Token) -> nodes.Node:
        span = _span_of_both(left, right)
        if len(body) > 1:
            return nodes.Matrix(span, tuple((number(entry),) for entry in body))
        if left == "[" and isinstance(body[0], nodes.CONDITIONS):
            return nodes.Iverson(span, body[0])
        return nodes.Group(span, number(body[0]))

    def arguments(self, *items: Item) -> list[nodes.Node]:
        return [item for item in items if isinstance(item, nodes.Node)]

    def condition(self, *items: Any) -> nodes.Node:
        parts, words = items[::2], items[1::2]
        for word, part in zip(words, parts[1:], strict=True):
            if word.type != words[0].type:
                message = '"and" mixed with "or" needs brackets, which conditions do not have'
                raise Fault("syntax", message, part.span)
        for part in parts:
            if not isinstance(part, nodes.Compare):
                raise Fault("syntax", "a condition such as j \\le i is needed here", part.span)
        return nodes.Both(_join(parts[0].span, parts[-1].span), parts, words[0].type.lower())

    def relation(self, *items: Any) -> nodes.Node:
        sides = tuple(item for item in items if isinstance(item, nodes.Node))
        relations = tuple(str(item) for item in items if isinstance(item, Token))
        seen: set[str] = set()
        for side in sides:
            if isinstance(side, nodes.IndexRef):
                if side.name in seen:
                    raise Fault("shape", f"index {side.name} is compared with itself", side.span)
                seen.add(side.name)
        return nodes.Compare(_join(sides[0].span, sides[-1].span), sides, relations)


_MISPLACED = {
    "COMMA": "a comma",
    "RELATION": "a relation",
    "PLUS": "a plus sign",
    "MINUS": "a minus sign (a factor with a sign needs brackets)",
    "OPERATOR": "an operator",
    "CLOSE": "this bracket",
    "RBAR": "this bar",
}
_PARSER = Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Builder(), maybe_placeholders=False)


def parse(tokens: Sequence[Resolved], whole: Span) -> nodes.Node:
    """The tree of a resolved token list; ``whole`` is the place to blame when it stops too early."""
    if len(tokens) == 1 and tokens[0].type == "NODE":
        return tokens[0].content  # type: ignore[no-any-return]
    run = _PARSER.parse_interactive()
    last = whole
    try:
        for token in tokens:
            last = _place(token)
            run.feed_token(token)
        last = (max(whole[0], whole[1] - 1), whole[1])
        result = run.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedInput as error:
        token_type = getattr(getattr(error, "token", None), "type", "$END")
        if token_type == "$END":
            raise Fault("syntax", "the expression stops too early", last) from None
        raise Fault("syntax", f"{_MISPLACED.get(token_type, 'this')} cannot stand here", last) from None
    except VisitError as error:
        if isinstance(error.orig_exc, Fault):
            raise error.orig_exc from None
        raise
    if not isinstance(result, nodes.Node):
        raise Fault("syntax", "the expression stops too early", last)
    return result
