"""From tokens to an expression: names, index lists, everything that brings its own braces.

What a run of tokens means depends on the names that are known at its place: ``W^Q`` is one name where it is declared
and a power where it is not. The longest declared name wins. The remaining scripts are indices (below) and powers
(above); ``^{(h)}`` is always an index, which stands before those below.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attention_np.derivation import limits, nodes
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.grammar import Head, Resolved, Script, number, parse
from attention_np.derivation.lists import ListReader
from attention_np.derivation.names import Names, base, make_key, moved_by, scripts
from attention_np.derivation.tokens import RELATIONS, Token, Tokens, argument, closing, ending, span_of, split

_ELEMENTARY = frozenset(["exp", "log", "tanh", "cosh", "sinh", "cos", "sin"])
_WORDS = {
    **dict.fromkeys(["LSE", "logsumexp"], "logsumexp"),
    **dict.fromkeys(["Diag", "diag"], "diag"),
    **dict.fromkeys(["Concat", "concat"], "concat"),
    **dict.fromkeys(["Tr", "tr", "trace"], "trace"),
    **{name: name for name in ("softmax", "einsum", "sigmoid", "erf", "exp", "log", "tanh", "max", "min")},
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
_MARKS = {  # what is a token of the grammar by itself, and what it says there
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


class Reader(ListReader):
    """Reads expressions with the names of one place of a page."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
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
        out: list[Resolved] = []
        bars: list[tuple[str, int]] = []  # open bars and how many brackets were open around them
        depth = 0
        position = 0
        while position < len(tokens):
            token = tokens[position]
            text, span = token.text, token.span
            word = f"\\text{{{token.inner}}}" if token.type == "TEXT" else text
            make = Resolved.make
            if token.type == "NUMBER":
                out.append(make("NODE", span, self._number(token)))
                position += 1
            elif word in _MARKS:
                kind, meaning = _MARKS[word]
                depth += (kind == "OPEN") - (kind == "CLOSE")
                out.append(make(kind, span, text=meaning))
                position += 1
            elif text in ("\\left", "\\right"):
                position = self._sized(tokens, position, out)
            elif text in _BARS:
                closes = bool(bars) and bars[-1] == (text, depth) and bool(out) and out[-1].type in _CLOSES
                if closes:
                    bars.pop()
                else:
                    bars.append((text, depth))
                out.append(make("RBAR" if closes else "LBAR", span, text=_BARS[text]))
                position += 1
            elif text in ("^", "_"):
                position = self._script(tokens, position, out)
            elif text == "{":
                stop = closing(tokens, position)
                body = self.expression(tokens[position + 1 : stop], span)
                whole = (token.start, tokens[stop].stop)
                out.append(make("NODE", whole, nodes.Group(whole, body)))
                position = stop + 1
            elif token.type == "BEGIN":
                position = self._environment(tokens, position, out)
            elif text in _COMMANDS:
                position = _COMMANDS[text](self, tokens, position, out)
            else:
                position = self._name(tokens, position, out)
        return out

    def _sized(self, tokens: list[Token], position: int, out: list[Resolved]) -> int:
        side = "L" if tokens[position].text == "\\left" else "R"
        if position + 1 >= len(tokens):
            raise Fault("syntax", "a bracket is missing after this", tokens[position].span)
        after = tokens[position + 1]
        if after.text in _BARS:
            out.append(Resolved.make(side + "BAR", after.span, text=_BARS[after.text]))
            return position + 2
        if _MARKS.get(after.text, ("", ""))[0] not in ("OPEN", "CLOSE", "LBAR", "RBAR"):
            raise Fault("syntax", "only brackets and bars can be sized", after.span)
        return position + 1

    def _script(self, tokens: list[Token], position: int, out: list[Resolved]) -> int:
        mark = tokens[position]
        before = out[-1].type if out else ""
        if before == "SUPERSCRIPT":
            message = "a second superscript" if mark.text == "^" else "which comes first? Put brackets around the power"
            raise Fault("syntax", message, mark.span)
        if before == "SUBSCRIPT" and mark.text == "_":
            raise Fault("syntax", "a second subscript", mark.span)
        if before not in _ENDS and before != "SUBSCRIPT":
            raise Fault("syntax", "there is nothing in front of this script", mark.span)
        inside, stop = argument(tokens, position + 1, mark.span)
        span = (mark.start, tokens[stop - 1].stop)
        if mark.text == "^":
            out.append(Resolved.make("SUPERSCRIPT", span, self._superscript(inside, span)))
        elif out[-1].type == "RBAR" and out[-1] == "norm":
            if "".join(item.text for item in inside) not in ("2", "F"):
                raise Fault("syntax", "only the norms 2 and F are understood", span)
        else:
            script = Script(indices=self.index_list(inside, None, span))
            out.append(Resolved.make("SUBSCRIPT", span, script))
        return stop

    def _superscript(self, inside: list[Token], span: Span) -> Script:
        text = "".join(token.text for token in inside)
        if text in _TRANSPOSES and (text == "\\top" or self.names.get(text) is None):
            return Script(transpose=True)
        if inside and inside[0].text in ("\\odot", "\\circ"):
            return Script(elementwise=True, exponent=self.expression(inside[1:], span))
        return Script(exponent=self.expression(inside, span))

    def _environment(self, tokens: list[Token], position: int, out: list[Resolved]) -> int:
        stop = ending(tokens, position)
        span = (tokens[position].start, tokens[stop].stop)
        kind = tokens[position].inner
        rows = []
        for row, mark in split(tokens[position + 1 : stop], frozenset(["\\\\"])):
            if row or mark is not None:
                rows.append([cell for cell, _ in split(row, frozenset(["&"]))])
        if kind in _MATRICES and kind != "vmatrix":
            if len({len(row) for row in rows}) != 1:
                raise Fault("shape", "the rows of this matrix have different lengths", span)
            cells = tuple(tuple(self.expression(cell, span) for cell in row) for row in rows)
            out.append(Resolved.make("NODE", span, nodes.Matrix(span, cells)))
        elif kind == "cases":
            out.append(Resolved.make("NODE", span, self._cases(rows, span)))
        else:
            raise Fault("syntax", f"{kind} is not an environment of the grammar", tokens[position].span)
        return stop + 1

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

    def _fraction(self, tokens: list[Token], position: int, out: list[Resolved]) -> int:
        token = tokens[position]
        top, after = argument(tokens, position + 1, token.span)
        bottom, stop = argument(tokens, after, token.span)
        span = (token.start, tokens[stop - 1].stop)
        top, bottom = _bare(top), _bare(bottom)
        below: Callable[[Span, nodes.Node], nodes.Node]
        if top and top[0].text == "\\partial":
            order, top = _order(top[1:], span)
            below = partial(_by, self._variables(bottom, order, span))
        elif _is_d(top) and _is_d(bottom):
            order, top = _order(top[_D:], span)
            below = partial(_along, self._tangents(bottom[_D:], order, span), order)
        else:
            node = nodes.Frac(span, self.expression(top, span), self.expression(bottom, span))
            out.append(Resolved.make("NODE", span, node))
            return stop
        if top:
            out.append(Resolved.make("NODE", span, below(span, self.expression(_bare(top), span))))
        else:
            out.append(Resolved.make("BIG", span, Head("derivative", below=below)))
        return stop

    def _variables(self, tokens: list[Token], order: int, span: Span) -> list[nodes.Ref]:
        r"""What stands below ``\\partial``: one symbol, or for a second derivative two, or one with a square."""
        if not tokens or tokens[0].text != "\\partial":
            raise Fault("syntax", "\\partial is missing below", span_of(tokens, span))
        found: list[nodes.Ref] = []
        for piece, _ in split(tokens[1:], frozenset(["\\partial"])):
            node, times = self.expression(_bare(piece), span), 1
            if isinstance(node, nodes.Power) and isinstance(node.exponent, nodes.Number) and node.exponent.text == "2":
                node, times = node.base, 2
            if not isinstance(node, nodes.Ref):
                raise Fault("syntax", "only by a symbol can be differentiated", node.span)
            found += [node] * times
        if len(found) != order:
            message = "one symbol is needed below" if order == 1 else "two symbols are needed below"
            raise Fault("syntax", f"this is the derivative of order {order}: {message}", span_of(tokens, span))
        return found

    def _tangents(self, tokens: list[Token], order: int, span: Span) -> tuple[nodes.Ref, ...]:
        r"""Every ``\\dot{X}`` of a tensor X that is drawn; below stands t, or for a second derivative its square."""
        if "".join(token.text for token in tokens) not in {1: ("t",), 2: ("t^2", "t^{2}")}[order]:
            raise Fault("syntax", "write \\frac{\\mathrm{d}}{\\mathrm{d} t}, or its square", span)
        found = []
        for symbol in self.names.of_kind("tensor"):
            still = self.names.get(moved_by(symbol.key))
            if still is not None and still.kind == "tensor" and still.axes == symbol.axes:
                found.append(nodes.Ref(span, symbol.key, None))
        if not found:
            raise Fault("name", "nothing moves: no tensor X is declared beside an \\dot{X}", span)
        return tuple(found)

    def _root(self, tokens: list[Token], position: int, out: list[Resolved]) -> int:
        token = tokens[position]
        position += 1
        order: nodes.Node | None = None
        if position < len(tokens) and tokens[position].text == "[":
            pieces = split(tokens[position + 1 :], frozenset(["]"]))
            inside, mark = next(pieces)
            if mark is None:
                raise Fault("syntax", "this bracket is never closed", tokens[position].span)
            order = self.expression(inside, token.span)
            position += len(inside) + 2
        body, stop = argument(tokens, position, token.span)
        span = (token.start, tokens[stop - 1].stop)
        arguments = (self.expression(body, span),) + (() if order is None else (order,))
        out.append(Resolved.make("NODE", span, nodes.Call(span, "sqrt", arguments, text="\\sqrt")))
        return stop

    def _sum(self, tokens: list[Token], position: int, out: list[Resolved]) -> int:
        token = tokens[position]
        found = scripts(tokens, position + 1)
        if found.below is None:
            raise Fault("syntax", "over which index? Write it below", token.span)
        span = (token.start, tokens[found.stop - 1].stop)
        kind = "sum" if token.text == "\\sum" else "prod"
        above = None if found.above is None else list(found.above)
        out.append(Resolved.make("BIG", span, Head(kind, self.bound(list(found.below), above, span))))
        return found.stop

    def _elementary(self, tokens: list[Token], position: int, out: list[Resolved]) -> int:
        name = {"ln": "log"}.get(tokens[position].text[1:], tokens[position].text[1:])
        return self._function(name, tokens, position, position + 1, out)

    def _function(self, name: str, tokens: list[Token], position: int, after: int, out: list[Resolved]) -> int:
        token = tokens[position]
        if after < len(tokens) and tokens[after].type == "PRIME":
            if name != "tanh" or tokens[after].text != "'":
                raise Fault("syntax", "the only derivative with a prime is \\tanh'", tokens[after].span)
            name, after = "tanh'", after + 1
        found = scripts(tokens, after)
        stop = found.stop
        span = (token.start, tokens[stop - 1].stop)
        bound = power = None
        if found.below is not None:
            if name not in _OVER_INDICES:
                raise Fault("syntax", f"{token.text} takes no subscript", span)
            bound = self.bound(list(found.below), None, span)
        if found.above is not None:
            power = self.expression(list(found.above), span)
            if isinstance(power, nodes.Add):
                raise Fault("syntax", "an inverse function or a reciprocal? Write it out", span)
        if name == "einsum":
            return self._einsum(tokens, position, stop, out)
        text = "".join(item.text for item in tokens[position:after])
        out.append(Resolved.make("FUNCTION", span, Head(name, bound, power), text))
        return stop

    def _einsum(self, tokens: list[Token], position: int, stop: int, out: list[Resolved]) -> int:
        if stop + 1 >= len(tokens) or tokens[stop].text != "(" or tokens[stop + 1].type != "TYPEWRITER":
            raise Fault("syntax", "write \\mathrm{einsum}(\\texttt{ia,ja->ij}, Q, K)", tokens[position].span)
        inside, mark = next(split(tokens[stop + 1 :], frozenset([")"])))
        if mark is None:
            raise Fault("syntax", "this bracket is never closed", tokens[stop].span)
        span = (tokens[position].start, mark.stop)
        pieces = [piece for piece, _ in split(inside, frozenset([","]))]
        operands = tuple(self.expression(piece, span) for piece in pieces[1:])
        node = nodes.Call(span, "einsum", operands, text=tokens[stop + 1].inner.replace(" ", ""))
        out.append(Resolved.make("NODE", span, node))
        return stop + len(inside) + 2

    def _infinity(self, tokens: list[Token], position: int, out: list[Resolved]) -> int:
        span = tokens[position].span
        out.append(Resolved.make("NODE", span, nodes.Constant(span, "infinity")))
        return position + 1

    def _name(self, tokens: list[Token], position: int, out: list[Resolved]) -> int:
        token = tokens[position]
        found = base(tokens, position)
        if found is None:
            shown = token.inner if token.type == "TEXT" else token.text
            more = ": write \\frac{\\partial X}{\\partial Y}" if token.text == "\\partial" else ""
            raise Fault("syntax", f"{shown!r} is not part of the grammar here{more}", token.span)
        stem, after = found
        around = scripts(tokens, after)
        span = (token.start, tokens[around.stop - 1].stop)
        if stem in ("e", "\\mathrm{e}") and around.above is not None and around.below is None:
            body = self.expression(list(around.above), span)
            out.append(Resolved.make("NODE", span, nodes.Call(span, "exp", (body,), text="e")))
            return around.stop
        symbol, below, above = self.lookup(stem, around.below, around.above)
        if symbol is None:
            stop = self._special(stem, tokens, position, after, out)
            if stop is None:
                raise Fault("name", f"the symbol {make_key(stem, around.below, None)} is not known here", span)
            return stop
        if symbol.kind in ("size", "index"):
            if below is not None:
                raise Fault("shape", f"{symbol.key} is a number and takes no index", span)
            node: nodes.Node = (nodes.SizeRef if symbol.kind == "size" else nodes.IndexRef)(span, symbol.key)
            upper: Script | None = None if above is None else self._superscript(list(above), span)
        else:
            leading, upper_tokens = self._leading(above, span)
            rest = () if below is None else self.index_list(below, symbol, span)
            indices = None if below is None and not leading else leading + rest
            node = nodes.Ref(span, symbol.key, indices, (token.start, tokens[after - 1].stop))
            upper = None if upper_tokens is None else self._superscript(upper_tokens, span)
        out.append(Resolved.make("NODE", span, node))
        if upper is not None:
            out.append(Resolved.make("SUPERSCRIPT", around.above_span, upper))
        return around.stop

    def _leading(self, above: Tokens | None, span: Span) -> tuple[tuple[nodes.Node, ...], list[Token] | None]:
        """The indices in ``^{(h)}``, or the superscript as it is."""
        if above is None:
            return (), None
        tokens = list(above)
        if len(tokens) >= 3 and tokens[0].text == "(" and tokens[-1].text == ")":
            return self.index_list(tokens[1:-1], None, span), None
        return (), tokens

    def _special(self, stem: str, tokens: list[Token], position: int, after: int, out: list[Resolved]) -> int | None:
        """Names that mean something as long as no page gives them another meaning; what follows, if this is one."""
        span = (tokens[position].start, tokens[after - 1].stop)
        found = scripts(tokens, after)
        below = None if found.below is None else list(found.below)
        word = stem[8:-1] if stem.startswith("\\mathrm{") else ""
        if word in _WORDS:
            return self._function(_WORDS[word], tokens, position, after, out)
        if stem == "\\delta" and below is not None:
            indices = self.index_list(below, None, span)
            if len(indices) != 2:
                raise Fault("shape", "Kronecker's delta takes two indices", span)
            whole = (span[0], tokens[found.stop - 1].stop)
            out.append(Resolved.make("NODE", whole, nodes.Delta(whole, indices[0], indices[1])))
        elif stem == "\\pi" and below is None:
            out.append(Resolved.make("NODE", span, nodes.Constant(span, "pi")))
        elif stem == "\\mathbf{0}":
            out.append(Resolved.make("NODE", span, nodes.Constant(span, "zero")))
        elif stem in ("I", "\\mathbf{1}", "\\mathbb{1}", "\\mathbf{I}"):
            size = None
            if below is not None:
                size = parse_size(self, below, span)
                span = (span[0], tokens[found.stop - 1].stop)
            kind = nodes.Eye if "I" in stem else nodes.Ones
            out.append(Resolved.make("NODE", span, kind(span, size)))
        else:
            return None
        if found.above is not None:
            out.append(Resolved.make("SUPERSCRIPT", found.above_span, self._superscript(list(found.above), span)))
        return found.stop


_D = 4  # tokens of \mathrm{d}


def _is_d(tokens: list[Token]) -> bool:
    return base(tokens, 0) == ("\\mathrm{d}", _D)


def _order(tokens: list[Token], span: Span) -> tuple[int, list[Token]]:
    r"""The order of a derivative, from what stands behind its ``\\partial`` above, and the rest of that."""
    if not tokens or tokens[0].text != "^":
        return 1, tokens
    power, stop = argument(tokens, 1, span)
    if "".join(token.text for token in power) != "2":
        raise Fault("syntax", "a derivative is of the first or of the second order", span_of(power, span))
    return 2, tokens[stop:]


def _by(variables: list[nodes.Ref], span: Span, top: nodes.Node) -> nodes.Node:
    """The derivative of ``top`` by all of these."""
    for variable in reversed(variables):
        top = nodes.Derivative(span, top, variable)
    return top


def _along(tangents: tuple[nodes.Ref, ...], order: int, span: Span, top: nodes.Node) -> nodes.Node:
    """How fast ``top`` moves, or how fast that does."""
    for _ in range(order):
        top = nodes.Tangent(span, top, tangents)
    return top


def _bare(tokens: list[Token]) -> list[Token]:
    """The tokens without braces around all of them."""
    while len(tokens) > 2 and tokens[0].text == "{" and closing(tokens, 0) == len(tokens) - 1:
        tokens = tokens[1:-1]
    return tokens


def parse_size(reader: Reader, below: list[Token], span: Span) -> str:
    r"""The range below ``I_n`` or ``\\mathbf{1}_m``: a declared size or a number."""
    if len(below) == 1 and below[0].type == "NUMBER" and below[0].text.isdigit():
        if len(below[0].text) > 6 or not 1 < int(below[0].text) <= limits.SIZE:
            raise Fault("limit", f"a size between 2 and {limits.SIZE} is needed", span)
        return below[0].text
    node = reader.expression(below, span)
    if not isinstance(node, nodes.SizeRef):
        raise Fault("shape", "a size is needed below", span)
    return node.name


_CLOSES = _ENDS | {"SUPERSCRIPT", "SUBSCRIPT"}
_COMMANDS = {
    **{"\\" + name: Reader._elementary for name in [*_ELEMENTARY, "ln", "max", "min"]},
    **dict.fromkeys(["\\frac", "\\dfrac", "\\tfrac"], Reader._fraction),
    "\\sqrt": Reader._root,
    "\\sum": Reader._sum,
    "\\prod": Reader._sum,
    "\\infty": Reader._infinity,
}
