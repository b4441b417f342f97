"""The account of a page: its steps and numbers so far, so that no page takes all the time or memory of a machine."""

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
        Array elements that were made for this equation, and :data:`.limits.OPERATION` more for each operation.
    before : int
        Those of the equations before it.
    held : int
        Numbers that are kept: free tensors, values of definitions, derivatives.
    """

    steps: int = 0
    before: int = 0
    held: int = 0

    def begin(self) -> None:
        """Begin an equation; refuse if those before it took too many steps."""
        self.before, self.steps = self.before + self.steps, 0
        if self.before > limits.PAGE_STEPS:
            raise Fault("limit", "the equations before this one took all the steps of the page")

    def work(self, count: int, span: Span | None = None) -> None:
        """Note so many steps, before they are done; refuse them if there were too many already."""
        self.steps += count
        if self.steps > limits.STEPS:
            raise Fault("limit", "this equation takes too many steps", span)

    def make(self, count: int, span: Span | None = None) -> None:
        """Note that so many elements will be made at once; refuse too large an array."""
        if count > limits.ELEMENTS:
            raise Fault("limit", f"an intermediate array of more than {limits.ELEMENTS} elements", span)
        self.work(count, span)

    def hold(self, count: int, span: Span | None = None) -> None:
        """Note that so many numbers will be kept; refuse once they are too many."""
        if self.held + count > limits.HELD:
            raise Fault("limit", f"the page keeps more than {limits.HELD} numbers", span)
        self.held += count
