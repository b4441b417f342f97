import math

import numpy as np
import pytest
from helpers import assert_close, assert_same_bits, each, normal

from attention_np import dot_product, positions


@each(("n", "d"), [(5, 6), (3, 7), (1, 1), (0, 4), (4, 0)])
@each("base", [10000.0, 100.0])
def test_the_table_is_that_of_the_paper(n: int, d: int, base: float) -> None:
    table = positions.sinusoidal(n, d, base=base)
    assert table.shape == (n, d)
    for i in range(n):
        for c in range(d):
            angle = i / base ** ((c - c % 2) / d)
            assert abs(table[i, c] - (math.cos(angle) if c % 2 else math.sin(angle))) <= 1e-14


def test_attention_sees_the_order_of_tokens_with_positions_or_a_causal_mask_and_not_without() -> None:
    x, order = normal(0, 6, 8), np.array([3, 0, 5, 1, 4, 2])
    table = positions.sinusoidal(6, 8)
    for added, is_causal in ((0, False), (table, False), (0, True)):
        one, _ = dot_product.forward(*[x + added] * 3, is_causal=is_causal)
        other, _ = dot_product.forward(*[x[order] + added] * 3, is_causal=is_causal)
        if np.ndim(added) or is_causal:
            assert np.abs(other - one[order]).max() > 0.1
        else:
            assert_close(other, one[order], 1e-15)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^n must be at least 0, not -1"):
        positions.sinusoidal(-1, 4)
    with pytest.raises(TypeError, match=r"^d must be an integer, not float"):
        positions.sinusoidal(1, 4.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^base must be finite and above 1"):
        positions.sinusoidal(1, 4, base=0)
    table = positions.sinusoidal(2, 4)
    assert_same_bits(table[0], np.array([0.0, 1, 0, 1]))
