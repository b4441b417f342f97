from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits

from attention_np._lib.dropout import Draws, as_probability, multipliers

ROWS, COLUMNS, KEY = 6, 21, 2**62 + 5
WHOLE = multipliers(KEY, 0.4, (ROWS, COLUMNS), np.dtype(float))


@pytest.mark.parametrize("columns", [slice(0, 21), slice(0, 8), slice(3, 5), slice(7, 18), slice(8, 16), slice(20, 21)])
@pytest.mark.parametrize("rows", [slice(0, 6), slice(2, 5), slice(5, 6)])
def test_a_block_of_draws_is_that_of_the_whole(rows: slice, columns: slice) -> None:
    draws = Draws(KEY, 0.4, row=0, columns=COLUMNS, column=0)
    assert_same_bits(draws.block(rows, columns, np.dtype(float)), WHOLE[rows, columns])


def test_a_part_of_a_part_counts_from_its_own_first_row_and_column() -> None:
    part = Draws(KEY, 0.4, row=0, columns=COLUMNS, column=0).within(slice(1, 6), slice(2, 20))
    assert_same_bits(part.block(slice(1, 3), slice(4, 9), np.dtype(float)), WHOLE[2:4, 6:11])
    within = part.within(slice(2, 5), slice(3, 18))
    assert_same_bits(within.block(slice(1, 3), slice(4, 9), np.dtype(float)), WHOLE[4:6, 9:14])


@pytest.mark.parametrize("rng", [True, False, np.True_, "a", -1, 1.5, {}])
def test_what_is_no_seed_is_refused(rng: Any) -> None:
    with pytest.raises(TypeError, match=r"^rng must be a seed or a numpy\.random\.Generator, not "):
        as_probability(0.5, rng)


def test_a_probability_or_a_seed_of_many_digits_is_shown_in_part() -> None:
    for dropout_p in (10**5000, 10**300, -(10**18)):
        with pytest.raises(ValueError, match=r"^dropout_p must be ") as caught:
            as_probability(dropout_p, 0)
        assert len(str(caught.value)) < 120
    with pytest.raises(TypeError, match=r"^rng must be a seed") as caught_seed:
        as_probability(0.5, "x" * 10**6)  # type: ignore[arg-type]
    assert len(str(caught_seed.value)) < 120
