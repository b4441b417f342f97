"""The steps of a trace are those of the op, of the equations that they name, and of the paper that they print on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_np import additive, cli, dot_product, masks, multi_head, trace
from attention_np._lib.text import width_of
from attention_np.derivation import Page, PageCheck, read_page
from attention_np.derivation.environment import Environment, Tensor
from attention_np.derivation.evaluate import evaluate
from attention_np.derivation.names import parse_name
from attention_np.derivation.record import Scope
from attention_np.derivation.statements import chains, read_statement
from attention_np.derivation.values import Value
from attention_np.gradcheck.agreement import relative_error

PAGES = Path(__file__).parents[1] / "derivations"
SENTENCE = "The cat sat on the mat"
OPS: dict[str, Callable[..., trace.Trace]] = {
    "dot_product": trace.dot_product,
    "additive": trace.additive,
    "multi_head": trace.multi_head,
}
HIDDEN = -1000.0  # added to a score, it hides a pair: the exponential of it is zero

both_kinds = pytest.mark.parametrize("is_causal", [False, True], ids=["all see all", "causal"])
every_op = pytest.mark.parametrize("op", OPS)

COTANGENT = {  # the axes of the gradient of the output, where a page draws it
    "softmax": ("n", "m"),
    "additive": ("n", parse_name("d_v")),
    "multi-head": ("n", parse_name("d_o")),
}

# Where a page has no bias that could hide a pair, it is given one.
WITH_A_BIAS = {
    "additive": (
        ("  \\beta: [h]\n", "  \\beta: [h]\n  B: [n, m]\n"),
        (r"S_{ij} = \sum_u w_u T_{iju}" + "\n", r"S_{ij} = \sum_u w_u T_{iju} + B_{ij}" + "\n"),
    ),
    "multi_head": (
        ("  X: [n, d_x]\n", "  X: [n, d_x]\n  \\beta: [n, n]\n"),
        (r"\bar Q^{(h)}_{ia} \bar K^{(h)}_{ka}" + "\n", r"\bar Q^{(h)}_{ia} \bar K^{(h)}_{ka} + \beta_{ik}" + "\n"),
    ),
}


def page_of(name: str) -> Page:
    file = PAGES / f"{name.replace('-', '_')}.md"
    text = file.read_text(encoding="utf-8")
    for before, after in WITH_A_BIAS.get(file.stem, ()):
        assert text.count(before) == 1
        text = text.replace(before, after)
    return read_page(file, text)


def on_these_inputs(name: str, arrays: dict[str, np.ndarray]) -> PageCheck:
    """The page with these arrays in place of random ones; what it defines is evaluated on them."""
    page = page_of(name)
    check = PageCheck(page, draws=1)
    scope = check.scope
    keys = {key: free.axes for key, free in page.header.tensors.items()}
    keys.setdefault(page.header.cotangent, COTANGENT.get(name, ()))
    sizes = {
        axis: size
        for key, axes in keys.items()
        if key in arrays
        for axis, size in zip(axes, arrays[key].shape, strict=True)
    }
    values = {
        key: Tensor(arrays[key] if key in arrays else np.zeros([sizes.get(axis, 1) for axis in axes]), axes, 1.0)
        for key, axes in keys.items()
        if key in arrays or (set(axes) <= set(sizes) and not key.startswith("\\dot"))
    }
    environments = check._environments(scope.names, scope.definitions, sizes, values)
    check.scope = Scope(scope.names, scope.definitions, environments, sizes, values)
    check.run()
    return check


def sides_of(check: PageCheck, tag: str, axes: str) -> list[list[np.ndarray]]:
    """For each statement of the equation: what its sides come to, over `axes` as far as these are written out."""
    (equation,) = [equation for equation in check.page.equations if equation.tag == tag]
    (environment,) = check.scope.environments
    environment.arithmetic.steps = 0
    found = []
    for chain in chains(equation.text):
        statement = read_statement(chain, check.scope.names)
        sides = [side for side in statement.sides if side is not None]
        found.append([as_array(environment, evaluate(environment, side), axes) for side in sides])
    return found


def as_array(environment: Environment, value: Value, axes: str) -> np.ndarray:
    names = tuple(sorted(value.names, key=lambda name: (axes + name).index(name)))
    array = environment.arithmetic.spread(value, names)
    return array[..., 0] if value.shape[1:] == ("1",) else array


def inputs_of(steps: trace.Trace, is_causal: bool) -> dict[str, np.ndarray]:
    """The arrays of the op's page, by its names: those that are given, and the gradient of the output."""
    named = {step.symbol: step.array for step in steps.steps if step.part == "given" or step.symbol == "G"}
    n = len(steps.tokens)
    named["B"] = np.where(masks.causal(n) if is_causal else True, np.zeros((n, n)), HIDDEN)
    if steps.op == "additive":
        named["\\beta"] = named.pop("beta")
    if steps.op == "multi_head":
        num_heads = len(steps["A(h)"].array)
        named |= {f"\\bar W^{letter}": multi_head.split_heads(named[f"W^{letter}"], num_heads) for letter in "KV"}
        named |= {f"X^{letter}": named["X"] for letter in "QKV"} | {"\\beta": named["B"]}
    return {parse_name(name): array for name, array in named.items()}


def softmax_inputs(steps: trace.Trace, head: int | None, is_causal: bool) -> dict[str, np.ndarray]:
    of_head = "" if head is None else "(h)"
    n = len(steps.tokens)
    mask = masks.causal(n) if is_causal else np.ones((n, n), bool)
    scores, d_weights = steps[f"S{of_head}"].array, steps[f"dL/dA{of_head}"].array
    if head is not None:
        scores, d_weights = scores[head], d_weights[head]
    return {"S": np.where(mask, scores, HIDDEN), "M": mask.astype(float), "G": d_weights}


@both_kinds
@every_op
def test_each_step_is_what_the_equations_that_it_names_come_to_on_these_inputs(op: str, is_causal: bool) -> None:
    steps = OPS[op](SENTENCE, is_causal=is_causal)
    op_page = on_these_inputs(op.replace("_", "-"), inputs_of(steps, is_causal))
    heads: list[int | None] = list(range(len(steps["A(h)"].array))) if op == "multi_head" else [None]
    softmaxes = [on_these_inputs("softmax", softmax_inputs(steps, head, is_causal)) for head in heads]
    seen = masks.causal(len(steps.tokens)) if is_causal else np.array(True)
    for step in steps.steps:
        for tag in step.tags:
            if tag.startswith("softmax."):
                arrays = [step.array] if heads == [None] else list(step.array)
                found = [(page, array, step.axes[-array.ndim :]) for page, array in zip(softmaxes, arrays, strict=True)]
            else:
                found = [(op_page, step.array, step.axes)]
            for page, array, axes in found:
                only = seen if step.name.startswith("scores") else np.array(True)  # a hidden score is any number
                assert any(all(agrees(side, array, only) for side in sides) for sides in sides_of(page, tag, axes)), (
                    f"({tag}) does not come to step {step.symbol}"
                )


def agrees(side: np.ndarray, array: np.ndarray, only: np.ndarray) -> bool:
    if side.shape != array.shape:
        return False
    shown = np.broadcast_to(only, array.shape)
    return relative_error(side[shown], array[shown])[0] < 1e-13


@both_kinds
@every_op
def test_every_step_but_the_given_ones_names_an_equation_and_no_step_comes_twice(op: str, is_causal: bool) -> None:
    steps = OPS[op](SENTENCE, is_causal=is_causal).steps
    assert all(bool(step.tags) == bool(step.formula) == (step.part != "given") for step in steps)
    assert len({step.symbol for step in steps}) == len(steps)
    assert all(len(step.axes) == step.array.ndim for step in steps)
    assert all(step.sentence.endswith(".") for step in steps)


def test_the_steps_are_the_arrays_of_the_op() -> None:
    steps = trace.dot_product(SENTENCE, is_causal=True)
    output, cache = dot_product.forward(*(steps[name].array for name in "QKV"), is_causal=True)
    gradients = dot_product.backward(steps["G"].array, cache)
    expected = {"S": cache.scores, "A": cache.weights, "O": output}
    expected |= {"dL/dQ": gradients.query, "dL/dK": gradients.key, "dL/dV": gradients.value}
    for symbol, array in expected.items():
        assert np.array_equal(steps[symbol].array, array), symbol
    assert np.array_equal(steps["S'"].array, np.where(masks.causal(6), cache.scores, -np.inf))


def test_the_steps_of_additive_attention_are_the_arrays_of_the_op() -> None:
    steps = trace.additive(SENTENCE, is_causal=True)
    arrays = [steps[name].array for name in ("Q", "K", "V", "W^Q", "W^K", "w", "beta")]
    output, cache = additive.forward(*arrays, mask=masks.causal(6))
    gradients = additive.backward(steps["G"].array, cache)
    symbols = ("dL/dQ", "dL/dK", "dL/dV", "dL/dW^Q", "dL/dW^K", "dL/dw", "dL/dbeta")
    expected = dict(zip(symbols, gradients, strict=True)) | {"T": cache.hidden, "O": output}
    for symbol, array in expected.items():
        assert np.array_equal(steps[symbol].array, array), symbol


def test_the_steps_of_multi_head_attention_are_the_arrays_of_the_op() -> None:
    steps = trace.multi_head(SENTENCE, d=6, num_heads=3, is_causal=True)
    x, parameters = steps["X"].array, multi_head.Parameters(*(steps[f"W^{name}"].array for name in "QKVO"))
    output, cache = multi_head.forward(x, x, x, parameters, num_heads=3, is_causal=True)
    gradients = multi_head.backward(steps["G"].array, cache)
    expected = {f"dL/dX^{letter}": array for letter, array in zip("QKV", gradients, strict=False)}
    expected |= {f"dL/dW^{letter}": array for letter, array in zip("QKVO", gradients.parameters, strict=False)}
    expected |= {"A(h)": cache.weights, "C": cache.combined, "Y": output}
    for symbol, array in expected.items():
        assert np.array_equal(steps[symbol].array, array), symbol


@every_op
@pytest.mark.parametrize("sentence", [SENTENCE, "hello", "我爱自然语言处理"])
def test_the_gradients_are_held_against_numerical_ones(op: str, sentence: str) -> None:
    assert 0 <= OPS[op](sentence).error < 1e-13


def test_a_wrong_gradient_shows_in_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    right = dot_product.backward
    monkeypatch.setattr(dot_product, "backward", lambda *given: right(*given)._replace(key=-right(*given).key))
    assert trace.dot_product(SENTENCE).error > 0.1


@every_op
def test_the_same_sentence_gives_the_same_trace_and_another_seed_another(op: str) -> None:
    assert str(OPS[op](SENTENCE)) == str(OPS[op](SENTENCE))
    assert str(OPS[op](SENTENCE)) != str(OPS[op](SENTENCE, seed=1))


def test_the_numbers_are_the_same_on_every_machine() -> None:
    assert trace.dot_product("The cat")["Q"].array.tolist() == [[-1.5, -1.0, -2.0, 0.5], [-0.5, -0.5, 2.0, 0.0]]


def test_equal_tokens_have_equal_rows() -> None:
    steps = trace.dot_product(SENTENCE)  # "the" comes twice
    for symbol in ("Q", "K", "V", "S", "O"):
        assert np.array_equal(steps[symbol].array[0], steps[symbol].array[4])


def test_tokens_are_taken_as_they_are_and_a_sentence_is_split() -> None:
    assert trace.dot_product("Transformer改变了AI").tokens == ("transformer", "改", "变", "了", "ai")
    assert trace.dot_product(["New York", "is"]).tokens == ("New York", "is")


@both_kinds
@every_op
@pytest.mark.parametrize("sentence", [SENTENCE, "严谨地思考很难", "Internationalisation is hard for everybody, " * 3])
@pytest.mark.parametrize("width", [64, 100])
def test_the_paper_is_never_wider_than_it_is(op: str, is_causal: bool, sentence: str, width: int) -> None:
    text = OPS[op](sentence, is_causal=is_causal).text(width)
    assert max(map(width_of, text.split("\n"))) <= width
    assert not any(line != line.rstrip() for line in text.split("\n"))


def test_a_step_prints_its_number_name_shape_tags_formula_and_table() -> None:
    text = trace.dot_product(["a", "b"], d=1, seed=3, is_causal=True).text()
    start = text.index("8. Weights")
    assert text[start : text.index("9. Output")].split("\n") == [
        "8. Weights, A: 2 x 2                                 (dot-product.3) (softmax.9)",
        "    Each is divided by the sum of its row, so that the weights of a query sum to",
        "    one.",
        "    A_ij = E_ij / sum_l E_il",
        "",
        "           a      b",
        "    a  1.000  0.000",
        "    b  0.953  0.047",
        "",
        "",
    ]


def test_columns_stand_below_each_other_whatever_the_letters() -> None:
    lines = trace.dot_product("Transformer改变了AI").text().split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith("4. Scores"))
    head = lines.index("", start) + 1
    table = lines[head : head + 6]
    assert table[1].split()[0] == "transf.."
    assert len({width_of(line) for line in table}) == 1


def test_a_token_that_ends_a_line_does_not_break_the_table() -> None:
    broken, plain = (trace.dot_product(["a", token], d=1).text() for token in ("\n", "b"))
    assert r"\n" in broken
    assert broken.count("\n") == plain.count("\n")


def test_an_unknown_symbol_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(KeyError, match="'X' is not among the symbols of this trace: Q, K, V, S, mu"):
        trace.dot_product(SENTENCE)["X"]


@pytest.mark.parametrize(
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


@both_kinds
@every_op
def test_the_command_prints_the_trace(op: str, is_causal: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", SENTENCE, "--op", op, *(["--causal"] if is_causal else [])]) == 0
    printed = capsys.readouterr().out
    assert printed == OPS[op](SENTENCE, is_causal=is_causal).text(80)
    assert ("causal" in printed.split("\n")[0]) == is_causal


def test_the_command_takes_words_without_quotes_and_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", *SENTENCE.split(), "--op", "multi_head", "--d", "6", "--heads", "3", "--seed", "2"]) == 0
    assert capsys.readouterr().out == trace.multi_head(SENTENCE, d=6, num_heads=3, seed=2).text(80)
    assert cli.main(["trace", SENTENCE, "--op", "additive", "--hidden", "2"]) == 0
    assert capsys.readouterr().out == trace.additive(SENTENCE, hidden=2).text(80)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["?!"], "attention-np: the sentence has no words: '?!'\n"),
        (["a b", "--heads", "2"], "attention-np: --heads is an option of multi_head, not of dot_product\n"),
        (["a b", "--op", "multi_head", "--hidden", "2"], "attention-np: --hidden is an option of additive, not of"),
        (["a b", "--op", "multi_head", "--heads", "3"], "attention-np: num_heads=3 must divide d=4\n"),
        (["a b", "--d", "0"], "attention-np: d must be at least 1, not 0\n"),
        (["a b", "--op", "blockwise"], "invalid choice: 'blockwise'"),
        ([], "the following arguments are required: SENTENCE"),
    ],
)
def test_arguments_that_cannot_be_used_end_the_command_with_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["trace", *arguments]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert not printed.out


def test_a_terminal_without_the_letters_gets_question_marks_and_no_traceback() -> None:
    command = [sys.executable, "-m", "attention_np", "trace", "我爱", "--d", "1"]
    done = subprocess.run(command, capture_output=True, env={"PYTHONIOENCODING": "ascii"}, check=False)
    assert done.returncode == 0, done.stderr
    assert b"    ?   " in done.stdout


def test_a_trace_needs_numpy_alone() -> None:
    script = (
        "import sys\n"
        "from attention_np import trace\n"
        "assert 'L by the complex step' in str(trace.additive('I love AI')).replace('\\n', ' ')\n"
        "assert not {'matplotlib', 'rich', 'lark', 'yaml', 'scipy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_a_tag_is_not_broken_between_lines() -> None:
    assert not any(line.endswith("-") for line in trace.multi_head(SENTENCE).text(60).split("\n"))


def test_no_zero_has_a_sign() -> None:
    texts = [OPS[op](SENTENCE, is_causal=True, seed=seed).text() for op in OPS for seed in range(3)]
    numbers = [word for text in texts for word in text.split()]
    assert "0.000" in numbers
    assert not {"-0.0", "-0.00", "-0.000"} & set(numbers)


def test_an_all_zero_array_prints_as_zeros() -> None:
    alone = trace.dot_product("hello")  # one key: its weight is 1, whatever the score
    assert not alone["dL/dQ"].array.any()
    assert alone.text().count("hello  0.0  0.0  0.0  0.0") == 2
