"""Causes that a wrong array may have, each a prediction of what somebody returns who has that fault and no other.

A prediction has the errors that a correct computation of it may make, as an answer has its bound; so whether a cause
explains an array is decided as whether an array is right. There are four families: another convention
(:mod:`attention_np.conventions`), a slip in the formulas of the backward pass, a factor, and a step that is rounded to
a shorter format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from attention_np._conventions.readings import AXES, OF_CASES, Reading, answers
from attention_np._conventions.wording import difference
from attention_np._lib.arrays import Array
from attention_np.known_answers.analysis import Analysis, Computed, Weights, exact
from attention_np.known_answers.bounds import analysed_by, finite
from attention_np.known_answers.formats import FORMATS, Format
from attention_np.known_answers.kernels import dequantised
from attention_np.known_answers.reading import KnownAnswer
from attention_np.known_answers.signatures import DESCALES

Predictions = Mapping[str, Computed]
ASKED_OF_CASES = (
    "scale", "given scale", "heads", "mask", "causal", "alignment", "window", "window's right", "window's alignment",
    "bias", "softcap", "sink", "logsumexp", "empty row", "keys", "dropout",
)  # fmt: skip
ALTERNATIVES = AXES | OF_CASES
BITS = {11: "11 bits, as float16 and TF32 have", 8: "8 bits, as bfloat16 has"}

LEAST = {11: 2.0**-25}  # what float16 loses of numbers that are subnormal in it


class Cause(NamedTuple):
    """What may be wrong, in words; `said` stands behind "It follows" or the names of the wrong arrays."""

    kind: str  # "convention", "slip", "factor" or "rounding"
    said: Callable[[KnownAnswer], str]
    predict: Callable[[KnownAnswer], Predictions]


def conventions_read(reading: Reading) -> Cause:
    """Other conventions than ours."""
    said = " and ".join(difference(axis, value, ALTERNATIVES[axis][0]) for axis, value in reading.items())

    def predict(case: KnownAnswer) -> Predictions:
        rules = Analysis(FORMATS[case.dtype])
        exactly = {name: x if x.dtype == np.bool_ else exact(finite(name, x)) for name, x in case.inputs.items()}
        inputs: dict[str, Array] = {
            name: np.asarray(getattr(x, "value", x)) for name, x in dequantised(rules, exactly).items()
        }
        return answers(reading, inputs, case.options, rules)

    return Cause("convention", _always(said), predict)


def single_conventions() -> Iterator[Cause]:
    """Each that a case can show."""
    for axis in ASKED_OF_CASES:
        yield from (conventions_read({axis: value}) for value in ALTERNATIVES[axis][1:])


class WithoutMean(Analysis):
    """The gradient of softmax without the mean that is taken away."""

    def weights_backward(self, weights: Computed, d_weights: Computed, mean: Computed, moves: Array) -> Computed:
        """Of the scores."""
        return super().weights_backward(weights, d_weights, exact(np.zeros_like(mean.value)), moves)


class WithoutSlope(Analysis):
    """The gradient of a softcap, or of tanh, without its slope."""

    def tanh_slope(self, y: Computed) -> Computed:
        """One."""
        return exact(np.ones_like(y.value))


SLIPS: dict[str, Callable[[Format], Analysis]] = {
    "lack the mean that the gradient of softmax takes away": WithoutMean,
    "lack the slope of tanh": WithoutSlope,
}


def slips() -> Iterator[Cause]:
    """Terms and factors that a backward pass leaves out, and scales of eight bits."""
    for said, rules in SLIPS.items():
        yield Cause("slip", _always(said), _by(rules))
    for name in DESCALES:
        yield Cause("slip", _always(f"lack the factor {name}"), partial(_without, name))


def _without(descale: str, case: KnownAnswer) -> Predictions:
    inputs = {name: np.ones_like(x) if name == descale else x for name, x in case.inputs.items()}
    return analysed_by(Analysis(FORMATS[case.dtype]), case.op, inputs, case.options)


def _by(rules: Callable[[Format], Analysis]) -> Callable[[KnownAnswer], Predictions]:
    return lambda case: analysed_by(rules(FORMATS[case.dtype]), case.op, case.inputs, case.options)


def zero() -> Cause:
    """Nothing at all, as of a gradient that is not worked out: it comes before an input that counts for nothing."""
    return Cause("factor", _always("are zero throughout"), partial(_times, partial(_constant, 0.0)))


def factors() -> Iterator[Cause]:
    """Constant factors, by the lengths of a case that they may come from."""
    for value, name in ((-1.0, "-1"), (2.0, "2"), (0.5, "1/2"), (math.log(2), "ln(2)"), (1 / math.log(2), "1/ln(2)")):
        yield Cause("factor", _always(f"are {name} times the answers"), partial(_times, partial(_constant, value)))
    for what, power in (("lack the scale", -1.0), ("have the scale twice", 1.0)):
        yield Cause("factor", _always(what), partial(_times, partial(_scale, power)))
    for length in ("d_k", "d_v", "n", "m"):
        for form, power in (("sqrt({})", 0.5), ("1/sqrt({})", -0.5), ("{}", 1.0), ("1/{}", -1.0)):
            factor = partial(_power, length, power)
            yield Cause("factor", partial(_said_of_length, length, form), partial(_times, factor))


def _constant(value: float, case: KnownAnswer) -> float:
    del case
    return value


def _scale(power: float, case: KnownAnswer) -> float:
    return float(case.options.get("scale", lengths(case)["d_k"] ** -0.5) ** power)


def _power(length: str, power: float, case: KnownAnswer) -> float:
    return float(lengths(case)[length] ** power)


def _said_of_length(length: str, form: str, case: KnownAnswer) -> str:
    number = form.format(lengths(case)[length])
    return f"are {form.format(length)} times the answers, as {number} in {case.name}"


def _always(said: str) -> Callable[[KnownAnswer], str]:
    return lambda _: said


def lengths(case: KnownAnswer) -> dict[str, int]:
    """Of the features and the rows."""
    shapes = {"d_k": ("query", -1), "d_v": ("value", -1), "n": ("query", -2), "m": ("key", -2)}
    return {x: case.inputs[name].shape[axis] for x, (name, axis) in shapes.items() if name in case.inputs}


def _times(factor: Callable[[KnownAnswer], float], case: KnownAnswer) -> Predictions:
    value = factor(case)
    return {
        name: Computed(value * x.astype(np.float64), abs(value) * case.bounds[name]) for name, x in case.answers.items()
    }


class RoundedScores(Analysis):
    """Scores that are rounded to so many bits."""

    bits = 11

    def rounded_scores(self, scores: Computed, products: Computed, bias: Computed | None) -> Computed:
        """To these bits."""
        del products, bias
        return shorter(scores, self.bits)


class RoundedOperands(Analysis):
    """Scores of queries and keys that are rounded to so many bits."""

    bits = 11

    def rounded_operand(self, x: Computed) -> Computed:
        """To these bits."""
        return shorter(x, self.bits)


class RoundedProducts(Analysis):
    """All products of matrices are of numbers that are rounded to so many bits."""

    bits = 11

    def product(self, a: Computed, b: Computed, roundings: int) -> Computed:
        """The product of matrices."""
        return super().product(shorter(a, self.bits), shorter(b, self.bits), roundings)


class RoundedBetween(Analysis):
    """All that stands between two products is rounded to so many bits: weights, gradients of weights and of scores."""

    bits = 11

    def rounded(self, x: Computed) -> Computed:
        """What stands there."""
        return shorter(x, self.bits)


class RoundedWeights(Analysis):
    """Weights that are rounded to so many bits."""

    bits = 11

    def weights(self, scores: Computed, visible: Array) -> Weights:
        """Softmax of each row."""
        exactly = super().weights(scores, visible)
        forward, backward = shorter(exactly.forward, self.bits), shorter(exactly.backward, self.bits)
        return exactly._replace(forward=forward, backward=backward)


ROUNDED: dict[str, type[RoundedScores | RoundedOperands | RoundedProducts | RoundedWeights | RoundedBetween]] = {
    "its scores are rounded to": RoundedScores,
    "its scores are of queries and keys rounded to": RoundedOperands,
    "its products of matrices are of numbers rounded to": RoundedProducts,
    "its weights are rounded to": RoundedWeights,
    "what stands between its products is rounded to": RoundedBetween,
}


def roundings() -> Iterator[Cause]:
    """Steps that are rounded to a shorter format than the case has."""
    for bits, name in BITS.items():
        yield Cause("rounding", _always(f"its results are rounded to {name}"), partial(_rounded, bits))
        for what, rules in ROUNDED.items():
            shortened = type(rules.__name__, (rules,), {"bits": bits})
            yield Cause("rounding", _always(f"{what} {name}"), _by(shortened))


def _rounded(bits: int, case: KnownAnswer) -> Predictions:
    return {name: shorter(Computed(x.astype(np.float64), case.bounds[name]), bits) for name, x in case.answers.items()}


def shorter(x: Computed, bits: int) -> Computed:
    """Numbers rounded to so many bits: to either neighbour where the error leaves it open which."""
    low, high = (_to_bits(x.value + sign * x.error, bits) for sign in (-1, 1))
    with np.errstate(invalid="ignore"):
        value, error = (low + high) / 2, (high - low) / 2 + np.where(x.value == 0, 0, LEAST.get(bits, 0))
    infinite = ~np.isfinite(x.value)
    return Computed(np.where(infinite, x.value, value), np.where(infinite, x.error, error))


def _to_bits(x: Array, bits: int) -> Array:
    fraction, exponent = np.frexp(x)
    rounded: Array = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
    return rounded
