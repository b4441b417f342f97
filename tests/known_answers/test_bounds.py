"""The bounds are met by what is right, and are tight."""

from pathlib import Path
from typing import Any

import numpy as np
from helpers import Array, each

from attention_np import dot_product, known_answers
from attention_np.known_answers.formats import dtype_of

from .sets import Sets, standard


def test_bounds_are_within_a_few_hundred_times_the_usual_error(answers: Sets) -> None:
    ratios = []
    for case in known_answers.load(answers["dot_product"], skip=["large scores"]):
        found = known_answers.of_op(dot_product)(dict(case.inputs), dict(case.options))
        for name, answer in case.answers.items():
            finite = np.isfinite(answer)
            error = np.where(finite, found[name].astype(np.float64) - np.where(finite, answer, 0), 0)
            if error.any():
                ratios.append(np.sqrt(np.mean(case.bounds[name] ** 2) / np.mean(error**2)))
    assert len(ratios) > 100
    assert np.median(ratios) < 200
    assert np.quantile(ratios, 0.95) < 1000


def test_a_plain_implementation_gives_the_answers(answers: Sets) -> None:
    skip = ["hidden non-finite", "weights by"]
    report = known_answers.verify(standard, answers["dot_product"], dtypes=["float32"], skip=skip)
    report.raise_if_failed()
    assert len(report.skipped) < len({x.case for x in report})


@each("dtype", ["float16", "bfloat16"])
def test_what_may_be_rounded_to_a_half_type_between_products_is_within_the_bounds(few: Path, dtype: str) -> None:
    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        single = {name: x if x.dtype == np.bool_ else x.astype(np.float32) for name, x in inputs.items()}
        return standard(single, options, between=lambda x: x.astype(dtype_of(dtype)).astype(np.float32))

    known_answers.verify(function, few, dtypes=[dtype], skip=["hidden non-finite"]).raise_if_failed()
