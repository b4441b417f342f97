"""Functions at a point, one of whose inputs moves."""

from dataclasses import replace

import numpy as np

from attention_np.gradcheck.slopes.moves import Subject, entry_directions, sizes
from attention_np.gradcheck.slopes.probes import noise_of_outputs

from .programs import Watched

SMOOTH = {
    "sin": (np.sin, np.cos),
    "a steep sin": (lambda x: np.sin(16 * x), lambda x: 16 * np.cos(16 * x)),
    "exp": (np.exp, np.exp),
    "log": (np.log, lambda x: 1 / x),
    "a cube": (lambda x: x**3, lambda x: 3 * x**2),
    "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2),
    "the logistic function": (lambda x: 1 / (1 + np.exp(-x)), lambda x: 0.5 / (1 + np.cosh(x))),
    "a Gaussian": (lambda x: np.exp(-x * x), lambda x: -2 * x * np.exp(-x * x)),
    "Runge's function": (lambda x: 1 / (1 + 25 * x * x), lambda x: -50 * x / (1 + 25 * x * x) ** 2),
    "a line far up": (lambda x: x + 1e9, np.ones_like),
}
UNITS = [2.0**-300, 2.0**-10, 1.0, 2.0**40]  # powers of two, so that dividing by them rounds nothing
POINTS = np.concatenate([np.linspace(0.2, 2.9, 25), [0.013, 0.07, 1.0]])


def subject_of(forward, *point, position=0, cotangent=None, **fields):
    """`forward` at `point`, to be differentiated by the input at `position`; the cotangent is ones by default."""
    arrays = tuple(np.asarray(x) for x in point)
    output = np.array(forward(*(x.copy() for x in arrays)))
    u = np.ones(output.shape) if cotangent is None else np.asarray(cotangent)
    return Subject(forward, arrays, position, output, u[None], float(np.finfo(output.dtype).eps), **fields)


def watched_subject_of(forward, *point, **options):
    """The same, and a list of what `forward` is called with from then on."""
    watched = Watched(forward)
    subject = subject_of(watched, *point, **options)
    watched.seen.clear()
    return subject, watched.seen


def noise_at(subject, seed=0):
    """How far rounding moves the outputs."""
    return noise_of_outputs(subject.forward, subject.point, subject.output, np.random.default_rng(seed))


def heard(subject, seed=0):
    """The same function, with how far rounding moves its outputs."""
    return replace(subject, noise=noise_at(subject, seed))


def every_entry(subject):
    """The directions in which the entries of the input move, one after the other."""
    return entry_directions(subject.x, np.arange(subject.x.size))


def in_units(what, unit):
    """A smooth function that takes its argument in other units, at a point; and its slopes, in long double."""
    forward, derivative = SMOOTH[what]
    exact = derivative(POINTS.astype(np.longdouble)) / unit
    return heard(subject_of(lambda x: forward(x / unit), POINTS * unit)), exact


def slopes_of_entries(method, subject, *args):
    """The slopes and errors by each entry, in place of those along a step of its size."""
    found = method(subject, every_entry(subject), *args)
    size = sizes(subject.x).ravel()
    return found.values[:, 0] / size, found.errors / size
