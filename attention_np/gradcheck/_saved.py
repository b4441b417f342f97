"""How a saved report is read: the form of each of its fields."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np._lib import json
from attention_np._lib.text import shortened
from attention_np.gradcheck._json import as_array, as_number
from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, UNDECIDED, WRONG
from attention_np.gradcheck.report import Details, Entry, Escape, InputReport

__all__ = ["HEADER", "REST", "inputs_of"]

HEADER = {"format": "attention_np gradient report", "version": 1}
LONGEST_NAME = 1000  # characters: every line of a table is as long as the longest
REST = "checkpoint"  # the key of what a checkpoint keeps besides, and a report has no use for


def inputs_of(saved: Any) -> tuple[InputReport, ...]:
    """The inputs of the report that was saved as `saved`; a ValueError if that is none."""
    if not isinstance(saved, dict) or saved.get("format") != HEADER["format"]:
        raise ValueError(f'it has no "format": "{HEADER["format"]}"')
    if saved.get("version") != HEADER["version"]:
        raise ValueError(f"its version is {shortened(saved.get('version'))}, and only {HEADER['version']} can be read")
    report = {key: value for key, value in saved.items() if key != REST}
    inputs: tuple[InputReport, ...] = json.as_record(report, REPORT)["inputs"]
    if not inputs:
        raise ValueError("it reports on no input")
    return inputs


def _input(value: Any) -> InputReport:
    with_details = {"details": None, **value} if isinstance(value, dict) else value
    return InputReport(**json.as_record(with_details, INPUT))


def _name(value: Any) -> str:
    name = json.as_text(value)
    if len(name) > LONGEST_NAME:
        raise ValueError(f"a name of more than {LONGEST_NAME} characters")
    return name


def _entry(value: Any) -> Entry:
    return Entry(**json.as_record(value, ENTRY))


def _escape(value: Any) -> Escape:
    escape = Escape(**json.as_record(value, ESCAPE))
    if not 0 < escape.size >= escape.entries:
        raise ValueError(f"{escape.entries} entries cannot have been looked at of {escape.size}")
    return escape


def _details(value: Any) -> Details:
    details = Details(**json.as_record(value, DETAILS))
    if len({array.shape for array in details}) > 1:
        raise ValueError("the arrays have different shapes")
    return details


def _verdict(value: Any) -> int:
    verdict = json.as_whole(value)
    if verdict not in (HOLDS, WRONG, UNDECIDED, UNCHECKED):
        raise ValueError(f"{verdict} is no verdict on an entry")
    return verdict


INDEX = json.as_tuple(json.as_whole)
ENTRY = {
    "index": INDEX,
    "analytic": as_number,
    "numerical": as_number,
    "floor": as_number,
}
ESCAPE = {
    "entries": json.as_whole,
    "size": json.as_whole,
    "directions": json.as_whole,
    "threshold": as_number,
    "norm": as_number,
}
DETAILS = {
    "analytic": as_array(as_number, np.float64),
    "numerical": as_array(as_number, np.float64),
    "floor": as_array(as_number, np.float64),
    "verdict": as_array(_verdict, np.int8),
}
INPUT = {
    "name": _name,
    "method": _name,
    "ok": json.as_flag,
    "max_relative_error": as_number,
    "worst_index": INDEX,
    "analytic": as_number,
    "numerical": as_number,
    "floor": as_number,
    "size": json.as_whole,
    "checked": json.as_whole,
    "wrong": json.as_whole,
    "undecidable": json.as_whole,
    "undecided": json.as_tuple(INDEX),
    "worst": json.as_tuple(_entry),
    "diagnosis": json.is_optional(json.as_text),
    "note": json.is_optional(json.as_text),
    "escape": json.is_optional(_escape),
    "details": json.is_optional(_details),
}
REPORT = {
    "format": json.as_text,
    "version": json.as_whole,
    "ok": json.as_flag,
    "inputs": json.as_tuple(_input),
}
