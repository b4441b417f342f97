"""Token by token and in chunks, wherever keys lie in memory: the rows of one causal pass."""

from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_close, assert_same_bits, each, normal

from attention_np import KeyValueCache, biases, dot_product, latent, masks, rotary, weightings

N = 23
CACHES: dict[str, dict[str, Any]] = {
    "contiguous": {"capacity": N},
    "room to spare": {"capacity": 2 * N},
    "paged": {"capacity": N, "page_size": 4},
    "pages of one": {"capacity": N, "page_size": 1},
    "one page": {"capacity": N, "page_size": 64},
}
ROLLING: dict[str, dict[str, Any]] = {
    "as little as can be": {"capacity": 6, "window": (5, 0)},
    "for chunks": {"capacity": 12, "window": (5, None)},
    "pages": {"capacity": 6, "window": (5, 0), "page_size": 4},
    "pages of one": {"capacity": 7, "window": (5, 0), "page_size": 1},
    "pages for chunks": {"capacity": 13, "window": (5, 0), "page_size": 3},
    "never full": {"capacity": 40, "window": (5, 0), "page_size": 8},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 1.5},
    "sink": {"sink": normal(5, 2)},
    "mask": {"mask": normal(6, N, N) < 0.7},
    "mask of keys": {"mask": (normal(6, N) < 0.7)[None]},
    "bias": {"bias": normal(7, 2, N, N)},
    "sparsemax": {"weights_by": weightings.sparsemax()},
    "stick-breaking": {"weights_by": weightings.stick_breaking(), "mask": normal(6, N, N) < 0.7},
    "everything": {"softcap": 2.0, "sink": normal(5, 2), "mask": normal(6, N, N) < 0.7, "bias": normal(7, N, N)},
}


def arrays() -> tuple[Array, Array, Array]:
    return normal(0, 2, N, 4), normal(1, 2, N, 4), normal(2, 2, N, 3)


def of_rows(options: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    """The options of these queries, and the keys so far."""

    def part(x: Any) -> Any:
        if isinstance(x, list):
            return [part(one) for one in x]
        if isinstance(x, np.ndarray):
            return x[..., :stop] if x.ndim == 1 or x.shape[-2] == 1 else x[..., start:stop, :stop]
        return x.with_array(x.array[:, :stop]) if x.shape[-1] == N else x  # forgetting gates

    return {name: part(x) if name in {"mask", "bias"} else x for name, x in options.items()}


def decoded(cache: KeyValueCache, chunks: list[int], **options: Any) -> Array:
    query, key, value = arrays()
    rows, start = [], 0
    for count in chunks:
        stop = start + count
        cache.append(key[:, start:stop], value[:, start:stop])
        rows.append(cache.attend(query[:, start:stop], **of_rows(options, start, stop)))
        start = stop
    assert cache.length == start == N
    return np.concatenate(rows, axis=-2)


CHUNKS = {"token by token": [1] * N, "prefill": [9] + [1] * (N - 9), "chunks": [4, 7, 1, 1, 7, 3], "one pass": [N]}


@each("options", OPTIONS.values())
@each("chunks", CHUNKS.values())
def test_wherever_keys_lie_the_outputs_are_the_rows_of_one_causal_pass(
    chunks: list[int], options: dict[str, Any]
) -> None:
    expected, _ = dot_product.forward(*arrays(), is_causal=True, **options)
    found = {name: decoded(KeyValueCache(**how), chunks, **options) for name, how in CACHES.items()}
    assert_close(found["contiguous"], expected, 2e-15)
    for output in found.values():
        assert_same_bits(output, found["contiguous"])


@each("options", OPTIONS.values())
@each("how", ROLLING.values())
def test_a_window_rolls_for_ever(how: dict[str, Any], options: dict[str, Any]) -> None:
    window = masks.sliding_window(N, left=5)
    mask = {"mask": window & options["mask"] if "mask" in options else window}
    expected, _ = dot_product.forward(*arrays(), **options | mask)
    for chunks in ([1] * N, [3, 1, 1, 7, 1, 4, 5, 1]):
        if how["capacity"] >= 5 + max(chunks):
            assert_close(decoded(KeyValueCache(**how), chunks, **options), expected, 2e-15)


BIASES = {
    "alibi": biases.alibi(biases.alibi_slopes(2)),
    "t5": biases.t5(normal(8, 8, 2), bidirectional=False, max_distance=16),
    "shaw": biases.shaw(normal(9, 7, 4)),
    "forgetting": biases.forgetting(-np.abs(normal(10, 2, N))),
    "products of keys": biases.products(normal(11, 3, 4), np.arange(N * N).reshape(N, N) % 3, of="key"),
}
BIASES["a list"] = [BIASES["t5"], biases.table(normal(12, 5), np.arange(N * N).reshape(N, N) % 5), normal(13, N)]


@each("bias", BIASES.values())
def test_positions_of_a_bias_count_from_the_first_key(bias: Any) -> None:
    expected, _ = dot_product.forward(*arrays(), is_causal=True, bias=bias, softcap=2.0)
    windowed, _ = dot_product.forward(*arrays(), mask=masks.sliding_window(N, left=5), bias=bias, softcap=2.0)
    for chunks in CHUNKS.values():
        assert_close(decoded(KeyValueCache(N, page_size=4), chunks, bias=bias, softcap=2.0), expected, 1e-14)
    for how in ROLLING.values():
        assert_close(decoded(KeyValueCache(**how), [1] * N, bias=bias, softcap=2.0), windowed, 1e-14)


def test_a_window_of_everything_is_no_window() -> None:
    output = decoded(KeyValueCache(N, window=(N - 1, 0)), CHUNKS["chunks"])
    assert_same_bits(output, decoded(KeyValueCache(N), CHUNKS["chunks"]))


@each("how", [*CACHES.values(), *ROLLING.values()])
@each("held", [np.nan, np.inf])
def test_what_memory_held_before_is_never_seen(how: dict[str, Any], held: float) -> None:
    expected, cache = decoded(KeyValueCache(**how), [1] * N), KeyValueCache(**how)
    for _ in range(min(N, how["capacity"])):
        cache.append(np.full((2, 1, 4), held), np.full((2, 1, 3), held))
    cache.clear()
    if how.get("page_size"):
        cache._free = np.random.default_rng(0).permutation(cache._free).tolist()  # another place for each page
    assert_same_bits(decoded(cache, [1] * N), expected)


def test_keys_are_copied_and_nothing_is_written_to() -> None:
    query, key, value = arrays()
    cache, given = KeyValueCache(N), key.copy()
    cache.append(key, value)
    first = cache.attend(query)
    key[:] = np.nan
    assert_same_bits(cache.attend(query), first)
    assert_same_bits(cache.attend(query[:, -1:]), dot_product.forward(query[:, -1:], given, value)[0])


def test_one_query_without_an_axis_is_the_last() -> None:
    query, key, value = (x[0] for x in arrays())
    cache = KeyValueCache(N)
    cache.append(key, value)
    assert_same_bits(cache.attend(query[-1]), dot_product.forward(query[-1], key, value)[0])


def test_groups_of_heads_share_keys_by_broadcasting() -> None:
    query, key, value = normal(0, 2, 3, 5, 4), normal(1, 2, 1, 5, 4), normal(2, 2, 1, 5, 3)  # 2 groups of 3 heads
    cache = KeyValueCache(8, page_size=2)
    cache.append(key[..., :4, :], value[..., :4, :])
    cache.append(key[..., 4:, :], value[..., 4:, :])
    expected, _ = dot_product.forward(query, key, value, is_causal=True)
    assert_close(cache.attend(query), expected, 1e-15)


def test_turned_keys_that_are_kept_are_those_of_one_pass() -> None:
    query, key, value = (x[0] for x in arrays())
    expected, _ = dot_product.forward(rotary.forward(query)[0], rotary.forward(key)[0], value, is_causal=True)
    cache = KeyValueCache(5 * N, page_size=7)
    for i in range(N):
        cache.append(rotary.forward(key[i : i + 1], [i])[0], value[i : i + 1])
        assert_close(cache.attend(rotary.forward(query[i : i + 1], [i])[0])[0], expected[i], 1e-13)


def test_each_path_of_a_tree_is_the_text_that_it_continues() -> None:
    query, key, value = (x[0, :14] for x in arrays())
    parents = np.array([-1, 0, 0, 1, 1, 2, -1, 6])  # eight drafts behind six tokens
    mask = np.hstack([np.ones((8, 6), bool), masks.tree(parents)])
    for page_size in (None, 3):
        cache = KeyValueCache(14, page_size=page_size)
        cache.append(key[:6], value[:6])
        cache.append(key[6:], value[6:])
        output = cache.attend(query[6:], mask=mask)
        for node in range(8):
            path = [6 + k for k in np.flatnonzero(masks.tree(parents)[node])]
            text = [*range(6), *path]
            alone, _ = dot_product.forward(query[text], key[text], value[text], is_causal=True)
            assert_close(output[node], alone[-1], 1e-15)


def test_packed_sequences_are_each_alone() -> None:
    query, key, value = arrays()
    lengths = [5, 1, 10, 7]
    segments = np.repeat(range(4), lengths)
    mask = masks.packed(segments)
    output, cache = dot_product.forward(query, key, value, mask=mask, is_causal=True)
    d_output = normal(3, *output.shape)
    gradients = dot_product.backward(d_output, cache)
    for k in range(4):
        own = segments == k
        alone, of_alone = dot_product.forward(*(x[:, own] for x in (query, key, value)), is_causal=True)
        assert_close(output[:, own], alone, 1e-15)
        found = dot_product.backward(d_output[:, own], of_alone)
        for name in ("query", "key", "value"):
            assert np.abs(getattr(gradients, name)[:, own] - getattr(found, name)).max() <= 1e-14


ONE = np.ones((1, 2))


@each(
    ("call", "error", "message"),
    [
        (lambda: KeyValueCache(0), ValueError, "capacity must be at least 1, not 0"),
        (lambda: KeyValueCache(2.0), TypeError, "capacity must be an integer, not float"),  # type: ignore[arg-type]
        (lambda: KeyValueCache(2, page_size=0), ValueError, "page_size must be at least 1, not 0"),
        (lambda: KeyValueCache(2, window=3), TypeError, r"window must be a pair \(left, right\), not 3"),  # type: ignore[arg-type]
        (lambda: KeyValueCache(2, window=(-1, 0)), ValueError, "left must be at least 0, not -1"),
        (lambda: KeyValueCache(5, window=(5, 0)), ValueError, r"capacity must be at least left \+ 1 = 6, not 5"),
        (lambda: KeyValueCache(2).attend(ONE), ValueError, "there are 1 queries, but 0 keys"),
    ],
)
def test_caches_that_cannot_be_are_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        call()


@each(
    ("key", "value", "error", "message"),
    [
        (np.ones((2, 2)), np.ones((2, 2)), ValueError, r"there is room for 1 more keys, not 2 \(capacity=2\)"),
        (np.ones(2), ONE, ValueError, r"key must have at least two axes, .*\(key\.shape=\(2,\)\)"),
        (np.ones((0, 2)), ONE, ValueError, "key and value must be of one length: there are 0 keys and 1 values"),
        (ONE.astype(int), ONE, TypeError, "key must hold floating-point numbers, not int64"),
        (ONE, ONE.astype(np.float32), TypeError, "value must be of float64, as what was appended first, not float32"),
        (np.ones((1, 3)), ONE, ValueError, r"key must have the shape \(t, 2\) \(key\.shape=\(1, 3\)\)"),
        (ONE, np.ones((4, 1, 2)), ValueError, r"value must have the shape \(t, 2\) \(value\.shape=\(4, 1, 2\)\)"),
    ],
)
def test_what_cannot_be_appended_is_refused_and_changes_nothing(
    key: Array, value: Array, error: type[Exception], message: str
) -> None:
    cache = KeyValueCache(2)
    cache.append(ONE, ONE)
    with pytest.raises(error, match=f"^{message}"):
        cache.append(key, value)
    assert_same_bits(cache.attend(ONE), ONE)
    assert cache.length == 1


def test_queries_that_look_back_to_what_is_gone_are_refused() -> None:
    cache = KeyValueCache(6, window=(5, 0))
    cache.append(np.ones((9, 2)), np.ones((9, 2)))
    cache.attend(np.ones((1, 2)))
    with pytest.raises(
        ValueError, match=r"^2 queries at once look back to key 2, and what is before key 3 has been over"
    ):
        cache.attend(np.ones((2, 2)))
    with pytest.raises(
        ValueError, match=r"^mask must have a column for each of the 9 keys so far \(mask\.shape=\(6,\)\)"
    ):
        cache.attend(np.ones(2), mask=np.ones(6, bool))
    assert repr(cache) == "<KeyValueCache of 6 keys, 9 appended>"


def latent_arrays(d_r: int = 2) -> tuple[Array, ...]:
    shapes = ((2, 3, N, 4), (2, 3, N, d_r), (2, N, 5), (2, N, d_r), (3, 5, 4), (3, 5, 6))
    return tuple(normal(seed, *shape) for seed, shape in enumerate(shapes))


def decoded_latents(cache: KeyValueCache, chunks: list[int], d_r: int = 2, **options: Any) -> Array:
    query, query_rotary, latents, key_rotary, w_key, w_value = latent_arrays(d_r)
    rows, start = [], 0
    for count in chunks:
        some = slice(start, start + count)
        cache.append(latents[:, some], key_rotary[:, some])
        turned = query_rotary[:, :, some] if d_r else None
        of_chunk = of_rows(options, start, start + count)
        rows.append(cache.attend_latent(query[:, :, some], turned, w_key, w_value, **of_chunk))
        start += count
    return np.concatenate(rows, axis=-2)


@each("kind", CACHES)
@each("chunks", [[1] * N, [7, 1, 1, 9, 5], [N]])
@each("absorbed", [True, False])
def test_latents_token_by_token_are_the_whole_causal_pass(kind: str, chunks: list[int], absorbed: bool) -> None:
    expected, _ = latent.forward(*latent_arrays(), is_causal=True)
    assert_close(decoded_latents(KeyValueCache(**CACHES[kind]), chunks, absorbed=absorbed), expected, 1e-14)


@each("kind", ROLLING)
def test_latents_that_a_window_has_passed_are_overwritten(kind: str) -> None:
    expected, _ = latent.forward(*latent_arrays(), mask=masks.sliding_window(N, left=5))
    assert_close(decoded_latents(KeyValueCache(**ROLLING[kind]), [1] * N), expected, 1e-14)


@each(
    "options",
    [
        {"scale": 0.3, "softcap": 1.5, "sink": normal(5, 3)},
        {"mask": normal(6, N, N) < 0.7, "bias": normal(7, 3, N, N)},
        {"bias": biases.shaw(normal(7, 5, 6))},
        {"bias": biases.alibi(normal(7, 3))},
    ],
)
def test_latents_take_the_options_of_attention(options: dict[str, Any]) -> None:
    expected, _ = latent.forward(*latent_arrays(), is_causal=True, **options)
    assert_close(decoded_latents(KeyValueCache(N), [9, 1, N - 10], **options), expected, 1e-14)


def test_latents_may_be_without_positions() -> None:
    query, _, latents, _, w_key, w_value = latent_arrays()
    expected, _ = latent.forward(query, None, latents, None, w_key, w_value, is_causal=True)
    assert_close(decoded_latents(KeyValueCache(N), [N - 1, 1], d_r=0), expected, 1e-14)


def test_a_cache_of_latents_keeps_as_many_numbers_as_the_page_says() -> None:
    query, query_rotary, latents, key_rotary, w_key, w_value = latent_arrays()
    cache, of_heads = KeyValueCache(N), KeyValueCache(N)
    cache.append(latents, key_rotary)
    key = np.concatenate([latents[:, None] @ w_key, np.broadcast_to(key_rotary[:, None], (2, 3, N, 2))], axis=-1)
    of_heads.append(key, latents[:, None] @ w_value)
    numbers = [sum(x.size for x in (kept._key, kept._value) if x is not None) // (2 * N) for kept in (cache, of_heads)]
    assert numbers == [5 + 2, 3 * (4 + 2 + 6)]
    both = np.concatenate([query, query_rotary], axis=-1)
    last = cache.attend_latent(query[..., -1:, :], query_rotary[..., -1:, :], w_key, w_value)
    assert_close(of_heads.attend(both[..., -1:, :]), last, 1e-14)


def test_a_query_without_latents_is_refused() -> None:
    query, query_rotary, *_, w_key, w_value = latent_arrays()
    with pytest.raises(ValueError, match=f"^there are {N} queries, but 0 keys"):
        KeyValueCache(N).attend_latent(query, query_rotary, w_key, w_value)
