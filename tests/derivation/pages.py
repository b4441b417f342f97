"""A page with one of everything, on which the tests put their equations."""

from attention_np.derivation import Page, PageCheck, Record, read_page

HEADER = """---
sizes: n m d_k d_v H D=H*d_k
indices: {i: n, k: n, j: m, l: m, a: d_k, b: d_v, h: H, g: H, c: D}
tensors: {Q: [n, d_k], K: [m, d_k], V: [m, d_v], x: [n], y: [n], s: [m], u: [], t: [positive], W: [D, d_k],
          W^Q: [H, D, d_k], M: [n, m, boolean], P: [n, n, permutation], B: [n, n], X: [n, D], p: [m,
          probability],
          R: [n, n, orthogonal], Z: [n, m]}
output: O
cotangent: G
---
"""
DEFINITIONS = r"""
$$ S_{ij} = \sum_a Q_{ia} K_{ja} \tag{t.1} $$

$$ O_i = \sum_j S_{ij} s_j \tag{t.2} $$
"""

LINE = (HEADER + DEFINITIONS).count("\n") + 2  # of the equation that a test judges


def page(body: str, header: str = HEADER, name: str = "t") -> Page:
    """A page of that text."""
    return read_page(name + ".md", header + body)


def judge(equation: str, after: str = "") -> Record:
    """The record of one equation behind the definitions."""
    found = page(DEFINITIONS + f"\n$$ {equation} \\tag{{t.3}} $$\n\n{after}\n")
    assert not found.problems, found.problems
    records = PageCheck(found).run()
    assert [record.verdict for record in records[:2]] == ["holds", "holds"]
    return records[2]


def judge_all(equations: list[str], after: str = "") -> list[Record]:
    """The records of all these equations, behind the definitions of one page."""
    behind = "".join(f"\n$$ {text} \\tag{{t.{k}}} $$\n\n{after}\n" for k, text in enumerate(equations, 3))
    found = page(DEFINITIONS + behind)
    assert not found.problems, found.problems
    return PageCheck(found).run()[2:]


def verdicts(body: str, header: str = HEADER) -> list[str]:
    """The verdicts of all equations of a page."""
    found = page(body, header)
    assert not found.problems, found.problems
    return [record.verdict for record in PageCheck(found).run()]
