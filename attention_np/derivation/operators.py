"""A page against an op module: forward, the named intermediates, and every gradient.

The op is handed in; nothing here knows what it computes. Names from the page are only ever looked up among the
arguments of ``forward``, the fields of named tuples and the classes of the module.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_np.derivation.check import PageCheck
from attention_np.derivation.compare import TOLERANCE, equality
from attention_np.derivation.environment import LOSS, Environment
from attention_np.derivation.errors import Fault
from attention_np.derivation.header import Header, Word
from attention_np.derivation.values import Array, top


@dataclass
class FieldRecord:
    """One array of the op compared with the page, the worst over all draws."""

    page: str
    op: str
    name: str
    symbol: str
    error: float = 0.0
    ok: bool = True
    message: str = ""

    @property
    def gradient(self) -> bool:
        """Whether this is about a gradient, and not about what forward makes."""
        return self.name.startswith("gradient of ")

    def describe(self) -> str:
        """The error, or what went wrong."""
        return self.message or f"{self.error:.1e}"


def _fields(value: Any) -> Mapping[str, Any]:
    """The fields of a named tuple, as a mapping."""
    names = vars(type(value)).get("_fields")
    if isinstance(value, tuple) and isinstance(names, tuple):
        return dict(zip(names, value, strict=True))
    return {}


def check_operator(check: PageCheck, op: Any) -> list[FieldRecord]:
    """Compare a page that was run with an op; see :func:`.verify.verify_against_op`."""
    header = check.page.header
    module = vars(op)
    title = header.op or str(module.get("__name__", "op"))
    records = {name: FieldRecord(check.page.name, title, name, key) for name, key in header.code.items()}
    try:
        parameters = inspect.signature(module["forward"]).parameters
        arguments = {name: key for name, key in header.code.items() if name.partition(".")[0] in parameters}
        for name in arguments:
            record = records.pop(name)
            record.name = f"gradient of {name}"
            records[record.name] = record
        check.account.begin()
        for environment in check.scope.environments:
            with np.errstate(all="ignore"):
                for place in range(len(environment.draws)):
                    _one_draw(check.page.header, module, environment, arguments, records, place)
    except Fault as fault:
        _blame(records, fault.message)
    except Exception as error:  # whatever the op raises is a finding about the op
        _blame(records, f"{type(error).__name__}: {error}")
    return list(records.values())


def _blame(records: dict[str, FieldRecord], message: str) -> None:
    for record in records.values():
        if not record.message:
            record.ok, record.message, record.error = False, message, np.inf


def _array(environment: Environment, key: str, place: int) -> Array:
    symbol = environment.names.get(key)
    if symbol is None:
        raise Fault("name", f"{key} is not on the page")
    if symbol.kind == "size":
        return np.array(environment.arithmetic.size(key))
    if symbol.kind == "index":
        raise Fault("name", f"{key} is an index, not an array")
    data: Array = environment.tensor(key, (0, 0)).drawn(place).copy()
    return data


def _one_draw(
    header: Header,
    module: Mapping[str, Any],
    environment: Environment,
    arguments: Mapping[str, str],
    records: Mapping[str, FieldRecord],
    place: int,
) -> None:
    draw = environment.draws[place]
    inputs = {name: _option(header, environment, value, place) for name, value in header.options.items()}
    groups: dict[str, dict[str, Array]] = {}
    for name, key in arguments.items():
        group, _, inner = name.rpartition(".")
        (groups.setdefault(group, {}) if group else inputs)[inner] = _array(environment, key, place)
    for group, arrays in groups.items():
        inputs[group] = _container(module, group)(**arrays)
    output, cache = module["forward"](**inputs)
    results = {"output": output, **_fields(cache)}
    for name, key in header.code.items():
        if name not in arguments:
            expected = _array(environment, key, place)
            scale = max(environment.tensor(key, (0, 0)).scale, top(expected)) if expected.dtype.kind == "f" else 0.0
            _judge(records[name], results.get(name), expected, scale, draw)
    cotangent = _array(environment, header.cotangent, place)
    gradients = _fields(module["backward"](cotangent, cache))
    for name, key in arguments.items():
        group, _, inner = name.rpartition(".")
        gradient = (_fields(gradients.get(group)) if group else gradients).get(inner)
        numerical = environment.jacobian(LOSS, key, (0, 0))
        _judge(records[f"gradient of {name}"], gradient, numerical.drawn(place), numerical.scale, draw)


def _container(module: Mapping[str, Any], group: str) -> Any:
    """The named tuple that holds a group of arguments: ``parameters`` are held by ``Parameters``."""
    for name, value in module.items():
        if name.lower() == group.lower() and inspect.isclass(value) and issubclass(value, tuple):
            return value
    raise Fault("name", f"the op has no named tuple for {group}")


def _option(header: Header, environment: Environment, value: Any, place: int) -> Any:
    if not isinstance(value, str) or isinstance(value, Word):
        return value
    array = _array(environment, value, place)
    free = header.tensors.get(value)
    if free is not None and free.kind.startswith("boolean"):
        return array.astype(bool)
    if array.ndim == 0:
        return int(array) if array.dtype.kind == "i" else float(array)
    return array


def _judge(record: FieldRecord, array: Any, expected: Array, scale: float, draw: int) -> None:
    if array is None:
        record.ok, record.message = False, "the op has no such array"
        return
    actual = np.asarray(array)
    if actual.shape != expected.shape:
        record.ok, record.message = False, f"shape {actual.shape} in the code, {expected.shape} in the page"
        return
    if np.isnan(actual).any() or np.isnan(expected).any():
        record.ok, record.message = False, "not a number"
        return
    error, holds = equality(actual, expected, scale, scale)
    record.error = max(record.error, error)
    if not holds and record.ok:
        record.ok = False
        record.message = f"relative error {error:.2g} at draw {draw} (above {TOLERANCE:g})"
