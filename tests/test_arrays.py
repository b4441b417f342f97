"""What holds of arrays in every op: dtypes, views, and who may write where."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import (
    BIASED,
    FIRST,
    OPS,
    Array,
    Case,
    as_taken,
    assert_close,
    assert_same_bits,
    each,
    leaves,
    map_arrays,
    normal,
    plain_case,
    plain_cases,
    run,
    takes,
    tangents_of,
)

from attention_np import dot_product, multi_head, short_conv, softmax
from attention_np._lib.arguments import as_integer, as_mask, as_number, scores_shape
from attention_np._lib.arrays import sum_to

REAL = [np.float32, np.float64, np.longdouble]
HALF = [np.float16, ml_dtypes.bfloat16]
SEEN = np.arange(20).reshape(4, 5) % 3 > 0
CASES = {f"{name}, alone": case for name, case in plain_cases().items()}
for name, case in plain_cases(batch=(2,)).items():
    if takes(name, "mask"):
        CASES[f"{name}, mask"] = case._replace(options={**case.options, "mask": as_taken(name, SEEN)})
    if name in BIASED:
        scaled = {} if name == "multi_head" else {"scale": 0.3}
        all_of_them = {**case.options, **scaled, "is_causal": True, "dropout_p": 0.3, "rng": 1}
        CASES[f"{name}, causal, dropout"] = case._replace(options=all_of_them)
every_case = each("name", CASES)


def as_dtype(dtype: Any) -> Callable[[Array], Array]:
    return lambda x: x.astype(dtype)


@every_case
@each("dtype", [*REAL, *HALF, np.complex64, np.complex128])
def test_a_common_dtype_is_kept(name: str, dtype: Any) -> None:
    case = CASES[name]
    results = run(case.map(as_dtype(dtype)))
    assert results.output.dtype == dtype
    assert results.jvp.dtype == dtype
    assert {name: x.dtype for name, x in results.gradients.items()} == {
        name: np.dtype(dtype) for name, _ in leaves(case.inputs)
    }


@every_case
@each("dtype", HALF)
def test_half_precision_computes_in_float32_and_is_cast_back(name: str, dtype: Any) -> None:
    case = CASES[name]
    half = case.map(as_dtype(dtype))
    single = half.map(as_dtype(np.float32))
    d_output = normal(3, *case.forward()[0].shape).astype(dtype)
    tangents = tangents_of(half)
    expected = run(single, d_output.astype(np.float32), map_arrays(as_dtype(np.float32), tangents))
    actual = run(half, d_output, tangents)
    assert_same_bits(actual.output, expected.output.astype(dtype))
    assert_same_bits(actual.jvp, expected.jvp.astype(dtype))
    for name, gradient in expected.gradients.items():
        assert_same_bits(actual.gradients[name], gradient.astype(dtype))
    names = ("weights", "logsumexp", "normalised", "cos", "final_state", "features", "slope")
    computed = [
        getattr(actual.cache, name) for name in names if hasattr(actual.cache, name) and name not in half.inputs
    ]
    kept = dtype if case.op is short_conv else np.float32  # a short convolution's state are inputs
    assert all(x.dtype == kept for x in computed[:1])  # a linear map keeps nothing but its inputs


@every_case
@each(("dtype", "digits"), [(np.float32, 2e-6), (np.float64, 2e-14)])
def test_a_wider_dtype_gives_the_same_to_the_digits_of_the_narrower(name: str, dtype: Any, digits: float) -> None:
    case = CASES[name]
    narrow = case.map(as_dtype(dtype))
    wide = run(narrow.map(as_dtype(np.longdouble)))
    actual = run(narrow, tangents=map_arrays(as_dtype(dtype), tangents_of(case)))
    assert_close(actual.output, wide.output, digits)
    for name, gradient in wide.gradients.items():
        if name not in ("bias", "parameters.b_key") or np.abs(gradient).max() > 1e-12:
            assert_close(actual.gradients[name], gradient, digits)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="NumPy's longdouble has no 64 bits here")
def test_a_scale_of_longdouble_keeps_its_last_digits() -> None:
    case = plain_case("dot_product").map(as_dtype(np.longdouble))
    third = np.longdouble(1) / 3
    scaled, _ = case.forward(query=case.inputs["query"] * third, scale=1.0)
    assert_close(case.forward(scale=third)[0], scaled, float(8 * np.finfo(np.longdouble).eps))


MIXED = [(op, array) for op, case in plain_cases().items() for array, _ in leaves(case.inputs) if len(case.inputs) > 1]


@each(("op", "wide"), MIXED)
@each(
    ("narrow_dtype", "wide_dtype", "result"),
    [
        (np.float32, np.float64, np.float64),
        (np.float16, np.float32, np.float32),
        (ml_dtypes.bfloat16, np.float32, np.float32),
        (np.float64, np.longdouble, np.longdouble),
        (np.float64, np.float16, np.float64),
    ],
)
def test_mixed_dtypes_are_promoted_and_each_gradient_has_the_dtype_of_its_array(
    op: str, wide: str, narrow_dtype: Any, wide_dtype: Any, result: Any
) -> None:
    case = plain_case(op)
    names = iter([name for name, _ in leaves(case.inputs)])
    case = case.map(lambda x: x.astype(wide_dtype if next(names) == wide else narrow_dtype))
    results = run(case)
    assert np.result_type(narrow_dtype, wide_dtype) == result
    assert results.output.dtype == result
    assert results.jvp.dtype == result
    for name, x in leaves(case.inputs):
        assert results.gradients[name].dtype == x.dtype == (wide_dtype if name == wide else narrow_dtype)


@each("scale", [np.float64(0.3), np.longdouble(0.3), np.array(0.3), 0.3, 1, np.int64(1)])
def test_a_scalar_never_upcasts(scale: Any) -> None:
    case = plain_case("dot_product").map(as_dtype(np.float32))
    for options in ({"scale": scale}, {"dropout_p": np.float64(0.5), "rng": 0}):
        results = run(case._replace(options=options))
        assert {results.output.dtype, results.jvp.dtype, *(x.dtype for x in results.gradients.values())} == {
            np.dtype(np.float32)
        }
        assert results.cache.weights.dtype == np.float32


NUMBERS = [0.5, np.float64(0.5), np.float32(0.5), np.longdouble(0.5), -np.inf]
ONE_NUMBER = [(dtype, bias, dtype) for dtype in (np.float32, np.float64, np.complex64, *HALF) for bias in NUMBERS]
ONE_NUMBER += [(dtype, 1j, expected) for dtype, expected in (("e", "F"), ("f", "F"), ("d", "D"), ("F", "F"))]
# an array is promoted as any array, though it has no axes
ONE_NUMBER += [(np.float32, np.array(0.5), np.float64), (np.float64, np.array(0.5, np.float32), np.float64)]


@each("op", BIASED)
@each(("dtype", "bias", "expected"), ONE_NUMBER)
def test_a_scalar_bias_never_upcasts_but_to_complex_numbers(op: str, dtype: Any, bias: Any, expected: Any) -> None:
    case = plain_case(op).map(as_dtype(dtype))
    arrays = case._replace(inputs={name: x for name, x in case.inputs.items() if name != "bias"})
    output, cache = arrays.forward(bias=bias)
    of_bias = bias.dtype if isinstance(bias, np.ndarray) else np.dtype(expected)
    assert_same_bits(output, arrays.forward(bias=np.full((), bias, of_bias))[0])
    assert (output.dtype, cache.bias.dtype) == (expected, of_bias)
    assert case.op.jvp(cache, **arrays.inputs, bias=np.ones((), of_bias)).dtype == expected
    gradients = dict(leaves(case.op.backward(output, cache)))
    for name, _ in leaves(arrays.inputs):
        assert gradients[name].dtype == (dtype if not isinstance(bias, complex) else expected), name
    assert gradients["bias"].shape == ()


@each("options", [{"bias": 1e300}, {"bias": -1e300}])
def test_a_scalar_bias_beyond_the_range_of_the_dtype_does_not_warn(options: dict[str, Any]) -> None:
    case = plain_case("dot_product").map(as_dtype(np.float32))
    with np.errstate(all="raise"):
        case.forward(**options)


@each("op", OPS)
def test_a_wider_cotangent_does_not_change_the_dtype_of_gradients(op: str) -> None:
    case = plain_case(op).map(as_dtype(np.float32))
    output, cache = case.forward()
    for d_output in (output.astype(np.float64), output.astype(np.float16), output.astype(">f4")):
        assert {x.dtype for _, x in leaves(case.op.backward(d_output, cache))} == {np.dtype(np.float32)}


@every_case
def test_a_complex_cotangent_or_tangent_of_real_arrays_keeps_its_imaginary_part(name: str) -> None:
    case = CASES[name]
    output, cache = case.forward()
    one, other = normal(3, *output.shape), normal(4, *output.shape)
    real, imaginary, both = (dict(leaves(case.op.backward(d, cache))) for d in (one, other, one + 1j * other))
    for name, gradient in both.items():
        scale = max(np.abs(real[name]).max(), np.abs(imaginary[name]).max(), 1)
        assert np.abs(gradient - (real[name] + 1j * imaginary[name])).max() <= 2e-15 * scale
    tangents, others = tangents_of(case), tangents_of(case, 5)
    drawn = iter([x for _, x in leaves(others)])
    mixed = map_arrays(lambda x: x + 1j * next(drawn), tangents)
    expected = case.op.jvp(cache, **tangents) + 1j * case.op.jvp(cache, **others)
    assert_close(case.op.jvp(cache, **mixed), expected, 2e-15)


ONE_OF_ALL = {f"{name}, one of all": case for name, case in plain_cases(1, 1).items()} | {
    "multi_head, one head": Case(
        multi_head, {**plain_case("multi_head").inputs, "bias": normal(1, 4, 5)}, {"num_heads": 1}
    ),
    "dot_product, scale 1": plain_case("dot_product")._replace(options={"scale": 1.0}),
    "dot_product, a single query": Case(
        dot_product, {"query": normal(0, 3), "key": normal(1, 5, 3), "value": normal(2, 5, 2)}, {}
    ),
    "additive, a single query": plain_case("additive")._replace(
        inputs={**plain_case("additive").inputs, "query": normal(0, 4)}
    ),
}


ONE_ROW = {
    f"{name}, one row": case._replace(inputs={**case.inputs, FIRST[name]: case.inputs[FIRST[name]][0]})
    for name, case in plain_cases().items()
    if name not in ("rotary", "linear_attention", "latent", "short_conv", "pooling", "deformable")
    and not takes(name, "key")  # which need several
}
SHARING = CASES | ONE_OF_ALL | ONE_ROW


@each("name", SHARING)
def test_results_share_no_memory_with_what_was_given(name: str) -> None:
    case = SHARING[name]
    output, cache = case.forward()
    d_output, tangents = normal(5, *output.shape), tangents_of(case)
    gradients, moved = case.op.backward(d_output, cache), case.op.jvp(cache, **tangents)
    d_gradients = map_arrays(np.copy, gradients)
    d_d_output, second = case.op.double_backward(d_gradients, d_output, cache)
    everything = (case.inputs, tangents, d_output, d_gradients, cache)
    given = [x for each in everything for _, x in leaves(each)]
    named = {"output": output, "jvp": moved, "backward": gradients, "d_d_output": d_d_output, "second": second}
    results = dict(leaves(named))
    for name, result in results.items():
        assert result.flags.writeable
        assert not any(np.shares_memory(result, x) for x in given), name
    separate = list(results.items())
    for i, (name, result) in enumerate(separate):
        for other, x in separate[:i]:
            assert not np.shares_memory(result, x), (name, other)


@each("shape", [(1,), (1, 1), (4, 5)])
def test_the_jacobian_and_logsumexp_share_no_memory_with_the_scores(shape: Any) -> None:
    scores = normal(0, *shape)
    assert not np.shares_memory(softmax.jacobian(scores), scores)
    assert not np.shares_memory(softmax.logsumexp(scores), scores)


@every_case
def test_there_is_no_state_between_calls_and_none_writes_to_a_cache(name: str) -> None:
    case = CASES[name]
    output, cache = case.forward()
    d_output = normal(5, *output.shape)
    first = dict(leaves(case.op.backward(d_output, cache)))
    case.op.jvp(cache, **tangents_of(case))
    case.map(lambda x: 2 * x).forward()
    again, _ = case.forward()
    assert_same_bits(again, output)
    for name, gradient in leaves(case.op.backward(d_output, cache)):
        assert_same_bits(gradient, first[name])


@every_case
def test_forward_is_linear_in_each_tangent_and_a_tangent_left_out_is_zero(name: str) -> None:
    case = CASES[name]
    output, cache = case.forward()
    tangents = tangents_of(case)
    zero = map_arrays(np.zeros_like, case.inputs)
    assert_same_bits(case.op.jvp(cache), np.zeros(output.shape))
    total = np.zeros(output.shape)
    for name, tangent in tangents.items():
        alone = case.op.jvp(cache, **{name: tangent})
        assert_same_bits(alone, case.op.jvp(cache, **{**zero, name: tangent}))
        total = total + alone
    assert_close(total, case.op.jvp(cache, **tangents), 2e-15)


@each("op", BIASED)
@each("wide", ["query", "key", "value"])
def test_a_scalar_bias_has_the_widest_dtype_whichever_array_that_is_of(op: str, wide: str) -> None:
    case = plain_case(op).map(as_dtype(np.float32))
    _, cache = case.forward(bias=0.1, **{wide: case.inputs[wide].astype(np.float64)})
    assert cache.bias.dtype == np.float64


def test_the_leading_axes_of_the_scores_are_those_of_query_and_key_and_the_values_must_broadcast_with_them() -> None:
    one, many = np.zeros((4, 3)), np.zeros((2, 5, 3))
    assert scores_shape(one, many, np.zeros((5, 2))) == (2, 4, 5)
    assert scores_shape(many, one, np.zeros((4, 2))) == (2, 5, 4)
    assert scores_shape(one, one, np.zeros((7, 4, 2))) == (4, 4)
    assert scores_shape(np.zeros(3), many, np.zeros((5, 2))) == (2, 1, 5)
    with pytest.raises(ValueError, match="the leading axes of query and key and value do not broadcast together"):
        scores_shape(many, one, np.zeros((3, 4, 2)))


@each("shape", [(2, 2, 3), (2, 3), (1, 3), (2, 1), (1, 1), (1, 2, 1), (2, 1, 3), (3,), (1,), ()])
def test_sums_go_over_the_axes_that_were_broadcast_and_no_others(shape: tuple[int, ...]) -> None:
    array = normal(0, 4, 2, 2, 3)
    expected = np.zeros(shape)
    for index, entry in np.ndenumerate(array):
        own = index[4 - len(shape) :]
        expected[tuple(i if size > 1 else 0 for i, size in zip(own, shape, strict=True))] += entry
    assert_close(sum_to(array, shape), expected, 1e-14)
    assert_close(sum_to(np.ones((5, 2, 1)), (1, 1)), np.array([[10.0]]), 0)  # an axis that was of length one before


@each(("name", "what"), [("scale", "numbers"), ("mask", "booleans")])
def test_a_ragged_list_is_refused_by_name_and_what_it_should_hold(name: str, what: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be an array of {what}: "):
        dot_product.forward(*np.zeros((3, 2, 2)), **{name: [[True], [True, False]]})


def test_a_mask_that_does_not_broadcast_is_told_to_what() -> None:
    with pytest.raises(ValueError, match=r"^mask must broadcast to the weights, whose shape is \(5,\)"):
        as_mask(np.ones(4, bool), (5,), "the weights")


@each("value", [True, False, np.True_, np.False_])
def test_true_and_false_are_no_integers_and_no_numbers(value: Any) -> None:
    with pytest.raises(TypeError, match=rf"^n must be an integer, not {value}$"):
        as_integer("n", value)
    with pytest.raises(TypeError, match=r"^scale must be a number, not (np\.)?(True|False)_?$"):
        as_number("scale", value)


@each("integer", [2**63, -(2**70), 10**300])
def test_an_integer_beyond_those_of_numpy_is_a_number(integer: int) -> None:
    assert as_number("scale", integer) == float(integer)


@each("integer", [2**63 - 1, -(2**63), 3])
def test_an_integer_of_numpy_is_not_rounded(integer: int) -> None:
    assert int(as_number("scale", integer)) == integer


@each("digits", [400, 5000])
def test_a_message_shows_no_more_of_a_large_number_than_fits(digits: int) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: as_number("scale", 10**digits),
        lambda: dot_product.forward(np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)), scale=10**digits),
        lambda: as_integer("scale", -(10**digits), least=0),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"^scale must be ") as caught:
            call()
        assert len(str(caught.value)) < 120


def test_what_is_no_number_is_shown_in_part() -> None:
    with pytest.raises(TypeError, match=r"^scale must be a number, not \['x', .{34}\.\.\.$"):
        as_number("scale", ["x"] * 1000)
