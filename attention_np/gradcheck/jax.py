"""Check JAX's gradients, or those of your own ``jax.custom_vjp``, with one call.

::

    import jax
    import numpy as np
    from attention_np import gradcheck

    @jax.custom_vjp
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (cube(x), x), lambda x, d_output: (d_output * 3 * x,))  # a square is missing

    print(gradcheck.jax.check(cube, np.array([0.5, 2.0])))
"""

from attention_np.gradcheck.adapters.jax import assert_gradients, check

__all__ = ["assert_gradients", "check"]
