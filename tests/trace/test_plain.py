"""LaTeX as plain text."""

from helpers import each

from attention_np.trace._plain import formula, prose

from .traced import OPS, SENTENCE


@each(
    ("latex", "text"),
    [
        (r"\frac{\partial L}{\partial S_{ij}} &= A_{ij} \left( G_{ij} - r_i \right)", "dL/dS_ij = A_ij (G_ij - r_i)"),
        (
            r"\frac{1}{\sqrt{d_k}} \sum_{i,j} \bar Q^{(h)}_{ia} W^{K(h)}_{ab}",
            "1/sqrt(d_k) sum_ij Q_bar(h)_ia W^K(h)_ab",
        ),
        (r"\frac{e^{S_{ij} - \mu_i}}{\sum_l e^{S_{il}}}", "(e^(S_ij - mu_i))/(sum_l e^S_il)"),
        (r"\mathrm{softmax}_j(K^\top) \odot \mathbf{1}_m", "softmax_j(K^T) * 1_m"),
        (r"\begin{aligned} a &= b \\ &= c, \qquad d \end{aligned}", "a = b\n= c\nd"),
        (r"K_{j,(h-1) d_k + a}", "K_{j, (h - 1) d_k + a}"),
        (r"\unreadable{%", r"\unreadable{%"),
    ],
)
def test_a_formula_in_plain_text(latex: str, text: str) -> None:
    assert formula(latex) == text


def test_a_paragraph_in_plain_text() -> None:
    text = "So it *is*: **twice** `x`, $\\partial L /\n\\partial X$, [its page](softmax.md), 2 * 3 * 4."
    assert prose(text) == "So it is: twice `x`, dL/dX, its page, 2 * 3 * 4."


def test_a_tag_is_not_broken_between_lines() -> None:
    lines = OPS["multi_head"](SENTENCE, is_causal=False).text(60).split("\n")
    assert not any(line.endswith("-") and not line.endswith(" -") for line in lines)
