"""One entry of a step, with numbers in the place of its letters."""

import re
from math import exp, sqrt

import numpy as np
from helpers import each

from attention_np import cases, trace

from .traced import SENTENCE


def worth(entry: str) -> tuple[float, float]:
    """What the formula of an entry comes to, and the number behind it."""
    _, text, said = entry.rsplit(" = ", 2)
    text = re.sub(r"(?<=[\d)]) \(", " * (", text.replace("^", "**"))
    names = {"exp": exp, "sqrt": sqrt, "log": np.log, "cos": np.cos, "sin": np.sin, "__builtins__": {}}
    return float(eval(text, names)), float(said)  # noqa: S307 - of our own digits


def test_a_gradient_of_a_score_is_its_weight_times_what_its_gradient_has_above_the_mean() -> None:
    steps = trace.dot_product("I love AI", d=2)
    assert steps["dL/dS"].entry == "dL/dS_33 = 0.525 (-1.0 + 0.917) = -0.044"
    assert steps["O"].entry == "O_32 = 0.368 * 1.5 + 0.107 * (-1.5) + 0.525 * 1.0 = 0.917"
    assert steps["dL/dB"].entry == ""  # a score's gradient is handed on as it is
    assert "    dL/dS_33 = 0.525 (-1.0 + 0.917) = -0.044\n" in steps.text()


@each("op", cases.OPS)
def test_every_entry_in_numbers_comes_to_what_stands_behind_it(op: str) -> None:
    steps = trace.multi_head("I love AI") if op == "multi_head" else trace.of(op, "I love AI")
    entries = [step.entry for step in steps.steps if step.entry and "..." not in step.entry and "erf" not in step.entry]
    assert entries
    for entry in entries:
        come, said = worth(entry)
        factors = 1 + max(abs(float(number)) for number in re.findall(r"\d+\.\d+", entry))
        assert abs(come - said) < 0.004 * factors, entry  # three decimals


def test_a_long_sum_says_that_it_goes_on() -> None:
    entry = trace.dot_product(SENTENCE)["A"].entry
    assert entry.count(" + ") == 3
    assert " + ... + " in entry


def test_an_entry_of_causal_attention_sees_every_token() -> None:
    steps = trace.dot_product("I love AI", is_causal=True)
    assert steps["A"].entry.startswith("A_33 = exp(")
    assert "inf" not in steps["A"].entry
