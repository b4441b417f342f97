"""The suite on the oldest and the newest NumPy, and what a release holds: `nox`, or `make versions` and `make dist`.

The oldest NumPy runs on the oldest Python that is here, the newest on the newest. Which Pythons are missing is said at
the start, and none of them is an error.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

import nox

ROOT = Path(__file__).parent.resolve()
DIST = ROOT / ".nox" / "dist"  # where `build` leaves the sdist and the wheel
PYTHONS = ("3.10", "3.11", "3.12", "3.13")  # that are supported, as in setup.cfg
OLDEST_NUMPY = "numpy==1.26.*"  # as in setup.cfg
WITH_OLDEST_NUMPY = PYTHONS[:3]  # those that it has wheels for
SHIPPED = ("attention_np", "benchmarks", "derivations", "docs", "examples", "tests")  # folders of the sdist
BESIDES = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "README.zh.md")
BESIDES += ("SECURITY.md", "_attention_np_pytest.py", "noxfile.py", "pyproject.toml", "setup.cfg")

nox.options.sessions = ["oldest", "newest", "build", "wheel", "sdist"]


def is_here(python: str) -> bool:
    """Whether there is such an interpreter, and it runs: the shims of pyenv may stand for one that is not chosen."""
    try:
        return subprocess.run([f"python{python}", "-c", ""], capture_output=True, check=False).returncode == 0  # noqa: S603
    except OSError:
        return False


def offer_all_of_pyenv() -> None:
    """Where pyenv has the Pythons, only those that are chosen run: choose all that are supported."""
    try:
        found = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True, check=False)  # noqa: S607
    except OSError:
        return
    versions = [name for name in found.stdout.split() if name.rpartition(".")[0] in PYTHONS]
    os.environ.setdefault("PYENV_VERSION", ":".join(versions))


offer_all_of_pyenv()
HERE = [python for python in PYTHONS if is_here(python)]
OLDEST = next((python for python in HERE if python in WITH_OLDEST_NUMPY), WITH_OLDEST_NUMPY[0])
NEWEST = HERE[-1] if HERE else PYTHONS[-1]


def suite(session: nox.Session, *numpy: str) -> None:
    """All tests but those against other libraries; arguments behind `--` go to pytest."""
    session.log(f"not here, and so not tried: Python {', '.join(x for x in PYTHONS if x not in HERE) or '(none)'}")
    session.install("--editable", ".[test]", "pytest-xdist", *numpy)
    session.run("python", "-c", "import numpy, sys; print('NumPy', numpy.__version__, 'on Python', sys.version)")
    session.run("python", "-m", "pytest", "-q", "--numprocesses=2", *(session.posargs or ["--ignore=tests/peers"]))


@nox.session(python=OLDEST)
def oldest(session: nox.Session) -> None:
    """The suite on the oldest NumPy that is supported."""
    suite(session, OLDEST_NUMPY)


@nox.session(python=NEWEST)
def newest(session: nox.Session) -> None:
    """The suite on the newest NumPy that this Python has."""
    suite(session, "--upgrade", "--upgrade-strategy=eager")


@nox.session
def build(session: nox.Session) -> None:
    """Build the sdist, the wheel from the sdist, and look into both."""
    session.install("build", "twine")
    for old in DIST.glob("*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:  # what an earlier build left here must not get into this one
        names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True, check=False)  # noqa: S607
        listed = names.stdout.decode().split("\0") if names.returncode == 0 else _everything()
        for name in filter(None, listed):
            if (ROOT / name).is_file():
                copy = Path(folder, name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes((ROOT / name).read_bytes())
        session.run("python", "-m", "build", "--outdir", str(DIST), folder)
        expected = _shipped(Path(folder))
    session.run("twine", "check", "--strict", *map(str, DIST.iterdir()))
    _look_into_sdist(session, expected)
    _look_into_wheel(session)


@nox.session(python=sorted({OLDEST, NEWEST}))
def wheel(session: nox.Session) -> None:
    """The wheel in an environment with NumPy alone."""
    numpy = OLDEST_NUMPY if session.python == OLDEST else "numpy"
    session.install(str(_only("*.whl")), numpy)
    smoke = str(ROOT / "tests" / "smoke.py")
    session.chdir(session.create_tmp())  # away from the sources
    session.run("python", "-I", "-W", "error", smoke)


@nox.session
def sdist(session: nox.Session) -> None:
    """Install from the sdist; the check and some tests run from what it unpacks to."""
    archive = _only("*.tar.gz")
    session.install(f"{archive}[test]")
    folder = Path(session.create_tmp())
    with tarfile.open(archive) as packed:
        packed.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # noqa: S202
    session.chdir(folder / archive.name.removesuffix(".tar.gz"))
    session.run("python", "-m", "attention_np", "check", *(session.posargs or ["softmax", "scaling"]))
    tests = ["tests/test_softmax.py", "tests/test_examples.py", "tests/test_readme.py", "tests/derivation/test_page.py"]
    session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)


def _everything() -> list[str]:
    """The files here, where there is no repository: in an unpacked sdist."""
    files = [file for name in SHIPPED for file in (ROOT / name).rglob("*") if "__pycache__" not in file.parts]
    files += [ROOT / name for name in (*BESIDES, "MANIFEST.in")]
    return [str(file.relative_to(ROOT)) for file in files]


def _shipped(folder: Path) -> set[str]:
    """The files that the sdist must hold."""
    inside = [file for name in SHIPPED for file in (folder / name).rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix() for file in inside} | set(BESIDES)


def _look_into_sdist(session: nox.Session, expected: set[str]) -> None:
    with tarfile.open(_only("*.tar.gz")) as packed:
        held = {name.partition("/")[2] for name in packed.getnames()}
    if missing := sorted(expected - held):
        session.error(f"the sdist lacks {', '.join(missing)}")


def _look_into_wheel(session: nox.Session) -> None:
    with zipfile.ZipFile(_only("*.whl")) as packed:
        held = set(packed.namelist())
        metadata = next(name for name in held if name.endswith(".dist-info/METADATA"))
        points = packed.read(metadata.replace("METADATA", "entry_points.txt")).decode()
        required = [line for line in packed.read(metadata).decode().splitlines() if line.startswith("Requires-Dist: ")]
    for name in ("attention_np/py.typed", "attention_np/derivation/GRAMMAR.md", "_attention_np_pytest.py"):
        if name not in held:
            session.error(f"the wheel lacks {name}")
    if strangers := {name.partition("/")[0] for name in held if not name.startswith(("attention_np", "_attention_np"))}:
        session.error(f"the wheel also holds {', '.join(sorted(strangers))}")
    if not any(name.endswith("/licenses/LICENSE") for name in held):
        session.error("the wheel lacks the licence")
    if "attention-np = attention_np.cli:main" not in points or "attention_np = _attention_np_pytest" not in points:
        session.error("the wheel lacks an entry point")
    if [line for line in required if "extra ==" not in line] != ["Requires-Dist: numpy>=1.26"]:
        session.error("the wheel needs more than NumPy")


def _only(pattern: str) -> Path:
    (found,) = DIST.glob(pattern)
    return found
