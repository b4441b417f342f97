"""The fixture `assert_gradients`, in runs of pytest of their own that find it by its entry point."""

import pytest

pytest_plugins = ["pytester"]

RIGHT_AND_WRONG = """
import sys
import numpy as np
import pytest

def test_starting_pytest_does_not_import_the_package():
    assert "_attention_np_pytest" in sys.modules
    assert "attention_np" not in sys.modules

@pytest.mark.parametrize("factor", [3.0, 1.0], ids=["right", "wrong"])
def test_cube(assert_gradients, factor):
    x = np.array([0.5, 2.0])
    assert_gradients(lambda x: x**3, lambda d_output, x: d_output * factor * x**2, {"cubed": x}, method="central")
"""
REPORT = ["*- Captured gradients call -*", "cubed *central*NO*", "The cotangent was drawn with rng=*"]

COTANGENTS = """  # appends what decides the check, the cotangent, to a file
import numpy as np
import pytest

@pytest.mark.parametrize("options", [{}, {}, {"rng": 7}, {"rng": 7}])
def test_identity(assert_gradients, options):
    def backward(d_output, x):
        cotangents.append(d_output.tolist())
        return d_output * 2.0  # should be 1

    cotangents = []
    with pytest.raises(AssertionError):
        assert_gradients(lambda x: x * 1.0, backward, {"x": np.ones(3)}, **options)
    with open("cotangents", "a") as file:
        print(cotangents[0], file=file)
"""


def run(pytester: pytest.Pytester, program: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(program)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)


def test_a_gradient_that_is_right_passes_and_one_that_is_wrong_fails_with_its_report(pytester: pytest.Pytester) -> None:
    result = run(pytester, RIGHT_AND_WRONG)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*GradientError: the gradient does not hold for cubed*", *REPORT])


@pytest.mark.long
def test_every_test_has_a_cotangent_of_its_own_which_the_seed_that_a_failure_names_draws_again(
    pytester: pytest.Pytester,
) -> None:
    result = run(pytester, COTANGENTS, "-rP")
    result.assert_outcomes(passed=4)
    seed = result.stdout.str().split("drawn with rng=")[1].split(".")[0]
    run(pytester, COTANGENTS.replace("7", seed)).assert_outcomes(passed=4)
    first, second, given, given_again, *again = (pytester.path / "cotangents").read_text().splitlines()
    assert len({first, second, given}) == 3
    assert given == given_again
    assert again == [first, second, first, first]
