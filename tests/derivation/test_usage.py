"""What is defined on a page is used there."""

from helpers import each

from attention_np.derivation import PageCheck

from .pages import DEFINITIONS, HEADER, page

USED = r"""
$$ w_{ij} = S_{ij} \tag{t.3} $$
"""


@each(
    ("header", "after", "verdict"),
    [
        ("", "", "fails"),
        ("", r"$$ w_{ij} = S_{ij} \tag{t.4} $$", "holds"),
        ("", r"$$ w_{ij} = 2 S_{ij} \tag{t.4} $$" + "\n\n*Refuted:* twice.", "holds"),
        ("", r"$$ w_{ij} = 2 S_{ij} \tag{t.4} $$" + "\n\n*Not executed:* because.", "fails"),
        ("", r"$$ w_{ij} = \foo \tag{t.4} $$", "holds"),
        ("", r"$$ \frac{\partial w_{ij}}{\partial x_k} = 0 \tag{t.4} $$", "holds"),
        ("", "## An example" + "\n\n" + r"$$ u = 2 \tag{t.4} $$" + "\n\n" + r"$$ w = S \tag{t.5} $$", "holds"),
        ("options: {bias: w}\n", "", "holds"),
        ("code: {scores: w}\n", "", "holds"),
    ],
)
def test_what_is_defined_is_used(header: str, after: str, verdict: str) -> None:
    found = page(DEFINITIONS + USED + after, HEADER.replace("cotangent", header + "cotangent"))
    assert not found.problems
    assert PageCheck(found).run()[2].verdict == verdict


def test_what_an_example_defines_is_used_in_that_example() -> None:
    body = "## An example\n\n$$ u = 2 \\tag{t.1} $$\n\n$$ w = u \\tag{t.2} $$\n\n"
    use = "$$ w = u \\tag{t.3} $$\n"
    assert [record.verdict for record in PageCheck(page(body + use)).run()] == ["holds"] * 3
    records = PageCheck(page(body + "## Afterwards\n\n" + use)).run()
    assert [record.verdict for record in records] == ["holds", "fails", "fails"]
