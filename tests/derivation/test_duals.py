"""A second derivative is that of the page's own definitions, to rounding."""

from typing import Any

import numpy as np
import pytest
from helpers import each

from attention_np.derivation import PageCheck, Record
from attention_np.derivation.duals import Dual

from .pages import DEFINITIONS, HEADER, page

MOVING = HEADER.replace(
    "Z: [n, m]}", r"Z: [n, m], '\dot{Q}': [n, d_k], '\dot{K}': [m, d_k], '\dot{u}': [], '\dot{W}^Q': [H, D, d_k]}"
).replace("a: d_k,", "a: d_k, d: d_k,")
SHORTHAND = r"""
$$ \bar{K}_{ja} = \frac{\partial L}{\partial K_{ja}} \tag{t.3} $$

$$ A_{ij} = \mathrm{softmax}_j(S_{ij}) \tag{t.4} $$

$$ \hat S_{ij} = \begin{cases} S_{ij} & \text{if } M_{ij} = 1 \\ -\infty & \text{otherwise} \end{cases} \tag{t.5} $$

$$ X_{ic} + \bar{K}_{ja} + A_{ij} = A_{ij} + \bar{K}_{ja} + X_{ic} \tag{t.6} $$

$$ e^{\hat S_{ij}} = M_{ij} e^{S_{ij}} \tag{t.7} $$
"""


def judge(equation: str) -> Record:
    """The record of one equation behind the definitions."""
    found = page(f"{DEFINITIONS}{SHORTHAND}\n$$ {equation} \\tag{{t.8}} $$\n", MOVING)
    assert not found.problems, found.problems
    *before, record = PageCheck(found).run()
    assert {item.verdict for item in before} == {"holds"}, [item.message for item in before]
    return record


TRUE = [
    # how it may be written
    r"\frac{\partial^2 L}{\partial Q_{ia} \partial K_{jd}} = \delta_{ad} G_i s_j",
    r"\frac{\partial^2 L}{\partial K_{jd} \partial Q_{ia}} = \delta_{ad} G_i s_j",
    r"\frac{\partial}{\partial Q_{ia}} \frac{\partial L}{\partial K_{jd}} = \delta_{ad} G_i s_j",
    r"\frac{\partial \bar{K}_{jd}}{\partial Q_{ia}} = \delta_{ad} G_i s_j",
    r"\frac{\partial^2}{\partial x \partial x} (x^\top B x) = B + B^\top",
    r"\frac{\partial^2}{\partial x_i \partial x_k} \sum_{i'} x_{i'}^4 = 12 \delta_{ik} x_i^2",
    r"\frac{\partial^2}{\partial x_i^2} \sum_{i'} x_{i'}^4 = 12 x_i^2",
    r"\frac{\partial^2 (u^3 t)}{\partial u^{2}} = 6 u t",
    r"\frac{\partial}{\partial u} (u \frac{\partial}{\partial u} u^3) = 9 u^2",
    # by what is itself defined, before and behind what it is defined by
    r"\frac{\partial^2}{\partial Q_{ka} \partial S_{ij}} S_{ij}^2 = 2 \frac{\partial S_{ij}}{\partial Q_{ka}}",
    r"\frac{\partial^2}{\partial S_{ij} \partial Q_{ka}} S_{ij}^2 = 2 \frac{\partial S_{ij}}{\partial Q_{ka}}",
    r"\frac{\partial^2 L}{\partial Q_{ia} \partial Q_{kd}} = 0, \quad \frac{\partial^2 L}{\partial x \partial x} = 0",
    r"\frac{\partial^2}{\partial Q_{ia} \partial x_k} \sum_j S_{ij} = 0",
    # every function
    r"\frac{\partial^2}{\partial u^2} e^{2 u} = 4 e^{2 u}, \quad \frac{\partial^2}{\partial t^2} \log t = - 1 / t^2",
    r"\frac{\partial^2}{\partial t^2} \sqrt{t} = - \frac{1}{4} t^{-3/2}, \quad \frac{\partial^2}{\partial t^2} 2^t = (\log 2)^2 2^t",  # noqa: E501
    r"\frac{\partial^2}{\partial t^2} t^t = t^t \left( (\log t + 1)^2 + \frac{1}{t} \right)",
    r"\frac{\partial^2}{\partial u^2} u^{-1} = 2 u^{-3} = \frac{\partial^2}{\partial u^2} \frac{1}{u}",
    r"\frac{\partial^2}{\partial u^2} \tanh(u) = - 2 \tanh(u) \tanh'(u) = \frac{\partial}{\partial u} \tanh'(u)",
    r"\frac{\partial^2}{\partial u^2} \sin u = - \sin u, \quad \frac{\partial^2}{\partial u^2} \cos u = - \cos u",
    r"\frac{\partial^2}{\partial u^2} \sinh u = \sinh u, \quad \frac{\partial^2}{\partial u^2} \cosh u = \cosh u",
    r"\frac{\partial^2}{\partial u^2} \mathrm{sigmoid}(u) = \mathrm{sigmoid}(u) (1 - \mathrm{sigmoid}(u)) (1 - 2 \mathrm{sigmoid}(u))",  # noqa: E501
    r"\frac{\partial^2}{\partial u^2} \mathrm{erf}(u) = - 2 u \frac{\partial}{\partial u} \mathrm{erf}(u)",
    r"\frac{\partial^2}{\partial u^2} \lvert u^3 \rvert = 6 \lvert u \rvert, \quad \frac{\partial^2}{\partial u^2} u = 0",  # noqa: E501
    r"\frac{\partial^2}{\partial s_j \partial s_l} \mathrm{logsumexp}(s) = \mathrm{softmax}(s)_j (\delta_{jl} - \mathrm{softmax}(s)_l)",  # noqa: E501
    r"\frac{\partial^2}{\partial s_j \partial s_l} \max_{j'} s_{j'}^2 = 2 \delta_{jl} [s_j^2 = \max_{j'} s_{j'}^2]",
    r"\frac{\partial^2}{\partial u^2} \max(u^2, -1, \min(-3, u)) = 2",
    r"\frac{\partial^2}{\partial x \partial x} \lVert x \rVert^2 = 2 I_n",
    r"\frac{\partial^2}{\partial s_j \partial s_l} \prod_{j'} s_{j'} = [j \ne l] \prod_{j' \ne j, j' \ne l} s_{j'}",
    r"\frac{\partial^2}{\partial s_j \partial s_l} \sum_{j'=2}^{m} s_{j'} s_{j'-1} = [j = l + 1] + [l = j + 1]",
    r"\frac{\partial^2}{\partial B_{ik} \partial B_{ik}} \mathrm{tr}(B B^\top) = 2, \quad \frac{\partial^2}{\partial B_{ii}^2} \mathrm{tr}(B^2) = 2",  # noqa: E501
    r"\frac{\partial^2}{\partial u^2} (u B)^{-1} = \frac{2}{u^3} B^{-1}",
    r"\frac{\partial^2}{\partial u^2} \mathrm{diag}(u x) \mathrm{diag}(u \mathrm{diag}(B)) = 2 \mathrm{diag}(x) \mathrm{diag}(\mathrm{diag}(B))",  # noqa: E501
    r"\frac{\partial^2}{\partial u^2} \begin{pmatrix} u^2 & u \\ 1 & u^3 \end{pmatrix} = \begin{pmatrix} 2 & 0 \\ 0 & 6 u \end{pmatrix}",  # noqa: E501
    r"\frac{\partial^2}{\partial u^2} \mathrm{einsum}(\texttt{ij,ij->i}, u S, u Z) = 2 \mathrm{einsum}(\texttt{ij,ij->i}, S, Z)",  # noqa: E501
    r"\frac{\partial^2}{\partial u^2} \mathrm{concat}_h(u^2 X W^{Q(h)}) = 2 \mathrm{concat}_h(X W^{Q(h)})",
    r"\frac{\partial^2}{\partial u^2} \begin{cases} u^2 & \text{if } u > 0 \\ u^3 & \text{otherwise} \end{cases} = \begin{cases} 2 & \text{if } u > 0 \\ 6 u & \text{otherwise} \end{cases}",  # noqa: E501
    r"\frac{\partial^2}{\partial Q_{ia} \partial Q_{id}} \mathrm{softmax}_j(\hat S_{ij}) = \frac{\partial^2}{\partial Q_{ia} \partial Q_{id}} \frac{M_{ij} e^{S_{ij}}}{\sum_{l} M_{il} e^{S_{il}}}",  # noqa: E501
    # along the tangents
    r"\frac{\mathrm{d} S_{ij}}{\mathrm{d} t} = \sum_a (\dot{Q}_{ia} K_{ja} + Q_{ia} \dot{K}_{ja})",
    r"\frac{\mathrm{d}^2 S_{ij}}{\mathrm{d} t^2} = 2 \sum_a \dot{Q}_{ia} \dot{K}_{ja}",
    r"\frac{\mathrm{d}}{\mathrm{d} t} \frac{\partial L}{\partial Q_{ia}} = \sum_j G_i s_j \dot{K}_{ja}",
    r"\frac{\partial}{\partial K_{ja}} \frac{\mathrm{d} L}{\mathrm{d} t} = \frac{\mathrm{d} \bar{K}_{ja}}{\mathrm{d} t}",  # noqa: E501
    r"\frac{\partial}{\partial \dot{Q}_{ia}} \frac{\mathrm{d} L}{\mathrm{d} t} = \frac{\partial L}{\partial Q_{ia}}",
    r"\frac{\mathrm{d}}{\mathrm{d} t} (X W^{Q(h)})_{ia} = \sum_c X_{ic} \dot{W}^{Q(h)}_{ca}",
    r"\frac{\mathrm{d}}{\mathrm{d} t} x_i = 0, \quad \frac{\mathrm{d} u}{\mathrm{d} t} = \dot{u}",
    r"\frac{\mathrm{d} A_{ij}}{\mathrm{d} t} = \sum_{k,a} \frac{\partial A_{ij}}{\partial Q_{ka}} \dot{Q}_{ka} + \sum_{l,a} \frac{\partial A_{ij}}{\partial K_{la}} \dot{K}_{la}",  # noqa: E501
]
FALSE = [
    r"\frac{\partial^2 L}{\partial Q_{ia} \partial K_{jd}} = \delta_{ad} G_i x_i s_j",
    r"\frac{\partial^2}{\partial x \partial x} (x^\top B x) = 2 B",
    r"\frac{\partial^2}{\partial u^2} u^3 = 6 u (1 + 10^{-11})",
    r"\frac{\partial^2}{\partial u^2} u^3 = 3 u^2",
    r"\frac{\partial^2 A_{ij}}{\partial S_{ij}^2} = \left( \frac{\partial A_{ij}}{\partial S_{ij}} \right)^2",
    r"\frac{\mathrm{d} S_{ij}}{\mathrm{d} t} = \sum_a \dot{Q}_{ia} K_{ja}",
    r"\frac{\mathrm{d}^2 S_{ij}}{\mathrm{d} t^2} = \sum_a \dot{Q}_{ia} \dot{K}_{ja}",
    r"\frac{\mathrm{d} u}{\mathrm{d} t} = 0",
]
WRONG = [
    (r"\frac{\partial^3 L}{\partial Q_{ia}^3} = u", "syntax", "first or of the second order"),
    (r"\frac{\partial^2 L}{\partial Q_{ia}} = u", "syntax", "of order 2: two symbols are needed"),
    (r"\frac{\partial L}{\partial Q_{ia} \partial K_{ja}} = u", "syntax", "of order 1: one symbol is needed"),
    (r"\frac{\partial^2 L}{\partial Q_{ia}^3} = u", "syntax", "only by a symbol"),
    (r"\frac{\partial^2 L}{\partial Q_{ia} \partial (Q K^\top)} = S", "syntax", "only by a symbol"),
    (r"\frac{\partial^2 L}{\partial \partial Q_{ia}} = u", "syntax", "missing"),
    (r"\frac{\partial}{\partial Q_{ia}} \frac{\partial \bar{K}_{ja}}{\partial Q_{ka}} = 0", "name", "third derivative"),
    (r"\frac{\partial^2 Q_{ia}}{\partial S_{ij} \partial K_{jd}} = 0", "name", "upside down"),
    (r"\frac{\mathrm{d} u}{\mathrm{d} x} = u", "syntax", r"write \frac{\mathrm{d}}{\mathrm{d} t}"),
    (r"\frac{\mathrm{d}^2 u}{\mathrm{d} t} = u", "syntax", r"write \frac{\mathrm{d}}{\mathrm{d} t}"),
]


@each("equation", TRUE)
def test_what_is_true_of_second_derivatives_holds_to_rounding(equation: str) -> None:
    record = judge(equation)
    assert record.verdict == "holds", record.message
    assert record.error is not None
    assert record.error < 2e-14


@each("equation", FALSE)
def test_what_is_false_of_them_fails(equation: str) -> None:
    record = judge(equation)
    assert (record.verdict, record.kind) == ("fails", "claim"), record.message


@each(("equation", "kind", "part"), WRONG)
def test_what_cannot_be_read_has_its_sentence(equation: str, kind: str, part: str) -> None:
    record = judge(equation)
    assert (record.verdict, record.kind) == ("fails", kind), record.message
    assert part in record.message


def test_nothing_moves_with_t_where_no_tangent_is_declared() -> None:
    found = page(DEFINITIONS + r"$$ \frac{\mathrm{d} u}{\mathrm{d} t} = 0 \tag{t.3} $$" + "\n")
    assert "nothing moves" in PageCheck(found).run()[2].message


@each("compute", [np.arctan, np.cumprod, np.add.reduce])
def test_a_function_that_has_no_rule_is_refused_and_not_computed_without_its_slope(compute: Any) -> None:
    dual = Dual(np.ones(3), np.ones(3))
    with pytest.raises(TypeError):
        compute(dual)  # type: ignore[operator]
