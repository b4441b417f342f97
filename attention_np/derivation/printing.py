r"""An expression of a page as a line of NumPy, printed from its tree: text for readers, which nothing here runs.

``A_{ij} (G_{ij} - \sum_l A_{il} G_{il})`` becomes ``A * (G - (A * G).sum(axis=-1, keepdims=True))``. What an index is
on the page is an axis of the array: every part of a line has its axes in one order, that of the left side, with an axis
of length one where it has none. A sum of products is a matrix product where it is one, a product and a sum where the
axes of the factors are the same, else an einsum. Indices of the page count from one, those of NumPy from zero.

What cannot be said raises :class:`.pieces.Unsayable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attention_np.derivation import nodes
from attention_np.derivation.header import Header
from attention_np.derivation.pieces import (
    ATOM,
    LOOSE,
    POWER,
    PRODUCT,
    SIGN,
    SUM,
    Code,
    Layout,
    Unsayable,
    permuted,
    turned,
    united,
    upright,
)
from attention_np.derivation.slopes import called, free_indices_of, indices_of, pattern, shape_of
from attention_np.derivation.values import ANY, ONE

__all__ = ["Printer"]


@dataclass
class Printer(Layout):
    """Prints the expressions of one statement.

    ``scalars`` are indices that are numbers here, as in a loop. The other attributes collect what the lines use:
    derivatives that stand as arrays, by name and by what they are; indices; and lines before.
    """

    header: Header = field(default_factory=Header)
    scalars: frozenset[str] = frozenset()
    derivatives: dict[str, nodes.Node] = field(default_factory=dict)
    counters: dict[str, str] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)
    patterns: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def code(self, node: nodes.Node) -> Code:
        """The piece for a node."""
        code: Code = getattr(self, node.method, self._unsayable)(node)
        return code

    def _unsayable(self, node: nodes.Node) -> Code:
        raise Unsayable(type(node).__name__)

    # Leaves.

    def _number(self, node: nodes.Number) -> Code:
        return Code(node.text.lstrip("0") or "0" if node.text.isdigit() else node.text)

    def _constant(self, node: nodes.Constant) -> Code:
        return Code({"infinity": "np.inf", "pi": "np.pi", "zero": "0"}[node.name])

    def _sizeref(self, node: nodes.SizeRef) -> Code:
        return Code(self.symbol(node.name))

    def index(self, name: str) -> Code:
        """An index, counted from zero."""
        text = self.identifiers.of(name)
        if name in self.scalars:
            return Code(text)
        self.counters.setdefault(text, name)
        return Code(text, names=(name,))

    def _indexref(self, node: nodes.IndexRef) -> Code:
        return replace(self.index(node.name), text=f"{self.identifiers.of(node.name)} + 1", level=SUM)

    def _eye(self, node: nodes.Eye) -> Code:
        if node.size is None:
            return Code("1", special="eye")
        return Code(f"np.eye({self.size(node.size)})", shape=(node.size, node.size))

    def _ones(self, node: nodes.Ones) -> Code:
        return Code("1", shape=(node.size or ANY, ONE), special="ones", thin=True)

    def _group(self, node: nodes.Group) -> Code:
        return self.code(node.body)

    def _ref(self, node: nodes.Ref) -> Code:
        symbol = self.known.get(node.name)
        if symbol is None or symbol.axes is None:
            raise Unsayable(node.name)
        text = self.symbol(node.name)
        if node.indices is None:
            axes = symbol.axes
            return Code(text, shape=(*axes, ONE) if len(axes) == 1 else axes)
        return self._pick(Code(text), symbol.axes, node.indices)

    def _indexed(self, node: nodes.Indexed) -> Code:
        base = self.plain(self.code(node.base))
        if base.is_vector and not base.is_column:
            raise Unsayable("entries of a row")
        base = self.full(base)
        axes = base.shape[:1] if base.is_column else base.shape
        return self._pick(replace(base, shape=()), axes, node.indices)

    def _pick(self, base: Code, axes: tuple[str, ...], indices: tuple[nodes.Node, ...]) -> Code:
        """Entries of an array that has the axes of `base`, then these."""
        every = [*indices, *(nodes.Slice((0, 0)) for _ in axes[len(indices) :])]
        names: list[str | None] = list(base.names)
        entries: list[str] = [":"] * len(names)
        arrays: list[tuple[int, Code]] = []
        shape: list[str] = []
        for place, (index, axis) in enumerate(zip(every, axes, strict=True), len(names)):
            if isinstance(index, nodes.Slice):
                entries.append(":")
                names.append(None)
                shape.append(axis)
            elif isinstance(index, nodes.IndexRef) and index.name not in self.scalars:
                entries.append(":")
                names.append(index.name)
            else:
                code = self.place(index, axis)
                entries.append(code.text)
                if code.names:
                    arrays.append((place, code))
                    names += [f" {place}"]
        if arrays:
            return self._looked_up(base, every, entries, arrays, shape, axes)
        text = base.text
        while entries and entries[-1] == ":":
            entries.pop()
        level = base.level
        if entries:
            text, level = f"{base.within(ATOM)}[{', '.join(entries)}]", ATOM
        met = [name for name in names if name is not None]
        if len(set(met)) < len(met):
            return self._diagonal(text, names, shape)
        kept = tuple(name for name in names if name is not None)
        positions = [k for k, name in enumerate(names) if name is not None] + [
            k for k, name in enumerate(names) if name is None
        ]
        code = Code(text, level, kept, upright(shape), matrix=base.matrix and not entries)
        return code if positions == sorted(positions) else permuted(code, positions)

    def _diagonal(self, text: str, names: Sequence[str | None], shape: Sequence[str]) -> Code:
        """The entries at which an index stands at several axes."""
        letters = self.letters([name or f" {place}" for place, name in enumerate(names)])
        met = self.order(name for name in names if name is not None)
        rest = [letters[f" {place}"] for place, name in enumerate(names) if name is None]
        spec = "".join(letters[name or f" {place}"] for place, name in enumerate(names))
        out = "".join(letters[name] for name in met) + "".join(rest)
        return Code(f'np.einsum("{spec}->{out}", {text})', names=met, shape=upright(shape))

    def _looked_up(
        self,
        base: Code,
        indices: Sequence[nodes.Node],
        entries: list[str],
        arrays: list[tuple[int, Code]],
        shape: list[str],
        axes: tuple[str, ...],
    ) -> Code:
        """Entries at places that are calculated."""
        first = len(base.names)
        plain = [index.name for index in indices if isinstance(index, nodes.IndexRef)]
        named = [*base.names, *plain]
        if len(arrays) == 1 and len(set(named)) == len(named) and not set(arrays[0][1].names) & set(named):
            place, code = arrays[0]
            if all(entry == ":" or k == place for k, entry in enumerate(entries)):
                order = self.order(code.names)
                inside = self.laid(code, order)
                before = [*base.names]
                slices = 0
                for k, index in enumerate(indices, first):
                    if isinstance(index, nodes.IndexRef):
                        before.append(index.name)
                    elif k == place:
                        before += order
                    else:
                        slices += 1
                        before.append("")
                if "" in before[: len(before) - slices]:
                    raise Unsayable("entries behind a whole axis")
                entries = [*entries[:place], inside]
                text = f"{base.within(ATOM)}[{', '.join(entries)}]"
                return Code(text, ATOM, tuple(name for name in before if name), upright(shape))
        if base.names or any(isinstance(index, nodes.Slice) for index in indices[: len(indices) - len(shape)]):
            raise Unsayable("entries of an array with indices")
        looked = dict(arrays)
        union = self.order([*plain, *(name for code in looked.values() for name in code.names)])
        parts = []
        for k, index in enumerate(indices[: len(indices) - len(shape)]):
            if k in looked:
                parts.append(self.laid(looked[k], union))
            elif isinstance(index, nodes.IndexRef):
                parts.append(self.laid(self.index(index.name), union))
            else:
                parts.append(entries[k])
        return Code(f"{base.within(ATOM)}[{', '.join(parts)}]", ATOM, union, upright(shape))

    def place(self, index: nodes.Node, axis: str) -> Code:
        """An index that is calculated, counted from zero."""
        if isinstance(index, nodes.SizeRef) and index.name == axis:
            return Code("-1")
        linear = self.linear(index)
        if linear is None:
            code = self.plain(self.code(index))
            if code.shape:
                raise Unsayable("an index that is an array")
            text = f"{code.within(SUM)} - 1"
            return Code(f"({text}).astype(int)", ATOM, code.names)
        code = linear.code(self, -1)
        if linear.may_leave and (code.names or any(self.identifiers.of(name) in code.text for name in self.scalars)):
            return Code(f"np.clip({code.text}, 0, {self.size(axis)} - 1)", ATOM, code.names)
        return code

    def linear(self, node: nodes.Node) -> Linear | None:
        """Indices, sizes and numbers that are added, with signs; None for anything else."""
        if isinstance(node, nodes.Group):
            return self.linear(node.body)
        if isinstance(node, nodes.Number) and node.text.isdigit():
            return Linear((), int(node.text))
        if isinstance(node, nodes.IndexRef):
            return Linear(((1, self.index(node.name)),), 1)
        if isinstance(node, nodes.SizeRef):
            return Linear(((1, Code(self.symbol(node.name), special="size")),), 0)
        if isinstance(node, nodes.Mul) and set(node.operators) <= {"", "cdot"}:
            parts = [self.linear(factor) for factor in node.factors]
            if len(parts) == 2 and parts[0] is not None and parts[1] is not None:
                return parts[0].times(self, parts[1])
        if isinstance(node, nodes.Add):
            total = Linear((), 0)
            for term, (sign, _) in zip(node.terms, node.signs, strict=True):
                part = self.linear(term)
                if part is None:
                    return None
                total = Linear(
                    (*total.terms, *((sign * one, code) for one, code in part.terms)),
                    total.constant + sign * part.constant,
                )
            return total
        return None

    # Conditions.

    def condition(self, node: nodes.Node | None) -> Code | None:
        """A condition, as booleans; None if it always holds."""
        if node is None:
            return None
        if isinstance(node, nodes.Both):
            parts = [part for part in map(self.condition, node.parts) if part is not None]
            if len(parts) < len(node.parts) and node.word == "or":
                return None
            return self._joined(parts, "&" if node.word == "and" else "|")
        assert isinstance(node, nodes.Compare)
        parts = []
        for k, relation in enumerate(node.relations):
            left, right = node.sides[k], node.sides[k + 1]
            if relation == "<=" and self._always(left, right):
                continue
            one, two = self._shifted(left, right)
            names, texts = self.together([one, two], [SUM, SUM])
            sign = {"=": "=="}.get(relation, relation)
            parts.append(Code(f"{texts[0]} {sign} {texts[1]}", LOOSE, names, truth=True))
        return self._joined(parts, "&")

    def _joined(self, parts: Sequence[Code], word: str) -> Code | None:
        if len(parts) < 2:
            return parts[0] if parts else None
        if all(not part.names for part in parts):
            word = {"&": "and", "|": "or"}[word]
            return Code(f" {word} ".join(part.text for part in parts), LOOSE, truth=True)
        names, _ = self.together(parts, [LOOSE] * len(parts))
        texts = [self.laid(part, names, level=ATOM) for part in parts]
        return Code(f" {word} ".join(texts), LOOSE, names, truth=True)

    def _always(self, left: nodes.Node, right: nodes.Node) -> bool:
        """Whether one of two neighbours in ``1 <= j <= n`` is the end of a range, that of the other."""
        if isinstance(left, nodes.Number) and isinstance(right, nodes.IndexRef):
            return left.value <= 1
        if isinstance(left, nodes.IndexRef) and isinstance(right, nodes.SizeRef):
            return self.known.range_of(left.name) == right.name
        return False

    def _shifted(self, left: nodes.Node, right: nodes.Node) -> tuple[Code, Code]:
        """Two sides of a comparison; a number that both have less on either."""
        one, two = self.linear(left), self.linear(right)
        if one is None or two is None:
            codes = [self.plain(self.code(side)) for side in (left, right)]
            if any(code.shape for code in codes):
                raise Unsayable("a condition on an array")
            return codes[0], codes[1]
        less = -min(one.constant, two.constant)
        return one.code(self, less), two.code(self, less)

    def _iverson(self, node: nodes.Iverson) -> Code:
        where = self.condition(node.condition)
        return Code("1") if where is None else where

    def _delta(self, node: nodes.Delta) -> Code:
        left, right = node.left, node.right
        if isinstance(left, nodes.IndexRef) and isinstance(right, nodes.IndexRef):
            free = {left.name, right.name} - self.scalars
            if len(free) == 2:
                size = self.size(self.known.range_of(left.name))
                return Code(f"np.eye({size})", names=self.order(free))
        one, two = self._shifted(left, right)
        names, texts = self.together([one, two], [SUM, SUM])
        return Code(f"{texts[0]} == {texts[1]}", LOOSE, names, truth=True)

    def number(self, code: Code) -> Code:
        """Booleans as zeros and ones."""
        if not code.truth:
            return code
        text = f"np.where({code.text}, 1.0, 0.0)" if code.names else f"float({code.text})"
        return replace(code, text=text, level=ATOM, truth=False, kept=None, factors=())

    def _cases(self, node: nodes.Cases) -> Code:
        values = [self.number(self.plain(self.code(value))) for value in node.values]
        shapes = {value.shape for value in values if value.text != "0"}
        if len(shapes) > 1:
            raise Unsayable("cases of different shapes")
        wheres = [self.condition(condition) for condition in node.conditions]
        total = Code("np.nan")
        for value, where, condition in reversed(list(zip(values, wheres, node.conditions, strict=True))):
            if condition is None or where is None:
                total = value
            elif not where.names:
                names, texts = self.together([value, total], [SUM, SUM])
                shape = value.shape or total.shape
                total = Code(f"{texts[0]} if {where.text} else {texts[1]}", LOOSE, names, shape)
            else:
                codes = [where, value, total]
                names, texts = self.together(codes, [LOOSE] * 3)
                total = Code(f"np.where({', '.join(texts)})", ATOM, names, value.shape or total.shape)
        return total

    # Arithmetic.

    def _add(self, node: nodes.Add) -> Code:
        if any(isinstance(item, nodes.IndexRef) for item in node.walk):
            linear = self.linear(node)
            if linear is not None:
                return linear.code(self, 0)
        codes = [self.number(self.code(term)) for term in node.terms]
        signs = [sign for sign, _ in node.signs]
        sized = next((code for code in codes if code.shape), None)
        if sized is not None:
            codes = [
                self._sized(code, sized.shape) if code.special == "eye" else self.beside(code, codes) for code in codes
            ]
        elif any(code.special == "eye" for code in codes):
            if len(codes) > 1:
                raise Unsayable("a sum of multiples of I")
            return replace(codes[0], text=f"-{codes[0].within(SIGN)}", level=SUM) if signs[0] < 0 else codes[0]
        levels = [SUM if sign > 0 and place == 0 else PRODUCT for place, sign in enumerate(signs)]
        if len(codes) == 1:
            if signs[0] > 0:
                return codes[0]
            literal = codes[0].text.replace(".", "").isdigit()
            return replace(
                codes[0], text=f"-{codes[0].within(PRODUCT)}", level=SIGN if literal else SUM, kept=None, factors=()
            )
        names, texts = self.together(codes, levels)
        text = ("-" if signs[0] < 0 else "") + texts[0]
        for sign, part in zip(signs[1:], texts[1:], strict=True):
            text += f" {'+' if sign > 0 else '-'} {part}"
        thin = all(code.thin for code in codes)
        return Code(text, SUM, names, united([code.shape for code in codes]), thin=thin)

    def _sized(self, code: Code, shape: tuple[str, ...]) -> Code:
        """A multiple of the identity beside a matrix of this shape."""
        eye = Code(f"np.eye({self.size(shape[0] if shape[0] not in (ANY, ONE) else shape[1])})", shape=shape)
        if code.text == "1":
            return eye
        return self.times(replace(code, special=""), eye)

    def _mul(self, node: nodes.Mul) -> Code:
        return self.multiplied([self.code(factor) for factor in node.factors], node.operators)

    def multiplied(self, codes: Sequence[Code], operators: Sequence[str]) -> Code:
        """Factors, and the operator before each."""
        if len(codes) == 2 and codes[0].level == ATOM and codes[1].text.startswith("10 ** ") and not codes[0].names:
            power = codes[1].text.removeprefix("10 ** ")
            if codes[0].text.replace(".", "").isdigit() and power.lstrip("-").isdigit():
                return Code(f"{codes[0].text}e{power}")
        total, divisors = codes[0], []
        if total.text.startswith("1 / ") and not total.shape and not total.names and len(codes) > 1:
            divisors, codes, operators = [total], codes[1:], operators[1:]
            total = codes[0]
        for code, operator in zip(codes[1:], operators[1:], strict=True):
            if operator in ("", "cdot"):
                total = self.times(total, code)
            elif operator == "odot":
                total = self.entrywise(total, code)
            elif operator == "oslash":
                total = self.entrywise(total, code, "/")
            elif operator == "slash":
                total = self.over(total, code)
            else:
                names, texts = self.together([total, code], [PRODUCT, SIGN])
                total = Code(f"{texts[0]} % {texts[1]}", PRODUCT, names)
        for divisor in divisors:
            below = divisor.text.removeprefix("1 / ")
            total = self.over(total, Code(below, ATOM))
        return total

    def times(self, left: Code, right: Code) -> Code:
        """A product: with a number, or of matrices."""
        if left.special == "eye" and right.special == "eye":
            raise Unsayable("a product of multiples of I")
        for one, two in ((left, right), (right, left)):
            if one.special == "eye" and two.shape:
                return two if one.text == "1" else self.times(replace(one, special=""), two)
            if one.special == "eye":
                product = self.times(replace(one, special=""), two) if one.text != "1" else two
                return replace(product, special="eye", kept=None, factors=())
        if left.shape and right.shape:
            return self.matrix_product(left, right)
        for one, two in ((left, right), (right, left)):
            if two.special in ("ones", "diagonal") and not one.shape:
                scaled = one if two.text == "1" else self.entrywise(one, replace(two, special="", shape=(), thin=False))
                return replace(scaled, special=two.special, shape=two.shape, thin=two.thin, kept=None, factors=())
        return self.entrywise(self.plain(left), self.plain(right))

    def entrywise(self, left: Code, right: Code, sign: str = "*") -> Code:
        """Entry by entry."""
        left, right = self.beside(left, [left, right]), self.beside(right, [left, right])
        if left.truth and right.truth:
            left = self.number(left)
        if sign == "*" and left.text == "1":
            return right
        levels = [SIGN if left.matrix and sign == "*" else PRODUCT, SIGN if sign == "/" or right.matrix else PRODUCT]
        names, texts = self.together([left, right], levels)
        thin = left.thin and right.thin if left.shape and right.shape else left.thin or right.thin
        matrix = left.matrix and sign == "/"
        factors = (
            *(left.factors or (("*", left),)),
            *((("/", right),) if sign == "/" else right.factors or (("*", right),)),
        )
        text = f"{texts[0]} {sign} {texts[1]}"
        return Code(text, PRODUCT, names, united([left.shape, right.shape]), thin=thin, matrix=matrix, factors=factors)

    def over(self, left: Code, right: Code) -> Code:
        """Divided by a number."""
        right = self.number(right)
        if right.shape or right.special:
            raise Unsayable("divided by an array")
        if left.special in ("eye", "ones"):
            inner = self.entrywise(replace(left, special="", shape=(), thin=False), right, "/")
            return replace(inner, special=left.special, shape=left.shape, thin=left.thin, factors=())
        return self.entrywise(self.number(left), right, "/")

    def _frac(self, node: nodes.Frac) -> Code:
        return self.over(self.code(node.top), self.code(node.bottom))

    def _power(self, node: nodes.Power) -> Code:
        base, exponent = self.number(self.code(node.base)), self.code(node.exponent)
        if exponent.shape or exponent.special == "eye":
            raise Unsayable("an exponent that is an array")
        if base.shape and not node.elementwise:
            return self._matrix_power(base, exponent)
        base = self.plain(base)
        if exponent.text == "-1":
            return self.over(Code("1"), base) if not base.shape else self.entrywise(Code("1."), base, "/")
        if base.text.isdigit() and not exponent.text.isdigit() and base.text != "10":
            base = replace(base, text=f"{base.text}.0")
        names, texts = self.together([base, exponent], [ATOM, SIGN])
        return Code(f"{texts[0]} ** {texts[1]}", POWER, names, base.shape, thin=base.thin)

    def _matrix_power(self, base: Code, exponent: Code) -> Code:
        if exponent.text == "-1" and base.special == "diagonal":
            inverse = f"1 / {base.within(SIGN)}"
            return replace(base, text=inverse, level=PRODUCT)
        base = self.full(base)
        if exponent.text == "-1":
            return Code(f"np.linalg.inv({base.text})", ATOM, base.names, base.shape)
        return Code(f"np.linalg.matrix_power({base.text}, {exponent.text})", ATOM, base.names, base.shape)

    def _transpose(self, node: nodes.Transpose) -> Code:
        base = self.code(node.base)
        if base.special in ("eye", "diagonal"):
            return base
        if len(base.shape) != 2:
            raise Unsayable("the transpose of a number")
        turned_shape = base.shape[::-1]
        if base.is_vector:
            return replace(base, shape=turned_shape)
        base = self.plain(base)
        if base.names:
            return Code(f"{base.within(ATOM)}.swapaxes(-1, -2)", ATOM, base.names, turned_shape, thin=base.thin)
        if base.text.endswith(".T") and base.level == ATOM:
            return replace(base, text=base.text.removesuffix(".T"), shape=turned_shape, kept=None, factors=())
        return Code(f"{base.within(ATOM)}.T", ATOM, (), turned_shape, thin=base.thin)

    def full(self, code: Code) -> Code:
        """A matrix without an axis of length one that stands for a longer one."""
        code = self.plain(code)
        if not code.thin:
            return code
        names = self.order(code.names)
        return replace(code, text=self.whole(code, names), level=ATOM, names=names, thin=False, kept=None, factors=())

    def matrix_product(self, left: Code, right: Code) -> Code:
        """Rows times columns."""
        shape = left.shape[0], right.shape[1]
        if left.special == "diagonal" or right.special == "diagonal":
            return self._scaled(left, right)
        row, column = left.shape[0] == ONE, right.shape[1] == ONE
        if left.special == "ones" or right.special == "ones":
            return self._with_ones(left, right)
        if left.shape[1] == ONE:  # a column times a row
            one, two = self.plain(left), self.plain(right)
            if not (one.names or two.names):
                if one.thin or two.thin:
                    raise Unsayable("an outer product of equal entries")
                return Code(f"np.outer({one.text}, {two.text})", ATOM, (), shape)
            names = self.order((*one.names, *two.names))
            first = self._upright_in(one, names, [":", "None"])
            second = self._upright_in(two, names, ["None", ":"])
            return Code(f"{first} * {second}", PRODUCT, names, shape)
        left, right = self.full(left), self.full(right)
        if not row and not column:
            names, texts = self.together([left, right], [PRODUCT if left.matrix else SIGN, SIGN])
            return Code(f"{texts[0]} @ {texts[1]}", PRODUCT, names, shape, matrix=True)
        labels_left = [*left.names, *([" in"] if row else [" row", " in"])]
        labels_right = [*right.names, *([" in"] if column else [" in", " column"])]
        out = [] if row else [" row"]
        out += [] if column else [" column"]
        names = self.order((*left.names, *right.names))
        code = self.contraction([(left, labels_left), (right, labels_right)], [" in"], [*names, *out])
        return replace(code, names=names, shape=() if shape == (ONE, ONE) else shape)

    def _upright_in(self, code: Code, names: Sequence[str], ends: Sequence[str]) -> str:
        """A vector with another axis behind or before its own."""
        places = [":" if name in code.names else "None" for name in names] + list(ends)
        inner = turned(code, [name for name in names if name in code.names])
        while places and places[0] == "None":
            places.pop(0)
        while places and places[-1] == ":":
            places.pop()
        return f"{inner.within(ATOM)}[{', '.join(places)}]" if places else inner.within(PRODUCT)

    def _scaled(self, left: Code, right: Code) -> Code:
        """A diagonal matrix times another, or another times a diagonal one."""
        if left.special == right.special:
            product = self.entrywise(
                replace(left, special="", shape=(left.shape[0], ONE)),
                replace(right, special="", shape=(right.shape[0], ONE)),
            )
            return replace(product, special="diagonal", shape=(left.shape[0], right.shape[1]))
        diagonal, other = (left, right) if left.special == "diagonal" else (right, left)
        other = self.plain(other)
        vector = replace(diagonal, special="", shape=(diagonal.shape[0], ONE))
        if other.is_vector:
            product = self.entrywise(
                vector, replace(other, shape=(max(other.shape, key=lambda axis: axis != ONE), ONE))
            )
            return replace(product, shape=other.shape)
        names = self.order((*vector.names, *other.names))
        ends = [":", "None"] if left.special == "diagonal" else ["None", ":"]
        first, second = self._upright_in(vector, names, ends), self.laid(other, names, level=PRODUCT)
        texts = (first, second) if left.special == "diagonal" else (second, first)
        return Code(f"{texts[0]} * {texts[1]}", PRODUCT, names, (left.shape[0], right.shape[1]))

    def _with_ones(self, left: Code, right: Code) -> Code:
        """A product with a vector of ones: a sum along an axis, or a vector beside itself."""
        shape = left.shape[0], right.shape[1]
        if left.special == right.special:
            if left.shape[1] == ONE:  # 1 1^T
                return Code("1", ATOM, (), shape, thin=True)
            return Code(self.size(left.shape[1]))
        if right.special == "ones" and right.shape[1] == ONE:  # X 1
            other = self.full(left)
            return self._summed_axis(other, -1, () if other.is_vector else (other.shape[0], ONE))
        if left.special == "ones" and left.shape[0] == ONE:  # 1^T X
            other = self.full(right)
            return self._summed_axis(
                other, -1 if other.is_vector else -2, () if other.is_vector else (ONE, other.shape[1])
            )
        vector = self.plain(left if right.special == "ones" else right)
        if not vector.is_vector:
            raise Unsayable("ones beside a matrix")
        if vector.kept is not None and right.special == "ones" and vector.kept[1][-1:] == (None,):
            return Code(vector.kept[0], ATOM, vector.names, shape, thin=True)
        names = self.order(vector.names)
        ends = [":", "None"] if right.special == "ones" else ["None", ":"]
        text = self._upright_in(vector, names, ends)
        return Code(text, ATOM if text.endswith("]") else PRODUCT, names, shape, thin=True)

    def _summed_axis(self, code: Code, axis: int, shape: tuple[str, ...]) -> Code:
        if code.rank == 1 and not code.names:
            return Code(f"{code.within(ATOM)}.sum()")
        inner = code.within(ATOM)
        kept = None
        if axis == -1 and code.rank == 2:
            kept = (f"{inner}.sum(axis=-1, keepdims=True)", (*code.names, "", None))
        elif axis == -1:
            kept = (f"{inner}.sum(axis=-1, keepdims=True)", (*code.names, None))
        position = axis if axis == -1 or code.names else 0
        return Code(f"{inner}.sum(axis={position})", ATOM, code.names, shape, kept=kept)

    # Sums over indices.

    def _reduce(self, node: nodes.Reduce) -> Code:
        bound, body = _merged(node)
        inside = self._inside(bound, body)
        where = inside.condition(bound.condition)
        factors, operators = (body.factors, body.operators) if isinstance(body, nodes.Mul) else ((body,), ("",))
        if node.kind == "sum" and set(operators) <= {"", "cdot"}:
            contracted = self._contracted(inside, bound, factors, where)
            if contracted is not None:
                return contracted
        code = inside.number(inside.plain(inside.code(body)))
        return inside.gathered(bound, code, where, "sum" if node.kind == "sum" else "prod")

    def _inside(self, bound: nodes.Bound, body: nodes.Node) -> Printer:
        """The printer of what stands below a sum, whose frame has the indices that are bound, too."""
        frame = list(self.frame)
        for name in bound.names:
            place = _best_place(name, frame, body)
            frame.insert(place, name)
        return replace(self, frame=tuple(frame))

    def gathered(self, bound: nodes.Bound, body: Code, where: Code | None, what: str) -> Code:
        """A body that is summed, or of which the largest entry is taken, over the indices that are bound."""
        missing = [name for name in bound.names if name not in body.names]
        fill = {"sum": "0", "prod": "1", "max": "-np.inf", "min": "np.inf"}[what]
        if where is not None:
            missing = [name for name in missing if name not in where.names]
            names, texts = self.together([where, body], [LOOSE, LOOSE])
            body = Code(f"np.where({texts[0]}, {texts[1]}, {fill})", ATOM, names, body.shape, thin=body.thin)
        if missing and what in ("sum", "prod"):
            names = self.order((*body.names, *missing))
            spread = self.whole(self.full(body), names)
            body = Code(spread, ATOM, names, body.shape)
        elif missing:
            raise Unsayable("the largest of equal entries")
        order = self.order(body.names)
        text = self.laid(body, order, level=ATOM)
        total = len(order) + body.rank
        axes = [order.index(name) for name in bound.names]
        if len(axes) == total:
            return Code(f"{text}.{what}()")
        shown = [str(axis - total if axis == total - 1 else axis) for axis in axes]
        axis = shown[0] if len(shown) == 1 else f"({', '.join(map(str, axes))})"
        rest = tuple(name for name in order if name not in bound.names)
        places = tuple(None if name in bound.names else name for name in order)
        kept = (f"{text}.{what}(axis={axis}, keepdims=True)", places)
        return Code(f"{text}.{what}(axis={axis})", ATOM, rest, body.shape, kept=kept, thin=body.thin)

    def _contracted(
        self, inside: Printer, bound: nodes.Bound, factors: Sequence[nodes.Node], where: Code | None
    ) -> Code | None:
        """A sum of products of numbers, and of at most one array; None for anything else."""
        codes = [inside.number(inside.plain(inside.code(factor))) for factor in factors]
        if sum(bool(code.shape) for code in codes) > 1 or any(code.thin for code in codes):
            return None
        needed = set(bound.names) | set(() if where is None else where.names)
        outer = [code for code in codes if not needed & set(code.names) and not code.shape]
        inner = [code for code in codes if code not in outer]
        met = {name for code in inner for name in code.names}
        if where is not None or not set(bound.names) <= met or not inner:
            return None
        shape = next((code.shape for code in inner if code.shape), ())
        names = self.order(name for name in inside.order(met) if name not in bound.names)
        if len(inner) == 1:
            total = inside.gathered(bound, inner[0], None, "sum")
        else:
            operands = [(code, [*code.names, *self._anonymous(code)]) for code in inner]
            ends = [label for _, labels in operands for label in labels if label.startswith(" ")]
            total = inside.contraction(operands, list(bound.names), [*names, *ends])
            total = replace(total, names=tuple(total.names) if total.kept else names, shape=shape)
        result = total
        if outer:
            first = outer[0]
            for code in outer[1:]:
                first = self.entrywise(first, code)
            if first.text.startswith("1 / ") and not first.names:
                return self.over(result, Code(first.text.removeprefix("1 / ")))
            result = self.entrywise(first, result)
        return result

    @staticmethod
    def _anonymous(code: Code) -> list[str]:
        return [f" {place}" for place in range(code.rank)]

    def contraction(self, operands: Sequence[tuple[Code, list[str]]], over: Sequence[str], out: Sequence[str]) -> Code:
        """A product that is summed over some axes, each called by a label; `out` are those of the result."""
        if len(operands) == 2 and len(over) == 1:
            for one, two in (operands, operands[::-1]):
                text = _matrix_text(one, two, over[0], list(out))
                if text is not None:
                    return Code(text, PRODUCT, matrix=True)
        same = self._same_axes(operands, over, out)
        if same is not None:
            return same
        letters = self.letters([label for _, labels in operands for label in labels])
        specs = ",".join("".join(letters[label] for label in labels) for _, labels in operands)
        result = "".join(letters[label] for label in out)
        texts = ", ".join(code.text for code, _ in operands)
        return Code(f'np.einsum("{specs}->{result}", {texts})')

    def _same_axes(
        self, operands: Sequence[tuple[Code, list[str]]], over: Sequence[str], out: Sequence[str]
    ) -> Code | None:
        """A plain product and a sum, where the axes of the factors are the last ones of the longest, in its order."""
        longest = max((labels for _, labels in operands), key=len)
        fits = all(labels == longest[len(longest) - len(labels) :] for _, labels in operands)
        rest = [label for label in longest if label not in over]
        if not fits or rest != list(out):
            return None
        text = " * ".join(code.within(SIGN if code.matrix else PRODUCT) for code, _ in operands)
        axes = [longest.index(label) for label in over]
        if len(axes) == len(longest):
            return Code(f"({text}).sum()")
        last = len(axes) == 1 and axes[0] == len(longest) - 1
        axis = "-1" if last else str(axes[0]) if len(axes) == 1 else f"({', '.join(map(str, axes))})"
        if any(label.startswith(" ") for label in longest):
            return Code(f"({text}).sum(axis={axis})")
        places = tuple(None if label in over else label for label in longest)
        kept = (f"({text}).sum(axis={axis}, keepdims=True)", places)
        return Code(f"({text}).sum(axis={axis})", ATOM, tuple(rest), kept=kept)

    def letters(self, labels: Iterable[str]) -> dict[str, str]:
        """A letter for each label: its own, if it is one."""
        unique = list(dict.fromkeys(labels))
        chosen = {label: label for label in unique if len(label) == 1 and label.isascii() and label.isalpha()}
        spare = (letter for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in chosen)
        for label in unique:
            if label not in chosen:
                stem = label.strip("' ")[:1]
                chosen[label] = (
                    stem
                    if stem.isalpha() and stem.isascii() and stem not in chosen.values()
                    else next(letter for letter in spare if letter not in chosen.values())
                )
        return chosen

    # Functions.

    def _call(self, node: nodes.Call) -> Code:
        if node.bound is not None:
            return self._over_index(node, node.bound)
        name, arguments = node.function, node.arguments
        if name == "softmax" and len(arguments) > 1:
            arguments = (nodes.Matrix(node.span, tuple((item,) for item in arguments)),)
        codes = [self.number(self.code(argument)) for argument in arguments]
        if name == "einsum":
            return self._einsum(node, [self.full(code) for code in codes])
        if name in ("max", "min") and len(codes) > 1:
            total = self.plain(codes[0])
            for code in map(self.plain, codes[1:]):
                names, texts = self.together([total, code], [LOOSE, LOOSE])
                shape = united([total.shape, code.shape])
                total = Code(f"np.{name}imum({', '.join(texts)})", ATOM, names, shape)
            return total
        if name == "sqrt" and len(codes) == 2:
            return self._elementwise("", codes[0], f" ** (1 / {codes[1].within(SIGN)})")
        (code,) = codes
        if name == "diag":
            return self._diag(code)
        code = self.plain(code)
        if name in ("softmax", "logsumexp"):
            code = self.full(code)
            return self._softmax_over(name, code, len(code.names) + code.rank - 1, lasts=True)
        if name in ("max", "min"):
            axes = tuple(range(-code.rank, 0))
            return Code(f"{code.within(ATOM)}.{name}({_axis(code, axes)})", ATOM, code.names)
        if name == "norm" and code.shape:
            return Code(
                f"np.linalg.norm({code.text}{', ' * bool(code.names)}{_axis(code, tuple(range(-code.rank, 0)))})",
                ATOM,
                code.names,
            )
        if name == "trace":
            code = self.full(code)
            return Code(f"np.trace({code.text}{', axis1=-2, axis2=-1' * bool(code.names)})", ATOM, code.names)
        if name == "det":
            return Code(f"np.linalg.det({self.full(code).text})", ATOM, code.names)
        return self._function("abs" if name == "norm" else name, code)

    def _function(self, name: str, code: Code) -> Code:
        """A function entry by entry."""
        if name in ("exp", "log", "sqrt", "tanh", "cosh", "sinh", "cos", "sin", "abs"):
            return self._elementwise(f"np.{name}", code, "")
        if name == "tanh'":
            return replace(code, text=f"1 - np.tanh({code.text}) ** 2", level=SUM, kept=None, factors=())
        if name == "sigmoid":
            return replace(
                code, text=f"1 / (1 + np.exp(-{code.within(PRODUCT)}))", level=PRODUCT, kept=None, factors=()
            )
        raise Unsayable(name)

    def _elementwise(self, name: str, code: Code, behind: str) -> Code:
        def of(text: str, level: int) -> str:
            return f"{name}({text})" if not behind else f"{text if level == ATOM else f'({text})'}{behind}"

        kept = None if code.kept is None else (of(code.kept[0], ATOM), code.kept[1])
        level = POWER if behind else ATOM
        return replace(code, text=of(code.text, code.level), level=level, kept=kept, matrix=False, factors=())

    def _diag(self, code: Code) -> Code:
        if code.special == "eye":
            raise Unsayable("the diagonal of I")
        if code.is_column:
            code = self.full(code)
            return replace(code, shape=(code.shape[0], code.shape[0]), special="diagonal", kept=None, factors=())
        code = self.full(code)
        text = f"np.diagonal({code.text}, axis1=-2, axis2=-1)" if code.names else f"np.diag({code.text})"
        return Code(text, ATOM, code.names, (code.shape[0], ONE))

    def _over_index(self, node: nodes.Call, bound: nodes.Bound) -> Code:
        name = node.function
        inside = self if name == "softmax" else self._inside(bound, node.arguments[0])
        code = inside.number(inside.plain(inside.code(node.arguments[0])))
        if name == "concat":
            return self._concat(code, bound)
        where = inside.condition(bound.condition)
        if name in ("max", "min"):
            return inside.gathered(bound, code, where, name)
        if where is not None or len(bound.names) != 1 or bound.names[0] not in code.names:
            raise Unsayable(f"{name} under a condition")
        order = inside.order(code.names)
        laid = replace(
            code,
            text=inside.laid(code, order),
            names=order,
            level=LOOSE if code.level == LOOSE else code.level,
            kept=None,
            factors=(),
        )
        if order != code.names:
            laid = turned(code, order)
        return inside._softmax_over(name, laid, order.index(bound.names[0]), bound.names[0])

    def _softmax_over(self, name: str, code: Code, axis: int, bound: str = "", lasts: bool = False) -> Code:
        """Softmax or log-sum-exp along an axis."""
        total = len(code.names) + code.rank
        where = "-1" if axis == total - 1 else str(axis)
        if name == "logsumexp":
            rest = tuple(item for item in code.names if item != bound)
            shape = code.shape
            if lasts:
                shape = () if code.is_vector else (*code.shape[:-1], ONE)
            text = f"np.logaddexp.reduce({code.text}, axis={where}"
            places = tuple(None if item == bound else item for item in code.names)
            return Code(f"{text})", ATOM, rest, shape, kept=(f"{text}, keepdims=True)", places) if bound else None)
        alone = total == 1
        of = "" if alone else f"axis={where}, keepdims=True"
        scores = code.text
        if not scores.isidentifier():
            scores = self.temporary("scores", code.text)
        powers = self.temporary("exp", f"np.exp({scores} - {scores}.max({of}))")
        return replace(code, text=f"{powers} / {powers}.sum({of})", level=PRODUCT, kept=None, matrix=False, factors=())

    def temporary(self, name: str, text: str) -> str:
        """A name for something that is used twice, given in a line before."""
        for line in self.before:
            left, _, right = line.partition(" = ")
            if right == text:
                return left
        fresh = self.identifiers.new(name)
        self.before.append(f"{fresh} = {text}")
        return fresh

    def _concat(self, code: Code, bound: nodes.Bound) -> Code:
        if code.names != bound.names:
            raise Unsayable("side by side for every index")
        across = code.shape[0] if code.is_column else code.shape[1]
        wanted = sorted((self.known.range_of(bound.names[0]), across))
        name = next(name for name, parts in self.header.sizes.items() if sorted(parts) == wanted)
        code = self.full(code)
        shape = (name, ONE) if code.is_column else (code.shape[0], name)
        return Code(f"np.concatenate({code.text}, axis=-1)", ATOM, (), shape)

    def _einsum(self, node: nodes.Call, codes: Sequence[Code]) -> Code:
        ranges: dict[str, str] = {}
        inputs, _, output = node.text.partition("->")
        for code, spec in zip(codes, inputs.split(","), strict=True):
            if code.names or (code.rank != len(spec)) or (code.is_vector and not code.is_column):
                raise Unsayable("an operand of einsum")
            ranges.update(zip(spec, code.shape[:1] if code.is_column else code.shape, strict=True))
        shape = tuple(ranges[letter] for letter in output)
        texts = ", ".join(code.text for code in codes)
        return Code(f'np.einsum("{node.text}", {texts})', ATOM, (), upright(shape))

    def _matrix(self, node: nodes.Matrix) -> Code:
        rows = [[self.number(self.plain(self.code(cell))) for cell in row] for row in node.rows]
        cells = [cell for row in rows for cell in row]
        if any(cell.shape for cell in cells):
            raise Unsayable("a matrix of matrices")
        shape = str(len(rows)), str(len(rows[0]))
        if shape == (ONE, ONE):
            return cells[0]
        names = self.order(name for cell in cells for name in cell.names)
        if names:
            if ONE not in shape:
                raise Unsayable("a matrix with indices")
            sizes = ", ".join(self.laid(cell, names) for cell in cells)
            return Code(f"np.stack(np.broadcast_arrays({sizes}), axis=-1)", ATOM, names, shape)
        if ONE in shape:
            return Code(f"np.array([{', '.join(cell.text for cell in cells)}])", ATOM, (), shape)
        text = ", ".join(f"[{', '.join(cell.text for cell in row)}]" for row in rows)
        return Code(f"np.array([{text}])", ATOM, (), shape)

    # Derivatives: numbers that the page has, and no line works out.

    def _derivative(self, node: nodes.Derivative) -> Code:
        return self._named_derivative(node)

    def _tangent(self, node: nodes.Tangent) -> Code:
        return self._named_derivative(node)

    def _named_derivative(self, node: nodes.Node) -> Code:
        """A derivative as an array of its own, with an axis for each index that differs."""
        names = tuple(dict.fromkeys(free_indices_of(node, self.scalars)))
        if any(name in self.scalars for name in indices_of(node)):
            raise Unsayable("a derivative in a loop")
        rank = shape_of(node, self.known)
        same = pattern(node, {name: place for place, name in enumerate(names)})
        if same not in self.patterns:
            name = self.identifiers.new(called(node))
            self.patterns[same] = name
            self.derivatives[name] = node
        return Code(self.patterns[same], ATOM, names, rank)


@dataclass(frozen=True)
class Linear:
    """Terms with their signs, and a number: an index counted from zero, if it is that of one counted from one."""

    terms: tuple[tuple[int, Code], ...]
    constant: int

    @property
    def may_leave(self) -> bool:
        """Whether it may lie outside of a range: an index is subtracted, a size or two indices are added."""
        added = [code for sign, code in self.terms if sign > 0]
        subtracted = any(code.names for sign, code in self.terms if sign < 0)
        beyond = any(code.special == "size" for code in added) or sum(code.level == ATOM for code in added) > 1
        return self.constant > 1 or subtracted or beyond

    def code(self, printer: Printer, more: int) -> Code:
        """The text, with a number more."""
        constant = self.constant + more
        counts: dict[tuple[str, tuple[str, ...]], int] = {}
        codes: dict[tuple[str, tuple[str, ...]], Code] = {}
        for sign, code in self.terms:
            key = code.text, code.names
            codes[key] = code
            counts[key] = counts.get(key, 0) + sign
        terms = [(count // abs(count), codes[key]) for key, count in counts.items() for _ in range(abs(count))]
        terms.sort(key=lambda term: -term[0])
        if not terms:
            return Code(str(constant))
        names, texts = printer.together([code for _, code in terms], [PRODUCT] * len(terms))
        text = ""
        for (sign, _), part in zip(terms, texts, strict=True):
            text += (" + " if sign > 0 else " - ") + part if text else ("" if sign > 0 else "-") + part
        if constant:
            text += f" {'+' if constant > 0 else '-'} {abs(constant)}"
        alone = len(terms) == 1 and not constant and terms[0][0] > 0
        return Code(text, terms[0][1].level if alone else SUM, names)

    def times(self, printer: Printer, other: Linear) -> Linear | None:
        """The product, if one of the two is a number or a single size."""
        for one, two in ((self, other), (other, self)):
            if not one.terms and one.constant > 0:
                factor, whole = Code(str(one.constant)), one.constant
            elif len(one.terms) == 1 and one.terms[0][0] > 0 and not one.constant and not one.terms[0][1].names:
                factor, whole = one.terms[0][1], 0
            else:
                continue
            terms = [(sign, printer.entrywise(code, factor)) for sign, code in two.terms]
            if not whole and two.constant:
                many = abs(two.constant)
                more = factor if many == 1 else printer.entrywise(Code(str(many)), factor)
                terms.append((1 if two.constant > 0 else -1, more))
            return Linear(tuple(terms), whole * two.constant)
        return None


def _merged(node: nodes.Reduce) -> tuple[nodes.Bound, nodes.Node]:
    """The indices of a sum, with those of a sum that is all that it sums; and what both sum."""
    bound, body = node.bound, node.body
    while isinstance(body, nodes.Reduce) and body.kind == node.kind and bound.condition is None is body.bound.condition:
        inner = body.bound
        bound = nodes.Bound(bound.names + inner.names, bound.spans + inner.spans, None, bound.span)
        body = body.body
    return bound, body


def _axis(code: Code, axes: tuple[int, ...]) -> str:
    """The argument that says which axes, where there are others."""
    if not code.names:
        return ""
    return f"axis={axes[0]}" if len(axes) == 1 else f"axis={axes}"


def _best_place(name: str, frame: Sequence[str], body: nodes.Node) -> int:
    """Where an index that is bound stands among others: as in most of the arrays that have it."""
    votes = [0] * (len(frame) + 1)
    for node in body.walk:
        if not isinstance(node, nodes.Ref) or node.indices is None:
            continue
        names = [index.name for index in node.indices if isinstance(index, nodes.IndexRef)]
        if name not in names:
            continue
        own = names.index(name)
        for place in range(len(frame) + 1):
            before = [other for other in names[:own] if other in frame[:place]]
            after = [other for other in names[own + 1 :] if other in frame[place:]]
            votes[place] += len(before) + len(after)
    best = max(votes)
    return len(votes) - 1 - votes[::-1].index(best)


def _matrix_text(one: tuple[Code, list[str]], two: tuple[Code, list[str]], over: str, out: list[str]) -> str | None:
    """``one @ two``, where that is the sum over `over`, with the axes `out`; else None."""
    (left, first), (right, second) = one, two
    if len(set(first)) < len(first) or len(set(second)) < len(second) or over not in first or over not in second:
        return None
    batch = [label for label in first if label in second and label != over]
    row = [label for label in first if label not in second]
    column = [label for label in second if label not in first]
    texts = left.within(PRODUCT if left.matrix else SIGN), right.within(SIGN)
    if first == [*row, over] and second[-2:-1] == [over] and len(row) == 1 and out == [*second[:-2], *row, second[-1]]:
        return f"{texts[0]} @ {texts[1]}"
    if len(row) > 1 or len(column) > 1 or out != batch + row + column:
        return None
    if batch:
        if not row or not column or first != [*batch, *row, over] or second != [*batch, over, *column]:
            return None
        return f"{texts[0]} @ {texts[1]}"
    if first == [over, *row] and row:
        texts = f"{left.within(ATOM)}.T", texts[1]
    if second == [*column, over] and column:
        texts = texts[0], f"{right.within(ATOM)}.T"
    return f"{texts[0]} @ {texts[1]}".replace(".T.T", "")
