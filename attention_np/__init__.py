"""Attention and its gradients in pure NumPy, every backward pass derived by hand.

Each op is a module with ``forward``, ``backward``, ``jvp`` and ``double_backward``: :mod:`~attention_np.softmax`,
:mod:`~attention_np.dot_product`, :mod:`~attention_np.blockwise`, :mod:`~attention_np.additive`,
:mod:`~attention_np.multi_head`, :mod:`~attention_np.linear_attention`, :mod:`~attention_np.latent` and, for weights
that are not by softmax, :mod:`~attention_np.weightings`; and what stands around attention, :mod:`~attention_np.linear`,
:mod:`~attention_np.feature_map`, :mod:`~attention_np.activation`, :mod:`~attention_np.short_conv`,
:mod:`~attention_np.rms_norm`, :mod:`~attention_np.layer_norm`, :mod:`~attention_np.rotary` and
:mod:`~attention_np.cross_entropy`, beside :mod:`~attention_np.positions`. Long sequences and pictures are read through
:mod:`~attention_np.pooling` and :mod:`~attention_np.deformable`, and in sparse attention :mod:`~attention_np.indexer`
says which keys are looked at. :mod:`~attention_np.masks` and, block by block, :mod:`~attention_np.rules` say who may
attend to whom, and :mod:`~attention_np.biases` what is added to the scores by position.

:mod:`~attention_np.gradcheck` checks gradients, yours too; :mod:`~attention_np.known_answers` writes what an
implementation in any language can be held against; :mod:`~attention_np.conventions` says which conventions one follows;
:mod:`~attention_np.cost` counts operations and memory; :mod:`~attention_np.atlas` reads published models;
:mod:`~attention_np.trace` shows every step on a sentence, and :mod:`~attention_np.plot` draws.

The pages that are named here and there, such as ``derivations/softmax.md``, are installed inside of the package; in a
clone of the repository they stand beside it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

OPS = (
    "softmax",
    "dot_product",
    "blockwise",
    "additive",
    "multi_head",
    "linear_attention",
    "latent",
    "weightings",
    "linear",
    "feature_map",
    "activation",
    "short_conv",
    "rms_norm",
    "layer_norm",
    "rotary",
    "cross_entropy",
    "pooling",
    "deformable",
    "indexer",
)  # the one list of them, in the order to read
FUNCTIONS = {  # and the modules that they are of
    "KeyValueCache": "decoding",
    "additive_attention": "functional",
    "hessian_vector_product": "second_order",
    "multi_head_attention": "functional",
    "scaled_dot_product_attention": "functional",
}
LATER = ("atlas", "conventions", "cost", "gradcheck", "known_answers", "plot", "trace")  # not among what `*` imports

if TYPE_CHECKING:  # for whoever reads this without running it; what runs imports a module when it is asked for
    from attention_np import activation as activation
    from attention_np import additive as additive
    from attention_np import atlas as atlas
    from attention_np import biases as biases
    from attention_np import blockwise as blockwise
    from attention_np import chain as chain
    from attention_np import conventions as conventions
    from attention_np import cost as cost
    from attention_np import cross_entropy as cross_entropy
    from attention_np import deformable as deformable
    from attention_np import dot_product as dot_product
    from attention_np import feature_map as feature_map
    from attention_np import gradcheck as gradcheck
    from attention_np import indexer as indexer
    from attention_np import known_answers as known_answers
    from attention_np import latent as latent
    from attention_np import layer_norm as layer_norm
    from attention_np import linear as linear
    from attention_np import linear_attention as linear_attention
    from attention_np import masks as masks
    from attention_np import multi_head as multi_head
    from attention_np import plot as plot
    from attention_np import pooling as pooling
    from attention_np import positions as positions
    from attention_np import rms_norm as rms_norm
    from attention_np import rotary as rotary
    from attention_np import rules as rules
    from attention_np import short_conv as short_conv
    from attention_np import softmax as softmax
    from attention_np import trace as trace
    from attention_np import weightings as weightings
    from attention_np.decoding import KeyValueCache as KeyValueCache
    from attention_np.functional import additive_attention as additive_attention
    from attention_np.functional import multi_head_attention as multi_head_attention
    from attention_np.functional import scaled_dot_product_attention as scaled_dot_product_attention
    from attention_np.second_order import hessian_vector_product as hessian_vector_product
else:
    __all__ = [*OPS, *FUNCTIONS, "biases", "chain", "masks", "positions", "rules"]

    def __getattr__(name: str) -> Any:
        if name in FUNCTIONS:
            return getattr(import_module(f"attention_np.{FUNCTIONS[name]}"), name)
        if name in __all__ or name in LATER:
            return import_module(f"attention_np.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*__all__, *LATER, "OPS", "__version__"])
