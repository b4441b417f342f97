"""How fast NumPy computes here, measured in a process of its own: a BLAS reads its environment once, when it is loaded.

``measure`` runs this module as a program with some variables of the environment changed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Rates", "measure"]

SIDE = 1024  # of the matrices: 2 GFLOP a product
NUMBERS = 2**15  # that exponentials are taken of: they stay in the cache
SECONDS = 0.08  # for each measurement


class Rates(NamedTuple):
    """What was measured, by the name of the dtype."""

    products: dict[str, float]  # matrix products, in GF/s
    exp: dict[str, float]  # ns for each number
    exp2: dict[str, float]
    kernels: str | None  # that an OpenBLAS says it has picked


def measure(environment: Mapping[str, str | None] | None = None) -> Rates | None:
    """Measure in a fresh process with these variables (None: unset); None if there cannot be one.

    Parameters
    ----------
    environment : mapping, optional
        What to change of the environment of this process.
    """
    package = Path(__file__).resolve().parents[2]
    changed = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH")))),
        "OPENBLAS_VERBOSE": "2",  # at which an OpenBLAS names its kernels
        **(environment or {}),
    }
    variables = {name: value for name, value in {**os.environ, **changed}.items() if value is not None}
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
        found: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    core = re.search(r"^Core: (\S+)", done.stderr, re.MULTILINE)
    return Rates(**found, kernels=core[1] if core else None)


def _measure_here() -> dict[str, dict[str, float]]:
    products, exp, exp2 = {}, {}, {}
    rng = np.random.default_rng(0)
    for name in ("float32", "float64"):
        matrix, numbers = rng.standard_normal((SIDE, SIDE)).astype(name), -rng.random(NUMBERS).astype(name)
        products[name] = 2e-9 * SIDE**3 / _shortest(np.matmul, matrix, matrix)
        exp[name] = 1e9 / NUMBERS * _shortest(np.exp, numbers)
        exp2[name] = 1e9 / NUMBERS * _shortest(np.exp2, numbers)
    return {"products": products, "exp": exp, "exp2": exp2}


def _shortest(ufunc: np.ufunc, *arrays: npt.NDArray[Any]) -> float:
    """The shortest time of a call, in seconds: what disturbs it can only make it longer."""
    out = ufunc(*arrays)  # the first call also starts threads
    shortest, end = float("inf"), time.perf_counter() + SECONDS
    while True:
        start = time.perf_counter()
        ufunc(*arrays, out=out)
        now = time.perf_counter()
        shortest = min(shortest, now - start)
        if now >= end:
            return shortest


if __name__ == "__main__":
    print(json.dumps(_measure_here()))  # noqa: T201
