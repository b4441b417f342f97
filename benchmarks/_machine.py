"""What the numbers were measured on: libraries, processor, BLAS and the kernels that it picked.

``python -m benchmarks._machine`` prints it, with the rate of a matrix product.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from attention_np._lib import machine
from benchmarks._timing import cores
from benchmarks.checkers import installed

__all__ = ["blas_threads", "describe", "rates"]


def describe(*libraries: str) -> dict[str, Any]:
    """Versions, None for a library that is not installed, and the machine, for a file of results."""
    names = ("numpy", "threadpoolctl", *libraries)
    return {
        "versions": {"python": platform.python_version(), **{name: installed(name) for name in names}},
        "system": platform.platform(),
        "processor": _processor(),
        "cores": cores(),
        "quota": machine.cores().quota,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,  # of this and other programs, before
        "simd": np.show_config(mode="dicts")["SIMD Extensions"].get("found", []),  # type: ignore[index]
        "blas": _blas(),
    }


def rates(side: int = 1024) -> dict[str, float]:
    """How fast a matrix product is here, in GF/s, by dtype: the best of a few."""
    found = {}
    for dtype in ("float32", "float64"):
        matrix = np.ones((side, side), dtype)
        found[dtype] = 2e-9 * side**3 / min(timeit.repeat(lambda matrix=matrix: matrix @ matrix, number=1, repeat=20))
    return found


def _processor() -> str:
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        if models:
            return models[0]
    return platform.processor() or platform.machine()


def _blas() -> list[dict[str, Any]]:
    """Each BLAS that is loaded: its version, its kernels (`architecture`) and its threads."""
    controller = _controller()
    if controller is None:
        return []
    wanted = ("internal_api", "version", "architecture", "threading_layer", "num_threads")
    return [{key: found.get(key) for key in wanted} for found in controller.info() if found["user_api"] == "blas"]


@contextmanager
def blas_threads(number: int) -> Iterator[None]:
    """Give the BLAS of NumPy this many threads for a while, if threadpoolctl is installed.

    No limit of threadpoolctl is set: as long as one thread has set one, those that others set mean nothing.
    """
    controller = _controller()
    libraries = controller.select(user_api="blas").lib_controllers if controller else []
    before = [library.num_threads for library in libraries]
    for library in libraries:
        library.set_num_threads(number)
    try:
        yield
    finally:
        for library, threads in zip(libraries, before, strict=True):
            library.set_num_threads(threads)


@lru_cache
def _controller() -> Any:
    if installed("threadpoolctl") is None:
        return None
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


if __name__ == "__main__":
    print(json.dumps(describe() | {"rates": rates()}, indent=1))
