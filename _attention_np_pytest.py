"""The fixture that pytest offers where attention-np is installed.

It stands beside the package, not in it: pytest imports this module whenever it starts, and to import the package is to
import NumPy, for people who may need neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest


@pytest.fixture
def assert_gradients(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Assert that gradients hold, as `attention_np.gradcheck.assert_gradients` does, with a cotangent of one's own.

    The cotangent is drawn from a seed that depends on the id of the test alone, unless `rng` is given: every test has
    another one, and each time the same. If a gradient does not hold, the report is a section of its own in the output
    of the test, and says the seed.
    """

    def assert_gradients(forward: Any, backward: Any, inputs: Any, **options: Any) -> None:
        __tracebackhide__ = True
        from attention_np import gradcheck

        rng = options.setdefault("rng", crc32(request.node.nodeid.encode()))
        report = gradcheck.check(forward, backward, inputs, **options)
        if not report.ok:
            request.node.add_report_section("call", "gradients", f"{report}\nThe cotangent was drawn with rng={rng!r}.")
        report.raise_if_failed()

    return assert_gradients
