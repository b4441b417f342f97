"""Pages from strangers: clear errors, quickly; no traceback, no hang, no wrong "holds"."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attention_np.cli import tables
from attention_np.derivation import PageCheck, read_page, verify
from attention_np.derivation.tokens import tokenize

from .fuzz import MEGABYTES, SECONDS
from .pages import DEFINITIONS, HEADER, judge, page

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]

HOSTILE = [
    "{" * 2000 + "u" + "}" * 1000 + " = u",
    "(" * 1500 + "u" + ")" * 1500 + " = u",
    "-" * 3000 + "u = u",
    r"\frac{1}{" * 300 + "u" + "}" * 300 + " = u",
    r"\sqrt" * 500 + "{u} = u",
    r"\exp" * 900 + " u = u",
    r"\log\sum_j" * 200 + " s_j = u",
    "[" * 1500 + "1" + "]" * 1500 + " = 1",
    r"\hat" * 900 + "x = u",
    r"\mathrm" * 500 + "{x} = u",
    "u^" * 1000 + "u = u",
    "x_" * 1000 + "i = u",
    r"\left(" * 500 + "u = u",
    "|" * 1500 + "u" + "|" * 1500 + " = u",
    r"\begin{cases} " * 200 + "u = u",
    r"\begin{aligned} " * 200 + r" u = u " + r"\end{aligned}" * 20,
    "9" * 3000 + " = u",
    "10^{10^{10^{10}}} = u",
    "(1 + t)^{9999} = u",
    r"B^{64} = B",
    r"\sum_{i} \sum_{k} \sum_{j} \sum_{l} \sum_{a} \sum_{b} \sum_{h} \sum_{g} \sum_{c} x_i x_k s_j s_l Q_{ia} V_{jb} W_{ca} [g=h] = u",  # noqa: E501
    r"(X X^\top)_{ik} Z_{ij} Z_{kl} V_{lb} K_{ja} W^{Q(h)}_{ca} \delta_{gh} = u",
    r"\mathrm{einsum}(\texttt{" + ",".join("ab" for _ in range(18)) + r"->a}, B) = x",
    r"\mathrm{einsum}(\texttt{ab,cd,ef,gh,ij,kl,mn->a}, B, B, B, B, B, B, B) = x",
    r"\mathrm{einsum}(\texttt{__import__}, B) = x",
    r"\prod_i " * 5 + "x_i = u",
    r"\operatorname{__class__}(u) = u",
    r"\mathrm{eval}(u) = u",
    r"\text{import os} = u",
    r"\mathbf{" + "1" * 3000 + "} = u",
    r"I_{99999} = I_{99999}",
    r"\mathbf{1}_{99999999} = u",
    r"x_{99999999999999999999} = u",
    r"x_{10^{300}} = u",
    r"x_{1/0} = u",
    r"x_{i^i} = u",
    r"\begin{pmatrix} " + "1 & " * 900 + r"1 \end{pmatrix} = u",
    r"\max(" + "u, " * 1200 + "u) = t",
    "u = " * 900 + "u + 1",
    r"\begin{aligned} " + r"u &= u \\ " * 300 + r"\end{aligned}",
    "\\",
    "\\\\",
    "$ = $",
    "\x00 = u",
    "\u0663 = 3",
    "u = \u202e u",
    "x_{\u00b2} = u",
    r"u = " + r"\left" * 1000 + "( u )",
    r"\frac{" + "{" * 35 + r"\partial u" + "}" * 35 + r"}{\partial u} = 2",
    "x_{" + "{" * 35 + "i" + "}" * 35 + "} = u",
    r"\forall \forall \forall",
    r"\{ \{ u \} = u",
    "é = u",
    "u = u \ud7ff",
    "&&&&",
    r"\end{cases} \begin{cases}",
    r"\tag{}",
    r"u \bmod 0 = u",
    r"B^\infty = B",
    r"B^{0/0} = B",
    r"u^\infty = 1",
    r"\mathbf{1}_{\infty} = u",
    r"x_\infty = u",
    r"1 \bmod 0 = 0",
    r"\sqrt[0]{u} = u",
    r"\frac{\partial}{\partial W} \frac{\partial}{\partial W} W = u",
    r"\frac{\partial \frac{\partial L}{\partial Q}}{\partial Q} = u",
]


@pytest.mark.parametrize("equation", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_equation_fails_quickly_with_a_message(equation: str) -> None:
    started = time.process_time()
    found = page(DEFINITIONS + f"\n$$ {equation} \\tag{{t.3}} $$\n")
    records = PageCheck(found).run()
    assert time.process_time() - started < 3.0
    assert all(record.kind != "internal" for record in records), records[-1].message
    if r"\begin{aligned} u &= u" in equation:
        assert records[2].verdict == "holds" or "characters" in records[2].message
    elif len(records) > 2:
        assert records[2].verdict == "fails"
        assert records[2].message


def test_many_equations_are_cut_off_with_a_problem() -> None:
    found = read_page("t.md", "".join(f"$$1 = 1 \\tag{{t.{k}}}$$\n\n" for k in range(1, 600)))
    assert len(found.equations) == 400
    assert "more than 400 equations" in found.problems[0]


@pytest.mark.parametrize(
    "text",
    [
        "`" * 300_000,
        "<!--" * 70_000,
        "#" * 300_000,
        "# " * 150_000,
        "$$" * 100_000,
        "*" * 300_000,
        "---\n" * 70_000,
        "```\n" * 70_000,
        "\n" * 300_000,
        "~" * 300_000,
        "x" * 5_000_000,
        "` " * 190_000,
        "# a\n" * 85_000 + "$$ 1 = 1 $$\n\n" * 390,
        "<!-- -->" * 48_000,
    ],
)
def test_a_hostile_text_is_read_in_linear_time(text: str) -> None:
    started = time.process_time()
    verify([read_page("t.md", HEADER + text)])
    assert time.process_time() - started < 5.0


FILES = {
    "binary": bytes(range(256)) * 4000,
    "UTF-16": "$$ u = u $$".encode("utf-16"),
    "surrogate": b"\xed\xa0\x80",
    "a megabyte": b"word " * 210_000,
    "zero bytes": b"\x00" * 1000 + b"$$ \x00 = \x00 \\tag{t.1} $$",
    "zero byte in the front matter": b"---\nsizes: n\x00\n---\n",
    "aliases": b"---\na: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n---\n",
    "nested": b"---\nsizes: " + b"[" * 3000 + b"\n---\n",
    "nested maps": b"---\nsizes: " + b"{a: " * 1500 + b"\n---\n",
    "object": b"---\nsizes: !!python/object/apply:os.system ['true']\n---\n",
    "huge size": b"---\nsizes: n=99999999999999999999999999\n---\n",
    "huge product": b"---\nsizes: n=64 m=n*n k=m*m\ntensors: {X: [m, m]}\n---\n$$ X = X \\tag{t.1} $$",
    "size of itself": b"---\nsizes: n=n*n\n---\n",
    "no date": b"---\nop: 2020-99-99\n---\n",
    "other digits": "---\nsizes: n=\u00b2\n---\n".encode(),
    "list of keys": b"---\n[1, 2]: 3\n---\n",
    "no lists": b"---\nsizes: 1.5\nindices: 7\ntensors: [1]\n---\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_a_problem_with_its_place(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t.md"
    path.write_bytes(FILES[name])
    started = time.process_time()
    report = verify([read_page(path)])
    assert time.process_time() - started < 3.0
    assert not report.ok
    assert all(problem.startswith(f"{path}:") for problem in report.problems)
    assert "\x00" not in str(report)


BIG = """---
sizes: n=64 m=64 p=n*m
indices: {i: p, j: p, k: p, l: n}
tensors: {x: [p], y: [p], z: [p], W: [p, n]}
---

"""
APART = """---
sizes: n=64 m=26 p=n*n q=n*m
indices: {i: p, j: q, k: n}
tensors: {x: [q], y: [p], z: [n]}
---

"""
SQUARE = "---\nsizes: n=64 m=26 p=n*m\nindices: {i: p, j: p}\ntensors: {x: [p], y: [p]}\n---\n\n"
NUMBERS = "---\nsizes: n\ntensors: {x: [], y: []}\n---\n\n"
SECOND = r"\frac{{\partial^2 z_{{\mathrm{{v99}}}}}}{{\partial z_{{\mathrm{{v{}}}}} \partial z_{{\mathrm{{v{}}}}}}}"
WAVES = r"\exp(\tanh(\sin(\cos(\exp(\tanh(\sin(\cos(("
CELLS = r" \\ ".join([" & ".join(20 * ["W_{il}"])] * 20)


def equations(*texts: str) -> str:
    return "".join(f"$$ {text} \\tag{{t.{k}}} $$\n\n" for k, text in enumerate(texts, 1))


def tensors(count: int, shape: str) -> str:
    return ", ".join(f'"T_{{{k}}}": {shape}' for k in range(count))


GREEDY = {
    "a maximum over everything": BIG + equations(r"u = \sum_{ijk} \max(x_i, y_j, z_k)"),
    "a condition on everything": BIG + equations(r"u = \sum_{ijk} [x_i > 0 \land y_j > 0 \land z_k > 0]"),
    "a remainder of everything": BIG + equations(r"u = \sum_{ijk} (i \bmod (j \bmod k))"),
    "a constant tensor": BIG + equations("T_{ijk} = 1"),
    "a matrix of large cells": BIG + equations(rf"u = \sum_{{il}} \begin{{pmatrix}} {CELLS} \end{{pmatrix}}_{{11}}"),
    "a derivative that is zero": APART + equations("Y_{ik} = y_i z_k", r"\frac{\partial Y_{ik}}{\partial x_j} = 0"),
    "an operator that gives zero": APART + equations(r"\frac{\partial}{\partial x_j} (y_i z_k) = 0"),
    "a size with zeros before it": "---\nsizes: n=000064999999999\n---\n\n" + equations(r"\mathbf{1}_n = \mathbf{1}_n"),
    "a length with zeros before it": NUMBERS
    + equations(r"u = \mathbf{1}_{000064999999999}^\top \mathbf{1}_{000064999999999}"),
    "many tensors": "---\nsizes: m=64\ntensors: {"
    + tensors(350, "[m, m, m]")
    + "}\n---\n\n"
    + equations(*(f"T_{{{k}}} = T_{{{k}}}" for k in range(350))),
    "many definitions": SQUARE + equations(*(rf"A_{{\mathrm{{v{k}}}}} = x y^\top" for k in range(1, 300))),
    "many diagonals": SQUARE
    + equations(*(rf"d_{{\mathrm{{v{k}}}}} = \mathrm{{diag}}(x y^\top)" for k in range(1, 300))),
    "many inverses": SQUARE + equations(r"B = x y^\top + I_p", "B^{-1}" * 300 + " = B"),
    "many sums that then fail": SQUARE
    + equations(*["0 = " + "+".join([r"\sum_{ij} \cos(x_i y_j)"] * 30) + " + x"] * 300),
    "many terms": NUMBERS + equations(*["x - x" + "+x-x" * 230 + " < 1"] * 380),
    "many conditions": NUMBERS + equations(*["[" + r"x=x\land " * 100 + "x=x] = 1"] * 380),
    "long definitions, and derivatives of them": NUMBERS
    + equations(
        r"z_{\mathrm{v1}} = x",
        *(rf"z_{{\mathrm{{v{k}}}}} = z_{{\mathrm{{v{k - 1}}}}}" + "+x-x" * 900 for k in range(2, 100)),
        "+".join(rf"\frac{{\partial z_{{\mathrm{{v99}}}}}}{{\partial z_{{\mathrm{{v{k}}}}}}}" for k in range(2, 60))
        + "= 58",
    ),
    "long definitions, and second derivatives of them": NUMBERS
    + equations(
        r"z_{\mathrm{v1}} = x",
        *(rf"z_{{\mathrm{{v{k}}}}} = z_{{\mathrm{{v{k - 1}}}}}" + "+x-x" * 900 for k in range(2, 100)),
        *("+".join(SECOND.format(k, j) for k in range(2, 40)) + "= 1" for j in range(3, 60)),
    ),
    "second derivatives of many functions": SQUARE.replace("n=64 m=26", "n=6 m=6")
    + equations(
        *(rf"\frac{{\partial^2}}{{\partial x \partial x}} \sum_i {WAVES}{k} x_i{9 * ')'} = 0" for k in range(120))
    ),
    "many examples": "---\nsizes: m=64\ntensors: {"
    + tensors(1, "[m, m, m]")
    + ", x: []}\n---\n\n"
    + "".join(f"# Example {k}\n\n$$ x = {k}, T_0 = T_0 \\tag{{t.{k}}} $$\n\n" for k in range(1, 190)),
    "an example that fails again and again": "---\nsizes: n\ntensors: {X: [n]}\n---\n\n# Example\n\n"
    + equations(*["n = 1000" + "+1" * 450] * 380),
}


@pytest.mark.parametrize("name", GREEDY)
def test_a_greedy_page_is_stopped_before_it_has_taken_much_time_or_memory(name: str) -> None:
    program = (
        "import resource, sys\n"
        "from benchmarks._peak import peak\n"
        f"resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS}, {SECONDS}))\n"
        "from attention_np.derivation import read_page, verify\n"
        "report = verify([read_page('t.md', sys.stdin.read())])\n"
        "wrong = {record.message for record in report.records if record.kind == 'internal'}\n"
        "wrong |= {record.message for record in report.records if 'too large' in record.message}  # after it was made\n"
        "print(peak() >> 20, report.ok, *wrong)"
    )
    words = [sys.executable, "-c", program]
    alone = {"OPENBLAS_NUM_THREADS": "1"}  # threads reserve memory, and spend time waiting
    done = subprocess.run(
        words, input=GREEDY[name], capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | alone
    )
    assert done.returncode == 0, done.stderr or "it took too long"
    megabytes, holds, *wrong = done.stdout.split(maxsplit=2)
    assert not wrong
    assert holds == "False"
    assert int(megabytes) < MEGABYTES


def test_pages_that_have_once_taken_too_much_and_new_ones_keep_the_bounds() -> None:
    words = [sys.executable, "-m", "tests.derivation.fuzz", "--pages", "300"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_a_length_that_is_no_number_is_refused() -> None:
    body = "# Example\n\n" + equations(r"n = 10^{400}", r"n = 0/0", r"n = -10^{400}")
    records = PageCheck(read_page("t.md", "---\nsizes: n\ntensors: {X: [n]}\n---\n\n" + body)).run()
    assert {record.verdict for record in records} == {"fails"}
    assert all(record.kind != "internal" for record in records)


@pytest.mark.parametrize(
    "front",
    [
        'tensors: {"\\e]0;title\\a": [n]}',
        'indices: {i: "\\e[31m"}',
        '"\\ud800\\e[2J": 1',
        'op: "\\u202e"',
        r'title: "\e[1m"',
    ],
)
def test_a_page_gives_no_orders_to_a_terminal(front: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = verify([read_page("\x1b[2J.md", f"---\nsizes: n\n{front}\n---\n$$ 1 = 1 \\tag{{[/red][bold]}} $$\n")])
    assert not report.ok
    tables.print_report(report)
    tables.print_faults([], report)
    printed = capsys.readouterr().out
    assert "[/red]" in printed
    for text in (str(report), printed):
        assert text.replace("\n", "").isprintable()


def test_line_ends_of_windows_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.md"
    text = HEADER + DEFINITIONS + "$$ u = u + 1\n\\tag{t.3} $$\n\n*Refuted:* one too many.\n"
    path.write_bytes(text.replace("\n", "\r\n").encode())
    assert [record.verdict for record in verify([read_page(path)]).records] == ["holds", "holds", "refuted"]


def test_a_chain_of_many_definitions_needs_no_deep_stack() -> None:
    body = "$$ z_{a1} = u \\tag{t.1} $$\n\n".replace("z_{a1}", "z_{\\mathrm{v1}}")
    for k in range(2, 300):
        body += f"$$ z_{{\\mathrm{{v{k}}}}} = z_{{\\mathrm{{v{k - 1}}}}} + 1 \\tag{{t.{k}}} $$\n\n"
    body += r"$$ \frac{\partial z_{\mathrm{v299}}}{\partial u} = 1 \tag{t.300} $$"
    records = PageCheck(page(body)).run()
    assert {record.verdict for record in records} == {"holds"}, [r.message for r in records if r.verdict != "holds"][:1]


def test_more_names_than_allowed_are_refused() -> None:
    body = "".join(f"$$ z_{{\\mathrm{{v{k}}}}} = u \\tag{{t.{k}}} $$\n\n" for k in range(1, 400))
    records = PageCheck(page(body)).run()
    assert "more than 400 names" in records[-1].message


def test_a_definition_that_is_broken_breaks_what_uses_it_and_nothing_else() -> None:
    body = "$$ z_i = x_j \\tag{t.1} $$\n\n$$ z_i = 1 \\tag{t.2} $$\n\n$$ u = u \\tag{t.3} $$\n"
    records = PageCheck(page(body)).run()
    assert [record.verdict for record in records] == ["fails", "fails", "holds"]
    assert records[1].kind == "broken"
    assert "its definition is broken" in records[1].message


def test_a_definition_stands_before_its_use() -> None:
    body = "$$ z_i = w_i \\tag{t.1} $$\n\n$$ w_i = x_i, w_i = x_i \\tag{t.2} $$\n"
    records = PageCheck(page(body)).run()
    assert "the symbol w_{i} is not known here" in records[0].message
    assert records[1].verdict == "holds"


VOCABULARY = r"""
\sum_j \frac{1}{2} { } ( ) [ ] | _ ^ _{ij} ^\top ^{2} ^{-1} + - \cdot \odot / , = \approx \le & \\ I
\mathbf{1} \max_j \mathrm{softmax} \mathrm{diag} \exp \sqrt \delta_{ij} S O Q K s L S_{ij} i j a n 0 2.5
\frac{\partial{L}}{\partial{S}} \frac{\partial}{\partial{s}_j} \begin{cases} \end{cases} \text{if} [i=j] :
\infty e^{
"""


def test_random_edits_never_reach_the_last_resort() -> None:
    rng = random.Random(5)
    vocabulary = VOCABULARY.split()
    base = [
        token.text
        for token in tokenize(
            r"S_{ij} s_j = \sum_a Q_{ia} \left( K_{ja} s_j \right)^2 + \frac{\partial O_i}{\partial s_j}"
        )
    ]
    started = time.process_time()
    for _ in range(400):
        tokens = list(base)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(tokens))
            if rng.random() < 0.4:
                tokens.pop(place)
            else:
                tokens.insert(place, rng.choice(vocabulary))
        record = judge(" ".join(tokens).replace("$", ""))
        assert record.kind != "internal", record.message
    assert time.process_time() - started < 60.0
