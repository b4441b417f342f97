"""What holds is found to hold, and what does not is not."""

from __future__ import annotations

import pytest

from .mutants import mutants
from .pages import DEFINITIONS, judge, page

TRUE = [
    r"[i = 1 \text{ or } j = 1] = \max([i = 1], [j = 1])",
    r"[i = 1 \text{or} j = 1] = [i = 1 \lor j = 1]",
    r"[i = 1 \text{ and } j = 1] = [i = 1] [j = 1]",
    r"[i = 1 \land j = 1] = [i = 1 \text{and} j = 1]",
    r"\begin{aligned} x_i + y_i &= y_i + x_i \\[4pt] u t &= t u \\[0.5em] &= 2 u t / 2 \end{aligned}",
    r"\mathrm{e}^{x_i} = \exp(x_i) = e^{x_i}",
    r"\frac{{\partial L}}{{\partial s_j}} = \frac{\partial{L}}{\partial{s}_j} = \frac{ \partial L }{ \partial {s_j} }",
    r"{S}_{{i}{j}} = S_{i j} = {S_{ij}} = S_{{ij}} = S_{i,j}",
    r"{S_{ij}} = \sum_a Q_{ia} K_{ja}",
    r"\max\{u, -u\} = \left| u \right| = \max \left\{ u, -u \right\}",
    r"S_{ij} = S_{ij} \quad \forall i, j",
    r"(B y)^\top x = y^{\mathsf T} B^{\mathsf{T}} x = y^{\intercal} B^\intercal x",
    r"\mathrm{einsum}\left( \texttt{ij->j}, S \right) = S^\top \mathbf{1}",
    r"\mathrm{einsum}\bigl( \texttt{ij,j->i}, \left( S \right), s \bigr) = O",
    r"(X W)_i^\top = X_i^\top W",
    r"(X W)_{ia} = \sum_c X_{ic} W_{ca}",
    r"(X W)_{ia}^2 = ((X W)_{ia})^2",
    r"\sum_j s_j (x_i - y_i) = (x_i-y_i)\sum_j s_j",
    r"\sum_j s_j x_i + u = u + x_i \sum_j s_j",
    r"-\sum_j s_j x_i = x_i \cdot (-\sum_j s_j)",
    r"\frac12 x = 0.5 x",
    r"\exp(x_i)\exp(y_i) = e^{x_i+y_i}",
    r"\log\sum_j e^{s_j} = \mathrm{logsumexp}_j(s_j) = \mathrm{logsumexp}(s)",
    r"\tanh'(x_i) = 1-\tanh^2 x_i",
    r"x_i^2 = x^2_i = (x_i)^2 = x_i x_i",
    r"x^\top y = \sum_i x_i y_i = \mathrm{tr}(x y^\top)",
    r"\lVert x\rVert^2 = x^\top x",
    r"|x_i|^2 = x_i^2",
    r"\max(u, 0) + \min(u,0) = u",
    r"\max_j s_j = -\min_j(-s_j)",
    r"Q^\top Q = \sum_i Q_i Q_i^\top",
    r"(Q K^\top)_{ij} = S_{ij}",
    r"S = Q K^\top",
    r"\mathrm{softmax}(S)_{ij} = \mathrm{softmax}_j(S_{ij})",
    r"\mathrm{softmax}(S)\mathbf{1} = \mathbf{1}_n",
    r"\mathrm{diag}(x) y = x \odot y",
    r"\mathrm{diag}(\mathbf{1}_n) = I_n",
    r"P^\top P = I",
    r"(I + B) x = x + B x",
    r"B^{-1} B = I",
    r"\frac{\partial L}{\partial s_j} = \sum_i G_i S_{ij}",
    r"\frac{\partial O}{\partial s} = S",
    r"\frac{\partial L}{\partial Q} = G s^\top K",
    r"\frac{\partial O_i}{\partial Q_{ka}} = \delta_{ik}\sum_j K_{ja}s_j",
    r"\frac{\partial}{\partial x_i} \sum_k x_k^3 = 3x_i^2",
    r"\frac{\partial}{\partial x} (x^\top B x) = (B+B^\top)x",
    r"\frac{\partial (x^\top B x)}{\partial x_i} = \sum_k (B_{ik}+B_{ki})x_k",
    r"\sum_{j=1}^{m} s_j = \mathbf{1}^\top s",
    r"\sum_{j=2}^{m} (s_j - s_{j-1}) = s_{m} - s_{1}",
    r"\sum_{j \ne l} s_j = \sum_j s_j - s_l",
    r"\sum_{j} [j \le i] s_j = \sum_{j\le i} s_j",
    r"\begin{cases} s_j & \text{if } j \le i \\ 0 & \text{otherwise} \end{cases} = [j \le i] s_j",
    r"\prod_j e^{s_j} = e^{\sum_j s_j}",
    r"u^0 = 1",
    r"t^{1/2} = \sqrt{t} = \sqrt[2]{t}",
    r"\mathrm{tr}(B) = \sum_i B_{ii}",
    r"\left\lVert Q \right\rVert_F^2 = \sum_{i,a} Q_{ia}^2",
    r"M_{ij}^2 = M_{ij}",
    r"\frac{x_i}{t} = x_i / t",
    r"\cosh^2 u - \sinh^2 u = 1",
    r"\cos^2 u + \sin^2 u = 1",
    r"\sum_j p_j = 1",
    r"\sum_j \frac{\partial}{\partial s_j} \log \sum_l e^{s_l} = 1",
    r"\frac{\partial L}{\partial O} = G",
    r"\mathrm{einsum}(\texttt{ia,ja->ij}, Q, K) = S",
    r"\mathrm{einsum}(\texttt{hca,ic->iha}, W^Q, X)_{iha} = \sum_c W^{Q(h)}_{ca} X_{ic}",
    r"\frac{\partial x_i}{\partial x_k} = \delta_{ik}",
    r"e^{-\infty} = 0",
    r"\max_{j} (s_j + u) = u + \max_j s_j",
    r"x \oslash y = \mathrm{diag}(y)^{-1} x",
    r"\begin{aligned} x_i + y_i &= y_i + x_i \\ &= (x+y)_i \end{aligned}",
    r"x_i \le |x_i|, \quad u \le |u|",
    r"M_{ij} S_{ij} = 0 \quad \text{if } M_{ij} = 0",
    r"\frac{\partial S_{ij}}{\partial Q_{ka}} = 0 \quad \text{for } k \ne i",
    r"B^2 = B B",
    r"B^{\odot 2}_{ik} = B_{ik}^2",
    r"\sum_{i,k} B_{ik} = \mathbf{1}^\top B \mathbf{1}",
    r"0.5 + 0.25 \approx 0.8",
    r"\pi \approx 3.14",
    r"e^{1} \approx 2.718",
    r"\mathrm{softmax}(8,2,1) \approx (0.9966, 0.0025, 0.0009)",
    r"\frac{1}{x_i^2} = x_i^{-2}",
    r"n m = \sum_{i,j} 1",
    r"(i + 1) \bmod 2 = 1 - (i \bmod 2)",
    r"\sum_h (X W^{Q(h)})_{ia} = \sum_{h,c} X_{ic} W^{Q(h)}_{ca}",
    r"\mathrm{concat}_g(X W^{Q(g)})_{i,(h-1) d_k+a} = (X W^{Q(h)})_{ia}",
    r"R^\top R = I_n",
    r"R R^\top = I",
    r"P \mathbf{1} = \mathbf{1}_n",
    r"\lVert R x \rVert = \lVert x \rVert",
    r"f_i = x_i = x_i, f_i = x_i",
    r"\frac{\partial L}{\partial S} = G s^\top",
    r"\frac{\partial L}{\partial K} = s G^\top Q",
    r"\frac{\partial L}{\partial K_{ja}} = s_j \sum_i G_i Q_{ia}",
    r"\frac{\partial L}{\partial x_i} = 0",
    r"\frac{\partial}{\partial u} \tanh(u) = 1 - \tanh^2(u) = \tanh'(u)",
    r"\frac{\partial}{\partial t} \log t = \frac{1}{t}",
    r"\frac{\partial}{\partial t} \sqrt{t} = \frac{1}{2\sqrt{t}}",
    r"\frac{\partial}{\partial t} t^{t} = t^t (\log t + 1)",
    r"\frac{\partial}{\partial u} u^3 = 3 u^2",
    r"\frac{\partial}{\partial u} |u| = u / |u|",
    r"\frac{\partial}{\partial u} \mathrm{sigmoid}(u) = \mathrm{sigmoid}(u) (1 - \mathrm{sigmoid}(u))",
    r"\frac{\partial}{\partial s_j} \max_l s_l = [s_j = \max_l s_l]",
    r"\frac{\partial}{\partial s_j} \mathrm{softmax}_l(s_l) = \mathrm{softmax}_l(s_l) (\delta_{jl} - \mathrm{softmax}_j(s_j))",  # noqa: E501
    r"\frac{\partial}{\partial B} \mathrm{tr}(B) = I_n",
    r"\frac{\partial}{\partial x} \lVert x \rVert = \frac{1}{\lVert x \rVert} x",
    r"\frac{\partial (B x)}{\partial x} = B",
    r"\frac{\partial}{\partial s_j} \prod_l s_l = \prod_{l \ne j} s_l",
    r"\frac{\partial (B^{-1})_{ik}}{\partial B_{ik}} = -(B^{-1})_{ii} (B^{-1})_{kk}",
    r"\sum_{1 \le j \le 2} s_j = s_1 + s_2",
    r"\sum_{j=1}^{2} s_j = s_1 + s_2",
    r"\sum_{j < l} s_j = \sum_{j \le l} s_j - s_l",
    r"\sum_{i,k,\, i \ne k} B_{ik} = \sum_{i,k} B_{ik} - \mathrm{tr}(B)",
    r"B_{11} = B_{1,1}",
    r"Q_{i:} = Q_i",
    r"\frac{Q_i^\top K_j}{1} = S_{ij}",
    r"\exp \frac{u}{2} = e^{u/2}",
    r"\exp u \exp t = e^{u + t}",
    r"-u^2 = -(u^2)",
    r"2^{-1} = 0.5",
    r"e^{u}e^{-u} = 1",
    r"\dfrac{u}{t} = \tfrac{1}{t} u",
    r"\left[ u + t \right] u = u^2 + t u",
    r"\bigl( u + t \bigr) u = u^2 + t u",
    r"\left| u \right| \left| t \right| = |u t|",
    r"u \times t = u t",
    r"\operatorname{softmax}(s) = \mathrm{softmax}(s)",
    r"\mathrm{diag}(B)_i = B_{ii}",
    r"\mathrm{diag}(s) - s s^\top = \mathrm{diag}(s) (I - \mathbf{1} s^\top)",
    r"B + \mathbf{0} = B",
    r"0 = x - x",
    r"S \mathbf{1}_m = S \mathbf{1}",
    r"\sum_j S_{:j} = S \mathbf{1}",
    r"x_{i'} = (x)_{i'}",
    r"\sum_{i'} \delta_{i i'} x_{i'} = x_i",
    r"\begin{aligned} x_i &= x_i + u \\ &\quad - u \end{aligned}",
    r"x_i = x_i \quad \text{for all } i",
    r"\max(x_i, y_i) \ge x_i",
    r"u \ne u + 1",
    r"x_i < x_i + 1",
    r"\sum_{j} M_{ij} \ge 1",
    r"\log t + \ln t = 2\log t",
    r"\begin{cases} u & \text{if } u > 0 \\ -u & \text{otherwise} \end{cases} = |u|",
    r"\begin{cases} S_{ij} & M_{ij} = 1 \\ -\infty & M_{ij} = 0 \end{cases} = S_{ij} + \begin{cases} 0 & M_{ij} = 1 \\ -\infty & \text{otherwise} \end{cases}",  # noqa: E501
    r"1.2 \times 10^{-3} \approx 0.0012",
    r"1 / 3 \approx 0.333",
    r"10^9 \approx 1.0 \cdot 10^{9}",
    r"-e^{-7} \approx -9.1 \times 10^{-4}",
]

FALSE = [
    r"\sum_j s_j (x_i - y_i) = x_i \sum_j s_j - y_i",
    r"\frac12 x = 2 x",
    r"x^\top y = x^\top x",
    r"S_{ij} = -(Q K^\top)_{ij}",
    r"\mathrm{softmax}_j(S_{ij}) = \mathrm{softmax}_i(S_{ij})",
    r"P^\top P = P",
    r"P x = P^\top x",
    r"B x = B^\top x",
    r"\frac{\partial L}{\partial Q} = G s^\top K + Q",
    r"\frac{\partial O_i}{\partial s_j} = 2 S_{ij}",
    r"\frac{\partial (x^\top B x)}{\partial x_i} = 2 \sum_k B_{ik} x_k",
    r"\frac{\partial}{\partial x_i} \sum_k x_k^3 = 3x_i",
    r"\sum_{j \le i} s_j = \sum_{j < i} s_j",
    r"[j \le i] s_j = [i \le j] s_j",
    r"\prod_j s_j = \sum_j s_j",
    r"\sqrt{t} = t",
    r"\mathrm{tr}(B) = \sum_{i,k} B_{ik}",
    r"\lVert x\rVert = x^\top x",
    r"\max_j s_j = \min_j s_j",
    r"\cos u = \sin u",
    r"\cosh u = \sinh u",
    r"\log t = \exp t",
    r"\tanh u = \tanh' u",
    r"\delta_{ik} = 1",
    r"M_{ij} = 1",
    r"\sum_j s_j = 1",
    r"|u| = -|u|",
    r"B^{-1} = B^\top",
    r"B^2 = B^{\odot 2}",
    r"x_i \le y_i",
    r"u > 0 \quad \text{if } 1 = 1",
    r"x_i \ne x_i",
    r"x_i < x_i",
    r"\pi \approx 3.15",
    r"\mathrm{softmax}(8,2,1) \approx (0.87, 0.09, 0.04)",
    r"\sum_{j=1}^{2} s_j = s_1 + s_2 + s_1",
    r"\mathrm{einsum}(\texttt{ia,ja->ij}, Q, K) = 2 S",
    r"x_i + 10^{20} - 10^{20} = y_i",
    r"10^{-20} u + 1 - 1 = 10^{-20} t",
    r"10^{-15} u = 10^{-15} t",
    r"10^{-200} u = 10^{-200} t",
    r"u + 10^{-9} = u",
    r"u (1 + 10^{-11}) = u",
    r"\frac{\partial}{\partial u} \mathrm{sigmoid}(u) = \mathrm{sigmoid}(u)",
    r"\frac{\partial}{\partial s_j} \max_l s_l = 1",
    r"\mathrm{concat}_g(X W^{Q(g)})_{i,(h-1) d_k+a} = 2 (X W^{Q(h)})_{ia}",
    r"W^{Q(1)}_{ca} = W_{ca}",
    r"\frac{\partial L}{\partial x_i} = 10^{-9}",
    r"\infty = -\infty",
    r"u = \infty",
    r"n = m",
    r"D = n",
]


@pytest.mark.parametrize("equation", TRUE)
def test_a_true_equation_holds(equation: str) -> None:
    record = judge(equation)
    assert record.verdict == "holds", record.message


@pytest.mark.parametrize("equation", FALSE)
def test_a_false_equation_is_evaluated_and_fails(equation: str) -> None:
    record = judge(equation)
    assert (record.verdict, record.kind) == ("fails", "claim"), record.message
    assert "t.md:" in record.message
    assert "^" in record.message


@pytest.mark.parametrize("equation", FALSE)
def test_a_false_equation_that_is_marked_is_refuted(equation: str) -> None:
    if equation not in SOMETIMES:
        assert judge(equation, "*Refuted:* as it should be.").verdict == "refuted"


SOMETIMES = [r"u > 0 \quad \text{if } 1 = 1", r"\frac{\partial}{\partial s_j} \max_l s_l = 1"]


@pytest.mark.parametrize("equation", TRUE)
def test_a_true_equation_that_is_marked_refuted_fails(equation: str) -> None:
    if "f_i = " not in equation:
        record = judge(equation, "*Refuted:* wrongly.")
        assert record.verdict == "fails"
        assert "marked as refuted, but it holds" in record.message


RARELY = [
    r"u^2 \le 30",
    r"|u| < 4",
    r"\min_j s_j > -5",
    r"x^\top x \ge 10^{-1}",
]


@pytest.mark.parametrize("equation", RARELY)
def test_a_bound_that_only_some_numbers_keep_does_not_hold(equation: str) -> None:
    record = judge(equation)
    assert record.verdict == "fails"
    assert record.kind == "claim"


@pytest.mark.parametrize(
    ("equation", "kind", "mutant"),
    [
        (r"u = [i = 1 \text{ or } j = 1]", "and for or", r"u = [i = 1 \land  j = 1]"),
        (r"u = [i = 1 \land j = 1]", "and for or", r"u = [i = 1 \lor  j = 1]"),
        (r"u = \max_j s_j", "max for min", r"u = \min_j s_j"),
        (r"u \le \max_j s_j", "replace index", r"u \le \max_j s_ l "),
    ],
)
def test_mutants_of_conditions_and_extremes(equation: str, kind: str, mutant: str) -> None:
    names = page(DEFINITIONS).header.names()
    assert (kind, mutant) in list(mutants(equation, names))
