"""The examples of the READMEs run, and print what the READMEs say they print; the rest is up to date."""

import io
import json
import re
import tokenize
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import attention_np
from attention_np import cli
from docs import pictures, translations, verified

ROOT = Path(__file__).parents[1]
README, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
READMES = pytest.mark.parametrize("readme", [README, CHINESE], ids=lambda path: path.name)


def blocks(readme: Path) -> list[tuple[str, str]]:
    return re.findall(r"```(\w*)\n(.*?)```", readme.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize(
    "readme",
    [README, pytest.param(CHINESE, marks=pytest.mark.long)],  # which has the same code, another test says
    ids=lambda path: path.name,
)
def test_every_example_prints_what_the_readme_shows(readme: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = blocks(readme)
    names: dict[str, object] = {}
    shown = 0
    for (language, code), (_, expected) in zip(found, [*found[1:], ("", "")], strict=True):
        if language == "python":
            exec(compile(code, str(readme), "exec"), names)  # noqa: S102
            assert capsys.readouterr().out == expected
            shown += 1
    assert shown == 3


def without_comments(code: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return [token.string for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]


def test_both_readmes_have_the_same_code_and_the_same_outputs() -> None:
    english, chinese = blocks(README), blocks(CHINESE)
    assert [language for language, _ in english] == [language for language, _ in chinese]
    for (language, code), (_, translated) in zip(english, chinese, strict=True):
        if language == "python":
            assert without_comments(code) == without_comments(translated)
        elif language == "":
            assert re.sub(r"#.*", "", code).split() == re.sub(r"#.*", "", translated).split()
        else:
            assert code == translated


def test_both_readmes_lead_to_the_same_places() -> None:
    english, chinese = (re.findall(r"\]\(([^)#]+)", readme.read_text(encoding="utf-8")) for readme in (README, CHINESE))
    originals = [
        str(translations.original_of(ROOT / link).relative_to(ROOT)) if "/zh/" in link else link for link in chinese
    ]
    assert english[1:] == originals[1:]  # the first leads from each to the other


@READMES
def test_no_row_of_a_table_stands_twice(readme: Path) -> None:
    rows = [line.split("|")[1] for line in readme.read_text(encoding="utf-8").split("\n") if line.startswith("| ")]
    assert [row for row, following in pairwise(rows) if row == following] == []


@READMES
def test_the_table_of_what_is_verified_is_up_to_date(readme: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    assert verified.with_table(readme.name, text) == text, "write it again: python -m docs.verified"


def test_a_readme_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^README\.md has no place for the table"):
        verified.with_table("README.md", "nothing here")


def test_the_table_counts_what_check_judges(tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    assert cli.main(["check", "rms_norm", "notation", "--json", str(file)]) == 0
    content = json.loads(file.read_text(encoding="utf-8"))
    rows = {row.page: row for row in verified.rows()}

    assert rows["rms_norm"].cases == len({row["case"] for row in content["ops"] if row["method"] == "complex-step"})
    for method in ("complex-step", "central"):
        of_one = [row for row in content["ops"] if row["method"] == method and not row["input"].startswith("all, ")]
        assert rows["rms_norm"].gradients == len(of_one)
    for page in ("rms_norm", "notation"):
        name = page.replace("_", "-")
        verdicts = [equation["verdict"] for equation in content["equations"] if equation["page"] == name]
        counts = [verdicts.count(verdict) for verdict in ("holds", "refuted", "not executed")]
        assert counts == list(rows[page][3:])


@READMES
def test_every_link_to_a_file_has_its_file(readme: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", readme.read_text(encoding="utf-8"))
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


@READMES
def test_every_picture_is_small_and_drawn_by_an_example(readme: Path) -> None:
    shown = re.findall(r"!\[([^\]]+)\]\(docs/images/([^)]+)\)", readme.read_text(encoding="utf-8"))
    assert [name for _, name in shown] == list(pictures.PICTURES)
    for description, name in shown:
        assert len(description) > 10  # for those who cannot see it
        assert (pictures.IMAGES / name).stat().st_size < 60_000
        assert (ROOT / "examples" / f"{pictures.PICTURES[name]}.py").is_file()


def test_no_picture_of_the_readme_is_blank() -> None:
    image = pytest.importorskip("matplotlib.image", reason="to read a picture, pip install 'attention-np[plot]'")
    for name in pictures.PICTURES:
        pixels = image.imread(pictures.IMAGES / name)
        assert pixels.ndim == 3
        assert np.ptp(pixels) > 0.5


def test_the_citation_names_this_version_and_licence() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert citation["version"] == attention_np.__version__
    assert citation["license"] == "BSD-3-Clause"
    for readme in (README, CHINESE):
        assert f"version = {{{attention_np.__version__}}}" in readme.read_text(encoding="utf-8")
