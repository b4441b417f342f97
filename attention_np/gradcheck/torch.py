"""Check PyTorch's gradients, or those of your own ``torch.autograd.Function``, with one call.

::

    import torch
    from attention_np import gradcheck

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, d_output):
            return d_output * 3 * ctx.saved_tensors[0]  # a square is missing

    print(gradcheck.torch.check(Cube, torch.tensor([0.5, 2.0], dtype=torch.float64)))
"""

from attention_np.gradcheck.adapters.torch import assert_gradients, check

__all__ = ["assert_gradients", "check"]
