import numpy as np
import pytest
from helpers import assert_close, normal

from attention_np._products import TERMS, long_product


@pytest.mark.parametrize("m", [0, 1, TERMS - 1, TERMS, TERMS + 1, 2 * TERMS, 2 * TERMS + 1, 5 * TERMS])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_product_in_parts_has_all_terms_of_its_sums_once(batch: tuple[int, ...], m: int) -> None:
    a, b = normal(0, *batch, 3, m), normal(1, *batch, m, 2)
    assert_close(long_product(a, b), np.einsum("...ij,...jk->...ik", a, b), 1e-13)
