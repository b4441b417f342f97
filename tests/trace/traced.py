"""The ops and sentences that are traced."""

from collections.abc import Callable
from functools import cache

import pytest

from attention_np import trace

SENTENCE = "The cat sat on the mat"
OPS: dict[str, Callable[..., trace.Trace]] = {
    "dot_product": cache(trace.dot_product),
    "additive": cache(trace.additive),
    "multi_head": cache(trace.multi_head),
}
every_op = pytest.mark.parametrize("op", OPS)
