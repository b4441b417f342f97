"""What would make attention faster on this machine: only what applies here, with what it was measured to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from attention_np.cli.facts import THREAD_VARIABLES, Facts
from attention_np.cli.rates import Rates

__all__ = ["Advice", "advise"]

Measure = Callable[[Mapping[str, str | None]], Rates | None]

WIDE_KERNELS = ("skylakex", "cooperlake", "sapphirerapids")  # of OpenBLAS, those that use AVX-512
WORTH_IT = 1.1  # a ratio below it may be chance


class Advice(NamedTuple):
    """One thing to change."""

    text: str
    gains: str = ""  # what becomes faster
    ratios: Mapping[str, float] = {}  # by which factor, by dtype, as measured; empty: not measured


def advise(facts: Facts, rates: Rates | None, measure: Measure) -> Iterator[Advice]:
    """What to change, and what that gains.

    Parameters
    ----------
    facts : Facts
    rates : Rates
        As everything is; None if it could not be measured.
    measure : callable
        Measures in a process with some variables of the environment changed.
    """
    if rates is not None:
        for remedy in (_kernels(facts, rates), _all_cores(facts), _no_more_threads(facts)):
            if remedy is None:
                continue
            text, variables = remedy
            ratios = _gain(rates, measure, variables)
            # Where one dtype would lose it is no advice; or the machine was busy, and nothing has been measured.
            if ratios and max(ratios.values()) >= WORTH_IT and min(ratios.values()) > 1 / WORTH_IT:
                yield Advice(text, "matrix products", ratios)
        if facts.exp2 is None and rates.exp["float32"] >= WORTH_IT * rates.exp2["float32"]:
            yield Advice(
                f"Upgrade NumPy to version 2: NumPy {facts.numpy} does not say whether its exp2 is vectorised, so "
                "blockwise attention takes exp.",
                "exponentials",
                {name: rates.exp[name] / rates.exp2[name] for name in rates.exp},
            )
    if facts.exp2 is not None and facts.exp2.startswith("baseline") and facts.has_avx512 and facts.system == "Linux":
        yield Advice("Install NumPy from PyPI: in this build exp2 is not vectorised, though there is AVX-512.")
    if facts.threadpoolctl is None and facts.cores.usable > 1:
        yield Advice(
            "Install threadpoolctl (pip install 'attention-np[fast]'): with it, blockwise attention runs "
            f"{facts.cores.usable} tasks at once, each on one thread; without it, one task at a time.",
        )


def _kernels(facts: Facts, rates: Rates) -> tuple[str, dict[str, str | None]] | None:
    """OpenBLAS may not know a processor, and then picks kernels without AVX-512."""
    if rates.kernels is None or rates.kernels.lower() in WIDE_KERNELS or not facts.has_avx512:
        return None
    text = (
        f"Set OPENBLAS_CORETYPE=SkylakeX before Python starts: this processor has AVX-512, and OpenBLAS has picked its "
        f"{rates.kernels} kernels, which do not use it."
    )
    return text, {"OPENBLAS_CORETYPE": "SkylakeX"}


def _all_cores(facts: Facts) -> tuple[str, dict[str, str | None]] | None:
    """Somebody may have held BLAS to fewer threads than there are cores."""
    limits = {
        name: value
        for name, value in facts.variables.items()
        if name in THREAD_VARIABLES and value.isdecimal() and int(value) < facts.cores.usable
    }
    if not limits:
        return None
    names = ", ".join(f"{name}={value}" for name, value in limits.items())
    text = (
        f"Unset {names}: the process may use {facts.cores.usable} cores, and dot_product has no other threads than "
        "those of BLAS."
    )
    return text, dict.fromkeys(limits)


def _no_more_threads(facts: Facts) -> tuple[str, dict[str, str | None]] | None:
    """A BLAS counts cores and knows nothing of quotas: its threads are stopped in turn, and wait for each other."""
    usable = facts.cores.usable
    if usable >= facts.cores.allowed or any(name in facts.variables for name in THREAD_VARIABLES):
        return None
    text = (
        f"Set OMP_NUM_THREADS={usable} and OPENBLAS_NUM_THREADS={usable} before Python starts: the process may run on "
        f"{facts.cores.allowed} cores, but its quota is {facts.cores.quota:.3g}."
    )
    return text, dict.fromkeys(THREAD_VARIABLES, str(usable))


def _gain(rates: Rates, measure: Measure, variables: Mapping[str, str | None]) -> dict[str, float]:
    """How many times as fast products are with `variables`, by dtype. Each side is measured twice, in turn."""
    first, again, second = measure(variables), measure({}), measure(variables)
    if first is None or again is None or second is None:
        return {}
    return {
        name: max(first.products[name], second.products[name]) / max(rates.products[name], again.products[name])
        for name in rates.products
    }
