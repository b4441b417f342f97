"""Latent attention: two forms that are the same, and both are dot-product attention of what is made of the latents."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Array, assert_alike, assert_close, assert_same_bits, each, leaves, normal, peak_of

from attention_np import biases, dot_product, gradcheck, latent, masks
from attention_np.known_answers import truth

finfo: Any = ml_dtypes.finfo
H, N, M, R, D_N, D_R, D_V = 2, 3, 4, 5, 3, 2, 6
HIDDEN = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]], bool)


def arrays(*batch: int, h: int = H, n: int = N, m: int = M, r: int = R, positions: bool = True) -> dict[str, Any]:
    shapes = {
        "query": (*batch, h, n, D_N),
        "query_rotary": (*batch, h, n, D_R),
        "latent": (*batch, m, r),
        "key_rotary": (*batch, m, D_R),
        "w_key": (h, r, D_N),
        "w_value": (h, r, D_V),
    }
    found: dict[str, Any] = {name: normal(seed, *shape) for seed, (name, shape) in enumerate(shapes.items())}
    return found if positions else {name: None if "rotary" in name else x for name, x in found.items()}


INPUTS: dict[str, dict[str, Any]] = {
    "alone": arrays(),
    "a batch": arrays(2),
    "one query": arrays(2, n=1),
    "one latent": arrays(m=1),
    "one head": arrays(h=1),
    "without positions": arrays(2, positions=False),
    "latents broadcast": arrays(2) | {"latent": normal(2, M, R), "key_rotary": normal(3, M, D_R)},
    "queries broadcast": arrays(2) | {"query": normal(0, H, N, D_N), "query_rotary": normal(1, H, N, D_R)},
    "each has axes of its own": arrays(3)
    | {"query": normal(0, 2, 1, H, N, D_N), "key_rotary": normal(3, 2, 1, M, D_R)},
}
EXTRA: dict[str, dict[str, Any]] = {
    "a number": {"bias": np.array(0.5)},
    "bias": {"bias": normal(8, N, M)},
    "bias of heads": {"bias": normal(8, H, 1, M)},
    "bias that hides": {"bias": np.where(HIDDEN, normal(8, N, M), -np.inf)},
    "bias at a limit": {"bias": np.where(HIDDEN, normal(8, N, M), np.inf)},
    "sink": {"sink": normal(9, H)},
    "sink of all": {"sink": np.array(0.0), "bias": normal(8, N, M)},
    "shaw": {"bias": biases.shaw(normal(8, 3, D_N + D_R))},
    "shaw, sink": {"bias": biases.shaw(normal(8, 3, D_N + D_R)), "sink": normal(9, H)},
    "t5": {"bias": biases.t5(normal(8, 4, H))},
    "alibi": {"bias": biases.alibi(normal(8, H))},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {"mask": HIDDEN, "scale": 0.4},
    "mask of heads": {"mask": np.stack([HIDDEN, ~HIDDEN]), "softcap": 2.0},
    "mask of nobody": {"mask": np.array(False)},
    "selected": {"mask": masks.selected([[0, 3], [2, 2], [-1, -1]], M)},
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{name: (inputs, {}) for name, inputs in INPUTS.items()},
    **{name: (arrays(2) | extra, {}) for name, extra in EXTRA.items()},
    **{name: (arrays(2), options) for name, options in OPTIONS.items()},
    "everything": (arrays(2) | EXTRA["shaw, sink"], {"mask": HIDDEN, "is_causal": True, "softcap": 2.0}),
}
BOTH = each("absorbed", [False, True])


def everything(inputs: dict[str, Any], absorbed: bool, **options: Any) -> dict[str, Array]:
    """Output, gradients, forward mode and second derivatives."""
    output, cache = latent.forward(**inputs, absorbed=absorbed, **options)
    d_output = normal(20, *output.shape)
    gradients = latent.backward(d_output, cache)
    tangents = {name: None if x is None else normal(30 + k, *x.shape) for k, (name, x) in enumerate(inputs.items())}
    along: Any = latent.Gradients._make(
        None if x is None else normal(50 + k, *x.shape) for k, x in enumerate(gradients)
    )
    d_d_output, second = latent.double_backward(along, d_output, cache)
    found = {"output": output, "weights": cache.weights, "jvp": latent.jvp(cache, **tangents), "d_d_output": d_d_output}
    found |= {f"d_{name}": x for name, x in leaves(gradients)}
    return found | {f"second {name}": x for name, x in leaves(second)}


@each("name", CASES)
def test_plain_and_absorbed_are_the_same_in_every_pass(name: str) -> None:
    inputs, options = CASES[name]
    plain, absorbed = everything(inputs, False, **options), everything(inputs, True, **options)
    assert plain.keys() == absorbed.keys()
    for of, x in plain.items():
        assert_alike(absorbed[of], x, 1e-13, f"{name}, {of}")


@each("name", ["each has axes of its own", "everything"], long=["a batch", "sink", "mask of heads"])
@BOTH
def test_gradients_are_numerical_ones(name: str, absorbed: bool) -> None:
    inputs, options = CASES[name]
    gradcheck.check_op(latent, inputs, absorbed=absorbed, method="complex-step", **options).raise_if_failed()


@BOTH
def test_it_is_dot_product_attention_of_keys_and_values_made_of_the_latents(absorbed: bool) -> None:
    given = arrays()
    output, cache = latent.forward(**given, absorbed=absorbed, is_causal=True)
    assert cache.scale == pytest.approx(1 / np.sqrt(D_N + D_R), rel=1e-15)
    for h in range(H):
        key = np.concatenate([given["latent"] @ given["w_key"][h], given["key_rotary"]], axis=-1)
        query = np.concatenate([given["query"][h], given["query_rotary"][h]], axis=-1)
        expected, of_head = dot_product.forward(query, key, given["latent"] @ given["w_value"][h], is_causal=True)
        assert_close(output[h], expected, 1e-14)
        assert_close(cache.weights[h], of_head.weights, 1e-14)


@BOTH
def test_output_and_gradients_are_right_in_every_digit(absorbed: bool) -> None:
    given, d_output = arrays(), normal(20, H, N, D_V)
    output, cache = latent.forward(**given, absorbed=absorbed, is_causal=True)
    gradients = latent.backward(d_output, cache)
    exact = truth.answers("latent", given | {"d_output": d_output}, {"is_causal": True})
    assert_close(output, exact["output"].astype(float), 3e-15)
    for name in given:
        assert_close(getattr(gradients, name), exact[f"d_{name}"].astype(float), 1e-14)


def test_the_absorbed_form_makes_no_keys_and_no_values_of_heads() -> None:
    given, h, m, r = arrays(h=16, n=1, m=4096, r=32), 16, 4096, 32
    keys_and_values = h * m * (D_N + D_R + D_V) * 8
    scores, keys = 6 * h * m * 8, 3 * m * (r + D_R) * 8
    assert scores + keys < keys_and_values + scores
    assert peak_of(lambda: latent.forward(**given)) > keys_and_values
    _, cache = latent.forward(**given, absorbed=True)
    shapes = [x.shape for _, x in leaves(cache) if x.size > h * m]
    assert shapes
    assert all(shape in ((m, r), (m, r + D_R)) for shape in shapes)


def test_biases_in_a_list_add_and_have_gradients_in_a_list() -> None:
    index = np.random.default_rng(0).integers(0, 4, (N, M))
    several: list[Any] = [normal(8, N, M), biases.products(normal(9, 4, D_N + D_R), index), biases.t5(normal(10, 4, H))]
    given = arrays(2)
    found = [latent.forward(**given, bias=several, absorbed=absorbed, sink=np.array(0.5)) for absorbed in (False, True)]
    assert_close(found[1][0], found[0][0], 1e-13)
    one, other = (latent.backward(normal(20, 2, H, N, D_V), cache) for _, cache in found)
    for x, y in zip(
        [*(one.bias or []), one.query, one.query_rotary],
        [*(other.bias or []), other.query, other.query_rotary],
        strict=True,
    ):
        assert_close(np.asarray(y), np.asarray(x), 1e-13)
    for absorbed in (False, True):
        gradcheck.check_op(latent, given | {"bias": several[1]}, absorbed=absorbed).raise_if_failed()


def test_a_bias_that_reads_keys_needs_the_plain_form() -> None:
    index = np.random.default_rng(0).integers(0, 4, (N, M))
    bias = biases.products(normal(9, 4, D_N + D_R), index, of="key")
    gradcheck.check_op(latent, arrays(2) | {"bias": bias}).raise_if_failed()
    with pytest.raises(
        ValueError, match=r"^bias reads the keys, of which the absorbed form has none: use absorbed=False$"
    ):
        latent.forward(**arrays(2), bias=[bias], absorbed=True)


@each("sink", [False, True])
@BOTH
def test_results_share_no_memory_with_the_inputs_the_cache_or_each_other(sink: bool, absorbed: bool) -> None:
    given = arrays(n=1) | ({"sink": normal(9, H)} if sink else {})
    output, cache = latent.forward(**given, absorbed=absorbed)
    d_output = normal(20, *output.shape)
    results = {"output": output} | dict(leaves(latent.backward(d_output, cache)))
    others = [x for of in (given, cache, {"d_output": d_output}) for _, x in leaves(of)]
    for name, x in results.items():
        assert x.flags.writeable
        assert not any(np.shares_memory(x, y) for y in others), name
        others.append(x)


# What is hidden, and what is not finite


@each("poison", [np.nan, np.inf, -np.inf])
@each("sink", [None, normal(9, H)])
@BOTH
def test_what_is_hidden_contributes_nothing_whatever_it_holds(poison: float, sink: Any, absorbed: bool) -> None:
    mask = np.ones((N, M), bool)
    mask[1], mask[:, 2] = False, False
    given = arrays() | {"bias": normal(8, N, M), "sink": sink}
    bad: dict[str, Any] = {name: None if x is None else x.copy() for name, x in given.items()}
    bad["query"][:, 1], bad["query_rotary"][:, 1], bad["latent"][2], bad["key_rotary"][2] = (poison,) * 4
    bad["bias"][1], bad["bias"][:, 2] = poison, poison
    actual, expected = (everything(x, absorbed, mask=mask) for x in (bad, given))
    for name, x in expected.items():
        if not name.startswith("second"):
            assert_same_bits(actual[name], x)
    assert (expected["output"][:, 1] == 0).all()
    assert (expected["d_query"][:, 1] == 0).all()
    assert (expected["d_latent"][2] == 0).all()


@BOTH
def test_a_query_without_an_incoming_gradient_contributes_nothing(absorbed: bool) -> None:
    given = arrays()
    bad = {name: x.copy() for name, x in given.items()}
    bad["query"][:, 1], bad["query_rotary"][0, 1] = np.nan, np.inf
    d_output = normal(20, H, N, D_V)
    d_output[:, 1] = 0
    found: list[Any] = [latent.backward(d_output, latent.forward(**x, absorbed=absorbed)[1]) for x in (bad, given)]
    for one, other in zip(found[0][:6], found[1][:6], strict=True):
        assert_same_bits(one, other)


@BOTH
def test_a_padded_sample_cannot_poison_its_batch(absorbed: bool) -> None:
    given = arrays(3)
    bad = {name: x.copy() for name, x in given.items()}
    for name in ("query", "query_rotary", "latent", "key_rotary"):
        bad[name][1] = np.nan
    d_output = normal(20, 3, H, N, D_V)
    d_output[1] = 0
    found: list[Any] = [latent.backward(d_output, latent.forward(**x, absorbed=absorbed)[1]) for x in (bad, given)]
    for one, other in zip(found[0][:6], found[1][:6], strict=True):
        assert_same_bits(one, other)


@BOTH
def test_nan_in_a_latent_flows_to_those_who_attend_to_it_and_no_further(absorbed: bool) -> None:
    given = arrays()
    given["latent"][1, 0] = np.nan
    output, _ = latent.forward(**given, absorbed=absorbed, mask=HIDDEN)  # of three queries the last alone sees it
    assert np.isfinite(output[:, :2]).all()
    assert np.isnan(output[:, 2]).all()


@each(("n", "m", "h"), [(0, 4, 2), (3, 0, 2), (3, 4, 0), (0, 0, 0)])
@each("sink", [False, True])
@BOTH
def test_zero_lengths_give_zeros_of_the_right_shape(n: int, m: int, h: int, sink: bool, absorbed: bool) -> None:
    given = arrays(2, n=n, m=m, h=h) | ({"sink": normal(9, h)} if sink else {})
    output, cache = latent.forward(**given, absorbed=absorbed)
    assert_same_bits(output, np.zeros((2, h, n, D_V)))
    for name, x in latent.backward(output, cache)._asdict().items():
        if name in given:
            assert_same_bits(x, np.zeros(given[name].shape) + (x if name == "sink" else 0))
    assert latent.jvp(cache, query=given["query"]).shape == output.shape


@each("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.longdouble])
@BOTH
def test_dtypes_are_kept_and_half_precision_computes_in_single(dtype: Any, absorbed: bool) -> None:
    given = {name: x.astype(dtype) for name, x in arrays(2).items()}
    output, cache = latent.forward(**given, absorbed=absorbed)
    wide = {name: x.astype(np.float64) for name, x in given.items()}
    expected, of_wide = latent.forward(**wide, absorbed=absorbed)
    digits = 20 * float(finfo(dtype).eps) + 1e-15
    assert output.dtype == dtype
    assert_close(output.astype(float), expected, digits)
    d_output = normal(20, *output.shape).astype(dtype)
    wanted: Any = latent.backward(d_output.astype(float), of_wide)
    gradients: Any = latent.backward(d_output, cache)
    for found, x in zip(gradients[:6], wanted[:6], strict=True):
        assert found.dtype == dtype
        assert_close(found.astype(float), x, 2 * digits)


@each("size", [1e200, 1e-200])
@BOTH
def test_products_that_leave_the_range_on_their_way_come_back(size: float, absorbed: bool) -> None:
    given, d_output = arrays(), normal(20, H, N, D_V)
    wanted, of_wanted = latent.forward(**given, absorbed=absorbed)
    powers = {"query": 1, "query_rotary": 1, "latent": -1, "w_key": 1, "w_value": 1}
    moved = {name: x * size ** powers.get(name, 0) for name, x in given.items()}
    output, cache = latent.forward(**moved, absorbed=absorbed, scale=of_wanted.scale / size)
    assert_close(output, wanted, 1e-13)
    found = latent.backward(d_output, cache)
    for name in given:
        assert_close(
            getattr(found, name) * size ** powers.get(name, 0),
            getattr(latent.backward(d_output, of_wanted), name),
            1e-12,
        )


# Refusals


@each(
    ("changed", "error", "message"),
    [
        ({"key_rotary": None}, ValueError, "key_rotary is missing: query_rotary meets it in the scores, so both"),
        ({"query_rotary": None}, ValueError, "query_rotary is missing: key_rotary meets it in the scores, so both"),
        ({"query": np.ones((N, D_N))}, ValueError, r"query must have at least three axes, \(..., h, n, features\)"),
        ({"latent": np.ones(R)}, ValueError, r"latent must have at least two axes, \(..., m, features\)"),
        (
            {"w_key": np.ones((R, D_N))},
            ValueError,
            r"w_key must have the shape \(heads, .*\), \(2, 5, 3\) \(w_key.shape",
        ),
        ({"w_key": np.ones((H, R, 4))}, ValueError, r"w_key must have the shape .*, \(2, 5, 3\)"),
        ({"w_value": np.ones((H, 4, D_V))}, ValueError, r"w_value must have the shape .*, \(2, 5, d_v\)"),
        ({"query_rotary": np.ones((H, 2, D_R))}, ValueError, r"query_rotary must have the shape \(..., 2, 3, d_r\)"),
        ({"key_rotary": np.ones((3, D_R))}, ValueError, r"key_rotary must have the shape \(..., 4, d_r\)"),
        ({"key_rotary": np.ones((M, 3))}, ValueError, "key_rotary has 3 features but query_rotary has 2 "),
        (
            {"query": np.ones((2, H, N, D_N)), "latent": np.ones((3, M, R))},
            ValueError,
            "the leading axes of the arrays",
        ),
        ({"mask": np.ones((N, M))}, TypeError, "mask must be boolean"),
        ({"mask": np.ones((3, N, M), bool)}, ValueError, "mask must broadcast to the scores"),
        ({"bias": np.ones(3)}, ValueError, "bias must broadcast to the scores"),
        ({"bias": biases.shaw(np.ones((3, D_N)))}, ValueError, "embedding has 3 features but query has 5"),
        ({"sink": np.ones(3)}, ValueError, "sink must broadcast to the leading axes of the scores"),
        ({"absorbed": 1}, TypeError, "absorbed must be True or False, not 1"),
        ({"scale": np.inf}, ValueError, "scale must be finite"),
        ({"softcap": 0.0}, ValueError, "softcap must be above zero"),
        ({"latent": np.ones((M, R), int)}, TypeError, "latent must hold floating-point numbers, not int64"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        latent.forward(**{**arrays(), **changed})
