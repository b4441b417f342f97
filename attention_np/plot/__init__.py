"""Pictures of attention and of its gradients, by Matplotlib.

    from attention_np import dot_product, plot

    output, cache = dot_product.forward(x, x, x)
    ax = plot.weights(cache.weights, "The cat sat on the mat".split())
    ax.figure.savefig("weights.png")

Every function draws on the Axes that it is given, or on a new figure, and returns the Axes; none shows or saves a
figure, or changes a setting of Matplotlib. Colours grow lighter or darker along with the numbers, so that they can be
told apart in grey and by people who see few colours. Tokens of any script show as letters if the machine has a font
with these letters, and a warning says what to install if not.

Matplotlib is the extra `plot`: ``pip install 'attention-np[plot]'``. Without it every function that draws raises an
ImportError that says so.
"""

from attention_np.gradcheck.plot import places
from attention_np.plot._bars import query_weights
from attention_np.plot._curves import cost, saturation
from attention_np.plot._heat_maps import heads, mask, softmax_jacobian, weights
from attention_np.plot._points import points
from attention_np.plot._top_keys import TopKeys, top_keys

__all__ = [
    "TopKeys",
    "cost",
    "heads",
    "mask",
    "places",
    "points",
    "query_weights",
    "saturation",
    "softmax_jacobian",
    "top_keys",
    "weights",
]
