"""The tokens of a sequence, of which padding holds zeros, so that it neither decays nor writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attention_np._lib.arrays import Array


class Tokens(NamedTuple):
    """All tokens of a sequence, or some, or one, then without the axis for them; or their gradients or tangents."""

    query: Array  # (..., n, d_k)
    key: Array  # (..., n, d_k)
    value: Array  # (..., n, d_v)
    log_decay: Any = None  # (..., n, 1 or d_k), or None
    beta: Any = None  # (..., n, 1), or None
    probe: Any = None  # (..., n, d_k), or None
    response: Any = None  # (..., n, d_k), where there is a probe
    bonus: Any = None  # (..., n, d_k), the same for all tokens; or None
    mask: Any = None  # (..., n, 1), or None

    @property
    def n(self) -> int:
        """How many."""
        return int(self.query.shape[-2])

    @property
    def decay(self) -> Array:
        """What each row of the state before a token is multiplied by, (..., 1 or d_k, 1)."""
        # Of entries apart in memory NumPy 1.26 rounds an exponential by where its result lies.
        decay: Array = np.exp(self.log_decay.copy())
        return decay[..., None]

    def each(self, function: Callable[[Array], Array]) -> Tokens:
        """With `function` applied to each array."""
        return Tokens._make(None if x is None else function(x) for x in self)

    def at(self, t: int) -> Tokens:
        """One of them."""
        return self.each(lambda x: x[..., t, :])

    def part(self, span: slice) -> Tokens:
        """Some of them."""
        return self.each(lambda x: x[..., span, :])


def as_tokens(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    beta: Array | None,
    probe: Array | None,
    response: Array | None,
    bonus: Array | None,
    mask: Array | None,
) -> Tokens:
    """Tokens of arrays as the op takes them, with zeros where `mask` hides them."""
    of_beta = None if beta is None else beta[..., None]
    of_bonus = None
    if bonus is not None:
        of_bonus = np.broadcast_to(bonus[..., None, :], (*bonus.shape[:-1], query.shape[-2], bonus.shape[-1]))
    tokens = Tokens(query, key, value, log_decay, of_beta, probe, response, of_bonus)
    if mask is None:
        return tokens
    seen = mask[..., None]
    return tokens.each(lambda x: hidden_as_zero(x, seen))._replace(mask=seen)


def hidden_as_zero(x: Array, mask: Array | None) -> Array:
    """`x`, (..., n, features), with zeros where a token is hidden."""
    return x if mask is None else np.where(mask, x, 0)
