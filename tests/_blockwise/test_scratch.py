"""Memory that kernels use again: nothing depends on what it held."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from helpers import Patch, Shape, each, normal

from attention_np import blockwise, dot_product, rules
from attention_np._blockwise import kernels, scratch


def test_memory_that_is_in_use_is_not_given_out_again() -> None:
    with scratch.own():
        outer = scratch.array("scores", (3, 4), np.dtype(float))
        with scratch.own():
            assert not np.shares_memory(outer, scratch.array("scores", (3, 4), np.dtype(float)))
        assert scratch.array("scores", (3, 4), np.dtype(float)) is outer
    with scratch.own():
        again = scratch.array("scores", (3, 4), np.dtype(float))
        smaller = scratch.array("scores", (2, 4), np.dtype(float))
        assert scratch.array("scores", (3, 4), np.dtype(float)) is again
        assert scratch.array("scores", (2, 4), np.dtype(float)) is smaller
    with scratch.own():
        assert np.shares_memory(again, scratch.array("scores", (2, 2), np.dtype(float)))


def test_threads_of_the_next_call_use_the_memory_of_the_last() -> None:
    def address() -> int:
        with scratch.own():
            return int(scratch.array("scores", (3, 4), np.dtype(float)).ctypes.data)

    def in_a_thread_of_its_own() -> int:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(address).result()

    assert address() == in_a_thread_of_its_own() == in_a_thread_of_its_own()


def test_memory_that_is_kept_is_no_more_than_was_asked_for() -> None:
    with scratch.own():
        for n in range(1, 200):
            scratch.array("some", (200 - n, 2), np.dtype(np.float32))
        kept = scratch._of.taken[-1]
        assert kept.buffers["some"].nbytes == 199 * 2 * 4
        assert len(kept.views) <= 64


def test_memory_that_is_kept_for_the_next_call_is_bounded(monkeypatch: Patch) -> None:
    monkeypatch.setattr(scratch, "KEPT", 100)
    monkeypatch.setattr(scratch, "usable_cores", lambda: 2)
    scratch._spare.clear()

    def use(size: int, others: int) -> None:
        with scratch.own():
            scratch.array("scores", (size,), np.dtype(np.uint8))
            if others:
                use(size, others - 1)

    use(101, 0)
    assert not scratch._spare
    use(100, 4)
    assert [arrays.size for arrays in scratch._spare] == [100, 100]


def test_attention_between_two_steps_of_attention_changes_nothing(monkeypatch: Patch) -> None:
    query, key, value, d_output = (normal(seed, 2, 9, 4) for seed in range(4))
    expected, cache = blockwise.forward(query, key, value, block_size=4)
    gradients = blockwise.backward(d_output, cache)
    exponential, inside = kernels._exponential(np.dtype(float)), []

    def interrupted(x: Any, out: Any) -> Any:
        """As the handler of a signal might do it."""
        if not inside:
            inside.append(True)
            _, other = blockwise.forward(-query, -key + 1, value, block_size=4)
            blockwise.backward(-d_output, other)
            inside.clear()
        return exponential.function(x, out=out)

    monkeypatch.setattr(kernels, "_exponential", lambda _: exponential._replace(function=interrupted))
    output, cache = blockwise.forward(query, key, value, block_size=4)
    np.testing.assert_array_equal(output, expected)
    for found, wanted in zip(blockwise.backward(d_output, cache)[:3], gradients[:3], strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.fixture
def used_memory(monkeypatch: Patch) -> None:
    """Memory whose numbers are not set is not zero."""
    empty = np.empty

    def filled(*args: Any, **options: Any) -> Any:
        array = empty(*args, **options)
        if array.dtype.kind in "fu":
            array.fill(np.nan if array.dtype.kind == "f" else 255)  # bytes that are not numbers, either
        return array

    monkeypatch.setattr(np, "empty", filled)


@pytest.mark.usefixtures("used_memory")
@each(
    "options",
    [{}, {"mask": rules.padding([4, 0])}, {"mask": rules.padding(0)}, {"is_causal": True}, {"bias": normal(9, 3, 4)}],
)
@each("shapes", [((2, 3, 2), (2, 4, 2)), ((3, 2), (2, 4, 2)), ((2, 3, 2), (4, 2))])
@each("name", ["query", "key", "value"])
def test_nothing_depends_on_what_memory_held(options: dict[str, Any], shapes: tuple[Shape, Shape], name: Any) -> None:
    query, key = (normal(i, *shape) for i, shape in enumerate(shapes))
    output, cache = blockwise.forward(query, key, key, **options, block_size=2)
    mask = options.get("mask")
    given = {**options, "mask": mask.mask(3, 4) if mask is not None else None}
    expected, other = dot_product.forward(query, key, key, **given)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-14)
    found, wanted = blockwise.backward(output, cache), dot_product.backward(output, other)
    np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=0, atol=1e-14, err_msg=name)


@pytest.mark.usefixtures("used_memory")
@each("leading", [(), (2,), (0,)])
@each(("n", "m"), [(3, 0), (0, 4), (3, 4), (0, 0)])
def test_what_nothing_is_added_to_is_zero(leading: Shape, n: int, m: int) -> None:
    query, key, value = np.ones((n, 2)), np.ones((m, 2)), np.ones((*leading, m, 5))
    output, cache = blockwise.forward(query, key, value)
    found = blockwise.backward(output, cache)
    if not output.size or not m:
        assert (output == 0).all()
        for gradient in found[:3]:
            assert (gradient == 0).all()
    assert np.isfinite(found.query).all()
