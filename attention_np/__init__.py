"""Attention and its gradients in pure NumPy, every backward pass derived by hand.

Each op is a module with ``forward``, ``backward`` and ``jvp``: :mod:`~attention_np.softmax`,
:mod:`~attention_np.dot_product`, :mod:`~attention_np.blockwise`, :mod:`~attention_np.additive` and
:mod:`~attention_np.multi_head`. :mod:`~attention_np.masks` and, block by block, :mod:`~attention_np.rules` say who may
attend to whom, and :mod:`attention_np.gradcheck` checks gradients, yours too.
"""

from attention_np import additive, blockwise, dot_product, masks, multi_head, rules, softmax
from attention_np._outputs import additive_attention, multi_head_attention, scaled_dot_product_attention

__all__ = [
    "additive",
    "additive_attention",
    "blockwise",
    "dot_product",
    "masks",
    "multi_head",
    "multi_head_attention",
    "rules",
    "scaled_dot_product_attention",
    "softmax",
]

__version__ = "0.1.0"
