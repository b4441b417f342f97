"""The figures of the course that move compute what the ops compute."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_np import dot_product, linear_attention, rotary, softmax

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "docs" / "_static"
RUN = """
const formulas = require(process.argv[1]);
const asked = JSON.parse(require("fs").readFileSync(0));
console.log(JSON.stringify(asked.map(([name, ...values]) => formulas[name](...values))));
"""
rng = np.random.default_rng(0)


def computed(*asked: tuple[Any, ...]) -> list[Any]:
    """What the formulas of the figures give, each by its name, with its arguments."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is needed to run the formulas of the figures")
    given = json.dumps(asked, default=lambda x: x.tolist())
    command = [node, "-e", RUN, str(STATIC / "attention.js")]
    done = subprocess.run(command, input=given, capture_output=True, encoding="utf-8", check=True)
    results: list[Any] = json.loads(done.stdout)
    return results


def agree(x: Any, y: Any) -> None:
    np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)


def test_weights_slopes_and_gradients_are_those_of_softmax() -> None:
    scores, z = rng.normal(size=(2, 6)) * 3
    mask = np.array([True, True, False, True, False, True])
    weights, cache = softmax.forward(scores)
    hidden, of_mask = softmax.forward(scores, mask=mask)
    found, with_mask, empty = computed(
        ("softmax", scores), ("softmax", scores, mask), ("softmax", scores, np.zeros(6, bool))
    )
    slopes, gradient, behind_mask = computed(
        ("slopes", weights, 2), ("scoreGradient", weights, z), ("scoreGradient", hidden, z)
    )
    agree(found, weights)
    agree(with_mask, hidden)
    assert empty == [0] * 6
    agree(slopes, softmax.jacobian(scores)[:, 2])
    agree(gradient["gradient"], softmax.backward(z, cache).scores)
    agree(gradient["mean"], weights @ z)
    agree(behind_mask["gradient"], softmax.backward(z, of_mask).scores)
    (far,) = computed(("softmax", scores + 1e4))
    agree(far, softmax.forward(scores + 1e4)[0])


def test_attention_is_dot_product() -> None:
    query, key, value = rng.normal(size=3), rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    (found,) = computed(("attention", query, key, value))
    output, cache = dot_product.forward(query, key, value)
    agree(found["scores"], cache.scores[0])
    agree(found["weights"], cache.weights[0])
    agree(found["output"], output)


def test_a_turned_pair_is_that_of_rotary() -> None:
    pair = rng.normal(size=2)
    (found,) = computed(("rotated", pair, 1.25))
    agree(found, rotary.forward(pair[None], np.array([1.25]))[0][0])  # one pair turns by its position


def test_the_state_is_that_of_the_gated_delta_rule() -> None:
    key, value, query = rng.normal(size=(4, 2)), rng.normal(size=(4, 3)), rng.normal(size=2)
    decay, beta = rng.uniform(0.5, 1, size=4), rng.uniform(0, 1, size=4)
    log_decay = np.log(decay)[:, None]
    output, cache = linear_attention.forward(
        np.tile(query, (4, 1)), key, value, log_decay=log_decay, beta=beta, scale=1.0
    )
    state: Any = np.zeros((2, 3))
    for t in range(4):
        (found,) = computed(("stateStep", state, key[t], value[t], decay[t], beta[t]))
        state = found["state"]
        (said,) = computed(("read", state, query))
        agree(said, output[t])
    agree(state, cache.final_state)


def test_each_figure_that_moves_has_a_still_picture() -> None:
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        stills = pytest.importorskip("attention_site.stills", reason="pip install 'attention-np[site]'").STILLS
    finally:
        sys.path.pop(0)
    script = (STATIC / "moving.js").read_text(encoding="utf-8")
    names = script.split("const FIGURES = {")[1].split("}")[0].split(",")
    assert {name.partition(":")[0].strip() for name in names} == set(stills)
