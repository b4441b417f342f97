"""The answers in 50 decimal digits or more, by plain loops over mpmath's numbers.

This is what the answers are, so it is written to be seen to be right, and shares no code with the ops: of a pair that
is masked out no score is made, and a sum over products is that sum. The ops in extended precision are held against it
in the tests.

Numbers are exact when they come in: those of the inputs in their dtype. Every array here holds mpmath's numbers, and
the names are those of the ops and their pages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import mpmath  # type: ignore[import-untyped,import-not-found,unused-ignore]
import numpy as np
import numpy.typing as npt

from attention_np.known_answers.around import activated, hats
from attention_np.known_answers.by_position import frequencies
from attention_np.known_answers.ops import OPS
from attention_np.known_answers.program import Head, sum_to
from attention_np.known_answers.weighed import weighed

Array = npt.NDArray[Any]

DIGITS = 50
MP = mpmath.MPContext()  # of our own: the precision that a user has set stays as it is
LOCK = threading.Lock()  # the context has one precision at a time
ZERO = MP.mpf(0)


def answers(op: str, inputs: Mapping[str, Array], options: Mapping[str, Any], digits: int = DIGITS) -> dict[str, Array]:
    """The output, the log-sum-exp and the gradients of an op, as arrays of mpmath's numbers.

    Parameters
    ----------
    op : str
        A name of `known_answers.ops.OPS`.
    inputs : mapping of str to ndarray
        What the op takes, the parameters of multi_head by their own names; and `d_output`, of linear_attention also
        `d_final_state`.
    options : mapping of str to object
        Those of the op that change its answers, such as `axis`, `is_causal`, `num_heads`.
    digits : int, optional
        Decimal digits to compute in.

    Examples
    --------
    >>> import numpy as np
    >>> exact = answers("softmax", {"scores": np.zeros(3), "d_output": np.ones(3)}, {})
    >>> print(MP.nstr(exact["output"][0], 45))
    0.333333333333333333333333333333333333333333333
    """
    with LOCK, MP.workdps(digits):
        exact = {name: x if x.dtype == np.bool_ else _exact(x) for name, x in inputs.items()}
        arrays = {name: x for name, x in exact.items() if not name.startswith("v_")}
        results = OPS[op](Exact(), arrays, options)
        tangents = {name[2:]: exact[name] for name in exact.keys() - arrays.keys()}
        return results | (_slopes(op, arrays, tangents, options, digits) if tangents else {})


def _slopes(
    op: str, arrays: Mapping[str, Array], tangents: Mapping[str, Array], options: Mapping[str, Any], digits: int
) -> dict[str, Array]:
    """The tangents of the output and the gradients: symmetric differences that lose none of the digits."""
    with MP.workdps(3 * digits):
        step = MP.mpf(10) ** -digits  # of the digits it takes one part; the error, its square, is beyond the rest
        ahead, behind = (
            OPS[op](Exact(), {**arrays, **{x: arrays[x] + v * h for x, v in tangents.items()}}, options)
            for h in (step, -step)
        )
        slope_of = {"d_d_output": "output", **{f"hvp_{x}": f"d_{x}" for x in arrays if x in tangents}}
        return {name: (ahead[of] - behind[of]) / (2 * step) for name, of in slope_of.items()}


class Exact:
    """Arithmetic of mpmath's numbers, in arrays. An entry of a gradient that is exactly zero takes no part."""

    def map(self, x: Array, function: Callable[[Array], Array]) -> Array:
        """The numbers behind `function`, which only changes their places."""
        return function(x)

    def rounded(self, x: Array) -> Array:
        """Nothing is rounded."""
        return x

    def scale(self, scale: float | None, d_k: int) -> Any:
        """What the scores are multiplied by."""
        return 1 / MP.sqrt(d_k) if scale is None else MP.mpf(scale)

    def times(self, d_x: Array, factor: Any) -> Array:
        """A gradient times a factor, entry by entry."""
        result: Array = np.where(d_x == 0, ZERO, d_x * factor)
        return result

    def plus(self, a: Array, b: Array) -> Array:
        """The sum."""
        total: Array = a + b
        return total

    def minus(self, a: Array, b: Array) -> Array:
        """The difference."""
        difference: Array = a - b
        return difference

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """An array of them."""
        return _zeros(shape)

    def where(self, some: Array, x: Array, other: float = 0) -> Array:
        """`x` there, and `other` elsewhere."""
        return np.where(some, x, MP.mpf(other))

    def in_any_form(self, *forms: Callable[[], dict[str, Array]]) -> dict[str, Array]:
        """What is the same in several forms."""
        return forms[0]()

    def joined(self, rows: list[Array]) -> Array:
        """Rows, each (..., 1, d), below each other."""
        return np.concatenate(rows, axis=-2)

    def exp(self, x: Array, roundings: int = 0) -> Array:
        """Entry by entry."""
        del roundings
        return np.array([MP.exp(number) for number in x.ravel()], object).reshape(x.shape)

    def over(self, x: Array, divisor: float) -> Array:
        """A quotient by a number of the options, or of entries."""
        quotient: Array = x / MP.mpf(divisor)
        return quotient

    def number(self, x: Any) -> Array:
        """Numbers of the options, as they are written."""
        return _exact(np.asarray(x, np.float64))

    def put(self, x: Array, features: Array, part: Array) -> Array:
        """`x` with other numbers in some of its features."""
        result: Array = x.copy()
        result[..., features] = part
        return result

    def inverse_root(self, x: Array) -> Array:
        """One over the square root."""
        return np.array([1 / MP.sqrt(number) for number in x.ravel()], object).reshape(x.shape)

    def waves(
        self, positions: Array, base: float, width: int, scaling: Mapping[str, Any] | None
    ) -> tuple[Array, Array]:
        """Cosine and sine of the angle of each pair at each position, (..., n, width / 2), times the amplitude."""
        turns, _, amplitude = frequencies(base, width, scaling, MP, MP.mpf)
        angles = positions[..., None] * np.array(turns, object)
        cos, sin = (
            np.array([amplitude * wave(x) for x in angles.ravel()], object).reshape(angles.shape)
            for wave in (MP.cos, MP.sin)
        )
        return cos, sin

    def activation(self, x: Array, kind: str) -> tuple[Array, Array]:
        """An activation of each entry, and its slope."""
        pairs = [activated(kind, number, MP) for number in x.ravel()]
        value, slope = (np.array(part, object).reshape(x.shape) for part in (*zip(*pairs, strict=True),))
        return value, slope

    def weighed(self, scores: Array, visible: Array, d_output: Array, by: Mapping[str, Any]) -> tuple[Array, Array]:
        """The weights of each row, and the gradient of the scores."""
        weights, d_scores = _zeros(scores.shape), _zeros(scores.shape)
        for i in np.ndindex(*scores.shape[:-1]):
            shown = _shown(visible[i], scores[i])
            row = weighed(by, scores[i][shown], d_output[i][shown], MP, steps=MP.prec)
            weights[i][shown], d_scores[i][shown] = row.weights, row.d_scores
        return weights, d_scores

    def hats(self, x: Array, size: int) -> tuple[Array, Array]:
        """How near locations from 0 to 1 are to each of `size` pixels, and the slopes of that."""
        return hats(x * size - MP.mpf("0.5"), size)

    def tanh(self, x: Array) -> Array:
        """Entry by entry."""
        return np.array([MP.tanh(number) for number in x.ravel()], object).reshape(x.shape)

    def tanh_slope(self, y: Array) -> Array:
        """The derivative of tanh where it is `y`."""
        slope: Array = 1 - y * y
        return slope

    def summed(self, x: Array, axis: int) -> Array:
        """The sum along an axis."""
        total: Array = np.asarray(x.sum(axis=axis), object)
        return total

    def sum_to(self, x: Array, shape: tuple[int, ...]) -> Array:
        """The sum over the axes along which `shape` was broadcast."""
        return sum_to(x, shape)

    def product(self, d_rows: Array, x: Array, roundings: int = 0) -> Array:
        """(..., n, a) times (..., a, b)."""
        del roundings
        leading = np.broadcast_shapes(d_rows.shape[:-2], x.shape[:-2])
        result = _zeros((*leading, d_rows.shape[-2], x.shape[-1]))
        for index, (rows, matrix) in _places(leading, d_rows, x):
            result[index] = _sums(np.asarray(rows != 0, np.bool_), rows, matrix)
        return result

    def linear(self, x: Array, w: Array, b: Array | None = None) -> Array:
        """``x @ w + b``."""
        rows = x.reshape(-1, x.shape[-1])
        y = _sums(np.ones(rows.shape, np.bool_), rows, w).reshape(*x.shape[:-1], w.shape[1])
        return y if b is None else y + b

    def linear_backward(self, d_y: Array, x: Array, w: Array) -> tuple[Array, Array, Array]:
        """The gradients of ``x @ w + b`` with respect to x, w and b."""
        rows, x_rows = d_y.reshape(-1, d_y.shape[-1]), x.reshape(-1, x.shape[-1])
        d_b = np.array([MP.fsum(column) for column in rows.T], object)
        return self.product(d_y, w.T), self.product(rows.T, x_rows).T, d_b

    def scores(
        self, query: Array, key: Array, scale: Any, bias: Array | None, visible: Array, softcap: float | None = None
    ) -> Array:
        """Of the pairs that are visible; minus infinity in the bias hides as a mask does."""
        shape = (*np.broadcast_shapes(query.shape[:-2], key.shape[:-2]), query.shape[-2], key.shape[-2])
        added = np.broadcast_to(_zeros((1, 1)) if bias is None else bias, shape)
        scores = np.where(added == -MP.inf, added, ZERO)
        shown = np.broadcast_to(visible, shape) & np.asarray(added != -MP.inf, np.bool_)
        scales = np.broadcast_to(np.asarray(scale, object), (*shape[:-1], 1))
        for index, (q, k, factors, b, pairs) in _places(shape[:-2], query, key, scales, added, shown):
            products = _products_of_pairs(pairs, q, k)
            for i, j in np.argwhere(pairs):
                product = factors[i, 0] * products[i, j]
                scores[index][i, j] = (product if softcap is None else _capped(product, softcap)) + b[i, j]
        return scores

    def softmax(self, scores: Array, visible: Array, d_output: Array) -> tuple[Array, Array, Array]:
        """The weights of each row, its log-sum-exp, and the gradient of the scores."""
        weights, d_scores, logsumexp = _zeros(scores.shape), _zeros(scores.shape), _zeros(scores.shape[:-1])
        for i in np.ndindex(*scores.shape[:-1]):
            shown = _shown(visible[i], scores[i])
            row = _row(scores[i][shown])
            weights[i][shown], logsumexp[i] = row.weights, row.logsumexp
            d_scores[i][shown] = _row_backward(row, d_output[i][shown])
        return weights, logsumexp, d_scores

    def attend(
        self,
        scores: Array,
        visible: Array,
        value: Array,
        d_output: Array,
        kept: Array | None = None,
        d_logsumexp: Array | None = None,
    ) -> Head:
        """From the scores to the output, and from the gradient of that to those of scores and values."""
        leading, rows = np.broadcast_shapes(scores.shape[:-2], value.shape[:-2]), scores.shape[-2]
        logsumexp, results = _zeros(scores.shape[:-1]), []
        visible = np.broadcast_to(visible, scores.shape)
        factors = np.broadcast_to(_ones((1, 1)) if kept is None else kept, scores.shape)
        of_rows = np.broadcast_to(_zeros((rows,)) if d_logsumexp is None else d_logsumexp, scores.shape[:-1])[..., None]
        for index, (s, shown, v, d_o, f, d_l) in _places(leading, scores, visible, value, d_output, factors, of_rows):
            head = _attend(s, _shown(shown, s), v, d_o, f, d_l[:, 0])
            logsumexp[_within(index, scores.shape[:-2])] = head.logsumexp
            results.append((head.output, head.d_scores, head.d_value))
        output, d_scores, d_value = (
            np.array(parts, object).reshape(*leading, *parts[0].shape) for parts in zip(*results, strict=True)
        )
        return Head(output, logsumexp, d_scores, d_value)


class _Row(NamedTuple):
    """The softmax of a row of scores."""

    weights: Array
    logsumexp: Any
    moves: bool  # when a score does

    @property
    def slopes(self) -> Array:
        """The gradient of the log-sum-exp."""
        return self.weights if self.moves else _zeros(self.weights.shape)


def _row(scores: Array) -> _Row:
    """Softmax of a row of which every score takes part."""
    if any(MP.isnan(s) for s in scores):
        return _Row(np.array([MP.nan] * len(scores), object), MP.nan, True)
    largest = max(scores, default=-MP.inf)
    if largest == MP.inf:  # the limit: equal shares for those at infinity
        at_infinity = [s == MP.inf for s in scores]
        return _Row(np.array([MP.mpf(x) / sum(at_infinity) for x in at_infinity], object), MP.inf, False)
    exponentials = [MP.exp(s - largest) for s in scores]
    total = MP.fsum(exponentials)
    logsumexp = largest + MP.log(total) if len(scores) else -MP.inf
    return _Row(np.array([e / total for e in exponentials], object), logsumexp, True)


def _row_backward(row: _Row, d_weights: Array) -> Array:
    if not row.moves or not any(d != 0 for d in d_weights):
        return _zeros(d_weights.shape)
    return row.weights * _above_mean(row, d_weights)


def _above_mean(row: _Row, x: Array) -> Array:
    """How far each entry of `x` is above their weighted mean."""
    if not len(x):
        return x
    # The Jacobian does not see what a whole row has in common. With that of the heaviest entry taken away, a weight of
    # nearly one leaves no small difference of large numbers.
    x = x - x[max(range(len(x)), key=row.weights.__getitem__)]
    above: Array = x - _dot(row.weights, x)
    return above


def _attend(scores: Array, visible: Array, value: Array, d_output: Array, factors: Array, d_logsumexp: Array) -> Head:
    """From the scores of one head to its output, and from the gradients of that and of the log-sum-exp back."""
    n, m = scores.shape
    weights, logsumexp, d_scores = _zeros((n, m)), _zeros((n,)), _zeros((n, m))
    live = np.array([any(d != 0 for d in (*d_output[i], d_logsumexp[i])) for i in range(n)], np.bool_)
    flows = visible & live[:, None]  # nothing flows back through another query, whatever it holds
    d_weights = _products_of_pairs(flows, d_output, value) * factors
    for i in range(n):
        row = _row(scores[i, visible[i]])
        weights[i, visible[i]], logsumexp[i] = row.weights, row.logsumexp
        if live[i]:
            d_scores[i, visible[i]] = _row_backward(row, d_weights[i, visible[i]]) + row.slopes * d_logsumexp[i]
    dropped = weights * factors
    return Head(_sums(visible, dropped, value), logsumexp, d_scores, _sums(flows.T, dropped.T, d_output))


def _capped(score: Any, softcap: float) -> Any:
    return softcap * MP.tanh(score / MP.mpf(softcap))


def _shown(visible: Array, scores: Array) -> Array:
    """The pairs that take part: minus infinity hides as a mask does."""
    return visible & np.asarray(scores != -MP.inf, np.bool_)


def _dot(a: Iterable[Any], b: Iterable[Any]) -> Any:
    """The sum of the products: exact, and then rounded."""
    return MP.fdot(a, b)


def _sums(some: Array, rows: Array, x: Array) -> Array:
    """The products of `rows`, (n, k), with `x`, (k, d): of each row the terms of `some`."""
    found = _products(rows, x)
    if found is None:
        found = _zeros((len(rows), x.shape[1]))
        for i, (row, terms) in enumerate(zip(rows, some, strict=True)):
            found[i] = [_dot(row[terms], column) for column in x[terms].T]
    return found


def _products_of_pairs(pairs: Array, a: Array, b: Array) -> Array:
    """Those of rows of `a`, (n, d), with rows of `b`, (m, d), of the pairs that count; of others any finite number."""
    found = _products(a, b.T)
    if found is None:
        found = _zeros(pairs.shape)
        for i, j in np.argwhere(pairs):
            found[i, j] = _dot(a[i], b[j])
    return found


def _products(a: Array, b: Array) -> Array | None:
    """The product of matrices, as :func:`_dot` gives each entry; or None where a number is not finite.

    The numbers of a row, or of a column, are whole numbers times one power of two.
    """
    rows, columns = _whole(a), _whole(b.T)
    if rows is None or columns is None:
        return None
    sums = rows[0] @ columns[0].T
    exponents = np.add.outer(rows[1], columns[1]).tolist()
    found = _zeros(sums.shape)
    for i, row in enumerate(sums.tolist()):
        found[i] = [_number(x, exponent) for x, exponent in zip(row, exponents[i], strict=True)]
    return found


def _number(whole: int, exponent: int) -> Any:
    return MP.make_mpf(mpmath.libmp.from_man_exp(whole, exponent, MP.prec, "n"))


def _whole(x: Array) -> tuple[Array, list[int]] | None:
    """The rows of `x` as whole numbers, and the exponent of the power of two that each row is times."""
    whole, exponents = np.zeros(x.shape, object), []
    for i, row in enumerate(x):
        parts = [MP.convert(number)._mpf_ for number in row]  # each (sign, mantissa, exponent, bits of the mantissa)
        if any(exponent and not mantissa for _, mantissa, exponent, _ in parts):
            return None
        exponents.append(min((exponent for _, mantissa, exponent, _ in parts if mantissa), default=0))
        whole[i] = [
            (-mantissa if sign else mantissa) << (exponent - exponents[-1]) if mantissa else 0
            for sign, mantissa, exponent, _ in parts
        ]
    return whole, exponents


def _places(leading: tuple[int, ...], *arrays: Array) -> Iterator[tuple[tuple[int, ...], list[Array]]]:
    """Each index of the leading axes, and there the last two axes of each array."""
    whole = [np.broadcast_to(x, (*leading, *x.shape[-2:])) for x in arrays]
    for index in np.ndindex(*leading):
        yield index, [x[index] for x in whole]


def _within(index: tuple[int, ...], leading: tuple[int, ...]) -> tuple[int, ...]:
    """Where in axes of lengths `leading`, which broadcast to those of `index`, that index is."""
    own = index[len(index) - len(leading) :]
    return tuple(0 if size == 1 else at for at, size in zip(own, leading, strict=True))


def _zeros(shape: tuple[int, ...]) -> Array:
    return np.full(shape, ZERO, object)


def _ones(shape: tuple[int, ...]) -> Array:
    return np.full(shape, MP.mpf(1), object)


def _exact(x: Array) -> Array:
    values = np.asarray(x).astype(np.float64)
    result = np.empty(values.size, object)
    result[:] = [MP.mpf(number) for number in values.ravel().tolist()]
    return result.reshape(values.shape)
