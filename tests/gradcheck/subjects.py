"""Functions at a point, as the core of the harness takes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_np.gradcheck.measuring.probes import rounding_of
from attention_np.gradcheck.measuring.subject import Subject, along


def subject_of(forward, *point, position=0, cotangent=None, batched=False):
    """`forward` at `point`, to be differentiated by the input at `position`; the cotangent is ones by default."""
    arrays = tuple(np.asarray(x) for x in point)
    output = np.array(forward(*(x.copy() for x in arrays)))
    u = np.ones(output.shape) if cotangent is None else np.asarray(cotangent)
    return Subject(forward, arrays, position, output, u[None], batched)


def heard(subject, seed=0):
    """The same function, with how far rounding moves its outputs."""
    return replace(subject, noise=rounding_of(subject, np.random.default_rng(seed)))


def every_entry(subject):
    """The directions in which the entries of the input move, one after the other."""
    return along(subject.x, np.arange(subject.x.size))
