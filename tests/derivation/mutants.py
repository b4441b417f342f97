"""The mutants of one equation: its LaTeX with one small mistake, as authors make them."""

import re
from collections.abc import Iterator

from attention_np.derivation import nodes as n
from attention_np.derivation.errors import Span
from attention_np.derivation.names import Names
from attention_np.derivation.statements import chains, read_statement

Mutants = Iterator[tuple[str, str]]  # the kind of mistake, and the changed LaTeX
_SYMBOLS = 6  # at most so many others in the place of a symbol
_RELATION = re.compile(r"<|>|\\(?:leqslant|geqslant|leq|geq|le|ge|lt|gt)(?![A-Za-z])")
_SHIFTED = {"le": "<", "leq": "<", "leqslant": "<", "ge": ">", "geq": ">", "geqslant": ">"}
_SHIFTED |= {"<": r"\le ", ">": r"\ge ", "lt": r"\le ", "gt": r"\ge "}
_TURNED = {"le": r"\ge ", "leq": r"\ge ", "leqslant": r"\ge ", "ge": r"\le ", "geq": r"\le ", "geqslant": r"\le "}
_TURNED |= {"<": ">", ">": "<", "lt": ">", "gt": "<"}
_UNKNOWN = "\\mathfrak{q}"  # that no page declares


def mutants(text: str, names: Names) -> Mutants:
    """Descriptions and texts of the mutants of an equation, each once; ``names`` are known behind it."""
    seen = {"".join(text.split())}
    for kind, new in _mutants(text, names):
        squeezed = "".join(new.split())
        if squeezed not in seen:
            seen.add(squeezed)
            yield kind, new


def _mutants(text: str, names: Names) -> Mutants:
    for chain in chains(text):
        statement = read_statement(chain, names)
        left = statement.sides[0]
        if isinstance(left, n.Ref):
            yield "mistype left side", _cut(text, left.name_span, _UNKNOWN)
        for place in statement.places:
            yield from _of_relation(text, place, False)
        for side in (*statement.sides, statement.condition):
            if side is None:
                continue
            if not isinstance(side, (n.Add, n.Compare, n.Both)):
                yield "flip sign", _cut(text, (side.span[0], side.span[0]), "-")
            for node in side.walk:
                yield from _of_node(text, node, names)


def _cut(text: str, span: Span, new: str = " ") -> str:
    return text[: span[0]] + new + text[span[1] :]


def _of_relation(text: str, place: Span, shift: bool) -> Mutants:
    word = text[slice(*place)].strip().lstrip("\\")
    if word in _TURNED:
        yield "turn relation", _cut(text, place, _TURNED[word])
        if shift:
            yield "change bound", _cut(text, place, _SHIFTED[word])


def _of_node(text: str, node: n.Node, names: Names) -> Mutants:
    if isinstance(node, n.Add):
        yield from _of_sum(text, node)
    elif isinstance(node, n.Mul):
        yield from _of_product(text, node)
    elif isinstance(node, n.Frac):
        yield "drop denominator", _cut(text, node.span, "{" + text[slice(*node.top.span)] + "}")
        if not isinstance(node.top, n.Number):
            yield "drop numerator", _cut(text, node.top.span, " 1 ")
    elif isinstance(node, n.Power) and node.script_span != (0, 0):
        yield "drop power", _cut(text, node.script_span)
    elif isinstance(node, n.Transpose):
        yield "drop transpose", _cut(text, node.script_span)
    elif isinstance(node, n.Number):
        for changed in _other_numbers(node.text):
            yield "change constant", _cut(text, node.span, changed)
    elif isinstance(node, n.Reduce):
        yield "drop sum", _cut(text, (node.span[0], node.body.span[0]))
        yield from _of_bound(text, node.bound, names)
    elif isinstance(node, n.Call):
        yield from _of_call(text, node, names)
    elif isinstance(node, n.Ref):
        yield from _of_symbol(text, node, names)
        yield from _swaps(text, node.indices or ())
    elif isinstance(node, n.Indexed):
        yield from _swaps(text, node.indices)
    elif isinstance(node, n.IndexRef):
        for other in _same_range(node.name, names):
            yield "replace index", _cut(text, node.span, " " + other + " ")
    elif isinstance(node, n.SizeRef):
        for symbol in names.of_kind("size"):
            if symbol.key != node.name:
                yield "replace size", _cut(text, node.span, " " + symbol.key + " ")
    elif isinstance(node, n.Compare):
        yield from _of_condition(text, node)
    elif isinstance(node, n.Both):
        yield from _of_both(text, node)


def _other_numbers(printed: str) -> Iterator[str]:
    """Another number: its last digit by one, and by two."""
    if "." not in printed:
        yield str(int(printed) + 1)
        yield str(int(printed) + 2)
        return
    last = int(printed[-1])
    for step in (1, 2):
        yield printed[:-1] + str(last - step if last >= step else last + step)


def _of_sum(text: str, node: n.Add) -> Mutants:
    for term, (sign, place) in zip(node.terms, node.signs, strict=True):
        if place is None:
            yield "flip sign", _cut(text, (term.span[0], term.span[0]), "-")
        else:
            yield "flip sign", _cut(text, place, " - " if sign > 0 else " + ")
    if len(node.terms) < 2:
        return
    for position, (term, (_, place)) in enumerate(zip(node.terms, node.signs, strict=True)):
        if position:
            assert place is not None
            yield "drop term", _cut(text, (place[0], term.span[1]))
        else:
            yield "drop term", _cut(text, (node.span[0], term.span[1]))


def _of_product(text: str, node: n.Mul) -> Mutants:
    for position, factor in enumerate(node.factors):
        if position:
            yield "drop factor", _cut(text, (node.factors[position - 1].span[1], factor.span[1]))
        else:
            yield "drop factor", _cut(text, (node.span[0], node.factors[1].span[0]))


def _of_call(text: str, node: n.Call, names: Names) -> Mutants:
    if node.bound is not None:
        yield from _of_bound(text, node.bound, names)
    if node.function in ("max", "min"):
        other = "\\min" if node.function == "max" else "\\max"
        found = re.compile(r"\\(?:max|min)(?![A-Za-z])").match(text, node.span[0])
        if found is not None:
            yield "max for min", _cut(text, found.span(), other)
    if node.bound is not None:
        return
    if node.function == "einsum":
        yield from _of_einsum(text, node)
    elif len(node.arguments) == 1:
        yield "drop function", _cut(text, node.span, "{" + text[slice(*node.arguments[0].span)] + "}")


def _of_einsum(text: str, node: n.Call) -> Mutants:
    found = re.search(r"\\texttt\s*\{([^{}]*)\}", text[slice(*node.span)])
    assert found is not None
    start, printed = node.span[0] + found.start(1), found.group(1)
    letters = sorted(set(re.findall(r"[a-z]", printed)))
    for position, letter in enumerate(printed):
        for other in letters:
            if letter.isalpha() and other != letter:
                place = (start + position, start + position + 1)
                yield "change letter of einsum", _cut(text, place, other)
    arrow = printed.find("->")
    result = printed[arrow + 2 :]
    if arrow >= 0 and len(result) == 2:
        yield "swap letters of einsum", _cut(text, (start + arrow + 2, start + len(printed)), result[::-1])


def _same_range(name: str, names: Names) -> list[str]:
    symbol = names.get(name)
    assert symbol is not None
    return [other.key for other in names.of_kind("index") if other.axes == symbol.axes and other.key != name]


def _of_bound(text: str, bound: n.Bound, names: Names) -> Mutants:
    for name, span in zip(bound.names, bound.spans, strict=True):
        for other in _same_range(name, names):
            yield "sum over another index", _cut(text, span, " " + other + " ")


def _of_both(text: str, node: n.Both) -> Mutants:
    pattern, other = (r"\\text\s*\{\s*and\s*\}|\\land|\\wedge", r"\lor ")
    if node.word != "and":
        pattern, other = (r"\\text\s*\{\s*or\s*\}|\\lor|\\vee", r"\land ")
    for left, right in zip(node.parts, node.parts[1:], strict=False):
        found = re.compile(pattern).search(text, left.span[1], right.span[0])
        if found is not None:
            yield "and for or", _cut(text, found.span(), other)


def _of_condition(text: str, node: n.Compare) -> Mutants:
    for left, right in zip(node.sides, node.sides[1:], strict=False):
        between = (left.span[1], right.span[0])
        found = _RELATION.search(text, *between) if between[0] <= between[1] else None
        if found is not None:
            yield from _of_relation(text, found.span(), True)


def _swaps(text: str, indices: tuple[n.Node, ...]) -> Mutants:
    plain = [item for item in indices if isinstance(item, n.IndexRef)]
    for position, one in enumerate(plain):
        for two in plain[position + 1 :]:
            if one.name != two.name:
                first, second = sorted((one.span, two.span))
                swapped = _cut(text, second, " " + text[slice(*first)] + " ")
                yield "swap indices", _cut(swapped, first, " " + text[slice(*second)] + " ")


def _spellings(key: str) -> list[str]:
    """How a name may stand in the LaTeX: with and without braces around single letters."""
    short = key
    for mark in ("_", "^"):
        head, found, tail = short.partition(mark + "{")
        if found and tail[1:2] == "}":
            short = head + mark + tail[0] + tail[2:]
    plain = key.replace("{", " ", 1).replace("}", "", 1) if key.startswith("\\") else key
    if key.endswith("}()"):
        return [key[:-3] + "("]
    return [short, key, plain] if not key.endswith("()") else [key[:-2]]


def _of_symbol(text: str, node: n.Ref, names: Names) -> Mutants:
    symbol = names.get(node.name)
    if symbol is None:
        return
    start = node.name_span[0]
    spelled = [word for word in _spellings(node.name) if text.startswith(word, start)]
    if not spelled:
        return
    family = node.name.endswith("()")
    scripted = node.name.endswith("}()")
    others = []
    for other in names.of_kind("tensor", "defined"):
        alike = other.axes == symbol.axes and other.key.endswith("()") == family
        if alike and other.key != node.name and "/" not in other.key and other.key.endswith("}()") == scripted:
            others.append(other.key)
    step = max(1, len(others) // _SYMBOLS)
    for key in others[::step][:_SYMBOLS]:
        spelling = _spellings(key)[0] if family else key + " "
        yield "replace symbol", _cut(text, (start, start + len(max(spelled, key=len))), spelling)
