"""What a trace is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt

from attention_np._lib.text import visible
from attention_np.trace import _paper

__all__ = ["Step", "Trace"]

OF_TOKENS = "ij"  # the axes of queries and of keys


@dataclass(frozen=True, eq=False)
class Step:
    """One array on the way from the inputs to the output, or from the gradient of the output to those of the inputs.

    Attributes
    ----------
    part : {"given", "forward", "backward"}
    name : str
        What it is in words, such as "scores".
    symbol : str
        As in the formulas: "S"; "dL/dS" for the gradient of the loss with respect to S.
    axes : str
        One index letter an axis, as on the op's page: i for queries, j for keys, h for heads.
    tags : tuple of str
        The equations that this step carries out, such as "dot-product.1"; none where the array is given.
    formula : str
        In plain text; empty where the array is given.
    sentence : str
        What the step is for.
    array : ndarray
        One axis for each letter of `axes`. Minus infinity stands for a pair that is masked out.
    """

    part: Literal["given", "forward", "backward"]
    name: str
    symbol: str
    axes: str
    tags: tuple[str, ...]
    formula: str
    sentence: str
    array: npt.NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.array.shape


@dataclass(frozen=True, eq=False)
class Trace:
    """All steps of one op on one sentence, in the order in which they are done.

    Attributes
    ----------
    op : str
        The name of the op, which is that of its page.
    title : str
    tokens : tuple of str
    steps : tuple of Step
    error : float
        How far the gradients are from those by the complex step, of the same loss: the largest relative error.
    """

    op: str
    title: str
    tokens: tuple[str, ...]
    steps: tuple[Step, ...]
    error: float

    def __getitem__(self, symbol: str) -> Step:
        """The step of that symbol, such as "S" or "dL/dS"."""
        for step in self.steps:
            if step.symbol == symbol:
                return step
        raise KeyError(f"{symbol!r} is not among the symbols of this trace: {', '.join(s.symbol for s in self.steps)}")

    def text(self, width: int = 80) -> str:
        """The steps as on paper, in lines of at most `width` characters where tables can be broken to fit."""
        return _paper.written(self, width)

    def __str__(self) -> str:
        return self.text()

    def labels(self, axis: str, length: int) -> list[str]:
        """What the indices of an axis are called: tokens, or numbers from 1 as in the formulas."""
        if axis in OF_TOKENS:
            return [visible(token) for token in self.tokens]
        return [str(number) for number in range(1, length + 1)]
