"""What a diagnosis may ask of the functions beyond the evidence."""

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import check, examining

from .programs import normal


@pytest.fixture
def asked(monkeypatch):
    """What may be asked of the first input of a check."""

    def of(forward, backward, inputs, **options):
        found = []
        monkeypatch.setattr(examining, "diagnose", lambda evidence: found.append(evidence.ask))
        check(forward, backward, inputs, **options)
        return found[0]

    return of


@each("method", ["complex-step", "central"])
def test_slopes_for_other_cotangents_are_known_in_the_entries_that_were_looked_at(asked, method):
    x = normal(3, 4, seed=1)
    ask = asked(np.sin, lambda d, x: 2 * d * np.cos(x), {"x": x}, method=method, max_entries=7)
    u = normal(2, 3, 4, seed=2)
    found = ask.slopes(u)
    known = np.isfinite(found)
    assert (known == known[0]).all()
    assert known[0].sum() >= 7
    np.testing.assert_allclose(found[known], (u * np.cos(x))[known], rtol=1e-7)


@each("method", ["complex-step", "central"])
def test_at_another_point_all_answers_are_of_that_point(asked, method):
    x, there, u = normal(3, 4, seed=1), normal(3, 4, seed=2), normal(2, 3, 4, seed=3)
    ask = asked(np.sin, lambda d, x: 2 * d * np.cos(x), {"x": x}, method=method)
    for point, answers in ((x, ask), (there, ask.moved({"x": there}))):
        np.testing.assert_array_equal(answers.output, np.sin(point))
        np.testing.assert_allclose(answers.slopes(u), u * np.cos(point), rtol=1e-7)
        np.testing.assert_array_equal(answers.claims(u), 2 * u * np.cos(point))


def test_of_a_function_that_refuses_to_be_asked_elsewhere_nothing_is_known_there(asked):
    def on_the_point(x):
        if not np.isclose(x.real, point, rtol=1e-9, atol=0).all():
            raise ValueError("x must be the point")
        return np.sin(x)

    point = normal(5, seed=1)
    ask = asked(on_the_point, lambda d, x: 2 * d * np.cos(x), {"x": point}, method="complex-step")
    there = ask.moved({"x": 2 * point})
    assert np.isnan(there.output).all()
    assert np.isnan(there.slopes(point[np.newaxis])).all()
    assert np.isnan(there.claims(point[np.newaxis])).all()
