"""What a layer of today is made of, against PyTorch's functions and its autograd."""

from typing import Any

import pytest
from helpers import Array, assert_close, normal

from attention_np import layer_norm, rms_norm, rotary

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")

DOUBLE = 1e-12


def gradients_of(function: Any, d_output: Array, *arrays: Array) -> tuple[Array, list[Array]]:
    """The output of a function of tensors, and the gradient of each by autograd."""
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    output = function(*tensors)
    output.backward(torch.tensor(d_output))
    return output.detach().numpy(), [t.grad.numpy() for t in tensors]


@pytest.mark.parametrize("epsilon", [1e-6, 0.3])
@pytest.mark.parametrize("shape", [(7,), (2, 3, 7)])
def test_normalisations(shape: tuple[int, ...], epsilon: float) -> None:
    x, gain, b, d_output = normal(0, *shape), normal(1, 7), normal(2, 7), normal(3, *shape)
    functional = torch.nn.functional
    for op, arrays, function in (
        (rms_norm, (x, gain), lambda *t: functional.rms_norm(t[0], (7,), t[1], epsilon)),
        (layer_norm, (x, gain, b), lambda *t: functional.layer_norm(t[0], (7,), t[1], t[2], epsilon)),
    ):
        output, cache = op.forward(*arrays, epsilon=epsilon)
        expected, gradients = gradients_of(function, d_output, *arrays)
        assert_close(output, expected, DOUBLE)
        for actual, wanted in zip(op.backward(d_output, cache), gradients, strict=True):
            assert_close(actual, wanted, DOUBLE)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_positions(interleaved: bool) -> None:
    """PyTorch turns complex numbers, of neighbours or of the two halves."""
    x, positions, d_output = normal(0, 2, 5, 8), normal(1, 5) * 20, normal(2, 2, 5, 8)
    angles = torch.tensor(positions)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    axes = (4, 2) if interleaved else (2, 4)

    def turned(x: Any) -> Any:
        pairs = x.reshape(2, 5, *axes)
        arrows = torch.view_as_complex((pairs if interleaved else pairs.transpose(-1, -2)).contiguous())
        found = torch.view_as_real(arrows * torch.polar(torch.ones_like(angles), angles))
        return (found if interleaved else found.transpose(-1, -2)).reshape(2, 5, 8)

    output, cache = rotary.forward(x, positions, interleaved=interleaved)
    expected, (gradient,) = gradients_of(turned, d_output, x)
    assert_close(output, expected, DOUBLE)
    assert_close(rotary.backward(d_output, cache).x, gradient, DOUBLE)
