"""Check gradients: yours against numerical ones, element by element.

>>> import numpy as np
>>> from attention_np import gradcheck
>>> def forward(x, y):
...     return np.sin(x) * y
>>> def backward(d_output, x, y):
...     return d_output * np.cos(x) * y, d_output * np.cos(x)  # the second should be sin(x)
>>> report = gradcheck.check(forward, backward, {"x": np.array([0.5, 1.0]), "y": np.array([2.0, 3.0])})
>>> report.ok, report["x"].ok, report["y"].ok
(False, True, False)

What is claimed less what is measured is zero for a right gradient wherever one asks. ``flow`` goes through six rooms:

- ``problem`` calls the functions, nests and all, as functions of arrays at a point.
- ``slopes`` measures by the complex step and by differences, and says how well; ``probes`` says which may be taken.
- ``evidence`` asks claim and slope again: in the last bits around, in a wider dtype, at other points.
- ``verdict`` decides: each entry by its floor and the bound in ``judging``, the input as a whole in ``deciding``.
- ``words`` puts what is wrong in a sentence. A new cause is a module there with ``READINGS``, and nothing else.
- ``report`` holds, prints and saves it.

The doors are ``check``, ``numerical``, ``ops``, ``layers``, ``second_order``, ``low_precision``, ``torch``, ``jax`` and
``autograd``.
Formulas and bounds are derived in ``derivations/gradcheck.md``.
"""

from attention_np.gradcheck import autograd, jax, plot, torch
from attention_np.gradcheck.check import assert_gradients, check
from attention_np.gradcheck.layers import check_layer
from attention_np.gradcheck.low_precision import check_low_precision
from attention_np.gradcheck.numerical import numerical_gradient
from attention_np.gradcheck.ops import check_op
from attention_np.gradcheck.problem.calls import NotAnalyticError
from attention_np.gradcheck.report.findings import InputReport
from attention_np.gradcheck.report.reporting import GradientError, Report
from attention_np.gradcheck.second_order import check_hessian
from attention_np.gradcheck.slopes.measuring import METHODS

__all__ = [
    "METHODS",
    "GradientError",
    "InputReport",
    "NotAnalyticError",
    "Report",
    "assert_gradients",
    "autograd",
    "check",
    "check_hessian",
    "check_layer",
    "check_low_precision",
    "check_op",
    "jax",
    "numerical_gradient",
    "plot",
    "torch",
]
