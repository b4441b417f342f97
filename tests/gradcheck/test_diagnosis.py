import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, WRONG
from attention_np.gradcheck.diagnosis import Evidence, diagnose, diagnose_shape
from attention_np.gradcheck.diagnosis.case import Case
from attention_np.gradcheck.diagnosis.cotangents import correlation, unrelated

from .planted import FUNCTIONS, PLANTED, normal, softmax

EPS = float(np.finfo(float).eps)
seeds = st.integers(0, 2**32 - 1)


def jacobian(forward, inputs, name):
    """By the complex step, (*output.shape, *input.shape)."""
    x = inputs[name]
    columns = []
    for k in range(x.size):
        moved = {other: y.astype(complex) for other, y in inputs.items()}
        moved[name].flat[k] += 1e-30j
        columns.append(np.asarray(forward(*moved.values())).imag / 1e-30)
    return np.stack(columns, axis=-1).reshape((*np.shape(columns[0]), *x.shape))


def cotangents_for(output, rng):
    u = rng.standard_normal((3, *output.shape))
    if not output.ndim:
        return u
    squares = (output**2).sum(axis=-1, keepdims=True)
    along = (u[0] * output).sum(axis=-1, keepdims=True) / np.where(squares > 0, squares, 1)
    u[2] = u[0] - along * output
    return u


def evidence_of(forward, backward, inputs, where, constants=None, seed=0):
    """What a check would find."""
    output = np.asarray(forward(*inputs.values()))
    u = cotangents_for(output, np.random.default_rng(seed))
    slopes = {name: jacobian(forward, inputs, name) for name in inputs}
    numerical = {name: np.tensordot(u, slope, output.ndim) for name, slope in slopes.items()}
    answers = [backward(cotangent, *inputs.values()) for cotangent in (*u, 0 * u[0])]
    analytic = {name: np.stack([answer[k] for answer in answers[:3]]) for k, name in enumerate(inputs)}
    analytic = {name: a for name, a in analytic.items() if a.shape[1:] == inputs[name].shape}
    floor = 8 * EPS * np.tensordot(abs(u[0]), abs(slopes[where]), output.ndim)
    verdict = np.full(inputs[where].shape, WRONG)
    if where in analytic:
        floor = floor + 4 * EPS * abs(analytic[where][0])
        verdict = np.where(abs(analytic[where][0] - numerical[where][0]) > 10 * floor, WRONG, HOLDS)
    at_zero = np.asarray(answers[3][list(inputs).index(where)])
    return Evidence(where, inputs, output, u, analytic, numerical, floor, verdict, at_zero, constants or {})


def linear_evidence(right, wrong, shape, output_shape, rng, noise=8 * EPS, constants=None):
    """Evidence of a function with the Jacobian `right`, (output, input), and a backward with the Jacobian `wrong`."""
    output, x = rng.standard_normal(output_shape), rng.standard_normal(shape)
    u = cotangents_for(output, rng)
    flat = u.reshape(3, -1)
    sizes = (abs(flat) @ (abs(right) + abs(wrong))).reshape(3, *shape)
    numerical, analytic = ((flat @ slopes).reshape(3, *shape) for slopes in (right, wrong))
    numerical = numerical + noise * sizes * rng.uniform(-1, 1, sizes.shape)
    floor = noise * sizes[0]
    verdict = np.where(abs(analytic[0] - numerical[0]) > 10 * floor, WRONG, HOLDS)
    return Evidence("x", {"x": x}, output, u, {"x": analytic}, {"x": numerical}, floor, verdict, 0 * x, constants or {})


def diagnosis_of(planted, seed=0):
    found = evidence_of(planted.forward, planted.wrong_backward, planted.inputs, planted.where, seed=seed)
    if planted.where in found.analytic:
        return diagnose(found)
    gradient = planted.wrong_backward(found.cotangents[0], *planted.inputs.values())
    return diagnose_shape(gradient[list(planted.inputs).index(planted.where)], found.numerical[planted.where][0])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_functions_in_which_bugs_are_planted_are_correct_and_nothing_is_said_of_them(name):
    forward, backward, inputs = FUNCTIONS[name]
    for where in inputs:
        found = evidence_of(forward, backward, inputs, where)
        np.testing.assert_allclose(found.analytic[where], found.numerical[where], rtol=0, atol=1e-14)
        assert (found.verdict == HOLDS).all()
        assert diagnose(found) is None


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_planted_bug_is_named_and_of_a_wrong_formula_nothing_is_said(planted, seed):
    sentence = diagnosis_of(planted, seed)
    if planted.expected is None:
        assert sentence is None
        return
    assert sentence is not None
    assert re.search(planted.expected, sentence), sentence
    assert sentence[0].islower() or sentence[0].isdigit()
    assert sentence[-1] != "."
    assert "\n" not in sentence
    assert "nan" not in sentence


def test_the_names_of_the_planted_bugs_are_unique():
    names = [planted.name for planted in PLANTED]
    assert len(set(names)) == len(names)


# Factors


def test_a_factor_near_a_name_but_clearly_not_it_has_no_name():
    forward, backward, inputs = FUNCTIONS["attention"]
    found = evidence_of(forward, lambda *a: [(np.sqrt(8) + 1e-9) * g for g in backward(*a)], inputs, "query")
    assert diagnose(found) == "it is 2.82842713 times the numerical gradient throughout"


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda d, x: -d * np.cos(x), "it is -1 times the numerical gradient throughout"),
        (lambda d, x: 2 * d * np.cos(x), "it is 2 times the numerical gradient throughout"),
        (lambda d, x: 0.73 * d * np.cos(x), "it is 0.73 times the numerical gradient throughout"),
        (lambda d, x: 0 * d * x, "it is zero throughout"),
        (lambda d, x: d * np.sin(x), None),
        (lambda d, x: d * x, None),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_single_ratio_is_a_factor_only_if_it_is_no_accident(wrong, expected, shape):
    x = np.full(shape, normal(seed=1))
    assert diagnose(evidence_of(np.sin, lambda *a: (wrong(*a),), {"x": x}, "x")) == expected


def test_round_inputs_make_round_ratios_of_wrong_formulas():
    found = evidence_of(lambda x: 1 / x, lambda d, x: (-d / x,), {"x": np.array(2.0)}, "x")
    np.testing.assert_allclose(found.analytic["x"], 2 * found.numerical["x"])
    assert diagnose(found) is None


def test_three_ratios_of_a_single_entry_make_a_factor():
    forward, backward, inputs = FUNCTIONS["wave"]
    found = evidence_of(forward, lambda *a: [g / np.pi for g in backward(*a)], inputs, "gain")
    assert diagnose(found) == "it is 0.318309886 times the numerical gradient throughout"


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(np.pi, None), (-1, "wrong only at index 2 of axis 0, where it is -1 times the numerical gradient")],
)
def test_one_wrong_entry_of_an_elementwise_function_has_some_ratio_whatever_is_wrong(factor, expected):
    rng = np.random.default_rng(0)
    right = np.diag(rng.standard_normal(6))
    wrong = right * np.where(np.arange(6) == 2, factor, 1)
    assert diagnose(linear_evidence(right, wrong, (6,), (6,), rng)) == expected


@pytest.mark.parametrize(
    ("claimed", "expected"),
    [([1.0, 1.001, 0.999], None), ([1.0, 1.0, 1.0], "it is the same whatever the cotangent")],
)
def test_one_entry_is_the_same_for_every_cotangent_only_if_it_is_so_exactly(claimed, expected):
    rng = np.random.default_rng(0)
    found = linear_evidence(np.ones((6, 1)), np.ones((6, 1)), (1,), (6,), rng, noise=1e-3)
    found = found._replace(
        analytic={"x": np.array(claimed)[:, np.newaxis]},
        verdict=np.full(1, WRONG),
        at_zero=None,
        floor=np.full(1, 1e-3),
    )
    sentence = diagnose(found)
    assert sentence.startswith(expected) if expected else sentence is None, sentence


# The softmax correction


def heads_of_scores(scores, value, w):
    return np.concatenate(list(softmax(scores) @ value), axis=-1) @ w


def heads_of_scores_backward(correction):
    def backward(d, scores, value, w):
        heads = (d @ w.T).reshape(len(d), len(scores), -1).swapaxes(0, 1)
        weights = softmax(scores)
        d_weights = heads @ np.swapaxes(value, -1, -2)
        return weights * (d_weights - correction * (weights * d_weights).sum(axis=-1, keepdims=True)), None, None

    return backward


SCORES = {"scores": normal(3, 4, 5, seed=1), "value": normal(3, 5, 4, seed=2), "w": normal(12, 6, seed=3)}


@pytest.mark.parametrize("correction", [0, 2, -1])
def test_the_softmax_correction_is_missed_behind_a_projection_of_heads(correction):
    """Where the rows of the output are not those that the correction is about."""
    backward = heads_of_scores_backward(correction)
    found = evidence_of(heads_of_scores, lambda *a: [backward(*a)[0], 0 * a[2], 0 * a[3]], SCORES, "scores")
    assert not np.allclose(found.analytic["scores"][2], found.numerical["scores"][2])
    assert diagnose(found).startswith("the softmax correction along axis 2")


def test_the_softmax_may_be_along_another_axis():
    def forward(x):
        return softmax(x.T).T

    found = evidence_of(forward, lambda d, x: (d * forward(x),), {"x": normal(5, 3, seed=1)}, "x")
    assert diagnose(found).startswith("the softmax correction along axis 0")


def test_a_mean_that_is_not_taken_off_is_not_the_softmax_correction():
    x = normal(3, 5, seed=1)
    found = evidence_of(lambda x: x - x.mean(axis=-1, keepdims=True), lambda d, _: (d,), {"x": x}, "x")
    assert diagnose(found) is None


def test_a_factor_on_a_gradient_that_is_zero_for_orthogonal_rows_is_that_factor():
    inputs = {"x": normal(4, 5, seed=1), "scale": normal(4, 1, seed=2)}

    def backward(d, x, scale):
        return d * scale * np.cos(x), np.pi * (d * np.sin(x)).sum(axis=-1, keepdims=True)

    found = evidence_of(lambda x, scale: np.sin(x) * scale, backward, inputs, "scale")
    assert abs(found.numerical["scale"][2]).max() < 1e-14
    assert diagnose(found) == "it is 3.14159265 times the numerical gradient throughout"


def test_a_formula_that_is_wrong_where_orthogonal_rows_give_zero_anyway_has_no_simple_cause():
    inputs = {"x": normal(4, 5, seed=1), "scale": normal(4, 1, seed=2)}

    def backward(d, x, scale):
        return d * scale * np.cos(x), (d * np.sin(x)).sum(axis=-1, keepdims=True) * np.sinh(scale)

    assert diagnose(evidence_of(lambda x, scale: np.sin(x) * scale, backward, inputs, "scale")) is None


@pytest.mark.parametrize(
    ("vectors", "offset", "expected"),
    [
        ([[1, 2, 3, 4, 5, 6]], 0, "the softmax correction along axis 0"),
        ([[1, 2, 3, -4, 5, 6]], 0, None),  # weights are of one sign
        ([[1, 2, 3, 4, 5, 6], [6, 2, 5, 1, 4, 4]], 0, None),  # and the same for every cotangent
        ([[1, 2, 3, 4, 5, 6]], 1, None),  # and the right rows sum to zero
        ([[1, 2]], 0, None),  # and there are enough of them
    ],
)
def test_the_softmax_correction_takes_errors_like_weights(vectors, offset, expected):
    n = len(vectors[0])
    for seed in range(8):
        rng = np.random.default_rng(seed)
        right = np.eye(n) - 1 / n + offset * rng.standard_normal((n, n))
        wrong = right + sum(np.outer(rng.standard_normal(n), vector) for vector in vectors)
        sentence = diagnose(linear_evidence(right, wrong, (n,), (n,), rng))
        assert sentence.startswith(expected) if expected else sentence is None, sentence


# Sums of which not all terms were taken


@pytest.mark.parametrize(
    ("forward", "slope"),
    [
        (lambda x, b: softmax(x + b), lambda x, b: np.ones_like(x)),  # noqa: ARG005
        (lambda x, b: softmax(x * b), lambda x, b: x),  # noqa: ARG005
    ],
)
def test_terms_of_a_sum_are_known_by_the_gradient_of_an_input_that_is_not_broadcast(forward, slope):
    inputs = {"x": normal(4, 3, seed=1), "b": normal(3, seed=2)}

    def backward(d, x, b):
        weights = forward(x, b)
        inner = weights * (d - (weights * d).sum(axis=-1, keepdims=True))
        return 0 * x, (inner * slope(x, b))[1:].sum(axis=0)

    found = evidence_of(forward, backward, inputs, "b")
    assert diagnose(found) == "the term of index 0 is missing from the sum over the broadcast axis 0 (of 4)"


def test_terms_of_a_sum_over_a_batch_of_matrices_are_known():
    inputs = {"x": normal(3, 5, 4, seed=1), "w": normal(4, 2, seed=2)}
    found = evidence_of(lambda x, w: x @ w, lambda d, x, w: (d @ w.T, x[1].T @ d[1]), inputs, "w")
    assert diagnose(found) == "it is only the term of index 1 of the sum over the broadcast axis 0 (of 3)"


def test_the_same_number_added_to_entries_that_are_equal_anyway_is_no_evidence():
    rng = np.random.default_rng(0)
    right = np.repeat(rng.standard_normal((5, 2)), 3, axis=1)
    wrong = right + rng.standard_normal((5, 1))
    assert diagnose(linear_evidence(right, wrong, (2, 3), (5,), rng)) is None


# Masks


def test_what_is_masked_belongs_to_any_slice():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 6, 6)) * np.tri(6)
    wrong = right.copy()
    wrong[:, :, 2] *= -1
    found = linear_evidence(right.reshape(7, 36), wrong.reshape(7, 36), (6, 6), (7,), rng)
    assert diagnose(found) == "wrong only at index 2 of axis 1, where it is -1 times the numerical gradient"


@pytest.mark.parametrize(("masked", "leaks", "expected"), [(1, 1, None), (3, 1, None), (3, 3, "in all 3 entries")])
def test_what_leaks_in_a_few_places_may_do_so_by_accident(masked, leaks, expected):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 9)) * (np.arange(9) >= masked)
    wrong = right + rng.standard_normal((7, 9)) * (np.arange(9) < leaks)
    found = linear_evidence(right, wrong, (9,), (7,), rng)
    numerical = np.where(np.arange(9) < masked, 0, found.numerical["x"])
    sentence = diagnose(found._replace(numerical={"x": numerical}))
    assert expected in sentence if expected else sentence is None, sentence


# Random errors


def test_random_numbers_look_random():
    forward, backward, inputs = FUNCTIONS["multi-head attention"]

    def wrong(d, *arrays):
        rng = np.random.default_rng(list(d.tobytes()[:64]))
        return [rng.standard_normal(g.shape) for g in backward(d, *arrays)]

    found = evidence_of(forward, wrong, inputs, "query")
    assert diagnose(found._replace(at_zero=None)).startswith("it looks random")


def test_random_numbers_with_a_pattern_do_not_look_random():
    forward, backward, inputs = FUNCTIONS["multi-head attention"]

    def wrong(d, *arrays):
        rng = np.random.default_rng(list(d.tobytes()[:64]))
        return [np.repeat(rng.standard_normal((*g.shape[:-1], 4)), 3, axis=-1) for g in backward(d, *arrays)]

    found = evidence_of(forward, wrong, inputs, "query")
    assert diagnose(found._replace(at_zero=None)) is None


def test_a_wrong_formula_is_not_a_matter_of_precision_because_it_was_rounded():
    planted = next(planted for planted in PLANTED if planted.name == "layer, x: no tanh derivative")
    found = evidence_of(
        planted.forward,
        lambda *a: [g.astype(np.float32).astype(float) for g in planted.wrong_backward(*a)],
        planted.inputs,
        "x",
    )
    assert diagnose(found) is None


def test_a_number_of_single_precision_is_no_evidence_where_the_right_one_is_such_a_number_too():
    rng = np.random.default_rng(0)
    found = linear_evidence(np.eye(12), 2 * np.eye(12), (12,), (12,), rng)
    right = found.numerical["x"].astype(np.float32)
    wrong = (right * (1 + rng.uniform(-3e-5, 3e-5, right.shape))).astype(np.float32)
    found = found._replace(numerical={"x": right.astype(float)}, analytic={"x": wrong.astype(float)})
    assert diagnose(found) is None


@pytest.mark.parametrize(
    ("entries", "expected"), [(9, None), (60, "its errors are of the size of rounding to float32")]
)
def test_errors_of_the_size_of_rounding_are_so_only_in_many_entries(entries, expected):
    for seed in range(4 if expected else 20):
        rng = np.random.default_rng(seed)
        right = rng.standard_normal((5, entries))
        wrong = right * (1 + rng.uniform(-6e-8, 6e-8, right.shape))
        sentence = diagnose(linear_evidence(right, wrong, (entries,), (5,), rng))
        assert sentence.startswith(expected) if expected else sentence is None, sentence


shapes = array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=5)


@given(shapes, shapes, seeds, st.floats(-5, 2), st.sampled_from([8 * EPS, 1e-6, 1e-3]))
def test_a_random_matrix_that_is_added_to_the_jacobian_has_no_simple_cause(shape, output_shape, seed, size, noise):
    if math.prod(shape) == 1 and math.prod(output_shape) == 1:
        return  # one number is a multiple of another, whatever they are
    rng = np.random.default_rng(seed)
    right, error = rng.standard_normal((2, math.prod(output_shape), math.prod(shape)))
    if math.prod(shape) == 1 and output_shape[-1:] == (1,):
        return  # there the third cotangent is zero, and two are few
    assert diagnose(linear_evidence(right, right + 10**size * error, shape, output_shape, rng, noise)) is None


@given(array_shapes(min_dims=2, max_dims=3, min_side=3, max_side=5), shapes, seeds, st.floats(0.1, 0.6))
def test_random_errors_in_random_entries_have_no_simple_cause(shape, output_shape, seed, share):
    rng = np.random.default_rng(seed)
    right, error = rng.standard_normal((2, math.prod(output_shape), math.prod(shape)))
    wrong = right + error * (rng.random(error.shape) < share)
    assert diagnose(linear_evidence(right, wrong, shape, output_shape, rng)) is None


SMOOTH = [np.sin, np.cos, np.tanh, np.exp, np.cosh, np.square, lambda x: x, lambda x: x**3, lambda x: 1 / (1 + x**2)]
smooth = st.sampled_from(range(len(SMOOTH)))


@given(array_shapes(min_dims=1, max_dims=3, min_side=2, max_side=4), seeds, smooth, smooth, smooth)
def test_a_wrong_smooth_formula_has_no_simple_cause(shape, seed, inner, outer, wrong):
    """A layer f(g(x) @ w), differentiated as if the derivative of f were another function."""
    rng = np.random.default_rng(seed)
    x, w = rng.uniform(0.5, 1.5, shape), rng.uniform(0.3, 0.9, (shape[-1], 3))
    slope = jacobian(SMOOTH[outer], {"x": SMOOTH[inner](x) @ w}, "x").sum(axis=tuple(range(len(shape))))
    claimed = SMOOTH[wrong](SMOOTH[inner](x) @ w)
    if np.ptp(claimed / slope) < 1e-3 * abs(claimed / slope).max():
        return  # the same function, or a multiple
    along = jacobian(SMOOTH[inner], {"x": x}, "x").sum(axis=tuple(range(len(shape))))
    found = evidence_of(
        lambda x: SMOOTH[outer](SMOOTH[inner](x) @ w), lambda d, _: ((d * claimed) @ w.T * along,), {"x": x}, "x"
    )
    assert diagnose(found) is None


# Planted at random


matrices = array_shapes(min_dims=1, max_dims=4, min_side=2, max_side=5)
noises = st.sampled_from([8 * EPS, 1e-10, 1e-6])  # of the complex step, central differences, and float32


@given(matrices, matrices, seeds, noises, st.sampled_from([-1, 2, 0.5, -2, 1.7, 0.01, 300]))
def test_a_factor_is_found_in_any_shape(shape, output_shape, seed, noise, factor):
    rng = np.random.default_rng(seed)
    right = rng.standard_normal((math.prod(output_shape), math.prod(shape)))
    sentence = diagnose(linear_evidence(right, factor * right, shape, output_shape, rng, noise))
    assert sentence.startswith(f"it is {factor:g} times the numerical gradient throughout")


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda right, rng: -right, "it is -1 times the numerical gradient throughout"),  # noqa: ARG005
        (lambda right, rng: right[:, ::-1], "axes 0 and 1 are reversed"),  # noqa: ARG005
        (lambda right, rng: rng.standard_normal(right.shape), None),
        (lambda right, rng: -right * rng.uniform(0.7, 1.3, right.shape), None),
    ],
)
def test_in_half_precision_many_entries_make_up_for_the_noise_of_each(wrong, expected):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((6, 20))
    found = linear_evidence(right, wrong(right, rng), (4, 5), (6,), rng, noise=1e-3)
    assert diagnose(found._replace(floor=15 * found.floor)) == expected


def test_an_order_that_is_too_long_to_list_is_called_another():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((6, 31))
    found = linear_evidence(right, right[:, rng.permutation(31)], (31,), (6,), rng)
    assert diagnose(found) == "the slices along axis 0 are in another order"


@given(matrices, matrices, seeds, noises, st.data())
def test_another_order_is_found_in_any_shape(shape, output_shape, seed, noise, data):
    rng = np.random.default_rng(seed)
    places = np.arange(math.prod(shape)).reshape(shape)
    axis = data.draw(st.sampled_from(range(len(shape))))
    square = [(i, j) for i in range(len(shape)) for j in range(i) if shape[i] == shape[j]]
    orders = {
        f"axis {axis} is reversed": np.flip(places, axis),
        f"it is shifted by 1 along axis {axis}": np.roll(places, 1, axis),
        f"along axis {axis} are in another order|of axis {axis} are exchanged": np.take(
            places, rng.permutation(shape[axis]), axis
        ),
    }
    if square:
        i, j = data.draw(st.sampled_from(square))
        orders[f"axes {j} and {i} are transposed"] = np.swapaxes(places, i, j)
    expected = data.draw(st.sampled_from(sorted(orders)))
    order = orders[expected].ravel()
    if (order == places.ravel()).all():
        return
    right = rng.standard_normal((math.prod(output_shape), math.prod(shape)))
    sentence = diagnose(linear_evidence(right, right[:, order], shape, output_shape, rng, noise))
    others = [what for what, other in orders.items() if (other.ravel() == order).all()]
    if "another order" in expected or shape[axis] <= 3:  # then one may come to the same as another
        others.append("is reversed|shifted by|are exchanged|another order|transposed")
    assert re.search("|".join(others), sentence), sentence


@given(array_shapes(min_dims=2, max_dims=4, min_side=3, max_side=5), matrices, seeds, noises, st.data())
def test_a_slice_is_found_in_any_shape_with_what_it_holds(shape, output_shape, seed, noise, data):
    rng = np.random.default_rng(seed)
    axis = data.draw(st.sampled_from(range(len(shape))))
    index = data.draw(st.sampled_from(range(shape[axis])))
    change, expected = data.draw(
        st.sampled_from([(0.0, ", where it is zero$"), (-1.0, ", where it is -1 times"), (None, "$")])
    )
    right = rng.standard_normal((math.prod(output_shape), math.prod(shape)))
    wrong = right.copy()
    slices = np.take(np.arange(math.prod(shape)).reshape(shape), index, axis).ravel()
    wrong[:, slices] = rng.standard_normal(wrong[:, slices].shape) if change is None else change * wrong[:, slices]
    if change is None and len(slices) < 5:
        return  # a few wrong entries are in a row by chance every now and then
    sentence = diagnose(linear_evidence(right, wrong, shape, output_shape, rng, noise))
    assert re.search(f"^wrong only at index {index} of axis {axis}{expected}", sentence), sentence


@given(array_shapes(min_dims=1, max_dims=3, min_side=4, max_side=12), seeds, st.data())
def test_a_range_is_found_in_any_shape(shape, seed, data):
    rng = np.random.default_rng(seed)
    axis = data.draw(st.sampled_from(range(len(shape))))
    length = shape[axis]
    first = data.draw(st.integers(0, length - 2))
    last = data.draw(st.integers(first + 1, length - 1))
    if (first, last) == (0, length - 1):
        return
    right = rng.standard_normal((7, math.prod(shape)))
    wrong = right.copy()
    wrong[:, np.take(np.arange(math.prod(shape)).reshape(shape), range(first, last + 1), axis).ravel()] *= -1
    where = (
        f"from index {first} of axis {axis} on"
        if last == length - 1
        else f"up to index {last} of axis {axis}"
        if first == 0
        else f"from index {first} to {last} of axis {axis}"
    )
    sentence = diagnose(linear_evidence(right, wrong, shape, (7,), rng))
    assert sentence.startswith(f"wrong only {where} (of {length})"), sentence


@pytest.mark.parametrize(
    ("start", "stop", "constants", "expected"),
    [
        (
            4,
            8,
            {"num_heads": 3},
            "from index 4 to 7 of axis 1 (of 12: number 1, counted from 0, of the 3 parts that num_heads makes)",
        ),
        (
            8,
            12,
            {"num_heads": 3},
            "from index 8 of axis 1 on (of 12: number 2, counted from 0, of the 3 parts that num_heads makes)",
        ),
        (10, 12, {"block_size": 5}, "from index 10 of axis 1 on (of 12: the last, partial block of block_size=5)"),
        (3, 5, {"num_heads": 3}, "from index 3 to 4 of axis 1 (of 12)"),
    ],
)
def test_a_head_or_a_partial_block_is_called_so(start, stop, constants, expected):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 60))
    wrong = right.reshape(7, 5, 12).copy()
    wrong[..., start:stop] *= np.pi
    found = linear_evidence(right, wrong.reshape(7, 60), (5, 12), (7,), rng, constants=constants)
    assert diagnose(found) == f"wrong only {expected}, where it is 3.14159265 times the numerical gradient"


# What the evidence may lack


def test_nothing_is_said_where_nothing_can_be_compared():
    found = evidence_of(*FUNCTIONS["softmax"], "scores")
    assert diagnose(found._replace(analytic={})) is None
    unused = evidence_of(lambda x: 0 * x, lambda d, x: (d * x,), {"x": normal(3, 4, seed=1)}, "x")
    assert (unused.verdict == WRONG).all()
    assert diagnose(unused) is None
    infinite = found.analytic["scores"] * np.inf
    assert diagnose(found._replace(analytic={"scores": infinite}, verdict=np.full((4, 6), WRONG))) is None


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0, 2)])
def test_nothing_is_said_of_a_gradient_without_entries(shape):
    x = np.zeros(shape)
    assert diagnose(evidence_of_nothing(x)) is None


def evidence_of_nothing(x):
    none = np.zeros((3, *x.shape))
    return Evidence("x", {"x": x}, x, none, {"x": none}, {"x": none}, x, x.astype(int), x, {})


def sampled(found, share, seed=0):
    """The same, with only some of the entries looked at."""
    skipped = np.random.default_rng(seed).random(found.verdict.shape) >= share
    numerical = found.numerical[found.name].copy()
    numerical[:, skipped] = np.nan
    return found._replace(
        numerical={**found.numerical, found.name: numerical}, verdict=np.where(skipped, UNCHECKED, found.verdict)
    )


@pytest.mark.parametrize(
    "name",
    [
        "attention, query: minus the scale",
        "layer, b: a mean in the place of the sum",
        "square matmul, a: transposed",
        "running mean, x: time reversed",
        "causal attention, key: swapped with query",
        "layer, w: weight decay",
        "multi-head attention, value: one sample",
        "attention, query: no correction",
        "layer, w: each column with its own",
        "attention, key: float16",
        "layer, x: no tanh derivative",
        "attention, value: weights without the scale",
    ],
)
def test_a_sample_of_the_entries_is_enough(name):
    planted = next(planted for planted in PLANTED if planted.name == name)
    found = evidence_of(planted.forward, planted.wrong_backward, planted.inputs, planted.where)
    found = sampled(found, share=0.75)
    assert np.isnan(found.numerical[planted.where]).any()
    sentence = diagnose(found)
    assert (sentence is None) if planted.expected is None else re.search(planted.expected, sentence), sentence


@pytest.mark.parametrize(("pairs", "enough"), [(2, False), (6, True)])
def test_an_order_that_a_sample_hardly_shows_is_not_claimed(pairs, enough):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 36))
    found = linear_evidence(right, right.reshape(7, 6, 6).swapaxes(1, 2).reshape(7, 36), (6, 6), (7,), rng)
    below = np.flatnonzero(np.tri(6, k=-1))[:pairs]
    seen = np.tri(6, dtype=bool).T
    seen.flat[below] = True
    numerical = np.where(seen, found.numerical["x"], np.nan)
    sentence = diagnose(found._replace(numerical={"x": numerical}))
    assert (sentence == "axes 0 and 1 are transposed") == enough


def test_what_a_verdict_calls_unchecked_is_not_looked_at_whatever_stands_there():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 20))
    found = linear_evidence(right, -right, (20,), (7,), rng)
    skipped = np.arange(20) % 3 == 0
    numerical = np.where(skipped, 7.0, found.numerical["x"])
    found = found._replace(numerical={"x": numerical}, verdict=np.where(skipped, UNCHECKED, found.verdict))
    assert diagnose(found) == "it is -1 times the numerical gradient throughout"


def test_what_was_not_looked_at_is_not_claimed():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 60))
    wrong = right * np.where(np.arange(60) < 30, 1, np.pi)
    sentence = diagnose(sampled(linear_evidence(right, wrong, (6, 10), (7,), rng), share=0.5))
    assert sentence.startswith("wrong only from index 3 of axis 0 on (of 6) (of the entries that were looked at)")


def test_without_the_gradient_for_a_cotangent_of_zeros_the_same_constants_are_found():
    planted = [planted for planted in PLANTED if planted.kind == "constant"]
    for bug in planted:
        found = evidence_of(bug.forward, bug.wrong_backward, bug.inputs, bug.where)._replace(at_zero=None)
        assert re.search(bug.expected, diagnose(found)), bug.name


@pytest.mark.parametrize("scale", [1e-140, 1e-12, 1e12, 1e140])
def test_the_scale_of_the_gradient_does_not_matter(scale):
    for planted in PLANTED[::5]:
        if planted.kind in ("shape", "constant") or "8.5" in (planted.expected or ""):
            continue
        found = evidence_of(planted.forward, planted.wrong_backward, planted.inputs, planted.where)
        scaled = found._replace(
            analytic={name: scale * a for name, a in found.analytic.items()},
            numerical={name: scale * n for name, n in found.numerical.items()},
            floor=scale * found.floor,
        )
        if planted.kind != "sum":  # whose terms are known from the inputs
            assert diagnose(scaled) == diagnose(found), planted.name


# Of another shape

TERMS = normal(3, 4, 5, seed=1)
G = normal(4, 5, seed=2)


@pytest.mark.parametrize(
    ("gradient", "numerical", "expected"),
    [
        (TERMS, TERMS.sum(axis=0), "the sum over the broadcast axis 0 is missing"),
        (TERMS, TERMS.sum(axis=(0, 2)), "the sum over the broadcast axes 0 and 2 is missing"),
        (TERMS, TERMS.sum(axis=1, keepdims=True), "the sum over the broadcast axis 1 is missing"),
        (TERMS, TERMS.sum(axis=(0, 1))[np.newaxis], "the sum over the broadcast axes 0 and 1 is missing"),
        (TERMS, TERMS.sum(), "the sum over the broadcast axes 0, 1 and 2 is missing"),
        (
            TERMS / 3,
            TERMS.sum(axis=0),
            "the sum over the broadcast axis 0 is missing, and the terms are those of a mean",
        ),
        (np.broadcast_to(G, (3, 4, 5)), G, "the sum over the broadcast axis 0 is repeated along it"),
        (G.T, G, "axes 0 and 1 are transposed"),
        (TERMS.transpose(1, 2, 0), TERMS, "its axes are in the order 1, 2 and 0"),
        (TERMS.swapaxes(0, 2), TERMS, "axes 0 and 2 are transposed"),
        (G.ravel(), G, "it is right, but flattened"),
        (G.T.ravel(), G, "axes 0 and 1 are transposed, and it is flattened"),
        (G.reshape(2, 10), G, "it is right, but reshaped to (2, 10)"),
        (G[np.newaxis], G, "it is right, but has an extra axis of length 1: (1, 4, 5) in the place of (4, 5)"),
        (G[:1], G[0], "it is right, but has an extra axis of length 1: (1, 5) in the place of (5,)"),
        (G[0], G[:1], "it is right, but lacks an axis of length 1: (5,) in the place of (1, 5)"),
        (
            G[np.newaxis, np.newaxis],
            G,
            "it is right, but has other axes of length 1: (1, 1, 4, 5) in the place of (4, 5)",
        ),
        (TERMS[:, :2], TERMS[:, :2].sum(axis=0), "the sum over the broadcast axis 0 is missing"),
        (np.full((3, 4), 0.7), np.array(0.7), "the sum over the broadcast axes 0 and 1 is repeated along it"),
        (TERMS[0], TERMS, "it is only index 0 of axis 0"),
        (np.float16(TERMS), 1.01 * TERMS.sum(axis=0), None),
        (G.sum(axis=1), G, "it is summed over axis 1, which the input has"),
        (G.sum(axis=0, keepdims=True), G, "it is summed over axis 0, which the input has"),
        (G.mean(), G, "it is averaged over axes 0 and 1, which the input has"),
        (G[0], G, "it is only index 0 of axis 0"),
        (G[:2], G, "it is right, but only of shape (2, 5): the rest is missing"),
        (np.pad(G, ((0, 2), (0, 0))), G, "it is right, but continued to the shape (6, 5)"),
        (np.float32(G.T), G, "axes 0 and 1 are transposed"),
        (G.T * (1 + 1e-8), G, "axes 0 and 1 are transposed"),
        (G.T * (1 + 1e-5), G, None),
        (1e-3 * G.T * (1 + 1e-5), 1e-3 * G, None),
        (np.zeros((5, 4)), G, None),
        (np.zeros((5, 4)), np.zeros((4, 5)), None),
        (np.full((5, 4), np.nan), G, None),
        (np.zeros((0, 4)), G, None),
        (np.ones((5, 4), int), np.ones((4, 5)), None),
        (normal(5, 4, seed=3), G, None),
        (normal(3, 4, 5, seed=3), G, None),
    ],
)
def test_a_gradient_of_another_shape_is_recognized_by_its_values(gradient, numerical, expected):
    assert diagnose_shape(gradient, np.asarray(numerical)) == expected


def test_a_sample_of_the_entries_tells_what_another_shape_is():
    numerical = np.where(np.random.default_rng(0).random(G.shape) < 0.5, np.nan, G)
    assert diagnose_shape(G.T, numerical) == "axes 0 and 1 are transposed"
    assert (
        diagnose_shape(np.stack([G - 1, np.ones((4, 5))]), numerical) == "the sum over the broadcast axis 0 is missing"
    )


def test_more_than_six_axes_are_not_tried_in_every_order():
    gradient = normal(*(2,) * 5, 3, seed=1)
    assert diagnose_shape(gradient, gradient.swapaxes(0, 5)) == "axes 0 and 5 are transposed"
    gradient = normal(*(2,) * 6, 3, seed=1)
    assert diagnose_shape(gradient, gradient.swapaxes(0, 6)) is None


def test_values_of_another_shape_that_overflow_when_they_are_compared_raise_no_warning():
    assert diagnose_shape(np.full((5, 4), 1.5e308), np.full((4, 5), -1.5e308)) is None


# How alike two arrays are


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([1.0, -2.0, 3.0], [1.0, -2.0, 3.0], 1),
        ([1.0, -2.0, 3.0], [-1.0, 2.0, -3.0], -1),
        ([1.0, 1.0], [1.0, -1.0], 0),
        ([1.0, 1e9], [1.0, -1e9], 0),  # every pair counts the same
        ([0.0, 2.0, 0.5], [0.0, 2.0, 0.5], 1),  # zeros do not count
        ([0.0, 0.0], [0.0, 0.0], 0),
        ([0.0, 0.0], [1.0, 2.0], 0),
        ([2.0, 1.0], [1.0, 2.0], 0.8),
    ],
)
def test_a_correlation_counts_every_pair_the_same(x, y, expected):
    with np.errstate(all="ignore"):
        found = correlation(np.array(x), np.array(y))
    assert found == pytest.approx(expected, abs=1e-15)
    assert -1 - 1e-15 <= found <= 1 + 1e-15


@pytest.mark.parametrize(
    ("entries", "parallel", "related", "expected"),
    [
        (30, True, False, True),
        (29, True, False, False),  # too few
        (400, False, False, False),  # for other cotangents, other numbers
        (400, True, True, False),
    ],
)
def test_numbers_are_unrelated_if_two_nearly_parallel_cotangents_give_others(entries, parallel, related, expected):
    rng = np.random.default_rng(0)
    u = rng.standard_normal((3, 50))
    u[2] = 7 * (u[0] + (0.3 if parallel else 3) * rng.standard_normal(50))
    matrix = rng.standard_normal((50, entries))
    x, output = rng.standard_normal(entries), rng.standard_normal(50)
    claimed = rng.standard_normal((3, entries))
    if related:
        claimed[2] = claimed[0] + 0.3 * rng.standard_normal(entries)
    verdict = np.full(entries, WRONG)
    found = Evidence("x", {"x": x}, output, u, {"x": claimed}, {"x": u @ matrix}, 0 * x, verdict, None, {})
    case = Case.of(found)
    assert unrelated(case, case.claimed) == expected


@pytest.mark.parametrize(("pattern", "random"), [(0.0, True), (0.25, False)])
def test_in_many_entries_a_slight_pattern_is_seen(pattern, random):
    rng = np.random.default_rng(0)
    u = rng.standard_normal((3, 50))
    u[2] = u[0] + 0.1 * rng.standard_normal(50)
    numerical = u @ rng.standard_normal((50, 3000))
    noise = rng.standard_normal((3, 3001))
    claimed = noise[:, 1:] + pattern * noise[:, :-1]  # each entry has something of its neighbour
    x, verdict = rng.standard_normal(3000), np.full(3000, WRONG)
    found = Evidence("x", {"x": x}, u[0], u, {"x": claimed}, {"x": numerical}, 1e-15 + 0 * x, verdict, None, {})
    said = diagnose(found)
    assert (said is not None and said.startswith("it looks random")) == random


def rounding_errors(rng, shape):
    return rng.uniform(-1, 1, shape) * 6e-8


@pytest.mark.parametrize(
    ("errors", "like_rounding"),
    [
        (rounding_errors, True),
        (lambda rng, shape: rounding_errors(rng, shape) / 10, True),
        (lambda rng, shape: rounding_errors(rng, shape) / 100, False),  # float32 is not so good
        (lambda rng, shape: rounding_errors(rng, shape) * 5, True),
        (lambda rng, shape: rounding_errors(rng, shape) * 50, False),  # nor so bad
        (lambda rng, shape: abs(rounding_errors(rng, shape)), False),  # nor of one sign
        (lambda rng, shape: rounding_errors(rng, shape) * np.where(np.arange(shape[1]) == 3, 1000, 1), False),
    ],
)
def test_errors_like_rounding_are_of_that_size_everywhere_and_of_both_signs(errors, like_rounding):
    rng = np.random.default_rng(0)
    right = np.eye(60) + 0.1
    found = linear_evidence(right, right, (60,), (60,), rng)
    relative = errors(rng, (3, 60))
    found = found._replace(
        analytic={"x": found.numerical["x"] * (1 + relative)}, floor=1e-16 + 0 * found.floor, verdict=np.full(60, WRONG)
    )
    said = diagnose(found)
    assert (said is not None and said.startswith("its errors are of the size of rounding to float32")) == like_rounding


def test_cotangents_that_are_not_parallel_tell_nothing_however_alike_the_right_gradients_are():
    rng = np.random.default_rng(0)
    u, x = rng.standard_normal((3, 50)), rng.standard_normal(60)
    u[0, 0] = u[2, 0] = 9  # or the sums, of which there is one, might have other signs
    numerical = np.multiply.outer(u @ (np.arange(50) == 0), x)
    verdict = np.full(60, WRONG)
    found = Evidence("x", {"x": x}, u[1], u, {"x": 0 * numerical}, {"x": numerical}, 0 * x, verdict, None, {})
    assert not unrelated(Case.of(found), rng.standard_normal((3, 60)))
