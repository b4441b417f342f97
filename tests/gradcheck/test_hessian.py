"""Products of a Hessian with vectors are checked against the gradient, and the gradient by the symmetry of both."""

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import check_hessian

from .programs import normal

A = normal(3, 3, seed=3)
X = {"x": normal(3)}
BOTH = {"x": normal(3), "y": normal(2, 3, seed=1)}


def gradient(x):  # of sum(sin(A x))
    return A.T @ np.cos(A @ x)


def product(v, x):
    return -A.T @ (np.sin(A @ x) * (A @ v))


def gradients(x, y, power=2):  # of sum(x**3) + sum(y @ x) ** 2
    total = y.sum(axis=0) @ x
    return 3 * x**2 + power * total * y.sum(axis=0), power * total * np.broadcast_to(x, y.shape)


def products(v, w, x, y, power=2):
    total, d_total = y.sum(axis=0) @ x, w.sum(axis=0) @ x + y.sum(axis=0) @ v
    of_x = 6 * x * v + power * (d_total * y.sum(axis=0) + total * w.sum(axis=0))
    return of_x, power * np.broadcast_to(d_total * x + total * v, y.shape)


def hessian(x, y):
    """That of `gradients`, by blocks, from its products with the unit vectors."""
    units = np.eye(x.size + y.size)
    columns = [products(e[: x.size], e[x.size :].reshape(y.shape), x, y) for e in units]
    blocks = [np.stack([column[k] for column in columns], axis=-1) for k in range(2)]
    return [(block[..., : x.size], block[..., x.size :].reshape(*block.shape[:-1], *y.shape)) for block in blocks]


@each(
    "question",
    [
        (gradient, product, X),
        (gradient, lambda x: -A.T @ np.diag(np.sin(A @ x)) @ A, X),
        (gradients, products, BOTH),
        (gradients, hessian, BOTH),
        (gradients, products, BOTH | {"power": 2}),
        (lambda z: {"w": z["w"] ** 3}, lambda v, z: {"w": 3 * z["w"] ** 2 * v["w"]}, {"z": {"w": normal(2)}}),
    ],
)
def test_second_derivatives_that_are_right_hold(question):
    report = check_hessian(*question)
    assert report.ok, str(report)
    assert report["symmetry"].max_relative_error < 1e-14
    assert {entry.name for entry in report} == {
        "symmetry",
        *({"z.w"} if "z" in question[2] else {*question[2]} - {"power"}),
    }


def test_an_error_in_one_block_is_found_where_it_is():
    def wrong(v, w, x, y):
        of_x, of_y = products(v, w, x, y)
        return of_x, of_y - 2 * np.broadcast_to((y.sum(axis=0) @ x) * v, y.shape)

    report = check_hessian(gradients, wrong, BOTH)
    assert [entry.name for entry in report if not entry.ok] == ["y", "symmetry"]
    assert str(report["symmetry"].diagnosis).startswith("the Hessian is not symmetric")


@each(
    ("change", "said"),
    [
        (np.triu, "zero below the diagonal of the last two axes"),
        (lambda h: h * (1 - np.eye(4)), "zero on the diagonal of the last two axes"),
        (lambda h: h - h[3, 1] * np.outer(*np.eye(4)[[3, 1]]), "zero at one entry, [3, 1]"),
        (lambda h: np.where(np.tri(4, k=-1) > 0, 2 * h, h), "2 times what it should be below the diagonal of the last"),
        (lambda h: np.where(np.tri(4, k=-1) > 0, h * (2 + np.arange(4)), h), None),  # no two of which are the same
        (lambda h: h * np.random.default_rng(1).uniform(0.5, 2, h.shape), None),
        (lambda h: h + np.tri(4, k=-1), None),
    ],
)
@each("as_product", [False, True])
def test_of_a_part_of_a_hessian_it_is_said_where_it_is(change, said, as_product):
    a, x = normal(4, 4, seed=4), {"x": normal(4, seed=5)}

    def of_sines(x):  # the Hessian of sum(cos(a x))
        return change(-a.T @ np.diag(np.cos(a @ x)) @ a)

    wrong = (lambda v, x: of_sines(x) @ v) if as_product else of_sines
    found = str(check_hessian(lambda x: -a.T @ np.sin(a @ x), wrong, x)["x"].diagnosis)
    assert found.startswith(
        f"as a matrix times the tangent of x, a row for each entry, it is {said}" if said else "no simple cause"
    ), found


def test_a_symmetric_error_is_found_by_the_inputs():
    report = check_hessian(gradient, lambda v, x: 1.5 * product(v, x), X)
    assert [entry.ok for entry in report] == [False, True]
    assert "1.5 times" in str(report["x"].diagnosis)


@each("of_that", [True, False])
def test_a_gradient_that_is_none_is_what_is_said_to_be_wrong(of_that):
    def wrong(x):  # A in the place of its transpose
        return A @ np.cos(A @ x)

    def its_product(v, x):  # by reverse mode
        return -A.T @ (np.sin(A @ x) * (A.T @ v))

    report = check_hessian(wrong, its_product if of_that else product, X)
    assert report["x"].ok is of_that
    assert not report["symmetry"].ok
    assert "look at it first" in str(report["symmetry"].diagnosis)


def test_cancellation_is_not_taken_for_a_lack_of_symmetry():
    large = 1e8

    def cancelling(x):
        return (large + x) ** 2 - large**2 - 2 * large * x + A @ x + A.T @ x

    assert check_hessian(cancelling, lambda v, x: 2 * ((large + x) - large) * v + A @ v + A.T @ v, X)["symmetry"].ok


@each(
    "product",
    [
        lambda x, damping=0.1: np.diag(12 * x**2) + 2 * damping * np.eye(x.size),
        lambda x, _=None, *, __=True: np.diag(12 * x**2 + 0.2),
        lambda v, x=X["x"]: (12 * x**2 + 0.2) * v,
        lambda *both: (12 * both[1] ** 2 + 0.2) * both[0],
        lambda *both, **_: (12 * both[1] ** 2 + 0.2) * both[0],
        lambda v, *others, scale=1: scale * (12 * others[0] ** 2 + 0.2) * v,
        lambda vector, point=X["x"]: (12 * point**2 + 0.2) * vector,
    ],
)
def test_what_a_hessian_or_a_product_takes_besides_is_no_tangent(product):
    report = check_hessian(lambda x: 4 * x**3 + 0.2 * x, product, X)
    assert report.ok, str(report)


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match=r"^hessian_vector_product must be a function, not ndarray$"):
        check_hessian(gradient, np.eye(3), X)
    with pytest.raises(TypeError, match=r"^gradient must be a function, not str$"):
        check_hessian("gradient", product, X)
    with pytest.raises(ValueError, match=r"^the Hessian is of shape \(3,\) where 3 x 3 entries are needed$"):
        check_hessian(gradient, lambda x: x, X)
    with pytest.raises(TypeError, match=r"^inputs must be a mapping"):
        check_hessian(gradient, product, normal(3))


def test_a_tangent_that_is_left_out_is_called_one():
    report = check_hessian(
        lambda x, y: (np.cos(x) * y, np.sin(x)),
        lambda u, _, x, y: (-np.sin(x) * y * u, np.cos(x) * u),  # cos(x) v is lost
        {"x": normal(3, seed=1), "y": normal(3, seed=2)},
    )
    assert report["x"].diagnosis == "the tangent of y is left out"
