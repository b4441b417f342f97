"""Which names an equation uses, and which definitions of a page nothing uses.

A claim whose left side is mistyped into an unknown letter reads like a definition, and a definition that nothing uses
cannot be wrong. So such a definition is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from attention_np.derivation import nodes
from attention_np.derivation.environment import LOSS, Definitions
from attention_np.derivation.errors import Fault
from attention_np.derivation.header import Header
from attention_np.derivation.names import Names
from attention_np.derivation.record import Record
from attention_np.derivation.scope import Scope
from attention_np.derivation.statements import Statement
from attention_np.derivation.tokens import FONTS


def gradient_of(statement: Statement, definitions: Definitions) -> tuple[str, ...]:
    """The symbol X, where the left side is dL/dX or a name that is defined as that."""
    left: nodes.Node | None = statement.sides[0]
    if isinstance(left, nodes.Ref) and left.name in definitions.by_key:
        left = definitions.by_key[left.name].body
    elif left is None:
        left = statement.first
    if isinstance(left, nodes.Derivative) and isinstance(left.top, nodes.Ref) and left.top.name == LOSS:
        return (left.bottom.name,)
    return ()


def mentioned(text: str, names: Names) -> frozenset[str]:
    """The names that an equation may use which cannot be read as a whole: rather too many than too few."""
    there = _words(text)
    return frozenset(symbol.key for symbol in names.of_kind("tensor", "defined") if _words(symbol.key) <= there)


@lru_cache(4096)  # the names of a page are asked for each equation that fails
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\\[A-Za-z]+|[A-Za-z]", text)) - FONTS


def unused(records: Sequence[Record], header: Header) -> Iterator[tuple[int, str]]:
    """The position of each record with a definition that no later equation uses, and the name."""
    outside = {header.output, header.cotangent, *header.code.values(), *header.options.values()}
    for position, record in enumerate(records):
        later = [
            other.uses
            for other in records[position + 1 :]
            if other.verdict != "not executed" and record.example in (-1, other.example)
        ]
        for key in record.defines:
            if key not in outside and key not in record.uses and not any(key in uses for uses in later):
                yield position, key


def same_value(scope: Scope, key: str) -> str | None:
    """Another name that has the value of this one at every draw: perhaps the one that its author meant."""
    symbol = scope.names.get(key)
    for other in scope.names.of_kind("tensor", "defined"):
        if symbol is None or other.key == key or other.axes != symbol.axes:
            continue
        try:
            for environment in scope.environments:
                one, two = environment.tensor(key, (0, 0)).data, environment.tensor(other.key, (0, 0)).data
                if abs(one - two).max(initial=0.0) > 1e-9 * abs(one).max(initial=0.0):
                    break
            else:
                return other.key
        except Fault:
            continue
    return None
