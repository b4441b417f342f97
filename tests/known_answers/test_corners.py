"""Corners of the pieces that attention is made of, in every precision: 50 digits, and the bounds of known answers."""

from typing import Any

import numpy as np
from helpers import Array, each, normal

import attention_np
from attention_np import known_answers
from attention_np.known_answers import bounds, settling
from attention_np.known_answers.formats import DTYPES, FORMATS, dtype_of, to_format

NAN, INF = np.nan, np.inf
NOBODY = np.array(
    [[True, True, False, True], [False] * 4, [True, False, False, True]]
)  # sees the third; the second none
HIDES = ~NOBODY.any(axis=0)[:, None]


def drawn(**shapes: tuple[int, ...]) -> dict[str, Array]:
    return {name: normal(seed, *shape) for seed, (name, shape) in enumerate(shapes.items())}


def of_latents() -> dict[str, Array]:
    """Two heads of three queries over four latents, with scores of ten thousand."""
    shapes = {"query": (2, 3, 4), "query_rotary": (2, 3, 2), "latent": (4, 5), "key_rotary": (4, 2)}
    x = drawn(**shapes, w_key=(2, 5, 4), w_value=(2, 5, 3), d_output=(2, 3, 3))
    hidden = {name: np.where(HIDES, NAN, x[name]) for name in ("latent", "key_rotary")}
    return x | hidden | {"query": 2048 * x["query"], "query_rotary": 2048 * x["query_rotary"], "mask": NOBODY}


def of_an_indexer() -> dict[str, Array]:
    x = drawn(query=(2, 3, 5), key=(4, 5), weights=(2, 3), d_output=(3, 4))
    return x | {"key": np.where(HIDES, NAN, 2048 * x["key"]), "mask": NOBODY}


def of_windows() -> dict[str, Array]:
    """Gates of ten thousand, of which one hides NaN and one a whole window of a feature."""
    x = drawn(x=(6, 2), gate=(6, 2), b=(3, 2), d_output=(2, 2))
    hidden = (np.arange(6) >= 3)[:, None] & (np.arange(2) == 1) | (np.arange(6) == 1)[:, None]
    return x | {"x": np.where(hidden, NAN, x["x"]), "gate": np.where(hidden, -INF, 8192 * x["gate"])}


def of_tables() -> dict[str, Array]:
    """Biases by index of ten thousand, and scales of queries, one of them zero; an index as it lies in a file."""
    x = drawn(query=(3, 5), key=(4, 5), value=(4, 2), table=(3,), embedding=(3, 5), d_output=(3, 2))
    index = np.random.default_rng(0).integers(0, 3, (3, 4)).astype(float)
    hidden = {name: np.where(HIDES, NAN, x[name]) for name in ("key", "value")}
    scale = np.array([[0.0], [1.0], [2048.0]])
    return x | hidden | {"table": 8192 * x["table"], "index": index, "scale": scale, "mask": NOBODY}


def of_states(decays: int) -> dict[str, Array]:
    """Decays to nothing, to 1e-12 and none, a probe, and NaN in tokens of the padding."""
    shapes = dict.fromkeys(("query", "key", "value", "probe", "response"), (6, 3))
    x = drawn(**shapes, initial_state=(3, 3), d_output=(6, 3), d_final_state=(3, 3))
    log_decay = np.array([-INF, np.log(1e-12), 0, -0.5, -INF, np.log(1e-12)])[:, None] * np.ones(decays)
    padded = np.arange(6) == 3
    hidden = {name: np.where(padded[:, None], NAN, x[name]) for name in shapes}
    return x | hidden | {"log_decay": log_decay, "mask": ~padded}


CORNERS: dict[str, tuple[str, dict[str, Array], dict[str, Any], dict[str, Any]]] = {  # options, and those of ours alone
    "latent": ("latent", of_latents(), {}, {}),
    "absorbed": ("latent", of_latents(), {}, {"absorbed": True}),
    "indexer": ("indexer", of_an_indexer(), {"scale": 0.5}, {}),
    "windows": ("pooling", of_windows(), {"width": 3}, {}),
    "tables": ("dot_product", of_tables(), {}, {}),
    "tables, block by block": ("blockwise", of_tables(), {}, {"block_size": 2}),
    "states, one decay": ("linear_attention", of_states(1), {}, {}),
    "states, a decay a feature": ("linear_attention", of_states(3), {}, {}),
    "states, in chunks": ("linear_attention", of_states(3), {}, {"chunk_size": 4}),
}


@each("name", CORNERS)
@each("dtype", DTYPES)
def test_scores_of_ten_thousand_decays_to_nothing_and_what_is_hidden_are_right_in_every_dtype(
    dtype: str, name: str
) -> None:
    op, inputs, options, ours = CORNERS[name]
    rounded = {key: x if x.dtype == np.bool_ else x.astype(dtype_of(dtype)) for key, x in inputs.items()}
    of = "dot_product" if op == "blockwise" else op
    errors = bounds.bounds(of, FORMATS[dtype], rounded, options)
    exact = settling.settled_answers(of, rounded, options, errors)
    found = known_answers.of_op(getattr(attention_np, op))(rounded, options | ours)
    assert exact.keys() <= found.keys()
    for key, x in exact.items():
        answer, actual = to_format(x, dtype), np.asarray(found[key]).reshape(x.shape)
        limit = bounds.with_rounding(errors[key], answer, FORMATS[dtype])
        one, other = answer.astype(float), actual.astype(float)
        finite = np.isfinite(one)
        np.testing.assert_array_equal(other[~finite], one[~finite], key)
        assert (np.abs(other[finite] - one[finite]) <= limit[finite]).all(), key
