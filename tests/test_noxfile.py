"""Which Python the sessions of nox take: the ends of those that are here, and never none in silence."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import each

NOXFILE = Path(__file__).parents[1] / "noxfile.py"
Reader = Callable[..., dict[str, Any]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Reader:
    """A function: the names of the noxfile, where these commands of Pythons are to be found."""

    def session(function: Any = None, **options: Any) -> Any:
        return (lambda _: SimpleNamespace(**options)) if function is None else SimpleNamespace(**options)

    def of(*pythons: str, pyenv: tuple[str, ...] = ()) -> dict[str, Any]:
        monkeypatch.setitem(
            sys.modules, "nox", SimpleNamespace(options=SimpleNamespace(), session=session, Session=None)
        )
        monkeypatch.setattr(os, "environ", {"PATH": "/commands", "PYENV_ROOT": str(tmp_path)})
        for version in pyenv:
            (tmp_path / "versions" / version).mkdir(parents=True)

        def run(words: list[str], **_: Any) -> Any:
            assert words[1:] == ["-c", ""]
            chosen = os.environ.get("PYENV_VERSION", "").split(":")
            here = {*pythons, *(version.rpartition(".")[0] for version in chosen)}
            if words[0].removeprefix("python") not in here:
                raise FileNotFoundError
            return SimpleNamespace(returncode=0)

        monkeypatch.setattr(subprocess, "run", run)
        return run_path(str(NOXFILE))

    return of


def test_a_session_whose_python_is_missing_fails(read: Reader) -> None:
    assert read("3.11")["nox"].options.error_on_missing_interpreters is True


@each(
    ("here", "oldest", "newest"),
    [
        (["3.11"], "3.11", "3.11"),
        (["3.10", "3.11", "3.12", "3.13"], "3.10", "3.13"),
        (["3.12", "3.13"], "3.12", "3.13"),
        (["3.9", "3.12"], "3.12", "3.12"),
    ],
)
def test_the_ends_are_the_oldest_and_the_newest_python_that_is_here(
    read: Reader, here: list[str], oldest: str, newest: str
) -> None:
    found = read(*here)
    assert (found["OLDEST"], found["NEWEST"]) == (oldest, newest)
    assert (found["oldest"].python, found["newest"].python) == (oldest, newest)
    assert found["wheel"].python == sorted({oldest, newest})


def test_the_oldest_numpy_asks_for_a_python_that_it_has_wheels_for_where_none_is_here(read: Reader) -> None:
    found = read("3.13")
    assert found["OLDEST"] in found["WITH_OLDEST_NUMPY"]
    assert found["OLDEST"] not in found["HERE"]  # so nox fails
    assert found["NEWEST"] == "3.13"


def test_all_of_pyenv_are_here(read: Reader) -> None:
    found = read("3.11", pyenv=("3.10.13", "3.9.18", "3.12.1", "3.11.7"))
    assert found["HERE"] == ["3.10", "3.11", "3.12"]


def test_the_python_that_runs_nox_is_looked_for_last(read: Reader) -> None:
    read("3.11")
    assert os.environ["PATH"].split(os.pathsep) == ["/commands", str(Path(sys.executable).parent)]
