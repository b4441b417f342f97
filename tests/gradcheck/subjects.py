"""Functions at a point, as the core of the harness takes them."""

from dataclasses import replace

import numpy as np

from attention_np.gradcheck.judging.measured import Candidate, Measured
from attention_np.gradcheck.measuring.functions import (
    as_generator,
    first_call,
    in_double_precision,
    on_copies,
    wide_dtype,
)
from attention_np.gradcheck.measuring.probes import rounding_of
from attention_np.gradcheck.measuring.running import Running
from attention_np.gradcheck.measuring.subject import Subject, along

from .programs import Watched


def subject_of(forward, *point, position=0, cotangent=None, batched=False):
    """`forward` at `point`, to be differentiated by the input at `position`; the cotangent is ones by default."""
    arrays = tuple(np.asarray(x) for x in point)
    output = np.array(forward(*(x.copy() for x in arrays)))
    u = np.ones(output.shape) if cotangent is None else np.asarray(cotangent)
    return Subject(forward, arrays, position, output, u[None], batched)


def watched_subject_of(forward, *point, **options):
    """The same, and a list of what `forward` is called with from then on."""
    watched = Watched(forward)
    subject = subject_of(watched, *point, **options)
    watched.seen.clear()
    return subject, watched.seen


def heard(subject, seed=0):
    """The same function, with how far rounding moves its outputs."""
    return replace(subject, noise=rounding_of(subject, np.random.default_rng(seed)))


def every_entry(subject):
    """The directions in which the entries of the input move, one after the other."""
    return along(subject.x, np.arange(subject.x.size))


def measured(forward, backward, inputs, name="x", method="complex-step", seed=0):
    """One input before anything is judged."""
    rng = as_generator(seed)
    first = first_call(forward, backward, inputs, rng)
    point = tuple(in_double_precision(forward, list(inputs.values()), first.output))
    cotangents = first.cotangents.astype(wide_dtype(first.output.dtype))
    problem = Candidate(lambda *x: on_copies(forward, *x), backward, inputs, point, first, cotangents, seed)
    return Measured(name, problem, problem.subject(name), method, Running())
