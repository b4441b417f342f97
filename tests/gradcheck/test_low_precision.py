"""Kernels in half precision and in TF32 are held against a reference in double precision, entry by entry."""

import tracemalloc

import numpy as np
import pytest
from helpers import each, some_of

from attention_np.gradcheck import check_low_precision
from attention_np.known_answers.bounds import bounds
from attention_np.known_answers.formats import FORMATS

from .programs import back_through_softmax, normal, softmax

ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes: pip install attention-np[answers]")
HALVES = [np.float16, ml_dtypes.bfloat16]


def tf32(x):
    """Rounded to 10 bits behind the point, in float32."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000).astype(np.uint32).view(np.float32)


def single(x):
    return np.asarray(x).astype(np.float32)


ROUNDED = {
    "float16": lambda x: single(x).astype(np.float16),
    "bfloat16": lambda x: single(x).astype(ml_dtypes.bfloat16),
    "tf32": tf32,
    "float32": single,
}
NARROW = [name for name in ROUNDED if name != "float32"]


def attend(query, key, value):
    return softmax(query @ np.swapaxes(key, -1, -2) / 2) @ value


def attend_backward(d, query, key, value, wrong=None):
    """In any precision; keys and values that heads share are broadcast."""
    weights, d_weights = softmax(query @ np.swapaxes(key, -1, -2) / 2), d @ np.swapaxes(value, -1, -2)
    d_scores = weights * (d_weights - (wrong != "delta") * (weights * d_weights).sum(axis=-1, keepdims=True)) / 2

    def summed(x, to):
        heads = tuple(k for k in range(x.ndim - 2) if x.shape[k] != to.shape[k])
        x = x[:, :1] if wrong == "one head" else x
        return (x.mean if wrong == "mean of heads" else x.sum)(axis=heads, keepdims=True)

    d_key, d_value = np.swapaxes(d_scores, -1, -2) @ query, np.swapaxes(weights, -1, -2) @ d
    return d_scores @ key, summed(d_key, key), summed(d_value, value)


def backward_of_softmax(d, x, wrong=None):
    y = softmax(x)
    return (y * (d - (wrong is None) * (y * d).sum(axis=-1, keepdims=True)),)


def kernels(precision, wrong=None):
    """Kernels that round what they store, and what they are to compute."""
    rounded = ROUNDED[precision]

    def tanh(x):
        return rounded(np.tanh(single(x)))

    def tanh_backward(d_y, x):  # from what forward gave out
        y = single(tanh(x))
        d_x = rounded(single(d_y) * single(rounded(1 - (y if wrong == "square" else y * y))))
        if wrong == "NaN":
            d_x[1] = np.nan
        return d_x

    def softmax_backward(d_y, x):
        y, d_y = single(rounded(softmax(single(x)))), single(d_y)
        return rounded(y * (d_y - (y * d_y).sum(axis=-1, keepdims=True)))

    def weights_of(query, key):
        return single(rounded(softmax(single(rounded(single(query) @ single(key).T / 2)))))

    def attention(query, key, value):
        return rounded(weights_of(query, key) @ single(value))

    def attention_backward(d_output, query, key, value):
        weights, d_output = weights_of(query, key), single(d_output)
        delta = (d_output * single(attention(query, key, value))).sum(axis=-1, keepdims=True)
        d_scores = weights * (d_output @ single(value).T - (0 if wrong == "delta" else delta))
        d_scores /= 1 if wrong == "scale" else 2
        d_query, d_key = rounded(d_scores @ single(key)), rounded(d_scores.T @ single(query))
        if wrong == "row":
            d_key[1] = 0
        return d_query, d_key, rounded(weights.T @ d_output)

    shapes = {"query": (4, 8), "key": (5, 8), "value": (5, 3)}
    return {
        "tanh": (tanh, tanh_backward, (np.tanh, lambda d, x: (d / np.cosh(x) ** 2,)), {"x": (8,)}),
        "softmax": (
            lambda x: rounded(softmax(single(x))),
            softmax_backward,
            (softmax, backward_of_softmax),
            {"x": (4, 6)},
        ),
        "attention": (attention, attention_backward, (attend, attend_backward), shapes),
    }


def checked(name, precision, wrong=None, seed=0, scale=1.0, pair=False, **other_shapes):
    forward, backward, reference, shapes = kernels(precision, wrong)[name]
    inputs = {
        key: ROUNDED[precision](scale * normal(*shape, seed=seed + k))
        for k, (key, shape) in enumerate((shapes | other_shapes).items())
    }
    how = "tf32" if precision == "tf32" else None
    return check_low_precision(forward, backward, inputs, reference if pair else reference[0], precision=how)


def in_dtype(function, dtype):
    """What a kernel gives that computes in float32 and stores in another dtype."""

    def kernel(*arrays):
        result = function(*map(single, arrays))
        return tuple(x.astype(dtype) for x in result) if isinstance(result, tuple | list) else result.astype(dtype)

    return kernel


def drawn(dtype, seed=0, **shapes):
    return {name: normal(*shape, seed=seed + k).astype(dtype) for k, (name, shape) in enumerate(shapes.items())}


RIGHT = [("tanh", 1), ("softmax", 1), ("softmax", 4), ("attention", 1), ("tanh", 8), ("softmax", 30), ("softmax", 100)]


@each("precision", NARROW)
@each("pair", [False, True])
@pytest.mark.parametrize(("name", "scale"), RIGHT)
def test_what_a_kernel_saves_of_outputs_that_have_rounded_to_one_is_no_error(precision, name, scale, pair):
    assert all(checked(name, precision, seed=10 * k, scale=scale, pair=pair).ok for k in range(6))


@each("precision", *some_of(NARROW, 3))
@each(
    ("name", "wrong", "named"),
    [
        ("tanh", "square", ["x"]),
        ("tanh", "NaN", ["x"]),
        ("attention", "delta", ["query", "key"]),
        ("attention", "scale", ["query", "key"]),
        ("attention", "row", ["key"]),
    ],
)
@each("pair", [False, True])
def test_a_planted_error_is_found_where_it_is(precision, name, wrong, named, pair):
    report = checked(name, precision, wrong, pair=pair)
    assert {entry.name for entry in report if not entry.ok} <= set(named)
    assert not report[named[-1]].ok
    if wrong == "NaN":
        assert "first at [1]" in report["x"].diagnosis


@pytest.mark.parametrize("precision", ["float16", "tf32", "bfloat16"])
def test_a_factor_of_two_is_seen_in_most_entries_though_each_of_many_keys_weighs_little(precision):
    report = checked("attention", precision, "scale", query=(40, 4), key=(130, 4), value=(130, 3))
    assert report["output"].ok
    for entry in (report["query"], report["key"]):
        assert entry.diagnosis.startswith("it is 2 times")
        assert entry.wrong > 0.8 * entry.size


@each(("precision", "seen"), [("float16", 1.02), ("tf32", 1.02), ("bfloat16", 1.12)])
@each("pair", [False, True])
def test_a_factor_is_seen_beyond_what_is_rounded_and_none_below(precision, seen, pair):
    rounded = ROUNDED[precision]
    inputs = {"x": rounded(normal(11, 10)), "w": rounded(normal(10, 11, seed=1))}
    for factor in map(np.float32, (seen, 1 + (seen - 1) / 4)):
        report = check_low_precision(
            lambda x, w: rounded(single(x) @ single(w)),
            lambda d, x, w, c=factor: (rounded(c * single(d @ w.T)), rounded(c * single(x.T @ d))),
            inputs,
            (np.matmul, lambda d, x, w: (d @ w.T, x.T @ d)) if pair else np.matmul,
            precision="tf32" if precision == "tf32" else None,
        )
        assert [entry.ok for entry in report] == [True] + 2 * [factor < np.float32(seen)], str(report)


@each("precision", *some_of(ROUNDED, 2))
@each("factor", [1.02, 1.5, 8**0.5, 1 / 8])
@each("pair", [False, True])
def test_a_wrong_scale_is_not_said_to_be_rounding_to_a_shorter_format(precision, factor, pair):
    rounded, coarse = ROUNDED[precision], precision == "bfloat16" and factor == 1.02
    found = check_low_precision(
        lambda x: rounded(softmax(single(x))),
        lambda d, x: rounded(np.float32(factor) * back_through_softmax(single(d), single(x))),
        {"x": rounded(normal(5, 8))},
        (softmax, lambda d, x: (back_through_softmax(d, x),)) if pair else softmax,
        precision="tf32" if precision == "tf32" else None,
    )["x"]
    assert found.ok == coarse
    assert coarse or " times the numerical gradient" in found.diagnosis, found.diagnosis


SHARED = {"query": (2, 3, 10, 4), "key": (2, 1, 12, 4), "value": (2, 1, 12, 4)}


@each("wrong", [None, "delta", "mean of heads"], long=["one head", "sign"])
def test_a_wrong_kernel_takes_little_memory_and_hardly_more_calls_than_a_right_one(wrong):
    calls = []

    def counted(function):
        return lambda *arrays: calls.append(function) or function(*arrays)

    def backward(d, *arrays):
        found = attend_backward(d, *arrays, wrong)
        return [x * np.sign(y) for x, y in zip(found, arrays, strict=True)] if wrong == "sign" else found

    ways = [counted(x) for x in (in_dtype(attend, np.float16), in_dtype(backward, np.float16), attend, attend_backward)]
    inputs = drawn(np.float16, query=(2, 3, 40, 4), key=(2, 1, 12, 4), value=(2, 1, 12, 4))
    checked("tanh", "float16", "square")  # which imports what is needed for a diagnosis
    tracemalloc.start()
    report = check_low_precision(*ways[:2], inputs, tuple(ways[2:]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.ok == (wrong is None)
    assert peak < 8 * inputs["query"].size ** 2 / 2  # of a matrix from all entries to all outputs
    assert len(calls) < (80 if wrong is None else 160)


def backward_of_product(d, x, weight, wrong=None):
    if wrong == "transposed":
        return d.T @ weight.T, x.T @ d
    return d @ weight.T, (x.T[:, 1:] @ d[1:] if wrong == "row" else x.T @ d)


SQUARES = {"x": (6, 6), "weight": (6, 6)}
CAUSES = {  # and what is said
    "correction": (softmax, backward_of_softmax, {"x": (6, 10)}, "the softmax correction along axis 1, weights * sum("),
    "mean of heads": (attend, attend_backward, SHARED, "it is about 0.333 times the numerical gradient "),
}
OF_JACOBIANS = {
    "transposed": (np.matmul, backward_of_product, SQUARES, "the gradient of the output is taken in another order: ax"),
    "row": (np.matmul, backward_of_product, SQUARES, "the gradient of the output is left out at index 0 of axis 0"),
}


def said_of(forward, backward, shapes, wrong, pair, dtype=np.float16, seed=0):
    inputs = drawn(dtype, seed, **shapes)
    kernel = in_dtype(forward, dtype), in_dtype(lambda *arrays: backward(*arrays, wrong=wrong), dtype)
    report = check_low_precision(*kernel, inputs, (forward, backward) if pair else forward)
    assert report["output"].ok
    return {str(entry.diagnosis) for entry in report if not entry.ok}


@each("wrong", CAUSES)
@each("pair", [False, True])
@each("seed", [0], long=[1, 2])
def test_a_cause_is_named_with_a_pair_as_reference_as_with_a_numerical_one(wrong, pair, seed):
    *how, said = CAUSES[wrong]
    found = said_of(*how, wrong, pair, seed=seed)
    assert all(x.startswith(said) for x in found), found
    assert found


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("wrong", OF_JACOBIANS)
def test_what_is_wrong_with_the_cotangent_is_named(wrong, pair):
    *how, said = OF_JACOBIANS[wrong]
    assert [x[: len(said)] for x in said_of(*how, wrong, pair)] == [said]


def test_a_buffer_that_is_not_zeroed_is_noticed():
    kept = np.zeros(4, np.float16)

    def backward(d_y, x):
        kept[...] += d_y * 2 * x
        return kept.copy()

    report = check_low_precision(np.square, backward, drawn(np.float16, x=(4,)), np.square)
    assert report["output"].ok
    assert "called again: by as much again" in str(report["x"].diagnosis)


def test_sums_in_another_order_are_no_other_answer():
    order = np.random.default_rng(0)

    def backward(d_y, x):  # as those of atomicAdd
        terms = np.multiply.outer(normal(500).astype(np.float32), 2 * x * d_y)
        return np.add.reduce(order.permutation(terms)) / normal(500).astype(np.float32).sum()

    report = check_low_precision(np.square, backward, drawn(np.float32, 1, x=(40,)), np.square)
    assert report.ok, str(report)


def test_an_output_that_is_not_that_of_the_reference_is_wrong_also_if_nothing_is_left_of_it():
    versed = check_low_precision(
        lambda x: 1 - np.cos(x),
        lambda d, x: d * np.sin(x),
        {"x": np.full(3, 1e-4, np.float32)},
        lambda x: 1 - np.cos(x),
    )
    x = drawn(ml_dtypes.bfloat16, x=(5,))
    for report in (versed, check_low_precision(lambda x: x, lambda d, _: d, x, lambda x: 1.2 * x)):
        assert report["output"].diagnosis == "it is further from the reference than rounding explains"


def test_each_entry_is_held_against_its_own_floor():
    x = np.array([1.0, 0.25, 1e-6], np.float16)

    def backward(d_y, x):
        d_x = 2 * d_y * x
        d_x[1] *= 1.1
        return d_x

    report = check_low_precision(np.square, backward, {"x": x}, np.square)
    assert [entry.index for entry in report["x"].worst[: report["x"].wrong]] == [(1,)]
    assert report["x"].max_relative_error < 1e-2


def test_what_is_no_array_is_passed_on_and_several_outputs_count():
    def forward(layers, rows):
        return layers["w"][rows] * np.float16(0.5), {"square": layers["b"] ** 2}

    def backward(d_outputs, layers, rows):
        d_w = np.zeros_like(layers["w"])
        np.add.at(d_w, rows, d_outputs[0] * np.float16(0.5))
        return {"w": d_w, "b": 2 * layers["b"] * d_outputs[1]["square"]}

    def reference(layers, rows):
        return layers["w"][rows] / 2, {"square": layers["b"] ** 2}

    inputs = {"layers": drawn(np.float16, w=(4,), b=(2,)), "rows": [2, 0, 2]}
    report = check_low_precision(forward, backward, inputs, reference)
    assert [entry.name for entry in report] == ["output.0", "output.1.square", "layers.w", "layers.b"]
    assert report.ok, str(report)
    none = check_low_precision(forward, lambda *_: {"w": None, "b": np.zeros(2, np.float16)}, inputs, reference)
    assert none["layers.w"].diagnosis == "the gradient is missing"


def test_a_gradient_that_is_nothing_but_rounding_is_not_said_to_hold():
    def backward(d, x):  # as of terms that cancel: the last bits of x decide
        return d * (0.5 + x.view(np.int16) * 7919 % 97 / np.float32(97)).astype(np.float16)

    report = check_low_precision(lambda x: x, backward, drawn(np.float16, x=(6,)), lambda x: x)
    assert report["x"].diagnosis == "it could not be checked: rounding may be all that there is of it"


@each(
    ("arguments", "error", "message"),
    [
        ({"reference": None}, TypeError, "^reference must be a function, not NoneType$"),
        ({"precision": "half"}, ValueError, "^precision must be 'float16', 'bfloat16', 'tf32' or None, not 'half'$"),
        ({"inputs": {"x": [1, 2]}}, TypeError, "^input x must hold real floating-point numbers, not int64"),
        ({"reference": single}, TypeError, "^reference must compute in double precision, not return float32"),
        ({"reference": lambda x: x[:2]}, ValueError, r"^reference must return the shape .*, \(3,\): \(2,\)$"),
        ({"forward": lambda x: x.size}, TypeError, "^forward must return arrays of floating-point numbers, not int$"),
        ({"backward": lambda d, _: (d, d)}, ValueError, "^backward must return one gradient for each of the 1 inputs"),
        ({"reference": (np.sin, lambda d, _: d[:2])}, ValueError, r"^reference's .* of x, \(3,\): \(2,\)"),
        ({"reference": (np.sin, lambda *_: None)}, ValueError, r"^reference's .* of x, \(3,\): None"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_in_one_sentence(arguments, error, message):
    usual = {"forward": np.sin, "backward": lambda d, x: d * np.cos(x), "reference": np.sin}
    with pytest.raises(error, match=message):
        check_low_precision(**({**usual, "inputs": {"x": np.ones(3, np.float16)}} | arguments))


def turned(x, dtype, sign=1):
    """Positions are turned by angles, which the kernel computes itself, as its inputs are moved."""
    d = x.shape[-1]
    angles = np.arange(len(x), dtype=dtype)[:, None] * dtype(10000) ** (-np.arange(0, d, 2, dtype=dtype) / dtype(d))
    (a, b), c, s = (x[:, ::2], x[:, 1::2]), np.cos(angles), sign * np.sin(angles)
    return np.stack([a * c - b * s, a * s + b * c], axis=-1).reshape(x.shape)


@each("pair", [False, True])
@each("right", [True, False])
def test_rotary_positions_whose_angles_are_computed_in_float32_hold(pair, right):
    def backward(d, x):  # noqa: ARG001
        return turned(d, np.float32, -1 if right else 1)

    def reference(x):
        return turned(x, np.float64)

    for seed in range(4):
        truth = (reference, lambda d, _: (turned(d, np.float64, -1),)) if pair else reference
        x = drawn(np.float32, seed, x=(20, 8))
        report = check_low_precision(lambda x: turned(x, np.float32), backward, x, truth, rng=seed)
        assert report["output"].ok, str(report)
        assert report["x"].ok == right, str(report)


@each("shape", [(20, 64), (50, 64), (300, 16)])
def test_angles_of_float32_have_a_floor_that_follows_from_the_positions_and_known_answers_agree(shape):
    """Both doors pass what rounds its angles, and refuse a frequency that is a thousandth off."""
    x = drawn(np.float32, 0, x=shape)
    reference = (lambda x: turned(x, np.float64), lambda d, _: (turned(d, np.float64, -1),))
    for off, right in ((1, True), (1.001, False)):
        report = check_low_precision(
            lambda x, off=off: turned_by(x, off, 1), lambda d, _, off=off: turned_by(d, off, -1), x, reference
        )
        inputs = {"x": np.asarray(x["x"]), "d_output": np.ones(shape, np.float32)}
        error = bounds("rotary", FORMATS["float32"], inputs, {"interleaved": True})["output"]
        known = (np.abs(turned_by(inputs["x"], off, 1) - turned(inputs["x"], np.float64)) <= error).all()
        assert report.ok == right == known, str(report)


def turned_by(x, off, sign):
    """As :func:`turned` in float32, with all frequencies times a number."""
    d, one = x.shape[-1], np.float32
    angles = np.arange(len(x), dtype=one)[:, None] * one(10000) ** (-np.arange(0, d, 2, dtype=one) / one(d)) * one(off)
    (a, b), c, s = (x[:, ::2], x[:, 1::2]), np.cos(angles), one(sign) * np.sin(angles)
    return np.stack([a * c - b * s, a * s + b * c], axis=-1).reshape(x.shape)


def test_what_a_caller_explains_is_said_of_all_that_is_wrong_and_nothing_is_asked_of_a_right_kernel():
    asked = []

    def explain(report):
        asked.append([x.name for x in report if x.wrong])
        return "it is another convention" if len(asked) == 1 else None

    x = drawn(np.float32, 0, x=(3, 4))

    def check(backward):
        return check_low_precision(np.tanh, backward, x, reference=np.tanh, explain=explain)

    assert check(lambda d, x: d * (1 - np.tanh(x) ** 2)).ok
    assert not asked
    wrong = check(lambda d, x: 2 * d * (1 - np.tanh(x) ** 2))
    assert wrong["x"].diagnosis == "it is another convention"
    assert wrong["output"].diagnosis is None
    assert "2 times" in check(lambda d, x: 2 * d * (1 - np.tanh(x) ** 2))["x"].diagnosis
    assert asked == [["x"], ["x"]]
    with pytest.raises(TypeError, match="explain must be a function"):
        check_low_precision(np.tanh, np.tanh, x, reference=np.tanh, explain="attention")


def log_of_sum(x):
    top = x.real.max(axis=-1, keepdims=True)
    return (top + np.log(np.exp(x - top).sum(axis=-1, keepdims=True)))[:, 0]


@each("seed", [0, 5, 8, 14])
@each("right", [True, False])
def test_where_a_wrong_gradient_jumps_close_by_that_is_no_rounding(right, seed):
    def backward(d, x):  # if it is wrong, the largest of each row counts twice, and is another one close by
        return d[:, None] * (np.exp(x - log_of_sum(x)[:, None]) + (x == x.max(axis=-1, keepdims=True)) * (not right))

    x = (np.random.default_rng(seed).standard_normal((1, 16)) / 2).astype(np.float16)
    kernel = in_dtype(log_of_sum, np.float16), in_dtype(backward, np.float16)
    report = check_low_precision(*kernel, {"x": x}, log_of_sum)
    assert report.ok == right, str(report)


def test_a_reference_whose_complex_step_is_none_is_measured_by_differences():
    def cube(x):  # of complex numbers as some libraries do it
        return np.exp(3 * np.log(x)) if np.iscomplexobj(x) else x**3

    x = drawn(np.float32, x=(9,))
    assert check_low_precision(cube, lambda d, x: d * 3 * x * x, x, cube).ok
    report = check_low_precision(cube, lambda d, x: d * 2 * x * x, x, cube)
    assert report["x"].diagnosis == "it is 0.6666667 times the numerical gradient throughout"


def test_what_saturated_outputs_lose_is_allowed_in_any_order_in_memory():
    x = np.asfortranarray(np.array([[4.2, -4.4, 0.3], [5.0, 0.1, -4.1]], np.float16))
    forward, backward, (reference, _), _ = kernels("float16")["tanh"]
    for factor in (1, np.where(x == x[1, 1], 1.1, 1)):
        report = check_low_precision(
            forward, lambda d, x, w=factor: np.asfortranarray((w * backward(d, x)).astype(x.dtype)), {"x": x}, reference
        )
        assert report.ok == (np.ndim(factor) == 0), str(report)


def cross_entropy(x):
    """The mean over rows whose target is the first entry."""
    largest = x.max(axis=-1, keepdims=True)
    return np.mean(largest[:, 0] + np.log(np.exp(x - largest).sum(axis=-1)) - x[:, 0])


@each("precision", ["float16", "bfloat16"])
@each(("at_target", "right"), [(1, True), (0.5, False), (0, False)])
def test_an_output_that_one_of_many_entries_hardly_moves_has_not_saturated(precision, at_target, right):
    x, target = ROUNDED[precision](2 * normal(37, 20)), np.arange(20) == 0
    report = check_low_precision(
        lambda x: ROUNDED[precision](cross_entropy(single(x))),
        lambda d, x: ROUNDED[precision](single(d) * (softmax(single(x)) - at_target * target) / len(x)),
        {"x": x},
        (cross_entropy, lambda d, x: (d * (softmax(x) - target) / len(x),)),
    )
    assert report.ok == right, str(report)
    assert right or report["x"].wrong == len(x)
