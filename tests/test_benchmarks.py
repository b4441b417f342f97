"""The benchmarks: what is compared is the same, times are taken in turn, and the files hold what the tables say."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Patch

from benchmarks import _contenders, _floor, memory, short, window
from benchmarks import blockwise as side_by_side
from benchmarks._contenders import Contender, random_inputs
from benchmarks._timing import interleaved, spread

pytestmark = pytest.mark.long  # of what is run by hand

ROOT = Path(__file__).parents[1]
SMALLEST = {
    "blockwise": ["--shapes", "1,2,32,8", "--rounds", "1"],
    "memory": ["--sizes", "256"],
    "cluster": ["--n", "64", "--heads", "1", "--rounds", "1"],
    "short": ["--only", "softmax", "rotary", "--rounds", "1"],
    "tiny": ["--rounds", "3", "--calls", "1"],
    "window": ["--n", "64", "--window", "8", "--rounds", "1"],
    "latent": ["--tokens", "8", "--heads", "1", "--rounds", "1"],
    "linear_attention": ["--n", "128", "--longest", "1024", "--heads", "1", "--rounds", "1"],
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """What a program writes for its smallest configuration, from a process of its own: JAX's settings are global."""
    found: dict[str, Any] = {}

    def of(program: str) -> Any:
        if program == "cluster":
            pytest.importorskip("distributed", reason="a cluster needs Dask: pip install distributed")
        if program not in found:
            file = tmp_path_factory.mktemp("results") / "new" / f"{program}.json"
            command = [sys.executable, "-m", f"benchmarks.{program}", *SMALLEST[program], "--json", str(file)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            found[program] = json.loads(file.read_text(encoding="utf-8"))
        return found[program]

    return of


@pytest.mark.parametrize("program", SMALLEST)
def test_the_file_says_what_the_numbers_were_measured_on(stored: Callable[[str], Any], program: str) -> None:
    machine = stored(program)["machine"]
    assert machine["versions"]["numpy"] == np.__version__
    assert machine["cores"] >= 1
    assert machine["processor"]
    assert all(blas["architecture"] for blas in machine["blas"] if blas["internal_api"] == "openblas")


def test_all_contenders_compute_the_same_to_rounding(stored: Callable[[str], Any]) -> None:
    found = stored("blockwise")
    there = {"NumPy": "numpy", "PyTorch": "torch", "JAX": "jax"}
    peers = {name for name, library in there.items() if found["machine"]["versions"][library]}
    for row in found["rows"]:
        assert set(row["differences"]) == peers
        for name, difference in row["differences"].items():
            precision = "float32" if name == "JAX" else row["dtype"]
            assert difference <= 20 * np.finfo(precision).eps


def test_every_dtype_mask_and_pass_has_a_row_of_times_and_ratios(stored: Callable[[str], Any]) -> None:
    rows = stored("blockwise")["rows"]
    places = {(row["dtype"], row["mask"], row["pass"]) for row in rows}
    assert len(rows) == len(places) == 8
    assert [row["pass"] for row in rows if "double / backward" in row["ratios"]] == ["forward + backward"] * 4
    for row in rows:
        times = {name: found["median"] for name, found in row["milliseconds"].items()}
        assert ("floor, whole" in times) == (row["mask"] == "full")
        floor = min(time for name, time in times.items() if name.startswith("floor"))
        expected = {f"ours / {name}": times["ours"] / times[name] for name in row["differences"]}
        expected["floor / ours"] = floor / times["ours"]
        expected |= {f"{by} / ours": times[by] / times["ours"] for by in ("sigmoid", "silu")}
        if "backward" in times:
            expected["double / backward"] = times["double backward"] / times["backward"]
        assert {name: ratio["median"] for name, ratio in row["ratios"].items()} == pytest.approx(expected)


def test_a_contender_that_computes_something_else_stops_the_benchmark(monkeypatch: Patch) -> None:
    def with_wrong_key_gradient(inputs: Any) -> list[Contender]:
        right = _contenders.by_numpy(inputs)

        def wrong() -> tuple[Any, ...]:
            output, d_query, d_key, d_value = right.both()
            return output, d_query, d_key * 1.001, d_value

        return [_contenders.ours(inputs), right._replace(name="wrong", both=wrong)]

    monkeypatch.setattr(side_by_side, "contenders", with_wrong_key_gradient)
    with pytest.raises(SystemExit, match=r"^wrong differs from ours by 1\.0e-03, causal float64 at \(1, 1, 8, 4\)"):
        side_by_side.measure((1, 1, 8, 4), "float64", "causal", rounds=1)


def test_peers_that_are_not_installed_are_left_out(monkeypatch: Patch) -> None:
    monkeypatch.setattr(_contenders, "installed", lambda library: None)
    found = _contenders.contenders(random_inputs((1, 1, 4, 2), "float64"))
    assert [contender.name for contender in found] == ["ours", "NumPy"]


@pytest.mark.parametrize("floor", [_floor.whole, _floor.in_blocks])
def test_the_floor_is_two_products_forward_and_seven_with_backward(
    monkeypatch: Patch, floor: Callable[[Any], Contender]
) -> None:
    shape = 2, 3, 700, 8
    contender = floor(random_inputs(shape, "float32"))
    one = 2 * 3 * 700 * 700 * 8
    assert multiplications(monkeypatch, contender.forward) == 2 * one
    assert multiplications(monkeypatch, contender.both) == 7 * one


def test_the_causal_floor_leaves_out_the_blocks_that_are_ruled_out(monkeypatch: Patch) -> None:
    contender = _floor.in_blocks(random_inputs((1, 1, 4096, 8), "float32", is_causal=True))
    one = 4096 * 4096 * 8
    for run, products in ((contender.forward, 2), (contender.both, 7)):
        assert 0.5 < multiplications(monkeypatch, run) / (products * one) < 0.6


def multiplications(monkeypatch: Patch, run: Callable[[], object]) -> int:
    counts: list[int] = []
    matmul = np.matmul

    def counting(a: Any, b: Any, out: Any) -> Any:
        counts.append(out.size * a.shape[-1])
        return matmul(a, b, out=out)

    with monkeypatch.context() as patched:
        patched.setattr(np, "matmul", counting)
        run()
    return sum(counts)


def test_each_round_begins_one_further_along_and_each_turn_with_a_call_that_is_not_timed() -> None:
    order: list[str] = []
    runs = {name: (lambda name=name: order.append(name)) for name in "abc"}
    times = interleaved(runs, rounds=2, calls=2)
    assert "".join(order) == "aaabbbccc" + "bbbcccaaa"
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2, "c": 2}


def test_a_spread_is_the_median_the_quartiles_and_the_least() -> None:
    assert spread([5.0, 1.0, 4.0, 2.0, 3.0]) == (3.0, 2.0, 4.0, 1.0)


def test_a_ratio_is_the_median_of_the_rounds_and_the_floor_is_the_faster() -> None:
    seconds = {
        "ours": [1.0, 20.0, 3.0],
        "PyTorch": [2.0, 10.0, 6.0],
        "floor, whole": [5.0, 5.0, 5.0],
        "floor, blocks": [0.9, 18.0, 2.7],
    }
    row = side_by_side.summary((1, 8, 2048, 64), "forward + backward", seconds)
    assert row["ratios"]["ours / PyTorch"]["median"] == 0.5
    assert row["ratios"]["floor / ours"]["median"] == pytest.approx(0.9)
    assert row["targets"] == {"ours / PyTorch <= 1.0": True, "floor / ours >= 0.85": True}
    slower = {**seconds, "ours": [2.2, 22.0, 6.6]}
    row = side_by_side.summary((1, 8, 2048, 64), "forward + backward", slower)
    assert row["targets"] == {"ours / PyTorch <= 1.0": False, "floor / ours >= 0.85": False}
    for shape, which, target in (
        ((2, 8, 512, 64), "forward + backward", "ours / PyTorch <= 1.3"),
        ((1, 8, 2048, 64), "forward", "ours / PyTorch <= 1.0"),
    ):
        assert list(side_by_side.summary(shape, which, slower)["targets"]) == [target]


def test_peak_memory_is_that_of_the_fresh_process_alone() -> None:
    ours = np.ones(2**25)  # 256 MiB here, which the child must not inherit as its own peak
    row = memory.measure(512)
    assert row["bytes_cache"] < row["bytes_above"] < ours.nbytes / 4
    assert row["targets"] == {"64 MiB a worker": True}


def test_memory_has_a_row_for_each_length(stored: Callable[[str], Any]) -> None:
    (row,) = stored("memory")["rows"]
    assert row["n"] == 256
    assert row["seconds_forward"] > 0
    assert row["seconds_backward"] > 0


def test_linear_attention_is_held_against_the_same_numbers(stored: Callable[[str], Any]) -> None:
    pytest.importorskip("torch", reason="the comparison needs torch: pip install attention-np[peers]")
    for row, digits in zip(stored("linear_attention")["rows"], (1e-5, 1e-13), strict=True):
        assert row["difference"] < digits
        assert row["ratio"] > 0


def test_a_probe_and_a_response_are_timed_beside_the_delta_rule_with_each_number_of_decays(
    stored: Callable[[str], Any],
) -> None:
    probes = stored("linear_attention")["probes"]
    assert {(row["dtype"], row["decays"]) for row in probes} == {
        (dtype, decays) for dtype in ("float32", "float64") for decays in ("none", "one", "one a feature")
    }
    for row in probes:
        assert row["ratio"] == pytest.approx(row["milliseconds"]["probe"] / row["milliseconds"]["delta"])


def test_a_window_is_held_against_full_attention_and_timed_by_length_and_width(stored: Callable[[str], Any]) -> None:
    found = stored("window")
    median = {(row["n"], row["window"]): row["milliseconds"]["median"] for row in found["rows"]}
    assert set(median) == {(n, w) for n in (16, 32, 64) for w in (4, 8, 16)}
    assert found["times_faster"] == pytest.approx(1000 * found["seconds_full"] / median[64, 8])
    assert found["targets"]["50 times faster than full"] == (found["times_faster"] >= 50)


def test_a_selection_is_timed_beside_that_of_all_blocks(stored: Callable[[str], Any]) -> None:
    times = stored("window")["time_of_a_selection"]
    assert times.keys() == {"1.0", "0.5", "0.25", "0.125"}
    assert times["1.0"] == 1
    assert min(times.values()) > 0


def test_latent_attention_has_its_ratio_beside_what_its_page_counts(stored: Callable[[str], Any]) -> None:
    rows = stored("latent")["rows"]
    assert [row["queries"] for row in rows] == [1, 16, 256]
    assert rows[0]["counted"] == pytest.approx(8 * 131392 / (512 * 256 + 8 * 1088))
    for row in rows:
        assert row["ratio"] == pytest.approx(row["milliseconds"]["plain"] / row["milliseconds"]["absorbed"])


def test_a_window_lets_each_query_attend_to_so_many_keys(monkeypatch: Patch) -> None:
    masks = []
    forward = window.blockwise.forward
    monkeypatch.setattr(
        window.blockwise, "forward", lambda *args, mask: (masks.append(mask), forward(*args, mask=mask))[1]
    )
    window.run(32, 5)()
    visible = masks[0].block(slice(0, 32), slice(0, 32))
    np.testing.assert_array_equal(visible.sum(axis=1), np.minimum(np.arange(32) + 1, 5))


def test_tiny_sizes_have_their_ratio_to_pytorch(stored: Callable[[str], Any]) -> None:
    rows = stored("tiny")["rows"]
    assert [(row["shape"], row["dtype"]) for row in rows] == [
        (shape, dtype) for shape in ([1, 1, 16, 64], [2, 8, 16, 64]) for dtype in ("float32", "float64")
    ]
    for row in rows:
        least = {name: found["least"] for name, found in row["microseconds"].items()}
        expected = {f"ours / {name}": least["ours"] / least[name] for name in least if name != "ours"}
        assert row["ratios"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--shapes", "1,2,3"], "a shape is batch,heads,n,d, not 1,2,3"),
        (["--shapes", "1,2,0,4"], "0 is not a number above zero"),
        (["--rounds", "none"], "none is not a number above zero"),
        (["--json", str(ROOT)], f"{ROOT} is a directory"),
    ],
)
def test_unusable_arguments_are_refused_before_any_work(
    monkeypatch: Patch, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["blockwise", *arguments])
    monkeypatch.setattr(side_by_side, "measure", pytest.fail)
    with pytest.raises(SystemExit) as stopped:
        side_by_side.main()
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


def test_the_short_form_times_what_computes_the_same_and_marks_what_grew(capsys: pytest.CaptureFixture[str]) -> None:
    def case(factor: float) -> short.Case:
        runs = {"ours": lambda: (np.ones(3),), "NumPy": lambda: (factor * np.ones(3),), "floor, blocks": lambda: None}
        return short.Case("case", (3,), "float32", "forward", runs, 1)

    row = short.measure(case(1), 1)
    assert set(row["ratios"]) == {"ours / NumPy", "ours / floor"}
    with pytest.raises(SystemExit, match=r"^NumPy differs from ours in case at \(3,\)"):
        short.measure(case(1.001), 1)
    same = [row | {"ratios": {name: ratio / 1.09 for name, ratio in row["ratios"].items()}}]
    slower = [row | {"ratios": {name: ratio / 1.11 for name, ratio in row["ratios"].items()}}]
    assert short.since(row, [row | {"shape": [4]}]) is None
    assert [short.print_table([row], stored) for stored in ([], same, slower)] == [0, 0, 1]
    assert "1.11 slower" in capsys.readouterr().out


def test_every_formula_beside_a_call_of_ours_computes_the_same() -> None:
    for pair in short.pairs():
        short._compare(
            short.Case(pair.name, pair.shape, "float32", pair.which, {"ours": pair.ours, "NumPy": pair.plain}, 1)
        )
