"""Attention as a person would do it on paper: every step, forward and backward, in small numbers.

    from attention_np import trace

    steps = trace.dot_product("The cat sat on the mat", is_causal=True)
    print(steps)
    steps["dL/dS"].array

Each step has its array, its shape, a sentence that says what it is for, its formula in plain text, and the tags of the
equations that it carries out; the pages in ``derivations/`` derive them. The arrays are those of the ops. The command
``python -m attention_np trace`` prints the same.
"""

from attention_np.trace._additive import additive
from attention_np.trace._dot_product import dot_product
from attention_np.trace._multi_head import multi_head
from attention_np.trace._steps import Step, Trace

__all__ = ["Step", "Trace", "additive", "dot_product", "multi_head"]
