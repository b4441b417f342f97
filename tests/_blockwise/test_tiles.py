"""Arrays in mapped files: never read whole, sent to workers by name, and refused where a worker finds others."""

import dataclasses
import functools
import multiprocessing
import pickle
import re
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, Patch, assert_same_bits, each, normal, peak_of

from attention_np import blockwise
from attention_np._blockwise import tiles

from .calls import AtOnce, arranged, results


@pytest.fixture
def mapped(tmp_path: Path) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for i, name in enumerate(("query", "key", "value")):
        file = np.memmap(tmp_path / name, np.float32, "w+", offset=128, shape=(3, 1400, 16))
        file[:] = normal(i, 3, 1400, 16)
        file.flush()
        found[name] = np.memmap(tmp_path / name, np.float32, "r", offset=128, shape=(3, 1400, 16))
    return found


def test_mapped_files_give_what_arrays_give(mapped: dict[str, Array]) -> None:
    one, other = (results(blockwise, x) for x in (mapped, {name: np.array(x) for name, x in mapped.items()}))
    for (name, array), (_, expected) in zip(one.items(), other.items(), strict=True):
        assert type(array) is np.ndarray, name
        assert_same_bits(array, expected)


def test_a_mapped_file_is_never_read_whole(tmp_path: Path) -> None:
    n = 400_000
    key = np.memmap(tmp_path / "key", np.float32, "w+", shape=(n, 16))
    key[::1000] = 1
    query = normal(0, 3, 16).astype(np.float32)
    assert key.nbytes > 25 * 10**6
    assert peak_of(lambda: blockwise.forward(query, key, key, workers=1)) < 4 * 2**20


def test_a_part_of_a_mapped_file_travels_by_name(mapped: dict[str, Array]) -> None:
    tasks: list[Any] = []

    def travel(function: Any, *args: Any) -> Any:
        payload = pickle.dumps(args)
        tasks.append(len(payload))
        return function(*pickle.loads(payload))  # noqa: S301

    spy = AtOnce(travel)
    views: list[Callable[[Array], Array]] = [lambda x: x, lambda x: x[:, ::2, 1:9]]
    views.append(lambda x: np.broadcast_to(x[:, :1], x.shape))
    for view in views:
        x = {name: view(array) for name, array in mapped.items()}
        del tasks[:]
        output, cache = blockwise.forward(**x, executor=spy)
        assert tasks
        assert max(tasks) < 3000
        # Of the same layout: by it BLAS may round otherwise.
        expected, _ = blockwise.forward(**{name: view(np.array(array)) for name, array in mapped.items()})
        assert_same_bits(output, expected)
        blockwise.backward(output, cache, executor=spy)
    del tasks[:]
    private = {name: np.memmap(x.filename, x.dtype, "c", x.offset, x.shape) for name, x in mapped.items()}
    expected, _ = blockwise.forward(**private)
    private["value"][:, 1::7] = 0.5  # of that the few rows that are compared may tell nothing
    output, _ = blockwise.forward(**private, executor=spy)
    assert min(tasks) > 10_000
    assert (output != expected).all()
    assert_same_bits(output, blockwise.forward(**private)[0])


def meddling(change: Callable[[], Any]) -> AtOnce:
    """Changes something after a task has been packed and before it is unpacked."""

    def travel(function: Any, *args: Any) -> Any:
        payload = pickle.dumps(args)
        change()
        return function(*pickle.loads(payload))  # noqa: S301

    return AtOnce(travel)


Change = Callable[[bytes], bytes] | None  # of what a file holds; None: there is no file


def replace(path: Path, change: Change) -> None:
    """Put another file in the place of one, which stays as it is for those who have mapped it."""
    content = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(content))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (None, r"it cannot be opened \(.*No such file"),
        (lambda content: content[:200], r"it cannot be opened \("),
        (lambda content: content[:0], r"it cannot be opened \("),
        (lambda content: content[::-1], "it holds other numbers"),
    ],
)
@each("name", ["query", "key", "value"])
def test_a_worker_that_does_not_find_the_file_of_the_caller_says_so(
    mapped: dict[str, Array], name: str, change: Change, problem: str
) -> None:
    path = Path(mapped[name].filename)
    message = f"^the file {re.escape(str(path))}, of which a part was sent to a worker by its name, .*{problem}"
    message += r".*, or pass a copy in memory, np\.array\(\.\.\.\), which is sent itself$"
    inputs = {other: x if other == name else np.array(x) for other, x in mapped.items()}
    with pytest.raises(OSError, match=message):
        blockwise.forward(**inputs, executor=meddling(functools.cache(lambda: replace(path, change))))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda content: content[:-1], "it cannot be opened"),
        (lambda content: bytes(4) + content[4:], "it holds other numbers"),
        (lambda content: content[:-4] + bytes(4), "it holds other numbers"),
    ],
    ids=["too short by a byte", "another first row", "another last row"],
)
def test_the_ends_of_a_part_of_a_file_are_compared(tmp_path: Path, change: Change, problem: str) -> None:
    key = np.memmap(tmp_path / "key", np.float32, "w+", shape=(100, 2))
    key[:] = normal(0, 100, 2)
    key.flush()
    with pytest.raises(OSError, match=problem):
        blockwise.forward(
            normal(1, 3, 2), key, normal(2, 100, 2), executor=meddling(lambda: replace(tmp_path / "key", change))
        )


@pytest.mark.long  # that such a file is told of in a sentence, tests in this process say, too
def test_a_file_that_a_worker_does_not_find_does_not_break_a_pool_of_processes(mapped: dict[str, Array]) -> None:
    class Late(Executor):
        def submit(self, function: Any, /, *args: Any, **_: Any) -> Future[Any]:
            payload = pickle.dumps(args)
            Path(mapped["key"].filename).unlink(missing_ok=True)
            return pool.submit(call_pickled, function, payload)

    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(OSError, match="it cannot be opened"):
            blockwise.forward(**mapped, executor=Late())
        assert pool.submit(abs, -3).result() == 3


def call_pickled(function: Any, payload: bytes) -> Any:
    return function(*pickle.loads(payload))  # noqa: S301


@pytest.mark.parametrize("change", [None, lambda content: content[:500], lambda content: content[::-1]])
def test_what_is_mapped_of_a_file_that_has_lost_its_name_is_sent_itself(
    mapped: dict[str, Array], change: Change
) -> None:
    expected, _ = blockwise.forward(**{name: np.array(x) for name, x in mapped.items()})
    for x in mapped.values():
        replace(Path(x.filename), change)
    assert_same_bits(blockwise.forward(**mapped, executor=meddling(lambda: None))[0], expected)


def test_a_file_is_found_by_workers_in_another_folder(
    mapped: dict[str, Array], tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = {name: np.memmap(name, x.dtype, "r", x.offset, x.shape) for name, x in mapped.items()}
    (tmp_path / "folder").mkdir()
    expected, _ = blockwise.forward(**mapped)
    output, _ = blockwise.forward(**relative, executor=meddling(lambda: monkeypatch.chdir(tmp_path / "folder")))
    assert_same_bits(output, expected)


def test_of_a_part_of_a_file_only_a_few_rows_are_compared(tmp_path: Path, monkeypatch: Patch) -> None:
    file = np.memmap(tmp_path / "key", np.float32, "w+", shape=(1000, 2))
    read = []
    checksum = tiles.crc32
    monkeypatch.setattr(tiles, "crc32", lambda content: (read.append(len(content)), checksum(content))[1])
    (tile,) = (problem.tile(x) for problem in [arranged(4, 1000)] for x in problem.strips())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(dataclasses.replace(tile, key=file))).key, file)  # noqa: S301
    assert read
    assert max(read) == 8 * file.itemsize * 2


def test_a_tile_that_has_travelled_opens_each_file_once(tmp_path: Path, monkeypatch: Patch) -> None:
    file = np.memmap(tmp_path / "key", np.float32, "w+", shape=(5, 2))
    (tile,) = (problem.tile(x) for problem in [arranged(4, 5)] for x in problem.strips())
    there = pickle.loads(pickle.dumps(dataclasses.replace(tile, key=file)))  # noqa: S301
    key = there.key
    np.testing.assert_array_equal(key, file)
    assert not key.flags.writeable
    monkeypatch.setattr(tiles._Mapped, "open", None)
    assert there.key is key
    for one in (tile, there):
        with pytest.raises(AttributeError, match=r"^Tile has no attribute nothing$"):
            one.nothing  # noqa: B018
