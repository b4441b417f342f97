"""What a page has cost so far, so that no page takes all the time or all the memory of a machine."""

from __future__ import annotations

from dataclasses import dataclass

from attention_np.derivation import limits
from attention_np.derivation.errors import Fault, Span


@dataclass
class Account:
    """Of one page, over all of its draws.

    Attributes
    ----------
    steps : int
        Array elements that were made, and :data:`.limits.OPERATION` more for each operation.
    held : int
        Numbers that are kept: free tensors, values of definitions, derivatives.
    """

    steps: int = 0
    held: int = 0

    def work(self, count: int, span: Span | None = None) -> None:
        """Note so many steps; refuse once the page has taken too many."""
        self.steps += count
        if self.steps > limits.PAGE_STEPS:
            raise Fault("limit", "the page takes too many steps", span)

    def hold(self, count: int, span: Span | None = None) -> None:
        """Note that so many numbers will be kept; refuse once they are too many."""
        if self.held + count > limits.HELD:
            raise Fault("limit", f"the page keeps more than {limits.HELD} numbers", span)
        self.held += count
