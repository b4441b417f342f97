"""The recipes by their names, and small parameters for each."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

RECIPES: dict[str, Callable[..., Any]] = {}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {}  # of the arrays of each, so small that one can read them


def recipe(**shapes: tuple[int, ...]) -> Callable[[Function], Function]:
    """Enter a recipe under its name, with the shapes of arrays that it can be tried on."""

    def entered(function: Function) -> Function:
        RECIPES[function.__name__], SHAPES[function.__name__] = function, shapes
        return function

    return entered


def random(name: str, rng: Any = 0) -> dict[str, Any]:
    """Small arrays for a recipe, so that its numbers are of order one.

    Parameters
    ----------
    name : str
        Of a recipe.
    rng : int or numpy.random.Generator, optional

    Returns
    -------
    dict of str to ndarray
        By the names of the recipe's arguments: ``chain.forward(recipe, random(name))`` runs it.

    Raises
    ------
    ValueError
        If there is no such recipe.

    Examples
    --------
    >>> from attention_np import atlas, chain
    >>> output, cache = chain.forward(atlas.recipes.multi_head, atlas.random("multi_head"))
    >>> output.shape
    (2, 5, 6)
    """
    if name not in SHAPES:
        raise ValueError(f"there is no recipe {name!r}, only {', '.join(sorted(SHAPES))}")
    rng = np.random.default_rng(rng)
    arrays = {key: rng.standard_normal(shape) for key, shape in SHAPES[name].items()}
    return {key: x / np.sqrt(prod(x.shape[:-1])) if key.startswith("w_") else x for key, x in arrays.items()}
