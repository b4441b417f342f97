"""The cases of dot_product without a mask: sizes, broadcasting, and scores that are hard on arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_np.known_answers.examples.example import Array, Draws, Example, Shape, attending, case_of, filled

__all__ = ["examples", "of_dot_product"]


def of_dot_product(
    name: str,
    description: str,
    *tags: str,
    n: int = 4,
    m: int = 6,
    d_k: int = 5,
    d_v: int = 3,
    leading: Shape = (2,),
    key_leading: Shape | None = None,
    value_leading: Shape | None = None,
    **changes: Any,
) -> Example:
    """A case on arrays of the given sizes."""
    draws = Draws("dot_product", name)
    inputs, output_leading = attending(draws, (n, m), (d_k, d_k, d_v), leading, key_leading, value_leading)
    inputs["d_output"] = draws(*output_leading, n, d_v)
    return case_of(draws, description, tags, inputs, changes)


def examples() -> list[Example]:
    """Every case without a mask or a bias."""
    case = of_dot_product

    def broadcast(
        name: str, description: str, leading: Shape, keys: Shape | None = None, values: Shape | None = None
    ) -> Example:
        return of_dot_product(name, description, "broadcast", leading=leading, key_leading=keys, value_leading=values)

    def tile(name: str, description: str, *tags: str, sizes: tuple[int, int, int, int], **changes: Any) -> Example:
        n, m, d_k, d_v = sizes
        return of_dot_product(name, description, "tile", *tags, n=n, m=m, d_k=d_k, d_v=d_v, leading=(), **changes)

    return [
        case("plain", "4 queries, 6 keys, values narrower than keys, a batch of 2."),
        case("wide-values", "More queries than keys, values wider than keys.", n=7, m=3, d_k=2, d_v=9),
        case("no-leading-axes", "No batch and no heads.", leading=()),
        case("heads", "A batch of 2, 3 heads.", leading=(2, 3)),
        case("one-query", "A single query.", n=1),
        case("one-key", "A single key: its weight is one, and nothing flows back to query and key.", m=1),
        case("one-query-one-key", "One query, one key, one feature.", n=1, m=1, d_k=1, d_v=1, leading=()),
        case("scale-one", "Scores are not scaled.", scale=1.0),
        case("negative-scale", "A negative scale, no power of two.", scale=-0.3),
        broadcast(
            "shared-keys", "One set of keys for the whole batch: its gradient is summed over it.", (2,), (1,), (2,)
        ),
        broadcast("shared-values", "Values without a batch axis: their gradient is summed over it.", (3,), (3,), ()),
        broadcast("shared-queries", "The same queries for 3 samples, as with learned ones.", (1,), (3,)),
        broadcast(
            "grouped-queries",
            "Grouped-query attention: 3 query heads share each of 2 heads of keys and values, as axes that broadcast.",
            (2, 2, 3),
            (2, 2, 1),
        ),
        case("large-scores", "Scores up to about 100.", "large scores", query=lambda x: 16 * x, key=lambda x: 2 * x),
        case(
            "huge-scores",
            "Scores up to about 5000: every weight is nearly 0 or 1.",
            "large scores",
            query=lambda x: 512 * x,
            key=lambda x: 4 * x,
        ),
        case(
            "one-key-far-ahead",
            "The first key wins by about 20: all other weights are near 1e-9, and gradients are small differences.",
            "large scores",
            query=lambda x: np.abs(x) + 1,
            key=lambda x: np.where(np.arange(6)[:, None] == 0, 9 + x, x / 4),
        ),
        case(
            "equal-keys",
            "Every key is the same: each query takes the mean of the values.",
            "ties",
            key=lambda x: np.repeat(x[:, :1], 6, axis=1),
        ),
        case(
            "tied-largest",
            "Small whole numbers, so that scores are exact and the largest is there twice.",
            "ties",
            query=lambda x: np.rint(2 * x),
            key=lambda x: np.rint(2 * x)[:, [0, 1, 2, 0, 1, 2]],
        ),
        case("zero-queries", "Queries of zeros: the weights are equal.", "ties", query=lambda x: 0 * x),
        tile("tile-edges", "33 queries, 65 keys: one more than tiles of 32 and 64 hold.", sizes=(33, 65, 32, 32)),
        tile("tile-edges-causal", "65 queries and keys, causal.", sizes=(65, 65, 16, 16), is_causal=True),
        tile("wide-heads", "Heads of 128 features.", sizes=(16, 16, 128, 128)),
        tile("many-keys", "One query and 257 keys, as in decoding.", sizes=(1, 257, 16, 16)),
        tile(
            "later-keys-larger",
            "Each key beats all before it, so that a running maximum moves at every key.",
            "large scores",
            sizes=(3, 48, 8, 8),
            query=np.abs,
            key=lambda x: np.abs(x) + np.arange(48)[:, None] / 4,
        ),
        tile(
            "tiles-of-128",
            "130 queries, 131 keys: just more than tiles of 128 hold. The largest scores are in the last tile.",
            sizes=(130, 131, 3, 2),
            query=np.abs,
            key=_largest_from(128),
        ),
        tile(
            "tiles-of-128-causal",
            "130 queries, 257 keys, causal: the third tile of 128 keys is hidden from all, the second from nearly all. "
            "The last two queries have their largest scores in the second. The first query has no incoming gradient.",
            sizes=(130, 257, 3, 2),
            is_causal=True,
            query=np.abs,
            key=_largest_from(128),
            # It sees one key, and the zero that would flow back to it takes twice the digits to be sure of.
            d_output=filled(np.arange(130)[:, None] == 0, 0),
        ),
        tile(
            "keys-in-tiles-of-256",
            "321 keys, and the largest scores in those after the first 256.",
            sizes=(5, 321, 4, 3),
            query=np.abs,
            key=_largest_from(256),
        ),
        tile(
            "queries-in-tiles-of-256",
            "321 queries: the gradients of keys and values are sums over more than tiles of 256.",
            sizes=(321, 5, 4, 3),
        ),
        tile("heads-of-160", "160 features: more than 128, and no power of two.", sizes=(4, 6, 160, 160)),
    ]


def _largest_from(first: int) -> Callable[[Array], Array]:
    """For queries without negative numbers: the keys from `first` on beat all before them."""

    def change(key: Array) -> Array:
        later = np.arange(len(key))[:, None] >= first
        return np.where(later, np.abs(key) + 3, key)

    return change
