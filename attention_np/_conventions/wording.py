"""What a profile is, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attention_np._conventions.readings import KEYS_OF_WINDOW

NAMES = {  # of an axis, as it stands in a sentence
    "layout": "the layout of axes",
    "keys": "the causal mask",
    "scale": "the scale",
    "given scale": "the scale that is given",
    "heads": "the order of heads",
    "mask": "the mask",
    "causal": "the causal mask",
    "window": "the window",
    "window's right": "the window's right",
    "window's alignment": "the window's alignment",
    "bias": "the bias",
    "softcap": "the softcap",
    "sink": "the sink",
    "logsumexp": "the log-sum-exp",
    "empty row": "a row without keys",
    "dropout": "dropout",
    "alignment": "the alignment",
    "pairing": "the pairing of features",
    "turn": "the direction of the turn",
    "positions": "the positions",
    "slice": "the features that turn",
    "yarn's range": "YaRN's range",
    "yarn's amplitude": "YaRN's amplitude",
    "read": "the read",
    "decay": "the decay",
    "beta": "beta",
    "delta rule": "the delta rule",
    "initial state": "the initial state",
    "final state": "the final state",
}
MEANINGS = {  # of a value, behind "which"
    ("keys", "causal without being asked"): "hides later keys without being asked",
    ("keys", "all"): "hides nothing without being asked",
    ("mask", "true attends"): "attends where it is true",
    ("mask", "true hides"): "hides where it is true",
    ("mask", "added as a number"): "is added as a number",
    ("causal", "top-left"): "is aligned top-left",
    ("causal", "bottom-right"): "is aligned bottom-right",
    ("causal", "keys before hidden"): "hides the keys before, and not those behind",
    ("causal", "top-left, without its own key"): "hides a query's own key, too",
    ("causal", "top-left, with the next key"): "shows one key of the future",
    ("window's alignment", "top-left"): "is top-left",
    ("window's alignment", "bottom-right"): "is bottom-right",
    ("empty row", "nan"): "gives NaN",
    ("empty row", "zero"): "gives zeros",
    ("empty row", "mean"): "gives the mean of all values",
    ("empty row", "as if nothing were hidden"): "attends as if nothing were hidden",
    ("dropout", "divided by 1 - p"): "divides what it keeps by 1 - p",
    ("dropout", "as they are"): "keeps weights as they are",
    ("dropout", "before the softmax"): "hides pairs before the softmax",
    ("yarn's amplitude", "multiplies"): "multiplies",
    ("read", "after the write"): "comes after the write",
    ("read", "before the write"): "comes before the write",
    ("decay", "before the write"): "comes before the write",
    ("decay", "after the write"): "comes after the write",
    ("beta", "through a sigmoid"): "goes through a sigmoid",
    ("delta rule", "reads the decayed state"): "reads the decayed state",
    ("delta rule", "reads the state before its decay"): "reads the state before its decay",
    ("given scale", "multiplies"): "multiplies",
    ("given scale", "divides"): "divides",
    ("given scale", "on top of 1/sqrt(d_k)"): "comes on top of 1/sqrt(d_k)",
}


def sentence_of(profile: Any) -> str:
    """Whose attention it is, and what is different in it."""
    if not any(value != "none of these" for value in profile.values.values()):
        return "It is no attention that is known here: no scale explains its output without options."
    nearest = profile.nearest
    differences = profile.differs_from(nearest[0])
    wrong = [axis for axis in profile.values if axis.endswith(", backward")]
    behind = [f"Its gradients are another's: {_of_backward(profile, axis)}." for axis in wrong]
    if not differences:
        owners = _listed([_possessive(name) for name in nearest])
        return " ".join([f"Yours is {owners}{', as far as it was asked' if len(nearest) > 1 else ''}.", *behind])
    parts = [difference(axis, *pair) for axis, pair in differences.items()]
    return " ".join([f"Yours is {_possessive(nearest[0])}, but for {_listed(parts)}.", *behind])


def difference(axis: str, yours: str, theirs: str) -> str:
    """An axis in which two differ, and how: "the window, which has one key more"."""
    name = NAMES[axis]
    if axis == "window" and {yours, theirs} <= KEYS_OF_WINDOW.keys():
        more = KEYS_OF_WINDOW[yours] - KEYS_OF_WINDOW[theirs]
        count = {1: "one key", 2: "two keys"}.get(abs(more), f"{abs(more)} keys")
        return f"{name}, which has {count} {'more' if more > 0 else 'less'}"
    return f"{name}, which {meaning(axis, yours)}"


def meaning(axis: str, value: str) -> str:
    """A value of an axis, behind "which"."""
    if value == "none of these":
        return "is none that is known"
    return MEANINGS.get((axis, value), f"is {value}")


def _of_backward(profile: Any, axis: str) -> str:
    what = axis.removesuffix(", backward")
    return f"of {NAMES[what]}, which in the backward pass {meaning(what, profile.values[axis])}"


def _possessive(name: str) -> str:
    return f"{name}'" if name.endswith("s") else f"{name}'s"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
