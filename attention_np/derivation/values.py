r"""Typed arrays: named index axes first, then anonymous matrix axes, and how they combine.

In index form ``S_{ij}`` is a number for every i and j: a value with the named axes i and j. In matrix form ``S`` is
one object with two anonymous axes, whose ranges (n and m, not merely their sizes) must fit those of its neighbours.
Both can meet: ``\\sum_j A_{ij} V_j`` is, for every i, a column. Vectors are columns, that is (range, 1).

Every value carries two magnitudes, in the spirit of the project's error model: ``scale`` is to first order what the
rounding error of the value is relative to (so the small rest of large terms that cancelled is known to be small
*because* they cancelled), and ``tangent`` is the same for the imaginary part that carries a derivative.

Several draws of the same sizes are evaluated at once, along a named axis that no page can name, and so are the
perturbations of a derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from attention_np.derivation import limits
from attention_np.derivation.account import Account
from attention_np.derivation.duals import Array as Array
from attention_np.derivation.duals import Dual, product
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.names import plain

STEP = 1e-60  # of the complex step; its square vanishes against everything
ANY = "*"  # a range that the neighbours determine: the value is the same all along it
ONE = "1"
STEPPED, DRAWN = "@", "#"  # named axes: the entries of a tensor that are perturbed one by one, and the draws
SLOPED = "%"  # and those that are perturbed beside them, for a second derivative
LEAD = (SLOPED, STEPPED, DRAWN)  # that come before those of a page, in this order
UNKNOWN_EYE = "the size of I is not known here: write I_n"


class Value(NamedTuple):
    """An array with its axes.

    Attributes
    ----------
    data : ndarray
        Axes in the order of ``names``, then of ``shape``.
    names : tuple of str
        The named axes: indices of the page, and those of :data:`LEAD`.
    shape : tuple of str
        The ranges of the anonymous axes: none for a number, two for a matrix, more for a tensor.
    scale, tangent : float
        See the module.
    eye : bool
        The value is ``data`` times an identity matrix of a size yet unknown.
    zero : bool
        A literal zero, which is a zero of any shape.
    """

    data: Array
    names: tuple[str, ...] = ()
    shape: tuple[str, ...] = ()
    scale: float = 0.0
    tangent: float = 0.0
    eye: bool = False
    zero: bool = False

    def made(self, data: Array, names: tuple[str, ...], shape: tuple[str, ...]) -> Value:
        """The result of an operation on this value that makes no error or derivative larger."""
        return measured(data, names, shape, self.scale, self.tangent)

    @property
    def is_column(self) -> bool:
        """Whether it is a vector."""
        return len(self.shape) == 2 and self.shape[1] == ONE

    @property
    def axes(self) -> tuple[str, ...]:
        """The anonymous axes as those of a tensor: a column has one."""
        return self.shape[:1] if self.is_column else self.shape

    def sized(self, span: Span) -> Value:
        """The value, unless it is an identity matrix of an unknown size."""
        if self.eye:
            raise Fault("shape", UNKNOWN_EYE, span)
        return self


def top(data: Array) -> float:
    """Largest finite magnitude of the real part."""
    if data.size <= 1:
        single = abs(data.real.item()) if data.size else 0.0
        return single if math.isfinite(single) else 0.0
    magnitudes = np.abs(data.real)
    largest = float(np.maximum.reduce(magnitudes, axis=None))
    if not math.isfinite(largest):
        magnitudes = magnitudes[np.isfinite(magnitudes)]
        largest = float(magnitudes.max()) if magnitudes.size else 0.0
    return largest


def top_tangent(data: Array) -> float:
    """Largest finite magnitude of the derivative that the imaginary part carries: of a slope, of the second one."""
    if data.dtype.kind != "c" or data.size == 0:
        return 0.0
    largest = float(np.fmax.reduce(np.abs(data.velocity.imag if isinstance(data, Dual) else data.imag), axis=None))
    return largest / STEP if math.isfinite(largest) else 0.0


def measured(data: Array, names: tuple[str, ...], shape: tuple[str, ...], scale: float, tangent: float) -> Value:
    """A value whose scale and tangent are these, or its own magnitudes where they are larger."""
    return Value(data, names, shape, max(scale, top(data)), max(tangent, top_tangent(data)))


@lru_cache
def number(value: float) -> Value:
    """A plain number."""
    return Value(np.array(value), scale=abs(value) if math.isfinite(value) else 0.0, zero=value == 0)


def describe(value: Value) -> str:
    """The shape of a value in words."""
    names = indices_of(value.names)
    indexed = f" with index {', '.join(names)}" if names else ""
    if value.eye:
        return "a multiple of I" + indexed
    if not value.shape:
        return "a number" + indexed
    if value.is_column:
        return f"a column of {_range(value.shape[0])}" + indexed
    return "an array " + " by ".join(_range(name) for name in value.shape) + indexed


def lead_of(names: Sequence[str]) -> tuple[str, ...]:
    """Those of the named axes that are none of the page, in their order."""
    return tuple(name for name in LEAD if name in names)


def indices_of(names: Sequence[str]) -> tuple[str, ...]:
    """Those of the named axes that are indices of the page."""
    return tuple(name for name in names if name not in LEAD)


def _range(name: str) -> str:
    return "any length" if name == ANY else plain(name)


def _of_product(left: Value, right: Value) -> tuple[float, float]:
    """The scale and the tangent of a product."""
    return left.scale * right.scale, left.scale * right.tangent + left.tangent * right.scale


@lru_cache(4096)  # the same few layouts in all draws
def _layout(own: tuple[str, ...], names: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """How named axes are turned, if they are, to those in ``names``; and which of them each is then, -1 for none."""
    met = [name for name in names if name in own]
    order = [own.index(name) for name in met]
    return order if order != sorted(order) else [], [met.index(name) if name in own else -1 for name in names]


@lru_cache(4096)
def _contraction(left: tuple[str, ...], right: tuple[str, ...], over: tuple[str, ...]) -> tuple[tuple[Any, ...], ...]:
    """The named axes of a contraction: those of both, of the left, of the right, summed; and places summed alone."""
    common = tuple(name for name in left if name in right)
    both, summed = (tuple(name for name in common if (name in over) == is_summed) for is_summed in (False, True))
    first, last = tuple(name for name in left if name not in right), tuple(name for name in right if name not in left)
    alone = tuple(axis for axis, name in enumerate(both + first + last) if name in over)
    return both, first, last, summed, alone


class Arithmetic:
    """Operations on values with the sizes of one draw, and the account of what they cost."""

    def __init__(self, sizes: dict[str, int], literal_ranges: bool = False, account: Account | None = None) -> None:
        self.sizes = sizes
        self.literal_ranges = literal_ranges
        self.account = account or Account()

    def size(self, name: str) -> int:
        """The length of a range: declared, or a number."""
        return self.sizes[name] if name in self.sizes else int(name)

    def same(self, left: str, right: str) -> bool:
        """Whether two ranges are one: by name; in a worked example a length fits the range it has."""
        if left == right:
            return True
        if left.isdigit() != right.isdigit() and self.literal_ranges and ANY not in (left, right):
            return ONE not in (left, right) and self.size(left) == self.size(right)
        return False

    def unify(self, left: str, right: str) -> str | None:
        """The common range of two axes that meet, or None."""
        if left == ANY:
            return right
        if right == ANY or self.same(left, right):
            return right if left.isdigit() and right != ANY else left
        return None

    def hold(self, data: Array, span: Span) -> Array:
        """The array as it can be kept: without the larger one that it is a part of."""
        self.account.hold(data.size, span)
        return data.copy() if data.base is not None and data.size < data.base.size else data

    def spread(self, value: Value, names: tuple[str, ...], rank: int = 0) -> Array:
        """The data with its named axes as in ``names``, length 1 where it has none; a number gets ``rank`` more."""
        data, named = value.data, len(value.names)
        rest = data.shape[named:]
        if rank and not rest:
            rest = (1,) * rank
        elif value.names == names:
            return data
        order, places = _layout(value.names, names)
        if order:
            data = data.transpose(*order, *range(named, data.ndim))
        lengths = (*data.shape[:named], 1)
        laid_out: Array = data.reshape([lengths[place] for place in places] + [*rest])
        return laid_out

    def indices(self, values: Sequence[Value], span: Span) -> tuple[str, ...]:
        """The named axes of all of them."""
        names = values[0].names
        for value in values[1:]:
            if value.names != names:
                names += tuple(name for name in value.names if name not in names)
        if len(names) > limits.INDICES:
            raise Fault("limit", f"more than {limits.INDICES} indices at once", span)
        return names

    def aligned(self, values: Sequence[Value], span: Span) -> tuple[tuple[str, ...], list[Array]]:
        """Named axes of all of them, and the data of each along these."""
        names = self.indices(values, span)
        rank = max([len(value.shape) for value in values])
        return names, [self.spread(value, names, rank) for value in values]

    def together(self, values: Sequence[Value], span: Span) -> tuple[tuple[str, ...], list[Array]]:
        """The same for what will be combined entry by entry, to an array that must not be too large."""
        names, arrays = self.aligned(values, span)
        shapes = {array.shape for array in arrays}
        self.account.make(arrays[0].size if len(shapes) == 1 else math.prod(map(max, *shapes)), span)
        return names, arrays

    def expand_eye(self, value: Value, size: str, span: Span) -> Value:
        """A multiple of the identity as a matrix of a known size."""
        length = self.size(size)
        self.account.make(value.data.size * length * length, span)
        data = value.data[..., None, None] * np.eye(length)
        return value._replace(data=data, shape=(size, size), eye=False)

    def _known(self, shape: tuple[str, ...], span: Span) -> str:
        known = [name for name in shape if name not in (ANY, ONE)]
        if not known:
            raise Fault("shape", UNKNOWN_EYE, span)
        return known[0]

    def shapes_of(self, left: Value, right: Value, span: Span, doing: str) -> tuple[Value, Value, tuple[str, ...]]:
        """Bring two values to one anonymous shape, for a sum, an elementwise product or an equality."""
        if left.eye and right.shape:
            left = self.expand_eye(left, self._known(right.shape, span), span)
        if right.eye and left.shape:
            right = self.expand_eye(right, self._known(left.shape, span), span)
        if left.eye != right.eye and not (left.zero or right.zero):
            raise Fault("shape", f"{doing} {describe(left)} and {describe(right)}", span)
        if left.zero and not left.shape:
            return left, right, right.shape
        if right.zero and not right.shape:
            return left, right, left.shape
        if len(left.shape) != len(right.shape):
            raise Fault("shape", f"{doing} {describe(left)} and {describe(right)}", span)
        shape = [self.unify(one, two) for one, two in zip(left.shape, right.shape, strict=True)]
        if None in shape:
            raise Fault("shape", f"{doing} {describe(left)} and {describe(right)}", span)
        return left, right, tuple(name for name in shape if name is not None)

    def add(self, left: Value, right: Value, sign: int, span: Span) -> Value:
        """Sum or difference; named axes broadcast by name, shapes must be the same."""
        left, right, shape = self.shapes_of(left, right, span, "cannot add")
        names, (one, two) = self.together([left, right], span)
        data = one + two if sign > 0 else one - two
        total = measured(data, names, shape, max(left.scale, right.scale), max(left.tangent, right.tangent))
        return total._replace(eye=left.eye or right.eye, zero=left.zero and right.zero)

    def multiply(self, left: Value, right: Value, span: Span, elementwise: bool = False) -> Value:
        """Product: with a number, of matrices, or element by element."""
        if elementwise:
            if bool(left.shape) != bool(right.shape) and not (left.eye or right.eye):
                raise Fault("shape", f"no elementwise product of {describe(left)} and {describe(right)}", span)
            left, right, shape = self.shapes_of(left, right, span, "no elementwise product of")
        elif left.shape and right.shape:
            return self.matrix_product(left, right, span)
        else:
            shape = left.shape or right.shape
        names, (one, two) = self.together([left, right], span)
        eye, zero = (left.eye or right.eye) and not shape, (left.zero or right.zero) and not shape
        return Value(product(one, two), names, shape, *_of_product(left, right), eye, zero)

    def matrix_product(self, left: Value, right: Value, span: Span) -> Value:
        """Rows times columns; a 1 by 1 result is a number."""
        if len(left.shape) != 2 or len(right.shape) != 2:
            raise Fault("shape", f"no matrix product of {describe(left)} and {describe(right)}", span)
        if self.unify(left.shape[1], right.shape[0]) is None:
            message = f"no matrix product of {describe(left)} and {describe(right)}"
            raise Fault("shape", f"{message}: {_range(left.shape[1])} is not {_range(right.shape[0])}", span)
        inner = self.unify(left.shape[1], right.shape[0])
        if inner == ANY or inner is None:
            raise Fault("shape", "the length of \\mathbf{1} is not known here: write \\mathbf{1}_n", span)
        names, (one, two) = self.aligned([left, right], span)
        if ANY in (left.shape[1], right.shape[0]):
            length = self.size(inner)
            one = np.broadcast_to(one, (*one.shape[:-1], length))
            two = np.broadcast_to(two, (*two.shape[:-2], length, two.shape[-1]))
        batch = math.prod(map(max, one.shape[:-2], two.shape[:-2]))
        self.account.make(batch * math.prod(one.shape[-2:]) * two.shape[-1], span)
        data = np.matmul(one, two)
        if not np.isfinite(data).all():
            data = product(one[..., :, :, None], two[..., None, :, :]).sum(axis=-2)
        shape: tuple[str, ...] = (left.shape[0], right.shape[1])
        if shape == (ONE, ONE):
            data, shape = data[..., 0, 0], ()
        return measured(data, names, shape, *_of_product(left, right))

    def contract(self, left: Value, right: Value, over: tuple[str, ...]) -> Value:
        """The product of two numbers, summed over these indices: a matrix product for each of the others they share."""
        both, first, last, summed, alone = _contraction(left.names, right.names, over)
        one, two = self.spread(left, both + first + summed), self.spread(right, both + summed + last)
        before, inner = one.shape[: len(both)], math.prod(two.shape[len(both) : two.ndim - len(last)])
        data = np.matmul(one.reshape(*before, -1, inner), two.reshape(*before, inner, -1))
        data = data.reshape(one.shape[: one.ndim - len(summed)] + two.shape[two.ndim - len(last) :])
        if alone:
            data = data.sum(axis=alone)
        kept = tuple([name for name in both + first + last if name not in over])
        return measured(data, kept, (), *_of_product(left, right))

    def reciprocal(self, value: Value, span: Span) -> Value:
        """One over a number."""
        if value.shape or value.eye:
            raise Fault("shape", f"cannot divide by {describe(value)}", span)
        return self.apply(value, lambda x: 1.0 / x, lambda x, y: y * y)

    def apply(
        self,
        value: Value,
        function: Callable[[Array], Array],
        slope: Callable[[Array, Array], Array],
    ) -> Value:
        """An elementwise function; ``slope(x, y)`` is its derivative, for the magnitudes only."""
        self.account.make(value.data.size)
        data = function(value.data)
        steep = top(slope(value.data.real, data.real))
        return measured(data, value.names, value.shape, steep * value.scale, steep * value.tangent)

    def transpose(self, value: Value, span: Span) -> Value:
        """Rows become columns."""
        if value.eye:
            return value
        if not value.shape:
            message = "there is nothing to transpose: this is " + describe(value)
            raise Fault("shape", message, span)
        if len(value.shape) != 2:
            raise Fault("shape", f"cannot transpose {describe(value)}", span)
        return value._replace(data=np.swapaxes(value.data, -1, -2), shape=value.shape[::-1])
