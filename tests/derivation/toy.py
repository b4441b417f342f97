"""A page of a toy op, and what several files of tests do with pages."""

from pathlib import Path

from attention_np.derivation import read_page

PAGES = Path(__file__).parents[2] / "derivations"


TOY_HEADER = r"""---
op: toy
sizes: n m d_k d_v d
indices: {i: n, j: m, l: m, a: d_k, b: d_v}
tensors: {Q: [n, d_k], K: [m, d_k], V: [m, d_v], W^O: [d_v, d], M: [n, m, boolean], \tau: [positive]}
output: O
cotangent: G
code: {query: Q, key: K, value: V, parameters.w_output: W^O, scores: S, weights: A, output: O}
options: {mask: M, scale: \tau}
---
"""
TOY = r"""
$$ S = \tau Q K^\top \tag{toy.1} $$

$$ A_{ij} = \frac{M_{ij} e^{S_{ij}}}{\sum_l M_{il} e^{S_{il}}} \tag{toy.2} $$

$$ O = A V W^O \tag{toy.3} $$

$$ \frac{\partial L}{\partial W^O} = (A V)^\top G \tag{toy.4} $$

$$ \frac{\partial L}{\partial V} = A^\top G (W^O)^\top \tag{toy.5} $$
"""


def toy(text: str = TOY):  # type: ignore[no-untyped-def]
    return read_page("toy.md", TOY_HEADER + text)
