"""A recurrence is worked out place after place, and its derivatives are those of all places behind."""

from helpers import each

from attention_np.derivation import PageCheck, Record

from .mutate import Mutator, Score
from .pages import page

HEADER = """---
sizes: n d
indices: {t j s: n, a c: d}
tensors: {x: [n, d], g: [n], z: [d]}
output: y
cotangent: G
---
"""
STATE = r"""
$$
h^{(t)}_a = \begin{cases} e^{g_t} z_a + x_{ta} & \text{if } t = 1 \\ e^{g_t} h^{(t-1)}_a + x_{ta} & \text{otherwise}
  \end{cases}
\tag{t.1}
$$

$$ y_{ta} = t h^{(t)}_a \tag{t.2} $$
"""
TRUE = [
    r"h^{(t)}_a = e^{\sum_{j \le t} g_j} z_a + \sum_{j \le t} e^{\sum_s [j < s \le t] g_s} x_{ja}",
    r"h^{(t)} = e^{g_t} h^{(t-1)} + x_t \quad \text{if } t \ne 1",
    r"\frac{\partial L}{\partial h^{(t)}_a} = t G_{ta} + e^{g_{t+1}} \frac{\partial L}{\partial h^{(t+1)}_a} \quad "
    r"\text{if } t < n",
    r"\frac{\partial h^{(t)}_a}{\partial h^{(j)}_c} = \delta_{ac} [j \le t] e^{\sum_s [j < s \le t] g_s}",
    r"\frac{\partial L}{\partial g_t} = \sum_a \frac{\partial L}{\partial h^{(t)}_a} (h^{(t)}_a - x_{ta})",
    r"\frac{\partial L}{\partial z_a} = e^{g_1} \frac{\partial L}{\partial h^{(1)}_a}",
]
FALSE = [
    (r"\frac{\partial L}{\partial h^{(t)}_a} = t G_{ta}", "claim", "this does not hold"),
    (r"\frac{\partial L}{\partial g_t} = \sum_a t G_{ta} (h^{(t)}_a - x_{ta})", "claim", "this does not hold"),
    (r"\frac{\partial h^{(t)}_a}{\partial y_{jc}} = 0", "name", "upside down"),
    (r"u_t = u_t + g_t", "domain", "not a number: a recurrence uses the places before, of its first index"),
    (r"u_{ta} = u_{t+1,a} + x_{ta}", "domain", "a recurrence uses the places before"),
    (
        r"u_{at} = \begin{cases} x_{ta} & \text{if } t = 1 \\ u_{a,t-1} & \text{otherwise} \end{cases}",
        "domain",
        "first",
    ),
    (r"u_t = \begin{cases} x_t & \text{if } t = 1 \\ u_{t-1} & \text{otherwise} \end{cases}", "shape", "cases"),
    (r"u_t = g_t, v_t = v_{t-1} + w_t", "name", "the symbol w"),
    (
        r"\frac{\partial}{\partial g_j} \frac{\partial L}{\partial z_a} = 0",
        "name",
        "a second derivative through a recurrence",
    ),
    (r"u_t = g_t = u_t", "name", "the symbol u"),
]


def judged(equation: str) -> Record:
    found = page(STATE + f"\n$$ {equation} \\tag{{t.3}} $$\n", HEADER)
    records = PageCheck(found).run()
    assert [record.verdict for record in records[:2]] == ["holds", "holds"], records
    return records[2]


@each("equation", TRUE)
def test_what_is_true_of_a_recurrence_and_its_derivatives_holds(equation: str) -> None:
    record = judged(equation)
    assert record.verdict == "holds", record.message


@each(("equation", "kind", "words"), FALSE)
def test_what_is_wrong_with_a_recurrence_is_said(equation: str, kind: str, words: str) -> None:
    record = judged(equation)
    assert (record.verdict, record.kind) == ("fails", kind), record.message
    assert words in record.message


def test_mutants_of_a_recurrence_and_its_gradients_are_caught() -> None:
    claims = "".join(f"\n$$ {equation} \\tag{{t.{k}}} $$\n" for k, equation in enumerate(TRUE, 3))
    score = Score()
    Mutator(page(STATE + claims, HEADER)).run(score)
    assert score.total > 150
    assert not score.survived


def test_a_recurrence_is_charged_for_every_place() -> None:
    body = r"""
$$ u_{tace} = \begin{cases} 1 & \text{if } t = 1 \\ u_{t-1,a,c,e} & \text{otherwise} \end{cases} \tag{t.1} $$

$$ y_{tace} = u_{tace} \tag{t.2} $$
"""
    header = "---\nsizes: n=64 d=36\nindices: {t: n, a c e: d}\noutput: y\n---\n"
    records = PageCheck(page(body, header)).run()
    assert records[0].kind == "limit"
    assert "too many steps" in records[0].message
