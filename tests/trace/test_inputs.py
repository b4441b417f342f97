"""The sentence of a trace, as tokens and as numbers."""

from typing import Any

import numpy as np
from helpers import each

from attention_np import trace

from .traced import OPS, SENTENCE


def test_the_same_sentence_gives_the_same_trace_and_another_seed_another() -> None:
    again, other = (str(trace.dot_product(SENTENCE, seed=seed)) for seed in (0, 1))
    assert str(OPS["dot_product"](SENTENCE, is_causal=False)) == again != other


def test_the_numbers_are_the_same_on_every_machine() -> None:
    assert trace.dot_product("The cat")["Q"].array.tolist() == [[-1.5, -1.0, -2.0, 0.5], [-0.5, -0.5, 2.0, 0.0]]


@each("symbol", ["Q", "K", "V", "S", "O"])
def test_equal_tokens_have_equal_rows(symbol: Any) -> None:
    steps = OPS["dot_product"](SENTENCE, is_causal=False)  # "the" comes twice
    assert np.array_equal(steps[symbol].array[0], steps[symbol].array[4])


def test_tokens_are_taken_as_they_are_and_a_sentence_is_split() -> None:
    assert OPS["dot_product"]("Transformer改变了AI").tokens == ("transformer", "改", "变", "了", "ai")
    assert trace.dot_product(["New York", "is"]).tokens == ("New York", "is")
