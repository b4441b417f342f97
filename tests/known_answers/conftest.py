"""Sets of known answers, written once for all tests of them."""

import shutil
from pathlib import Path

import pytest

from attention_np.known_answers.examples import OPS
from attention_np.known_answers.formats import DTYPES

from .sets import FEW, Sets, written


class SetsAsTheyAreAskedFor(Sets):
    """Sets in a folder, each written when it is first asked for: to write all takes seconds, and few tests need all."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, op: str) -> Path:
        own = "dot_product" if op == "blockwise" else op
        if own not in OPS:
            raise KeyError(op)
        if own not in self:
            self[own] = written(self.folder / own, lambda x: x.op == own and "tile" not in x.tags, ["float32"])
        return self[own]


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    """The small cases in one dtype, in a set for each op: a manifest of all is long, and read by each test."""
    return SetsAsTheyAreAskedFor(tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of them in each."""
    return written(tmp_path_factory.mktemp("few"), lambda example: example.name in FEW[example.op], DTYPES)


@pytest.fixture
def small(answers: Sets, tmp_path: Path) -> Path:
    """A set of its own, of softmax in float32."""
    return Path(shutil.copytree(answers["softmax"], tmp_path / "small"))
