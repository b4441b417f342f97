"""Whatever is wrong with an equation is said in one sentence, with the place under a caret."""

from helpers import each

from .pages import LINE, judge

# equation, family of the problem, words of the message, what the carets stand under (None: not looked at)
WRONG = [
    (r"\frac{\partial S}{\partial O} = 0", "name", "upside down: O depends on S", r"\frac"),
    (r"\left( \frac{\partial s}{\partial L} \right)^\top \mathbf{1} = 0", "name", "upside down", r"\frac"),
    (r"u = u \qquad t = t", "syntax", "is a comma missing", None),
    (r"S \ge Q K^\top", "claim", "both sides are always equal: claim =", r"\ge"),
    (r"0 \le u - u", "claim", "both sides are always equal: claim =", r"\le"),
    (r"(X W)^\top_i = u", "syntax", "which comes first", "_i"),
    (r"(X W)_i_a = u", "syntax", "a second subscript", "_a"),
    (r"(X W)_i^2 = u", "shape", "this power of a column", None),
    (r"u = \max_{j \le j} s_j", "shape", "compared with itself", "j"),
    (
        r"w_{ij} = \sum_a Q_{ia} K_{ja}",
        "name",
        "used nowhere: a definition that nothing holds to account, or a slip for S?",
        "w",
    ),
    (r"w_5 = u", "name", "w_{5} is defined here and used nowhere", "w_5"),
    (r"\lambda = S s = O", "name", "or a slip for O?", r"\lambda"),
    (r"w = S = w", "name", "the symbol w is not known here", None),
    (r"w = Q K^\top, q = w + S", "name", "q is defined here and used nowhere", "q"),
    (r"\partial L / \partial u = u", "syntax", r"write \frac{\partial X}", r"\partial"),
    (r"\sum_j s_j + s_j = u", "shape", "bound here, but free", "j"),
    (r"\sum_j \sum_j s_j = u", "shape", "bound twice", "j"),
    (r"\sum_{j,j} s_j = u", "shape", "bound twice", None),
    (r"s_j \sum_j s_j = u s_j", "shape", "bound here, but free", "j"),
    (r"\max_j s_j = s_j", "shape", "bound here, but free", "j"),
    (r"S_{ji} = Z_{ij}", "shape", "index j runs over m, but this axis over n", "j"),
    (r"S_{ij} = x_i", "shape", "index j is free on the left but not on the right", "="),
    (r"x_i = S_{ij}", "shape", "index j is free on the right but not on the left", "="),
    (r"S_{ijl} = u", "shape", "3 indices at something with 2 axes", "S_{ijl}"),
    (r"u_i = x_i", "shape", "a number takes no index", "u_i"),
    (r"Q K = S", "shape", "no matrix product", "Q K"),
    (r"Q + K = Q", "shape", "cannot add", "Q + K"),
    (r"x + u = x", "shape", "cannot add a column of n and a number", "x + u"),
    (r"S_{ij} + S = S", "shape", "cannot add", None),
    (r"x y = u", "shape", "no matrix product of a column of n and a column of n", "x y"),
    (r"x_i^\top y_i = u", "shape", "nothing to transpose", None),
    (r"u^\top = u", "shape", "nothing to transpose", None),
    (r"Q = K", "shape", "cannot compare", "="),
    (r"Q = u", "shape", "cannot compare", "="),
    (r"B \odot B B = B", "shape", "which comes first", None),
    (r"B \odot u = B", "shape", "no elementwise product", None),
    (r"\frac{x}{y} = 1", "shape", "cannot divide by a column", "y"),
    (r"x^2 = x", "shape", "this power of a column", None),
    (r"e^{x_i} = e^{S}", "shape", "cannot compare", None),
    (r"u^{x} = u", "shape", "an exponent is a number", "x"),
    (r"|x| = u", "shape", "lVert", None),
    (r"\mathrm{tr}(S) = u", "shape", "no trace", None),
    (r"\det(S) = u", "shape", "no det", None),
    (r"\frac{\partial}{\partial x_i} \det(x x^\top - x x^\top) = 0", "domain", "a determinant that is zero", None),
    (r"B^{-1}_{ik} = B_{ki}", "syntax", "which comes first? Write (X^{-1})_{ij} or X_{ij}^{-1}", "B^{-1}_{ik}"),
    (r"\nabla_x L = x", "syntax", r"write \frac{\partial X}{\partial Y}", r"\nabla"),
    (
        r"\frac{\partial^2 L}{\partial s \partial s^\top} = s s^\top",
        "syntax",
        "only by a symbol can be differentiated: leave out the transposition",
        r"s^\top",
    ),
    (r"\mathrm{diag}(S) = S", "shape", "diag of", None),
    (r"\mathrm{softmax}(u) = u", "shape", "over which index", None),
    (r"\mathrm{softmax}_j(x_i) = x_i", "shape", "does not occur", "j"),
    (r"\max_j x_i = x_i", "shape", "does not occur", "j"),
    (r"\delta_{ij} = 1", "shape", "i runs over n, but j over m", None),
    (r"\sum_{j=1}^{n} s_j = u", "shape", "index j runs over m, not over n", "n"),
    (r"\mathrm{einsum}(\texttt{ia,ia->ia}, Q, K) = Q", "shape", "i runs over n and over m", "K"),
    (r"\mathrm{einsum}(\texttt{ia->i}, Q, K) = x", "shape", "1 index lists for 2 operands", None),
    (r"I = \mathbf{1}", "shape", "not known here", None),
    (r"\mathbf{1}^\top \mathbf{1} = n", "shape", "not known here", None),
    (r"(x_i)_i = x_i", "shape", "cannot put indices on", None),
    (r"Q_{i,u} = x_i", "shape", "must be a whole number", "u"),
    (r"n_i = x_i", "shape", "takes no index", None),
    (r"w_{ii} = x_i", "shape", "same index twice on the left", None),
    (r"w_{i} = S_{ij}", "shape", "index j is free on the right", None),
    (r"w_{ij} = S_{i}", "shape", "index j is free on the left", None),
    (r"\begin{pmatrix} 1 & 2 \\ 3 \end{pmatrix} = B", "shape", "different lengths", None),
    (r"x_i = x_i \quad \text{if } j = 1", "shape", "is not free in the equation", None),
    (r"q + u = u", "name", "the symbol q is not known", "q"),
    (r"x_i = q_i", "name", "the symbol q_{i} is not known", "q_i"),
    (r"\frac{\partial L}{\partial q} = u", "name", "the symbol q is not known", "q"),
    (r"\mathrm{foo}(u) = u", "name", "foo", None),
    (r"\sum_q s_j = u", "name", "q", "q"),
    (r"q^2 = u", "name", "not known", None),
    (r"q \le u", "name", "not known", None),
    (r"\exp x y_i = u", "syntax", "Put it in brackets", "y_i"),
    (r"\log x_i \cdot y_i = u", "syntax", "Put it in brackets", "y_i"),
    (r"x_i / u y_i = x_i", "syntax", "what does the slash divide by", "y_i"),
    (r"u / 2 / 3 = u", "syntax", "what does the slash divide by", "3"),
    (r"u \cdot - 2 = u", "syntax", "cannot stand here", "-"),
    (r"(u + t = u", "syntax", "never closed", None),
    (r"u + t) = u", "syntax", "cannot stand here", ")"),
    (r"(u + t] = u", "syntax", "this bracket cannot stand here", "]"),
    (r"\lvert u \rVert = u", "syntax", "this bar cannot stand here", r"\rVert"),
    (r"\exp(i = k) = u", "syntax", "a condition cannot stand here", "i = k"),
    (r"[i = k \land u] = u", "syntax", "a condition such as", "u"),
    (r"u = e^{u}_i", "name", "e_{i} is not known", None),
    (r"u + = u", "syntax", "stops too early", None),
    (r"u =", "syntax", "empty side", None),
    (r"= u", "syntax", "empty side", None),
    (r"u = = u", "syntax", "empty side", None),
    (r"u", "syntax", "no relation here", "u"),
    (r"", "syntax", "empty", None),
    (r"{u = u", "syntax", "never closed", "{"),
    (r"u} = u", "syntax", "closes nothing", "}"),
    (r"\frac{u} = u", "syntax", "missing", None),
    (r"\frac{u}", "syntax", "no relation", None),
    (r"\sqrt = u", "syntax", "", None),
    (r"u^2^3 = u", "syntax", "second superscript", None),
    (r"x_i_j = u", "syntax", "second subscript", None),
    (r"^2 = u", "syntax", "nothing in front", "^"),
    (r"u ^ = u", "syntax", "", None),
    (r"\left. u \right| = u", "syntax", "only brackets and bars", "."),
    (r"u \approx t", "syntax", "printed numbers", r"\approx"),
    (r"u % t = u", "syntax", "'%' is not part of the grammar", "%"),
    (r"u \foo = u", "syntax", r"'\\foo' is not part", r"\foo"),
    (r"u * t = u t", "syntax", "not part of the grammar", "*"),
    (r"\sum s_j = u", "syntax", "over which index", r"\sum"),
    (r"\sum^m_{} s_j = u", "syntax", "empty script", None),
    (r"\sum_{j}^{m} s_j = u", "syntax", "upper limit needs a lower one", None),
    (r"\tanh^{-1}(u) = u", "syntax", "inverse function or a reciprocal", None),
    (r"\exp'(u) = u", "syntax", "with a prime", "'"),
    (r"\exp_i(u) = u", "syntax", "takes no subscript", None),
    (r"\frac{\partial L}{Q_{ia}} = u", "syntax", r"\partial is missing below", None),
    (r"\frac{\partial L}{\partial (Q K^\top)} = S", "syntax", "only by a symbol", None),
    (r"\partial L = u", "syntax", "not part of the grammar", None),
    (r"\begin{foo} u \end{foo} = u", "syntax", "not an environment", None),
    (r"\begin{cases} u \end{cases} = u", "syntax", "each case needs", None),
    (r"\begin{aligned} u &= u \end{aligned} = u", "syntax", "must be the whole equation", None),
    (r"u = u \\ u = u", "syntax", "needs an aligned block", r"\\"),
    (r"\begin{pmatrix} 1 \end{bmatrix} = 1", "syntax", "does not fit its", None),
    (r"\begin{pmatrix} 1 = 1", "syntax", "", None),
    (r"u = u, \text{ if } j = 1, \text{ if } j = 1", "name", "", None),
    (r"u < u < [u < u = u] , t", "syntax", "no relation here", "t"),
    (r"[i \le j \land i = j \lor i = j] = 1", "syntax", "mixed", None),
    (r"x_{99} = u", "domain", "outside of 1 to n", "99"),
    (r"x_0 = u", "domain", "outside of 1 to n", "0"),
    (r"x_{i+1} = x_{i+1}", "domain", "not a number", None),
    (r"\sum_{j=1}^{m+1} s_j = u", "domain", "ends at m", None),
    (r"\log(-t) = u", "domain", "not a number", None),
    (r"\sqrt{-t} = \sqrt{-t}", "domain", "not a number", None),
    (r"(-t)^{1/2} = u", "domain", "not a number", None),
    (r"0/0 = u", "domain", "not a number", None),
    (r"\infty - \infty = 0", "domain", "not a number", None),
    (r"0 \cdot \infty = 0", "domain", "not a number", None),
    (r"w = \log(-1)", "domain", "not a number", None),
    (r"e^{-1000} = 0", "domain", "underflows", None),
    (r"e^{-10^4 t} = 0", "domain", "underflows", None),
    (r"M_{ij} = M_{ij} \quad \text{if } i > 100", "domain", "holds nowhere", None),
    (r"(B - B)^{-1} = B", "domain", "no inverse", None),
    (r"B^{100} = B", "limit", "matrix power", None),
    (r"t^{10^5} = u", "limit", "exponent", None),
    (r"\frac{1}{0} = \frac{2}{0}", "domain", "this is infinite here", "="),
    (r"\infty = \infty + 1", "domain", "this is infinite here", "="),
    (r"\log(0 t) = 2 \log(0 u^2)", "domain", "this is infinite here", "="),
    (r"-\log(0 t) > u", "domain", "this is infinite here", ">"),
    (r"x_i = x_i \quad (i \ne k)", "syntax", "", None),
    (r"\sum_{\substack{j \\ j \ne l}} s_j = u", "syntax", "", None),
    (r"\partial L / \partial s = u", "syntax", r"write \frac", r"\partial"),
    (r"1/\sqrt{t} \cdot \sum_j s_j = u", "syntax", "what does the slash divide by", None),
    (r"\tag{t.9} u = u", "page", "two tags", None),
    (r"u = u + 1", "claim", "does not hold: relative error", "="),
    (r"s_j = -s_j", "claim", "; the left side is -1 times the right one", "="),
    (r"\frac{\partial u^2}{\partial u} = u", "claim", "; the left side is 2 times the right one", "="),
]


@each(("equation", "kind", "words", "place"), WRONG)
def test_each_mistake_has_its_sentence_and_caret(equation: str, kind: str, words: str, place: str | None) -> None:
    record = judge(equation)
    assert record.verdict == "fails"
    assert record.kind == kind, record.message
    assert words in record.message
    assert record.message.startswith(f"t.md:{LINE}: ")
    if place is not None:
        source, carets = record.message.splitlines()[-2:]
        start = carets.index("^")
        assert source[start : start + len(place)] == place


@each("equation", [row[0] for row in WRONG if row[1] == "shape"])
def test_what_is_not_well_formed_can_be_refuted_as_such(equation: str) -> None:
    if "w_" not in equation:
        assert judge(equation, "*Refuted, not well-formed:* the shapes clash.").verdict == "refuted"


@each("equation", [row[0] for row in WRONG if row[1] not in ("shape", "claim")])
def test_what_is_wrong_otherwise_is_never_refuted(equation: str) -> None:
    assert judge(equation, "*Refuted, not well-formed:* no.").verdict == "fails"
    assert judge(equation, "*Refuted:* no.").verdict == "fails"


@each("equation", ["S_{ij} = S_{ij}", "S_{ij} = 2 S_{ij}"])
def test_what_can_be_evaluated_is_not_malformed(equation: str) -> None:
    record = judge(equation, "*Refuted, not well-formed:* but it is well-formed.")
    assert record.verdict == "fails"
