from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import COMPLEX_STEP, Array, assert_close, assert_same_bits, each, normal

from attention_np import gradcheck, short_conv

WIDTH, D = 4, 3
PACKED = np.array([5, 5, 2, 2, 2, 5, 7])  # the last segments begin within the reach of the kernel


def inputs(n: int, *leading: int, dtype: Any = float) -> dict[str, Array]:
    """x, w, b and an initial state."""
    shapes = {"x": (*leading, n, D), "w": (WIDTH, D), "b": (D,), "initial_state": (WIDTH - 1, D)}
    return {name: normal(seed, *shape).astype(dtype) for seed, (name, shape) in enumerate(shapes.items())}


def segments_of(n: int, kind: str) -> Array | None:
    packed = np.resize(PACKED, n)
    return {"none": None, "packed": packed, "of each": np.stack([packed, np.arange(n)])}[kind]


@each("kind", ["none", "packed", "of each"])
@each("n", [0, 1, 7], long=[2, 3])
@each("given", [(), ("b", "initial_state")], long=[("b",), ("initial_state",)])
def test_gradients_are_numerical_ones_for_sequences_of_any_length(given: Any, n: int, kind: str) -> None:
    some = {name: x for name, x in inputs(n, 2).items() if name in ("x", "w", *given)}
    report = gradcheck.check_op(short_conv, some, method="complex-step", segments=segments_of(n, kind))
    report.raise_if_failed()
    assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP


@each("kind", ["none", "packed", "of each"])
@each("n", [0, 1, 7], long=[2, 3])
@each("has_past", [True, False])
def test_gradients_through_the_final_state_are_numerical_ones(has_past: bool, n: int, kind: str) -> None:
    names = ("x", "w", "initial_state") if has_past else ("x", "w")
    given = {name: x for name, x in inputs(n, 2).items() if name in names}

    def call(*arrays: Array) -> Any:
        return short_conv.forward(**dict(zip(given, arrays, strict=True)), segments=segments_of(n, kind))

    def forward(*arrays: Array) -> Array:
        output, cache = call(*arrays)
        return np.concatenate([output, cache.final_state], axis=-2)

    def backward(d_both: Array, *arrays: Array) -> list[Array]:
        d_output, d_final_state = d_both[..., :n, :], d_both[..., n:, :]
        found = short_conv.backward(d_output, call(*arrays)[1], d_final_state=d_final_state)
        return [getattr(found, name) for name in given]

    gradcheck.check(forward, backward, given, method="complex-step").raise_if_failed()
    along = {name: normal(9, *x.shape) for name, x in given.items()}
    moved = short_conv.jvp(call(*given.values())[1], outputs=("output", "final_state"), **along)
    d_both = normal(8, 2, n + WIDTH - 1, D)
    found = backward(d_both, *given.values())
    adjoint = sum((x * along[name]).sum() for name, x in zip(given, found, strict=True))
    assert abs((d_both * np.concatenate(moved, axis=-2)).sum() - adjoint) <= 1e-13


def test_each_feature_is_a_convolution() -> None:
    x, w = normal(0, 20, D), normal(1, WIDTH, D)
    output, cache = short_conv.forward(x, w)
    for a in range(D):
        assert_close(output[:, a], np.convolve(x[:, a], w[::-1, a])[:20], 1e-15)
    assert_same_bits(cache.final_state, x[-3:])
    assert cache.x is x


@each("cut", range(10))
@each("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_two_halves_are_the_whole(dtype: Any, cut: int) -> None:
    given = inputs(9, 2, dtype=dtype)
    x, w, b = given["x"], given["w"], given["b"]
    segments = np.array([[0] * 9, [0] * (cut - 2) + [1] * (11 - cut)] if cut > 2 else [[0] * 9] * 2)
    d_output, d_final_state = normal(5, 2, 9, D).astype(dtype), normal(6, 2, WIDTH - 1, D).astype(dtype)
    output, cache = short_conv.forward(**given, segments=segments)
    whole = short_conv.backward(d_output, cache, d_final_state=d_final_state)

    one, of_one = short_conv.forward(**given | {"x": x[:, :cut]}, segments=segments[:, :cut])
    state, rest = of_one.final_state, segments[:, cut:]
    other, of_other = short_conv.forward(x[:, cut:], w, b, initial_state=state, segments=rest)
    assert_same_bits(np.concatenate([one, other], axis=1), output)
    assert_same_bits(of_other.final_state, cache.final_state)

    second = short_conv.backward(d_output[:, cut:], of_other, d_final_state=d_final_state)
    first = short_conv.backward(d_output[:, :cut], of_one, d_final_state=second.initial_state)
    digits = 4 * float(ml_dtypes.finfo(dtype).eps)
    joined = np.concatenate([first.x, second.x], axis=1)
    for found, expected in (
        (joined, whole.x),
        (first.initial_state, whole.initial_state),
        (first.w + second.w, whole.w),
        (first.b + second.b, whole.b),
    ):
        assert found.dtype == dtype
        assert_close(found.astype(float), expected.astype(float), digits)


@each("has_past", [True, False])
def test_packed_segments_are_sequences_of_their_own(has_past: bool) -> None:
    given = inputs(7)
    x, w, b = given["x"], given["w"], given["b"]
    past = given["initial_state"] if has_past else None
    output, cache = short_conv.forward(x, w, b, initial_state=past, segments=PACKED)
    parts = [slice(0, 2), slice(2, 5), slice(5, 6), slice(6, 7)]
    states = [past, None, None, None]
    alone = [short_conv.forward(x[part], w, b, initial_state=z) for part, z in zip(parts, states, strict=True)]
    assert_same_bits(output, np.concatenate([y for y, _ in alone]))
    assert_same_bits(cache.final_state, alone[-1][1].final_state)
    assert_same_bits(cache.final_state, np.stack([0 * x[0], 0 * x[0], x[6]]))
    whole = short_conv.forward(x[:2], w, b, initial_state=past, segments=PACKED[:2])[1].final_state
    assert_same_bits(whole, np.stack([0 * x[0] if past is None else past[2], x[0], x[1]]))


@each("n", [0, 1, 2])
def test_a_short_sequence_leaves_what_remains_of_the_state(n: int) -> None:
    given = inputs(n)
    _, cache = short_conv.forward(**given)
    assert_same_bits(cache.final_state, np.concatenate([given["initial_state"], given["x"]])[n:])
    _, without = short_conv.forward(given["x"], given["w"])
    assert_same_bits(without.final_state, np.concatenate([np.zeros((WIDTH - 1, D)), given["x"]])[n:])


@each("bad", [np.nan, np.inf])
def test_what_is_out_of_reach_contributes_nothing_whatever_it_holds(bad: float) -> None:
    given = inputs(7)
    d_output, d_final_state, along = normal(5, 7, D), normal(6, 3, D), {n: 0.5 * x for n, x in given.items()}

    def run(changed: dict[str, Array], d: Array = d_output, d_state: Array = d_final_state) -> dict[str, Array]:
        output, cache = short_conv.forward(**given | changed, segments=PACKED)
        moved = short_conv.jvp(cache, outputs=("output", "final_state"), **along)
        gradients = short_conv.backward(d, cache, d_final_state=d_state)
        return {"output": output, "state": cache.final_state, "jvp": moved[0]} | gradients._asdict()

    plain, d_zero = run({}), d_output.copy()
    spoiled = given["x"].copy()
    spoiled[3], d_zero[3:5] = bad, 0  # which tokens 3 and 4 see, and nobody else
    found, others = run({"x": spoiled}), [0, 1, 2, 5, 6]
    for name in ("output", "jvp"):
        assert not np.isfinite(found[name][3:5]).any()
        assert_same_bits(found[name][others], plain[name][others])
    assert_same_bits(found["state"], plain["state"])
    found, expected = run({"x": spoiled}, d_zero), run({}, d_zero)
    for name in ("x", "w", "b", "initial_state"):
        assert_same_bits(found[name], expected[name])

    found = run({"initial_state": np.full((3, D), bad)})
    assert not np.isfinite(found["output"][:2]).any()
    assert_same_bits(found["output"][2:], plain["output"][2:])
    assert_same_bits(found["x"], plain["x"])
    w = given["w"].copy()
    w[0] = bad  # three tokens before: only the state is in reach there
    found = run({"w": w})
    assert not np.isfinite(found["output"][:2]).any()
    assert_same_bits(found["output"][2:], plain["output"][2:])
    assert_same_bits(found["x"], plain["x"])

    d_spoiled = d_output.copy()
    d_spoiled[3] = bad
    found = run({}, d_spoiled)
    assert_same_bits(found["x"][[0, 1, 4, 5, 6]], plain["x"][[0, 1, 4, 5, 6]])
    assert_same_bits(found["initial_state"], plain["initial_state"])
    found = run({}, d_output, np.stack([0 * d_final_state[0] + bad, d_final_state[1], d_final_state[2]]))
    for name in ("x", "w", "initial_state"):
        assert_same_bits(found[name], plain[name])


def test_weights_of_what_is_before_a_first_token_may_be_anything() -> None:
    x, w = normal(0, 2, D), normal(1, WIDTH, D)
    w[:2] = np.nan
    output, cache = short_conv.forward(x, w)
    assert np.isfinite(output).all()
    gradients = short_conv.backward(output, cache)
    assert np.isfinite(gradients.x).all()
    assert (gradients.w[:2] == 0).all()


@each("size", [2.0**1000, 2.0**-1000])
def test_sums_whose_terms_leave_the_range_are_found(size: float) -> None:
    given = inputs(7) | {"b": np.zeros(D)}
    _, cache = short_conv.forward(**given)
    _, of_sized = short_conv.forward(size * given["x"], given["w"] / size, initial_state=size * given["initial_state"])
    d_output, along = normal(5, 7, D), {name: normal(6, *given[name].shape) for name in ("x", "w", "initial_state")}
    wanted, found = short_conv.backward(d_output, cache), short_conv.backward(size * d_output, of_sized)
    assert_close(found.x, wanted.x, 1e-14)
    assert_close(found.initial_state, wanted.initial_state, 1e-14)
    sized = along | {"x": size * along["x"], "initial_state": size * along["initial_state"], "w": along["w"] / size}
    moved = short_conv.jvp(short_conv.forward(**given)[1], **along)
    assert_close(short_conv.jvp(of_sized, **sized), moved, 1e-14)


@each("size", [2.0**600, 2.0**1000])
def test_sums_whose_terms_cancel_out_of_range_are_zero(size: float) -> None:
    signs, w, past = np.array([[1.0], [-1.0], [1.0]]), np.array([[size], [size]]), np.array([[-size]])
    output, cache = short_conv.forward(size * signs, w, initial_state=past)
    assert (output == 0).all()
    assert (short_conv.jvp(cache, x=size * signs, initial_state=past) == 0).all()
    assert (short_conv.backward(size * signs, cache).x[:2] == 0).all()
    assert (short_conv.backward(size * np.array([[1.0], [1.0], [0.0]]), cache).w == 0).all()


def test_segments_and_states_broadcast() -> None:
    given = inputs(5, 2, 1)
    segments, past = np.zeros((3, 5), int), normal(7, 4, 1, 1, WIDTH - 1, D)
    output, cache = short_conv.forward(given["x"], given["w"], initial_state=past, segments=segments)
    assert output.shape == (4, 2, 3, 5, D)
    assert cache.final_state.shape == (4, 2, 3, WIDTH - 1, D)
    gradients = short_conv.backward(np.ones_like(output), cache)
    assert gradients.x.shape == given["x"].shape
    assert gradients.initial_state.shape == past.shape
    assert_close(gradients.x, 12 * short_conv.backward(np.ones((2, 1, 5, D)), short_conv.forward(**given)[1]).x, 1e-14)


@each("width", [1, 2])
def test_a_kernel_of_one_weight_scales_each_feature_and_has_an_empty_state(width: int) -> None:
    x, w = normal(0, 5, D), normal(1, width, D)
    output, cache = short_conv.forward(x, w, initial_state=np.ones((width - 1, D)))
    assert cache.final_state.shape == (width - 1, D)
    gradients = short_conv.backward(x, cache, d_final_state=np.zeros((width - 1, D)))
    assert gradients.initial_state.shape == (width - 1, D)
    if width == 1:
        assert_same_bits(output, x * w)
        assert_same_bits(gradients.x, x * w)


@each(
    ("changed", "error", "message"),
    [
        ({"x": np.ones(3)}, ValueError, r"x must have at least two axes, .* \(x\.shape=\(3,\)\)"),
        ({"w": np.ones(3)}, ValueError, r"w must have the shape \(width, features\), .*\(w\.shape=\(3,\)\)"),
        ({"w": np.ones((0, 3))}, ValueError, r"w must have the shape .* of a width from 1 on \(w\.shape=\(0, 3\)\)"),
        ({"w": np.ones((4, 2))}, ValueError, r"w has 2 features but x has 3 \(w\.shape=\(4, 2\), x\.shape=\(5, 3\)\)"),
        ({"b": np.ones(2)}, ValueError, r"b must have the shape \(3,\) \(b\.shape=\(2,\)\)"),
        ({"initial_state": np.ones((4, 3))}, ValueError, r"initial_state must have the shape \(\.\.\., 3, 3\)"),
        ({"segments": np.zeros(4, int)}, ValueError, r"segments must have the shape \(\.\.\., 5\) .*\(4,\)"),
        ({"segments": np.zeros(5)}, TypeError, r"segments must hold integers, not float64 \(segments\.shape=\(5,\)\)"),
        (
            {"x": np.ones((2, 5, 3)), "segments": np.zeros((4, 5), int)},
            ValueError,
            r"the leading axes of the arrays do not broadcast together \(x: \(2,\), segments: \(4,\)\)",
        ),
        ({"x": np.ones((5, 3), int)}, TypeError, "x must hold floating-point numbers, not int64"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        short_conv.forward(**{"x": np.ones((5, 3)), "w": np.ones((4, 3)), **changed})
    _, cache = short_conv.forward(np.ones((5, 3)), np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"^d_final_state must have the shape \(3, 3\)"):
        short_conv.backward(np.ones((5, 3)), cache, d_final_state=np.ones((4, 3)))
