"""Attention and its gradients in pure NumPy, every backward pass derived by hand.

Each op is a module with ``forward``, ``backward`` and ``jvp``: :mod:`~attention_np.softmax`,
:mod:`~attention_np.dot_product`, :mod:`~attention_np.blockwise`, :mod:`~attention_np.additive` and
:mod:`~attention_np.multi_head`. :mod:`~attention_np.masks` and, block by block, :mod:`~attention_np.rules` say who may
attend to whom.

:mod:`~attention_np.gradcheck` checks gradients, yours too; :mod:`~attention_np.known_answers` writes what an
implementation in any language can be held against; :mod:`~attention_np.cost` counts operations and memory;
:mod:`~attention_np.trace` shows every step on a sentence, and :mod:`~attention_np.plot` draws.
"""

import importlib
from typing import Any

from attention_np import additive, blockwise, dot_product, masks, multi_head, rules, softmax
from attention_np.functional import additive_attention, multi_head_attention, scaled_dot_product_attention

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

OPS = ("softmax", "dot_product", "blockwise", "additive", "multi_head")  # the one list of them: a module, a page each
LATER = ("cost", "gradcheck", "known_answers", "plot", "trace")  # imported when they are asked for


def __getattr__(name: str) -> Any:
    if name in LATER:
        return importlib.import_module(f"attention_np.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *LATER, "__version__"])
