"""What NumPy finds on this machine: its BLAS, the instructions it uses, the cores it may run on."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

from attention_np._lib import machine

__all__ = ["THREAD_VARIABLES", "Blas", "Facts", "gather"]

THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OMP_NUM_THREADS",
)


class Blas(NamedTuple):
    """A BLAS that the process has loaded. What is not known is None."""

    name: str
    version: str | None
    kernels: str | None  # the type of processor that its kernels are for
    threads: int | None
    threading: str | None


class Facts(NamedTuple):
    """What is known without measuring."""

    python: str
    numpy: str
    system: str  # "Linux", "Darwin", "Windows"
    processor: str
    cores: machine.Cores
    memory: machine.Memory | None
    load: float | None  # how many threads wanted a core in the last minute
    simd: list[str]  # the instructions that NumPy uses, beginning with those that it was built for
    exp2: str | None  # what NumPy's exp2 of float32 is compiled for; None: NumPy 1 does not say
    blas: list[Blas]
    threadpoolctl: str | None  # its version
    variables: dict[str, str]  # those of the environment that hold BLAS to some threads or kernels

    @property
    def has_avx512(self) -> bool:
        """Whether NumPy has found AVX-512."""
        return any(name.startswith("AVX512") or name == "X86_V4" for name in self.simd)


def gather() -> Facts:
    """Look around."""
    config: dict[str, Any] = np.show_config(mode="dicts")  # type: ignore[assignment]
    simd = config.get("SIMD Extensions", {})
    return Facts(
        platform.python_version(),
        np.__version__,
        platform.system(),
        machine.processor(),
        machine.cores(),
        machine.memory(),
        os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        [*simd.get("baseline", []), *simd.get("found", [])],
        _exp2(),
        _blas(config.get("Build Dependencies", {}).get("blas", {})),
        _version("threadpoolctl"),
        {name: os.environ[name] for name in (*THREAD_VARIABLES, "OPENBLAS_CORETYPE") if os.environ.get(name)},
    )


def _blas(built_with: dict[str, Any]) -> list[Blas]:
    try:
        from threadpoolctl import threadpool_info  # type: ignore[import-untyped]
    except ImportError:  # then NumPy knows what it was built with, and nothing of what was loaded
        return [Blas(built_with.get("name") or "unknown", built_with.get("version"), None, None, None)]
    return [
        Blas(
            found["internal_api"],
            found["version"],
            found.get("architecture"),
            found["num_threads"],
            found.get("threading_layer"),
        )
        for found in threadpool_info()
        if found["user_api"] == "blas"
    ]


def _exp2() -> str | None:
    try:
        from numpy.lib import introspect
    except ImportError:  # NumPy 1
        return None
    found = introspect.opt_func_info(func_name="^exp2$", signature="^float32").get("exp2", {})
    return next((target["current"] for target in found.values()), "baseline")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
