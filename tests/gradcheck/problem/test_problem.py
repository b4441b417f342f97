"""Two functions at one point: what they are asked, in which dtype, and along which moves."""

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import check
from attention_np.gradcheck.problem.problem import pose

from ..programs import bilinear, bilinear_backward, normal, square_inputs


def posed(forward=bilinear, backward=bilinear_backward, inputs=None, seed=0, **options):
    inputs = square_inputs() if inputs is None else inputs
    return pose(forward, backward, inputs, np.random.default_rng(seed), **options)


def test_a_function_of_single_precision_is_measured_at_the_same_point_in_double():
    problem = posed(inputs=square_inputs(dtype="float32"))
    assert {x.dtype for x in (*problem.point, problem.output, problem.cotangents)} == {np.dtype(float)}
    assert (problem.dtype, problem.unit) == (np.float32, np.finfo(np.float32).eps)
    assert [x.dtype for x in (problem.question[0], *problem.question[1])] == [np.float32] * 3
    np.testing.assert_array_equal(problem.output, bilinear(*problem.point))
    for x, y in zip(problem.point, problem.inputs.values(), strict=True):
        np.testing.assert_array_equal(x, y)
    assert problem.size == 27


@each("dtype", ["float32", "float64"])
def test_backward_is_given_arrays_of_its_dtype_here_and_of_that_of_the_inputs_elsewhere_and_copies_of_those(dtype):
    seen = []

    def backward(d_output, x, y):
        seen.append((d_output.dtype, x.dtype))
        result = bilinear_backward(d_output, x, y)
        x *= 0
        d_output *= 0
        return result

    problem, inputs = posed(backward=backward, inputs=square_inputs(dtype=dtype)), square_inputs(dtype=dtype)
    u = problem.cotangents[0].copy()
    seen.clear()
    here = problem.claim(problem.cotangents[0])
    wide = [x.astype(np.longdouble) for x in inputs.values()]
    elsewhere = problem.claim(u, wide)
    assert seen == [(np.dtype(dtype),) * 2, (np.dtype(np.longdouble),) * 2]
    assert (here["y"].dtype, elsewhere["y"].dtype) == (np.dtype(dtype), np.dtype(np.longdouble))
    np.testing.assert_array_equal(here["x"], problem.claims["x"])
    np.testing.assert_array_equal(problem.cotangents[0], u)
    for name, x in inputs.items():
        np.testing.assert_array_equal(problem.inputs[name], x)
    assert (wide[0] != 0).all()


class Layer:
    """A function whose backward asks for what forward kept."""

    def forward(self, x, w):
        self.y = np.tanh(x @ w)
        return self.y

    def backward(self, d_y, x, w):
        d = d_y * (1 - self.y**2)
        return d @ w.T, x.T @ d


@each("stateless", [False, True])
def test_a_backward_that_uses_what_forward_kept_is_asked_after_forward_everywhere_unless_it_uses_nothing(stateless):
    layer, inputs = Layer(), {"x": normal(2, 3), "w": normal(3, 2, seed=1)}
    problem = posed(layer.forward, layer.backward, inputs, stateless=stateless)
    there = [2 * x for x in inputs.values()]
    layer.forward(*(0 * x for x in inputs.values()))
    found = problem.claim(problem.cotangents[1], there)["x"]
    expected = Layer()
    expected.forward(*there)
    assert np.array_equal(found, expected.backward(problem.cotangents[1], *there)[0]) == (not stateless)
    assert check(layer.forward, layer.backward, inputs).ok


@each(("dtype", "wide"), [("float32", "float64"), ("float64", "longdouble")])
def test_in_a_wider_dtype_both_functions_are_asked_at_the_same_point(dtype, wide):
    problem = posed(inputs=square_inputs(dtype=dtype))
    if np.finfo(wide).eps >= np.finfo(dtype).eps:
        pytest.skip("this machine has no wider dtype than float64")
    there = problem.wider
    assert {x.dtype for x in (*there.point, there.output, there.cotangents, *there.claims.values())} == {np.dtype(wide)}
    assert there.unit == np.finfo(wide).eps
    np.testing.assert_array_equal(there.point[1], problem.inputs["y"])
    right = bilinear_backward(there.cotangents[0], *there.point)
    for name, gradient in zip("xy", right, strict=True):
        np.testing.assert_array_equal(there.claims[name], gradient)


def test_a_function_that_writes_to_its_inputs_is_measured_at_the_point_that_was_given():
    def forward(x, y):
        x *= y
        y[...] = 0
        return x

    problem = posed(forward, lambda d, x, y: (d * y, d * x), {"x": normal(3), "y": normal(3, seed=1)})
    assert set(problem.writes) == {"x", "y"}
    for _ in range(2):
        np.testing.assert_array_equal(problem.forward(*problem.point), normal(3) * normal(3, seed=1))


def symmetric(v):
    return (v + v.T) / 2


def cholesky(s):
    """That of LAPACK sees one triangle alone; this one refuses a matrix that is not symmetric."""
    if not np.array_equal(s, s.T):
        raise ValueError("not symmetric")
    factor = np.zeros_like(s)
    for i in range(len(s)):
        for j in range(i + 1):
            rest = s[i, j] - factor[i, :j] @ factor[j, :j]
            factor[i, j] = np.sqrt(rest) if i == j else rest / factor[j, j]
    return factor


def cholesky_backward(d, s):
    factor = cholesky(s)
    inner = np.tril(factor.T @ d)
    inner[np.diag_indices(len(s))] /= 2
    inverse = np.linalg.inv(factor)
    return symmetric(inverse.T @ inner @ inverse)


def test_an_input_that_cannot_move_freely_is_checked_along_the_moves_that_it_can_make():
    s = {"s": symmetric(normal(4, 4)) + 5 * np.eye(4)}
    free = check(cholesky, cholesky_backward, s)["s"]
    assert not free.ok
    assert "no slope by the numerical method in 12 entries: where one of them moves, it raises" in free.diagnosis

    def along(backward):
        return check(lambda s: cholesky(symmetric(s)), lambda d, s: symmetric(backward(d, symmetric(s))), s)["s"]

    assert along(cholesky_backward).ok
    assert along(cholesky_backward).undecidable == 0

    def one_triangle(d, s):
        return np.tril(2 * cholesky_backward(d, s)) - np.diag(np.diag(cholesky_backward(d, s)))

    assert along(one_triangle).ok  # the same along symmetric moves
    assert along(lambda d, s: 2 * cholesky_backward(d, s)).wrong == 16
