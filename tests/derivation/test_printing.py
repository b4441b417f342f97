"""Lines of NumPy that are printed from the equations of a page have the numbers that the page has."""

from pathlib import Path
from typing import Any

import numpy as np

from attention_np._lib.pages import PAGES
from attention_np.derivation import PageCheck, read_page
from attention_np.derivation.environment import Environment
from attention_np.derivation.evaluate import evaluate
from attention_np.derivation.identifiers import spelled
from attention_np.derivation.lines import PrintedSide, PrintedStatement
from attention_np.derivation.slopes import free_indices_of
from attention_np.derivation.statements import Statement
from attention_np.derivation.views import identifiers_of, laid_out, printed_statements, views
from tests.derivation.pages import DEFINITIONS, page
from tests.helpers import each

COURSE = PAGES.parent / "docs" / "course"
ALL = sorted([*PAGES.glob("*.md"), *COURSE.glob("*.md")])
QUICK = [PAGES / f"{name}.md" for name in ("softmax", "masks", "rotary")]
# What NumPy has no function for (erf), and columns of ones of a length that only the other side says.
UNSAID = {"activation.1", "blockwise.72", "errata.87", "multi-head.43", "multi-head.46"}
TOLERANCE = 1e-12  # of the numbers of a line against those of the evaluator, by the largest term: rounding


def printed_lines(equation: str) -> list[str]:
    check = PageCheck(page(DEFINITIONS + f"\n$$ {equation} \\tag{{t.3}} $$\n"), draws=1)
    (*_, record) = [check.equation(item) for item in check.page.equations]
    assert record.verdict == "holds", record.message
    return views(check)["t.3"].lines.split("\n")


@each(
    ("equation", "lines"),
    [
        (r"C_{ij} = S_{ij} (Z_{ij} - \sum_l S_{il} Z_{il})", ["C = S * (Z - (S * Z).sum(axis=-1, keepdims=True))"]),
        (r"C_{ij} = \frac{1}{\sqrt{d_k}} \sum_a Q_{ia} K_{ja}", ["C = Q @ K.T / np.sqrt(d_k)"]),
        (r"C = S \odot (Z - x \mathbf{1}^\top)", ["C = S * (Z - x[:, None])"]),
        (r"C = \mathrm{diag}(x) Z", ["C = x[:, None] * Z"]),
        (r"C = S^\top x", ["C = S.T @ x"]),
        (r"f = (S \odot Z) \mathbf{1}_m", ["f = (S * Z).sum(axis=-1)"]),
        (r"C_{ijl} = S_{ij} S_{il}", ["C = S[:, :, None] * S[:, None, :]"]),
        (r"C_{ji} = S_{ij}", ["C = S.T"]),
        (
            r"f_i = \sum_{j \le i} s_j",
            ["j = np.arange(m)", "i = np.arange(n)", "f = np.where(j <= i[:, None], s, 0).sum(axis=-1)"],
        ),
        (r"f_j = \sum_i x_i S_{ij}", ["f = x @ S"]),
        (
            r"C_{ij} = \mathrm{softmax}_j(S_{ij})",
            ["exp = np.exp(S - S.max(axis=-1, keepdims=True))", "C = exp / exp.sum(axis=-1, keepdims=True)"],
        ),
        (r"\frac{\partial O_i}{\partial s_j} = S_{ij}", ["dO_ds = S"]),
        (
            r"f_i = \begin{cases} x_i & \text{if } i = 1 \\ x_i + y_i f_{i-1} & \text{otherwise} \end{cases}",
            [
                "f = np.zeros((n,))",
                "for i in range(n):",
                "    if i == 0:",
                "        f[i] = x[i]",
                "    else:",
                "        f[i] = x[i] + y[i] * f[i - 1]",
            ],
        ),
    ],
)
def test_an_equation_is_said_as_one_would_write_it(equation: str, lines: list[str]) -> None:
    assert printed_lines(equation) == lines


@each(
    "key",
    ["S", "\\dot{S}", "W^{Q}", "\\lambda", "\\mathcal{X}", "x'", "Q()", "\\hat{\\bar{O}}_{\\max}", "d_{k}", "W^{1}"],
)
def test_every_name_of_a_page_is_a_name_in_python(key: str) -> None:
    assert spelled(key).isidentifier()


@each("path", QUICK, long=[path for path in ALL if path not in QUICK])
def test_the_lines_of_a_page_have_its_numbers(path: Path) -> None:
    assert [(tag, what) for tag, what in unsaid_or_wrong(path) if what != "unsaid" or tag not in UNSAID] == []


def unsaid_or_wrong(path: Path) -> list[tuple[str, str]]:
    """The tags of equations that are not said, or whose lines have other numbers, and how it is wrong."""
    check = PageCheck(read_page(path), draws=1)
    found: list[tuple[str, str]] = []
    verdicts = [check.equation(equation).verdict for equation in check.page.equations]
    identifiers = identifiers_of(check)
    for equation, verdict in zip(check.page.equations, verdicts, strict=True):
        for statement, printed in printed_statements(check, equation, identifiers) if verdict == "holds" else ():
            if printed is None:
                found.append((equation.tag, "unsaid"))
            elif fault := wrong(statement, printed, check.scope_of(equation).environments[0]):
                found.append((equation.tag, fault))
    return found


def wrong(statement: Statement, printed: PrintedStatement, environment: Environment) -> str:
    """How the lines of a statement differ from it, or ""."""
    known: dict[str, Any] = {"np": np}
    for name, key in printed.arrays.items():
        symbol = environment.names.get(key)
        size = key.isdigit() or (symbol is not None and symbol.kind == "size")
        known[name] = environment.arithmetic.size(key) if size else environment.tensor(key, (0, 0)).data.copy()
    for name, node in printed.derivatives.items():
        known[name] = laid_out(environment, node, tuple(dict.fromkeys(free_indices_of(node))))
    with np.errstate(all="ignore"):
        exec("\n".join(printed.lines), whole := dict(known))  # noqa: S102 (of our own pages)
        where = eval(printed.condition, whole) if printed.condition else True  # noqa: S307
        for side in printed.sides:
            if fault := _difference(statement, side, printed, environment, known, where):
                return fault
    return ""


def _difference(
    statement: Statement,
    side: PrintedSide,
    printed: PrintedStatement,
    environment: Environment,
    known: dict[str, Any],
    where: Any,
) -> str:
    node = statement.sides[side.position]
    assert node is not None
    scope = dict(known)
    if side.loop:
        exec("\n".join(printed.lines), scope)  # noqa: S102
        array = scope[printed.name]
    else:
        exec("\n".join(side.before), scope)  # noqa: S102
        array = np.asarray(eval(side.text, scope))  # noqa: S307
    wanted = laid_out(environment, node, printed.frame)
    if printed.name and not side.loop and array.shape != np.broadcast_shapes(array.shape, wanted.shape):
        return f"{side.text} has the shape {array.shape} of {wanted.shape}"
    array, wanted = np.broadcast_arrays(array, wanted)
    behind = wanted.ndim - len(printed.frame)
    held = np.asarray(where)
    mask = np.broadcast_to(held.reshape(held.shape + (1,) * behind if held.ndim else ()), wanted.shape)
    mask = mask & np.isfinite(wanted)
    largest = max(float(np.abs(wanted[mask]).max(initial=0.0)), 1e-300)
    error = float(np.abs(array[mask] - wanted[mask]).max(initial=0.0)) / max(largest, evaluate(environment, node).scale)
    return "" if error < TOLERANCE else f"{side.text} is off by {error:.1e}"
