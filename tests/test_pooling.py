from typing import Any

import numpy as np
import pytest
from helpers import COMPLEX_STEP, Array, assert_close, assert_same_bits, each, normal, peak_of

from attention_np import dot_product, gradcheck, masks, pooling

D = 3
WINDOWS = {  # width and stride: beside each other, overlapping, with gaps, of one token
    "beside": {"width": 3},
    "overlapping": {"width": 4, "stride": 2},
    "ragged overlap": {"width": 5, "stride": 3},
    "one by one": {"width": 2, "stride": 1},
    "with gaps": {"width": 2, "stride": 5},
    "of one": {"width": 1, "stride": 3},
}


def inputs(n: int, width: int, *leading: int) -> dict[str, Array]:
    """x, a gate, and what is added to it."""
    return {"x": normal(0, *leading, n, D), "gate": normal(1, *leading, n, D), "b": normal(2, width, D)}


def starts(n: int, width: int, stride: int | None = None) -> range:
    return range(0, n - width + 1, stride or width)


@each("of", WINDOWS.values())
@each("n", [1, 9], long=[4])
@each("names", [("x",), ("x", "gate", "b")], long=[("x", "gate")])
def test_gradients_are_numerical_ones_for_windows_of_any_kind(names: Any, n: int, of: dict[str, int]) -> None:
    given = {name: x for name, x in inputs(n, of["width"], 2).items() if name in names}
    report = gradcheck.check_op(pooling, given, method="complex-step", **of)
    report.raise_if_failed()
    assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP


@each("of", WINDOWS.values())
@each("n", [0, 1, 2, 3, 4, 5, 9, 17])
def test_each_window_is_a_mean_of_its_own_tokens(n: int, of: dict[str, int]) -> None:
    x, gate, b = inputs(n, of["width"], 2).values()
    output, cache = pooling.forward(x, **of)
    gated, weighted = pooling.forward(x, gate, b, **of)
    assert output.shape == gated.shape == (2, len(starts(n, **of)), D)
    assert cache.weights is None
    for window, start in enumerate(starts(n, **of)):
        held = slice(start, start + of["width"])
        assert_close(output[:, window], x[:, held].mean(axis=1), 1e-15)
        powers = np.exp(gate[:, held] + b)
        weights = powers / powers.sum(axis=1, keepdims=True)
        assert_close(gated[:, window], (weights * x[:, held]).sum(axis=1), 2e-15)
        assert_close(weighted.weights[:, window], weights, 1e-15)


def test_the_mean_of_windows_that_overlap_copies_none_of_them() -> None:
    x = normal(0, 2000, 4)
    output, cache = pooling.forward(x, width=64, stride=1)
    passes = (
        lambda: pooling.forward(x, width=64, stride=1),
        lambda: pooling.backward(output, cache),
        lambda: pooling.jvp(cache, x=x),
    )
    for run in passes:
        assert peak_of(run) < 8 * x.nbytes


@each("of", WINDOWS.values())
def test_gates_that_are_alike_give_the_mean(of: dict[str, int]) -> None:
    x = normal(0, 17, D)
    d_output = normal(1, len(starts(17, **of)), D)
    mean, cache = pooling.forward(x, **of)
    output, gated = pooling.forward(x, np.full_like(x, 700.0), **of)
    assert_close(output, mean, 1e-15)
    assert_close(pooling.backward(d_output, gated).x, pooling.backward(d_output, cache).x, 1e-15)


def test_the_mean_of_equal_numbers_is_that_number() -> None:
    for width in range(1, 40):
        output, _ = pooling.forward(np.full((100, 1), 0.1), width=width, stride=3)
        assert_close(output, np.full_like(output, 0.1), 5e-16)
        assert_same_bits(pooling.forward(np.ones((width, 1)), width=width)[0], np.ones((1, 1)))


@each("of", WINDOWS.values())
def test_a_token_gets_the_sum_of_what_its_windows_get_and_none_outside_of_them(of: dict[str, int]) -> None:
    x = normal(0, 17, D)
    _, cache = pooling.forward(x, **of)
    d_x = pooling.backward(np.ones((len(starts(17, **of)), D)), cache).x
    readers = np.array([sum(start <= t < start + of["width"] for start in starts(17, **of)) for t in range(17)])
    assert_close(d_x, np.repeat(readers[:, None] / of["width"], D, axis=1), 1e-15)
    assert (d_x[readers == 0] == 0).all()


@each("of", WINDOWS.values())
@each("n", [0, 1, 2, 9, 12])
def test_the_mask_shows_a_window_from_its_last_token_on(n: int, of: dict[str, int]) -> None:
    width, stride = of["width"], of.get("stride", of["width"])
    mask = masks.causal(n, max(n - width + 1, 0), offset=1 - width)[:, ::stride]
    expected = [[start + width - 1 <= t for start in starts(n, **of)] for t in range(n)]
    assert_same_bits(mask, np.array(expected, bool).reshape(n, len(starts(n, **of))))
    x = normal(0, n, D)
    seen = []
    for later in (0.0, 1.0):  # what a query sees of windows of x does not change with any token behind it
        rows = []
        for t in range(n):
            changed = x + later * (np.arange(n) > t)[:, None]
            pooled, _ = pooling.forward(changed, **of)
            rows.append(dot_product.forward(changed[t : t + 1], pooled, pooled, mask=mask[t : t + 1])[0])
        seen.append(np.array(rows))
    assert_same_bits(seen[0], seen[1])


@each("bad", [np.nan, np.inf])
@each("where", ["x", "gate"])
@each("of", WINDOWS.values())
def test_what_is_not_finite_has_its_way_in_its_own_windows_alone(of: dict[str, int], where: str, bad: float) -> None:
    given = inputs(17, of["width"])
    d_output = normal(5, len(starts(17, **of)), D)
    along = {name: normal(7, *x.shape) for name, x in given.items()}
    plain = pooling.forward(**given, **of)
    gradients = pooling.backward(d_output, plain[1])
    for token in (0, 4, 6, 16):
        holds = np.array([start <= token < start + of["width"] for start in starts(17, **of)])
        spoiled = given | {where: given[where].copy()}
        spoiled[where][token, 1] = bad
        output, cache = pooling.forward(**spoiled, **of)
        moved = pooling.jvp(cache, **along)
        for actual, expected in ((output, plain[0]), (moved, pooling.jvp(plain[1], **along))):
            assert_same_bits(actual[~holds], expected[~holds])
            assert_same_bits(actual[:, [0, 2]], expected[:, [0, 2]])
        if where == "x" or np.isnan(bad):
            assert not np.isfinite(output[holds, 1]).any()
        found, others = pooling.backward(d_output, cache), [t for t in range(17) if abs(t - token) >= of["width"]]
        for name in ("x", "gate"):
            assert_same_bits(getattr(found, name)[others], getattr(gradients, name)[others])
        silent = np.where(holds[:, None], 0, d_output)  # and if no gradient comes to these, to no gradient
        found, expected = pooling.backward(silent, cache), pooling.backward(silent, plain[1])
        for name in ("x", "gate", "b"):
            assert_same_bits(getattr(found, name), getattr(expected, name))


@each("bad", [np.nan, np.inf, 1e300])
def test_a_gate_of_minus_infinity_hides_its_token_whatever_that_holds(bad: float) -> None:
    x, gate, b = inputs(7, 3).values()
    gate[2, 1] = -np.inf
    gate[4:7, 0] = -np.inf  # a window of which nothing is left in the first feature
    plain, hidden = pooling.forward(x, gate, b, width=3, stride=2), x.copy()
    hidden[2, 1] = hidden[4:7, 0] = bad
    d_output, along = normal(5, 3, D), {"x": normal(6, 7, D), "gate": normal(7, 7, D), "b": normal(8, 3, D)}
    output, cache = pooling.forward(hidden, gate, b, width=3, stride=2)
    assert_same_bits(output, plain[0])
    assert output[2, 0] == 0
    assert_same_bits(pooling.jvp(cache, **along), pooling.jvp(plain[1], **along))
    along["x"][2, 1] = bad
    assert np.isfinite(pooling.jvp(cache, **along)[0]).all()
    found = pooling.backward(d_output, cache)
    for name, gradient in pooling.backward(d_output, plain[1])._asdict().items():
        assert_same_bits(getattr(found, name), gradient)
    assert found.x[2, 1] == found.gate[2, 1] == 0
    spoiled = d_output.copy()
    spoiled[:, 1] = bad  # the hidden token takes no part in what comes back, either
    assert pooling.backward(spoiled, cache).x[2, 1] == 0


def test_a_gate_of_plus_infinity_takes_all_the_weight_and_does_not_move() -> None:
    x, gate, _ = inputs(6, 3).values()
    gate[1, 0] = gate[2, 0] = np.inf
    output, cache = pooling.forward(x, gate, width=3)
    assert output[0, 0] == (x[1, 0] + x[2, 0]) / 2
    assert (pooling.backward(np.ones((2, D)), cache).gate[:3, 0] == 0).all()


@each("size", [1.0, 1e4, 1e30])
def test_gates_of_any_size_are_found(size: float) -> None:
    x = normal(0, 8, D)
    gate = size * normal(1, 8, D)
    output, _ = pooling.forward(x, gate, width=4)
    largest = gate.reshape(2, 4, D).argmax(axis=1)[:, None]
    if size > 1:
        assert_close(output, np.take_along_axis(x.reshape(2, 4, D), largest, axis=1)[:, 0], 1e-15)
    assert_same_bits(pooling.forward(x, gate + 0.0, np.zeros((4, D)), width=4)[0], output)


@each("size", [2.0**1023, 2.0**-1060])
def test_means_of_numbers_whose_sum_leaves_the_range_are_found(size: float) -> None:
    x = np.array([[1.0], [1.5], [1.25], [-1.0], [1.75]])
    for gate in (None, np.zeros_like(x)):
        expected, cache = pooling.forward(x, gate, width=3, stride=2)
        output, of_sized = pooling.forward(size * x, gate, width=3, stride=2)
        assert_close(output / size, expected, 1e-3 if size < 1e-300 else 1e-15)
        along = pooling.jvp(of_sized, x=size * x)
        assert_close(along / size, pooling.jvp(cache, x=x), 1e-3 if size < 1e-300 else 1e-15)


@each("dtype", [np.float32, np.float64, np.complex128])
@each("width", [3, 6])
def test_gates_and_places_whose_sum_leaves_the_range_have_their_softmax(width: int, dtype: Any) -> None:
    most = np.finfo(dtype).max
    gate = np.array([[0.75, -0.9, 0.75], [0.7, -0.8, 0.75], [0.75, -0.9, 0.1], [-1, 1, 0], [0, 1, 0.5], [1, -1, 0]])
    places = np.array([[0.5, -0.9, 0.5], [0.6, -0.9, 0.5], [0.5, -0.9, 1]])
    b, x = np.concatenate([places, places])[:width], normal(0, 6, D).astype(dtype)
    sums = (gate + np.tile(b, (6 // width, 1))).reshape(-1, width, D)
    less = np.clip(sums - sums.max(axis=1, keepdims=True), -1, 0).reshape(6, D)  # what fits is as far below, or further
    gates, places = (most * gate).astype(dtype), (most * b).astype(dtype)
    hides = (np.arange(6) == 1)[:, None] & (np.arange(D) == 1)
    for at in (0, -np.inf, np.inf):  # a gate that hides its token, or takes all the weight, among them
        held = np.where(hides & (at == -np.inf), np.nan, x)
        given = {"x": held, "gate": np.where(hides, at, gates) if at else gates, "b": places}
        fits = {"x": x, "gate": np.where(hides, at, most * less) if at else most * less, "b": np.zeros_like(places)}
        found, expected = (
            everything({k: v.astype(dtype) for k, v in one.items()}, width=width) for one in (given, fits)
        )
        for name, y in expected.items():
            assert np.isfinite(y).all(), name
            assert_close(found[name], y, 1e-6 if dtype is np.float32 else 1e-15)


def test_a_token_whose_sum_is_out_of_reach_of_the_largest_is_not_hidden() -> None:
    most = np.finfo(float).max
    gate = np.array([[most], [-most]])
    for token, expected in ((5.0, 1.0), (np.nan, np.nan)):
        assert_same_bits(pooling.forward(np.array([[1.0], [token]]), gate, gate, width=2)[0], np.array([[expected]]))


def everything(given: dict[str, Array], **of: int) -> dict[str, Array]:
    """Output, gradients, forward mode and second derivatives."""
    output, cache = pooling.forward(**given, **of)
    d_output = normal(5, *output.shape).astype(output.dtype)
    along = {name: normal(6 + k, *x.shape).astype(x.dtype) for k, (name, x) in enumerate(given.items())}
    d_d_output, second = pooling.double_backward(pooling.Gradients(**along), d_output, cache)
    found = {"output": output, "jvp": pooling.jvp(cache, **along), "d_d_output": d_d_output}
    found |= {f"d_{name}": x for name, x in pooling.backward(d_output, cache)._asdict().items()}
    return found | {f"second {name}": x for name, x in second._asdict().items()}


def test_leading_axes_of_tokens_and_gates_broadcast() -> None:
    x, gate, b = normal(0, 2, 1, 9, D), normal(1, 3, 9, D), normal(2, 3, D)
    output, cache = pooling.forward(x, gate, b, width=3, stride=2)
    assert output.shape == (2, 3, 4, D)
    gradients = pooling.backward(np.ones_like(output), cache)
    assert [g.shape for g in gradients] == [x.shape, gate.shape, b.shape]
    whole = pooling.forward(np.repeat(x, 3, axis=1), np.stack([gate, gate]), b, width=3, stride=2)
    assert_same_bits(output, whole[0])
    expected = pooling.backward(np.ones_like(output), whole[1])
    assert_close(gradients.x, expected.x.sum(axis=1, keepdims=True), 1e-15)
    assert_close(gradients.gate, expected.gate.sum(axis=0), 1e-14)
    empty, _ = pooling.forward(np.ones((0, 9, D)), gate[:1], b, width=3)
    assert empty.shape == (0, 3, D)


@each(
    ("changed", "error", "message"),
    [
        ({"x": np.ones(3)}, ValueError, r"x must have at least two axes, .* \(x\.shape=\(3,\)\)"),
        ({"x": np.ones((5, 3), int)}, TypeError, "x must hold floating-point numbers, not int64"),
        ({"gate": None}, ValueError, r"b is added to gates, and gate is not given \(b\.shape=\(2, 3\)\)"),
        (
            {"gate": np.ones((4, 3))},
            ValueError,
            r"gate must have the shape \(\.\.\., 5, 3\) \(gate\.shape=\(4, 3\), x\.shape=\(5, 3\)\)",
        ),
        ({"gate": np.ones((5, 1))}, ValueError, r"gate must have the shape \(\.\.\., 5, 3\)"),
        ({"b": np.ones((3, 3))}, ValueError, r"b must have the shape \(2, 3\), .* \(b\.shape=\(3, 3\)\)"),
        (
            {"x": np.ones((2, 5, 3)), "gate": np.ones((4, 5, 3))},
            ValueError,
            r"the leading axes of x and gate do not broadcast together",
        ),
        ({"width": 0}, ValueError, "width must be at least 1, not 0"),
        ({"width": 2.0}, TypeError, "width must be an integer, not float"),
        ({"stride": 0}, ValueError, "stride must be at least 1, not 0"),
        ({"stride": True}, TypeError, "stride must be an integer, not True"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    given: dict[str, Any] = {"x": np.ones((5, 3)), "gate": np.ones((5, 3)), "b": np.ones((2, 3)), "width": 2}
    with pytest.raises(error, match=f"^{message}"):
        pooling.forward(**given | changed)
