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
