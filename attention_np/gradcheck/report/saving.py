"""Reports in the types of JSON, and in files.

JSON has no NaN and no infinity: NaN becomes null, and the infinities the strings "Infinity" and "-Infinity". Numbers
are written with as many digits as it takes to read the same ones again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import Any

from attention_np._lib.files import write_whole
from attention_np.gradcheck.report.findings import InputReport


def as_dict(inputs: Sequence[InputReport]) -> dict[str, Any]:
    """What was found for all inputs in the types of JSON."""
    fields = [{key: value for key, value in vars(one).items() if key != "details"} for one in inputs]
    return {"ok": all(one.ok for one in inputs), "inputs": _as_json(fields)}


def _as_json(value: Any) -> Any:
    """`value` in the types of JSON; named tuples become objects."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: _as_json(x) for key, x in value.items()}
    if isinstance(value, tuple | list):
        return [_as_json(x) for x in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value)
    return value


def write(path: str | os.PathLike[str], inputs: Sequence[InputReport]) -> None:
    """Save a report."""
    write_whole(path, f"{json.dumps(as_dict(inputs), allow_nan=False)}\n".encode())
