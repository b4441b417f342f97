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


def values(tab: Any, title: str) -> list[float]:
    """The numbers of a group of bars, with all their digits."""
    shown = tab.locator(f".bars:has(strong:text-is({json.dumps(title, ensure_ascii=False)})) output").all()
    return [float(output.get_attribute("data-value")) for output in shown]


def test_a_score_that_is_dragged_moves_the_weights(address: str, browser: Any) -> None:
    tab = browser.new_page()
    tab.goto(address + "docs/course/shares.html")
    slider = tab.locator(".moves input").nth(2)
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + box["height"] / 2, steps=3)
    tab.mouse.up()
    score = float(slider.input_value())
    assert score > 2
    scores = np.array([0, 2, score, 0])
    agree(values(tab, "weights"), softmax.forward(scores)[0])
    agree(values(tab, 'slope of all weights by the score of "ran"'), softmax.jacobian(scores)[:, 2])
    tab.close()


def test_a_cell_that_is_clicked_is_forbidden(address: str, browser: Any) -> None:
    tab = browser.new_page()
    tab.goto(address + "docs/course/who_sees_whom.html")
    tab.get_by_role("button", name="it looks at cat").click()
    weights = tab.locator(".moves table").nth(1).locator("tr").last.locator("td")
    shown = [float(cell.get_attribute("data-value")) for cell in weights.all()]
    agree(shown, softmax.forward(np.array([0.0, 2, 1, 0]), mask=np.array([True, False, True, True]))[0])
    tab.close()


def test_turning_both_arrows_keeps_the_score(address: str, browser: Any) -> None:
    tab = browser.new_page()
    tab.goto(address + "docs/course/order.html")
    score = tab.get_by_label("score of this pair =")
    before = float(score.get_attribute("data-value"))
    for _ in range(3):
        tab.get_by_role("button", name="both one step on").click()
    agree(float(score.get_attribute("data-value")), before)
    assert tab.locator(".moves input").first.input_value() == "6"
    tab.close()


@pytest.mark.parametrize("scripts", [True, False])
def test_a_still_picture_stands_where_scripts_are_off(scripts: bool, address: str, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=scripts)
    tab = context.new_page()
    tab.goto(address + "docs/course/lookup.html")
    assert tab.locator("figure.moving img").count() == (not scripts)
    assert tab.locator("figure.moving .moves").count() == scripts
    context.close()


def test_a_chinese_page_has_the_figure_in_chinese(address: str, browser: Any) -> None:
    tab = browser.new_page()
    tab.goto(address + "docs/zh/course/shares.zh.html")
    assert tab.locator("html").get_attribute("lang") == "zh-Hans"
    agree(values(tab, "权重"), softmax.forward(np.array([0.0, 2, 1, 0]))[0])
    tab.locator(".language a").click()
    tab.wait_for_url("**/docs/course/shares.html")
    tab.locator(".language a", has_text="中文").click()
    tab.wait_for_url("**/docs/zh/course/shares.zh.html")
    tab.close()
