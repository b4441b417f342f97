import numpy as np
from helpers import each

from attention_np.gradcheck.measuring.reach import reach_of
from attention_np.gradcheck.measuring.slopes import by_complex_step
from attention_np.gradcheck.measuring.steps import by_best_differences

from .programs import softmax
from .subjects import every_entry, subject_of

EPS = float(np.finfo(np.float64).eps)


@each(
    ("forward", "x", "u"),
    [
        (softmax, [60.0, 0.0, 1.0], [3.0, 1.0, 1.0]),  # the first lacks exp(-59), and its slope is that
        (lambda x: 1 - np.tanh(x), [30.0], [1.0]),  # rounded to zero, it loses the last bits of what it was
    ],
)
def test_a_saturated_output_loses_its_last_bits_of_the_slope(forward, x, u):
    subject = subject_of(forward, np.array(x), cotangent=u)
    assert subject.output[0] in (0, 1)
    directions = every_entry(subject)
    reach = reach_of(subject, directions)
    for found in (by_complex_step(subject, directions, reach=reach), by_best_differences(subject, directions)):
        assert (found.lost >= u[0] * EPS).all()
        assert (found.lost <= 100 * EPS).all()


def test_how_far_an_output_gets_is_seen_where_the_input_is_smaller_and_a_step_of_differences_away():
    subject = subject_of(lambda x: np.concatenate([x**3, 1 / x]), np.array([1.0]))
    reach = reach_of(subject, every_entry(subject))
    np.testing.assert_array_equal(reach.largest, [[(1 + 2.0**-7) ** 3, 32]])


def test_what_depends_on_a_small_entry_is_seen_where_it_moves_as_far_as_the_others():
    subject = subject_of(lambda x: np.stack([2.0**46 + x[0], 2.0**60 + x[0], x[0]]), np.array([2.0**-10, 64.0, 64.0]))
    reach = reach_of(subject, every_entry(subject))
    np.testing.assert_array_equal(reach.touched[0], [True, False, True])  # half a unit moves the last bit of the first
