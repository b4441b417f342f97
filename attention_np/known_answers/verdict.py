"""One sentence over all cases that fail: a cause, where one explains every number of all of them to its bound."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from attention_np._conventions.families import NONE_OF_THESE
from attention_np._lib.arrays import Array
from attention_np.conventions import OF_OPTION, OPTIONS, identify
from attention_np.known_answers.bounds import with_rounding
from attention_np.known_answers.causes import (
    ALTERNATIVES,
    ASKED_OF_CASES,
    Cause,
    conventions_read,
    factors,
    roundings,
    single_conventions,
    slips,
    zero,
)
from attention_np.known_answers.formats import FORMATS
from attention_np.known_answers.reading import KnownAnswer

Returned = Sequence[tuple[KnownAnswer, Mapping[str, Array]]]  # cases, and what was returned for each
Function = Callable[[dict[str, Array], dict[str, Any]], Mapping[str, Any]]
SOME = 8  # cases that fail, the smallest, that one of two conventions is tried on by itself
ATTENDING = ("dot_product", "attention")  # which conventions know
WITH_SCORES = ("softmax", "dot_product", "attention", "multi_head", "additive")


def verdict_of(returned: Returned, wrong: Iterable[tuple[str, str]], function: Function | None = None) -> str | None:
    """What is wrong, in a sentence, or None if no cause explains it.

    Parameters
    ----------
    returned : sequence of pairs
        Of each case that was compared, and the arrays that were returned for it.
    wrong : iterable of pairs of str
        The names of a case and of an array in it that is not within its bound.
    function : callable, optional
        Where the arrays came from: it is asked for its conventions first.
    """
    failing = {name for name, _ in wrong}
    arrays = [x for x in _in_order(returned) if any(array == x for _, array in wrong)]
    if not arrays:
        return None
    smallest_first = sorted(returned, key=lambda pair: (pair[0].name not in failing, _size(pair[0])))
    (first, _), op = smallest_first[0], returned[0][0].op
    asked = _asked(function, returned) if function is not None and op in ATTENDING else None
    singles = [_once(cause) for cause in single_conventions()] if op in ATTENDING else []
    candidates = chain(
        [asked.cause] if asked else (),
        [zero()],
        singles,
        slips() if op in WITH_SCORES else (),
        factors(),
        roundings() if op in WITH_SCORES else (),
    )
    causes = [_once(cause) for cause in candidates]
    for cause in causes:
        if _explains(cause, smallest_first, arrays, failing):
            said = _sentence(cause, first, arrays, len(failing), _in_order(returned))
            return f"{said} {asked.whose}" if asked and cause is causes[0] else said
    if op in ATTENDING:
        for cause in _pairs(singles, smallest_first, failing, arrays):
            if _explains(cause, smallest_first, arrays, failing):
                return _sentence(cause, first, arrays, len(failing), _in_order(returned))
    if len(arrays) > 1:  # each may have a cause of its own
        found = {x: next((c for c in causes if _explains(c, smallest_first, [x], failing)), None) for x in arrays}
        if all(found.values()):
            return " ".join(_sentence(c, first, [x], len(failing), _in_order(returned)) for x, c in found.items() if c)
    return None


def _once(cause: Cause) -> Cause:
    """The cause, whose prediction for a case is worked out once: array after array is held against it."""
    return cause._replace(predict=lru_cache(None)(cause.predict))


def _pairs(singles: Iterable[Cause], first: Returned, failing: Iterable[str], arrays: Sequence[str]) -> Iterator[Cause]:
    """Two conventions at once, of which one alone explains a case that fails."""
    known = {*failing}
    wrong = [(case, found) for case, found in first if case.name in known]
    readings = [(axis, value) for axis in ASKED_OF_CASES for value in ALTERNATIVES[axis][1:]]
    for (axis, value), single in zip(readings, singles, strict=True):
        one, option = {axis: value}, {x: name for name, x in OF_OPTION.items()}.get(axis)
        with_it = [x for x in wrong if option is None or option in {*x[0].inputs, *x[0].options}]
        if any(_explains(single, [pair], arrays, known) for pair in with_it[:SOME]):
            yield from (conventions_read(one | {other: value}) for other, value in readings if other != axis)


def _size(case: KnownAnswer) -> int:
    return sum(x.size for x in case.inputs.values())


def _in_order(returned: Returned) -> list[str]:
    return list(dict.fromkeys(name for _, arrays in returned for name in arrays))


def _explains(cause: Cause, returned: Returned, arrays: Sequence[str], failing: Container[str]) -> bool:
    """Whether these arrays are what the cause predicts, in all cases; small ones that fail come first.

    Of a right case with options that the cause says nothing of nothing follows, nor of one whose inputs hold NaN: there
    is none in the arithmetic of causes.
    """
    for case, found in returned:
        some = [name for name in arrays if name in found]
        if not some or (case.name not in failing and _holds_nan(case)):
            continue
        try:
            with np.errstate(all="ignore"):
                predicted = cause.predict(case)
        except (KeyError, ValueError) as error:  # a case in which there is nothing of the kind
            if isinstance(error, ValueError) and case.name not in failing:
                continue
            predicted = {}
        if not all(name in predicted and _is(found[name], predicted[name], case.answers[name]) for name in some):
            return False
    return True


def _holds_nan(case: KnownAnswer) -> bool:
    return any(bool(np.isnan(x.astype(np.float64)).any()) for x in case.inputs.values())


def _is(x: Array, predicted: Any, answer: Array) -> bool:
    right = predicted.value
    if x.shape != right.shape:
        return False
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        answer_format, answer = (
            answer.dtype.name,
            answer.astype(np.float64),
        )  # an infinite one is as much that of every cause without a say in it
        same = (wide == right) | (np.isnan(wide) & np.isnan(right)) | ((wide == answer) & ~np.isfinite(answer))
        near = np.abs(wide - right) <= with_rounding(predicted.error, right, FORMATS[answer_format])
    return bool((same | near).all())


class Asked(NamedTuple):
    """The conventions that a function follows where it is asked, and whose they are."""

    cause: Cause
    whose: str


def _asked(function: Function, returned: Returned) -> Asked | None:
    """What the function says of itself, or None if it takes no arrays of our sizes, or follows our conventions."""
    taken = {name for case, _ in returned for name in (*case.inputs, *case.options)}

    def attention(query: Array, key: Array, value: Array, **options: Any) -> Any:
        arrays = {name: x for name, x in options.items() if isinstance(x, np.ndarray)}
        inputs = {"query": query, "key": key, "value": value, **arrays}
        inputs["d_output"] = np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
        found = function(inputs, {name: x for name, x in options.items() if name not in arrays})
        beside = found.get("logsumexp")
        return found["output"] if beside is None else (found["output"], beside)

    try:
        profile = identify(attention, options=[name for name in OPTIONS if name in taken])
    except ValueError:
        return None
    others = {
        axis: value
        for axis, value in profile.values.items()
        if axis in ASKED_OF_CASES and value not in (NONE_OF_THESE, ALTERNATIVES[axis][0])
    }
    return Asked(conventions_read(others), profile.sentence) if others else None


def _sentence(cause: Cause, first: KnownAnswer, arrays: Sequence[str], cases: int, returned: Sequence[str]) -> str:
    which = "all arrays" if set(arrays) == set(returned) else _listed(arrays)
    where = f"in the {'case' if cases == 1 else f'{cases} cases'} that {'fails' if cases == 1 else 'fail'}"
    said = cause.said(first)
    if cause.kind == "rounding":
        return f"Right, but {said}: no more is wrong {where}."
    if cause.kind == "convention":
        of_what = (
            "It follows"
            if "output" in arrays or which == "all arrays"
            else f"Its {which} follow{'s' if len(arrays) == 1 else ''}"
        )
        return f"{of_what} another convention than these answers: {said}. That explains every number {where}."
    if len(arrays) == 1:
        said = (
            said.replace("are ", "is ", 1)
            .replace("lack ", "lacks ", 1)
            .replace("have ", "has ", 1)
            .replace("the answers", "the answer", 1)
        )
    which = "All arrays" if which == "all arrays" else which
    return f"{which} {said}. That explains every number {where}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
