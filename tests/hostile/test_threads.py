"""Many threads at once get the bits that each gets alone, whatever runs beside them and whatever ran before."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from helpers import BIASED, OPS, Array, Case, as_taken, assert_same_bits, each, leaves, normal, plain_case, takes

from attention_np import blockwise, gradcheck, masks, rules, softmax

from .strategies import Everything

THREADS = 8
BUSY = ("dot_product", "blockwise", "multi_head", "linear_attention")  # in threads of their own, or in several steps


def jobs() -> dict[str, Case]:
    """Calls of every op, large enough that threads meet in them."""
    found = {}
    for name in OPS:
        for seed, options in enumerate(({}, {"is_causal": True}, {"dropout_p": 0.3, "rng": 3})):
            case = plain_case(name, 33, 40, batch=(3,), seed=seed)
            if name == "blockwise":
                case = case._replace(options={"workers": 2, "block_size": 8})
            if options and name not in BIASED:
                options = {"mask": as_taken(name, masks.causal(33, 40, offset=seed))} if takes(name, "mask") else {}
            found[f"{name} {seed}"] = case._replace(options={**case.options, **options})
    return found


def results(case: Case) -> dict[str, bytes]:
    return {name: x.tobytes() for name, x in Everything(case).results.items()}


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """The results of `calls`, all started at the same moment in threads that are switched often."""
    barrier = Barrier(len(calls))

    def start(call: Callable[[], Any]) -> Any:
        barrier.wait()
        return call()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(start, calls))
    finally:
        sys.setswitchinterval(interval)


@each("op", BUSY, long=[op for op in OPS if op not in BUSY])
def test_calls_of_one_op_at_once_give_the_bits_of_each_alone(op: str) -> None:
    cases = [case for name, case in jobs().items() if name.startswith(op)]
    alone = [results(case) for case in cases]
    order = [i % len(cases) for i in range(THREADS)]
    found = at_once([lambda i=i: results(cases[i]) for i in order])
    assert found == [alone[i] for i in order]


def test_calls_of_different_ops_at_once_give_the_bits_of_each_alone() -> None:
    cases = list(jobs().values())
    alone = [results(case) for case in cases]
    assert at_once([lambda case=case: results(case) for case in cases]) == alone


def test_one_cache_serves_many_threads() -> None:
    for case in jobs().values():
        output, cache = case.forward()
        d_output = normal(1, *output.shape)
        found = at_once([lambda case=case, d=d_output, c=cache: case.op.backward(d, c)] * 4)
        expected = dict(leaves(case.op.backward(d_output, cache)))
        for gradients in found:
            for name, x in leaves(gradients):
                assert_same_bits(x, expected[name])


def test_errors_in_other_threads_change_nothing() -> None:
    case = jobs()["dot_product 0"]
    alone = results(case)

    def fails() -> None:
        with pytest.raises(ValueError, match="features"):
            case.forward(key=np.ones((40, 3)))

    assert at_once([fails, lambda: results(case)] * 4)[1::2] == [alone] * 4


def test_how_numpy_treats_errors_is_left_as_it_was_in_every_thread() -> None:
    def states() -> list[dict[str, str]]:
        with np.errstate(all="raise"):
            before = np.geterr()
            results(jobs()["dot_product 1"])
            return [before, np.geterr()]

    for before, after in at_once([states] * 4):
        assert before == after


def test_a_rule_serves_many_threads() -> None:
    segments = np.sort(np.random.default_rng(0).integers(0, 5, 40))
    rule = rules.causal() & rules.packed(segments)
    expected = rule.mask(40, 40).tobytes()
    assert set(at_once([lambda: rule.mask(40, 40).tobytes()] * THREADS)) == {expected}


def test_the_gradient_checker_at_once_gives_the_reports_of_each_alone() -> None:
    def report() -> str:
        return str(gradcheck.check_op(softmax, {"scores": normal(0, 2, 3)}))

    alone = report()
    assert at_once([report] * 4) == [alone] * 4


def test_a_generator_that_threads_share_is_drawn_from_once_a_call() -> None:
    x: Array = normal(0, 5, 4)
    rng = np.random.default_rng(0)
    outputs = at_once([lambda: blockwise.forward(x, x, x, dropout_p=0.5, rng=rng, workers=1)[0].tobytes()] * 4)
    again = np.random.default_rng(0)
    expected = [blockwise.forward(x, x, x, dropout_p=0.5, rng=again, workers=1)[0].tobytes() for _ in range(4)]
    assert sorted(outputs) == sorted(expected)
