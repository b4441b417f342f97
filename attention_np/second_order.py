r"""Second derivatives of every op, as a Hessian-vector product.

.. math::

    H = \frac{\partial^2 \langle \bar{O}, O \rangle}{\partial x \, \partial x}, \qquad
    H \dot{x} = \frac{\partial}{\partial x} \langle \dot{x}, \mathrm{backward}(\bar{O}) \rangle

The matrix H is never formed: its product with a vector is the gradient of the product of two vectors, one of which is
the gradient itself. That is what ``double_backward`` of an op returns beside the gradient with respect to
:math:`\bar{O}`.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

__all__ = ["hessian_vector_product"]


def hessian_vector_product(op: Any, d_output: npt.ArrayLike, cache: Any, **tangents: Any) -> Any:
    """The Hessian of ``<d_output, output>`` with respect to all arrays of an op, times a vector.

    Parameters
    ----------
    op : module
        One of ``attention_np``'s, :mod:`~attention_np.chain` among them, or one like them that has ``double_backward``.
    d_output : array_like of float
        A gradient of the loss with respect to the output, of its shape, that does not depend on the inputs. For a loss
        of which it does, the Hessian has one more term, ``J^T (d^2 loss / d output^2) J``: :func:`op.jvp`, and
        :func:`op.backward` of what becomes of that.
    cache : Cache
        From ``op.forward``.
    **tangents : array_like of float, or None
        The vector: under the name of each array of ``op.forward`` a direction of its shape; one left out is zero.

    Returns
    -------
    Gradients
        Of each array its part of the product, as ``op.backward`` returns gradients.

    Raises
    ------
    TypeError
        If there is no array of such a name, `cache` is another op's, or an array is not of floating-point numbers.
    ValueError
        If an array does not have the shape of what it belongs to, or is given for an array that there was not.

    Examples
    --------
    >>> import numpy as np
    >>> import attention_np as anp
    >>> weights, cache = anp.softmax.forward(np.array([0.0, 1.0, 2.0]))
    >>> print(anp.hessian_vector_product(anp.softmax, np.array([1.0, 0.0, 0.0]), cache, scores=np.ones(3)).scores)
    [0. 0. 0.]
    """
    names = getattr(op.Gradients, "_fields", tangents)  # those of a chain are the layer's
    for name in tangents:
        if name not in names:
            raise TypeError(f"{op.__name__} has no array {name!r}: it has {', '.join(names)}")
    d_gradients = op.Gradients(**{name: tangents.get(name) for name in names})
    return op.double_backward(d_gradients, d_output, cache)[1]
