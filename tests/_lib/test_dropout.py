from typing import Any

import numpy as np
import pytest
from helpers import each

from attention_np._lib.dropout import as_probability


@each("rng", [True, False, np.True_, "a", -1, 1.5, {}])
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
