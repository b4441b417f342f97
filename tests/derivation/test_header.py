"""Front matter: what is broken in it is one problem with a line."""

from helpers import each

from attention_np.derivation import read_page

from .pages import verdicts

BROKEN_HEADERS = [
    ("---\nsizes: n m\n", "never closed"),
    ("---\nsizes: [n\n---\n", "cannot be read"),
    ("---\n- n\n---\n", "not a mapping"),
    ("---\nsizes: n n\n---\n", "declared twice"),
    ("---\nsizes: n=\u00b2\n---\n", "not part of the grammar"),
    ("---\nsizes: n\x00\n---\n", "cannot be read"),
    ("---\nsizes: n\nsizes: m\n---\n", "stands twice"),
    ("---\nsizes: &a n\n---\n", "no anchors"),
    ("---\nsizes: n\nindices: *a\n---\n", "no anchors"),
    ("---\n<<: {sizes: n}\n---\n", "no merge keys"),
    ("---\nsizes: !!python/object/apply:os.system [x]\n---\n", "no anchors, aliases or tags"),
    ("---\nfoo: 1\n---\n", "knows no 'foo'"),
    ("---\nsizes: n=1000000\n---\n", "not between"),
    ("---\nsizes: n=1\n---\n", "not between"),
    ("---\nsizes: n D=n*q\n---\n", "not declared"),
    ("---\nsizes: 3\n---\n", "sizes are"),
    ("---\nsizes: n+\n---\n", "not a single name"),
    ("---\nsizes: n\nindices: {i: m}\n---\n", "not declared"),
    ("---\nsizes: n\nindices: {n: n}\n---\n", "declared twice"),
    ("---\nsizes: n\nindices: [i]\n---\n", "mapping"),
    ("---\nsizes: n\ntensors: {x: n}\n---\n", "a list of sizes"),
    ("---\nsizes: n\ntensors: {x: [n, weird]}\n---\n", "not a single name"),
    ("---\nsizes: n\ntensors: {x: [n, permutation]}\n---\n", "square"),
    ("---\nsizes: n\ntensors: {x: [n, n, n, n, n, n, n, n]}\n---\n", "list of sizes"),
    ("---\nop: os.system\n---\n", "name of a module"),
    ("---\ncode: {__class__.x.y: Q}\noutput: O\n---\n", "not the name of an argument"),
    ("---\ncode: {query: Q}\n---\n", "names its output"),
    ("---\ncited: maybe\n---\n", "cited is true or false"),
    ("---\noptions: {a: [1, x]}\n---\n", "options"),
    ("---\nx: " + "[" * 50 + "]" * 50 + "\n---\n", "nested too deep"),
    ("---\nx: " + "[" * 3000 + "\n---\n", "nested too deep"),
    ("---\nx: " + "y" * 9000 + "\n---\n", "characters"),
    ("---\nsizes: " + " ".join(f"n_{k}" for k in range(9)) + " a b c d e f g h i j\n---\n", "up to 16"),
    ("---\n\tx: 1\n---\n", "cannot be read"),
    ("---\nx: \x01\n---\n", "cannot be read"),
]


@each(("text", "words"), BROKEN_HEADERS)
def test_broken_front_matter_is_one_problem_with_a_line(text: str, words: str) -> None:
    found = read_page("t.md", text)
    assert len(found.problems) == 1
    assert found.problems[0].startswith("t.md:")
    assert words in found.problems[0]


def test_a_page_without_front_matter_is_a_page() -> None:
    assert verdicts(r"$$1 + 1 = 2 \tag{t.1}$$", "") == ["holds"]


@each(
    ("header", "line"),
    [
        ("sizes: n n", 2),
        ("title: a\nsizes: n+", 3),
        ("sizes: n\nindices:\n  i: n\n  j: q", 5),
        ("sizes: n\nindices: {n: n}", 3),
        ("sizes: n\ntensors:\n  x: [n]\n  y: [q]", 5),
        ("sizes: n\ntensors:\n  x: [n]\n  n: [n]", 5),
        ("sizes: n\noutput: x+", 3),
        ("title: a\nfoo: b", 3),
    ],
)
def test_what_is_wrong_with_front_matter_has_its_line(header: str, line: int) -> None:
    found = read_page("t.md", f"---\n{header}\n---\n")
    assert len(found.problems) == 1
    assert found.problems[0].startswith(f"t.md:{line}: ")
