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

from attention_np.gradcheck.checking import assert_gradients, check, check_op
from attention_np.gradcheck.numerical import METHODS, NotAnalyticError, numerical_gradient
from attention_np.gradcheck.report import GradientError, InputReport, Report

__all__ = [
    "METHODS",
    "GradientError",
    "InputReport",
    "NotAnalyticError",
    "Report",
    "assert_gradients",
    "check",
    "check_op",
    "numerical_gradient",
]
