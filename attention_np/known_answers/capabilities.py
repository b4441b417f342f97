"""What a kernel can do, in a file that its author writes: it picks the cases that the kernel is held against."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attention_np._lib import json
from attention_np._lib.arrays import Array
from attention_np._lib.text import shortened
from attention_np.known_answers.examples import OF_KERNELS, OPS
from attention_np.known_answers.files import refusing
from attention_np.known_answers.formats import DESCALE, OF_CASES
from attention_np.known_answers.manifest import Entry
from attention_np.known_answers.signatures import SIGNATURES

LARGEST = 2**16  # bytes of a file
LAYOUTS = ("batch, heads, queries", "batch, queries, heads")
BY_FEATURE = (  # arrays (..., h, n, d), whose gradients, tangents and products of second order are, too
    "query", "key", "value", "output", "outputs", "log_decay", "probe", "response",
)  # fmt: skip
BY_TOKEN = ("beta",)  # (..., h, n)
PREFIXES = ("d_d_", "hvp_", "d_", "v_")


class Capabilities(NamedTuple):
    """What a kernel can do; None is whatever there is.

    A JSON object in a file has some of these names; `docs/known-answers.md` of the repository describes them.
    """

    ops: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    takes: tuple[str, ...] | None = None  # optional inputs, options, and "tangents"
    d_k: tuple[int, ...] | None = None  # features of queries
    d_v: tuple[int, ...] | None = None  # features of values
    groups: tuple[int, ...] | None = None  # heads of queries for each head of keys
    axes: tuple[int, ...] | None = None  # how many the queries have
    skip: tuple[str, ...] = ()  # tags, or names of cases
    layout: str = LAYOUTS[0]

    def admits(self, entry: Entry) -> bool:
        """Whether the kernel can run a case."""
        shapes = {name: x.shape for name, x in entry.tensors.items() if x.role == "input"}
        needed = SIGNATURES[entry.op].inputs
        extra = {"tangents" if name.startswith("v_") else name for name in (*shapes, *entry.options)}
        of_shapes = {
            "d_k": _axis(shapes, "query", -1),
            "d_v": _axis(shapes, "value", -1),
            "groups": _groups(shapes),
            "axes": len(shapes["query"]) if "query" in shapes else None,
        }
        return (
            (self.ops is None or entry.op in self.ops)
            and (self.dtypes is None or entry.dtype in self.dtypes)
            and (self.takes is None or extra - {*needed, "d_output"} <= {*self.takes})
            and all(
                x is None or getattr(self, name) is None or x in getattr(self, name) for name, x in of_shapes.items()
            )
        )

    def laid_out(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays (..., h, n, d) as the kernel has them, or those of the kernel as they are here."""
        if self.layout == LAYOUTS[0]:
            return dict(arrays)
        return {name: _swapped(name, x) for name, x in arrays.items()}


def _axis(shapes: Mapping[str, tuple[int, ...]], name: str, axis: int) -> int | None:
    return shapes[name][axis] if name in shapes else None


def _groups(shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    heads, few = (shapes.get(name, ())[-3:-2] for name in ("query", "key"))
    return heads[0] // few[0] if heads and few and heads[0] % few[0] == 0 else None


def _swapped(name: str, x: Any) -> Any:
    of_input = next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)
    of_input = of_input.removesuffix(DESCALE)
    axes = next((n for names, n in ((BY_FEATURE, 3), (BY_TOKEN, 2)) if of_input in names), None)
    if axes is None or x is None or np.ndim(x) < axes:
        return x
    swapped: Array = np.asarray(x).swapaxes(-axes, 1 - axes)
    return swapped


def capable(source: str | os.PathLike[str] | Mapping[str, Any] | None) -> Capabilities:
    """The capabilities that a file, or an object like that in a file, says.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is no JSON object, or has another name or value.
    """
    if source is None:
        return Capabilities()
    where = "capabilities" if isinstance(source, Mapping) else str(source)
    with refusing(f"{where} does not say what a kernel can do"):
        value = source if isinstance(source, Mapping) else json.read(Path(source), LARGEST)
        if not isinstance(value, Mapping):
            raise ValueError(f"an object is expected, not {shortened(value)}")
        if odd := [name for name in value if name not in FIELDS]:
            raise ValueError(f"{shortened(odd[0])} is none of {', '.join(FIELDS)}")
        return Capabilities(**json.as_record(dict(value), {name: FIELDS[name] for name in value}))


def _names(known: tuple[str, ...]) -> Callable[[Any], tuple[str, ...]]:
    def read(value: Any) -> tuple[str, ...]:
        names = json.as_tuple(json.as_text)(value)
        if odd := [name for name in names if name not in known]:
            raise ValueError(f"{shortened(odd[0])} is none of {', '.join(known)}")
        return names

    return read


def _layout(value: Any) -> str:
    return _names(LAYOUTS)([value])[0]


TAKES = ("tangents", *{x: None for one in SIGNATURES.values() for x in (*one.optional, *one.options)})
NUMBERS = json.as_tuple(json.as_whole)
FIELDS: dict[str, Callable[[Any], Any]] = {
    "ops": _names((*OPS, *OF_KERNELS)),
    "dtypes": _names(OF_CASES),
    "takes": _names(TAKES),
    "d_k": NUMBERS,
    "d_v": NUMBERS,
    "groups": NUMBERS,
    "axes": NUMBERS,
    "skip": json.as_tuple(json.as_text),
    "layout": _layout,
}
