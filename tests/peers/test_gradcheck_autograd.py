"""Autograd's gradients checked with one call: those that are right hold, and planted errors are found and named."""

from typing import Any

import numpy as np
import pytest
from helpers import normal

from attention_np.gradcheck.autograd import check

REASON = "the adapter for autograd needs autograd: pip install attention-np[peers]"
autograd = pytest.importorskip("autograd", reason=REASON)
numpy = pytest.importorskip("autograd.numpy", reason=REASON)
builtins = pytest.importorskip("autograd.builtins", reason=REASON)


@pytest.mark.parametrize("types", [(dict, list), (builtins.dict, builtins.list)], ids=["Python's", "autograd's"])
def test_all_floating_outputs_count_nested_ones_too(types: Any) -> None:
    as_dict, as_list = types

    def function(x: Any, wrong: bool) -> Any:
        square = x**2
        last = autograd.tracer.getval(square) if wrong else square
        return as_dict({"sum": numpy.sum(x), "rest": as_list([last, 7.0])})

    assert check(function, (normal(0, 3), False)).ok
    assert not check(function, (normal(0, 3), True)).ok


def test_a_single_number_comes_out_and_an_input_of_no_axis_goes_in() -> None:
    check(lambda x, y: x * numpy.sum(y), {"x": np.array(2.0), "y": normal(0, 3)}).raise_if_failed()
