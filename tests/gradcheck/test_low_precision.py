"""Kernels in half precision and in TF32 are held against a reference in double precision, entry by entry."""

import numpy as np
import pytest
from helpers import each, some_of

from attention_np import dot_product
from attention_np.gradcheck import check, check_low_precision

from .programs import normal, softmax

ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes: pip install attention-np[answers]")


def tf32(x):
    """Rounded to 10 bits behind the point, in float32."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000).astype(np.uint32).view(np.float32)


ROUNDED = {
    "float16": lambda x: np.asarray(x, np.float32).astype(np.float16),
    "bfloat16": lambda x: np.asarray(x, np.float32).astype(ml_dtypes.bfloat16),
    "tf32": tf32,
}
PRECISIONS = pytest.mark.parametrize("precision", ROUNDED)


def single(x):
    return np.asarray(x).astype(np.float32)


def attend(query, key, value):
    return softmax(query @ key.T / np.sqrt(query.shape[-1])) @ value


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

    def weights_of(query, key):
        return single(rounded(softmax(single(rounded(single(query) @ single(key).T / np.sqrt(query.shape[-1]))))))

    def attention(query, key, value):
        return rounded(weights_of(query, key) @ single(value))

    def attention_backward(d_output, query, key, value):
        weights, d_output = weights_of(query, key), single(d_output)
        delta = (d_output * single(attention(query, key, value))).sum(axis=-1, keepdims=True)
        d_scores = weights * (d_output @ single(value).T - (0 if wrong == "delta" else delta))
        d_scores /= 1 if wrong == "scale" else np.sqrt(query.shape[-1])
        d_query, d_key = rounded(d_scores @ single(key)), rounded(d_scores.T @ single(query))
        if wrong == "row":
            d_key[1] = 0
        return d_query, d_key, rounded(weights.T @ d_output)

    shapes = {"query": (4, 8), "key": (5, 8), "value": (5, 3)}
    return {
        "tanh": (tanh, tanh_backward, np.tanh, {"x": (8,)}),
        "attention": (attention, attention_backward, attend, shapes),
    }


def checked(name, precision, wrong=None, seed=0, scale=1.0, **other_shapes):
    forward, backward, reference, shapes = kernels(precision, wrong)[name]
    shapes |= other_shapes
    inputs = {
        key: ROUNDED[precision](scale * normal(*shape, seed=seed + k)) for k, (key, shape) in enumerate(shapes.items())
    }
    return check_low_precision(
        forward, backward, inputs, reference, precision=precision if precision == "tf32" else None
    )


@PRECISIONS
@each("name", ["tanh", "attention"])
@each("scale", [1, 4])
def test_a_kernel_that_only_rounds_holds_also_where_it_saturates(precision, name, scale):
    for seed in range(3):
        report = checked(name, precision, seed=10 * seed, scale=scale)
        assert report.ok, str(report)


@each("precision", *some_of(ROUNDED, 3))
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
def test_a_planted_error_is_found_where_it_is(precision, name, wrong, named):
    report = checked(name, precision, wrong)
    assert {entry.name for entry in report if not entry.ok} <= set(named)
    assert not report[named[-1]].ok
    assert report["output"].ok


@PRECISIONS
def test_a_simple_cause_is_named(precision):
    assert "2.8" in str(checked("attention", precision, "scale")["query"].diagnosis)
    assert "first at [1]" in str(checked("tanh", precision, "NaN")["x"].diagnosis)


@each("precision", *some_of(ROUNDED, 3))
def test_a_factor_of_two_is_seen_in_most_entries_though_each_of_many_keys_weighs_little(precision):
    shapes = {"query": (40, 4), "key": (130, 4), "value": (130, 3)}
    report = checked("attention", precision, "scale", **shapes)
    assert report["output"].ok
    for entry in (report["query"], report["key"]):
        assert entry.wrong > 0.8 * entry.size
        assert "it is 2 times" in str(entry.diagnosis)


def test_a_buffer_that_is_not_zeroed_is_noticed():
    kept = np.zeros(4, np.float16)

    def backward(d_y, x):
        kept[...] += d_y * 2 * x
        return kept.copy()

    x = normal(4).astype(np.float16)
    report = check_low_precision(np.square, backward, {"x": x}, np.square)
    assert report["output"].ok
    assert "called again: by as much again" in str(report["x"].diagnosis)


def test_sums_in_another_order_are_no_other_answer():
    order = np.random.default_rng(0)

    def backward(d_y, x):  # as those of atomicAdd
        terms = np.multiply.outer(normal(500).astype(np.float32), 2 * x * d_y)
        return np.add.reduce(order.permutation(terms)) / normal(500).astype(np.float32).sum()

    report = check_low_precision(np.square, backward, {"x": normal(40, seed=1).astype(np.float32)}, np.square)
    assert report.ok, str(report)


@each("precision", *some_of(ROUNDED, 3))
@each("wrong", [None, "scale"])
def test_a_reference_with_its_own_backward_serves_inputs_that_are_large(precision, wrong):
    def forward(query, key, value):
        return dot_product.forward(query, key, value)[0]

    def backward(d_output, *arrays):
        return dot_product.backward(d_output, dot_product.forward(*arrays)[1])[:3]

    inputs = {name: ROUNDED[precision](normal(50, 16, seed=k)) for k, name in enumerate(("query", "key", "value"))}
    found, pull_back, *_ = kernels(precision, wrong)["attention"]
    how = precision if precision == "tf32" else None
    report = check_low_precision(found, pull_back, inputs, (forward, backward), precision=how)
    assert [entry.name for entry in report if not entry.ok] == (["query", "key"] if wrong else []), str(report)
    assert ("it is about 4 times" in str(report)) == (wrong is not None)


def test_an_output_that_is_not_that_of_the_reference_is_found():
    x = ROUNDED["bfloat16"](normal(5))
    report = check_low_precision(lambda x: x, lambda d_y, _: d_y, {"x": x}, lambda x: 1.2 * x)
    assert not report["output"].ok
    assert "further from the reference than rounding explains" in str(report["output"].diagnosis)


def test_each_entry_is_held_against_its_own_floor():
    x = np.array([1.0, 1e-3, 1e-6], np.float16)

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

    inputs = {"layers": {"w": normal(4).astype(np.float16), "b": normal(2).astype(np.float16)}, "rows": [2, 0, 2]}
    report = check_low_precision(forward, backward, inputs, lambda x, rows: (x["w"][rows] / 2, {"square": x["b"] ** 2}))
    assert [entry.name for entry in report] == ["output.0", "output.1.square", "layers.w", "layers.b"]
    assert report.ok, str(report)
    none = check_low_precision(
        forward, lambda *_: {"w": None, "b": np.zeros(2, np.float16)}, inputs, lambda x, rows: forward(x, rows)
    )
    assert none["layers.w"].diagnosis == "the gradient is missing"


def test_a_gradient_that_is_nothing_but_rounding_is_not_said_to_hold():
    large = np.float16(512)

    def forward(x):  # the last bits of a large number
        return (x + large) - large

    report = check_low_precision(forward, lambda d_y, x: forward(x) * d_y, {"x": np.full(3, 1e-4, np.float16)}, np.sin)
    assert not report.ok


def test_a_check_by_small_steps_refuses_what_computes_in_half_precision_only():
    def forward(x):
        if x.dtype != np.float16:
            raise TypeError
        return x * x

    with pytest.raises(TypeError, match=r"^forward computes in float16 only \(x\), .*check_low_precision"):
        check(forward, lambda d_y, x: d_y * x, {"x": normal(3).astype(np.float16)})


class Elsewhere:
    """An array on a device, which NumPy may not take by itself."""

    def __array__(self, *_args, **_kwargs):
        raise TypeError("use .get()")


def test_an_array_of_another_library_is_called_by_its_library():
    kind = Elsewhere.__module__.partition(".")[0]
    with pytest.raises(TypeError, match=f"^forward must return one array, not {kind}.Elsewhere$"):
        check(lambda _: Elsewhere(), lambda d_y, _: d_y, {"x": np.ones(3)})
    with pytest.raises(
        TypeError, match=rf"^backward must return arrays of NumPy, not {kind}.Elsewhere: use \.get\(\)$"
    ):
        check(np.square, lambda *_: Elsewhere(), {"x": np.ones(3)})


X = np.ones(3, np.float16)


@each(
    ("arguments", "error", "message"),
    [
        ({"reference": None}, TypeError, "^reference must be a function, not NoneType$"),
        ({"precision": "half"}, ValueError, "^precision must be 'float16', 'bfloat16', 'tf32' or None, not 'half'$"),
        ({"inputs": {"x": [1, 2]}}, TypeError, "^input x must hold real floating-point numbers, not int64"),
        (
            {"reference": lambda x: x.astype(np.float32)},
            TypeError,
            "^reference must compute in double precision, not re",
        ),
        ({"reference": lambda x: x[:2]}, ValueError, r"^reference must return the shape .*, \(3,\): \(2,\)$"),
        ({"forward": lambda x: x.size}, TypeError, "^forward must return arrays of floating-point numbers, not int$"),
        ({"backward": lambda d, _: (d, d)}, ValueError, "^backward must return one gradient for each of the 1 inputs"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_in_one_sentence(arguments, error, message):
    usual = {"forward": np.sin, "backward": lambda d, x: d * np.cos(x), "inputs": {"x": X}, "reference": np.sin}
    with pytest.raises(error, match=message):
        check_low_precision(**(usual | arguments))


def scaled_by_size(x, weight):
    """Each row over its root mean square."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True)) * weight


def backward_of_scaled(wrong, d, x, weight):
    size = np.sqrt((x * x).mean(axis=-1, keepdims=True))
    y, d_y = x / size, d * (1 if wrong == "gamma" else weight)
    d_x = (d_y - (0 if wrong == "projection" else y * (d_y * y).mean(axis=-1, keepdims=True))) / size
    rows = y[:1] if wrong == "first row" else y
    return (-d_x if wrong == "sign" else d_x), (d[: len(rows)] * rows).sum(axis=0)


def backward_of_product(wrong, d, x, weight):
    if wrong == "transposed":
        return d.T @ weight.T, x.T @ d
    return d @ weight.T, (x.T[:, 1:] @ d[1:] if wrong == "row" else x.T @ d)


def backward_of_gated(wrong, d, x, weight):
    y = np.tanh(x)
    terms = {"one term": y, "other term": x * (1 - y * y)}
    return d * weight * terms.get(wrong, sum(terms.values())), d * x * y


SAID = {
    "gamma": "it is right for 1/weight times the gradient of the output in the place of that: ",
    "sign": "it is -1 times the numerical gradient ",
    "first row": "the gradient of the output is used only at index 0 of axis 0",
    "transposed": "the gradient of the output is taken in another order: axes 0 and 1 are transposed",
    "row": "the gradient of the output is left out at index 0 of axis 0",
    "projection": "the projection term of a normalization along axis 1, ",
    "one term": "no simple cause",
    "other term": "no simple cause",
}


@each("dtype", [np.float16], long=[ml_dtypes.bfloat16])
@each(
    ("forward", "backward", "wrong"),
    [
        (scaled_by_size, backward_of_scaled, "gamma"),
        (scaled_by_size, backward_of_scaled, "sign"),
        (scaled_by_size, backward_of_scaled, "first row"),
        (scaled_by_size, backward_of_scaled, "projection"),
        (np.matmul, backward_of_product, "transposed"),
        (np.matmul, backward_of_product, "row"),
        (lambda x, weight: x * np.tanh(x) * weight, backward_of_gated, "one term"),
        (lambda x, weight: x * np.tanh(x) * weight, backward_of_gated, "other term"),
    ],
)
@each("seed", [0], long=[1, 2])
def test_a_cause_is_named_as_it_is_in_double_precision_or_not_at_all(forward, backward, wrong, dtype, seed):
    x, weight = normal(6, 6, seed=seed), np.random.default_rng(seed).uniform(0.5, 2, (6, 6))
    inputs = {"x": x.astype(dtype), "weight": (weight[0] if backward is backward_of_scaled else weight).astype(dtype)}
    report = check_low_precision(
        lambda *arrays: forward(*map(single, arrays)).astype(dtype),
        lambda *arrays: tuple(x.astype(dtype) for x in backward(wrong, *map(single, arrays))),
        inputs,
        forward,
    )
    said = [str(entry.diagnosis) for entry in report if not entry.ok]
    too_coarse = dtype != np.float16 and wrong == "projection"
    assert len(said) == 1, str(report)
    assert said[0].startswith(SAID[wrong]) or (too_coarse and said[0] == "no simple cause"), said[0]


def test_what_saturated_outputs_lose_is_allowed_in_any_order_in_memory():
    x = np.asfortranarray(np.array([[4.2, -4.4, 0.3], [5.0, 0.1, -4.1]], np.float16))

    def backward(d_y, x):
        return np.asfortranarray(kernels("float16")["tanh"][1](d_y, x))

    for right in (True, False):
        wrong = 1 if right else np.where(x == x[1, 1], 1.1, 1)
        report = check_low_precision(
            kernels("float16")["tanh"][0],
            lambda d_y, x, w=wrong: (w * backward(d_y, x)).astype(x.dtype),
            {"x": x},
            np.tanh,
        )
        assert report.ok == right, str(report)


def log_of_sum(x):
    top = x.real.max(axis=-1, keepdims=True)
    return (top + np.log(np.exp(x - top).sum(axis=-1, keepdims=True)))[:, 0]


@pytest.mark.parametrize("seed", [0, 5, 8, 14])
@pytest.mark.parametrize("right", [True, False])
def test_where_a_wrong_gradient_jumps_close_by_that_is_no_rounding(right, seed):
    def backward(d, x):
        d, x = single(d)[:, None], single(x)
        g = d * np.exp(x - log_of_sum(x)[:, None])
        if not right:  # the largest of each row counts twice, and is another one close by
            g += d * (x == x.max(axis=-1, keepdims=True))
        return g.astype(np.float16)

    x = (np.random.default_rng(seed).standard_normal((1, 16)) / 2).astype(np.float16)
    report = check_low_precision(lambda x: log_of_sum(single(x)).astype(np.float16), backward, {"x": x}, log_of_sum)
    assert report.ok == right, str(report)


@pytest.mark.parametrize("seed", [0, 1, 14])
def test_a_kink_of_the_reference_within_the_step_is_not_the_kernels(seed):
    def backward(d, x, w):
        x, w, d = single(x), single(w), single(d)
        d = d * (x @ w > 0)
        return (d @ w.T).astype(np.float16), (x.T @ d).astype(np.float16)

    def relu(x, w):
        return np.maximum(x @ w, 0)

    rng = np.random.default_rng(1028)
    inputs = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in (("x", (4, 6)), ("w", (6, 5)))}
    report = check_low_precision(
        lambda *arrays: relu(*map(single, arrays)).astype(np.float16),
        backward,
        inputs,
        relu,
        rng=seed,
        method="central",
    )
    assert report.ok, str(report)


@each(("wrong", "said"), [(lambda g: g.T, r"\(3, 2\)"), (lambda g: None, "None")])  # noqa: ARG005
def test_a_gradient_of_the_reference_has_the_shape_of_the_input(wrong, said):
    x = np.ones((2, 3), np.float16)
    with pytest.raises(ValueError, match=rf"^reference's backward must return .* the shape of x, \(2, 3\): {said}"):
        check_low_precision(np.sin, lambda d, x: d * np.cos(x), {"x": x}, (np.sin, lambda d, x: wrong(d * np.cos(x))))


def test_what_is_added_in_half_precision_is_no_constant_unless_it_is_one_in_every_entry():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

    def reference(x):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True))

    def backward(d, x):
        x, d = x.astype(float), d.astype(float)
        r = np.sqrt((x * x).mean(axis=-1, keepdims=True))
        return (d / r - x * (d * x).mean(axis=-1, keepdims=True) / r**3 + 0.05 * x).astype(bfloat16)

    for seed in range(8):
        x = {"x": normal(4, 12, seed=seed).astype(bfloat16)}
        found = check_low_precision(lambda x: reference(x.astype(float)).astype(bfloat16), backward, x, reference)
        assert not found.ok
        assert "a constant is added" not in found["x"].diagnosis


def cross_entropy(x):
    """The mean over rows whose target is the first entry."""
    largest = x.max(axis=-1, keepdims=True)
    return np.mean(largest[:, 0] + np.log(np.exp(x - largest).sum(axis=-1)) - x[:, 0])


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize(("at_target", "right"), [(1, True), (0.5, False), (0, False)])
def test_an_output_that_one_of_many_entries_hardly_moves_has_not_saturated(precision, at_target, right):
    x = ROUNDED[precision](2 * normal(37, 20))
    target = np.arange(20) == 0
    calls = []

    def loss(x):
        calls.append(x)
        return cross_entropy(x)

    report = check_low_precision(
        lambda x: ROUNDED[precision](cross_entropy(single(x))),
        lambda d, x: ROUNDED[precision](single(d) * (softmax(single(x)) - at_target * target) / len(x)),
        {"x": x},
        (loss, lambda d, x: (d * (softmax(x) - target) / len(x),)),
    )
    assert report.ok == right, str(report)
    assert right or report["x"].wrong == len(x)
    assert len(calls) <= 3  # the reference's own gradient is believed


def test_a_gradient_of_one_entry_that_is_known_well_enough_holds():
    def summed(d):  # block by block
        return np.cumsum(d.reshape(-1, 100).sum(axis=1), dtype=np.float32)[-1]

    report = check_low_precision(
        lambda x, b: x + b,
        lambda d, x, b: (d, np.asarray(summed(d))),  # noqa: ARG005
        {"x": normal(15000).astype(np.float32), "b": np.float32(0.3)},
        (lambda x, b: x + b, lambda d, x, b: (d, d.sum())),  # noqa: ARG005
    )
    assert report["b"].undecided
    assert report.ok, str(report)


def test_a_reference_whose_complex_step_is_none_is_measured_by_differences():
    def cube(x):  # of complex numbers as some libraries do it
        return np.exp(3 * np.log(x)) if np.iscomplexobj(x) else x**3

    x = {"x": normal(9).astype(np.float32)}
    assert check_low_precision(cube, lambda d, x: d * 3 * x * x, x, cube).ok
    report = check_low_precision(cube, lambda d, x: d * 2 * x * x, x, cube)
    assert report["x"].diagnosis == "it is 0.6666667 times the numerical gradient throughout"


def normalized(x):
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True))


def test_a_kernel_whose_norm_makes_all_sizes_alike_holds_where_it_saturates():
    half, scale = ROUNDED["float16"], 20.0

    def weights_of(query, key):
        return single(half(softmax(half(scale * normalized(single(query)) @ normalized(single(key)).T))))

    def back(d_y, x):
        y, size = normalized(x), np.sqrt((x * x).sum(axis=-1, keepdims=True))
        return (d_y - y * (d_y * y).sum(axis=-1, keepdims=True)) / size

    def backward(d, query, key, value):
        d, query, key, value = map(single, (d, query, key, value))
        weights = weights_of(query, key)
        delta = (d * single(half(weights @ value))).sum(axis=-1, keepdims=True)
        d_scores = scale * weights * (d @ value.T - delta)
        d_query = back(d_scores @ normalized(key), query)
        return half(d_query), half(back(d_scores.T @ normalized(query), key)), half(weights.T @ d)

    for seed in range(3):
        shapes = {"query": (4, 4), "key": (5, 4), "value": (5, 4)}
        report = check_low_precision(
            lambda query, key, value: half(weights_of(query, key) @ single(value)),
            backward,
            {name: half(normal(*shape, seed=10 * seed + k)) for k, (name, shape) in enumerate(shapes.items())},
            lambda query, key, value: softmax(scale * normalized(query) @ normalized(key).T) @ value,
        )
        assert report.ok, str(report)


@pytest.mark.parametrize(("factor", "wrong"), [(1, 0), (-1, 10), (3, 10)])
def test_what_is_wrong_shows_beside_any_number_of_saturated_entries(factor, wrong):
    rng, half = np.random.default_rng(0), ROUNDED["float16"]
    x = half(np.concatenate([5 + 0.2 * rng.random(200), 0.5 + rng.random(10), 0.05 * rng.random(20)]))
    weights = np.where((x > 0.2) & (x < 2), 1e-5, 1).astype(np.float32)

    def backward(d, x):
        y = single(half(np.tanh(single(x))))
        slope = single(half(1 - single(half(y * y))))
        return half(single(d) * weights * np.where(weights < 1, factor, 1) * slope)

    report = check_low_precision(
        lambda x: half(weights * single(half(np.tanh(single(x))))), backward, {"x": x}, lambda x: weights * np.tanh(x)
    )
    assert report["x"].wrong == wrong, str(report)


def in_single(function, dtype):
    """A kernel that computes in float32, and stores in another dtype."""
    return lambda *arrays: function(*map(single, arrays)).astype(dtype)


@each("dtype", [np.float16, ml_dtypes.bfloat16])
@each(
    ("wrong", "name", "said"),
    [
        (lambda d, x, w: [1.15 * d @ w.T, x.T @ d], "x", "it is about 1.15 times the numerical gradient"),
        (lambda d, x, w: [d @ w.T + 0.37, x.T @ d], "x", "a constant is added to it, about 0.37 in every entry"),
        (
            lambda d, x, w: [d @ w.T, x.T @ (d * np.array([1, 1.7, 1, 1, 1, 1])[:, None])],
            "w",
            "the gradient of the output is used about 1.7 times at index 1 of axis 0",
        ),
    ],
)
def test_numbers_are_told_in_the_digits_that_are_known_of_them(wrong, name, said, dtype):
    def backward(d, *arrays):
        return [np.asarray(gradient).astype(dtype) for gradient in wrong(single(d), *map(single, arrays))]

    inputs = {"x": normal(6, 4, seed=1).astype(dtype), "w": normal(4, 5, seed=2).astype(dtype)}
    assert said in check_low_precision(in_single(np.matmul, dtype), backward, inputs, np.matmul)[name].diagnosis


@each("dtype", [np.float16, ml_dtypes.bfloat16])
@each("times", [1 / 20, 20.0])
def test_a_factor_is_told_though_a_larger_claim_rounds_more_coarsely(times, dtype):
    def squares(x):
        return (x * x).mean()

    found = check_low_precision(
        in_single(lambda x: np.asarray(squares(x)), dtype),
        in_single(lambda d, x: d * np.float32(times * 2 / x.size) * x, dtype),
        {"x": normal(5, 20).astype(dtype)},
        squares,
    )["x"]
    assert found.diagnosis.startswith(f"it is about {times:g} times the numerical gradient")


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_backward(d, x, power=2):
    c = np.float32(np.sqrt(2 / np.pi))
    t = np.tanh(c * (x + np.float32(0.044715) * x**3))
    return d * (0.5 * (1 + t) + 0.5 * x * (1 - t**power) * c * (1 + 3 * np.float32(0.044715) * x**2))


@each("n", [2, 12])
def test_what_half_precision_has_no_number_for_is_not_said_to_be_clipped(n):
    x = np.append(2 * normal(n), -9).astype(np.float16)
    wrong = in_single(lambda d, x: gelu_backward(d, x, power=1), np.float16)
    found = check_low_precision(in_single(gelu, np.float16), wrong, {"x": x}, gelu)["x"]
    assert not found.ok
    assert "linear" not in found.diagnosis


@each("dtype", [np.float16, ml_dtypes.bfloat16])
@each("wrong", ["shifted", "reversed"])
def test_what_is_wrong_takes_at_most_five_times_the_calls_of_what_holds(wrong, dtype):
    calls = 0

    def logsumexp(x):
        nonlocal calls
        calls += 1
        return np.log(np.exp(x).sum(axis=-1))

    def backward(d, x):
        d_x = d[:, np.newaxis] * softmax(x)
        return {"shifted": d_x + 0.2 * np.abs(d_x).max(), "reversed": d_x[::-1, ::-1], "": d_x}[wrong]

    def ok():
        kernel = in_single(lambda x: np.log(np.exp(x).sum(axis=-1)), dtype), in_single(backward, dtype)
        return check_low_precision(*kernel, {"x": (4 * normal(3, 10)).astype(dtype)}, logsumexp)["x"].ok

    found, taken, calls, wrong = ok(), calls, 0, ""
    assert (found, ok()) == (False, True)
    assert taken <= 5 * calls
