"""A trace is an op's page, carried out on a sentence and held against the op; and it fits its paper."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Patch, Printed, assert_same_bits, each, leaves, normal

from attention_np import cases, chain, cli, dot_product, masks, multi_head, rms_norm, softmax, trace
from attention_np._lib import pages
from attention_np._lib.text import width_of
from attention_np.gradcheck.verdict.judging import relative_error
from attention_np.trace import _pages
from attention_np.trace._plain import formula, prose

SENTENCE = "The cat sat on the mat"
OPS: dict[str, Callable[..., trace.Trace]] = {
    "dot_product": cache(trace.dot_product),
    "additive": cache(trace.additive),
    "multi_head": cache(trace.multi_head),
}

both_kinds = each("is_causal", [True], long=[False])
every_op = pytest.mark.parametrize("op", OPS)


@both_kinds
@every_op
def test_the_steps_are_the_arrays_of_the_op(op: str, is_causal: bool) -> None:
    steps = OPS[op](SENTENCE, is_causal=is_causal)
    found, module = {step.name: step.array for step in steps.steps if step.name}, cases.OPS[op]
    inputs = {name: found[name] for name in signature(module.forward).parameters if name in found}
    options: dict[str, Any] = {"mask": masks.causal(6)} if is_causal else {}
    if op == "multi_head":
        assert np.array_equal(found["query"], found["key"])  # self-attention
        inputs["parameters"] = multi_head.Parameters(*(found[name] for name in multi_head.Parameters._fields[:8]))
        options["num_heads"] = 2
        assert np.array_equal(steps["dL/dX"].array, found["d_query"] + found["d_key"] + found["d_value"])
    output, cache = module.forward(**inputs, **options)
    intermediate = {name: getattr(cache, name) for name in ("weights", "hidden", "combined") if hasattr(cache, name)}
    gradients = leaves(module.backward(found["d_output"], cache))
    expected = {"output": output, **intermediate, **{f"d_{path.rpartition('.')[2]}": x for path, x in gradients}}
    assert {"d_query", "d_value", "weights"} <= expected.keys() & found.keys()
    for name in (expected.keys() & found.keys()) - {"d_b_key"}:  # which is zero but for rounding
        assert found[name].shape == expected[name].shape, name
        assert relative_error(found[name], expected[name])[0] < 1e-14, name
    if op != "multi_head":
        assert np.array_equal(np.isinf(found["scores"]), ~masks.causal(6) & is_causal)


@both_kinds
@every_op
def test_every_step_but_the_given_ones_names_an_equation_and_no_step_comes_twice(op: str, is_causal: bool) -> None:
    steps = OPS[op](SENTENCE, is_causal=is_causal).steps
    assert all(bool(step.tags) == bool(step.formula) == (step.part != "given") for step in steps)
    assert len({step.symbol for step in steps}) == len(steps)
    assert all(len(step.axes) == step.array.ndim for step in steps)
    assert [step.part for step in steps] == sorted(
        (step.part for step in steps), key=["given", "forward", "backward"].index
    )


@each("op", cases.OPS)
@each("sentence", ["I love AI"], long=["我爱自然语言处理"])
def test_a_trace_of_any_op_ends_with_its_output_and_gradients_and_agrees_with_it(op: str, sentence: str) -> None:
    steps = trace.of(op, sentence)
    inputs = {step.name for step in steps.steps if step.part == "given" and step.name != "d_output"} - {""}
    assert {"output", "d_output", *(f"d_{name}" for name in inputs)} <= {step.name for step in steps.steps}
    assert 0 < steps.error < 1e-13


def test_a_wrong_equation_of_the_page_shows_in_the_check(tmp_path: Path, monkeypatch: Patch) -> None:
    page = (_pages.PAGES / "dot_product.md").read_text(encoding="utf-8")
    right, wrong = r"{\partial L}{\partial A} = G V^\top", r"{\partial L}{\partial A} = - G V^\top"
    assert page.count(right) == 1
    (tmp_path / "dot_product.md").write_text(page.replace(right, wrong), encoding="utf-8")
    monkeypatch.setattr(_pages, "PAGES", tmp_path)
    assert trace.dot_product(SENTENCE).error > 0.1


def test_a_wrong_gradient_shows_in_the_check(monkeypatch: Patch) -> None:
    right = dot_product.backward
    monkeypatch.setattr(dot_product, "backward", lambda *given: right(*given)._replace(key=-right(*given).key))
    assert trace.dot_product(SENTENCE).error > 1e-3


def test_the_same_sentence_gives_the_same_trace_and_another_seed_another() -> None:
    again, other = (str(trace.dot_product(SENTENCE, seed=seed)) for seed in (0, 1))
    assert str(OPS["dot_product"](SENTENCE, is_causal=False)) == again != other


def test_the_numbers_are_the_same_on_every_machine() -> None:
    assert trace.dot_product("The cat")["Q"].array.tolist() == [[-1.5, -1.0, -2.0, 0.5], [-0.5, -0.5, 2.0, 0.0]]


def test_equal_tokens_have_equal_rows() -> None:
    steps = OPS["dot_product"](SENTENCE, is_causal=False)  # "the" comes twice
    for symbol in ("Q", "K", "V", "S", "O"):
        assert np.array_equal(steps[symbol].array[0], steps[symbol].array[4])


def test_tokens_are_taken_as_they_are_and_a_sentence_is_split() -> None:
    assert OPS["dot_product"]("Transformer改变了AI").tokens == ("transformer", "改", "变", "了", "ai")
    assert trace.dot_product(["New York", "is"]).tokens == ("New York", "is")


@every_op
@each(
    ("sentence", "is_causal", "width"),
    [(SENTENCE, True, 100), ("严谨地思考很难", False, 64)],
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
        "",
        "           a      b",
        "    a  1.000  0.000",
        "    b  0.953  0.047",
        "",
        "",
    ]


def test_the_page_is_named_where_its_reader_has_it(monkeypatch: Patch) -> None:
    assert " derivations/dot_product.md, by " in trace.dot_product("a b").text(width=200)
    installed = pages.PACKAGE / "derivations"
    monkeypatch.setattr(pages, "PAGES", installed)
    assert f" {installed / 'dot_product.md'}, by " in trace.dot_product("a b").text(width=200)


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


def test_an_unknown_symbol_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(KeyError, match="'X' is not among the symbols of this trace: Q, K, V, B, S, A"):
        OPS["dot_product"](SENTENCE, is_causal=False)["X"]


@each(
    ("given", "options", "error", "reason"),
    [
        ("", {}, ValueError, "the sentence has no words: ''"),
        ([], {}, ValueError, "tokens must hold at least one word"),
        ([1, 2], {}, TypeError, "tokens must be a sentence or a list of words, not of int"),
        ("a b", {"d": 0}, ValueError, "d must be at least 1, not 0"),
        ("a b", {"d": 65}, ValueError, "d must be at most 64, to be written down, not 65"),
        ("a b", {"num_heads": 3}, ValueError, "num_heads=3 must divide d=4"),
        ("a b", {"is_causal": 1}, TypeError, "is_causal must be True or False, not 1"),
        ("a b", {"seed": 0.5}, TypeError, "seed must be an integer, not float"),
    ],
)
def test_what_cannot_be_traced_is_refused_in_a_sentence(
    given: Any, options: dict[str, Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        trace.multi_head(given, **options)


@each(("op", "is_causal"), [("dot_product", True)], long=[("additive", False), ("multi_head", False)])
def test_the_command_prints_the_trace(op: str, is_causal: bool, capsys: Printed) -> None:
    assert cli.main(["trace", SENTENCE, "--op", op, *(["--causal"] if is_causal else [])]) == 0
    printed = capsys.readouterr().out
    assert printed == OPS[op](SENTENCE, is_causal=is_causal).text(80)
    assert ("causal" in printed.split("\n")[0]) == is_causal


def test_the_command_takes_words_without_quotes_and_every_option(monkeypatch: Patch, capsys: Printed) -> None:
    asked: list[Any] = []
    for op in OPS:
        monkeypatch.setattr(trace, op, lambda *given, op=op, **options: asked.append((op, *given, options)) or traced)
    traced = OPS["dot_product"](SENTENCE, is_causal=True)
    assert cli.main(["trace", *SENTENCE.split(), "--op", "multi_head", "--d", "6", "--heads", "3", "--seed", "2"]) == 0
    assert cli.main(["trace", SENTENCE, "--op", "additive", "--hidden", "2"]) == 0
    assert capsys.readouterr().out == 2 * traced.text(80)
    assert asked == [
        ("multi_head", SENTENCE, {"d": 6, "num_heads": 3, "seed": 2, "is_causal": False}),
        ("additive", SENTENCE, {"d": 4, "hidden": 2, "seed": 0, "is_causal": False}),
    ]


@each(
    ("arguments", "reason"),
    [
        (["?!"], "attention-np: the sentence has no words: '?!'\n"),
        (["a b", "--heads", "2"], "attention-np: --heads is an option of multi_head, not of dot_product\n"),
        (["a b", "--op", "multi_head", "--hidden", "2"], "attention-np: --hidden is an option of additive, not of"),
        (["a b", "--op", "multi_head", "--heads", "3"], "attention-np: num_heads=3 must divide d=4\n"),
        (["a b", "--d", "0"], "attention-np: d must be at least 1, not 0\n"),
        (["a b", "--op", "nothing"], "invalid choice: 'nothing'"),
        (["a b", "--op", "softmax", "--causal"], "attention-np: softmax makes no scores, of which is_causal"),
        ([], "the following arguments are required: SENTENCE"),
    ],
)
def test_arguments_that_cannot_be_used_end_the_command_with_2(
    arguments: list[str], reason: str, capsys: Printed
) -> None:
    assert cli.main(["trace", *arguments]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert not printed.out


def test_a_terminal_without_the_letters_gets_question_marks_and_no_traceback() -> None:
    command = [sys.executable, "-m", "attention_np", "trace", "我爱", "--d", "1"]
    done = subprocess.run(command, capture_output=True, env={"PYTHONIOENCODING": "ascii"}, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert b"    ?   " in done.stdout


def test_without_the_extra_that_reads_pages_a_trace_says_so(monkeypatch: Patch) -> None:
    for name in [name for name in sys.modules if name.startswith(("attention_np.derivation", "attention_np.trace._p"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lark", None)
    with pytest.raises(ImportError, match=r"pip install 'attention-np\[check\]'"):
        trace.dot_product(SENTENCE)


@each(
    ("latex", "text"),
    [
        (r"\frac{\partial L}{\partial S_{ij}} &= A_{ij} \left( G_{ij} - r_i \right)", "dL/dS_ij = A_ij (G_ij - r_i)"),
        (
            r"\frac{1}{\sqrt{d_k}} \sum_{i,j} \bar Q^{(h)}_{ia} W^{K(h)}_{ab}",
            "1/sqrt(d_k) sum_ij Q_bar(h)_ia W^K(h)_ab",
        ),
        (r"\frac{e^{S_{ij} - \mu_i}}{\sum_l e^{S_{il}}}", "(e^(S_ij - mu_i))/(sum_l e^S_il)"),
        (r"\mathrm{softmax}_j(K^\top) \odot \mathbf{1}_m", "softmax_j(K^T) * 1_m"),
        (r"\begin{aligned} a &= b \\ &= c, \qquad d \end{aligned}", "a = b\n= c\nd"),
        (r"K_{j,(h-1) d_k + a}", "K_{j, (h - 1) d_k + a}"),
        (r"\unreadable{%", r"\unreadable{%"),
    ],
)
def test_a_formula_in_plain_text(latex: str, text: str) -> None:
    assert formula(latex) == text


def test_a_paragraph_in_plain_text() -> None:
    text = "So it *is*: **twice** `x`, $\\partial L /\n\\partial X$, [its page](softmax.md), 2 * 3 * 4."
    assert prose(text) == "So it is: twice `x`, dL/dX, its page, 2 * 3 * 4."


def test_a_tag_is_not_broken_between_lines() -> None:
    assert not any(line.endswith("-") for line in OPS["multi_head"](SENTENCE, is_causal=False).text(60).split("\n"))


def test_no_zero_has_a_sign() -> None:
    texts = [OPS[op](SENTENCE, is_causal=is_causal).text() for op in OPS for is_causal in (True, False)]
    numbers = [word for text in texts for word in text.split()]
    assert "0.000" in numbers
    assert not {"-0.0", "-0.00", "-0.000"} & set(numbers)


def test_an_all_zero_array_prints_as_zeros() -> None:
    alone = trace.dot_product("hello")  # one key: its weight is 1, whatever the score
    assert not alone["dL/dQ"].array.any()
    assert alone.text().count("hello  0.0  0.0  0.0  0.0") == 2


def test_a_chain_is_traced_step_by_step_with_every_gradient() -> None:
    def layer(x: Any, w: Any) -> Any:
        y = chain.apply(rms_norm, x)
        return x + chain.apply(softmax, y @ w)

    inputs, d_output = {"x": normal(0, 2, 3), "w": normal(1, 3, 3)}, normal(2, 2, 3)
    steps = trace.chain(layer, inputs, d_output)
    output, cache = chain.forward(layer, inputs)
    assert_same_bits(steps["y4"].array, output)
    for name, gradient in chain.backward(d_output, cache).items():
        assert gradient is not None
        assert_same_bits(steps[f"dL/d{name}"].array, gradient)
    assert [step.formula for step in steps.steps if step.part == "forward"] == [
        "y1 = rms_norm(x)",
        "y2 = y1 @ w",
        "y3 = softmax(y2)",
        "y4 = x + y3",
    ]
    assert steps["dL/dx"].formula == "backward of step 1, rms_norm + backward of step 4, add"
    assert 0 < steps.error < 1e-14
    assert "y3 = softmax(y2)" in str(steps)
    assert trace.chain(layer, inputs)["dL/dy4"].array.any()


def test_the_trace_of_a_chain_sees_a_gradient_that_is_wrong(monkeypatch: Patch) -> None:
    monkeypatch.setattr(rms_norm, "backward", lambda d, cache: rms_norm.Gradients(d, None))
    layer = lambda x: chain.apply(rms_norm, x)  # noqa: E731
    assert trace.chain(layer, {"x": normal(0, 2, 3)}).error > 0.01
