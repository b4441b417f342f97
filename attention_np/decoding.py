"""Attention token by token: the keys and values so far are kept, and each new query attends to them.

A causal output depends on no later key, so what was computed for a token stays right when the next one comes; only its
own row is new. The derivation is ``derivations/decoding.md`` of the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np import dot_product, latent, masks
from attention_np._lib.arguments import as_array, as_floating, as_integer
from attention_np._lib.arrays import Array, native
from attention_np.biases import Bias
from attention_np.weightings import Weighting

__all__ = ["KeyValueCache"]


class KeyValueCache:
    """The keys and values of a sequence that grows, and attention of its last queries to them.

    Or its latents and rotary keys, in the places of keys and values, for :meth:`attend_latent`. Token by token, or in
    chunks, the outputs are the rows of one causal pass over the whole sequence.

    Parameters
    ----------
    capacity : int
        How many keys there is room for.
    window : (int or None, int or None), optional
        Each query attends to the ``left`` keys before its own and no others, as in
        :func:`attention_np.masks.sliding_window`; what is further back is overwritten, so a capacity of ``left + 1``
        is enough for ever, and ``left + t`` for t queries at once. Of ``right`` nothing is there yet.
    page_size : int, optional
        Keys are kept in pages of so many, which lie anywhere in memory, and are used again when no query can look back
        to them. By default they lie one behind the other.

    Attributes
    ----------
    length : int
        How many keys have been appended.

    Raises
    ------
    TypeError, ValueError
        If an option is not an integer, or less than 1, or a bound of the window negative; if `capacity` does not hold
        the window.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import KeyValueCache, dot_product
    >>> query, key, value = np.random.default_rng(0).normal(size=(3, 6, 4))
    >>> cache, rows = KeyValueCache(capacity=6), []
    >>> for i in range(6):
    ...     cache.append(key[i : i + 1], value[i : i + 1])
    ...     rows.append(cache.attend(query[i]))
    >>> output, _ = dot_product.forward(query, key, value, is_causal=True)
    >>> bool(np.allclose(rows, output, rtol=1e-15))
    True
    """

    def __init__(
        self, capacity: int, *, window: tuple[int | None, int | None] | None = None, page_size: int | None = None
    ) -> None:
        self.capacity = as_integer("capacity", capacity, least=1)
        self.left: int | None = None
        if window is not None:
            masks.sliding_window(0, **masks.as_window(window))  # refuses what cannot be
            self.left = window[0]
        if self.left is not None and self.capacity <= self.left:
            raise ValueError(f"capacity must be at least left + 1 = {self.left + 1}, not {self.capacity}")
        self.page_size = None if page_size is None else as_integer("page_size", page_size, least=1)
        self._key: Array | None = None  # (..., slots, d_k)
        self._value: Array | None = None  # (..., slots, d_v)
        self.clear()

    def __repr__(self) -> str:
        return f"<KeyValueCache of {self.capacity} keys, {self.length} appended>"

    def clear(self) -> None:
        """Begin another sequence, in the same memory."""
        self.length = 0
        if self.page_size is not None:
            # With a window the first page and the last may be in use in part.
            pages = -(-self.capacity // self.page_size) + (self.left is not None)
            self._free, self._pages = list(range(pages)), dict[int, int]()  # of the sequence, and where they are

    def append(self, key: npt.ArrayLike, value: npt.ArrayLike) -> None:
        """Keep the next keys and values.

        Parameters
        ----------
        key : array_like of float, (..., t, d_k)
            Of t tokens, rotated already if they are. Or their latents, (..., t, r).
        value : array_like of float, (..., t, d_v)
            Or beside latents their rotary keys, (..., t, d_r); d_r is 0 where there are none.

        Raises
        ------
        TypeError
            If an array is not of floating-point numbers, or not of the dtype that was appended first.
        ValueError
            If shapes do not fit together, or the arrays that were appended first; if there is no room and no window.
        """
        key, value = as_floating("key", key), as_floating("value", value)
        for name, x in (("key", key), ("value", value)):
            if x.ndim < 2:
                raise ValueError(f"{name} must have at least two axes, (..., t, features) ({name}.shape={x.shape})")
        count = key.shape[-2]
        if value.shape[-2] != count:
            raise ValueError(
                f"key and value must be of one length: there are {count} keys and {value.shape[-2]} values "
                f"(key.shape={key.shape}, value.shape={value.shape})"
            )
        if self.left is None and self.length + count > self.capacity:
            raise ValueError(
                f"there is room for {self.capacity - self.length} more keys, not {count} (capacity={self.capacity})"
            )
        if self._key is None or self._value is None:
            slots = self.capacity if self.page_size is None else len(self._free) * self.page_size
            self._key, self._value = (
                np.empty((*x.shape[:-2], slots, x.shape[-1]), native(x.dtype)) for x in (key, value)
            )
        for name, x, kept in (("key", key, self._key), ("value", value, self._value)):
            _check_alike(name, x, kept)
        some = min(count, self.capacity)  # of more than fit, the last
        places = self._places(self.length + count - some, self.length + count)
        self._key[..., places, :], self._value[..., places, :] = (
            key[..., count - some :, :],
            value[..., count - some :, :],
        )
        self.length += count

    @property
    def _first(self) -> int:
        """The first key that is still there."""
        return max(self.length - self.capacity, 0)

    def _places(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Where the keys from `start` to `stop` are in memory; those that are new get pages."""
        positions = np.arange(start, stop)
        if self.page_size is None:
            return positions % self.capacity
        for gone in [page for page in self._pages if (page + 1) * self.page_size <= stop - self.capacity]:
            self._free.append(self._pages.pop(gone))
        for page in dict.fromkeys((positions // self.page_size).tolist()):
            if page not in self._pages:
                self._pages[page] = self._free.pop()
        pages = np.array([self._pages[page] for page in (positions // self.page_size).tolist()], np.int64)
        return pages * self.page_size + positions % self.page_size

    def attend(
        self,
        query: npt.ArrayLike,
        *,
        mask: npt.ArrayLike | None = None,
        bias: Any = None,
        scale: npt.ArrayLike | None = None,
        softcap: float | None = None,
        sink: npt.ArrayLike | None = None,
        weights_by: Weighting | None = None,
    ) -> Array:
        """Attention of the last queries, each to the keys up to its own.

        Parameters
        ----------
        query : array_like of float, (..., t, d_k)
            The last of them stands at the last key. Or (d_k,): that one alone.
        mask : array_like of bool, optional
            True where attending is allowed; broadcasts to (..., t, length), all keys so far.
        bias : array_like of float, or of :mod:`attention_np.biases`, or list of them, optional
            Added to the scores; an array broadcasts as `mask` does. Positions count from the first key appended, also
            those that an index is of, and forgetting gates are those of all tokens so far.
        scale, softcap, sink, weights_by
            As for :func:`attention_np.dot_product.forward`.

        Returns
        -------
        ndarray, (..., t, d_v)
            Or (..., d_v) for a single query.

        Raises
        ------
        TypeError, ValueError
            As :func:`attention_np.dot_product.forward`; if there are more queries than keys, or the first of them looks
            back to keys that have been overwritten.
        """
        query = as_floating("query", query)
        key, value, seen, bias = self._last(query, mask, bias)
        output, _ = dot_product.forward(
            query, key, value, mask=seen, bias=bias, scale=scale, softcap=softcap, sink=sink, weights_by=weights_by
        )
        return output

    def attend_latent(
        self,
        query: npt.ArrayLike,
        query_rotary: npt.ArrayLike | None,
        w_key: npt.ArrayLike,
        w_value: npt.ArrayLike,
        *,
        absorbed: bool = True,
        mask: npt.ArrayLike | None = None,
        bias: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
        sink: npt.ArrayLike | None = None,
    ) -> Array:
        """Latent attention of the last queries, each to the latents up to its own, which have been appended as keys.

        Parameters
        ----------
        query : array_like of float, (..., h, t, d_n)
            The last of them stands at the last latent.
        query_rotary : array_like of float, (..., h, t, d_r), or None
        w_key : array_like of float, (h, r, d_n)
        w_value : array_like of float, (h, r, d_v)
        absorbed : bool, optional
            Whether no keys and values are made of the latents, as in :func:`attention_np.latent.forward`: faster for a
            few queries.
        mask, bias
            As for :meth:`attend`; they broadcast to (..., h, t, length).
        scale, softcap, sink
            As for :func:`attention_np.latent.forward`.

        Returns
        -------
        ndarray, (..., h, t, d_v)

        Raises
        ------
        TypeError, ValueError
            As :func:`attention_np.latent.forward`, and as :meth:`attend`.

        Examples
        --------
        >>> import numpy as np
        >>> from attention_np import KeyValueCache, latent
        >>> rng = np.random.default_rng(0)
        >>> query, query_rotary = rng.normal(size=(2, 6, 4)), rng.normal(size=(2, 6, 2))
        >>> latents, key_rotary = rng.normal(size=(6, 5)), rng.normal(size=(6, 2))
        >>> weights = rng.normal(size=(2, 5, 4)), rng.normal(size=(2, 5, 3))
        >>> cache, rows = KeyValueCache(capacity=6), []
        >>> for i in range(6):
        ...     cache.append(latents[i : i + 1], key_rotary[i : i + 1])
        ...     rows.append(cache.attend_latent(query[:, i : i + 1], query_rotary[:, i : i + 1], *weights))
        >>> output, _ = latent.forward(query, query_rotary, latents, key_rotary, *weights, is_causal=True)
        >>> bool(np.allclose(np.concatenate(rows, axis=1), output, rtol=0, atol=1e-14))
        True
        """
        query = as_floating("query", query)
        latents, key_rotary, seen, bias = self._last(query, mask, bias)
        output, _ = latent.forward(
            query,
            query_rotary,
            latents,
            key_rotary if key_rotary.shape[-1] else None,
            w_key,
            w_value,
            absorbed=absorbed,
            mask=seen,
            bias=bias,
            scale=scale,
            softcap=softcap,
            sink=sink,
        )
        return output

    def _last(self, query: Array, mask: npt.ArrayLike | None, bias: Any) -> tuple[Array, Array, Any, Any]:
        """The keys and values that the last queries may look back to, who sees which, and the bias of these."""
        count = query.shape[-2] if query.ndim > 1 else 1
        stop, own = self.length, self.length - count  # where the first query stands
        if self._key is None or self._value is None or own < 0:
            raise ValueError(f"there are {count} queries, but {stop} keys (query.shape={query.shape})")
        start = 0 if self.left is None else max(own - self.left, 0)
        if start < self._first:
            raise ValueError(
                f"{count} queries at once look back to key {start}, and what is before key {self._first} has been "
                f"overwritten: append and attend fewer at a time (capacity={self.capacity}, window of {self.left})"
            )
        key, value = self._key, self._value
        if self.page_size is None and stop <= self.capacity:
            key, value = key[..., start:stop, :], value[..., start:stop, :]
        else:  # taken in the order of the sequence, so that where a page lies changes no bit
            places = self._places(start, stop)
            key, value = key.take(places, axis=-2), value.take(places, axis=-2)
        seen = None
        if count > 1:
            seen = masks.causal(count, stop - start, offset=own - start)
            if self.left is not None:
                seen &= ~masks.causal(count, stop - start, offset=own - start - self.left - 1)
        if mask is not None:
            columns = _columns("mask", as_array("mask", mask, "booleans"), start, stop)
            seen = columns if seen is None or columns.dtype != np.bool_ else seen & columns

        def of_keys(name: str, bias: Any) -> Any:
            if isinstance(bias, Bias):
                return bias.within(slice(own, stop), slice(start, stop))
            return _columns(name, as_floating(name, bias), start, stop)

        if isinstance(bias, list):
            bias = [of_keys(f"bias[{k}]", x) for k, x in enumerate(bias)]
        elif bias is not None:
            bias = of_keys("bias", bias)
        return key, value, seen, bias


def _check_alike(name: str, x: Array, kept: Array) -> None:
    """Refuse keys or values that are not as those that were appended first."""
    if native(x.dtype) != kept.dtype:
        raise TypeError(f"{name} must be of {kept.dtype}, as what was appended first, not {x.dtype}")
    if (*x.shape[:-2], x.shape[-1]) != (*kept.shape[:-2], kept.shape[-1]):
        first = (*kept.shape[:-2], "t", kept.shape[-1])
        raise ValueError(f"{name} must have the shape ({', '.join(map(str, first))}) ({name}.shape={x.shape})")


def _columns(name: str, array: Array, start: int, stop: int) -> Array:
    """Of an array with a column for each key so far, or one for all, those of some."""
    if array.ndim and array.shape[-1] not in (1, stop):
        raise ValueError(f"{name} must have a column for each of the {stop} keys so far ({name}.shape={array.shape})")
    return array[..., start:stop] if array.ndim and array.shape[-1] == stop else array
