"""Sets of known answers, written once for all tests of them."""

import shutil
from pathlib import Path

import pytest

from attention_np.known_answers.examples import OPS
from attention_np.known_answers.formats import DTYPES

from .sets import FEW, Sets, written


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    """The small cases in one dtype, in a set for each op: a manifest of all is long, and read by each test."""
    folder = tmp_path_factory.mktemp("answers")
    sets = {op: written(folder / op, lambda x, op=op: x.op == op and "tile" not in x.tags, ["float32"]) for op in OPS}
    return sets | {"blockwise": sets["dot_product"]}


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of them in each."""
    return written(tmp_path_factory.mktemp("few"), lambda example: example.name in FEW[example.op], DTYPES)


@pytest.fixture
def small(answers: Sets, tmp_path: Path) -> Path:
    """A set of its own, of softmax in float32."""
    return Path(shutil.copytree(answers["softmax"], tmp_path / "small"))
