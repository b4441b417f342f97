import numpy as np
import pytest
from helpers import assert_same_bits

from attention_np._dropout import Draws, multipliers

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
