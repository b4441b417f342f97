"""NaN, infinity and numbers at the limits, anywhere: nothing warns, and what is hidden stays hidden."""

from typing import Any

import numpy as np
from helpers import ALL, ATTENTIONS, Array, Case
from hypothesis import given, settings
from hypothesis import strategies as st

from .strategies import COMPLEX, REAL, Everything, cases, hostile

LIMITS = (np.nan, np.inf, -np.inf, "most", "-most", "tiny", "subnormal", 0.0, -0.0)


def spoiled(x: Array, rng: np.random.Generator, share: float) -> Array:
    """`x` with limits of its dtype at random places."""
    if not x.size:
        return x
    x = np.array(x)
    if x.dtype.kind == "V":
        most, tiny, subnormal = 3.3e38, 1.2e-38, 1e-40
    else:
        info = np.finfo(x.dtype)
        most, tiny, subnormal = info.max, info.tiny, info.smallest_subnormal
    named = {"most": most, "-most": -most, "tiny": tiny, "subnormal": subnormal}
    values = [named.get(value, value) if isinstance(value, str) else value for value in LIMITS]
    for index in np.ndindex(x.shape):
        if rng.random() < share:
            x[index] = values[rng.integers(len(values))]
    return x


@given(cases(dtypes=REAL + COMPLEX), st.integers(0, 2**32), st.sampled_from([0.02, 0.3, 1.0]))
@settings(hostile, max_examples=(4 if ALL else 2) * hostile.max_examples)
def test_nothing_warns_and_nothing_is_refused_whatever_arrays_hold(case: Case, seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    case = case.map(lambda x: spoiled(x, rng, share))
    with np.errstate(all="raise"):
        everything = Everything(case)
        with np.errstate(all="ignore"):
            d_output = spoiled(everything.d_output, rng, share)
            tangents = Case(case.op, everything.tangents, {}).map(lambda x: spoiled(x, rng, share)).inputs
        gradients = case.op.backward(d_output, everything.cache)
        moved = case.op.jvp(everything.cache, **tangents)
    assert moved.shape == everything.output.shape
    assert len(gradients) >= 1


@given(cases(ops=ATTENTIONS, dtypes=REAL), st.data())
@hostile
def test_a_key_that_nobody_may_attend_to_may_hold_anything(case: Case, data: Any) -> None:
    m = case.inputs["key"].shape[-2]
    if not m:
        return
    j = data.draw(st.integers(0, m - 1))
    poison = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    by_bias = "bias" in case.inputs and data.draw(st.booleans())
    mask = np.arange(m) != j
    given_mask = case.options.get("mask", np.True_)
    if by_bias:
        bias = np.array(np.broadcast_to(case.inputs["bias"], (*np.shape(case.inputs["bias"])[:-1], m)))
        bias[..., j] = -np.inf
        case = case._replace(inputs={**case.inputs, "bias": bias})
    else:
        case = case._replace(options={**case.options, "mask": given_mask & mask})

    def poisoned(x: Array) -> Array:
        x = np.array(x)
        x[..., j, :] = poison
        return x

    clean = Everything(case)
    bad = Everything(
        case._replace(inputs={**case.inputs, **{name: poisoned(case.inputs[name]) for name in ("key", "value")}})
    )
    for name, x in clean.results.items():
        one, other = bad.results[name].astype(np.float64), x.astype(np.float64)
        assert np.isfinite(one).all(), name
        narrow = 1e-2 if x.dtype.itemsize == 2 else 1e-5 if x.dtype.itemsize == 4 else 1e-12
        mixed = max(narrow, 1e-5)
        assert np.abs(one - other).max(initial=0) <= mixed * max(np.abs(other).max(initial=0), 1), name
