"""The tool of the mutation tests, on a module of a few lines."""

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

SOURCE = """
def difference(a: float, b: float = 1) -> float:
    if b > 100:
        raise ValueError("b is large")
    return sum(x - y for x, y in zip([a], [b], strict=True))


class Pair:
    def first(self, pair):
        return pair[0]


def multiplier(by):
    def multiply(x):
        return by * x

    return multiply


twice = multiplier(2)


def draw(rng, seed):
    return rng(seed, "entries")


class passes:
    def __init__(self, mathematics):
        self.mathematics = mathematics

    @staticmethod
    def backward(mathematics):
        return passes(mathematics)

    def __call__(self, *arguments):
        return -self.mathematics(*arguments)


@passes.backward
def negative_product(x, y):
    return x * y
"""


@pytest.fixture
def changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], object]:
    """The mutants of the module `toy`, by the name of the function and what the changed line becomes."""
    mutants = pytest.importorskip("tests.mutation.mutants", reason="pip install 'attention-np[mutation]'")
    Path(tmp_path / "toy.py").write_text(SOURCE, encoding="utf-8")
    Path(tmp_path / "setup.cfg").write_text("[mutmut]\nsource_paths = toy.py\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "toy", raising=False)
    return {(mutant.name, mutant.texts()[1]): mutant for mutant in mutants.Module(Path("toy.py")).mutants()}


def test_whoever_has_imported_a_function_runs_its_mutant(changes) -> None:
    from toy import Pair, difference

    assert difference(3, 1) == 2
    assert changes["difference", "return sum(x + y for x, y in zip([a], [b], strict=True))"].apply()
    assert difference(3, 1) == 4
    assert changes["Pair.first", "return pair[1]"].apply()
    assert Pair().first("ab") == "b"


def test_a_function_that_was_made_before_is_changed_too(changes) -> None:
    from toy import twice

    assert twice(3) == 6
    assert changes["multiplier", "return by / x"].apply()
    assert twice(4) == 0.5


def test_a_function_in_the_shell_of_a_pass_is_changed_within_it(changes) -> None:
    from toy import negative_product

    mutant = changes["negative_product", "return x / y"]
    assert SOURCE.splitlines()[next(mutant.spans()).start - 1].strip() == "return x * y"
    assert mutant.apply()
    assert negative_product(6, 2) == -3


def test_what_random_numbers_are_for_makes_no_difference(changes) -> None:
    assert not changes["draw", 'return rng(seed, "XXentriesXX")'].apply()


def test_a_default_is_changed_too(changes) -> None:
    from toy import difference

    assert changes["difference", "def difference(a: float, b: float = 2) -> float:"].apply()
    assert difference(3) == 1


def test_a_mutant_is_looked_for_at_its_line_and_no_further_than_its_statement(changes) -> None:
    assert set(changes["Pair.first", "return pair[1]"].spans()) == {range(10, 11)}
    assert set(changes["difference", "if b >= 100:"].spans()) == {range(3, 4), range(3, 5)}


def test_the_words_of_errors_are_left_alone(changes) -> None:
    assert not [text for _, text in changes if "XXb is large" in text]
    assert ("difference", "raise ValueError(None)") in changes


def test_the_guard_of_zip_makes_no_difference(changes) -> None:
    from toy import difference

    code = difference.__code__
    assert not changes["difference", "return sum(x - y for x, y in zip([a], [b], strict=False))"].apply()
    assert difference.__code__ is code
