"""Which cores the workers of blockwise attention keep to, and that it ends with the call."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from _blockwise.calls import Acting
from helpers import Patch, forks, in_child

from attention_np import blockwise, dot_product
from attention_np._lib import blas, cores, workers

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="there are no two cores to tell of"
)


@pytest.fixture
def two_cores() -> Iterator[set[int]]:
    """This thread, and those that it starts, on two cores."""
    before = os.sched_getaffinity(0)
    two = set(sorted(before)[:2])
    os.sched_setaffinity(0, two)
    yield two
    os.sched_setaffinity(0, before)


def run_two(fails: bool = False) -> dict[int, set[int]]:
    """Where each thread of two ran that worked at the same time."""
    seen: dict[int, set[int]] = {}
    names: set[str] = set()
    both = threading.Barrier(2, timeout=60)

    def work(_: int) -> None:
        both.wait()
        seen[threading.get_ident()] = os.sched_getaffinity(0)
        names.add(threading.current_thread().name.partition("_0")[0])
        if fails:
            raise RuntimeError("no")

    workers.run(work, ((number, number) for number in range(2)), lambda *_: None, None, 2)
    assert names == {"attention_np"}
    return seen


def test_two_workers_on_two_cores_have_one_each(two_cores: set[int]) -> None:
    seen = run_two()
    assert sorted(map(sorted, seen.values())) == [[core] for core in sorted(two_cores)]


def test_afterwards_the_calling_thread_may_run_where_it_could_before(two_cores: set[int]) -> None:
    run_two()
    assert os.sched_getaffinity(0) == two_cores
    with pytest.raises(RuntimeError, match="no"):
        run_two(fails=True)
    assert os.sched_getaffinity(0) == two_cores


def test_the_cores_are_those_of_the_calling_thread(two_cores: set[int]) -> None:
    for core in two_cores:
        os.sched_setaffinity(0, {core})
        assert cores.of_workers(1) == [{core}]


@pytest.mark.usefixtures("two_cores")
def test_workers_that_are_fewer_or_more_than_the_cores_go_where_they_like() -> None:
    assert cores.of_workers(3) == [None, None, None]
    assert cores.of_workers(1) == [None]


def test_a_system_that_tells_of_no_cores_and_one_that_refuses_them(two_cores: set[int], monkeypatch: Patch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert all(seen == two_cores for seen in run_two().values())
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores.of_workers(2) == [None, None]


def test_a_rule_that_uses_attention_itself_leaves_the_cores_as_they_were(two_cores: set[int]) -> None:
    query, key, value = np.random.default_rng(0).standard_normal((3, 4, 800, 2))

    blocks = iter(range(4))  # within a few of all
    nested = Acting(lambda *_: next(blocks, None) is None or blockwise.forward(query, key, value, workers=2))
    output, _ = blockwise.forward(query, key, value, mask=nested, workers=2)
    np.testing.assert_allclose(output, dot_product.forward(query, key, value)[0], rtol=0, atol=1e-15)
    assert os.sched_getaffinity(0) == two_cores


@forks
def test_a_child_that_is_forked_in_a_call_may_run_where_the_call_began(two_cores: set[int]) -> None:
    seen = []

    def fork(*_: slice) -> None:
        if len(seen) < 4:  # a few of the blocks of both workers
            seen.append((len(os.sched_getaffinity(0)), in_child(lambda: len(os.sched_getaffinity(0)))))

    query, key, value = np.random.default_rng(0).standard_normal((3, 4, 800, 2))
    blockwise.forward(query, key, value, mask=Acting(fork), workers=2)
    assert set(seen) == {(1, 2)}
    assert os.sched_getaffinity(0) == two_cores


@forks
def test_a_child_is_free_before_blas_is_let_go_and_starts_its_threads(two_cores: set[int], monkeypatch: Patch) -> None:
    found = []

    class Limit:
        """As threadpoolctl's; it says where the thread that lets go may run."""

        cores_at_end = 0
        lib_controllers = ()

        def limit(self, **_: object) -> Limit:
            return self

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            Limit.cores_at_end = len(os.sched_getaffinity(0))

    def fork(*_: slice) -> None:
        if threading.current_thread().name == "attention_np":  # which holds BLAS
            found.append(in_child(lambda: Limit.cores_at_end))
            forked.set()
        else:
            forked.wait(60)  # or this thread might do all the tasks

    forked = threading.Event()
    monkeypatch.setattr(blas, "controller", Limit)
    query, key, value = np.random.default_rng(0).standard_normal((3, 4, 800, 2))
    blockwise.forward(query, key, value, mask=Acting(fork), workers=2)
    assert set(found) == {2}
    assert os.sched_getaffinity(0) == two_cores
