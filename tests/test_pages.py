"""What pages say of code is so: what they quote is there, programs print what is shown, commands run as printed."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
from helpers import each

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "attention_np").rglob("*.py"))
TOP = ("README.md", "README.zh.md", "CONTRIBUTING.md", "SECURITY.md")
DERIVATIONS = sorted((ROOT / "derivations").glob("*.md"))
PAGES = [*DERIVATIONS, *sorted((ROOT / "docs").glob("*.md")), *map(ROOT.joinpath, TOP)]
OURS = [page for page in DERIVATIONS if page.stem != "errata"]  # that one shows other people's code
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def inline_code(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", text(page)))


def without_comment(line: str) -> str:
    return re.split(r"\s#\s", line)[0].strip()


def name(path: Path) -> str:
    return path.stem


LINES = {without_comment(line) for source in SOURCES for line in text(source).splitlines()}
NAMES = {word for source in SOURCES for word in re.findall(r"[A-Za-z_]\w*", f"{source} {text(source)}")}


@each("page", DERIVATIONS)
def test_tags_of_a_page_count_from_one_in_the_order_of_reading(page: Path) -> None:
    numbers = [int(number) for number in re.findall(r"\\tag\{[a-z-]+\.(\d+)\}", text(page))]
    assert numbers == [*range(1, len(numbers) + 1)]


@each("page", OURS)
def test_every_line_of_code_that_a_page_quotes_stands_in_the_source(page: Path) -> None:
    quoted = [line for language, code in FENCE.findall(text(page)) if language == "python" and "import" not in code
              for line in code.splitlines()]  # fmt: skip
    quoted += [code for code in inline_code(page) if " = " in code]
    for line in filter(None, map(without_comment, quoted)):
        wanted = re.compile(re.escape(line).replace(r"\.\.\.", ".*"))  # three dots: what is left out
        assert any(map(wanted.fullmatch, LINES)), line


@each("page", OURS)
def test_every_name_that_a_page_mentions_is_one_of_the_source(page: Path) -> None:
    mentioned = {word for code in inline_code(page) for word in re.findall(r"(?<![\\\w])[A-Za-z_]\w*", code)}
    assert mentioned - NAMES == set()


@each("page", OURS)
def test_every_program_of_a_derivation_prints_what_is_shown(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for language, code in FENCE.findall(text(page)):
        if language == "python" and "import" in code:
            exec(compile(code, str(page), "exec"), {})  # noqa: S102
            shown = [comment.strip() for comment in re.findall(r"#(.*)", code)]
            printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
            assert printed
            assert [comment[: len(line)] for comment, line in zip(shown, printed, strict=True)] == printed


# Whatever else a page prints as a command is run by the tests below, as it stands.
ELSEWHERE = {
    "attention-np check": "noxfile.py does, with the wheel; .ci/run as `make check`",
    "source .venv/bin/activate": "the environment that make has made",
    "jupyter notebook examples/dates.ipynb": "serves until it is stopped; tests/test_examples.py runs the notebook",
    "python -m benchmarks.accuracy --json docs/measured/accuracy.json": "takes an hour; see test_accuracy_benchmark.py",
    "python -m docs.accuracy": "writes to docs; see test_accuracy_page.py",
    "python -m benchmarks.cluster": "needs Dask; see test_benchmarks.py",
    "python -m docs.performance": "writes to docs; see test_performance_page.py",
    "python -m docs.translations docs/zh/derivations/dot_product.zh.md": "writes to docs; see test_translations.py",
    "python benchmarks/atlas.py --write": "writes to docs, in minutes",
    "python benchmarks/atlas.py llama": "needs transformers; see peers/test_atlas.py",
    "python -m attention_np verify results --answers answers": "needs results; see known_answers/test_verdict.py",
    "attention-np verify negative/one-entry --answers .": "needs an archive; see known_answers/test_archive.py",
    "python -m docs.known_answers known-answers.zip": "takes minutes; see known_answers/test_archive.py",
    "python -m pytest test_known_answers.py": "needs PyTorch; see peers/test_known_answers_published.py",
    "twine upload dist/*": "publishes",
    "bash .ci/run": "runs the tests",
}
COMPILERS = ("gcc", "node", "rustc")  # known_answers/test_readers.py
PROGRAMS = ("attention-np", "bash", "jupyter", "jupytext", "make", "pip", "python", "source", "twine", *COMPILERS)


def commands() -> list[str]:
    """Those of all pages: lines of blocks without a language, and code in the text, that begin with a program."""
    found = []
    for page in PAGES:
        lines = [line for language, block in FENCE.findall(text(page)) if not language for line in block.splitlines()]
        for line in [*lines, *inline_code(page)]:
            command = without_comment(line)
            if command.partition(" ")[0] in PROGRAMS and " " in command and "NAME" not in command:
                found.append(command)
    return sorted(set(found))


COMMANDS = commands()


def those_of(*programs: str) -> list[str]:
    return [command for command in COMMANDS if command.split()[0] in programs and command not in ELSEWHERE]


def test_every_command_that_is_run_elsewhere_is_still_printed() -> None:
    assert set(ELSEWHERE) <= set(COMMANDS)


@each("command", those_of("make"))
def test_make_knows_what_to_do(command: str) -> None:  # .ci/run does it
    assert shutil.which("make")
    program, *words = shlex.split(command)
    done = subprocess.run([program, "-n", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_extra_that_is_to_be_installed_is_there() -> None:
    settings = ConfigParser(interpolation=None)
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    for page in [*PAGES, *SOURCES, *(ROOT / "examples").glob("*.py"), *(ROOT / "docs").rglob("*.py")]:
        for extra in re.findall(r"""(?:attention-np|['"]\.)\[([a-z-]+)\]""", text(page)):
            assert extra in settings["options.extras_require"], (page, extra)
    assert [shlex.split(command)[:2] for command in those_of("pip")] == [["pip", "install"]] * len(those_of("pip"))


OF_ANOTHER = "python -m attention_np known-answers answers"  # the fixture `whole` runs it: it takes a minute


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples, and with `python` and what is installed on its path."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "examples", folder / "examples")
    guide = (ROOT / "docs" / "your-derivation.md").read_text(encoding="utf-8")
    (folder / "mine").mkdir()
    (folder / "mine" / "gaussian.md").write_text(re.findall("````markdown\n(.*?)````", guide, re.DOTALL)[0], "utf-8")
    (folder / "bin").mkdir()
    for program, words in {"python": "", "attention-np": "-m attention_np", "jupytext": "-m jupytext"}.items():
        script = folder / "bin" / program
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("command", [x for x in those_of("python", "attention-np", "jupytext") if x != OF_ANOTHER])
def test_a_command_of_a_page_runs_as_it_is_printed(command: str, clone: Path) -> None:
    if command.startswith("jupytext"):
        pytest.importorskip("jupytext", reason="pip install 'attention-np[notebooks]'")
    path = os.pathsep.join([str(clone / "bin"), os.environ["PATH"]])
    settings = {"PATH": path, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    words = ["/bin/sh", "-c", command]
    done = subprocess.run(
        words, cwd=clone, env=os.environ | settings, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
