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
    ?start: expression | condition
    expression: (MINUS | PLUS)? term ((PLUS | MINUS) term)*
    term: (postfix | bare | big) (OPERATOR? (postfix | bare | big))*
    big: BIG term
    bare: FUNCTION (plain | bare | big)
    ?plain: simple
          | plain SUPERSCRIPT             -> superscript
          | plain SUBSCRIPT               -> subscript
    ?postfix: simple
            | FUNCTION LPAREN arguments RPAREN       -> called
            | FUNCTION LBRACKET arguments RBRACKET   -> called
            | LPAREN arguments RPAREN                -> bracket
            | LBRACKET arguments RBRACKET            -> bracket
            | LBRACKET condition RBRACKET            -> iverson
            | postfix SUPERSCRIPT                    -> superscript
            | postfix SUBSCRIPT                      -> subscript
    ?simple: NODE                         -> node
           | LBAR expression RBAR         -> absolute
           | LNORM expression RNORM       -> norm
    arguments: expression (COMMA expression)*
    condition: relation ((AND | OR) relation)*
    relation: expression (RELATION expression)+
    %declare PLUS MINUS OPERATOR BIG FUNCTION SUPERSCRIPT SUBSCRIPT LPAREN RPAREN LBRACKET RBRACKET
    %declare NODE LBAR RBAR LNORM RNORM COMMA AND OR RELATION
"""


@dataclass(frozen=True)
class Head:
    r"""What a BIG or FUNCTION token carries: ``\\sum_{j}``, ``\\max_j``, ``\\tanh^2``; ``below`` makes a derivative."""

    kind: str
    bound: nodes.Bound | None = None
    power: nodes.Node | None = None
    below: Callable[[Span, nodes.Node], nodes.Node] | None = None


@dataclass(frozen=True)
class Script:
    """What a SUPERSCRIPT or SUBSCRIPT token carries."""

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
        if len(items) == 1:
            return items[0]  # type: ignore[return-value]
        terms: list[nodes.Node] = []
        signs: list[tuple[int, Span | None]] = [] if isinstance(items[0], Token) else [(1, None)]
        for item in items:
            if isinstance(item, Token):
                signs.append((_SIGNS[item.type], _place(item)))
            else:
                terms.append(item)
        span = _join(signs[0][1] or terms[0].span, terms[-1].span)
        return nodes.Add(span, tuple(terms), tuple(signs))

    def term(self, first: nodes.Node, *items: Item) -> nodes.Node:
        factors, operators, operator = [first], [""], ""
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
        return nodes.Mul(_join(first.span, factors[-1].span), tuple(factors), tuple(operators)) if items else first

    def big(self, token: Resolved, body: nodes.Node) -> nodes.Node:
        head: Head = token.content
        span = _join(_place(token), body.span)
        if head.below is not None:
            return head.below(span, body)
        assert head.bound is not None
        return nodes.Reduce(span, head.kind, head.bound, body)

    def bare(self, token: Resolved, body: nodes.Node) -> nodes.Node:
        return self._call(token, (body,), _join(_place(token), body.span), True)

    def called(self, token: Resolved, left: Token, body: tuple[nodes.Node, ...], right: Token) -> nodes.Node:
        return self._call(token, body, _join(_place(token), _place(right)), False)

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

    def absolute(self, left: Token, body: nodes.Node, right: Token) -> nodes.Node:
        return nodes.Call(_join(_place(left), _place(right)), "abs", (body,), text="|...|")

    def norm(self, left: Token, body: nodes.Node, right: Token) -> nodes.Node:
        return nodes.Call(_join(_place(left), _place(right)), "norm", (body,), text="\\lVert...\\rVert")

    def bracket(self, left: Token, body: tuple[nodes.Node, ...], right: Token) -> nodes.Node:
        span = _join(_place(left), _place(right))
        if len(body) == 1:
            return nodes.Group(span, body[0])
        return nodes.Matrix(span, tuple((entry,) for entry in body))

    def iverson(self, left: Token, condition: nodes.Node, right: Token) -> nodes.Node:
        return nodes.Iverson(_join(_place(left), _place(right)), condition)

    def arguments(self, *items: Any) -> tuple[nodes.Node, ...]:
        return tuple(item for item in items if isinstance(item, nodes.Node))

    def condition(self, first: nodes.Node, *items: Any) -> nodes.Node:
        parts, words = [first], []
        for word, part in zip(items[::2], items[1::2], strict=True):
            words.append("and" if word.type == "AND" else "or")
            parts.append(part)
            if words[-1] != words[0]:
                message = '"and" mixed with "or" needs brackets, which conditions do not have'
                raise Fault("syntax", message, part.span)
        return nodes.Both(_join(first.span, parts[-1].span), tuple(parts), words[0]) if items else first

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
    **dict.fromkeys(["RPAREN", "RBRACKET"], "this bracket"),
    **dict.fromkeys(["RBAR", "RNORM"], "this bar"),
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
