"""Results that are wrong in a said way: a test that takes one of them for right is no test."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.known_answers import KnownAnswer
from attention_np.known_answers.comparing import compare
from attention_np.known_answers.files import to_bytes

FORMAT, VERSION = "attention_np negative vectors", 1
OF_CASES = ("dot_product/plain", "dot_product/outliers", "attention/kernel-causal-64", "attention/kernel-groups-of-4")
TIMES = 10  # its bound: how far the one wrong entry is off
ABOUT = (
    "Each vector is a file of the safetensors format, with all answers of a case as a kernel would give them. One "
    "array is wrong, in the way that is said; the others are the answers.",
    "A test that holds results against the answers and bounds of the case must refuse every vector, for that array.",
)


class Kind(NamedTuple):
    """A way to be wrong."""

    array: str
    wrong: str
    change: Callable[[Array, Array], Array]  # of the answer and its bounds


def _one_entry(x: Array, bound: Array) -> Array:
    """Where the bound is smallest beside the answer, so that a tolerance for the whole array does not see it."""
    changed = x.copy()
    place = np.unravel_index(np.argmin(np.where(bound > 0, bound, np.inf)), x.shape)
    changed[place] = x[place].astype(np.float64) + TIMES * bound[place]
    return changed


def _last_row(x: Array, _: Array) -> Array:
    changed = x.copy()
    changed[..., -1, :] = 0
    return changed


KINDS = {
    "all-nan": Kind(
        "output",
        "Every entry is NaN. A test that asks whether an error is larger than a tolerance takes it for right.",
        lambda x, _: np.full_like(x, np.nan),
    ),
    "zeros": Kind("d_query", "It is zero: nothing was written to it.", lambda x, _: np.zeros_like(x)),
    "transposed": Kind(
        "d_key",
        "Its last two axes lie in memory the other way round.",
        lambda x, _: np.ascontiguousarray(x.swapaxes(-1, -2)).reshape(x.shape),
    ),
    "one-entry": Kind("d_value", f"One entry is off by {TIMES} times its bound.", _one_entry),
    "last-row": Kind("output", "The last row of each matrix is zero: a tile that is not full was left out.", _last_row),
    "other-rows": Kind(
        "d_value", "Its rows are in reverse order: each has the gradient of another.", lambda x, _: x[..., ::-1, :]
    ),
    "negated": Kind("d_key", "It has the other sign.", lambda x, _: -x),
    "scaled": Kind("d_query", "It is twice the answer.", lambda x, _: 2 * x),
    "base-two": Kind(
        "logsumexp", "It is the logarithm to the base of two.", lambda x, _: (x / np.log(2)).astype(x.dtype)
    ),
}


def files(cases: Iterable[KnownAnswer]) -> dict[str, bytes]:
    """The vectors of a set, and `negative.json`, which describes them, by their paths."""
    from docs.known_answers.archive import as_text

    found: dict[str, bytes] = {}
    vectors = []
    for case in cases:
        if case.name.partition("/")[2] not in OF_CASES:
            continue
        for kind, (array, wrong, change) in KINDS.items():
            changed = _changed(case, array, change)
            identity = f"{kind}/{case.name}"
            path = f"negative/{identity}.safetensors"
            content = found[path] = to_bytes(changed, f"{identity}: {wrong}")
            vectors.append(
                {
                    "id": identity,
                    "case": case.name,
                    "array": array,
                    "wrong": wrong,
                    "file": path,
                    "bytes": len(content),
                    "sha256": hashlib.sha256(content).hexdigest(),
                }
            )
    about = {"format": FORMAT, "version": VERSION, "about": list(ABOUT), "vectors": vectors}
    return found | {"negative.json": as_text(about).encode()}


def _changed(case: KnownAnswer, array: str, change: Callable[[Array, Array], Array]) -> Mapping[str, Array]:
    wrong = change(case.answers[array], case.bounds[array])
    if compare(case, array, wrong).ok:
        raise ValueError(f"what should be a wrong {array} of {case.name} is within its bounds")
    return {**case.answers, array: wrong}
