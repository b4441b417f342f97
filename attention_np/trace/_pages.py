"""A derivation page carried out on a sentence, step by step, and held against the op that it derives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Literal

import numpy as np

from attention_np import masks
from attention_np._lib.arrays import Array
from attention_np._lib.pages import PAGES, where_it_is
from attention_np.derivation import Fault, Page, PageCheck, nodes, read_page
from attention_np.derivation.environment import LOSS, Tensor
from attention_np.derivation.execution import Executed, execute
from attention_np.derivation.header import Free, Header
from attention_np.derivation.operators import check_operator
from attention_np.trace._inputs import loss_gradient, numbered, small_numbers
from attention_np.trace._numbers import number, substituted
from attention_np.trace._paper import Step, Trace
from attention_np.trace._plain import formula, prose

WORDS = ("n", "m")  # the ranges of queries and of keys


def traced(op: str, words: tuple[str, ...], sizes: Mapping[str, int], d: int, is_causal: bool, seed: int) -> Trace:
    """The trace of an op on words; `sizes` are those of ranges of its page, `d` that of all others."""
    page = read_page(PAGES / f"{op}.md")
    header = page.header
    if header.op != op:
        raise ValueError(f"there is no op called {op} that has a page")
    scores, bias = header.code.get("scores"), header.code.get("bias")
    if is_causal and bias is None and (scores is None or scores in header.tensors):
        raise ValueError(f"{op} makes no scores, of which is_causal could hide some")
    names = {key: name.rpartition(".")[2] for name, key in header.code.items()}

    def value_of(key: str, free: Free, shape: tuple[int, ...]) -> Array:
        width, name = shape[-1] if shape[1:] else 1, names.get(key, key)
        has_words = (
            bool(free.axes) and free.axes[0] in WORDS and len(shape) < 3 and shape[0] == len(words)
        )  # a row each
        if key == header.cotangent:
            rows = words if has_words else numbered(int(np.prod(shape)) // width)
            return loss_gradient(seed, rows, width).reshape(shape)
        if key == bias:
            return np.where(masks.causal(*shape) if is_causal else True, np.zeros(shape), -np.inf)
        rows = words if has_words else numbered(int(np.prod(shape)) // width)
        if free.kind == "uniform":  # 0.4, 0.6 or 0.8: no place at which a page's equations have a kink
            return 0.6 + small_numbers(seed, name, rows, width, step=0.2, largest=0.2).reshape(shape)
        if has_words:
            role = "x" if "^" in key else name  # X^Q, X^K and X^V are one X: self-attention
            drawn = small_numbers(seed, role, words, width).reshape(shape)
            return -abs(drawn) if name == "log_decay" else drawn  # what decays gets smaller
        # Small parameters, so that tanh and softmax are not saturated everywhere.
        largest = 0.5 if shape[1:] else 1.0
        return small_numbers(seed, name, rows, width, largest=largest).reshape(shape)

    check = PageCheck(page, draws=1)
    hidden = scores if is_causal and bias is None else None
    try:
        steps, shown = _steps(
            page, list(execute(check, _lengths(header, len(words), sizes, d), value_of, hidden)), check
        )
        errors = [each.error() for each in shown]
    except Fault as fault:
        raise ValueError(f"{op} cannot be traced on these tokens: {fault.message}") from None
    if is_causal:
        header.code.pop("scores", None)  # of a hidden pair the op keeps what it has
        header.options |= {} if bias is not None else {"mask": masks.causal(len(words))}
    errors += [record.error for record in check_operator(check, import_module(f"attention_np.{op}"))]
    title = re.findall(r"^# (.+)", page.text, re.MULTILINE)[0] + (", causal" if is_causal else "")
    of_words = "".join(index for index, axis in header.indices.items() if axis in WORDS and axis not in header.fixed)
    introduction = (
        f"{len(words)} token{'' if len(words) == 1 else 's'}. Text and equations are those of {where_it_is(op)}, by "
        f"their tags, such as ({steps[-1].tags[0]}). Indices count from 1. The numbers to begin with are made up from "
        "the tokens, so equal tokens have equal rows."
    )
    said = (
        "Check: both sides of every equation above, with each derivative taken by the complex step, and the output "
        f"and the gradients of the op in the code agree to a relative error of {max(errors):.1e}."
    )
    return Trace(op, title, words, tuple(steps), max(errors), of_words, introduction, said)


def _lengths(header: Header, count: int, sizes: Mapping[str, int], d: int) -> dict[str, int]:
    """The length of every range that is not a product; where m is one, its first factor is the smallest there is.

    Where the features d are, as pairs that are turned are two times half of them, there are as many as were asked for.
    """
    usual = {key: header.fixed.get(key, d) for key, factors in header.sizes.items() if not factors}
    lengths = {key: sizes.get(formula(key), length) for key, length in usual.items()}
    lengths |= {key: count for key in WORDS if key in lengths and key not in header.fixed}
    if header.sizes.get("m"):
        first, second = header.sizes["m"]
        lengths[first] = next(k for k in range(min(2, count), count + 1) if count % k == 0)
        lengths[second] = count // lengths[first]
    if header.sizes.get("d"):
        first, second = header.sizes["d"]
        if d % lengths[first]:
            raise ValueError(f"d must be a multiple of {lengths[first]} here, not {d}")
        lengths[second] = d // lengths[first]
    return lengths


def _steps(page: Page, executed: Sequence[Executed], check: PageCheck) -> tuple[list[Step], list[Executed]]:
    """What leads to the output, and what leads back; and which of the statements say so.

    A gradient is told by all statements that code carries out; names that they use besides are steps as well.
    """
    output, needs = page.header.output or "", check.scope.definitions.needs
    forward = needs(output) | {output}
    gradients = [
        each
        for each in executed
        if each.gradient and each.key in forward and (each.key == output or not each.equation.text_only)
    ]
    wanted = forward.union(*(needs(key) | {key} for each in gradients for key in each.uses))
    groups: dict[tuple[str, bool], list[Executed]] = {}
    for each in executed:
        told = each in gradients if each.gradient else each.key in wanted and each.key not in check.scope.values
        if told and (each.statement.target is not None or each.uses <= wanted | {"L"}):
            groups.setdefault((each.key, each.gradient), []).append(each)
    groups = _in_order(groups)
    cotangent = page.header.cotangent
    (environment,) = check.scope.environments
    drawn = {key: environment.free[key] for key in page.header.tensors if key in environment.free}
    known = drawn | {cotangent: environment.tensor(cotangent, (0, 0))}
    symbols = {key: _symbol(page.header, key, tensor, ()) for key, tensor in known.items()}
    symbols |= {key: _symbol(page.header, key, group[0].tensor(), group) for (key, _), group in groups.items()}
    names = {key: name.rpartition(".")[2] for name, key in page.header.code.items()}
    names[cotangent] = "d_output"
    steps = [
        Step("given", names.get(key, ""), *symbols[key], (), "", "", tensor.data)
        for key, tensor in known.items()
        if key in wanted and (key != cotangent or (output, True) not in groups)
    ]
    backward = [gradient or cotangent in check.scope.definitions.needs(key) for key, gradient in groups]
    first_gradient = backward.index(True) if True in backward else len(groups)
    for position, ((key, gradient), group) in enumerate(groups.items()):
        (symbol, letters), name = symbols[key], names.get(key, "")
        if gradient:
            symbol, name = "G" if key == output else f"dL/d{symbol}", name and f"d_{name}"
        tags = tuple(dict.fromkeys(each.equation.tag for each in group))
        lines = "\n".join(formula(each.latex) for each in group)
        part: Literal["forward", "backward"] = "forward" if position < first_gradient else "backward"
        array = group[0].tensor().data
        sentence, entry = _paragraph(page, group[0]), _entry(symbol, group, array)
        steps.append(Step(part, name, symbol, letters, tags, lines, sentence, array, entry))
    steps += _sum_of_one(steps)
    return steps, [each for group in groups.values() for each in group]


Groups = dict[tuple[str, bool], list[Executed]]


def _in_order(groups: Groups) -> Groups:
    """The order of the page, but that each name comes after those that it is made of."""
    ordered: Groups = {}
    entered: set[tuple[str, bool]] = set()

    def enter(key: tuple[str, bool]) -> None:
        if key in groups and key not in entered:
            entered.add(key)
            for part in dict.fromkeys(part for each in groups[key] for part in _parts(each)):
                enter(part)
            ordered[key] = groups[key]

    for key in groups:
        enter(key)
    return ordered


def _parts(each: Executed) -> list[tuple[str, bool]]:
    """What a statement is made of, and whether that is a gradient.

    What it takes from another step of a recurrence, such as S(t - 1) in R(t) or E(t) in D(t - 1), does not count.
    """
    statement = each.statement
    left = statement.sides[0]
    is_before = left is not None and any(map(_is_shifted, left.walk))
    parts: list[tuple[str, bool]] = []
    for side in statement.sides if left is None else statement.sides[1:]:
        walked = () if side is None else side.walk
        below = {id(node.bottom) for node in walked if isinstance(node, nodes.Derivative)}
        for node in walked:
            if isinstance(node, nodes.Derivative) and isinstance(node.top, nodes.Ref) and node.top.name == LOSS:
                parts.append((node.bottom.name, True))
            elif isinstance(node, nodes.Ref) and id(node) not in below and _is_shifted(node) == is_before:
                parts.append((node.name, False))
    return parts


def _is_shifted(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Ref) and any(isinstance(index, nodes.Add) for index in node.indices or ())


def _entry(symbol: str, group: list[Executed], array: Array) -> str:
    """The entry at the lower right of the first table in numbers: its token sees all others, under a mask, too."""
    place = tuple(length - 1 if axis >= array.ndim - 2 else 0 for axis, length in enumerate(array.shape))
    text = substituted(group, place)
    if not text:
        return ""
    counted = [str(k + 1) for k in place]
    if symbol.endswith(")"):
        symbol, counted = f"{symbol[:-3]}({counted[0]})", counted[1:]
    joint = "," if any(len(k) > 1 for k in counted) else ""
    index = f"_{joint.join(counted)}" if counted else ""
    return f"{symbol}{index} = {text} = {number(float(array[place]))}"


def _sum_of_one(steps: Sequence[Step]) -> list[Step]:
    """Where X^Q, X^K and X^V are one X, its gradient."""
    parts = [step for step in steps if re.fullmatch(r"dL/dX\^[QKV]", step.symbol)]
    if not parts:
        return []
    formula = "dL/dX = " + " + ".join(step.symbol for step in parts)
    tags = tuple(dict.fromkeys(tag for step in parts for tag in step.tags))
    sentence = "Query, key and value are one array here, X: its gradient is the sum of theirs."
    array = np.sum([step.array for step in parts], axis=0)
    return [Step("backward", "d_x", "dL/dX", parts[0].axes, tags, formula, sentence, array)]


def _symbol(header: Header, key: str, tensor: Tensor, group: Sequence[Executed]) -> tuple[str, str]:
    """A name in plain text, such as A(h), and an index letter for each of its axes: those of its definition."""
    target = group[0].statement.target if group else None
    letters = "" if target is None else "".join(target.indices)
    for axis in tensor.axes[len(letters) :]:
        letters += next(index for index, its in header.indices.items() if its == axis and index not in letters)
    plain = formula(key.removesuffix("()"))
    return (f"{plain}({letters[0]})" if key.endswith("()") else plain), letters


def _paragraph(page: Page, first: Executed) -> str:
    """The prose before the equation, unless another equation, a heading or a table stands there."""
    before = page.text[: first.equation.offset - 2].rstrip().rpartition("\n\n")[2]
    before = re.sub(r"^\*Same as [^*]+\*\s*", "", before)
    return "" if before.endswith("$$") or before.startswith(("#", "|", "*Text only.*")) else prose(before)
