"""The steps of the queries and the keys of each head, from their projection to the scores.

They are normalised, or turned by their positions, or both, in either order. Each step has the passes of an op; in
`Steps` its cache stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from attention_np import rms_norm, rotary
from attention_np._lib.arrays import Array, real_types


@dataclass(frozen=True)
class Norm:
    """Each row divided by its root mean square, times a gain: :mod:`attention_np.rms_norm`."""

    epsilon: Any

    def forward(self, x: Array, gain: Array | None) -> tuple[Array, Any]:
        """The rows, and the cache for the other passes."""
        normalised: tuple[Array, Any] = rms_norm.normalise.mathematics(x, gain, self.epsilon)
        return normalised

    def backward(self, d_y: Array, cache: Any) -> tuple[Array, Array | None]:
        """The gradients of the rows and of the gain."""
        gradients: rms_norm.Gradients = rms_norm.backward.mathematics(d_y, cache)[0]
        return gradients

    def jvp(self, d_x: Array, d_gain: Array | None, cache: Any) -> Array:
        """The tangent of the rows."""
        d_y: Array = rms_norm.jvp.mathematics(cache, x=d_x, gain=d_gain)[0]
        return d_y


@dataclass(frozen=True)
class Linear:
    """A linear map of each row, which may be a turn by the angle of its position: :mod:`attention_np.rotary`."""

    apply: Callable[[Array], Array]
    transpose: Callable[[Array], Array]

    def forward(self, x: Array, _: Any) -> tuple[Array, Any]:
        """The rows."""
        return self.apply(x), None

    def backward(self, d_y: Array, _: Any) -> tuple[Array, Array | None]:
        """The gradient of the rows."""
        return self.transpose(d_y), None

    def jvp(self, d_x: Array, *_: Any) -> Array:
        """The tangent of the rows."""
        return self.apply(d_x)


Plan: TypeAlias = tuple[Norm | Linear, ...]
Steps: TypeAlias = tuple[tuple[Norm | Linear, Any], ...]


def norms(kind: str | None, epsilon: float, has_gain: bool, d_k: int, compute: np.dtype[Any]) -> Plan:
    """How queries and keys are normalised; nothing if they are not."""
    if kind not in (None, "rms", "l2"):
        raise ValueError(f'qk_norm must be "rms" or "l2", not {kind!r}')
    checked = rms_norm.as_epsilon("qk_norm_epsilon", epsilon, compute)
    if kind is None and not has_gain:
        return ()
    if kind != "l2":
        return (Norm(checked),)
    real, extended = real_types(compute)  # the mean of the squares is their sum over d_k
    to_length = partial(np.multiply, real(1 / np.sqrt(extended(max(d_k, 1)))))  # (multi-head.64)
    return Norm(real(checked / extended(max(d_k, 1)))), Linear(to_length, to_length)


def turns(
    options: Mapping[str, Any] | None,
    places: Mapping[str, tuple[npt.ArrayLike | None, Array]],
    d_k: int,
    compute: np.dtype[Any],
) -> list[Plan]:
    """How the rows of arrays are turned by the positions beside them, which may be None; nothing if they are not."""
    if options is None:
        if any(positions is not None for positions, _ in places.values()):
            raise ValueError("query_positions and key_positions are for rotary, which is not given")
        return [()] * len(places)
    known = ("base", "width", "interleaved", "trailing", "scaling", "sections", "arrangement", "restart")
    if not isinstance(options, Mapping) or not set(options) <= set(known):
        raise TypeError(f"rotary must be a mapping of some of {', '.join(known)}, not {options!r}")
    angles = rotary.Angles.of(d_k, **options)
    plans: list[Plan] = []
    for name, (positions, x) in places.items():
        at = rotary.as_positions(name, positions, x.shape[:-1], angles.num_axes)
        cos, sin = angles.at(at[..., None, :], compute)  # (..., 1, n, width / 2), for all heads
        turn = partial(rotary.turned, cos=cos, first=angles.first, second=angles.second)
        plans.append((Linear(partial(turn, sin=sin), partial(turn, sin=-sin)),))
    return plans


def through(plan: Plan, x: Array, gain: Array | None) -> tuple[Array, Steps]:
    """`x` behind the last step of a plan, and each step with its cache."""
    steps = []
    for step in plan:
        x, cache = step.forward(x, gain)
        steps.append((step, cache))
    return x, tuple(steps)


def plan_of(steps: Steps) -> Plan:
    """The steps, without their caches."""
    return tuple(step for step, _ in steps)


def back_through(steps: Steps, d_x: Array) -> tuple[Array, Array | None]:
    """The gradients of the rows before `steps`, and of the gain."""
    d_gain = None
    for step, cache in reversed(steps):
        d_x, of_gain = step.backward(d_x, cache)
        d_gain = d_gain if of_gain is None else of_gain
    return d_x, d_gain


def tangent_through(steps: Steps, d_x: Array, d_gain: Array | None) -> Array:
    """The tangent of the rows behind `steps`."""
    for step, cache in steps:
        d_x = step.jvp(d_x, d_gain, cache)
    return d_x
