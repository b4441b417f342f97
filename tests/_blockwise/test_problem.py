"""How a call is cut into tiles and tasks: enough of them, none too large."""

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
from helpers import Shape, each, normal, peak_of

from attention_np import blockwise, rules
from attention_np._blockwise import kernels
from attention_np._blockwise import problem as problem_module
from attention_np._blockwise.problem import Place, grouped

from .calls import Acting, arranged

CAUSAL = rules.causal()


def sizes_of(places: list[Place]) -> Counter[Shape]:
    return Counter((x.rows.stop - x.rows.start, x.columns.stop - x.columns.start) for x in places)


@each(
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
)
def test_tiles_are_as_large_as_leaves_enough_of_them(
    heads: int, n: int, m: int, strips: dict[Shape, int], squares: dict[Shape, int]
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
    problem = arranged(1024, 1024, mask=rules.sliding_window(left=300))
    assert [x.columns for x in problem.strips()] == [slice(0, 512), slice(212, 1024)]
    assert [x.columns for x in problem.squares()] == [slice(0, 512), slice(212, 618), slice(618, 1024)]
    assert [problem.is_whole(x) for x in problem.squares()] == [True, False, False]


def test_blocks_under_a_rule_have_fewer_queries() -> None:
    (free,), (causal,) = (
        [p.tile(x) for x in p.strips()] for p in (arranged(300, 300), arranged(300, 300, mask=CAUSAL))
    )
    assert causal.block_size[0] < free.block_size[0]
    assert np.prod(causal.block_size) <= np.prod(free.block_size)
    (own,) = (arranged(300, 300, block_size=(7, 9)).tile(x) for x in arranged(300, 300).strips())
    assert own.block_size == (7, 9)


def test_a_rule_is_asked_about_blocks_of_the_given_size() -> None:
    asked = set()
    rule = Acting(lambda rows, columns: asked.add((rows.stop - rows.start, columns.stop - columns.start)))
    query, key = normal(0, 6, 2), normal(1, 20, 2)
    output, cache = blockwise.forward(query, key, key, mask=rule, block_size=(2, 5))
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


def test_tasks_get_smaller_but_no_place_is_cut() -> None:
    assert grouped_in(*[1024] * 9) == [1] * 9
    assert grouped_in(*[512] * 16) == [2, 2, 2, 2, 2, 2, 1, 1, 1, 1]
    assert grouped_in(*[700] * 6) == [2, 1, 1, 1, 1]
    assert grouped_in(1024) == [1]
    assert grouped_in() == []


def test_a_task_is_worth_handing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problem_module.LEAST_PAIRS >= 2**18
    for length, count in ((2, 4), (3, 5), (10, 6)):
        (place, *_) = places = in_one_row(*[length] * 12)
        rows, columns = place.rows.stop - place.rows.start, place.columns.stop - place.columns.start
        pairs = rows * columns + problem_module.PAIRS_TO_A_POSITION * (rows + columns)
        for less, expected in ((0, count), (1, count), (-1, count + 1)):
            monkeypatch.setattr(problem_module, "LEAST_PAIRS", count * pairs - less)
            assert [len(group) for group in grouped(places)][:-1] == [expected] * (-(-12 // expected) - 1)


def test_small_tiles_are_prepared_together_but_not_too_many() -> None:
    for n, m in ((256, 3), (3, 256)):
        (tile,) = (problem.tile(x) for problem in [arranged(n, m)] for x in problem.strips())
        assert [len(batch) for batch in kernels._batches([tile] * 9)] == [8, 1]
    other = dataclasses.replace(tile, rule=CAUSAL)
    assert list(kernels._batches([tile, tile, other, tile])) == [[0, 1, 3], [2]]
    assert list(kernels._batches([])) == []


def test_blocks_of_several_heads_fit_the_cache_together() -> None:
    def at_once(n: int, m: int, block_size: Shape) -> int:
        problem = arranged(n, m, block_size=block_size)
        (tile,) = (problem.tile(x) for x in problem.strips())
        heads = [block[0] for block in kernels._blocks([tile] * 5, tile.columns)]
        assert heads[0].start == 0
        assert heads[-1].stop == 5
        return int(heads[0].stop)

    assert at_once(500, 512, (128, 512)) == 4
    assert at_once(500, 512, (512, 512)) == 1
    assert at_once(64, 512, (128, 1024)) == 5
    assert at_once(3, 4, (128, 512)) == 5


@each(
    ("n", "m", "heads"),
    [(1, 4096, 32), (4096, 1, 32), (1, 65536, 8), (16, 16, 4096), (512, 512, 32), (2048, 2048, 8), (1, 2**20, 8)],
)
def test_there_are_tasks_for_eight_cores_however_few_queries_or_keys_there_are(n: int, m: int, heads: int) -> None:
    call = arranged(n, m, (heads,), features=64)
    for places in (call.strips(), call.squares()):
        groups = list(grouped(places))
        assert len(groups) >= 8
        assert [place for group in groups for place in group] == places


@each(("n", "m", "heads"), [(1, 2**20, 1), (2**20, 1, 1), (1, 4096, 256), (16, 16, 2**15)])
def test_no_task_gives_more_than_some_megabytes_of_gradients(n: int, m: int, heads: int) -> None:
    for group in grouped(arranged(n, m, (heads,), features=64).squares()):
        rows = sum(place.rows.stop - place.rows.start for place in group)
        columns = sum(place.columns.stop - place.columns.start for place in group)
        assert max(rows, columns) <= 2**14  # of 64 numbers, of keys twice: 8 MiB in float32


@pytest.mark.parametrize(("n", "m"), [(1, 100_000), (100_000, 1)])
def test_the_memory_of_few_queries_or_keys_is_that_of_a_few_tasks(n: int, m: int) -> None:
    query, key, value, d_output = (normal(i, s, 32).astype(np.float32) for i, s in enumerate((n, m, m, n)))
    results = 4 * 32 * (2 * n + n + 2 * m)  # output, its copy, gradients

    def both() -> None:
        _, cache = blockwise.forward(query, key, value, workers=1)
        blockwise.backward(d_output, cache, workers=1)

    assert peak_of(both) < results + 10 * 2**20
