"""The matrix products of attention alone, by `np.matmul`: no attention that is made of them can take less time.

Forward has two products: scores and output. With backward there are seven: those two, the scores once more instead of
keeping them, the gradient of the weights, and the gradients of value, query and key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np

from attention_np import rules
from attention_np._blockwise.problem import Problem
from attention_np._blockwise.tiles import slices
from benchmarks._contenders import Array, Contender, Inputs
from benchmarks._machine import blas_threads
from benchmarks._timing import cores
from benchmarks.checkers import installed

__all__ = ["floors", "in_blocks", "whole"]


def floors(inputs: Inputs) -> Iterator[Contender]:
    """The ways to take the products; the floor is the faster."""
    if not inputs.is_causal:  # whole matrices have the products that a causal mask rules out, too
        yield whole(inputs)
    if installed("threadpoolctl"):
        yield in_blocks(inputs)


def whole(inputs: Inputs) -> Contender:
    """Each product of all heads by one call, with the threads of BLAS."""
    query, key, value, d_output, _ = inputs
    square = np.empty((*query.shape[:-1], key.shape[-2]), query.dtype)  # (..., n, n)
    narrow = np.empty_like(query)  # (..., n, d)

    def forward() -> None:
        np.matmul(query, key.swapaxes(-1, -2), out=square)
        np.matmul(square, value, out=narrow)

    def both() -> None:
        forward()
        np.matmul(query, key.swapaxes(-1, -2), out=square)
        np.matmul(square.swapaxes(-1, -2), d_output, out=narrow)
        np.matmul(d_output, value.swapaxes(-1, -2), out=square)
        np.matmul(square, key, out=narrow)
        np.matmul(square.swapaxes(-1, -2), query, out=narrow)

    return Contender("floor, whole", forward, both, inputs.query.dtype)


def in_blocks(inputs: Inputs) -> Contender:
    """Blocks of the sizes that ours takes, on a thread for each core, with BLAS held to one thread.

    With a causal mask, those that it does not rule out.
    """
    heads = list(zip(*(x.reshape(-1, *x.shape[-2:]) for x in inputs[:4]), strict=True))
    n, d = inputs.query.shape[-2:]
    forward_size, backward_size = _block_sizes(inputs)
    scratch = _Scratch(inputs.query.dtype)

    def columns_of(rows: slice, size: int) -> Iterator[slice]:
        return slices(0, rows.stop if inputs.is_causal else n, size)

    def multiply_forward(head: tuple[Array, ...], rows: slice) -> None:
        query, key, value, _ = head
        for columns in columns_of(rows, forward_size[1]):
            square = scratch("square", len(query[rows]), len(key[columns]))
            narrow = scratch("narrow", len(square), d)
            np.matmul(query[rows], key[columns].T, out=square)
            np.matmul(square, value[columns], out=narrow)

    def multiply_backward(head: tuple[Array, ...], rows: slice) -> None:
        query, key, value, d_output = head
        for columns in columns_of(rows, backward_size[1]):
            square = scratch("square", len(query[rows]), len(key[columns]))
            narrow, across = scratch("narrow", len(square), d), scratch("across", square.shape[1], d)
            np.matmul(query[rows], key[columns].T, out=square)
            np.matmul(square.T, d_output[rows], out=across)
            np.matmul(d_output[rows], value[columns].T, out=square)
            np.matmul(square, key[columns], out=narrow)
            np.matmul(square.T, query[rows], out=across)

    def share(multiply: Callable[[tuple[Array, ...], slice], None], height: int) -> None:
        parts = [(head, rows) for head in heads for rows in slices(0, n, height)]
        list(_pool().map(multiply, *zip(*parts, strict=True)))

    def forward() -> None:
        with blas_threads(1):
            share(multiply_forward, forward_size[0])

    def both() -> None:
        forward()
        with blas_threads(1):
            share(multiply_backward, backward_size[0])

    return Contender("floor, blocks", forward, both, inputs.query.dtype)


def _block_sizes(inputs: Inputs) -> list[tuple[int, int]]:
    """How many queries and keys ours looks at together, forward and backward."""
    query, key, value, _, is_causal = inputs
    rule = rules.causal() if is_causal else None
    problem = Problem(
        query=query,
        key=key,
        value=value,
        bias=None,
        sink=None,
        mask=rule,
        scale=query.dtype.type(1),
        softcap=None,
        dropout_p=0.0,
        dropout_key=None,
        block_size=None,
        dtype=query.dtype,
    )
    return [problem.tile(places[0]).block_size for places in (problem.strips(), problem.squares())]


class _Scratch(threading.local):
    """Arrays of each thread that are used again and again, and so are in its core's cache."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.arrays: dict[tuple[str, int, int], Array] = {}

    def __call__(self, name: str, rows: int, columns: int) -> Array:
        place = name, rows, columns
        if place not in self.arrays:
            self.arrays[place] = np.empty((rows, columns), self.dtype)
        return self.arrays[place]


@lru_cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores())  # kept: to start threads is not part of the products
