r"""Deformable sampling: each query looks at a few points of a picture, wherever it likes, at several resolutions.

.. math::

    y_i = \sum_{l,p} a_{ilp} \sum_{r,c} \Lambda(v_{ilp} - r) \Lambda(u_{ilp} - c) V^{(l)}_{rc}, \qquad
    u = x W_l - \tfrac{1}{2}, \quad v = y H_l - \tfrac{1}{2}, \quad \Lambda(t) = \max(0, 1 - |t|)

    \frac{\partial L}{\partial x_{ilp}} = a_{ilp} W_l \sum_{r,c} \Lambda(v_{ilp} - r) \Lambda'(u_{ilp} - c)
    \Big\langle \frac{\partial L}{\partial y_i}, V^{(l)}_{rc} \Big\rangle

for pixels in rows r and columns c, from 0, of pictures of H rows and W columns. At most four terms of each sum are not
zero. It is the attention of the deformable detection transformers. The derivation is ``derivations/deformable.md``
of the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib import passes
from attention_np._lib.arguments import as_floating, as_integer, broadcast_axes
from attention_np._lib.arrays import Array, real_types
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_times
from attention_np._lib.rows import Numbers, gathered, scattered

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jvp"]

VECTORIZED = ("value", "locations", "weights")  # may carry any leading axes: for gradcheck
OP = passes.Op(added=("locations",))


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`, of its shape and dtype."""

    value: Array
    locations: Array
    weights: Array


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader."""

    value: Array  # (..., pixels, d)
    locations: Array  # (..., n, levels, points, 2)
    weights: Array  # (..., n, levels, points)
    shapes: tuple[tuple[int, int], ...]  # height and width of each level
    output_shape: tuple[int, ...]


def forward(
    value: npt.ArrayLike, locations: npt.ArrayLike, weights: npt.ArrayLike, *, shapes: tuple[tuple[int, int], ...]
) -> tuple[Array, Cache]:
    r"""A weighted sum of samples for each of n queries.

    Parameters
    ----------
    value : array_like of float, (..., pixels, d)
        The pixels of all levels: one level after the other, of each one row after the other.
    locations : array_like of float, (..., n, levels, points, 2)
        Where each query looks: x, from 0 at the left edge of the picture to 1 at the right one, and y, from 0 at the
        top to 1 at the bottom, the same on all levels.
    weights : array_like of float, (..., n, levels, points)
        What each sample is multiplied by; nothing asks that they sum to one.
    shapes : tuple of (int, int)
        The height and the width of each level, in pixels.

    Returns
    -------
    output : ndarray, (..., n, d)
        The leading axes are those of the arrays, broadcast together; heads are one of them.
    cache : Cache
        For :func:`backward` and :func:`jvp`. Refers to the inputs, without a copy.

    Raises
    ------
    TypeError
        If an array is not of floating-point numbers, or is a masked array, or `shapes` is not of integers.
    ValueError
        If shapes do not fit together.

    Notes
    -----
    Pixels are squares, as for ``align_corners=False`` of PyTorch's ``grid_sample``: the centre of column c of W is at
    ``(c + 1/2) / W``. Between the centres of four pixels a sample is interpolated, linearly in x and in y. Outside of
    the picture all is zero, so that a sample fades out from the centres of the outermost pixels over the width of one
    pixel, and is zero however far out it is, at infinity too. A location that is NaN gives NaN.

    In x, and in y, a sample has a kink where the location is on a line through centres of pixels, ``x W - 1/2`` a whole
    number: there its gradient is the slope on the side of the larger x, as in PyTorch. A pixel that a sample does not
    reach, with a distance of a whole pixel or more, contributes nothing to it, even if it is NaN.

    References
    ----------
    .. [1] X. Zhu et al., "Deformable DETR: deformable transformers for end-to-end object detection", ICLR 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import deformable
    >>> picture = np.array([[1.0], [2.0], [3.0], [4.0]])  # two rows of two pixels
    >>> locations = np.array([[0.25, 0.25], [0.5, 0.5], [0.0, 0.25], [9.0, 9.0]])
    >>> output, cache = deformable.forward(picture, locations[:, None, None], np.ones((4, 1, 1)), shapes=((2, 2),))
    >>> print(output.T)
    [[1.  2.5 0.5 0. ]]
    >>> print(deformable.backward(np.ones((4, 1)), cache).locations[1, 0])
    [[2. 4.]]
    """
    value, locations = as_floating("value", value), as_floating("locations", locations)
    weights = as_floating("weights", weights)
    levels = _as_shapes(shapes)
    _check_shapes(value, locations, weights, levels)
    return sample(value, locations, weights, shapes=levels)


class Hats(NamedTuple):
    """How near each sample is to the two pixels beside it, along one axis of the picture."""

    numbers: Numbers  # (..., n, points, 2), of the pixels; zero for one that there is not
    heights: Array  # (..., n, points, 2), from zero to one; zero for a pixel that there is not
    slopes: Array  # (..., n, points, 2), of the heights by the location


class Level(NamedTuple):
    """The samples of one level: of each the four pixels around it."""

    pixels: slice  # of the value
    corners: Numbers  # (..., n, points * 4): the numbers of the pixels within the level
    near: Array  # (..., n, points, 4): how much of each pixel is in a sample
    by_x: Array  # (..., n, points, 4): how fast that grows with x
    by_y: Array
    lost: npt.NDArray[np.bool_]  # (..., n, points): the location is NaN


def _levels(locations: Array, shapes: tuple[tuple[int, int], ...]) -> Iterator[Level]:
    """One level after the other."""
    start = 0
    for k, (height, width) in enumerate(shapes):
        x, y = locations[..., k, :, 0], locations[..., k, :, 1]  # (..., n, points)
        columns, rows = _hats(x, width), _hats(y, height)
        index = rows.numbers[..., :, None] * width + columns.numbers[..., None, :]  # (..., n, points, 2, 2)
        near, by_x, by_y = (  # (..., n, points, 4) (deformable.6, deformable.7)
            (of_rows[..., :, None] * of_columns[..., None, :]).reshape(*x.shape, 4)
            for of_rows, of_columns in (
                (rows.heights, columns.heights),
                (rows.heights, columns.slopes),
                (rows.slopes, columns.heights),
            )
        )
        pixels = slice(start, start + height * width)
        lost = np.isnan(x) | np.isnan(y)
        yield Level(pixels, index.reshape(*x.shape[:-2], 4 * x.shape[-2] * x.shape[-1]), near, by_x, by_y, lost)
        start = pixels.stop


def _hats(x: Array, size: int) -> Hats:
    """Of locations along an axis with `size` pixels."""
    u = x * size - 0.5  # (..., n, points) (deformable.3)
    place, real = u.real, real_types(u.dtype)[0]
    reached = ~((place < -1) | (place >= size))[..., None]  # of a NaN too
    first = np.where(reached[..., 0] & np.isfinite(place), np.floor(place), 0).astype(real)
    part = np.where(reached, (u - first)[..., None], 0)  # (..., n, points, 1)
    numbers = first[..., None].astype(np.int64) + np.arange(2)  # (..., n, points, 2)
    exists = reached & (numbers >= 0) & (numbers < size)
    heights = np.concatenate([1 - part, part], axis=-1)  # (deformable.4)
    slopes = np.where(np.isnan(place)[..., None], place[..., None], np.array([-size, size], real))  # (deformable.5)
    return Hats(np.where(exists, numbers, 0), np.where(exists, heights, 0), np.where(exists, slopes, 0))


def _seen(products: Array, near: Array) -> Array:
    """`products` of how much of each pixel is in a sample: zero where that is nothing, whatever it is multiplied by."""
    return np.where(near == 0, 0, products)


@passes.forward
def sample(
    value: Array, locations: Array, weights: Array, shapes: tuple[tuple[int, int], ...]
) -> tuple[Array, Cache, tuple[Array]]:
    """What :func:`forward` computes, of arguments that it has checked."""
    output: Any = 0
    for k, level in enumerate(_levels(locations, shapes)):
        corners = _corners(value, level)  # (..., n, points, 4, d)
        near = level.near[..., None]
        samples = _seen(near * corners, near).sum(axis=-2)  # (..., n, points, d) (deformable.6)
        output = output + (weights[..., k, :, None] * samples).sum(axis=-2)  # (..., n, d) (deformable.8)
    cache = Cache(value=value, locations=locations, weights=weights, shapes=shapes, output_shape=output.shape)
    return output, cache, (output,)


def _corners(value: Array, level: Level) -> Array:
    """The four pixels around each sample, (..., n, points, 4, d)."""
    taken = gathered(value[..., level.pixels, :], level.corners)  # (..., n * points * 4, d)
    return taken.reshape(*taken.shape[:-2], *level.near.shape[-3:], taken.shape[-1])


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss with respect to every array of :func:`forward`, from that of the output, (..., n, d)."""
    d_value, d_locations, d_weights = [], [], []
    d_rows = d_output[..., None, None, :]  # (..., n, 1, 1, d)
    for k, level in enumerate(_levels(cache.locations, cache.shapes)):
        weights = cache.weights[..., k, :, None]  # (..., n, points, 1)
        # forward was output = the sum of weights * near * corners
        agreement = backward_times(d_rows, _corners(cache.value, level)).sum(axis=-1)  # (..., n, points, 4)
        # (..., n, 1, points) (deformable.9)
        d_weights.append(backward_times(_seen(agreement, level.near), level.near).sum(axis=-1)[..., None, :])
        d_near = backward_times(agreement, weights)  # (..., n, points, 4) (deformable.10)
        by_each = [_seen(backward_times(d_near, by), by).sum(axis=-1, keepdims=True) for by in (level.by_x, level.by_y)]
        d_locations.append(np.concatenate(by_each, axis=-1)[..., None, :, :])  # (..., n, 1, points, 2) (deformable.11)
        share = (level.near * weights)[..., None]  # (..., n, points, 4, 1)
        d_corners = _seen(backward_times(d_rows, share), level.near[..., None])  # (..., n, points, 4, d)
        d_value.append(_to_pixels(d_corners, level))  # (..., pixels of the level, d) (deformable.12)
    gradients = Gradients(
        value=np.concatenate(d_value, axis=-2),
        locations=np.concatenate(d_locations, axis=-3),
        weights=np.concatenate(d_weights, axis=-2),
    )
    return gradients, tuple(gradients)


def _to_pixels(d_corners: Array, level: Level) -> Array:
    """The gradient of the pixels of a level, from that of the four around each sample, (..., n, points, 4, d)."""
    *leading, n, points, four, d = d_corners.shape
    size = level.pixels.stop - level.pixels.start
    lost = np.broadcast_to(level.lost, d_corners.shape[:-2])[..., None, None]  # (..., n, points, 1, 1)
    placed = np.where(lost, 0, d_corners).reshape(*leading, n * points * four, d)
    d_pixels = scattered(placed, level.corners, size)
    if lost.any():  # which of them a NaN looks at nobody knows
        everywhere = np.where(lost, d_corners, 0).sum(axis=(-4, -3, -2))  # (..., d)
        d_pixels = d_pixels + everywhere[..., None, :]
    return d_pixels


@passes.jvp
def jvp(
    cache: Cache, *, value: Tangent = None, locations: Tangent = None, weights: Tangent = None
) -> tuple[Array, tuple[Array, ...]]:
    """Forward mode: how the output, (..., n, d), moves when the inputs move along a tangent."""
    output: Any = 0
    for k, level in enumerate(_levels(cache.locations, cache.shapes)):
        corners, d_corners = _corners(cache.value, level), _corners(value, level)  # (..., n, points, 4, d)
        near = level.near[..., None]
        x, y = (locations[..., k, :, axis, None] for axis in (0, 1))  # (..., n, points, 1)
        d_near = backward_times(x, level.by_x) + backward_times(y, level.by_y)  # (..., n, points, 4) (deformable.14)
        samples = _seen(near * corners, near).sum(axis=-2)  # (..., n, points, d)
        # (..., n, points, d) (deformable.15)
        d_samples = (_seen(near * d_corners, near) + backward_times(d_near[..., None], corners)).sum(axis=-2)
        by_weights = backward_times(weights[..., k, :, None], samples)
        terms = by_weights + cache.weights[..., k, :, None] * d_samples
        output = output + terms.sum(axis=-2)  # (..., n, d) (deformable.16)
    return output, (output,)


double_backward = passes.second_derivative(sample, backward)


def _as_shapes(shapes: Any) -> tuple[tuple[int, int], ...]:
    """`shapes` as pairs of integers, of at least one level."""
    listed = shapes.tolist() if isinstance(shapes, np.ndarray) else shapes
    pairs = (
        [tuple(pair) if isinstance(pair, list | tuple) else () for pair in listed]
        if isinstance(listed, list | tuple)
        else []
    )
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise ValueError(
            f"shapes must have the height and the width of each level, ((height, width), ...), not {shapes}"
        )
    return tuple(
        (as_integer(f"shapes[{k}][0]", height, least=1), as_integer(f"shapes[{k}][1]", width, least=1))
        for k, (height, width) in enumerate(pairs)
    )


def _check_shapes(value: Array, locations: Array, weights: Array, shapes: tuple[tuple[int, int], ...]) -> None:
    """Refuse arrays that do not fit together."""
    if value.ndim < 2:
        raise ValueError(f"value must have at least two axes, (..., pixels, features) (value.shape={value.shape})")
    pixels = sum(height * width for height, width in shapes)
    if value.shape[-2] != pixels:
        levels = f"shapes={shapes}, value.shape={value.shape}"
        raise ValueError(f"value has {value.shape[-2]} pixels, but the levels have {pixels} together ({levels})")
    if locations.ndim < 4 or locations.shape[-1] != 2 or locations.shape[-3] != len(shapes):
        axes = f"(..., n, {len(shapes)}, points, 2)"
        raise ValueError(f"locations must have the shape {axes} (locations.shape={locations.shape})")
    if weights.shape[-3:] != locations.shape[-4:-1]:
        axes = ", ".join(map(str, locations.shape[-4:-1]))
        raise ValueError(f"weights must have the shape (..., {axes}) (weights.shape={weights.shape})")
    leading = {"value": value.shape[:-2], "locations": locations.shape[:-4], "weights": weights.shape[:-3]}
    broadcast_axes(leading)
