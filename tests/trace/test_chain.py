"""A chain is traced step by step."""

from typing import Any

from helpers import Patch, assert_same_bits, normal

from attention_np import chain, rms_norm, softmax, trace


def test_a_chain_is_traced_step_by_step_with_every_gradient() -> None:
    def layer(x: Any, w: Any) -> Any:
        y = chain.apply(rms_norm, x)
        return x + chain.apply(softmax, y @ w)

    inputs, d_output = {"x": normal(0, 2, 3), "w": normal(1, 3, 3)}, normal(2, 2, 3)
    steps = trace.chain(layer, inputs, d_output)
    output, cache = chain.forward(layer, inputs)
    assert_same_bits(steps["y4"].array, output)
    for name, gradient in chain.backward(d_output, cache).items():
        assert gradient is not None
        assert_same_bits(steps[f"dL/d{name}"].array, gradient)
    assert [step.formula for step in steps.steps if step.part == "forward"] == [
        "y1 = rms_norm(x)",
        "y2 = y1 @ w",
        "y3 = softmax(y2)",
        "y4 = x + y3",
    ]
    assert steps["dL/dx"].formula == "backward of step 1, rms_norm + backward of step 4, add"
    assert 0 < steps.error < 1e-14
    assert "y3 = softmax(y2)" in str(steps)
    assert trace.chain(layer, inputs)["dL/dy4"].array.any()


def test_the_trace_of_a_chain_sees_a_gradient_that_is_wrong(monkeypatch: Patch) -> None:
    monkeypatch.setattr(rms_norm, "backward", lambda d, cache: rms_norm.Gradients(d, None))
    layer = lambda x: chain.apply(rms_norm, x)  # noqa: E731
    assert trace.chain(layer, {"x": normal(0, 2, 3)}).error > 0.01
