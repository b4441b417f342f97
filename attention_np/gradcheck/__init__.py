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
"""

from attention_np.gradcheck import autograd, jax, plot, torch
from attention_np.gradcheck.check import assert_gradients, check
from attention_np.gradcheck.layers import check_layer
from attention_np.gradcheck.low_precision import check_low_precision
from attention_np.gradcheck.ops import check_op
from attention_np.gradcheck.problem.calls import NotAnalyticError
from attention_np.gradcheck.report.findings import InputReport
from attention_np.gradcheck.report.reporting import GradientError, Report
from attention_np.gradcheck.second_order import check_hessian
from attention_np.gradcheck.slopes.measuring import METHODS
from attention_np.gradcheck.slopes.numerical import numerical_gradient

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
