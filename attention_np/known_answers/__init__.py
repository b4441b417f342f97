"""Known answers: inputs, outputs, gradients and error bounds that an attention in any language can be tested with.

Write a set with :func:`write` (or ``python -m attention_np known-answers DIR``), read it with :func:`load` or a
safetensors reader of any language, and run a Python function over it with :func:`verify`. The format, the bounds and
readers for C, Python and Rust are in ``docs/known-answers.md`` of the
repository and of the sdist.
"""

from attention_np.known_answers.reading import KnownAnswer, load
from attention_np.known_answers.report import Comparison, Conformance, KnownAnswerError
from attention_np.known_answers.verifying import of_op, verify, verify_files
from attention_np.known_answers.writing import write

__all__ = [
    "Comparison",
    "Conformance",
    "KnownAnswer",
    "KnownAnswerError",
    "load",
    "of_op",
    "verify",
    "verify_files",
    "write",
]
