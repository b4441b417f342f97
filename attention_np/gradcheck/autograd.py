"""Check the gradients of HIPS autograd, or those of your own ``defvjp``, with one call.

::

    import numpy as np
    from autograd.extend import defvjp, primitive
    from attention_np import gradcheck

    @primitive
    def cube(x):
        return x**3

    defvjp(cube, lambda output, x: lambda d_output: d_output * 3 * x)  # a square is missing

    print(gradcheck.autograd.check(cube, np.array([0.5, 2.0])))
"""

from attention_np.gradcheck.adapters.autograd import assert_gradients, check

__all__ = ["assert_gradients", "check"]
