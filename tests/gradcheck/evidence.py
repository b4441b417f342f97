"""What is known of one input before anything is judged, as a check has it."""

import numpy as np

from attention_np.gradcheck.evidence import Evidence, subject_of
from attention_np.gradcheck.flow import Options, prepared
from attention_np.gradcheck.problem.problem import pose
from attention_np.gradcheck.slopes.measuring import Running

EPS = float(np.finfo(float).eps)


def evidence_of(
    forward, backward, inputs, name="x", method="complex-step", seed=0, *, look=True, tried=True, running=None
) -> Evidence:
    """Of all entries, or with none looked at; or by the complex step though a trial might refuse that."""
    problem = pose(forward, backward, inputs, np.random.default_rng(seed))
    subject, running = subject_of(problem, name), running or Running()
    with np.errstate(all="ignore"):
        if tried:
            found = prepared(problem, name, subject, Options(method, 0.0, None), running)
        else:
            found = Evidence(name, problem, subject, method, running, np.zeros(subject.x.shape), bends=False)
        if look:
            found.look(np.arange(subject.x.size))
    return found
