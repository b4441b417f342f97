"""What holds of every attention: the numbers against 50 digits, all shapes and options, lengths of zero, refusals."""

import re
from collections.abc import Iterator
from inspect import signature
from typing import Any

import numpy as np
import pytest
from helpers import (
    ATTENTIONS,
    BIAS_SHAPES,
    BIASED,
    OPS,
    OPTIONS,
    SHAPES,
    SOME_HIDDEN,
    WIDTHS,
    Array,
    Case,
    Shape,
    assert_close,
    assert_gradients_close,
    assert_same_bits,
    attentions,
    each,
    leaves,
    map_arrays,
    normal,
    plain_case,
    plain_cases,
    random_parameters,
    reference,
    some_of,
    takes,
    tangents_of,
    weightings_of,
)

from attention_np import gradcheck
from attention_np.multi_head import Parameters

EACH_WIDTH_OTHERWISE = {"d_q": 3, "d_k": 2, "d_v": 6, "d_x": 3, "d_y": 2, "d_z": 5, "d_o": 7, "h": 4}


def options_for(op: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options as the op takes them: where there are heads, the scores of a mask have an axis for them."""
    mask = options.get("mask")
    if not takes(op, "num_heads") or np.ndim(mask) < 3:
        return options
    return {**options, "mask": mask[..., None, :, :]}


def every_case() -> Iterator[tuple[str, Case]]:
    for name, shapes in SHAPES.items():
        for op, case in attentions(shapes, **EACH_WIDTH_OTHERWISE).items():
            yield f"{op}, {name}", case
    for name, options in OPTIONS.items():
        for op, case in plain_cases(batch=(2,)).items():
            if op in ATTENTIONS and takes(op, *options):
                yield f"{op}, {name}", case._replace(options={**case.options, **options_for(op, options)})
    for op, case in attentions(SHAPES["a batch"]).items():
        for kind in weightings_of(op):
            more = options_for(op, {"weights_by": kind, "is_causal": True, "mask": SOME_HIDDEN})
            yield f"{op}, weights by {kind}", case._replace(options={**case.options, **more})
        for shape in [*BIAS_SHAPES, (2, 1, 4, 5), (2, 2, 4, 5)] if op in BIASED else []:
            if op == "multi_head" or len(shape) < 4:
                yield f"{op}, bias {shape}", case._replace(inputs={**case.inputs, "bias": normal(1, *shape)})
        for name, size in {"flat": 1e-3, "sharp": 30}.items():
            yield f"{op}, {name}", case._replace(inputs={**case.inputs, "query": size * case.inputs["query"]})
    few = SHAPES["four queries, five keys"]
    for hidden in (1, 9):
        yield f"additive, {hidden} hidden units", attentions(few, h=hidden)["additive"]
    without_b = attentions(few)["additive"]
    yield "additive, no b", without_b._replace(inputs={k: x for k, x in without_b.inputs.items() if k != "b"})
    heads = attentions(SHAPES["a batch"])["multi_head"]
    for absent in ("", "query key value", "key output", "query value output", "query key value output"):
        parameters = heads.inputs["parameters"]._replace(**{f"b_{name}": None for name in absent.split()})
        yield f"multi_head, no bias of {absent}", heads._replace(inputs={**heads.inputs, "parameters": parameters})
    for num_heads in (1, 4):
        yield f"multi_head, {num_heads} heads", heads._replace(options={"num_heads": num_heads})
    for name, mask in {
        "of heads": np.array([[[True]], [[False]]]),
        "of one": np.stack([SOME_HIDDEN, ~SOME_HIDDEN]),
    }.items():
        yield f"multi_head, mask {name}", heads._replace(options={"num_heads": 2, "mask": mask})
    for n, m in ((3, 6), (6, 3), (1, 4), (4, 1)):
        for op, case in attentions(((n,), (m,), (m,))).items():
            if op in BIASED:
                yield f"{op}, causal, {n} and {m}", case._replace(options={**case.options, "is_causal": True})
    for name, bias in {
        "hidden keys": np.array([0.0, -np.inf, 1.0, 0.5, -np.inf]),
        "hidden pairs": np.where(SOME_HIDDEN, 0.5, -np.inf),
        "limits": np.where(SOME_HIDDEN, 0.5, np.inf),
        "all hidden": np.array(-np.inf),
    }.items():
        for op, case in attentions(SHAPES["a batch"]).items():
            if op in BIASED:
                yield f"{op}, bias of {name}", case._replace(inputs={**case.inputs, "bias": bias})


CASES = dict(every_case())
EXACT = {name: case for name, case in CASES.items() if "dropout_p" not in case.options and "sharp" not in name}
every_attention = pytest.mark.parametrize("op", ATTENTIONS)


@every_attention
@each("name", *some_of(EXACT, 3))
def test_output_and_gradients_are_right_in_every_digit(op: str, name: str) -> None:
    if not name.startswith(f"{op}, "):
        return
    case = EXACT[name]
    output, cache = case.forward()
    d_output = normal(9, *output.shape)
    expected, expected_gradients = reference(case, d_output)
    assert_close(output, expected, 3e-15)
    gradients = dict(leaves(case.op.backward(d_output, cache)))
    assert set(gradients) == set(dict(leaves(case.inputs)))
    assert_gradients_close(gradients, expected_gradients, 2e-14)


@each("case", CASES)
def test_forward_mode_is_the_transpose_of_backward(case: str) -> None:
    op, (output, cache) = CASES[case].op, CASES[case].forward()
    d_output, tangents = normal(9, *output.shape), tangents_of(CASES[case])
    gradients = dict(leaves(op.backward(d_output, cache)))
    terms = [np.sum(gradients[name] * tangent) for name, tangent in leaves(tangents)]
    forwards = d_output * op.jvp(cache, **tangents)
    assert abs(sum(terms) - forwards.sum()) <= 2e-14 * max(np.abs(forwards).sum(), np.abs(terms).sum())


def assert_numerical(case: Case, method: str) -> None:
    report = gradcheck.check_op(case.op, case.inputs, method=method, **case.options)
    report.raise_if_failed()
    assert report["jvp"].max_relative_error <= 1e-15


@each("name", ["dot_product, everything", "additive, mask of pairs"])  # on which the others stand
def test_gradients_are_numerical_ones(name: str) -> None:
    assert_numerical(CASES[name], "complex-step")


# Blockwise attention is held against dot-product attention throughout; it and differences are looked at with one mask.
WITH_A_MASK = [f"{op}, mask of pairs" for op in ATTENTIONS]
NUMERICAL = [name for name in CASES if not name.startswith("blockwise") or name in WITH_A_MASK]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "method"), [*((n, "complex-step") for n in NUMERICAL), *((n, "central") for n in WITH_A_MASK)]
)
def test_gradients_of_every_case_are_numerical_ones(name: str, method: str) -> None:
    assert_numerical(CASES[name], method)


@every_attention
def test_of_complex_arrays_the_function_is_the_analytic_one_and_its_gradient_the_complex_derivative(op: str) -> None:
    plain = plain_case(op)
    case = plain.map(lambda x: x + 0.2j * normal(7, *x.shape))
    case = case._replace(options={**case.options, "mask": SOME_HIDDEN})
    output, cache = case.forward()
    d_output = normal(2, *output.shape) + 1j * normal(3, *output.shape)
    gradients = dict(leaves(case.op.backward(d_output, cache)))
    drawn = iter(range(4, 40))
    tangents = map_arrays(lambda x: normal(next(drawn), *x.shape) + 1j * normal(next(drawn), *x.shape), case.inputs)
    adjoint = sum((gradients[name] * x).sum() for name, x in leaves(tangents))
    assert abs((d_output * case.op.jvp(cache, **tangents)).sum() - adjoint) <= 1e-12 * abs(adjoint)
    for path, tangent in leaves(tangents):
        for unit in (1e-5, 1e-5j):  # of an analytic function the derivative is the same along both
            ends = []
            for step in (unit, -unit):
                names = iter([other for other, _ in leaves(case.inputs)])
                moved = case.map(lambda x, s=step, names=names: x + s * tangent if next(names) == path else x)  # noqa: B023
                ends.append(moved.forward()[0])
            numerical = (d_output * (ends[0] - ends[1])).sum() / (2 * unit)
            assert abs((gradients[path] * tangent).sum() - numerical) <= 1e-7 * max(abs(numerical), 1), path


ZERO: list[tuple[tuple[Shape, ...], dict[str, int]]] = [
    (((0,), (5,), (5,)), {}),
    (((4,), (0,), (0,)), {}),
    (((), (0,), (0,)), {}),
    (((0, 4), (0, 5), (0, 5)), {}),
    (((0, 4), (5,), (5,)), {}),
    (((2, 0), (2, 0), (2, 0)), {}),
    (((4,), (5,), (5,)), {"d_v": 0, "d_z": 0}),
    (((4,), (5,), (5,)), {"d_q": 0, "d_k": 0, "d_x": 0, "d_y": 0}),
    (((0,), (0,), (0,)), dict.fromkeys(WIDTHS, 0) | {"d_o": 4}),
    (((4,), (5,), (5,)), {"h": 0, "d_k": 0}),
    (((4,), (5,), (5,)), {"d_v": 0, "d_o": 0}),
]


@each(("shapes", "sizes"), ZERO)
@each(
    "options",
    [{}, {"is_causal": True}, {"mask": np.array(True)}, {"mask": np.array(False)}, {"dropout_p": 0.5, "rng": 0}],
)
@every_attention
def test_zero_lengths_give_results_of_the_right_shape(
    op: str, shapes: tuple[Shape, ...], sizes: dict[str, int], options: dict[str, Any]
) -> None:
    if not takes(op, *options):
        return
    case = attentions(shapes, **sizes)[op]
    inputs = {**case.inputs, **({"bias": np.array(0.5)} if op in BIASED else {})}
    case = Case(case.op, inputs, {**case.options, **options})
    output, cache = case.forward()
    query, key, value = (case.inputs[name].shape for name in ("query", "key", "value"))
    width = sizes.get("d_o", 4) if op == "multi_head" else value[-1]
    assert output.shape == (*np.broadcast_shapes(query[:-2], key[:-2], value[:-2]), *query[-2:-1], width)
    assert np.isfinite(output).all()
    assert case.op.jvp(cache, **case.inputs).shape == output.shape
    gradients = dict(leaves(case.op.backward(normal(9, *output.shape), cache)))
    for name, x in leaves(case.inputs):
        assert gradients[name].shape == x.shape
    if 0 in key[:-1]:
        of_nothing = case.inputs["parameters"].b_output if op == "multi_head" else np.zeros(width)
        assert_same_bits(output, np.broadcast_to(of_nothing, output.shape))
    if 0 in (*query[:-1], *key[:-1]):
        assert all((x == 0).all() for name, x in gradients.items() if name != "parameters.b_output")


@each("lengths", [{"n": 0}, {"m": 0}, {"batch": (0,)}])
@each("op", OPS)
def test_every_op_has_gradients_of_no_entries(op: str, lengths: dict[str, Any]) -> None:
    case = plain_case(op, **lengths)
    output, cache = case.forward()
    gradients = case.op.backward(output, cache)
    assert case.op.jvp(cache, **case.inputs).shape == output.shape
    d_d_output, second = case.op.double_backward(gradients, output, cache)
    assert d_d_output.shape == output.shape
    for found in (gradients, second):
        shapes = {name: x.shape for name, x in leaves(found)}
        assert all(shapes[name] == x.shape for name, x in leaves(case.inputs))


VAST = 10**15  # so many queries that no arithmetic on them could even allocate its result


def zeros(*shape: int, dtype: Any = float) -> Array:
    return np.broadcast_to(np.zeros((), dtype), shape)


def with_parameters(**changed: Any) -> dict[str, Any]:
    return {"parameters": random_parameters(0)._replace(**changed)}


RAGGED = [[1.0, 2.0], [1.0]]
FEW, BROADCAST = np.ones(4, bool), "must broadcast to the scores, whose shape is ({heads}{n}, 5)"
# Of ops that take an argument, what is refused: what is given, how the sentence begins, and whose shapes end it.
Refused = dict[str, list[tuple[dict[str, Any], str, str]]]
TYPES: Refused = {
    "query": [
        ({"query": zeros(5, 4, dtype=int)}, "query must hold floating-point numbers, not int64", "query"),
        ({"query": "query"}, "query must hold floating-point numbers, not <U5", "query"),
        ({"key": None}, "key must hold floating-point numbers, not object", "key"),
        ({"mask": zeros(5, dtype=int)}, "mask must be boolean, True where attending is allowed, not int64", "mask"),
        ({"mask": np.ones(5)}, "mask must be boolean, True where attending is allowed, not float64", "mask"),
    ],
    "bias": [
        ({"bias": zeros(5, dtype=int)}, "bias must hold floating-point numbers, not int64", "bias"),
        ({"dropout_p": "a"}, "dropout_p must be a number, not 'a'", ""),
        ({"dropout_p": None}, "dropout_p must be a number, not None", ""),
        ({"dropout_p": np.zeros(1)}, "dropout_p must be a number, not array", ""),
        ({"dropout_p": 0.5, "rng": 1.5}, "rng must be a seed or a numpy.random.Generator, not 1.5", ""),
        ({"dropout_p": 0.5, "rng": "a"}, "rng must be a seed or a numpy.random.Generator, not 'a'", ""),
        ({"is_causal": np.ones((3, 3), bool)}, "is_causal must be True or False, not array", ""),
        ({"is_causal": "no"}, "is_causal must be True or False, not 'no'", ""),
        ({"is_causal": 1}, "is_causal must be True or False, not 1", ""),
    ],
    "scale": [
        ({"scale": "a"}, "scale must be a number, not 'a'", ""),
        ({"scale": 1j}, "scale must be a number, not 1j", ""),
        ({"scale": True}, "scale must be a number, not True", ""),
    ],
    "softcap": [
        ({"softcap": "a"}, "softcap must be a number, not 'a'", ""),
        ({"softcap": np.ones(3)}, "softcap must be a number, not array", ""),
        ({"softcap": True}, "softcap must be a number, not True", ""),
    ],
    "sink": [
        ({"sink": 1}, "sink must hold floating-point numbers, not int64", "sink"),
        ({"sink": "a"}, "sink must hold floating-point numbers, not <U1", "sink"),
    ],
    "parameters": [
        (with_parameters(w_key=None), "parameters.w_key must hold floating-point numbers, not object", ""),
        ({"parameters": tuple(random_parameters(0))}, "parameters must be a multi_head.Parameters, not tuple", ""),
        ({"scale": np.ones(3)}, "scale must be a number, not array", ""),
        ({"num_heads": True}, "num_heads must be an integer, not True", ""),
        ({"num_heads": 1.5}, "num_heads must be an integer, not float", ""),
        ({"num_heads": "2"}, "num_heads must be an integer, not str", ""),
        ({"num_heads": None}, "num_heads must be an integer, not NoneType", ""),
    ],
}
OF_SCORES, OF_OUTPUT = "parameters.w_query parameters.w_key", "parameters.w_output parameters.w_value"
OF_QUERY = "parameters.w_query query"
VALUES: Refused = {
    "query": [
        ({"query": 1.0}, "query must have at least one axis, (..., n, features) or (features,)", "query"),
        ({"query": RAGGED}, "query must be an array of floating-point numbers: ", ""),
        ({"key": RAGGED}, "key must be an array of floating-point numbers: ", ""),
        ({"key": zeros(4)}, "key must have at least two axes, (..., m, features)", "key"),
        ({"value": zeros(4)}, "value must have at least two axes, (..., m, features)", "value"),
        ({"value": zeros(6, 4)}, "key and value must be of one length: there are 5 keys and 6 values", "key value"),
        (
            {"key": zeros(2, 5, 4), "value": zeros(3, 5, 4)},
            "the leading axes of query and key and value do not broadcast together",
            "query key value",
        ),
        ({"mask": FEW}, f"mask {BROADCAST}", "mask"),
    ],
    "bias": [
        ({"bias": tuple(RAGGED)}, "bias must be an array of floating-point numbers: ", ""),
        ({"bias": np.ones(4)}, f"bias {BROADCAST}", "bias"),
        ({"dropout_p": 1.0, "rng": 0}, "dropout_p must be at least 0 and less than 1, not 1.0", ""),
        ({"dropout_p": -0.1, "rng": 0}, "dropout_p must be at least 0 and less than 1, not -0.1", ""),
        ({"dropout_p": np.nan, "rng": 0}, "dropout_p must be at least 0 and less than 1, not nan", ""),
        ({"dropout_p": 0.5}, "dropout_p=0.5 needs an rng: a seed or a numpy.random.Generator", ""),
    ],
    "scale": [
        ({"scale": np.inf}, "scale must be finite, not inf", ""),
        ({"scale": np.nan}, "scale must be finite, not nan", ""),
    ],
    "softcap": [
        ({"softcap": 0.0}, "softcap must be above zero, not 0.0", ""),
        ({"softcap": -50}, "softcap must be above zero, not -50", ""),
        ({"softcap": np.nan}, "softcap must be finite, not nan", ""),
        ({"softcap": np.inf}, "softcap must be finite, not inf", ""),
    ],
    "sink": [
        ({"key": zeros(5, 3)}, "key has 3 features but query has 4", "key query"),
        ({"key": zeros(2, 5, 3), "value": zeros(5, 4)}, "key has 3 features but query has 4", "key query"),
        ({"mask": np.ones((2, 1, 5), bool)}, f"mask {BROADCAST}", "mask"),
        ({"bias": np.ones((1, 1, 5))}, f"bias {BROADCAST}", "bias"),
        ({"sink": RAGGED}, "sink must be an array of floating-point numbers: ", ""),
        ({"sink": np.ones(2)}, "sink must broadcast to the leading axes of the scores, whose shape is ()", "sink"),
    ],
    "w_score": [
        ({"w_query": zeros(2, 3)}, "w_query takes 2 features but query has 4", "w_query query"),
        ({"w_key": zeros(3, 3)}, "w_key takes 3 features but key has 4", "w_key key"),
        ({"w_query": zeros(3)}, "w_query must have two axes, (features in, features out)", "w_query"),
        ({"w_key": zeros(2, 4, 3)}, "w_key must have two axes, (features in, features out)", "w_key"),
        (
            {"w_key": zeros(4, 2)},
            "w_query and w_key must map to one number of hidden units, not to 3 and 2",
            "w_query w_key",
        ),
        ({"w_score": zeros(4)}, "w_score must have the shape (3,)", "w_score"),
        ({"w_score": zeros(3, 1)}, "w_score must have the shape (3,)", "w_score"),
        ({"b": zeros(1)}, "b must have the shape (3,)", "b"),
    ],
    "parameters": [
        (with_parameters(w_key=RAGGED), "parameters.w_key must be an array of floating-point numbers: ", ""),
        (with_parameters(w_query=zeros(3, 4)), "parameters.w_query takes 3 features but query has 4", OF_QUERY),
        ({"key": zeros(5, 3)}, "parameters.w_key takes 4 features but key has 3", "parameters.w_key key"),
        ({"value": zeros(5, 3)}, "parameters.w_value takes 4 features but value has 3", "parameters.w_value value"),
        (with_parameters(w_value=zeros(1, 4, 4)), "parameters.w_value must have two axes, (features in, ", ""),
        (
            with_parameters(w_key=zeros(4, 6)),
            "w_query and w_key must map to one number of features, not to 4 and 6",
            OF_SCORES,
        ),
        ({"num_heads": 3}, "num_heads=3 must divide the 8 features of parameters.w_query", "parameters.w_query"),
        ({"num_heads": 0}, "num_heads=0 must divide the 8 features", ""),
        (
            with_parameters(w_value=zeros(4, 3), w_output=zeros(3, 4)),
            "num_heads=2 must divide the 3 features of parameters.w_value",
            "parameters.w_value",
        ),
        (with_parameters(w_output=zeros(3, 4)), "w_output must take the 4 features that w_value gives", OF_OUTPUT),
        (with_parameters(w_output=zeros(4)), "w_output must take the 4 features that w_value gives", OF_OUTPUT),
        *(
            (with_parameters(**{b: zeros(1)}), f"parameters.{b} must have the shape (4,)", f"parameters.{b}")
            for b in Parameters._fields[4:8]
        ),
        ({"mask": np.ones((3, 1, 5), bool)}, f"mask {BROADCAST}", "mask"),
    ],
}
REFUSED = [
    (op, error, *refused)
    for op in ATTENTIONS
    for error, tables in ((TypeError, TYPES), (ValueError, VALUES))
    for argument, many in tables.items()
    if takes(op, argument)
    for refused in many
]


@each("n", [4, VAST])
@each(("op", "error", "changed", "sentence", "names"), REFUSED)
def test_bad_input_is_refused_before_any_arithmetic(
    op: str, error: type[Exception], changed: dict[str, Any], sentence: str, names: str, n: int
) -> None:
    case = attentions(((4,), (5,), (5,)))[op]
    given = {**case.inputs, "query": zeros(n, 4), **changed}
    parameters = given.get("parameters")
    given |= {f"parameters.{name}": x for name, x in getattr(parameters, "_asdict", dict)().items()}
    shapes = ", ".join(f"{name}.shape={np.shape(given[name])}" for name in names.split())
    sentence = sentence.replace("{n}", str(n)).replace("{heads}", "2, " if takes(op, "num_heads") else "")
    with pytest.raises(error, match="^" + re.escape(sentence + f" ({shapes})" * bool(names))):
        case.forward(**{"query": zeros(n, 4), **changed})


def test_numbers_as_a_mask_are_told_from_a_bias() -> None:
    with pytest.raises(TypeError, match=r"\(mask\.shape=\(5,\)\): numbers that are added to the scores are a bias"):
        attentions(((4,), (5,), (5,)))["dot_product"].forward(mask=np.ones(5))


@pytest.mark.parametrize("op", OPS)
def test_vectors_that_do_not_fit_are_refused_even_if_they_broadcast(op: str) -> None:
    case = plain_case(op)
    output, cache = case.forward()
    d = next(iter(signature(case.op.backward).parameters))
    for shape in ((), output.shape[1:], output.shape[::-1], (4, 1), (1, *output.shape[1:]), (1, *output.shape)):
        if shape != output.shape:
            with pytest.raises(ValueError, match=f"^{d} must have the shape {re.escape(str(output.shape))}") as caught:
                case.op.backward(np.zeros(shape), cache)
            assert f"{d}.shape={shape}" in str(caught.value)
    with pytest.raises(TypeError, match=f"^{d} must hold floating-point numbers, not int64"):
        case.op.backward(np.ones(output.shape, int), cache)
    with pytest.raises(ValueError, match=f"^{d} must be an array of floating-point numbers"):
        case.op.backward(RAGGED, cache)
    for path, x in leaves(case.inputs):
        name = path.rpartition(".")[2]

        def tangent(wrong: Any, path: str = path, name: str = name) -> dict[str, Any]:
            return {"parameters": Parameters(*(None,) * 8)._replace(**{name: wrong})} if "." in path else {path: wrong}

        sentence = re.escape(f"the tangent of {path} must have the shape {x.shape}")
        with pytest.raises(ValueError, match=rf"^{sentence} .*\({re.escape(path)}\.shape=\(1, 1, 1\)\)$"):
            case.op.jvp(cache, **tangent(np.zeros((1, 1, 1))))
        with pytest.raises(
            TypeError, match=f"^the tangent of {re.escape(path)} must hold floating-point numbers, not int"
        ):
            case.op.jvp(cache, **tangent(np.ones(x.shape, int)))


OPTIONAL = [
    (op, name)
    for op, case in plain_cases().items()
    for name in case.inputs
    if signature(case.op.forward).parameters[name].default is None
]


@each(("op", "name"), OPTIONAL)
def test_a_tangent_for_an_array_that_there_was_not_is_refused(op: str, name: str) -> None:
    case, takes_of = plain_case(op), signature(plain_case(op).op.forward).parameters
    inputs = case.inputs
    without = case._replace(inputs={x: inputs[x] for x in inputs if takes_of[x].default is not None})
    with pytest.raises(ValueError, match=f"tangent was given for {name}, but forward was called without {name}"):
        without.op.jvp(without.forward()[1], **{name: inputs[name]})


def test_a_tangent_of_a_parameter_that_there_was_not_is_refused() -> None:
    case = plain_case("multi_head")
    _, cache = case.forward(parameters=case.inputs["parameters"]._replace(b_key=None))
    with pytest.raises(ValueError, match=r"tangent was given for parameters\.b_key"):
        case.op.jvp(cache, parameters=Parameters(None, None, None, None, b_key=np.zeros(8)))
    with pytest.raises(TypeError, match=r"the tangent of parameters must be a multi_head\.Parameters, not tuple"):
        case.op.jvp(cache, parameters=(None,) * 8)


@pytest.mark.parametrize("op", OPS)
def test_a_cache_of_another_op_is_refused_with_the_name_of_its_class(op: str) -> None:
    case = plain_case(op)
    other = plain_case("additive" if op == "softmax" else "softmax")
    for cache, what in ((other.forward()[1], f"{other.op.__name__}.Cache"), (None, ""), ((), ""), ("cache", "")):
        sentence = rf"cache must be the one that {op}\.forward returned, not .*{re.escape(what)}$"
        for use in (
            lambda cache=cache: case.op.backward(normal(0, 4, 4), cache),
            lambda cache=cache: case.op.jvp(cache),
        ):
            with pytest.raises(TypeError, match=sentence):
                use()
