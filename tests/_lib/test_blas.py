"""The threads of BLAS are held while a call lasts, and are back after it, in children too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from _blockwise.calls import Acting, all_results, arrays, expected_bits, failing, large_arrays
from helpers import Patch, assert_alike, forks, in_child, normal

from attention_np import blockwise
from attention_np._blockwise import kernels
from attention_np._blockwise.tiles import Tile
from attention_np._lib import blas, workers


class FakeController:
    """As threadpoolctl's, of one library that has eight threads."""

    threads = 8
    limited = 0
    user_api = "blas"

    @property
    def lib_controllers(self) -> list[Any]:
        return [self]

    @property
    def num_threads(self) -> int:
        return self.threads

    def limit(self, *, limits: int, user_api: str) -> FakeController:
        assert user_api == "blas"
        assert self.threads == 8
        self.threads, self.limited = limits, self.limited + 1
        return self

    def __enter__(self) -> None:
        assert self.threads == 1

    def __exit__(self, *_: object) -> None:
        assert self.threads == 1
        self.threads = 8


@pytest.fixture
def controller(monkeypatch: Patch) -> FakeController:
    fake = FakeController()
    monkeypatch.setattr(blas, "controller", lambda: fake)
    return fake


def attend_and(act: Callable[[], Any]) -> None:
    """A call, during which something is done."""
    blockwise.forward(**large_arrays(), mask=Acting(lambda *_: act()), workers=1)


def test_blas_is_held_while_it_lasts_and_let_go_after(controller: FakeController) -> None:
    seen: list[int] = []
    x = normal(0, 600, 3)
    for count in (1, 2):
        blockwise.forward(x, x, x, mask=Acting(lambda *_: seen.append(controller.threads)), workers=count)
    assert set(seen) == {1}
    assert (controller.threads, controller.limited) == (8, 2)


def test_a_small_problem_is_done_in_the_thread_that_asks(monkeypatch: Patch) -> None:
    seen: list[threading.Thread] = []
    attend = kernels.attend

    def noted(tiles: Sequence[Tile]) -> list[kernels.Attended]:
        seen.append(threading.current_thread())
        return attend(tiles)

    monkeypatch.setattr(kernels, "attend", noted)
    blockwise.forward(**arrays(), block_size=64, workers=2)
    with ThreadPoolExecutor(1) as pool:  # who asks for an executor gets it
        blockwise.forward(**arrays(), executor=pool)
    blockwise.forward(**large_arrays())
    here = threading.current_thread()
    assert [thread is here for thread in seen] == [True, False, False]
    assert seen[2].name == "attention_np"


def test_an_error_inside_lets_blas_go(controller: FakeController) -> None:
    x = normal(0, 8, 600, 4)
    for count in (1, 2):
        with pytest.raises(RuntimeError, match="no third block"):
            blockwise.forward(x, x, x, mask=failing(), workers=count)
        assert controller.threads == 8


def test_nested_and_concurrent_calls_hold_blas_once(controller: FakeController) -> None:
    barrier = threading.Barrier(3)

    def act() -> None:
        blockwise.forward(**large_arrays())
        assert controller.threads == 1
        barrier.wait(30)  # until all are inside
        for _ in range(1000):  # when the first leaves, a moment passes until another thread holds BLAS
            if controller.threads == 1:
                return
            time.sleep(0.01)
        raise AssertionError("BLAS was let go before the last call returned")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(attend_and, [act] * 3))
    assert controller.threads == 8
    assert controller.limited <= 2  # by the first call, and for those that outlast it


def test_real_blas_is_as_it_was(monkeypatch: Patch) -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def threads() -> list[int]:
        return [library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"]

    before, seen = threads(), []
    attend = kernels.attend
    monkeypatch.setattr(kernels, "attend", lambda tiles: (seen.append(threads()), attend(tiles))[1])
    x = normal(0, 4, 600, 3)
    blockwise.forward(x, x, x, workers=2)
    assert seen
    assert all(count == 1 for counts in seen for count in counts)
    assert threads() == before


def test_within_a_limit_of_several_threads_tasks_are_done_one_after_the_other(monkeypatch: Patch) -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    seen: set[int] = set()
    attend = kernels.attend
    monkeypatch.setattr(kernels, "attend", lambda tiles: (seen.add(threading.get_ident()), attend(tiles))[1])
    x = normal(0, 16, 600, 3)
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        blockwise.forward(x, x, x, workers=2)
    assert len(seen) == 1


def test_real_blas_is_held_for_every_thread_until_the_last_call_returns() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def threads() -> set[int]:
        libraries = threadpoolctl.threadpool_info()
        return {library["num_threads"] for library in libraries if library["user_api"] == "blas"}

    with threadpoolctl.threadpool_limits(2):
        pass  # whatever set a limit before must not stand in the way
    before, seen = threads(), []
    first_is_in, second_is_in, first_has_left = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        seen.append(threads())
        first_is_in.set()
        assert second_is_in.wait(30)

    def second() -> None:
        second_is_in.set()
        assert first_has_left.wait(30)
        seen.append(threads())

    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(attend_and, first)]
        assert first_is_in.wait(30)
        calls.append(pool.submit(attend_and, second))
        calls[0].result()
        first_has_left.set()
        calls[1].result()
    assert seen == [{1}, {1}]
    assert threads() == before
    with threadpoolctl.threadpool_limits(1):  # and who sets a limit afterwards is heard
        assert threads() == {1}
    assert threads() == before


@forks
def test_a_child_that_is_forked_in_a_call_has_all_threads_of_blas(controller: FakeController) -> None:
    def act() -> None:
        assert controller.threads == 1
        assert in_child(lambda: controller.threads) == 8
        assert controller.threads == 1

    attend_and(act)
    assert controller.threads == 8
    assert in_child(lambda: controller.threads) == 8


def keepers() -> list[bool]:
    """Of the threads that do nothing but see to BLAS, whether the process may end without them."""
    return [thread.daemon for thread in threading.enumerate() if thread.name == "attention_np_blas"]


@forks
def test_a_child_that_another_thread_forks_during_a_call_has_all_threads_of_blas(controller: FakeController) -> None:
    is_in, has_forked, first_has_left = threading.Event(), threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(attend_and, lambda: (is_in.set(), has_forked.wait(30)))
        assert is_in.wait(30)
        assert in_child(lambda: controller.threads) == 8
        assert controller.threads == 1
        is_in.clear()
        second = pool.submit(attend_and, lambda: (is_in.set(), first_has_left.wait(30)))
        assert is_in.wait(30)
        has_forked.set()
        first.result()  # another thread holds BLAS for the second
        assert keepers() == [True]
        assert in_child(lambda: controller.threads) == 8
        assert controller.threads == 1
        first_has_left.set()
        second.result()
    assert controller.threads == 8


@forks
def test_a_child_does_not_wait_for_a_blas_that_another_thread_has_locked(
    controller: FakeController, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(blas, "SECONDS_TO_LET_GO", 0.1)
    monkeypatch.setattr(FakeController, "__exit__", lambda *_: is_free.wait(30))
    is_in, is_free = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(attend_and, lambda: (is_in.set(), is_free.wait(30)))
        assert is_in.wait(30)
        start = time.monotonic()
        assert in_child(lambda: controller.threads + 10 * (keepers() == [True])) == 11
        assert time.monotonic() - start < 15
        is_free.set()
        call.result()


@forks
def test_real_blas_has_its_threads_in_a_child_and_a_call_there_gives_them_back() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def most() -> int:
        libraries = threadpoolctl.threadpool_info()
        return int(max(library["num_threads"] for library in libraries if library["user_api"] == "blas"))

    def after_a_call() -> int:
        before = most()
        blockwise.forward(**large_arrays())
        return most() if before == most() else 0

    found: list[int] = []
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        expected = most()
        attend_and(lambda: found.append(in_child(after_a_call)))
        with ThreadPoolExecutor(1) as pool:
            attend_and(lambda: found.append(pool.submit(in_child, after_a_call).result()))
        assert most() == expected
    assert set(found) == {expected}


def test_without_threadpoolctl_one_worker_is_the_default(monkeypatch: Patch) -> None:
    expected_bits()  # which are kept for all tests: BLAS is held for them
    monkeypatch.setattr(blas, "controller", lambda: None)
    assert workers.as_workers(None, None) == 1
    assert workers.as_workers(None, 3) == 3
    monkeypatch.setattr(workers, "usable_cores", lambda: 5)
    assert workers.as_workers(None, None) == 1
    monkeypatch.setattr(blas, "controller", FakeController)
    assert workers.as_workers(None, None) == 5
    monkeypatch.setattr(blas, "controller", lambda: None)
    for array, expected in zip(all_results(workers=2), expected_bits(), strict=True):
        assert_alike(array, expected, 1e-14)  # not to the bit: how BLAS shares out a product is its own affair
