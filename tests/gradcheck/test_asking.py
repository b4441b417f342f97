"""What a diagnosis may ask of the functions beyond the evidence."""

import numpy as np
import pytest

from attention_np.gradcheck import check, examining

from .programs import Watched, normal


@pytest.fixture
def asked(monkeypatch):
    """What may be asked of the first input of a check."""

    def of(forward, backward, inputs, **options):
        found = []
        monkeypatch.setattr(examining, "diagnose", lambda evidence: found.append(evidence.ask))
        check(forward, backward, inputs, **options)
        return found[0]

    return of


@pytest.mark.parametrize("method", ["complex-step", "central"])
def test_slopes_for_other_cotangents_are_known_in_the_entries_that_were_looked_at(asked, method):
    x = normal(3, 4, seed=1)
    ask = asked(np.sin, lambda d, x: 2 * d * np.cos(x), {"x": x}, method=method, max_entries=7)
    u = normal(2, 3, 4, seed=2)
    found = ask.slopes(u)
    known = np.isfinite(found)
    assert (known == known[0]).all()
    assert known[0].sum() >= 7
    np.testing.assert_allclose(found[known], (u * np.cos(x))[known], rtol=1e-7)


@pytest.mark.parametrize("method", ["complex-step", "central"])
def test_nearby_is_another_point_with_other_cotangents_and_both_gradients_are_of_it(asked, method):
    x = normal(3, 4, seed=1)
    ask = asked(np.sin, lambda d, x: 2 * d * np.cos(x), {"x": x}, method=method)
    claimed, right = ask.nearby()
    np.testing.assert_allclose(claimed, 2 * right, rtol=1e-7)
    here = np.stack([u * np.cos(x) for u in ask.found.candidate.cotangents])
    off = np.abs(right / here - 1)
    assert off.max() < 1e-3
    assert off.min() > 1e-8


def test_of_a_function_that_refuses_to_be_asked_nearby_nothing_is_known_there(asked):
    def on_the_point(x):
        if not np.isclose(x.real, point, rtol=1e-9, atol=0).all():
            raise ValueError("x must be the point")
        return np.sin(x)

    point = normal(5, seed=1)
    ask = asked(on_the_point, lambda d, x: 2 * d * np.cos(x), {"x": point}, method="complex-step")
    _, right = ask.nearby()
    assert np.isnan(right).all()


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        (lambda x: x * x, [True, True, True]),
        (lambda x: x * x * [1, 0, 1], [True, False, True]),
        (lambda x: np.exp(x - [0, 1e9, 0]), [True, False, True]),
        (lambda x: np.maximum(x.real, 0) ** 2, [True, True, False]),
    ],
)
def test_an_entry_has_an_effect_if_an_output_changes_when_it_moves(asked, forward, expected):
    x = np.array([0.0, 1.3, -0.7])
    ask = asked(forward, lambda d, x: d * np.sin(x) + 1, {"x": x})
    assert [ask.have_an_effect(np.arange(3) == k) for k in range(3)] == expected


def test_of_many_entries_only_some_are_moved(asked):
    nothing = Watched(lambda x: 0 * x[:3])
    ask = asked(nothing, lambda d, x: x + d.sum(), {"x": normal(500, seed=1)}, max_entries=20)
    nothing.seen.clear()
    assert not ask.have_an_effect(np.ones(500, bool))
    assert len(nothing.seen) == 40
    assert not ask.have_an_effect(np.zeros(500, bool))
