"""What becomes of the gradient of the output: which of it is there, whatever the terms are, and in which order."""

import numpy as np
from helpers import each

from attention_np.gradcheck import check
from attention_np.gradcheck.diagnosis import diagnose

from .evidence import evidence_of
from .programs import back_through_softmax, normal, softmax


def said_of(forward, wrong, inputs, where):
    """What is said where ``wrong(d, *inputs)`` is claimed to be the gradient of one input."""

    def backward(d, *arrays):
        return [np.asarray(wrong(d, *arrays)) if name == where else 0 * x for name, x in inputs.items()]

    return diagnose(evidence_of(forward, backward, inputs, where))


PARTS = [
    (lambda terms: terms[2], "used only at index 2 of axis 0"),
    (lambda terms: terms[4], "used only at index 4 of axis 0, the last: does = stand in the place of +=?"),
    (lambda terms: terms.sum(axis=0) - terms[2], "left out at index 2 of axis 0"),
    (lambda terms: terms[:-1].sum(axis=0), "left out at index 4 of axis 0"),  # of ones, not shifted
    (lambda terms: terms[1:].sum(axis=0), "left out at index 0 of axis 0"),
    (lambda terms: terms[:3].sum(axis=0), "left out from index 3 of axis 0 on (of 5)"),
    (lambda terms: terms[2:].sum(axis=0), "left out up to index 1 of axis 0 (of 5)"),
    (lambda terms: terms.sum(axis=0) + terms[:2].sum(axis=0), "used 2 times up to index 1 of axis 0 (of 5)"),
]
X, B, W = normal(5, 4, seed=1), normal(4, seed=2), normal(4, 2, seed=3)
SUMS = {  # the function, its inputs, and the terms of the gradient of the last one, along axis 0 of the output
    "a factor": (lambda x, b: 1e6 * x * b, {"x": X, "b": B}, lambda d, x, _: 1e6 * d * x),
    "a bias of a sum": (np.add, {"x": X, "b": B}, lambda d, x, b: d),  # noqa: ARG005
    "a bias": (lambda x, b: np.tanh(x + b), {"x": X, "b": B}, lambda d, x, b: d / np.cosh(x + b) ** 2),
    "a bias with an axis": (
        lambda x, b: np.sin(x) * b,
        {"x": X, "b": B[None]},
        lambda d, x, _: (d * np.sin(x))[:, None],
    ),
    "softmax": (lambda x, b: softmax(x * b), {"x": X, "b": B}, lambda d, x, b: back_through_softmax(d, x * b) * x),
    "the weights of a layer": (np.matmul, {"x": X, "w": W}, lambda d, x, _: x[:, :, None] * d[:, None]),
    "a batch of matrices": (
        np.matmul,
        {"x": normal(5, 3, 4, seed=1), "w": W},
        lambda d, x, _: np.swapaxes(x, 1, 2) @ d,
    ),
    "entries of very different size": (
        lambda x, b: np.array([1e14, 1e-14, 1, 1]) * x * b,
        {"x": X, "b": B},
        lambda d, x, _: np.array([1e14, 1e-14, 1, 1]) * d * x,
    ),
}


@each(("part", "said"), PARTS)
@each("name", SUMS)
def test_the_terms_are_those_that_the_function_has_for_each_index_of_the_cotangent(name, part, said):
    forward, inputs, terms = SUMS[name]
    found = said_of(forward, lambda *arrays: part(terms(*arrays)), inputs, list(inputs)[-1])
    assert found == f"the gradient of the output is {said}"


@each(
    ("part", "said"),
    [
        (lambda t: t[:, 1].sum(), "used only at index 1 of axis 1"),
        (lambda t: t[2].sum(), "used only at index 2 of axis 0"),
        (lambda t: t[:, :2].sum(), "left out at index 2 of axis 1"),
    ],
)
@each("shape", [(), (1, 1)])
def test_of_several_axes_the_one_is_named_that_is_not_summed(part, said, shape):
    inputs = {"x": normal(4, 3, seed=1), "b": np.full(shape, 0.7)}
    found = said_of(np.multiply, lambda d, x, b: part(d * x).reshape(b.shape), inputs, "b")
    assert found == f"the gradient of the output is {said}"


def test_where_each_entry_has_one_term_alone_there_is_no_sum():
    found = said_of(np.multiply, lambda d, x, _: d * x * (np.arange(5) < 2)[:, None], {"x": X, "y": X + 1}, "y")
    assert found == "wrong only from index 2 of axis 0 on (of 5), where it is zero"


def test_a_few_entries_do_not_tell_of_single_entries_of_the_output():
    """Of a rotation the wrong way round, each entry takes one output of its two with the other sign."""
    cosine, sine = (f(np.arange(5))[:, None] for f in (np.cos, np.sin))

    def rotated(x):
        return np.concatenate([x[:, :2] * cosine - x[:, 2:] * sine, x[:, :2] * sine + x[:, 2:] * cosine], axis=1)

    found = check(rotated, lambda d, _: rotated(d), {"x": normal(5, 4, seed=35)}, max_entries=6)["x"]
    assert found.diagnosis == "no simple cause"


def test_terms_that_take_longer_than_the_check_are_not_asked_for():
    inputs = {"x": normal(2000, 4, seed=1), "b": B}
    found = check(np.multiply, lambda d, x, b: (d * b, (d * x)[:-1].sum(axis=0)), inputs, max_entries=4)["b"]
    assert found.diagnosis == "no simple cause"


def several(x):
    return {"sines": np.sin(x), "gram": x @ x.T, "cubes": (x**3).sum(axis=0)}


def back_through_several(d, x):
    return d["sines"] * np.cos(x) + (d["gram"] + d["gram"].T) @ x + 3 * x**2 * d["cubes"]


@each(
    ("times", "said"),
    [
        ({"sines": 0}, "the gradient of output.sines is left out"),
        ({"gram": 2}, "the gradient of output.gram is used 2 times"),
        ({"gram": 0, "cubes": 0}, "the gradient of output.gram is left out; the gradient of output.cubes is left out"),
        (
            {"gram": np.array([[1.0], [0.0], [1.0]])},
            "the gradient of output.gram is left out at index 1 of axis 0",
        ),
    ],
)
def test_of_several_outputs_the_one_is_named_whose_gradient_is_wrong(times, said):
    x = {"x": normal(3, 4, seed=1)}
    assert check(several, back_through_several, x).ok
    wrong = check(several, lambda d, x: back_through_several({k: times.get(k, 1) * u for k, u in d.items()}, x), x)
    assert wrong["x"].diagnosis == said


def test_a_conjugate_that_is_forgotten_is_a_sign_of_the_imaginary_part():
    def slope(x):
        return (1 + 1j * x) * np.exp(1j * x)

    def forward(x):
        return x * np.exp(1j * x)

    assert check(forward, lambda d, x: (d * slope(x).conj()).real, {"x": X}).ok
    wrong = check(forward, lambda d, x: (d * slope(x)).real, {"x": X})["x"]
    assert wrong.diagnosis == "the gradient of output.imag is used -1 times"


def test_of_code_that_uses_the_first_entry_that_is_not_zero_it_is_said_that_it_uses_the_first():
    def backward(d, x):
        first = np.flatnonzero(d)[:1]
        return np.array([back_through_softmax(np.where(np.arange(4) == k, d, 0), x) for k in first]).sum(axis=0)

    found = check(softmax, backward, {"x": normal(4, seed=1)})["x"]
    assert found.diagnosis == "the gradient of the output is used only at index 0 of axis 0"


def recurrent(x, h, w, b):
    """All the states, (batch, steps, features)."""
    states = [h]
    for t in range(x.shape[1]):
        states.append(np.tanh(x[:, t] + states[-1] @ w + b))
    return np.stack(states[1:], axis=1)


def back_through_recurrent(d, x, h, w, b, keeps=lambda old, new: old + new, carries=1.0):
    states = np.concatenate([h[:, None], recurrent(x, h, w, b)], axis=1)
    d_x, d_w, d_b, d_h = np.zeros_like(x), None, None, np.zeros_like(h)
    for t in reversed(range(x.shape[1])):
        d_x[:, t] = d_z = (d[:, t] + carries * d_h) * (1 - states[:, t + 1] ** 2)
        of_w, of_b, d_h = states[:, t].T @ d_z, d_z.sum(axis=0), d_z @ w.T
        d_w, d_b = (new if old is None else keeps(old, new) for old, new in ((d_w, of_w), (d_b, of_b)))
    return d_x, d_h, d_w, d_b


@each(
    "wrong",
    [{"keeps": lambda old, new: new}, {"carries": 0.0}],  # noqa: ARG005
)
def test_of_a_loop_over_time_that_loses_other_steps_it_is_said_which_outputs_it_is_right_for(wrong):
    inputs = {"x": normal(3, 5, 4, seed=1), "h": normal(3, 4, seed=2), "w": normal(4, 4, seed=3) / 2, "b": B}
    assert check(recurrent, back_through_recurrent, inputs).ok
    found = check(recurrent, lambda d, *arrays: back_through_recurrent(d, *arrays, **wrong), inputs)
    assert {found[name].diagnosis for name in "wb"} == {
        "it is right only for the gradient of the output at index 0 of axis 1: is what other steps along it bring lost "
        "or wrong, as by = in the place of +=?"
    }


def test_a_box_that_a_few_entries_have_in_any_case_is_no_place():
    x = np.array([[0.1, 0.9, -1.0, -1.0], [-1.0, -1.0, 0.7, -1.0], [-1.0, 0.2, -1.0, 0.3]])
    found = check(lambda x: np.maximum(x, 0), lambda d, x: d * (x > 0.5), {"x": x})["x"]
    assert found.diagnosis == "the gradient of the output is left out in at least 3 of 12 entries, first at [0, 0]"


@each(("leaks", "said"), [(0.0, "at index 3 of axis 0"), (1.0, "from index 3 of axis 0 on (of 5)")])
def test_of_outputs_for_which_a_gradient_is_wrong_in_any_way_it_is_said_which_they_are(leaks, said):
    rows = np.arange(5)[:, None]

    def backward(d, x, w):
        used = np.where(rows < 3, x, np.where(rows == 3, np.roll(x, 1, 1), leaks))  # the last row has no effect
        return np.where(rows < 4, d @ w.T, 0), used.T @ d

    inputs = {"x": X, "w": normal(4, 4, seed=3)}
    found = check(lambda x, w: np.where(rows < 4, x @ w, 0), backward, inputs)["w"]
    assert found.diagnosis == f"it is wrong only for the gradient of the output {said}"
