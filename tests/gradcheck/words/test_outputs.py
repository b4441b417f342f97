# every gradient takes all inputs
"""What becomes of the gradient of the output: which of it is there, whatever the terms are."""

import numpy as np
from helpers import each

from ..programs import normal, softmax
from .said import said, said_of_numbers

X, B, W = normal(5, 4, seed=1), normal(4, seed=2), normal(4, 2, seed=3)
W_SQUARE = normal(4, 4, seed=7)
NOT_TRANSPOSED = (
    "it is the derivative times the gradient of the output, and not the transposed derivative: a transpose is missing, "
    "or the reverse of an order"
)
DIAGONAL = "only the diagonal of the derivative is there: what each entry does to its own output"


@each(
    ("forward", "backward", "expected"),
    [
        (lambda x: x @ W_SQUARE, lambda d, x: d @ W_SQUARE, NOT_TRANSPOSED),
        (softmax, lambda d, x: d * softmax(x) * (1 - softmax(x)), DIAGONAL),
        (
            lambda x: np.cumsum(np.sin(x), axis=0) @ W_SQUARE,
            lambda d, x: np.cos(x) * (d @ W_SQUARE.T),
            "only what each index does to the same index of axis 0 is there",
        ),
        (
            lambda x: np.cumsum(np.sin(x) @ W_SQUARE, axis=0).T,
            lambda d, x: np.cos(x) * (d.T @ W_SQUARE.T),
            "only what each index does to the same index of axis 0 of x and axis 1 of the output is there",
        ),
        (
            lambda x: np.roll(x, -1, 1) - 2 * np.sin(x) + np.roll(x, 1, 1),
            lambda d, x: np.pad(d, ((0, 0), (1, 1)))[:, :-2] - 2 * d * np.cos(x) + np.pad(d, ((0, 0), (1, 1)))[:, 2:],
            "what goes around the end of axis 1 is missing: is it wrapped?",
        ),
    ],
)
@each("method", ["auto", "central"])
def test_of_the_paths_from_entries_to_outputs_it_is_said_which_are_there(forward, backward, expected, method):
    assert said(forward, backward, {"x": X}, method=method) == expected


TOKENS = np.array([0, 2, 1, 2, 4, 0, 2])


def lookup(order):
    def backward(d, w):
        d_w = np.zeros_like(w)
        d_w[TOKENS[order]] = d[order]
        return d_w

    return backward


@each(
    ("forward", "backward", "x", "where", "which"),
    [
        (lambda w: w[TOKENS], lookup(slice(None)), normal(5, 3), "axis 0", "last"),
        (lambda w: w[TOKENS], lookup(slice(None, None, -1)), normal(5, 3), "axis 0", "first"),
        (
            lambda x: x.repeat(2, axis=0).repeat(2, axis=1),
            lambda d, x: d[1::2, 1::2],
            normal(3, 3),
            "axes 0 and 1",
            "last",
        ),
    ],
)
def test_of_several_effects_of_an_entry_the_last_or_the_first_may_be_left(forward, backward, x, where, which):
    found = said(forward, backward, {"x": x})
    assert found == (
        f"of all that an entry does along {where} of the output only the {which} counts: does = stand in the place "
        "of +=?"
    )


PARTS = [
    (lambda terms: terms[2], "used only at index 2 of axis 0"),
    (lambda terms: terms[4], "used only at index 4 of axis 0, the last: does = stand in the place of +=?"),
    (lambda terms: terms.sum(axis=0) + terms[:2].sum(axis=0), "used 2 times from index 0 to 1 of axis 0 (of 5)"),
    (lambda terms: terms.sum(axis=0) - 0.75 * terms[3], "used 0.25 times at index 3 of axis 0"),
]
SUMS = {  # the function, its inputs, and the terms of the gradient of the last one, along axis 0 of the output
    "a factor": (lambda x, b: 1e6 * x * b, {"x": X, "b": B}, lambda d, x, _: 1e6 * d * x),
    "a bias": (lambda x, b: np.tanh(x + b), {"x": X, "b": B}, lambda d, x, b: d / np.cosh(x + b) ** 2),
}


@each(("part", "expected"), PARTS)
@each("name", SUMS)
def test_the_terms_are_those_that_the_function_has_for_each_index_of_the_cotangent(name, part, expected):
    forward, inputs, terms = SUMS[name]
    found = said(forward, lambda *arrays: part(terms(*arrays)), inputs, [*inputs][-1])
    assert found == f"the gradient of the output is {expected}"


def test_an_input_without_axes_is_said_to_lack_what_others_lack():
    found = said(np.multiply, lambda d, x, b: (d * x)[:, 1].sum(), {"x": X, "b": np.array(0.7)}, "b")
    assert found == "the gradient of the output is used only at index 1 of axis 1"


def several(x):
    return {"sines": np.sin(x), "gram": x @ x.T, "cubes": (x**3).sum(axis=0)}


def back_through_several(d, x):
    return d["sines"] * np.cos(x) + (d["gram"] + d["gram"].T) @ x + 3 * x**2 * d["cubes"]


@each(("times", "expected"), [({"sines": 0}, "the gradient of output.sines is left out")])
def test_of_several_outputs_the_one_is_named_whose_gradient_is_wrong(times, expected):
    found = said(
        several, lambda d, x: back_through_several({k: times.get(k, 1) * u for k, u in d.items()}, x), {"x": X[:3]}
    )
    assert found == expected


@each("least", [-1e9, -0.5])
def test_what_passes_where_the_input_has_no_effect_is_a_forgotten_mask(least):
    inputs = {"x": normal(5, 3, seed=1), "w": normal(3, 4, seed=2)}
    dead = (inputs["x"] @ inputs["w"] < 0).sum()

    def backward(d, x, w):
        return x.T @ (d * (x @ w > least))

    found = said(lambda x, w: np.maximum((x @ w).real, 0), backward, inputs, "w")
    assert found == (
        f"the gradient of the output passes where w has no effect on it, in some or all of {dead} of its 20 entries: "
        "is a mask forgotten, as that of a ReLU?"
    )


SAME = "it is the same whatever the cotangent"
X = normal(3, 4, seed=1)


@each(
    ("backward", "expected"),
    [
        (lambda d, x: 3 * x**2 + 0 * d, f"{SAME}, as if the loss were a plain sum of the output"),
        (lambda d, x: x**2 + 0 * d, SAME),
    ],
)
@each("options", [{}, {"method": "central"}, {"max_entries": 11, "rng": 1}])
def test_of_a_cube_it_is_said(backward, expected, options):
    assert said(lambda x: x**3, backward, {"x": X}, **options) == expected


@each(
    ("claimed", "floor", "is_said"),
    [
        ([[1.0], [1.001], [0.999]], 1e-3, False),  # one entry only if it is so exactly
        ([[1.0], [1.0], [1.0]], 1e-3, True),
        ([[1.7], [1.7 + 1e-7], [1.7 - 1e-7]], 1e-6, False),
        ([[1.7, -2.9], [1.7 + 1e-7, -2.9], [1.7 - 1e-7, -2.9 + 1e-7]], 1e-6, True),  # two by no accident
        ([[1.7, -2.9], [1.7 + 1e-4, -2.9], [1.7, -2.9 + 1e-4]], 1e-6, False),
    ],
)
def test_what_is_about_the_same_for_every_cotangent_takes_two_entries(claimed, floor, is_said):
    claimed = np.array(claimed)
    right = normal(3, claimed.shape[1], seed=5)
    found = said_of_numbers(right, claimed, floor, at_zero=claimed[0])
    assert (found == SAME) == is_said
