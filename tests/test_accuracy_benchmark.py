"""The accuracy benchmark: its truth is the truth, and it measures what it says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, Patch, normal

from benchmarks import _truth, accuracy
from benchmarks._truth import Results

pytestmark = pytest.mark.long  # of what is run by hand

needs_extended_precision = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="numpy.longdouble is float64 on this machine"
)


def heads(n: int, m: int, score_scale: float) -> list[Array]:
    """Query, key, value and the gradient of the output, of one head."""
    query, key, value, d_output = (normal(i, rows, 8) for i, rows in enumerate((n, m, m, n)))
    return [query * score_scale, key, value, d_output]


def by_mpmath(query: Any, key: Any, value: Any, d_output: Any) -> tuple[Any, ...]:
    """Output and gradients by the definition, in 60 decimal digits."""
    mp = pytest.importorskip("mpmath").mp.clone()
    mp.dps = 60
    query, key, value, d_output = (mp.matrix(x.tolist()) for x in (query, key, value, d_output))
    scale = 1 / mp.sqrt(query.cols)
    weights = (query * key.T * scale).apply(mp.exp)
    d_scores = d_output * value.T
    for i in range(weights.rows):
        total = mp.fsum(weights[i, :])
        weights[i, :] = weights[i, :] / total
        mean = mp.fdot(weights[i, :], d_scores[i, :])
        for j in range(weights.cols):
            d_scores[i, j] = weights[i, j] * (d_scores[i, j] - mean)
    return weights * value, d_scores * key * scale, d_scores.T * query * scale, weights.T * d_output


@needs_extended_precision
@pytest.mark.parametrize("score_scale", [1.0, 64.0])
def test_the_truth_has_the_digits_of_extended_precision(score_scale: float) -> None:
    arrays = heads(5, 7, score_scale)
    for name, found, expected in zip(Results._fields, _truth.attention(*arrays), by_mpmath(*arrays), strict=True):
        high = found.astype(float)
        low = (found - high).astype(float)
        error = max(abs(h + (l - e)) for h, l, e in zip(high.flat, low.flat, expected, strict=True))  # noqa: E741
        assert error <= 1e-17 * max(map(abs, expected)), name


@needs_extended_precision
def test_the_truth_is_the_same_however_many_queries_it_takes_at_a_time(monkeypatch: Patch) -> None:
    arrays = heads(6, 9, 4.0)
    expected = _truth.attention(*arrays)
    monkeypatch.setattr(_truth, "ROWS", 4)
    for name, found, other in zip(Results._fields, _truth.attention(*arrays), expected, strict=True):
        assert np.abs(found - other).max() <= 1e-18 * np.abs(other).max(), name


@needs_extended_precision
def test_a_long_product_is_exact_where_float64_is_not() -> None:
    a, b = (normal(i, 4096).astype(np.longdouble) for i in range(2))
    terms = np.concatenate([a, -a]), np.concatenate([b, b])  # they cancel
    terms[0][0] += 2.0**-50
    found = _truth.product(terms[0][None, :], terms[1][:, None])[0, 0]
    exact = (terms[0][0] - a[0]) * b[0]
    assert abs(found - exact) <= 1e-18
    assert abs(found - exact) < 1e-3 * abs(exact)


def test_the_truth_of_float32_is_computed_in_float64() -> None:
    arrays = [x.astype(np.float32) for x in heads(3, 4, 1.0)]
    assert {x.dtype for x in _truth.attention(*arrays)} == {np.dtype(np.float64)}


def test_errors_are_relative_to_the_largest_and_to_the_mean_magnitude() -> None:
    truth = Results(*[np.array([[4.0, -2.0]])] * 4)
    found = Results(*[np.array([[4.0, -1.0]])] * 4)
    np.testing.assert_array_equal(accuracy.errors(found, truth), [[1 / 4] * 4, [1 / 6] * 4])


def measured(monkeypatch: Patch, tmp_path: Path, peer: accuracy.Attention) -> tuple[int, dict[str, Any]]:
    """The exit code and the numbers of one small cell, beside one peer."""
    own = {name: compute for name, compute in accuracy.implementations().items() if name in accuracy.OURS}
    monkeypatch.setattr(accuracy, "implementations", lambda: {**own, "peer": peer})
    monkeypatch.setattr(accuracy, "ROWS", 32)
    arguments = ["--n", "16", "--scale", "1", "--dtype", "float32", "--seeds", "2"]
    code = accuracy.main([*arguments, "--json", str(tmp_path / "accuracy.json")])
    return code, json.loads((tmp_path / "accuracy.json").read_text())


@pytest.fixture(autouse=True)
def _only_ours_is_installed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(accuracy, "installed", lambda _library: None)


def test_a_peer_of_the_same_bits_has_the_ratio_one(monkeypatch: Patch, tmp_path: Path) -> None:
    _, result = measured(monkeypatch, tmp_path, accuracy.ours(accuracy.dot_product))
    assert len(result["rows"]) == len(accuracy.ERRORS) * len(Results._fields)
    for row in result["rows"]:
        assert row["ratios"]["dot_product"] == 1
        assert 0 < row["root_mean_squares"]["blockwise"] < 1e-5


def test_a_better_peer_is_a_failure(monkeypatch: Patch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rounded_truth(*arrays: Array) -> Results:
        truths = [_truth.attention(*head) for head in zip(*arrays, strict=True)]
        return Results(*(np.array(x).astype(np.float32) for x in zip(*truths, strict=True)))

    code, result = measured(monkeypatch, tmp_path, rounded_truth)
    assert code == 1
    assert result["above_limit"]["dot_product"] > 0
    assert f"of {len(result['rows'])} ratios above" in capsys.readouterr().out


def test_without_a_peer_there_is_no_ratio_and_no_failure() -> None:
    assert accuracy.ratios({"dot_product": 1.0, "blockwise": 1.0}) == {}
