"""From tokens to an expression: names, index lists, everything that brings its own braces.

What a run of tokens means depends on the names that are known at its place: ``W^Q`` is one name where it is declared
and a power where it is not. The longest declared name wins. The remaining scripts are indices (below) and powers
(above); ``^{(h)}`` is always an index, which stands before those below.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from attention_np.derivation import limits, nodes
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.grammar import Head, Resolved, Script, number, parse
from attention_np.derivation.lists import IndexLists, literal
from attention_np.derivation.names import Names, Scripts, base, make_key, of_tangent, scripts
from attention_np.derivation.tokens import RELATIONS, Token, Tokens, argument, closing, ending, span_of, split, text_of

_ELEMENTARY = frozenset(["exp", "log", "tanh", "cosh", "sinh", "cos", "sin", "det"])
_WORDS = {
    **dict.fromkeys(["LSE", "logsumexp"], "logsumexp"),
    **dict.fromkeys(["Diag", "diag"], "diag"),
    **dict.fromkeys(["Concat", "concat"], "concat"),
    **dict.fromkeys(["Tr", "tr", "trace"], "trace"),
    **{name: name for name in ("softmax", "einsum", "sigmoid", "erf", "exp", "log", "tanh", "max", "min", "det")},
}
_OVER_INDICES = frozenset(["max", "min", "softmax", "logsumexp", "concat"])
_MATRICES = frozenset(["matrix", "pmatrix", "bmatrix", "smallmatrix", "vmatrix"])
_TRANSPOSES = ("\\top", "T", "\\intercal", "\\mathsf{T}", "\\mathrm{T}", "\\mathsfT", "\\mathrmT")
_OPERATORS = {
    "\\cdot": "cdot",
    "\\times": "cdot",
    "\\odot": "odot",
    "\\circ": "odot",
    "\\oslash": "oslash",
    "\\bmod": "mod",
    "/": "slash",
}
_BARS = {"|": "abs", "\\|": "norm"}
_MARKS = {  # the tokens of the grammar that LaTeX writes as one word, and their text there
    "+": ("PLUS", ""),
    "-": ("MINUS", ""),
    ",": ("COMMA", ""),
    **{mark: ("OPEN", mark) for mark in "(["},
    **{mark: ("CLOSE", mark) for mark in ")]"},
    **{mark: ("OPERATOR", kind) for mark, kind in _OPERATORS.items()},
    **{mark: ("RELATION", sign) for mark, sign in RELATIONS.items()},
    **dict.fromkeys(["\\text{and}", "\\land", "\\wedge"], ("AND", "")),
    **dict.fromkeys(["\\text{or}", "\\lor", "\\vee"], ("OR", "")),
    "\\lvert": ("LBAR", "abs"),
    "\\rvert": ("RBAR", "abs"),
    "\\lVert": ("LBAR", "norm"),
    "\\rVert": ("RBAR", "norm"),
}
_ENDS = frozenset(["NODE", "CLOSE", "RBAR"])


class Reader:
    """Reads expressions with the names of one place of a page."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.lists = IndexLists(names, self.expression, self.condition)
        self._level = 0

    def expression(self, tokens: Tokens, owner: Span) -> nodes.Node:
        """The tree of an expression that is not a condition."""
        return number(self._parse(tokens, owner))

    def condition(self, tokens: Tokens, owner: Span) -> nodes.Node:
        """The tree of a condition."""
        node = self._parse(tokens, owner)
        if not isinstance(node, nodes.CONDITIONS):
            raise Fault("syntax", "a condition such as j \\le i is needed here", node.span)
        return node

    def _parse(self, tokens: Tokens, owner: Span) -> nodes.Node:
        tokens = [token for token in tokens if token.type != "WIDE"]
        if not tokens:
            raise Fault("syntax", "an expression is missing here", owner)
        self._level += 1
        if self._level > limits.DEPTH:
            raise Fault("limit", f"nested more than {limits.DEPTH} deep", tokens[0].span)
        try:
            return parse(self._resolve(tokens), span_of(tokens, owner))
        finally:
            self._level -= 1

    def _resolve(self, tokens: list[Token]) -> list[Resolved]:
        run = _Run(tokens)
        while run.position < len(tokens):
            token, run.start = tokens[run.position], run.position
            run.position += 1
            word = f"\\text{{{token.inner}}}" if token.type == "TEXT" else token.text
            if token.type == "NUMBER":
                run.add("NODE", literal(token))
            elif word in _MARKS:
                kind, meaning = _MARKS[word]
                run.depth += (kind == "OPEN") - (kind == "CLOSE")
                run.add(kind, text=meaning)
            elif word in ("\\left", "\\right"):
                self._sized(run)
            elif word in _BARS:
                run.add("RBAR" if run.closes_bar(word) else "LBAR", text=_BARS[word])
            elif word in ("^", "_"):
                self._script(run)
            elif word == "{":
                run.position = closing(tokens, run.start) + 1
                inside = self.expression(tokens[run.start + 1 : run.position - 1], token.span)
                run.add("NODE", nodes.Group(run.span, inside))
            elif token.type == "BEGIN":
                self._environment(run)
            else:
                _COMMANDS.get(word, Reader._name)(self, run)
        return run.resolved

    def _sized(self, run: _Run) -> None:
        side = "L" if run.token.text == "\\left" else "R"
        if run.position == len(run.tokens):
            raise Fault("syntax", "a bracket is missing after this", run.span)
        after = run.tokens[run.position]
        if after.text in _BARS:
            run.start, run.position = run.position, run.position + 1
            run.add(side + "BAR", text=_BARS[after.text])
        elif _MARKS.get(after.text, ("", ""))[0] not in ("OPEN", "CLOSE", "LBAR", "RBAR"):
            raise Fault("syntax", "only brackets and bars can be sized", after.span)

    def _script(self, run: _Run) -> None:
        mark, before = run.token, run.resolved[-1].type if run.resolved else ""
        if before == "SUPERSCRIPT":
            message = "a second superscript" if mark.text == "^" else "which comes first? Put brackets around the power"
            raise Fault("syntax", message, mark.span)
        if before == "SUBSCRIPT" and mark.text == "_":
            raise Fault("syntax", "a second subscript", mark.span)
        if before not in _ENDS and before != "SUBSCRIPT":
            raise Fault("syntax", "there is nothing in front of this script", mark.span)
        inside = run.argument()
        if mark.text == "^":
            run.add("SUPERSCRIPT", self._superscript(inside, run.span))
        elif before != "RBAR" or run.resolved[-1] != "norm":
            run.add("SUBSCRIPT", Script(indices=self.lists.subscript(inside, None, run.span)))
        elif text_of(inside) not in ("2", "F"):
            raise Fault("syntax", "only the norms 2 and F are understood", run.span)

    def _superscript(self, inside: Tokens, span: Span) -> Script:
        text = text_of(inside)
        if text in _TRANSPOSES and (text == "\\top" or self.names.get(text) is None):
            return Script(transpose=True)
        if inside and inside[0].text in ("\\odot", "\\circ"):
            return Script(elementwise=True, exponent=self.expression(inside[1:], span))
        return Script(exponent=self.expression(inside, span))

    def _environment(self, run: _Run) -> None:
        run.position = ending(run.tokens, run.start) + 1
        kind, span = run.token.inner, run.span
        rows = []
        for row, mark in split(run.tokens[run.start + 1 : run.position - 1], frozenset(["\\\\"])):
            if row or mark is not None:
                rows.append([cell for cell, _ in split(row, frozenset(["&"]))])
        if kind in _MATRICES and kind != "vmatrix":
            if len({len(row) for row in rows}) != 1:
                raise Fault("shape", "the rows of this matrix have different lengths", span)
            cells = tuple(tuple(self.expression(cell, span) for cell in row) for row in rows)
            run.add("NODE", nodes.Matrix(span, cells))
        elif kind == "cases":
            run.add("NODE", self._cases(rows, span))
        else:
            raise Fault("syntax", f"{kind} is not an environment of the grammar", run.token.span)

    def _cases(self, rows: list[list[list[Token]]], span: Span) -> nodes.Node:
        values: list[nodes.Node] = []
        conditions: list[nodes.Node | None] = []
        for row in rows:
            if len(row) != 2:
                raise Fault("syntax", "each case needs a value, an ampersand and a condition", span)
            while row[0] and row[0][-1].text in (",", "."):
                row[0].pop()
            values.append(self.expression(row[0], span))
            words = [token for token in row[1] if token.type != "WIDE"]
            while words and words[-1].text in (",", "."):
                words.pop()
            if words and words[0].type == "TEXT" and words[0].inner in ("if", "for", "when"):
                words = words[1:]
            if len(words) == 1 and words[0].type == "TEXT" and words[0].inner in ("otherwise", "else"):
                conditions.append(None)
            else:
                conditions.append(self.condition(words, span))
        if None in conditions[:-1]:
            raise Fault("syntax", "only the last case can be the other one", span)
        return nodes.Cases(span, tuple(values), tuple(conditions))

    def _fraction(self, run: _Run) -> None:
        top, bottom = _bare(run.argument()), _bare(run.argument())
        span, below = run.span, None
        if top and top[0].text == "\\partial":
            order, top = _order(top[1:], span)
            below = partial(_by, self._variables(bottom, order, span))
        elif _is_d(top) and _is_d(bottom):
            order, top = _order(top[_D:], span)
            below = partial(_by_tangents, self._tangents(bottom[_D:], order, span), order)
        if below is None:
            run.add("NODE", nodes.Frac(span, self.expression(top, span), self.expression(bottom, span)))
        elif top:
            run.add("NODE", below(span, self.expression(_bare(top), span)))
        else:
            run.add("BIG", Head("derivative", below=below))

    def _variables(self, tokens: list[Token], order: int, span: Span) -> list[nodes.Ref]:
        r"""The symbols below ``\\partial``: one, or for a second derivative two, or one with a square."""
        if not tokens or tokens[0].text != "\\partial":
            raise Fault("syntax", "\\partial is missing below", span_of(tokens, span))
        variables: list[nodes.Ref] = []
        for piece, _ in split(tokens[1:], frozenset(["\\partial"])):
            node, times = self.expression(_bare(piece), span), 1
            if isinstance(node, nodes.Power) and isinstance(node.exponent, nodes.Number) and node.exponent.text == "2":
                node, times = node.base, 2
            if not isinstance(node, nodes.Ref):
                more = ": leave out the transposition" if isinstance(node, nodes.Transpose) else ""
                raise Fault("syntax", f"only by a symbol can be differentiated{more}", node.span)
            variables += [node] * times
        if len(variables) != order:
            message = "one symbol is needed below" if order == 1 else "two symbols are needed below"
            raise Fault("syntax", f"this is the derivative of order {order}: {message}", span_of(tokens, span))
        return variables

    def _tangents(self, tokens: list[Token], order: int, span: Span) -> tuple[nodes.Ref, ...]:
        r"""Every ``\\dot{X}`` of a tensor X that is drawn; below stands t, or for a second derivative its square."""
        if text_of(tokens) not in {1: ("t",), 2: ("t^2", "t^{2}")}[order]:
            raise Fault("syntax", "write \\frac{\\mathrm{d}}{\\mathrm{d} t}, or its square", span)
        tangents = []
        for symbol in self.names.of_kind("tensor"):
            own = self.names.get(of_tangent(symbol.key))
            if own is not None and own.kind == "tensor" and own.axes == symbol.axes:
                tangents.append(nodes.Ref(span, symbol.key, None))
        if not tangents:
            raise Fault("name", "nothing moves: no tensor X is declared beside an \\dot{X}", span)
        return tuple(tangents)

    def _root(self, run: _Run) -> None:
        arguments: tuple[nodes.Node, ...] = ()
        if run.position < len(run.tokens) and run.tokens[run.position].text == "[":
            arguments = (self.expression(run.bracketed("]"), run.token.span),)
        body = run.argument()
        arguments = (self.expression(body, run.span), *arguments)
        run.add("NODE", nodes.Call(run.span, "sqrt", arguments, text="\\sqrt"))

    def _sum(self, run: _Run) -> None:
        around = run.scripts()
        if around.below is None:
            raise Fault("syntax", "over which index? Write it below", run.token.span)
        kind = "sum" if run.token.text == "\\sum" else "prod"
        run.add("BIG", Head(kind, self.lists.bound(around.below, around.above, run.span)))

    def _elementary(self, run: _Run) -> None:
        name = run.token.text[1:]
        self._function("log" if name == "ln" else name, run)

    def _function(self, name: str, run: _Run) -> None:
        """A function whose name has been read, with its prime, its scripts, and the indices below it."""
        if run.position < len(run.tokens) and run.tokens[run.position].type == "PRIME":
            if name != "tanh" or run.tokens[run.position].text != "'":
                raise Fault("syntax", "the only derivative with a prime is \\tanh'", run.tokens[run.position].span)
            name, run.position = "tanh'", run.position + 1
        text = text_of(run.tokens[run.start : run.position])
        around = run.scripts()
        bound = power = None
        if around.below is not None:
            if name not in _OVER_INDICES:
                raise Fault("syntax", f"{run.token.text} takes no subscript", run.span)
            bound = self.lists.bound(around.below, None, run.span)
        if around.above is not None:
            power = self.expression(around.above, run.span)
            if isinstance(power, nodes.Add):
                raise Fault("syntax", "an inverse function or a reciprocal? Write it out", run.span)
        if name == "einsum":
            self._einsum(run)
        else:
            run.add("FUNCTION", Head(name, bound, power), text)

    def _einsum(self, run: _Run) -> None:
        ahead = run.tokens[run.position : run.position + 2]
        if len(ahead) < 2 or ahead[0].text != "(" or ahead[1].type != "TYPEWRITER":
            raise Fault("syntax", "write \\mathrm{einsum}(\\texttt{ia,ja->ij}, Q, K)", run.token.span)
        pieces = [piece for piece, _ in split(run.bracketed(")"), frozenset([","]))]
        operands = tuple(self.expression(piece, run.span) for piece in pieces[1:])
        run.add("NODE", nodes.Call(run.span, "einsum", operands, text=ahead[1].inner.replace(" ", "")))

    def _infinity(self, run: _Run) -> None:
        run.add("NODE", nodes.Constant(run.span, "infinity"))

    def _name(self, run: _Run) -> None:
        token, name = run.token, base(run.tokens, run.start)
        if name is None:
            shown = token.inner if token.type == "TEXT" else token.text
            more = ": write \\frac{\\partial X}{\\partial Y}" if token.text in ("\\partial", "\\nabla") else ""
            raise Fault("syntax", f"{shown!r} is not part of the grammar here{more}", token.span)
        stem, run.position = name
        name_span = run.span
        around = scripts(run.tokens, run.position)
        symbol, below, above = self.names.lookup(stem, around.below, around.above)
        is_power = stem in ("e", "\\mathrm{e}") and around.above is not None and around.below is None
        if is_power or symbol is None:
            self._special(stem, around, run)
            return
        run.position, span = around.stop, (token.start, run.tokens[around.stop - 1].stop)
        if symbol.kind in ("size", "index"):
            if below is not None:
                raise Fault("shape", f"{symbol.key} is a number and takes no index", span)
            run.add("NODE", (nodes.SizeRef if symbol.kind == "size" else nodes.IndexRef)(span, symbol.key))
        else:
            leading, above = self._leading(above, span)
            if above and below and around.above_span[0] < below[0].start and text_of(above) == "-1":
                raise Fault("syntax", "which comes first? Write (X^{-1})_{ij} or X_{ij}^{-1}", span)
            rest = () if below is None else self.lists.subscript(below, symbol, span)
            indices = None if below is None and not leading else leading + rest
            run.add("NODE", nodes.Ref(span, symbol.key, indices, name_span))
        if above is not None:
            run.add("SUPERSCRIPT", self._superscript(above, span), span=around.above_span)

    def _leading(self, above: Tokens | None, span: Span) -> tuple[tuple[nodes.Node, ...], Tokens | None]:
        """The indices in ``^{(h)}``, or the superscript as it is."""
        if above is not None and len(above) >= 3 and above[0].text == "(" and above[-1].text == ")":
            return self.lists.subscript(above[1:-1], None, span), None
        return (), above

    def _special(self, stem: str, around: Scripts, run: _Run) -> None:
        """A name that means something as long as no page gives it another meaning."""
        word, span = stem[8:-1] if stem.startswith("\\mathrm{") else "", run.span
        if word in _WORDS:
            self._function(_WORDS[word], run)
            return
        run.position, below, above = around.stop, around.below, around.above
        whole = run.span
        if stem in ("e", "\\mathrm{e}") and above is not None and below is None:
            run.add("NODE", nodes.Call(whole, "exp", (self.expression(above, whole),), text="e"))
            return
        if stem == "\\delta" and below is not None:
            indices = self.lists.subscript(below, None, span)
            if len(indices) != 2:
                raise Fault("shape", "Kronecker's delta takes two indices", span)
            run.add("NODE", nodes.Delta(whole, *indices))
        elif stem == "\\mathbf{0}" or (stem == "\\pi" and below is None):
            run.add("NODE", nodes.Constant(span, "pi" if stem == "\\pi" else "zero"), span=span)
        elif stem in ("I", "\\mathbf{1}", "\\mathbb{1}", "\\mathbf{I}"):
            size = None if below is None else self._size(below, span)
            place = span if below is None else whole
            run.add("NODE", (nodes.Eye if "I" in stem else nodes.Ones)(place, size), span=place)
        else:
            unknown = f"the symbol {make_key(stem, below, None)} is not known here"
            raise Fault("name", f"{unknown}: it is neither declared nor defined above", whole)
        if above is not None:
            run.add("SUPERSCRIPT", self._superscript(above, span), span=around.above_span)

    def _size(self, below: Tokens, span: Span) -> str:
        r"""The range below ``I_n`` or ``\\mathbf{1}_m``: a declared size or a number."""
        if len(below) == 1 and below[0].type == "NUMBER" and below[0].text.isdigit():
            if len(below[0].text) > 6 or not 1 < int(below[0].text) <= limits.SIZE:
                raise Fault("limit", f"a size between 2 and {limits.SIZE} is needed", span)
            return below[0].text
        node = self.expression(below, span)
        if not isinstance(node, nodes.SizeRef):
            raise Fault("shape", "a size is needed below", span)
        return node.name


@dataclass
class _Run:
    """A run of tokens that is being read, from ``start`` to before ``position``, and its resolved tokens so far."""

    tokens: list[Token]
    resolved: list[Resolved] = field(default_factory=list)
    start: int = 0
    position: int = 0
    depth: int = 0  # of the brackets that are open
    bars: list[tuple[str, int]] = field(default_factory=list)  # that are open, and the depth around each

    @property
    def token(self) -> Token:
        """The first token of what is being read."""
        return self.tokens[self.start]

    @property
    def span(self) -> Span:
        """Its place, up to here."""
        return self.token.start, self.tokens[self.position - 1].stop

    def add(self, kind: str, content: Any = None, text: str = "", span: Span | None = None) -> None:
        """Add a resolved token."""
        self.resolved.append(Resolved.make(kind, span or self.span, content, text))

    def argument(self) -> list[Token]:
        """Go on behind the argument of a macro."""
        inside, self.position = argument(self.tokens, self.position, self.token.span)
        return inside

    def scripts(self) -> Scripts:
        """Go on behind the scripts that stand here."""
        around = scripts(self.tokens, self.position)
        self.position = around.stop
        return around

    def bracketed(self, close: str) -> list[Token]:
        """Go on behind the bracket that closes the one here."""
        inside, mark = next(split(self.tokens[self.position + 1 :], frozenset([close])))
        if mark is None:
            raise Fault("syntax", "this bracket is never closed", self.tokens[self.position].span)
        self.position += len(inside) + 2
        return inside

    def closes_bar(self, bar: str) -> bool:
        """Whether a bar closes the last open one; else it opens one."""
        closes = self.bars[-1:] == [(bar, self.depth)] and bool(self.resolved) and self.resolved[-1].type in _CLOSES
        if closes:
            self.bars.pop()
        else:
            self.bars.append((bar, self.depth))
        return closes


_D = 4  # tokens of \mathrm{d}


def _is_d(tokens: list[Token]) -> bool:
    return base(tokens, 0) == ("\\mathrm{d}", _D)


def _order(tokens: list[Token], span: Span) -> tuple[int, list[Token]]:
    r"""The order of a derivative, from the tokens behind its ``\\partial`` above, and the rest of these."""
    if not tokens or tokens[0].text != "^":
        return 1, tokens
    power, stop = argument(tokens, 1, span)
    if text_of(power) != "2":
        raise Fault("syntax", "a derivative is of the first or of the second order", span_of(power, span))
    return 2, tokens[stop:]


def _by(variables: list[nodes.Ref], span: Span, top: nodes.Node) -> nodes.Node:
    """The derivative of ``top`` by all of these."""
    for variable in reversed(variables):
        top = nodes.Derivative(span, top, variable)
    return top


def _by_tangents(tangents: tuple[nodes.Ref, ...], order: int, span: Span, top: nodes.Node) -> nodes.Node:
    """How fast ``top`` moves, or how fast that does."""
    for _ in range(order):
        top = nodes.Tangent(span, top, tangents)
    return top


def _bare(tokens: list[Token]) -> list[Token]:
    """The tokens without braces around all of them."""
    while len(tokens) > 2 and tokens[0].text == "{" and closing(tokens, 0) == len(tokens) - 1:
        tokens = tokens[1:-1]
    return tokens


_CLOSES = _ENDS | {"SUPERSCRIPT", "SUBSCRIPT"}
_COMMANDS = {
    **{"\\" + name: Reader._elementary for name in [*_ELEMENTARY, "ln", "max", "min"]},
    **dict.fromkeys(["\\frac", "\\dfrac", "\\tfrac"], Reader._fraction),
    "\\sqrt": Reader._root,
    "\\sum": Reader._sum,
    "\\prod": Reader._sum,
    "\\infty": Reader._infinity,
}
