"""Functions of strangers, with the mistakes that people make in their gradients, and what is said of them."""

import numpy as np
import pytest

from attention_np.gradcheck import check
from attention_np.gradcheck.diagnosis.mistake import Mistake

from .planted import normalized
from .programs import normal, softmax

TARGET = softmax(normal(3, 5, seed=1))
SHARES = softmax(normal(5, seed=2))


def said(forward, backward, inputs, where=None, **options):
    """What a check says of one input, by default the first, of which something is wrong."""
    report = check(forward, backward, inputs, **options)
    found = report[where or next(iter(inputs))]
    assert not found.ok
    return found.diagnosis


def cross_entropy(z):
    return -(TARGET * np.log(softmax(z))).sum(axis=-1)


def summed(x):
    return x.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "claimed",
    [
        lambda z: softmax(z),
        lambda z: softmax(z) - 0.9 * TARGET,
        lambda z: softmax(z) - (0.9 * TARGET + 0.1 * np.eye(5)[0]),
    ],
)
def test_the_target_of_a_cross_entropy_that_is_forgotten_or_wrong_is_not_the_softmax_correction(claimed):
    found = said(cross_entropy, lambda d, z: d[:, np.newaxis] * claimed(z), {"z": normal(3, 5, seed=3)})
    assert found == "no simple cause"


def test_weights_that_are_no_softmax_are_not_called_so():
    found = said(lambda x: x - summed(SHARES * x), lambda d, _: d.copy(), {"x": normal(6, 5, seed=1)})
    assert found.startswith("a term along axis 1 is missing or wrong: the errors of each row are a multiple of one")


def inner_softmax(x, w):
    return np.tanh(softmax(x) @ w)


def test_the_correction_of_a_softmax_inside_a_layer_is_called_so_by_its_weights():
    def backward(d, x, w):
        weights = softmax(x)
        d_sums = d * (1 - np.tanh(weights @ w) ** 2)
        return weights * (d_sums @ w.T), weights.T @ d_sums

    found = said(inner_softmax, backward, {"x": normal(4, 6, seed=1), "w": normal(6, 3, seed=2)})
    assert found.startswith("the softmax correction along axis 1, the weights times one sum a row, is missing")


def rms(x):
    return np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize(
    ("forward", "claimed", "term"),
    [
        (softmax, softmax, "the softmax correction"),
        (lambda x: x / summed(x), lambda x: 1 / summed(x), "the term of a division by the sum"),
        (lambda x: x**2 / summed(x**2), lambda x: 2 * x / summed(x**2), "a term with sum"),
        (lambda x: x / rms(x), lambda x: 1 / rms(x), "the term of an RMS normalization"),
    ],
)
def test_a_normalization_without_its_term_is_called_what_it_is(forward, claimed, term):
    x = {"x": np.random.default_rng(0).uniform(0.2, 2, (6, 5))}
    assert said(forward, lambda d, x: d * claimed(x), x).startswith(term)


@pytest.mark.parametrize(
    ("normal_form", "less_its_mean", "multiple"),
    [(normalized, True, "x less its mean"), (lambda x: x / rms(x), False, "x")],
)
def test_the_projection_term_of_a_normalization_with_a_gain_is_missed(normal_form, less_its_mean, multiple):
    def backward(d, x, gain):
        d_normal = d * gain
        size = np.sqrt(np.var(x, axis=-1, keepdims=True) + 1e-5) if less_its_mean else rms(x)
        d_x = (d_normal - less_its_mean * d_normal.mean(axis=-1, keepdims=True)) / size
        return d_x, (d * normal_form(x)).sum(axis=0)

    inputs = {"x": normal(6, 5, seed=1), "gain": normal(5, seed=2)}
    found = said(lambda x, gain: gain * normal_form(x) + 0.5, backward, inputs)
    assert found.startswith("the projection term of a normalization along axis 1")
    assert f"the errors of each row are a multiple of {multiple} whatever the cotangent" in found


def row(x, b):
    return np.tanh(x + b)


def row_slope(x, b):
    return 1 - np.tanh(x + b) ** 2


@pytest.mark.parametrize("method", ["complex-step", "central"])
@pytest.mark.parametrize(
    ("claimed", "is_the_term"),
    [
        (lambda d, x, b: (d * row_slope(x, b))[0], True),
        (lambda d, x, b: -d[0], False),  # noqa: ARG005
        (lambda d, x, b: -(d * row_slope(x, b))[0], False),
        (lambda d, x, b: (d * row_slope(x, b))[0] / 2, False),
        (lambda d, x, b: (d * np.cos(x + b))[0], False),
    ],
)
def test_what_depends_on_one_cotangent_alone_is_a_term_of_the_sum_only_if_it_is(claimed, is_the_term, method):
    def backward(d, x, b):
        return d * row_slope(x, b), claimed(d, x, b)

    inputs = {"x": normal(3, 6, seed=1), "b": normal(6, seed=2)}
    assert said(row, backward, inputs, "b", method=method).startswith(
        "it is only the term of index 0 of the sum over the broadcast axis 0"
        if is_the_term
        else "it depends on the cotangent at index 0 of axis 0 alone, where a sum over the broadcast axes belongs"
    )


@pytest.mark.parametrize(
    ("shape", "factor", "name"),
    [
        ((4, 7), 0.5, " (also 1/sqrt(4), where 4 is the length of axis 0 of x and the output)"),
        (
            (3, 5),
            0.6,
            ": perhaps 3/5, where 3 is the length of axis 0 of x and the output and 5 is the length of the last axis "
            "of x and the output; or 1 - 0.4, as for a dropout probability of 0.4",
        ),
        (
            (3, 9),
            3,
            ": perhaps sqrt(9), where 9 is the length of the last axis of x and the output; or 3, which is the "
            "length of axis 0 of x and the output",
        ),
        (
            (3, 9),
            1 / 3,
            ": perhaps 1/sqrt(9), where 9 is the length of the last axis of x and the output; or 1/3, where 3 is the "
            "length of axis 0 of x and the output",
        ),
        (
            (16, 4, 2),
            4,
            ": perhaps sqrt(16), where 16 is the length of axis 0 of x and the output; or 4, which is the "
            "length of axis 1 of x and the output",
        ),
    ],
)
def test_of_all_that_a_factor_may_be_none_is_stated_as_the_one(shape, factor, name):
    found = said(lambda x: x**3, lambda d, x: factor * d * 3 * x**2, {"x": normal(*shape, seed=1)})
    assert found == f"it is {factor:.9g} times the numerical gradient throughout{name}"


def test_a_number_of_the_call_comes_first():
    x = {"x": normal(4, 7, seed=1)}
    found = said(lambda x: x**3, lambda d, x: 2 * d * 3 * x**2, x, constants={"num_heads": 2})
    assert found == (
        "it is 2 times the numerical gradient throughout (also 2, which is num_heads; or sqrt(4), where 4 is the "
        "length of axis 0 of x and the output)"
    )


@pytest.mark.parametrize("shape", [(3,), (3, 1, 1)])
@pytest.mark.parametrize(
    ("n", "lengths"), [(2, "axis of length 2"), (20, "axes of lengths 4 and 5"), (40, "axes of lengths 2, 4 and 5")]
)
def test_a_mean_over_the_axes_beside_the_channels_is_called_so(shape, n, lengths):
    def forward(x, b):
        return np.tanh(x + b.reshape(3, 1, 1))

    def backward(d, x, b):
        d_sums = d * (1 - forward(x, b) ** 2)
        return d_sums, d_sums.sum(axis=(0, 2, 3)).reshape(shape) / n

    found = said(forward, backward, {"x": normal(2, 3, 4, 5, seed=1), "b": normal(*shape, seed=2)}, "b")
    assert f"1/{n}, as a mean in the place of the sum over the broadcast {lengths} gives" in found


def solution(matrix, b, tolerance):
    """By conjugate gradients, stopped early."""
    x, left = np.zeros_like(b), b.copy()
    direction = left.copy()
    while np.linalg.norm(left) > tolerance * np.linalg.norm(b):
        image = matrix @ direction
        step = (left @ left) / (direction @ image)
        x = x + step * direction
        after = left - step * image
        direction, left = after + (after @ after) / (left @ left) * direction, after
    return x


HALF = normal(40, 40, seed=3)
POSITIVE = HALF @ HALF.T / 40 + np.eye(40)
FACTORS = 1 + 3e-8 * np.random.default_rng(4).choice([-1, 1], (6, 8))


@pytest.mark.parametrize(
    ("forward", "backward", "shape"),
    [
        (lambda x: np.sin(np.pi * x), lambda d, x: d * np.pi * np.cos(3.1415926 * x), (6, 8)),
        (lambda b: np.linalg.solve(POSITIVE, b), lambda d, _: solution(POSITIVE, d, 1e-7), (40,)),
        (np.sin, lambda d, x: d * np.cos(x) * FACTORS, (6, 8)),
        (np.sin, lambda d, x: d * np.cos(x) * (1 + 5 * (FACTORS - 1)), (6, 8)),
    ],
)
def test_an_approximation_that_is_as_good_as_single_precision_is_not_called_so(forward, backward, shape):
    assert "float32" not in said(forward, backward, {"x": normal(*shape, seed=1)})


@pytest.mark.parametrize("method", ["complex-step", "central"])
def test_a_backward_that_is_computed_in_single_precision_is_called_so(method):
    def backward(d, x):
        return d * (1 - np.tanh(x.astype(np.float32)).astype(float) ** 2)

    found = said(np.tanh, backward, {"x": normal(6, 8, seed=1)}, method=method)
    assert found.startswith("its errors are of the size of rounding to float32")


def guarded(x):
    return np.where(np.abs(x) < 1e-3, 1e-3, x)


WITH_A_ZERO = np.where(np.arange(12) == 3, 0, normal(12, seed=1))


@pytest.mark.parametrize(
    ("forward", "slope"), [(lambda x: x * x, lambda x: 2 * guarded(x)), (np.cosh, lambda x: np.sinh(guarded(x)))]
)
@pytest.mark.parametrize("method", ["complex-step", "central"])
def test_a_point_where_a_function_is_stationary_is_not_behind_a_mask(forward, slope, method):
    found = said(forward, lambda d, x: d * slope(x), {"x": WITH_A_ZERO}, method=method)
    assert "behind a mask" not in found


def test_what_is_behind_a_mask_that_is_added_to_scores_is_found():
    mask = np.where(np.arange(5) < 3, 0, -1e9)

    def backward(d, x):
        weights = softmax(x + mask)
        return weights * (d - summed(weights * d)) + np.where(mask < 0, d, 0)

    found = said(lambda x: softmax(x + mask), backward, {"x": normal(4, 5, seed=1)})
    assert found == (
        "it is not zero where it must be, as behind a mask: in all 8 entries without any effect, from index 3 of axis "
        "1 on (of 5)"
    )


def test_a_forgotten_derivative_is_not_the_gradient_of_another_input():
    inputs = {"x": normal(3, 4, seed=1), "h": normal(3, 4, seed=2)}
    found = said(lambda x, h: x + np.tanh(h), lambda d, x, h: (d.copy(), d.copy()), inputs, "h")  # noqa: ARG005
    assert found == "no simple cause"


@pytest.mark.parametrize("shape", [(3, 4), (4,), (3, 1)])
def test_a_forgotten_factor_is_not_the_gradient_of_a_bias(shape):
    axes = tuple(k for k, n in enumerate(np.broadcast_shapes(shape, (1, 1))) if n == 1)

    def backward(d, x, w, b):  # noqa: ARG001
        d_b = d.sum(axis=axes).reshape(shape)
        return d * w, d_b, d_b.copy()

    inputs = {"x": normal(3, 4, seed=1), "w": normal(*shape, seed=2), "b": normal(*shape, seed=3)}
    assert said(lambda x, w, b: x * w + b, backward, inputs, "w") == "no simple cause"


def test_of_a_large_input_hardly_more_than_the_entries_that_were_looked_at_is_compared(monkeypatch):
    compared = []
    explains = Mistake.is_explained_by

    def counted(case, *args, **kwargs):
        compared.append(case.claimed.size)
        return explains(case, *args, **kwargs)

    monkeypatch.setattr(Mistake, "is_explained_by", counted)
    inputs = {"x": normal(20_000, seed=1)}
    found = said(np.sin, lambda d, x: d * np.sin(x), inputs, vectorized="x", max_entries=50, directions=1)
    assert found == "no simple cause"
    assert sum(size > 3 * 50 for size in compared) < 20


def test_one_wrong_entry_of_two_is_no_place():
    x = {"x": np.array([0.3, 1.7])}
    assert said(np.sin, lambda d, x: d * np.cos(x) * [1, np.e / 2], x) == "no simple cause"
