"""An op is its module, its page, its test file and an entry in OPS: that is all it takes for it to be checked."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ALL

ROOT = Path(__file__).parents[1]
FIXTURE = Path(__file__).parent / "fixtures" / "new_op"
PLACES = {"gated.py": "attention_np", "gated.md": "derivations", "test_gated.py": "tests"}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is there, with one op more: three files and one entry."""
    root = tmp_path_factory.mktemp("house")
    for folder in ("attention_np", "derivations", *(["tests"] if ALL else [])):  # which the long test runs
        # With what is compiled, which is up to date, so that nothing but the changed module is compiled again.
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("derivations"))
    shutil.copy(ROOT / "setup.cfg", root)
    (root / "tests").mkdir(exist_ok=True)
    for name, place in PLACES.items():
        shutil.copy(FIXTURE / name, root / place)
    init = root / "attention_np" / "__init__.py"
    text = init.read_text(encoding="utf-8")
    assert text.count("OPS = (") == 1
    init.write_text(text.replace("OPS = (", 'OPS = ("gated", '), encoding="utf-8")
    return root


def run(house: Path, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(house), "OPENBLAS_NUM_THREADS": "1"}
    environment |= {"PASSED": "", "PYTEST_ADDOPTS": ""}  # which are for the tests around this one
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=house, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_check_verifies_its_gradients_and_its_page(house: Path) -> None:
    run(house, "attention_np", "check", "gated", "--json", "found.json")
    found = json.loads((house / "found.json").read_text(encoding="utf-8"))
    names = {row["case"] for row in found["ops"]}
    assert names >= {"plain", "one key", "a single query", "mask with an empty row", "sentences: packed in one row"}
    assert {row["input"] for row in found["ops"]} >= {"query", "key", "value", "gate", "gradient of gate"}
    assert len(found["equations"]) == 11
    assert all(row["verdict"] == "holds" and row["cited_by"] for row in found["equations"])


@pytest.mark.long
def test_tests_of_every_op_are_its_own_too(house: Path) -> None:
    names = ("test_gated", "test_cases", "test_corners", "test_ops", "hostile/test_arrays", "hostile/test_refusals")
    files = [f"tests/{name}.py" for name in names]
    told = run(house, "pytest", *files, "-k", "gated", "-q", "--no-header", "-p", "no:cacheprovider", "-rA")
    for name in files:
        assert f"PASSED {name}::" in told, told
