"""Calls of blockwise attention that several of its tests make, and dot-product attention to hold them against."""

import functools
import itertools
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
from helpers import SHAPES, Array, Case, Results, assert_alike, assert_same_bits, attentions, normal, run

from attention_np import blockwise, dot_product, rules
from attention_np._blockwise.problem import Problem


def arrays(name: str = "four queries, five keys") -> dict[str, Array]:
    return attentions(SHAPES[name], d_k=3, d_v=2)["dot_product"].inputs


def large_arrays() -> dict[str, Array]:
    """Of one block of a rule, and yet more than is done without a thread of its own, or as a whole."""
    return {"query": normal(0, 200, 3), "key": normal(1, 380, 3), "value": normal(2, 380, 2)}


def batch_of(n: int = 6, m: int = 7) -> dict[str, Array]:
    return {"query": normal(0, 2, n, 3), "key": normal(1, 2, m, 3), "value": normal(2, 2, m, 4)}


def a_mask(n: int = 6, m: int = 7) -> Array:
    """Most pairs, but none of key 3 and none of query 2."""
    mask = np.random.default_rng(5).random((n, m)) < 0.7
    mask[:, 0] = True
    mask[:, 3] = False
    mask[2] = False
    return mask


def results(op: Any, inputs: dict[str, Array], d_output: Any = None, **options: Any) -> Results:
    return run(Case(op, inputs, options), d_output)


def assert_same_as_dot_product(
    inputs: dict[str, Array], block_size: Any = None, tolerance: float = 1e-14, d_output: Any = None, **options: Any
) -> None:
    ours = results(blockwise, inputs, d_output, block_size=block_size, **options)
    mask = options.pop("mask", None)
    if isinstance(mask, rules.Rule):
        mask = mask.mask(max(inputs["query"].shape[:-1], default=1), inputs["key"].shape[-2])
    theirs = results(dot_product, inputs, d_output=d_output, mask=mask, **options)
    expected = dict(theirs.items())
    for name, array in ours.items():
        assert_alike(array, expected[name], tolerance, name)
    np.testing.assert_array_equal((ours.output == 0).all(-1), (theirs.output == 0).all(-1))
    nothing = ours.cache.logsumexp == -np.inf
    if nothing.shape == inputs["query"].shape[:-1]:
        assert (ours.gradients["query"][nothing] == 0).all()
    np.testing.assert_allclose(
        ours.cache.logsumexp, theirs.cache.softmax.logsumexp[..., 0], rtol=100 * tolerance, atol=100 * tolerance
    )


def some_problem() -> tuple[dict[str, Array], dict[str, Any]]:
    inputs = {
        "query": normal(0, 3, 1100, 16),
        "key": normal(1, 1, 1200, 16),
        "value": normal(2, 1, 1200, 8),
        "bias": normal(3, 1200),
        "sink": normal(5, 3),
    }
    mask = rules.sliding_window(left=700) & rules.padding([1200, 900, 0])
    return inputs, {"mask": mask, "dropout_p": 0.2, "rng": 3}


def all_results(**how: Any) -> list[Array]:
    inputs, options = some_problem()
    output, cache = blockwise.forward(**inputs, **options, **how)
    d_output = normal(4, *output.shape)
    gradients = blockwise.backward(d_output, cache, **how)
    moved = blockwise.jvp(cache, query=inputs["query"], **how)
    d_d_output, twice = blockwise.double_backward(gradients, d_output, cache, **how)
    results = output, cache.logsumexp, *gradients, moved, d_d_output, *twice
    return [x for x in results if x is not None]


@functools.cache
def expected_bits() -> list[Array]:
    return all_results(workers=1)


def assert_expected_bits(**how: Any) -> None:
    for array, expected in zip(all_results(**how), expected_bits(), strict=True):
        assert_same_bits(array, expected)


class Acting(rules.Rule):
    """Does something whenever it is asked about a block; all pairs attend."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self.act = act

    def block(self, rows: slice, columns: slice) -> bool:
        self.act(rows, columns)
        return True


def failing() -> Acting:
    """A rule that fails at the third block that is asked for."""
    asked = itertools.count(1)

    def act(*_: slice) -> None:
        if next(asked) >= 3:
            raise RuntimeError("no third block")

    return Acting(act)


class AtOnce(Executor):
    """Does each task at once, as `run` does it."""

    def __init__(self, run: Callable[..., Any] = lambda function, *args: function(*args)) -> None:
        self.run, self.tasks = run, 0

    def submit(self, function: Any, /, *args: Any, **_: Any) -> Future[Any]:
        self.tasks += 1
        future: Future[Any] = Future()
        try:
            future.set_result(self.run(function, *args))
        except OSError as error:
            future.set_exception(error)
        return future


def arranged(n: int, m: int, leading: tuple[int, ...] = (), features: int = 1, **options: Any) -> Problem:
    """A problem of that size, to be looked at; its arrays take no memory."""
    query, key, value = (np.broadcast_to(np.float32(0), (*leading, size, features)) for size in (n, m, m))
    given = dict.fromkeys(("bias", "sink", "mask", "softcap", "dropout_key", "block_size"))
    given |= {"scale": 1.0, "dropout_p": 0.0}
    return Problem(query=query, key=key, value=value, dtype=np.dtype(np.float32), **{**given, **options})
