"""Every argument of every public function refuses what its annotation does not allow, by a sentence that names it."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers import OPS, plain_case

import attention_np as anp
from attention_np import (
    biases,
    blockwise,
    cost,
    gradcheck,
    indexer,
    masks,
    multi_head,
    positions,
    rotary,
    rules,
    softmax,
    trace,
)

X, ROW = np.ones((2, 4)), np.ones(4)
NO_NUMBER: tuple[Any, ...] = ("1.0", object(), 1j, [1.0, 2.0], {}, np.datetime64("2026-01-01"), None)
UNFIT: dict[str, tuple[Any, ...]] = {  # what no argument of such an annotation may be
    "bool": ("False", 1, 0.0, [True], np.array([True]), object(), None),
    "int": (2.5, True, "2", 1j, [1], np.array([1, 2]), object(), None),
    "float": NO_NUMBER,
    "npt.ArrayLike": ("text", object(), [[1.0], [2.0, 3.0]], {}, np.ones(2, "M8[s]"), [object()], None),
    "str": (3, "nonsense", b"auto", object(), None),
    "Rng": ("seed", -1, 1.5, True, np.ones((1, 1)).view(np.matrix), object(), None),
    "Parameters": (3, "parameters", {}, None),
    "Sequence[int]": ("ab", 3, [1.5], None),
    "Mapping[str, Any]": (3, "x", [1.0], None),
    "Forward": (3, "f", None),
    "Backward": (3, "f", None),
    "Sizes": (3, None),
    "Executor": (3, "pool"),
    "Scaling": (3, "linear"),
    "Cache": (3, None, ()),
    "Gradients": (3, None, ()),
}
SAME = {
    "Mapping[str, npt.ArrayLike]": "Mapping[str, Any]",
    "Mapping[str, float]": "Mapping[str, Any]",
    "multi_head.Parameters": "Parameters",
    "int | np.random.Generator": "Rng",
    "Literal['allowed', 'hidden']": "str",
    "Callable[..., Any]": "Forward",
}


def square(x: Any) -> Any:
    return x * x


def slope(d: Any, x: Any) -> Any:
    return 2 * d * x


def calls() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Public functions, by name, and arguments that they take, all but the optional ones."""
    for op in OPS:
        case = plain_case(op)
        output, cache = case.forward()
        gradients = case.op.backward(output, cache)
        yield f"{op}.forward", case.op.forward, {**case.inputs, **case.options}
        cotangent = next(iter(inspect.signature(case.op.backward).parameters))
        yield f"{op}.backward", case.op.backward, {cotangent: output, "cache": cache}
        yield f"{op}.jvp", case.op.jvp, {"cache": cache, **gradients._asdict()}
        second = {"d_gradients": gradients, cotangent: output, "cache": cache}
        yield f"{op}.double_backward", case.op.double_backward, second
    yield "softmax.jacobian", softmax.jacobian, {"scores": ROW}
    yield "softmax.logsumexp", softmax.logsumexp, {"scores": ROW}
    yield "multi_head.split_heads", multi_head.split_heads, {"x": X, "num_heads": 2}
    yield "multi_head.combine_heads", multi_head.combine_heads, {"x": np.ones((2, 2, 2))}
    yield "multi_head.Parameters.random", multi_head.Parameters.random, {"d_model": 4, "rng": 0}
    qkv = {"query": X, "key": X, "value": X}
    yield "scaled_dot_product_attention", anp.scaled_dot_product_attention, qkv
    weights = {"w_query": np.ones((4, 3)), "w_key": np.ones((4, 3)), "w_score": np.ones(3)}
    yield "additive_attention", anp.additive_attention, {**qkv, **weights}
    drawn = multi_head.Parameters.random(4, rng=0)
    yield "multi_head_attention", anp.multi_head_attention, {**qkv, "parameters": drawn, "num_heads": 2}
    yield "KeyValueCache", anp.KeyValueCache, {"capacity": 4}
    yield "rotary.linear", rotary.linear, {"factor": 2.0}
    yield "rotary.dynamic", rotary.dynamic, {"factor": 2.0, "original_length": 8, "length": 16}
    bands = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_length": 64}
    yield "rotary.llama3", rotary.llama3, bands
    both = {"short_factor": [1.0, 2.0], "long_factor": [1.0, 3.0], "original_length": 8, "length": 16}
    yield "rotary.longrope", rotary.longrope, both
    yield "rotary.yarn", rotary.yarn, {"factor": 4.0, "original_length": 64}
    yield "indexer.top_k", indexer.top_k, {"scores": np.ones((2, 3)), "k": 1}
    yield "masks.causal", masks.causal, {"n": 3}
    yield "masks.padding", masks.padding, {"lengths": [1, 2], "m": 3}
    yield "masks.padding_from_tokens", masks.padding_from_tokens, {"tokens": [1, 0], "pad_id": 0}
    yield "masks.sliding_window", masks.sliding_window, {"n": 3, "left": 1}
    yield "masks.block_causal", masks.block_causal, {"n": 4, "block_size": 2}
    yield "masks.multi_level_causal", masks.multi_level_causal, {"n": 4}
    yield "masks.packed", masks.packed, {"query_segments": [0, 1]}
    yield "masks.selected", masks.selected, {"indices": [[0, -1]], "m": 3}
    yield "masks.tree", masks.tree, {"parents": [-1, 0]}
    yield "masks.as_mask", masks.as_mask, {"values": [0, 1], "true_means": "hidden"}
    yield "rules.causal", rules.causal, {}
    yield "rules.sliding_window", rules.sliding_window, {"left": 1}
    yield "rules.padding", rules.padding, {"lengths": [1, 2]}
    yield "rules.packed", rules.packed, {"query_segments": [0, 1]}
    yield "rules.selected", rules.selected, {"indices": [[0, -1]]}
    yield "rules.tree", rules.tree, {"parents": [-1, 0]}
    yield "rules.whole", rules.whole, {"mask": np.ones((2, 2), bool)}
    yield "biases.alibi", biases.alibi, {"slopes": [1.0]}
    yield "biases.alibi_slopes", biases.alibi_slopes, {"num_heads": 4}
    yield "biases.t5", biases.t5, {"table": np.ones((8, 2))}
    yield "biases.shaw", biases.shaw, {"embedding": np.ones((3, 4))}
    yield "biases.forgetting", biases.forgetting, {"log_f": -ROW}
    yield "positions.sinusoidal", positions.sinusoidal, {"n": 2, "d": 4}
    yield "blockwise.merge", blockwise.merge, {"first": (X, ROW[:2]), "second": (X, ROW[:2])}
    yield "cost.dot_product", cost.dot_product, {"sizes": cost.Sizes(n=8)}
    yield "cost.blockwise", cost.blockwise, {"sizes": cost.Sizes(n=8)}
    yield "trace.of", trace.of, {"op": "softmax", "tokens": "a b"}
    yield "gradcheck.check", gradcheck.check, {"forward": square, "backward": slope, "inputs": {"x": ROW}}
    numerical = {"forward": square, "inputs": {"x": ROW}, "cotangent": ROW}
    yield "gradcheck.numerical_gradient", gradcheck.numerical_gradient, numerical
    low = {"forward": square, "backward": slope, "inputs": {"x": ROW.astype(np.float16)}, "reference": square}
    yield "gradcheck.check_low_precision", gradcheck.check_low_precision, low


def unfit_for(annotation: str, default: Any) -> list[Any]:
    """What an argument of that annotation may not be; nothing of one that is not in the list."""
    whole = annotation.removesuffix(" | None")
    kinds = {SAME.get(whole, whole)} if "[" in whole else {SAME.get(kind, kind) for kind in whole.split(" | ")}
    kinds -= {"Bias", "Rule"}  # objects of their own beside arrays
    if not kinds <= UNFIT.keys():
        return []
    first, *others = (UNFIT[kind] for kind in kinds)
    may_be_none = whole != annotation or default is None
    return [x for x in first if (x is None and not may_be_none) or (x is not None and all(x in y for y in others))]


@pytest.mark.parametrize(("name", "function", "given"), [pytest.param(*call, id=call[0]) for call in calls()])
def test_what_an_argument_may_not_be_is_refused_by_a_sentence_that_names_it(
    name: str, function: Any, given: dict[str, Any]
) -> None:
    function(**given)
    passed, parameters = [], inspect.signature(function).parameters
    for argument, parameter in parameters.items():
        needs = {"dropout_p": 0.5} if argument == "rng" and "dropout_p" in parameters else {}  # else none is drawn
        for wrong in unfit_for(str(parameter.annotation), parameter.default):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    function(**{**given, **needs, argument: wrong})
                except (TypeError, ValueError) as error:
                    if argument not in str(error) or "\n" in str(error):
                        passed.append(f"{argument}={wrong!r}: {type(error).__name__}: {error}")
                except Exception as error:
                    passed.append(f"{argument}={wrong!r}: {type(error).__name__}: {error}")
                else:
                    passed.append(f"{argument}={wrong!r} is taken")
    assert not passed, f"{name}: " + "; ".join(passed)
