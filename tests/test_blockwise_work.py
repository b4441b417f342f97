"""How the work of blockwise attention is cut into tasks, and who does them: the results do not tell."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import threading
import time
from collections import Counter
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import normal

from attention_np import blockwise, rules
from attention_np._blockwise import kernels, tiles, workers
from attention_np._blockwise import problem as problem_module
from attention_np._blockwise.problem import Place, Problem, grouped

CAUSAL = rules.causal()


def arranged(n: int, m: int, leading: tuple[int, ...] = (), **options: Any) -> Problem:
    """A problem of that size, to be looked at; its arrays take no memory."""
    query, key, value = (np.broadcast_to(np.float32(0), (*leading, size, 1)) for size in (n, m, m))
    given = {"bias": None, "rule": None, "scale": 1.0, "dropout_p": 0.0, "dropout_key": None, "block_size": None}
    return Problem(query=query, key=key, value=value, dtype=np.dtype(np.float32), **{**given, **options})


def sizes_of(places: list[Place]) -> Counter[tuple[int, int]]:
    return Counter((x.rows.stop - x.rows.start, x.columns.stop - x.columns.start) for x in places)


@pytest.mark.parametrize(
    ("heads", "n", "m", "strips", "squares"),
    [
        (1, 300, 200, {(300, 200): 1}, {(300, 200): 1}),
        (1, 600, 700, {(512, 700): 1, (88, 700): 1}, {(512, 700): 1, (88, 700): 1}),
        (1, 1024, 768, {(512, 768): 2}, {(512, 384): 4}),
        (1, 3000, 3000, {(512, 3000): 5, (440, 3000): 1}, {(1024, 1000): 6, (952, 1000): 3}),
        (1, 4096, 4096, {(1024, 4096): 4}, {(2048, 1024): 8}),
        (1, 6144, 6144, {(1024, 6144): 6}, {(2048, 2048): 9}),
        (4, 2049, 2048, {(2048, 2048): 4, (1, 2048): 4}, {(2048, 2048): 4, (1, 2048): 4}),
        (4, 2048, 2049, {(1024, 2049): 8}, {(2048, 2049): 4}),
        (7, 2048, 2048, {(1024, 2048): 14}, {(2048, 1024): 14}),
        (8, 2048, 2048, {(2048, 2048): 8}, {(2048, 2048): 8}),
        (8, 20, 5000, {(20, 5000): 8}, {(20, 2500): 16}),
    ],
    ids=str,
)
def test_tiles_are_as_large_as_leaves_enough_of_them(
    heads: int, n: int, m: int, strips: dict[tuple[int, int], int], squares: dict[tuple[int, int], int]
) -> None:
    problem = arranged(n, m, (heads,))
    assert sizes_of(problem.strips()) == strips
    assert sizes_of(problem.squares()) == squares
    for places in (problem.strips(), problem.squares()):
        seen = np.zeros((heads, n, m), np.int8)
        for place in places:
            seen[place.at][place.rows, place.columns] += 1
        assert (seen == 1).all()


def test_tiles_of_a_window_hold_the_keys_of_their_queries_in_even_parts() -> None:
    problem = arranged(1024, 1024, rule=rules.sliding_window(left=300))
    assert [x.columns for x in problem.strips()] == [slice(0, 512), slice(212, 1024)]
    assert [x.columns for x in problem.squares()] == [slice(0, 512), slice(212, 618), slice(618, 1024)]
    assert [problem.is_whole(x) for x in problem.squares()] == [True, False, False]


def test_blocks_under_a_rule_have_fewer_queries() -> None:
    (free,), (causal,) = (
        [p.tile(x) for x in p.strips()] for p in (arranged(300, 300), arranged(300, 300, rule=CAUSAL))
    )
    assert causal.block_size[0] < free.block_size[0]
    assert np.prod(causal.block_size) == np.prod(free.block_size)
    (own,) = (arranged(300, 300, block_size=(7, 9)).tile(x) for x in arranged(300, 300).strips())
    assert own.block_size == (7, 9)


def test_a_rule_is_asked_about_blocks_of_the_given_size() -> None:
    asked = set()

    class Asked(rules.Rule):
        def block(self, rows: slice, columns: slice) -> bool:
            asked.add((rows.stop - rows.start, columns.stop - columns.start))
            return True

    query, key = normal(0, 6, 2), normal(1, 20, 2)
    output, cache = blockwise.forward(query, key, key, mask=Asked(), block_size=(2, 5))
    blockwise.backward(output, cache)
    assert asked == {(2, 5)}


def in_one_row(*lengths: int) -> list[Place]:
    """Places of so many keys beside 1024 queries, so that each is enough pairs for a task."""
    ends = np.cumsum([100, *lengths]).tolist()
    return [Place((), slice(1000, 2024), slice(start, stop)) for start, stop in itertools.pairwise(ends)]


def grouped_in(*lengths: int) -> list[int]:
    places = in_one_row(*lengths)
    groups = list(grouped(places))
    assert list(itertools.chain(*groups)) == places
    return [len(group) for group in groups]


def test_a_task_is_as_many_tiles_as_leave_eight_tasks_but_no_more_than_are_worth_handing_over() -> None:
    assert grouped_in(*[1024] * 8) == [1] * 8
    assert grouped_in(*[1024] * 7, 1028) == [1] * 8
    assert grouped_in(*[1024] * 9) == [2] * 4 + [1]
    assert grouped_in(*[1024] * 40) == [2] * 20
    assert grouped_in(*[2047] * 9) == [2] * 4 + [1]
    assert grouped_in(*[2048] * 9) == [1] * 9


def test_a_task_is_worth_handing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    worth = problem_module.PAIRS_A_TASK
    for length, count in ((2, 2), (3, 2), (10, 4)):
        (place, *_) = places = in_one_row(*[length] * 12)
        rows, columns = place.rows.stop - place.rows.start, place.columns.stop - place.columns.start
        pairs = rows * columns + problem_module.PAIRS_TO_A_POSITION * (rows + columns)
        for less, expected in ((0, count), (1, count), (-1, count + 1)):
            monkeypatch.setattr(problem_module, "PAIRS_A_TASK", count * pairs - less)
            monkeypatch.setattr(problem_module, "POSITIONS_A_TASK", 0)
            assert [len(group) for group in grouped(places)][:-1] == [expected] * (-(-12 // expected) - 1)
    assert worth > 2**18


def test_queries_are_scaled_in_single_precision_over_many_keys_alone() -> None:
    scaled = [
        (dtype.__name__, m)
        for dtype in (np.float32, np.float64, np.longdouble)
        for m in (1, 100, 1000)
        for problem in [dataclasses.replace(arranged(4, m), dtype=np.dtype(dtype))]
        if kernels._is_to_scale_queries(problem.tile(problem.strips()[0]))
    ]
    assert scaled == [("float32", 1000)]


def test_small_tiles_are_prepared_together_but_not_too_many() -> None:
    for n, m in ((512, 3), (3, 512)):
        (tile,) = (problem.tile(x) for problem in [arranged(n, m)] for x in problem.strips())
        assert [len(batch) for batch in kernels._batches([tile] * 9)] == [4, 4, 1]
    other = dataclasses.replace(tile, rule=CAUSAL)
    assert [len(batch) for batch in kernels._batches([tile, tile, other, tile])] == [2, 1, 1]
    assert list(kernels._batches([])) == []


def test_blocks_of_several_heads_fit_the_cache_together() -> None:
    def at_once(n: int, m: int, block_size: tuple[int, int]) -> int:
        problem = arranged(n, m, block_size=block_size)
        (tile,) = (problem.tile(x) for x in problem.strips())
        heads = [block[0] for block in kernels._blocks([tile] * 5, tile.columns)]
        assert heads[0].start == 0
        assert heads[-1].stop == 5
        return int(heads[0].stop)

    assert at_once(500, 512, (128, 512)) == 2
    assert at_once(500, 500, (500, 500)) == 1
    assert at_once(64, 512, (128, 1024)) == 4
    assert at_once(3, 4, (128, 512)) == 5


class Watched(Executor):
    """Does each task at once, and counts them."""

    tasks = 0

    def submit(self, function: Any, /, *args: Any, **_: Any) -> Future[Any]:
        self.tasks += 1
        future: Future[Any] = Future()
        future.set_result(function(*args))
        return future


def test_an_executor_runs_the_tasks_of_every_pass() -> None:
    query, key, value = normal(0, 4, 2), normal(1, 5, 2), normal(2, 5, 3)
    passes = [Watched() for _ in range(4)]
    output, cache = blockwise.forward(query, key, value, executor=passes[0])
    blockwise.backward(output, cache, executor=passes[1])
    blockwise.jvp(cache, query=query, executor=passes[2])
    assert [x.tasks for x in passes] == [1, 1, 1, 0]
    query[2] *= 1e20  # its log-sum-exp is too coarse
    output, cache = blockwise.forward(query, key, value)
    blockwise.backward(output, cache, executor=passes[3])
    assert passes[3].tasks == 2


@pytest.mark.parametrize("count", [2, 3])
def test_no_thread_runs_far_ahead_of_the_results(count: int) -> None:
    begun, go_on = set(), threading.Event()

    def work(number: int) -> int:
        begun.add(number)
        if number == 0:
            assert go_on.wait(60)
        return number

    def look() -> None:
        for _ in range(2000):
            if len(begun) > 2 * count:
                break
            time.sleep(0.01)
        time.sleep(0.2)  # the next would begin at once
        ahead.extend(sorted(begun))
        go_on.set()

    ahead: list[int] = []
    done: list[int] = []
    looking = threading.Thread(target=look)
    looking.start()
    workers.run(work, ((i, i) for i in range(40)), lambda _, number: done.append(number), None, count)
    looking.join()
    assert ahead == list(range(2 * count + 1))
    assert done == list(range(40))


def test_after_an_error_no_more_tasks_begin() -> None:
    begun = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 1:
            raise RuntimeError("no")
        time.sleep(0.002)

    with pytest.raises(RuntimeError, match="no"):
        workers.run(work, ((i, i) for i in range(500)), lambda *_: None, None, 2)
    assert len(begun) < 250


def test_of_a_part_of_a_file_only_a_few_rows_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = np.memmap(tmp_path / "key", np.float32, "w+", shape=(1000, 2))
    read = []
    checksum = tiles.crc32
    monkeypatch.setattr(tiles, "crc32", lambda content: (read.append(len(content)), checksum(content))[1])
    (tile,) = (problem.tile(x) for problem in [arranged(4, 1000)] for x in problem.strips())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(dataclasses.replace(tile, key=file))).key, file)  # noqa: S301
    assert read
    assert max(read) == 8 * file.itemsize * 2


def test_a_tile_that_has_travelled_opens_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
