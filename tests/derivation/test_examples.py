"""Worked examples, and digits as they are printed."""

from helpers import each

from .pages import verdicts

EXAMPLE = r"""
$$ z_i = \sum_k B_{ik} x_k \tag{t.1} $$

## A worked example

$$ x = \begin{pmatrix} 1 \\ 2 \end{pmatrix}, \quad
B = \begin{pmatrix} 0 & 1 \\ 3 & 0.5 \end{pmatrix} \tag{t.2} $$

$$ z = \begin{pmatrix} 2 \\ 4 \end{pmatrix} \tag{t.3} $$

$$ z_1 = 2, \quad n = 2 \tag{t.4} $$

### Deeper

$$ \frac{\partial z_2}{\partial x_1} = 3 \tag{t.5} $$

## Afterwards

$$ z_1 = 2 \tag{t.6} $$
"""


def test_an_example_binds_values_until_its_section_ends() -> None:
    assert verdicts(EXAMPLE) == ["holds"] * 5 + ["fails"]


def test_outside_of_an_example_nothing_is_bound() -> None:
    assert verdicts(EXAMPLE.replace("A worked example", "Numbers"))[1:3] == ["fails", "fails"]


@each(
    ("old", "new", "position"),
    [
        ("2 \\\\ 4", "2 \\\\ 5", 2),
        ("1 \\\\ 2 \\end", "1 \\\\ 2 \\\\ 3 \\end", 1),
        ("z_1 = 2, \\quad n = 2", "z_1 = 2, \\quad n = 3", 1),
        ("z_1 = 2, \\quad n = 2", "x = \\begin{pmatrix} 5 \\\\ 5 \\end{pmatrix}", 1),
        ("0.5", "x", 1),
        ("0.5", "10^{400}", 1),
        ("x = \\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "x = 1", 1),
    ],
)
def test_an_example_that_contradicts_itself_fails(old: str, new: str, position: int) -> None:
    assert old in EXAMPLE
    assert "fails" in verdicts(EXAMPLE.replace(old, new, 1))[position:5]


PRINTED = [
    (r"\frac{1}{3}", "0.333", True),
    (r"\frac{1}{3}", "0.334", False),
    (r"\frac{1}{3}", "0.33333333333", True),
    (r"\frac{1}{3}", "0.3", True),
    (r"\frac{2}{3}", "0.66", False),
    (r"\frac{2}{3}", "0.67", True),
    (r"2.5", "2", True),
    (r"2.6", "2", False),
    (r"(0.501, 0.499)", "(0.50, 0.50)", True),
    (r"(0.9996, 0.0004)", "(1, 0.000)", True),
    (r"(0.996, 0.004)", "(1, 0.004)", False),
    (r"e^{-20}", r"2.06 \times 10^{-9}", True),
    (r"e^{-20}", r"2.07 \times 10^{-9}", False),
    (r"e^{-20}", r"2.06 \times 10^{-8}", False),
    (r"-\frac{1}{3}", "-0.333", True),
    (r"-\frac{1}{3}", "0.333", False),
    (r"e^{-1000}", "0.000", True),
]


@each(("left", "right", "holds"), PRINTED)
def test_printed_digits_are_held_to_half_a_unit(left: str, right: str, holds: bool) -> None:
    assert verdicts(f"$$ {left} \\approx {right} \\tag{{t.1}} $$") == ["holds" if holds else "fails"]
