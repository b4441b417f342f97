"""Each convention that an attention may follow is found by calling it, alone and two together; a right one is right."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from helpers import Array, each

from attention_np import blockwise, conventions, dot_product, masks
from attention_np._conventions.asking import FORMS, chosen
from attention_np._conventions.readings import AXES, StepByStep, answers, scale_called

OTHERS = [(axis, value) for axis, values in AXES.items() for value in values[1:]]
LOWEST = float(np.finfo(np.float32).min)
FROM_OURS = {
    "batch, heads, queries": (0, 1, 2, 3),
    "batch, queries, heads": (0, 2, 1, 3),
    "queries, batch, heads": (2, 0, 1, 3),
}


def kernel(**ways: str) -> Any:
    """Attention from its formulas, in float64, that follows other conventions: an axis, with `_` for a space, each."""
    way = {axis: values[0] for axis, values in AXES.items()} | ways

    def attention(query: Array, key: Array, value: Array, **options: Any) -> tuple[Array, Array]:
        back = np.argsort(FROM_OURS[way["layout"]])
        q, k, v = (x.astype(float).transpose(back) for x in (query, key, value))
        group = q.shape[1] // k.shape[1]
        k, v = (np.tile(x, (1, group, 1, 1)) if way["heads"] == "tiled" else np.repeat(x, group, 1) for x in (k, v))
        scale = scale_called(way["scale"], q.shape[-1], v.shape[-1])
        given = options.get("scale")
        if given is not None:
            on_top = given / np.sqrt(q.shape[-1])
            scale = dict(zip(AXES["given scale"], (given, 1 / given, on_top, scale), strict=True))[way["given scale"]]
        scores, full = scores_of(way, q @ k.swapaxes(-1, -2), scale, options)
        sink = np.full((*scores.shape[:-1], 1), -np.inf)
        if "sink" in options and way["sink"] != "ignored":
            sink[:] = options["sink"][:, None, None] * (scale if way["sink"] == "scaled" else 1)
        kept = options.get("kept", np.True_)
        scores = np.where(kept | (way["dropout"] != "before the softmax"), scores, -np.inf)
        with np.errstate(invalid="ignore"):
            weights, logsumexp = softmax(np.concatenate([scores, sink], -1))
            if "without" in way["logsumexp"]:
                logsumexp = softmax(scores)[1]
        empty = (scores <= LOWEST).all(-1, keepdims=True)
        weights = weights[..., :-1]
        weights = np.where(empty & (way["empty row"] == "zero"), 0, weights)
        weights = np.where(empty & (way["empty row"] == "as if nothing were hidden"), softmax(full)[0], weights)
        if "kept" in options and way["dropout"] in ("divided by 1 - p", "as they are"):
            weights = weights * kept / (1 - options["dropout_p"] if way["dropout"] == "divided by 1 - p" else 1)
        output: Array = (weights @ v).transpose(FROM_OURS[way["layout"]])
        return output, logsumexp / np.log(2) if "base 2" in way["logsumexp"] else logsumexp

    return attention


def scores_of(way: dict[str, str], products: Array, scale: float, options: dict[str, Any]) -> tuple[Array, Array]:
    """The scores, and what they were before any was hidden."""
    cap, bias, added = options.get("softcap"), options.get("bias", 0), way["bias"]

    def capped(scores: Array, here: str) -> Array:
        return cap * np.tanh(scores / cap) if cap is not None and way["softcap"] == here else scores

    scores = capped(products, "before the scale") + (bias if added == "added before the scale" else 0)
    scores = capped(scores * scale, "before mask and bias")
    scores = capped(scores + {"added": bias, "subtracted": -1 * bias}.get(added, 0), "after bias")
    if "mask" in options and way["mask"] == "added as a number":
        scores = scores + options["mask"]
    hidden = -np.inf if way["empty row"] in ("zero", "nan") else LOWEST
    return capped(np.where(seen(way, products.shape, options), scores, hidden), "after mask"), scores


def seen(way: dict[str, str], shape: tuple[int, ...], options: dict[str, Any]) -> Array:
    n, m = shape[-2:]
    i, j = np.arange(n)[:, None], np.arange(m)
    visible = np.ones(shape, bool)
    if "mask" in options and way["mask"].startswith("true"):
        visible &= options["mask"] == (way["mask"] == "true attends")
    if (options.get("is_causal") or way["keys"] != "all") and way["causal"] != "ignored":
        last = dict(zip(AXES["causal"], (i, i + m - n, i - 1, i + 1), strict=False)).get(way["causal"])
        visible &= j >= i if last is None else j <= last
    if "window" in options:
        (left, right), at = options["window"], i + (m - n if way["window's alignment"] == "bottom-right" else 0)
        more = dict(zip(AXES["window"], (0, -1, 1, -2, m), strict=True))[way["window"]]
        ahead = dict(zip(AXES["window's right"], (right, max(right - 1, 0), 0, m), strict=True))[way["window's right"]]
        visible &= (j >= at - left - more) & (j <= at + ahead)
    return visible


def softmax(scores: Array) -> tuple[Array, Array]:
    largest = scores.max(-1, keepdims=True)
    exponentials = np.exp(scores - largest)
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / total, (np.log(total) + largest)[..., 0]


def identified(*others: tuple[str, str]) -> conventions.Profile:
    return conventions.identify(kernel(**dict(others)), options=conventions.OPTIONS)


def differences(profile: conventions.Profile) -> dict[str, str | None]:
    """What is not as ours; an axis that was not asked because of another is None."""
    return {axis: profile[axis] for axis, values in AXES.items() if profile[axis] not in (values[0], None)}


def test_a_right_attention_has_our_conventions_and_no_notes() -> None:
    profile = identified()
    assert {axis: profile[axis] for axis in AXES if axis != "keys"} == conventions.PROFILES["attention_np"]
    assert profile["precision"] == "float32 or better"
    assert profile["keys"] is None
    assert not profile.notes
    assert not profile.differs_from("attention_np")


@each("other", [(axis, values[1]) for axis, values in AXES.items()], long=OTHERS)
def test_a_convention_that_is_another_is_found_and_no_other(other: tuple[str, str]) -> None:
    expected = dict([other])
    if other == ("bias", "added before the scale"):
        expected["softcap"] = "after bias"  # as it is then
    assert differences(identified(other)) == expected


# What cannot be told apart: two that are the same, or one that nothing is left to see by
SAME = {
    frozenset({("scale", "1"), ("bias", "added before the scale")}),
    frozenset({("scale", "1"), ("softcap", "before the scale")}),
    frozenset({("scale", "1"), ("sink", "scaled")}),
    frozenset({("bias", "ignored"), ("softcap", "after bias")}),
}


@pytest.mark.long
def test_two_conventions_that_are_others_are_both_found() -> None:
    tried = 0
    for pair in combinations(OTHERS, 2):
        (one, value), (other, _) = pair
        hidden_by_nothing = one == "mask" and value in ("added as a number", "ignored") and other == "empty row"
        no_sink = pair[0] == ("sink", "ignored") and "without" in pair[1][1]
        if one == other or one == "keys" or frozenset(pair) in SAME or hidden_by_nothing or no_sink:
            continue
        found = differences(identified(*pair))
        if ("bias", "added before the scale") in pair and "softcap" not in (one, other):
            assert found.pop("softcap") == "after bias"
        assert found == dict(pair)
        tried += 1
    assert tried > 700


def test_the_alternatives_are_apart_by_more_than_the_bounds_of_every_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two predictions come as near as their bounds, the nearer would be named by chance."""
    asked: dict[str, list[Any]] = {}

    def recorded(
        axis: str, reading: Any, calls: Any, form: Any, names: Any = ("output",), *others: Any, **more: Any
    ) -> Any:
        asked.setdefault(axis, []).extend((reading, names, call) for call, _ in calls)
        return chosen(axis, reading, calls, form, names, *others, **more)

    monkeypatch.setattr(conventions, "chosen", recorded)
    identified()
    monkeypatch.undo()
    assert set(asked) == set(AXES) - {"layout", "keys"}
    for axis, form in product(asked, FORMS.values()):
        predictions = {
            value: [
                answers({**dict(reading), axis: value}, *call, StepByStep(form))[names[0]]
                for reading, names, call in asked[axis]
            ]
            for value in AXES[axis]
        }
        for one, other in combinations(predictions, 2):
            pairs = list(zip(predictions[one], predictions[other], strict=True))
            apart = [np.abs(a.value - b.value) - a.error - b.error for a, b in pairs]
            assert max(np.nan_to_num(x, nan=np.inf).max() for x in apart) > 0.02, (axis, one, other, form.precision)


@each("wrong", [None, ("causal", "ignored"), ("scale", "1"), ("heads", "tiled")])
def test_gradients_of_another_convention_than_the_output_are_named(wrong: tuple[str, str] | None) -> None:
    def attention(query: Array, key: Array, value: Array, is_causal: bool = False) -> Array:
        return gradients(dict[str, str](), query, key, value, is_causal)["output"]

    def backward(d_output: Array, query: Array, key: Array, value: Array, is_causal: bool = False) -> list[Array]:
        found = gradients(dict([wrong] if wrong else []), query, key, value, is_causal, d_output)
        return [found[f"d_{name}"] for name in ("query", "key", "value")]

    def gradients(
        way: dict[str, str], query: Array, key: Array, value: Array, is_causal: bool, d_output: Array | None = None
    ) -> dict[str, Array]:
        ratio = query.shape[1] // key.shape[1]
        order = np.arange(query.shape[1])
        order = order % key.shape[1] if "heads" in way else order // ratio
        scale = 1.0 if "scale" in way else None
        causal = is_causal and "causal" not in way
        output, cache = dot_product.forward(query, key[:, order], value[:, order], is_causal=causal, scale=scale)
        back = dot_product.backward(np.ones_like(output) if d_output is None else d_output, cache)
        summed = [np.stack([x[:, order == h].sum(1) for h in range(key.shape[1])], 1) for x in (back.key, back.value)]
        return {"output": output, "d_query": back.query, "d_key": summed[0], "d_value": summed[1]}

    profile = conventions.identify(attention, backward=backward, options=["is_causal"])
    behind = {axis: value for axis, value in profile.values.items() if "backward" in axis}
    assert wrong is None or behind[f"{wrong[0]}, backward"] == wrong[1]
    assert wrong is not None or not behind
    assert not differences(profile)
    assert ("Its gradients are another's" in str(profile)) is bool(wrong)


def test_a_bug_that_is_no_convention_is_none_of_these() -> None:
    def with_epsilon(query: Array, key: Array, value: Array, **options: Any) -> Array:
        del options
        exponentials = np.exp(query.astype(float) @ key.swapaxes(-1, -2) / 4)
        return exponentials / (exponentials.sum(-1, keepdims=True) + 3) @ value

    profile = conventions.identify(with_epsilon, options=["mask"])
    assert profile.values == {"scale": "none of these"}
    assert str(profile).startswith("It is no attention that is known here")

    def without_one_key(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
        if mask is not None:
            mask[..., 3] = False  # a copy: nobody else is harmed
        return dot_product.forward(query, key, value, mask=mask)[0]

    profile = conventions.identify(without_one_key, options=["mask"])
    assert profile["mask"] == "none of these"
    assert profile["scale"] == "1/sqrt(d_k)"
    assert "the mask, which is none that is known" in str(profile)


def test_a_scale_that_is_a_number_is_said() -> None:
    profile = conventions.identify(lambda q, k, v: dot_product.forward(q, k, v, scale=0.125)[0])
    assert profile["scale"] == "none of these"
    assert profile.notes["scale"] == "the products of queries and keys are multiplied by 0.125"
    assert profile["heads"] is None  # it does not take them
    assert "ValueError" in profile.notes["heads"]


def test_what_a_function_does_not_take_is_not_asked() -> None:
    def squares(query: Array, key: Array, value: Array, is_causal: bool = False) -> Array:
        if query.shape != key.shape:
            raise NotImplementedError("as many queries as keys")
        return dot_product.forward(query, key, value, is_causal=is_causal)[0]

    profile = conventions.identify(squares, options=["is_causal"])
    assert profile["causal"] is None
    assert "how it is aligned" in profile.notes["causal"]
    assert profile["sink"] is None
    assert "sink is not among its options" in profile.notes["sink"]
    with pytest.raises(KeyError, match="there is no axis 'colour'"):
        profile["colour"]


def test_the_sentence_says_whose_it_is_but_for_what() -> None:
    flash = [(axis, value) for axis, value in conventions.PROFILES["flash-attention"].items()]
    options = [name for name in conventions.OPTIONS if name not in ("mask", "bias")]

    def profile(**others: str) -> conventions.Profile:
        ways = {**dict(flash), **others}
        return conventions.identify(kernel(**ways), options=options)

    assert str(profile()).splitlines()[0] == profile().sentence
    assert profile().sentence == "Yours is flash-attention's."
    wider = profile(window="inclusive, and one key more")
    assert str(wider).splitlines()[0] == "Yours is flash-attention's, but for the window, which has one key more."
    assert wider.differs_from("flash-attention") == {"window": ("inclusive, and one key more", "inclusive")}
    assert "which has one key less" in str(profile(window="exclusive"))
    with pytest.raises(ValueError, match="there is no profile of 'flash'"):
        wider.differs_from("flash")


@each("op", [dot_product, blockwise])
def test_our_own_ops_are_ours(op: Any) -> None:
    def attention(query: Array, key: Array, value: Array, **options: Any) -> tuple[Array, Array]:
        group = query.shape[1] // key.shape[1]
        window = options.pop("window", None)
        if window is not None:
            options["mask"] = masks.sliding_window(query.shape[2], key.shape[2], left=window[0], right=window[1])
        output, cache = op.forward(query, np.repeat(key, group, 1), np.repeat(value, group, 1), **options)
        return output, cache.logsumexp if op is blockwise else cache.softmax.logsumexp

    profile = conventions.identify(attention, options=[x for x in conventions.OPTIONS if x != "kept"])
    assert not differences(profile)
    assert profile.notes.keys() == {"dropout"}


def test_options_and_attention_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(TypeError, match="options must be a list of names, not the string 'mask'"):
        conventions.identify(kernel(), options="mask")
    with pytest.raises(ValueError, match=r"options has 'causal': the names are is_causal, window"):
        conventions.identify(kernel(), options=["causal"])
    with pytest.raises(
        ValueError, match=r"attention does not take arrays \(2, 4, 8, 16\) of float32, .*ValueError: no"
    ):
        conventions.identify(refuses)


def refuses(*_: Array) -> Array:
    raise ValueError("no")
