r"""How resolved tokens make an expression: the precedence rules, for Lark's LALR parser.

The reader (:mod:`.reader`) has by then turned everything that has its own braces (fractions, roots, names with their
indices, the head of a sum) into a single token. What is left is what mathematicians leave to convention:

- a sum, a product and the operator ``\\frac{\\partial}{\\partial x}`` take the whole product term that follows;
- a function takes its brackets, or one factor; when another factor follows the latter, the reader of the page would
  have to guess (``\\exp x y``), so that is an error;
- ``a / b c`` is an error for the same reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedInput, VisitError

from attention_np.derivation import nodes
from attention_np.derivation.errors import Fault, Span

_GRAMMAR = r"""
    ?start: expression | condition
    expression: sum
    sum: term                             -> sum_one
       | (MINUS | PLUS) term              -> sum_signed
       | sum (PLUS | MINUS) term          -> sum_more
    term: chain
    chain: factor                         -> chain_one
         | chain factor                   -> chain_next
         | chain OPERATOR factor          -> chain_operator
    ?factor: postfix | bare | big
    big: BIG term
    bare: FUNCTION (plain | bare | big)
    ?plain: simple
          | plain SUPERSCRIPT             -> superscript
          | plain SUBSCRIPT               -> subscript
    ?postfix: atom
            | postfix SUPERSCRIPT         -> superscript
            | postfix SUBSCRIPT           -> subscript
    ?atom: simple
         | FUNCTION LPAREN arguments RPAREN       -> called
         | FUNCTION LBRACKET arguments RBRACKET   -> called
         | LPAREN arguments RPAREN                -> bracket
         | LBRACKET arguments RBRACKET            -> bracket
         | LBRACKET condition RBRACKET            -> iverson
    ?simple: NODE                         -> node
           | LBAR expression RBAR         -> absolute
           | LNORM expression RNORM       -> norm
    arguments: expression (COMMA expression)*
    condition: parts
    parts: relation                       -> parts_one
         | parts (AND | OR) relation      -> parts_more
    relation: expression (RELATION expression)+
    %declare PLUS MINUS OPERATOR BIG FUNCTION SUPERSCRIPT SUBSCRIPT LPAREN RPAREN LBRACKET RBRACKET
    %declare NODE LBAR RBAR LNORM RNORM COMMA AND OR RELATION
"""


@dataclass(frozen=True)
class Head:
    r"""What a BIG or FUNCTION token carries: ``\\sum_{j}``, ``\\max_j``, ``\\tanh^2``."""

    kind: str
    bound: nodes.Bound | None = None
    power: nodes.Node | None = None
    bottom: nodes.Ref | None = None


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


def _product(pairs: list[tuple[str, nodes.Node]]) -> nodes.Node:
    operators = tuple(operator for operator, _ in pairs)
    factors = tuple(factor for _, factor in pairs)
    if len(factors) == 1:
        return factors[0]
    for before, after in pairwise(factors):
        if isinstance(before, nodes.Call) and before.bare and not isinstance(after, nodes.Call):
            message = f"does the argument of {before.text} go on here? Put it in brackets"
            raise Fault("syntax", message, after.span)
    for operator, factor in zip(operators[1:-1], factors[2:], strict=False):
        if operator == "slash":
            raise Fault("syntax", "what does the slash divide by? Use \\frac, or brackets", factor.span)
        if operator == "mod":
            raise Fault("syntax", "put brackets around the remainder", factor.span)
    return nodes.Mul(_join(factors[0].span, factors[-1].span), factors, operators)


_SIGNS = {"PLUS": 1, "MINUS": -1}


@v_args(inline=True)
class _Builder(Transformer[Token, Any]):
    """Makes nodes while the parser reduces, so no tree is walked recursively."""

    def expression(self, pairs: list[tuple[Token | None, nodes.Node]]) -> nodes.Node:
        (sign, first), (_, last) = pairs[0], pairs[-1]
        if sign is None and len(pairs) == 1:
            return first
        signs = tuple((1, None) if mark is None else (_SIGNS[mark.type], _place(mark)) for mark, _ in pairs)
        start = first.span if sign is None else _place(sign)
        return nodes.Add(_join(start, last.span), tuple(term for _, term in pairs), signs)

    def sum_one(self, term: nodes.Node) -> list[tuple[Token | None, nodes.Node]]:
        return [(None, term)]

    def sum_signed(self, sign: Token, term: nodes.Node) -> list[tuple[Token | None, nodes.Node]]:
        return [(sign, term)]

    def sum_more(self, pairs: list[tuple[Token | None, nodes.Node]], sign: Token, term: nodes.Node) -> Any:
        pairs.append((sign, term))
        return pairs

    def term(self, pairs: list[tuple[str, nodes.Node]]) -> nodes.Node:
        return _product(pairs)

    def chain_one(self, factor: nodes.Node) -> list[tuple[str, nodes.Node]]:
        return [("", factor)]

    def chain_next(self, pairs: list[tuple[str, nodes.Node]], factor: nodes.Node) -> Any:
        pairs.append(("", factor))
        return pairs

    def chain_operator(self, pairs: list[tuple[str, nodes.Node]], operator: Token, factor: nodes.Node) -> Any:
        pairs.append((str(operator), factor))
        return pairs

    def big(self, token: Resolved, body: nodes.Node) -> nodes.Node:
        head: Head = token.content
        span = _join(_place(token), body.span)
        if head.bottom is not None:
            return nodes.Derivative(span, body, head.bottom)
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

    def condition(self, pairs: list[tuple[str, nodes.Node]]) -> nodes.Node:
        parts = tuple(part for _, part in pairs)
        if len(parts) == 1:
            return parts[0]
        return nodes.Both(_join(parts[0].span, parts[-1].span), parts, pairs[-1][0])

    def parts_one(self, relation: nodes.Node) -> list[tuple[str, nodes.Node]]:
        return [("", relation)]

    def parts_more(self, pairs: list[tuple[str, nodes.Node]], word: Token, right: nodes.Node) -> Any:
        name = "and" if word.type == "AND" else "or"
        if pairs[-1][0] not in ("", name):
            raise Fault("syntax", '"and" mixed with "or" needs brackets, which conditions do not have', right.span)
        pairs.append((name, right))
        return pairs

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
        raise Fault("syntax", _misplaced(token_type), last) from None
    except VisitError as error:
        if isinstance(error.orig_exc, Fault):
            raise error.orig_exc from None
        raise
    if not isinstance(result, nodes.Node):
        raise Fault("syntax", "the expression stops too early", last)
    return result


def _misplaced(kind: str) -> str:
    words = {
        "COMMA": "a comma",
        "RELATION": "a relation",
        "PLUS": "a plus sign",
        "MINUS": "a minus sign (a factor with a sign needs brackets)",
        "OPERATOR": "an operator",
        "RPAREN": "this bracket",
        "RBRACKET": "this bracket",
        "RBAR": "this bar",
        "RNORM": "this bar",
    }
    return f"{words.get(kind, 'this')} cannot stand here"
