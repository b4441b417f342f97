"""One entry of a step with numbers in the place of its letters: 0.882 (1.5 - 1.332)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from attention_np.derivation import nodes
from attention_np.derivation.environment import LOSS, Environment
from attention_np.derivation.errors import Fault
from attention_np.derivation.evaluate import evaluate
from attention_np.derivation.execution import Executed

MOST_TERMS = 4  # of a sum that is written out; of a longer one its first two and its last are
LONGEST = 200  # characters: about three lines of paper
DECIMALS = 3


class _UnwrittenError(Exception):
    """An expression that is no formula of single numbers, such as a product of matrices."""


def substituted(group: list[Executed], place: tuple[int, ...]) -> str:
    """The entry at `place`, by the statement that ends shortest; empty where all are one number, or have no indices."""
    ends = [end for each in group if " " in (end := _end(each, place))]
    return min(ends, key=len, default="")


def _end(each: Executed, place: tuple[int, ...]) -> str:
    """The last side of a statement that is a formula of single numbers, and needs no derivative but those of L."""
    at = _indices(each, place)
    for side in reversed(each.statement.sides[1:]):
        if at is None or side is None:
            continue
        if not any(isinstance(node, nodes.Derivative) and not _is_of_loss(node) for node in side.walk):
            try:
                text = _Writer(each.environment, at).text(side)
            except (_UnwrittenError, Fault):
                continue
            return text if len(text) <= LONGEST else ""
    return ""


def _indices(each: Executed, place: tuple[int, ...]) -> dict[str, int] | None:
    """The indices of the left side at that place; None where it is a matrix, or has an index that is calculated."""
    target, first = each.statement.target, each.statement.sides[0]
    if target is not None:
        names = target.indices
    else:
        left = first.bottom if isinstance(first, nodes.Derivative) else first
        indices = left.indices or () if isinstance(left, nodes.Ref) else ()
        names = tuple(index.name for index in indices if isinstance(index, nodes.IndexRef))
    return dict(zip(names, place, strict=True)) if len(names) == len(place) else None


def _is_of_loss(node: nodes.Derivative) -> bool:
    return isinstance(node.top, nodes.Ref) and node.top.name == LOSS


def number(value: float) -> str:
    """With as many decimals as it has, up to three; as a power of ten if these are zeros."""
    if not math.isfinite(value):
        return str(value)
    for digits in range(1, DECIMALS):
        if abs(value - round(value, digits)) < 1e-12:
            return f"{round(value, digits) + 0.0:.{digits}f}"
    return f"{value:.{DECIMALS}f}" if abs(value) >= 10.0**-DECIMALS else f"{value:.{DECIMALS}g}"


def _is_loose(text: str) -> bool:
    """Whether a space stands outside of all brackets."""
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == " " and not depth:
            return True
    return False


class _Writer:
    """Writes an expression at one place of its indices; a sum inside of brackets as the number that it comes to."""

    def __init__(self, environment: Environment, at: Mapping[str, int], inside: bool = False) -> None:
        self.environment, self.at, self.inside = environment, at, inside

    def value(self, node: nodes.Node) -> float:
        """What a node comes to."""
        value = evaluate(self.environment, node)
        if value.shape or not set(value.names) <= self.at.keys():
            raise _UnwrittenError
        return float(value.data[tuple(self.at[name] for name in value.names)])

    def text(self, node: nodes.Node) -> str:
        """The node, as one would write it on paper."""
        if isinstance(node, nodes.Number):
            return node.text
        if isinstance(node, (nodes.SizeRef, nodes.IndexRef)):
            return f"{self.value(node):.0f}"
        if isinstance(node, nodes.Group):
            return f"({_Writer(self.environment, self.at, inside=True).text(node.body)})"
        if isinstance(node, nodes.Add):
            terms = zip(node.terms, node.signs, strict=True)
            return self._sum((sign, self.text(term) if sign > 0 else self._term(term)) for term, (sign, _) in terms)
        if isinstance(node, nodes.Mul):
            return self._product(node)
        if isinstance(node, nodes.Frac):
            return "/".join(
                f"({part})" if _is_loose(part) else part for part in map(self.text, (node.top, node.bottom))
            )
        if isinstance(node, nodes.Power):
            base, exponent = self.text(node.base), self.text(node.exponent)
            base = f"({base})" if base.startswith("-") or _is_loose(base) else base
            return f"{base}^{f'({exponent})' if ' ' in exponent else exponent}"
        if isinstance(node, nodes.Reduce) and node.kind == "sum" and not self.inside:
            return self._sum(self._terms(node))
        if isinstance(node, nodes.Call) and node.bound is None and len(node.arguments) == 1:
            argument = self.text(node.arguments[0])
            self.value(node)
            bare = argument[1:-1] if isinstance(node.arguments[0], nodes.Group) else argument
            return f"{node.function}({bare})"
        if isinstance(node, nodes.Cases):
            return self.text(self._case(node))
        if isinstance(node, nodes.Call) and node.function == "softmax":
            raise _UnwrittenError
        return number(self.value(node))

    def _case(self, node: nodes.Cases) -> nodes.Node:
        for value, condition in zip(node.values, node.conditions, strict=True):
            if condition is None or self.value(nodes.Iverson(node.span, condition)):
                return value
        raise _UnwrittenError

    def _terms(self, node: nodes.Reduce) -> Iterator[tuple[int, str]]:
        """The terms of a sum for which its condition holds."""
        names, arithmetic = node.bound.names, self.environment.arithmetic
        lengths = [arithmetic.size(self.environment.names.range_of(name)) for name in names]
        writers = []
        for place in np.ndindex(*lengths):
            writer = _Writer(self.environment, {**self.at, **dict(zip(names, place, strict=True))}, inside=True)
            condition = node.bound.condition
            if condition is None or writer.value(nodes.Iverson(node.span, condition)):
                writers.append(writer)
        for k, writer in enumerate(writers):
            if len(writers) <= MOST_TERMS or k < 2 or k == len(writers) - 1:
                yield 1, writer._term(node.body)
            elif k == 2:
                yield 1, "..."

    def _term(self, node: nodes.Node) -> str:
        text = self.text(node)
        return f"({text})" if isinstance(node, nodes.Reduce) and " " in text else text

    def _sum(self, terms: Iterator[tuple[int, str]]) -> str:
        """Signed terms; to take a negative number off is to add it."""
        line = ""
        for sign, term in terms:
            if term.startswith("-"):
                sign, term = -sign, term[1:]
            mark = "-" if sign < 0 else "+"
            line += f" {mark} {term}" if line else term if sign > 0 else f"-{term}"
        return line or number(0.0)

    def _product(self, node: nodes.Mul) -> str:
        line = ""
        for factor, operator in zip(node.factors, node.operators, strict=True):
            text = self.text(factor)
            if operator == "mod":
                raise _UnwrittenError
            several = isinstance(factor, (nodes.Reduce, nodes.Add)) and " " in text
            has_brackets = several or isinstance(factor, nodes.Group)
            text = f"({text})" if several or (line and text.startswith("-")) else text
            joint = " / " if operator == "slash" else " " if has_brackets else " * "
            line += joint + text if line else text
        return line
