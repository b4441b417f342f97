"""Lines of code cite equations, and equations are the same as others where they say so."""

from pathlib import Path

from helpers import each

from attention_np.derivation import verify
from attention_np.derivation.citations import citations

from .pages import page
from .toy import toy


def test_citations_are_comments_only(tmp_path: Path) -> None:
    source = tmp_path / "code.py"
    source.write_text('x = "(t.9)"\n"""(t.8)"""\ny = 1  # (t.1, t.2): why\n# (dot-product.12)\n# (t.1)\n')
    found, problems = citations([source], tmp_path)
    assert found == {"t.1": ["code.py:3", "code.py:5"], "t.2": ["code.py:3"], "dot-product.12": ["code.py:4"]}
    assert not problems


GRADIENT = r"$$ \frac{\partial (2 x_i)}{\partial x_k} = 2 \delta_{ik} \tag{t.1} $$" + "\n\n"


@each(
    ("text", "comment", "words"),
    [
        (GRADIENT, "# (t.1)", None),
        (GRADIENT, "#", "no code cites it"),
        (GRADIENT + "*Text only.* Because.", "#", None),
        (GRADIENT, "# (t.1) (t.2)", "cites (t.2), which stands in no page"),
        (GRADIENT, "# (gone.1) (t.1)", "cites (gone.1)"),
    ],
)
def test_gradients_are_cited_and_citations_exist(tmp_path: Path, text: str, comment: str, words: str | None) -> None:
    source = tmp_path / "code.py"
    source.write_text(f"x = 1  {comment}\n")
    report = verify([page(text)], sources=[source])
    assert report.ok is (words is None)
    if words is not None:
        assert any(words in problem for problem in report.problems)


OTHER = (
    r"$$ S_{ij} = \sum_a Q_{ia} K_{ja} \tag{o.1} $$"
    + "\n\n"
    + r"""$$ X' = B S
= \mathrm{einsum}(\texttt{ik,kj->ij}, B, S) \tag{o.2} $$

$$ \frac{\partial X'_{ij}}{\partial S_{kl}} = B_{ik} \delta_{jl} \tag{o.3} $$

$$ 1 = 2 \tag{o.4} $$

*Refuted:* no."""
)
HERE = (
    r"$$ S = Q K^\top \tag{t.1} $$"
    + "\n\n*Same as (o.1).*\n\n"
    + r"$$ X'_{ij} = \sum_k B_{ik} S_{kj} \tag{t.2} $$"
    + "\n\n"
)
CLAIM = r"$$ \frac{\partial X'_{ij}}{\partial S_{kl}} = \delta_{jl} B_{ik} \tag{t.3} $$" + "\n\n"
MATRIX = r"$$ X' = B S, \quad S = Q K^\top \tag{t.4} $$" + "\n\n"


@each(
    ("text", "words"),
    [
        (CLAIM + "*Same as (o.3).* As there.", None),
        (CLAIM + "*Same as (t.4).*\n\n" + MATRIX + "*Same as (o.2, o.1).*", "no left side there has this value"),
        (CLAIM + "*Text only.*\n\n" + MATRIX + "*Same as (o.2, o.1).*", None),
        (CLAIM + "*Text only.*\n\n" + MATRIX + "*Same as (o.2).*", "no left side there has this value"),
        (CLAIM, "no code cites it"),
        (CLAIM + "*Same as (o.9).*", "(o.9), which stands in no page"),
        (CLAIM + "*Same as (t.3).*", "(t.3), which stands in no other"),
        (CLAIM + "*Same as (o.4).*", "does not hold itself: refuted"),
        (CLAIM + "*Same as (o.2).*", "no left side there has this value"),
        (CLAIM + "*Same as (o.3)*", "the marker *Same as (o.3)* is not known"),
        (CLAIM + "*Same as (o.3).* *Same as (o.2).*", "the marker *Same as (o.2).* is not known, or stands here twice"),
        (CLAIM + "*Same as (o.3, o.2, o.3).*", "the same as (o.3) is said twice"),
        (CLAIM + f"*Same as ({', '.join(f'o.{k}' for k in range(1, 10))}).*", "the same as more than 8 equations"),
        (CLAIM + "*Same as (o.3).* *Refuted:* no.", "only an equation that holds"),
        (CLAIM.replace("B_{ik}", "R_{ik}") + "*Same as (o.3).*", "this does not hold"),
        (CLAIM.replace("B_{ik}", "2 B_{ik} / 2") + "*Same as (o.3).*", None),
    ],
)
def test_what_is_the_same_as_another_equation_agrees_with_it(tmp_path: Path, text: str, words: str | None) -> None:
    (tmp_path / "o.py").write_text("# (o.1) (o.2) (o.3)\n")
    report = verify([page(HERE + text), page(OTHER, name="o")], sources=[tmp_path / "o.py"], root=tmp_path)
    assert report.ok is (words is None), str(report)
    assert words is None or words in str(report)
    if words is None:
        assert report.records[0].cited_by == ["o.py:1"]


def test_what_is_the_same_as_another_equation_is_cited_in_the_end(tmp_path: Path) -> None:
    source = tmp_path / "o.py"
    other = page(OTHER, name="o")
    source.write_text("# (o.3)\n")
    report = verify([page(HERE + CLAIM + "*Same as (o.3).*"), other], sources=[source])
    assert [problem.partition(": ")[2] for problem in report.problems] == ["the same as (o.1), which no code cites"]
    between = page(OTHER.replace("o.", "u.").replace("{u.3} $$", "{u.3} $$\n\n*Same as (o.3).*"), name="u")
    pages = [page(HERE.replace("*Same as (o.1).*", "") + CLAIM + "*Same as (u.3).*"), between, other]
    assert verify(pages, sources=[source]).ok
    source.write_text("")
    assert "the same as (u.3), which no code cites" in str(verify(pages, sources=[source]))


def test_a_same_equation_is_read_with_the_names_of_its_page() -> None:
    other = page(OTHER.replace("B", "R"), name="o")  # of another tensor, in the place of B
    assert "(o.3), which does not hold here" in str(verify([page(HERE + CLAIM + "*Same as (o.3).*"), other]))
    other = page(r"$$ Y_i = x_i \tag{o.1} $$" + "\n\n" + r"$$ Y_i = x_i \tag{o.2} $$", name="o")
    here = page(r"$$ 2 x_i = x_i + x_i \tag{t.1} $$" + "\n\n*Same as (o.2).*")
    assert "the symbol Y is not known here" in str(verify([here, other]))


def test_a_module_of_a_page_cites_that_page_alone(tmp_path: Path) -> None:
    for name, code in {"t.py": "# (t.3)\n# (o.3)\n", "helper.py": "# (t.3) (o.3)\n"}.items():
        (tmp_path / name).write_text(code)
    pages = [page(HERE.replace("*Same as (o.1).*", "") + CLAIM), page(OTHER, name="o")]
    report = verify(pages, sources=sorted(tmp_path.glob("*.py")), root=tmp_path)
    assert report.problems == [
        "t.py:2: cites (o.3), but this module cites its own page, t: write *Same as (t.N).* behind (o.3)"
    ]


def test_a_page_that_is_not_asked_for_is_there_to_be_cited(tmp_path: Path) -> None:
    source = tmp_path / "code.py"
    source.write_text("x = 1  # (t.1, toy.4, toy.5)\n")
    found = [page(r"$$ 1 = 2 \tag{t.1} $$"), toy()]
    report = verify(found, sources=[source], only={"toy"})
    assert report.ok, str(report)
    assert {record.page for record in report.records} == {"toy"}
    assert not verify(found, sources=[source]).ok
