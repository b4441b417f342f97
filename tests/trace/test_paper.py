"""Steps are printed in columns, and fit their paper."""

import pytest
from helpers import each

from attention_np import trace
from attention_np._lib.text import width_of

from .traced import OPS, SENTENCE, every_op


@every_op
@each(
    ("sentence", "is_causal", "width"),
    [(SENTENCE, True, 100), ("严谨地思考很难", False, 44)],
    long=[(SENTENCE, True, 64), ("Internationalisation is hard for everybody, " * 3, False, 64)],
)
def test_the_paper_is_never_wider_than_it_is(op: str, sentence: str, is_causal: bool, width: int) -> None:
    lines = OPS[op](sentence, is_causal=is_causal).text(width).split("\n")
    assert max(map(width_of, lines)) <= width
    assert not any(line != line.rstrip() for line in lines)


def test_a_step_prints_its_number_name_shape_tags_formula_and_table() -> None:
    text = trace.dot_product(["a", "b"], d=1, seed=3, is_causal=True).text()
    start = text.index("6. weights")
    assert text[start : text.index("7. output")].split("\n") == [
        "6. weights, A: 2 x 2                                             (dot-product.3)",
        "    Softmax makes the scores of one query positive and lets them sum to one. The",
        "    sum below the line runs over the keys, so every query has its own:",
        "    A_ij = e^S_ij/(sum_l e^S_il) = softmax_j(S_ij)",
        "    A_22 = exp(-1.5)/(exp(1.5) + exp(-1.5)) = 0.047",
        "",
        "           a      b",
        "    a  1.000  0.000",
        "    b  0.953  0.047",
        "",
        "",
    ]


def test_columns_stand_below_each_other_whatever_the_letters() -> None:
    lines = OPS["dot_product"]("Transformer改变了AI").text().split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith("5. scores"))
    head = lines.index("", start) + 1
    table = lines[head : head + 6]
    assert table[1].split()[0] == "transf.."
    assert len({width_of(line) for line in table}) == 1


def test_a_token_that_ends_a_line_does_not_break_the_table() -> None:
    broken, plain = (trace.dot_product(["a", token], d=1).text() for token in ("\n", "b"))
    assert r"\n" in broken
    assert broken.count("\n") == plain.count("\n")


def test_no_zero_has_a_sign() -> None:
    texts = [OPS[op](SENTENCE, is_causal=is_causal).text() for op in OPS for is_causal in (True, False)]
    numbers = [word for text in texts for word in text.split()]
    assert "0.000" in numbers
    assert not {"-0.0", "-0.00", "-0.000"} & set(numbers)


def test_an_all_zero_array_prints_as_zeros() -> None:
    alone = trace.dot_product("hello")  # one key: its weight is 1, whatever the score
    assert not alone["dL/dQ"].array.any()
    assert alone.text().count("hello  0.0  0.0  0.0  0.0") == 2


def test_each_step_comes_after_what_it_is_made_of() -> None:
    symbols = [step.symbol for step in trace.dot_product(SENTENCE).steps]
    assert symbols.index("r") < symbols.index("dL/dS")
    symbols = [step.symbol for step in trace.of("linear_attention", SENTENCE).steps]
    assert symbols[6:11] == ["R(t)", "M", "U", "S(t)", "O"]
    assert symbols.index("D(t)") < symbols.index("W") < symbols.index("E(t)")


def test_all_inputs_are_printed_and_nothing_grows_by_a_decay() -> None:
    steps = trace.of("linear_attention", SENTENCE)
    assert set(steps["beta"].array.round(9)) <= {0.4, 0.6, 0.8}
    assert steps["g"].array.max() <= 0 > steps["g"].array.min()


def test_tables_of_many_tokens_are_the_first_and_the_last_and_say_so() -> None:
    text = trace.additive("a b c d e 🎉").text()
    assert [label for label in ("a", "b", "c", "e", "🎉") if f"    i = {label}:\n" in text] == ["a", "b", "🎉"]
    assert "    i = 3 to 5: left out here\n" in text
    assert "left out" not in trace.additive("a b c d").text()


def test_a_trace_has_as_many_features_as_it_was_asked_for() -> None:
    assert trace.of("rotary", "a b", d=4)["X"].shape == (2, 4)
    with pytest.raises(ValueError, match="d must be a multiple of 2 here, not 3"):
        trace.of("rotary", "a b", d=3)
