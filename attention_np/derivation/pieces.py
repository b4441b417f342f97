"""Pieces of NumPy, and how their axes are laid out: all in one order, with an axis of length one where one lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from attention_np.derivation.identifiers import Identifiers
from attention_np.derivation.names import Names
from attention_np.derivation.values import ANY, ONE

__all__ = ["Code", "Layout", "Unsayable", "permuted", "turned", "united", "upright"]

# How tightly a text holds together: what is looser than its place asks for gets brackets.
LOOSE, SUM, PRODUCT, SIGN, POWER, ATOM = range(6)


class Unsayable(Exception):
    """An expression is not said in NumPy."""


@dataclass(frozen=True)
class Code:
    """A piece of NumPy, and the array that it is.

    Attributes
    ----------
    text : str
        The piece.
    level : int
        How tightly it holds together.
    names : tuple of str
        The first axes: indices of the page.
    shape : tuple of str
        Ranges of the others, as those of a value of the evaluator; a column and a row have one axis.
    kept : tuple of (str, tuple) or None
        The same with the axis over which it was summed, as one of length one: the text, and the names with None there.
    special : str
        "eye": ``text`` times an identity matrix of a size yet unknown; "diagonal": the diagonal matrix of a column;
        "ones": the column of ones.
    thin : bool
        An axis of ``shape`` has length one: the entries along it are equal.
    truth : bool
        Its entries are booleans.
    matrix : bool
        The text is a matrix product, which is read before ``*`` in formulas, but not by Python.
    factors : tuple of (str, Code)
        Those of a product entry by entry, each with ``*`` or ``/`` before it.
    """

    text: str
    level: int = ATOM
    names: tuple[str, ...] = ()
    shape: tuple[str, ...] = ()
    kept: tuple[str, tuple[str | None, ...]] | None = None
    special: str = ""
    thin: bool = False
    truth: bool = False
    matrix: bool = False
    factors: tuple[tuple[str, Code], ...] = ()

    @property
    def is_column(self) -> bool:
        """Whether it is a vector, upright."""
        return len(self.shape) == 2 and self.shape[1] == ONE

    @property
    def is_vector(self) -> bool:
        """Whether it is a column or a row."""
        return len(self.shape) == 2 and ONE in self.shape

    @property
    def rank(self) -> int:
        """How many axes it has behind those of its names."""
        return 1 if self.is_vector else len(self.shape)

    def within(self, level: int) -> str:
        """The text as a part of something that holds together so tightly."""
        return self.text if self.level >= level else f"({self.text})"


@dataclass
class Layout:
    """Lays pieces out along the axes of one statement.

    ``frame`` is the order of axes; ``arrays`` collects the names of arrays and sizes that are used, and their keys.
    """

    known: Names
    identifiers: Identifiers
    frame: tuple[str, ...] = ()
    arrays: dict[str, str] = field(default_factory=dict)

    def order(self, names: Iterable[str]) -> tuple[str, ...]:
        """These indices in the order of the frame; those that are not in it come last."""
        unique = dict.fromkeys(names)
        return (*(name for name in self.frame if name in unique), *(name for name in unique if name not in self.frame))

    def laid(self, code: Code, names: Sequence[str], rank: int | None = None, level: int = LOOSE) -> str:
        """The text of an array that has these axes, or one of length one for each that it lacks, or fewer in front."""
        rank = code.rank if rank is None else rank
        inner = [name for name in names if name in code.names]
        places: list[str | None] = [name if name in code.names else None for name in names]
        places += ["" for _ in range(code.rank)] if code.rank else [None] * rank
        while places and places[0] is None:
            places.pop(0)
        if None not in places:
            return turned(code, inner).within(level)
        if code.kept is not None and places == [*code.kept[1], *[""] * code.rank]:
            return code.kept[0]
        if code.factors:
            return self._product_laid(code, names, rank, level)
        where = ", ".join("None" if place is None else ":" for place in places)
        return f"{turned(code, inner).within(ATOM)}[{where}]"

    def _product_laid(self, code: Code, names: Sequence[str], rank: int, level: int) -> str:
        """A product, each factor of which has these axes, rather than the product as a whole."""
        text = ""
        for sign, factor in code.factors:
            part = self.laid(factor, names, rank, SIGN if sign == "/" or (factor.matrix and text) else PRODUCT)
            text = f"{text} {sign} {part}" if text else part
        return text if level <= PRODUCT else f"({text})"

    def together(self, codes: Sequence[Code], levels: Sequence[int]) -> tuple[tuple[str, ...], list[str]]:
        """The axes of all of them, and the text of each along these."""
        names = self.order(name for code in codes for name in code.names)
        rank = max(code.rank for code in codes)
        return names, [self.laid(code, names, rank, level) for code, level in zip(codes, levels, strict=True)]

    def whole(self, code: Code, names: Sequence[str]) -> str:
        """The text of the array with all of these axes, none of length one."""
        code = self.plain(code)
        text = self.laid(code, names)
        if code.thin or set(names) != set(code.names):
            sizes = [self.size(self.known.range_of(name)) for name in names]
            sizes += [self.size(axis) for axis in (code.shape[:1] if code.is_column else code.shape)]
            if text == "1":
                return f"np.ones(({', '.join(sizes)}))" if len(sizes) > 1 else f"np.ones({sizes[0]})"
            return f"np.broadcast_to({text}, ({', '.join(sizes)}{',' * (len(sizes) == 1)}))"
        return text

    def size(self, key: str) -> str:
        """The length of a range."""
        if key == ANY:
            raise Unsayable("a length that its neighbours say")
        if key.isdigit():
            return key
        return self.symbol(key)

    def symbol(self, key: str) -> str:
        """The name of an array or a size."""
        name = self.identifiers.of(key)
        self.arrays[name] = key
        return name

    def plain(self, code: Code) -> Code:
        """A special matrix as an array."""
        if code.special == "eye":
            raise Unsayable("an identity matrix of an unknown size")
        if code.special == "diagonal":
            if not code.names:
                return Code(f"np.diag({code.text})", shape=code.shape)
            names, size = self.order(code.names), self.size(code.shape[0])
            column = self.laid(replace(code, special="", shape=(code.shape[0], ONE)), names, level=ATOM)
            where = ", ".join([":"] * (len(names) + 1) + ["None"])
            return Code(f"{column}[{where}] * np.eye({size})", PRODUCT, names, code.shape)
        if code.special == "ones" and not code.names:
            size = self.size(max(code.shape, key=lambda axis: axis != ONE))
            return Code(f"np.ones({size})" if code.text == "1" else f"np.full({size}, {code.text})", shape=code.shape)
        if code.special == "ones":
            names = self.order(code.names)
            inner = self.laid(replace(code, shape=(), special=""), names, level=ATOM)
            return Code(f"{inner}[{':, ' * len(names)}None]", ATOM, names, code.shape, thin=True)
        return code

    def beside(self, code: Code, others: Sequence[Code]) -> Code:
        """A special matrix as it can stand beside arrays of its shape, entry by entry."""
        if any(other.shape and other is not code and other.special != "ones" for other in others):
            if code.special == "ones":
                return replace(code, special="", shape=(), thin=False)
            if code.thin and code.text == "1":
                return Code("1")
        return self.plain(code)


def turned(code: Code, names: Sequence[str]) -> Code:
    """The array with its named axes in this order."""
    if tuple(names) == code.names:
        return code
    order = [code.names.index(name) for name in names] + [len(code.names) + k for k in range(code.rank)]
    text = (
        f"{code.within(ATOM)}.T" if order == [1, 0] else f"{code.within(ATOM)}.transpose({', '.join(map(str, order))})"
    )
    return replace(code, text=text, level=ATOM, names=tuple(names), kept=None, matrix=False, factors=())


def permuted(code: Code, positions: Sequence[int]) -> Code:
    """The array with its axes in this order."""
    if list(positions) == [1, 0]:
        return replace(code, text=f"{code.within(ATOM)}.T", level=ATOM)
    return replace(code, text=f"{code.within(ATOM)}.transpose({', '.join(map(str, positions))})", level=ATOM)


def upright(shape: Sequence[str]) -> tuple[str, ...]:
    """The shape of a value that has these axes: a single one is that of a column."""
    return (*shape, ONE) if len(shape) == 1 else tuple(shape)


def united(shapes: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The shape of arrays that are combined entry by entry; ranges that the neighbours determine are those of these."""
    sized = [shape for shape in shapes if shape]
    if not sized:
        return ()
    return tuple(next((axis for axis in axes if axis != ANY), ANY) for axes in zip(*sized, strict=True))
