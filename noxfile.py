"""The suite on the oldest and the newest NumPy, and the files of a release: `nox`, or `make versions` and `make dist`.

The suite runs from the unpacked sdist, so that it also shows that nothing is missing there. The oldest NumPy runs on
the oldest Python that is here and that it has wheels for, the newest on the newest. The Python that runs nox is always
one that is here. The others that are supported and missing are named; but a session without any Python fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path

import nox

ROOT = Path(__file__).parent.resolve()
DIST = ROOT / "dist"
METADATA_FILE = ROOT / "setup.cfg"
METADATA = ConfigParser(interpolation=None)
METADATA.read(METADATA_FILE, encoding="utf-8")
PYTHONS = re.findall(r"Python :: (3\.\d+)$", METADATA["metadata"]["classifiers"], flags=re.MULTILINE)
NUMPY = METADATA["options"]["install_requires"].strip()
OLDEST_NUMPY = NUMPY.replace(">=", "==") + ".*"
WITH_OLDEST_NUMPY = ("3.10", "3.11", "3.12")  # there are wheels of it for no other
NOT_SHIPPED = (".ci/", ".gitignore")  # of what git has

nox.options.error_on_missing_interpreters = True  # a session that is left out would pass


def choose_all_of_pyenv() -> None:
    """Where pyenv has the Pythons, `python3.10` runs only if a 3.10 is among the chosen ones: choose all."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(path.name for path in folder.glob("3.*") if path.name.rpartition(".")[0] in PYTHONS)
    if found:
        os.environ.setdefault("PYENV_VERSION", ":".join(found))


def find_the_one_that_runs() -> None:
    """Its command, `python3.11` or so, is beside it, in a virtual environment too; it is the last to be found."""
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])


def is_here(python: str) -> bool:
    """Whether there is such an interpreter, and it runs: there may be a shim of pyenv for one that is not chosen."""
    try:
        return subprocess.run([f"python{python}", "-c", ""], capture_output=True, check=False).returncode == 0  # noqa: S603
    except OSError:
        return False


choose_all_of_pyenv()
find_the_one_that_runs()
HERE = [python for python in PYTHONS if is_here(python)]
OLDEST = next((python for python in HERE if python in WITH_OLDEST_NUMPY), WITH_OLDEST_NUMPY[0])
NEWEST = HERE[-1] if HERE else PYTHONS[-1]


@nox.session
def build(session: nox.Session) -> None:
    """Build the sdist, and the wheel from the sdist; look into both."""
    session.install("build", "twine")
    shutil.rmtree(DIST, ignore_errors=True)
    date = {"SOURCE_DATE_EPOCH": str(int(METADATA_FILE.stat().st_mtime))}
    session.run("python", "-m", "build", "--outdir", str(DIST), silent=True, env=date)  # it is shown where it fails
    again = Path(session.create_tmp())
    session.run("python", "-m", "build", "--sdist", "--outdir", str(again), silent=True, env=date)
    if (again / only("*.tar.gz").name).read_bytes() != only("*.tar.gz").read_bytes():
        session.error("built again for the same SOURCE_DATE_EPOCH, the sdist is another")
    session.run("twine", "check", "--strict", *map(str, DIST.iterdir()))
    look_into_sdist(session)
    look_into_wheel(session)


@nox.session(python=sorted({OLDEST, NEWEST}), requires=["build"])
def wheel(session: nox.Session) -> None:
    """The wheel in an environment with NumPy alone, and then `attention-np check` with what that needs."""
    session.install(str(only("*.whl")), OLDEST_NUMPY if session.python == OLDEST else "numpy")
    session.chdir(session.create_tmp())  # away from the sources
    session.run("python", "-I", "-W", "error", str(ROOT / "tests" / "smoke.py"))
    session.install(f"attention-np[check] @ {only('*.whl').as_uri()}")
    session.run("attention-np", "check", silent=True)  # it is shown where it fails


@nox.session(python=OLDEST, requires=["build"])
def oldest(session: nox.Session) -> None:
    """The suite on the oldest NumPy that is supported."""
    suite(session, OLDEST_NUMPY)


@nox.session(python=NEWEST, requires=["build"])
def newest(session: nox.Session) -> None:
    """The suite on the newest NumPy that there is for this Python."""
    suite(session, "numpy")


def suite(session: nox.Session, numpy: str) -> None:
    """All tests but those against other libraries; arguments behind `--` go to pytest."""
    session.log(f"Pythons that are supported and not here, so not tried: {set(PYTHONS) - set(HERE) or 'none'}")
    folder = Path(session.create_tmp(), "unpacked")
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(only("*.tar.gz")) as packed:
        packed.extractall(folder)  # noqa: S202 (it was made here)
    (source,) = folder.iterdir()
    session.chdir(source)
    extra = "test" if "not long" in session.posargs else "test-all"
    session.install("--no-compile", "--editable", f".[{extra}]", numpy)
    session.run("python", "-c", "import numpy, sys; print('NumPy', numpy.__version__, 'on Python', sys.version)")
    arguments = session.posargs or ["--numprocesses=2", "--dist=loadfile", "--ignore=tests/peers"]
    settings = {"OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}  # as in the Makefile
    session.run("python", "-m", "pytest", "-q", *arguments, env=settings)


def look_into_sdist(session: nox.Session) -> None:
    """It holds all files that git has or would take, but for those of CI, and nothing else."""
    with tarfile.open(only("*.tar.gz")) as packed:
        held = {entry.name.partition("/")[2] for entry in packed if entry.isfile()}
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, encoding="utf-8").stdout.splitlines()  # noqa: S603
    expected = {name for name in files if not name.startswith(NOT_SHIPPED) and (ROOT / name).is_file()}
    if missing := sorted(expected - held):
        session.error(f"the sdist lacks {', '.join(missing)}")
    if strangers := {name for name in held - expected if name != "PKG-INFO" and ".egg-info/" not in name}:
        session.error(f"the sdist also holds {', '.join(sorted(strangers))}")


def look_into_wheel(session: nox.Session) -> None:
    """It holds the package, its data, the pages, its licence and its entry points, and needs NumPy alone."""
    with zipfile.ZipFile(only("*.whl")) as packed:
        held = set(packed.namelist())
        metadata = next(name for name in held if name.endswith(".dist-info/METADATA"))
        points = packed.read(metadata.replace("METADATA", "entry_points.txt")).decode()
        described = packed.read(metadata).decode()
    required = [line for line in described.splitlines() if line.startswith("Requires-Dist: ")]
    package = (file for file in (ROOT / "attention_np").rglob("*") if file.suffix in (".py", ".typed", ".md"))
    expected = {file.relative_to(ROOT).as_posix() for file in package} | {"_attention_np_pytest.py"}
    expected |= {f"attention_np/derivations/{page.name}" for page in (ROOT / "derivations").glob("*.md")}
    expected.add("attention_np/measured/atlas.json")
    modules = {name for name in held if ".dist-info/" not in name}
    if missing := sorted(expected - modules):
        session.error(f"the wheel lacks {', '.join(missing)}")
    if strangers := sorted(modules - expected):
        session.error(f"the wheel also holds {', '.join(strangers)}")
    if metadata.replace("METADATA", "licenses/LICENSE") not in held:
        session.error("the wheel lacks the licence")
    if "attention-np = attention_np.cli:main" not in points or "attention_np = _attention_np_pytest" not in points:
        session.error("the wheel lacks an entry point")
    if [line for line in required if "extra ==" not in line] != [f"Requires-Dist: {NUMPY}"]:
        session.error("the wheel needs more than NumPy")
    if links := re.findall(r"\]\((?!https?:)([^)]*)\)", described):
        session.error(f"the long description links to {', '.join(links)}, which nobody finds where it is shown")


def only(pattern: str) -> Path:
    """The file of this pattern that `build` has left."""
    (found,) = DIST.glob(pattern)
    return found
