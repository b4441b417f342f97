"""Whatever fails once, of all that can: files are old or new ones, threads and BLAS as before, no lock stays."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Patch, Printed, assert_same_bits, each, normal

from attention_np import blockwise, cli, gradcheck, known_answers, softmax
from attention_np._lib import blas, workers
from attention_np.cli import outcome
from attention_np.gradcheck.slopes.checkpoint import Checkpoint
from attention_np.known_answers import writing
from attention_np.known_answers.examples import all_examples

from .faults import Places, Raw, at_each


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_thread() -> RuntimeError:
    return RuntimeError("can't start new thread")


PATHS = ("chmod", "mkdir", "rename", "replace")
FILES: Places = {
    **dict.fromkeys([(Raw, "__init__"), (Raw, "write"), (os, "fsync"), *((Path, name) for name in PATHS)], full),
    **dict.fromkeys([(json, "dumps"), (np, "savez")], MemoryError),
}
INTERRUPTED: Places = dict.fromkeys(FILES, KeyboardInterrupt)

REPORT = gradcheck.check_op(softmax, {"scores": normal(0, 3)})


def a_command(*arguments: str) -> Callable[[Path], None]:
    """A command that says so in a sentence if it cannot write."""

    def write(target: Path) -> None:
        assert cli.main([*arguments, "--json", str(target)]) in (outcome.HOLDS, outcome.UNUSABLE, outcome.INTERRUPTED)

    return write


def some_json(target: Path) -> None:
    if fault := outcome.write_json(target, {"ok": True}):
        outcome.refuse(fault)


def a_checkpoint(target: Path) -> None:
    kept = Checkpoint(target, "of these inputs")
    kept.put("scores", normal(1, 4))
    kept.save()


def a_check(target: Path) -> None:
    gradcheck.check(np.exp, lambda d, x: d * np.exp(x), {"x": normal(0, 3)}, checkpoint=target)


def some_answers(target: Path) -> None:
    with Patch.context() as patch:
        few = [example for example in all_examples() if example.op == "softmax"][:2]
        patch.setattr(writing, "all_examples", lambda: few)
        known_answers.write(target, ops=["softmax"], dtypes=["float32"])


def of_json(target: Path) -> Any:
    return json.loads(target.read_text(encoding="utf-8"))


def of_archive(target: Path) -> Any:
    with np.load(target) as archive:
        return {name: archive[name].tolist() for name in archive.files}


def of_folder(target: Path) -> Any:
    return {path.relative_to(target): path.read_bytes() for path in target.rglob("*") if path.is_file()}


def descriptors() -> int:
    """How many files are open."""
    listed = Path("/proc/self/fd")
    return len([*listed.iterdir()]) if listed.is_dir() else 0


@each("places", [FILES, INTERRUPTED])
@each("earlier", [False, True])
@each(
    ("write", "read"),
    [(REPORT.save, of_json), (some_json, of_json), (a_checkpoint, of_archive)],
    long=[
        (a_check, of_archive),
        (a_command("cost", "--memory", "8"), of_json),  # check writes as cost does
        (some_answers, of_folder),
    ],
)
def test_after_any_fault_there_is_the_old_file_or_the_new_one_and_nothing_else(
    write: Callable[[Path], Any],
    read: Callable[[Path], Any],
    places: Places,
    earlier: bool,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: Printed,
) -> None:
    usual, target = (tmp_path_factory.mktemp("folder") / "kept" for _ in range(2))
    write(usual)
    expected, mode = read(usual), usual.stat().st_mode
    if earlier:
        write(target)
        target.chmod(0o750 if target.is_dir() else 0o640)
        mode = target.stat().st_mode
    gc.collect()  # what an earlier test has left open is not closed while this one counts
    before = descriptors()
    capsys.readouterr()

    def look(number: int, error: BaseException | None) -> None:
        said = capsys.readouterr().err
        assert said.count("\n") <= 1, said
        left = [path.name for path in target.parent.iterdir()]
        assert left == [target.name] or (left == [] and not earlier and (error or said)), (number, left)
        if left:
            assert (read(target), target.stat().st_mode) == (expected, mode), number
            if not earlier:
                target.unlink() if target.is_file() else shutil.rmtree(target)
        assert descriptors() == before, number

    assert at_each(places, lambda: write(target), look) >= 3


X = normal(2, 4, 600, 1)  # of which blockwise makes several tasks
LOCKS: Places = {
    (threading.Thread, "start"): no_thread,
    (blas, "_limit"): MemoryError,
    **dict.fromkeys([(threading, name) for name in ("Lock", "RLock", "Condition", "Event")], MemoryError),
}
ARRAYS: Places = dict.fromkeys([(np, name) for name in ("empty", "zeros", "matmul", "exp", "where")], MemoryError)


def attend(**how: Any) -> list[Any]:
    output, cache = blockwise.forward(X, X, X, **how)
    return [output, *blockwise.backward(X, cache, **how)]


def in_a_pool() -> list[Any]:
    with ThreadPoolExecutor(2) as pool:
        return attend(executor=pool)


def squares(count: int) -> list[Any]:
    """A few tasks by so many workers."""
    done: list[Any] = []
    workers.run(np.square, ((row, X[0, row]) for row in range(5)), lambda _, square: done.append(square), None, count)
    return done


def one_leaves_before_the_other() -> list[Any]:
    """Two calls at once: another thread holds BLAS for the second when the first, which has held it, is over."""
    second_is_in, first_has_left = threading.Event(), threading.Event()
    results: list[Any] = []

    def second() -> None:
        try:
            with blas.one_thread():
                second_is_in.set()
                first_has_left.wait(60)
                results.append(np.array(threads_of_blas()))  # one, while this lasts
            results.extend(squares(1))
        except BaseException as error:
            results.append(error)
        finally:
            second_is_in.set()

    other = threading.Thread(target=second)
    try:
        with blas.one_thread():
            other.start()
            second_is_in.wait(60)
    finally:
        first_has_left.set()
        if other.ident is not None:
            other.join()
    if isinstance(results[-1], BaseException):
        raise results[-1]
    return results


def threads_of_blas() -> list[int]:
    return [library["num_threads"] for library in blas.controller().info()]


def set_threads_of_blas(count: int) -> None:
    """In a thread that ends: while one that has set them lives, threadpoolctl heeds no other."""

    def set_them() -> None:
        for library in blas.controller().lib_controllers:
            library.set_num_threads(count)

    setting = threading.Thread(target=set_them)
    setting.start()
    setting.join()


@pytest.fixture
def two_threads_of_blas() -> Iterator[None]:
    pytest.importorskip("threadpoolctl")
    before = threads_of_blas()[0]
    set_threads_of_blas(2)
    yield
    set_threads_of_blas(before)


def threads_left() -> list[str]:
    """The threads of the package, when those that end have ended."""
    left = [thread for thread in threading.enumerate() if thread.name.startswith("attention_np")]
    for thread in left:
        thread.join(1)
    return [thread.name for thread in left if thread.is_alive()]


@pytest.mark.usefixtures("two_threads_of_blas")
@each(
    ("run", "places"),
    [(lambda: squares(1), LOCKS), (lambda: squares(2), LOCKS), (one_leaves_before_the_other, LOCKS)],
    long=[(lambda: attend(workers=2), ARRAYS), (in_a_pool, LOCKS)],
)
def test_after_any_fault_threads_and_blas_are_as_before_and_the_next_call_gives_the_bits(
    run: Callable[[], list[Any]], places: Places
) -> None:
    given, before, expected = X.copy(), threads_of_blas(), run()

    def run_and_look() -> None:
        assert_same(run())

    def assert_same(results: list[Any]) -> None:
        for x, other in zip(results, expected, strict=True):
            if other is not None:
                assert_same_bits(x, other)

    def look(number: int, _: BaseException | None) -> None:
        assert (threads_left(), threads_of_blas()) == ([], before), number
        assert_same(run())

    assert at_each(places, run_and_look, look) >= 3
    assert_same_bits(X, given)
