# %% [markdown]
"""
# Hold a PyTorch layer against the reference.

`torch.nn.MultiheadAttention` keeps its three projections in one array that multiplies from the left.
`multi_head.Parameters.from_in_proj` reads that layout. Then outputs and all gradients can be compared: PyTorch's are
by automatic differentiation, the reference's are derived by hand. Needs PyTorch: `pip install torch`.
"""

# %%
import sys

import numpy as np

import attention_np as anp
from attention_np import multi_head

try:
    import torch
except ImportError:
    sys.exit("this example compares with PyTorch, which is not installed: pip install torch")

# %% [markdown]
"""
A layer as it comes, in double precision, with biases that are not zero, on a causal batch of which the second
sequence is padded. PyTorch's boolean masks are True where attending is *forbidden*: the opposite of ours.
"""

# %%
torch.manual_seed(0)
layer = torch.nn.MultiheadAttention(embed_dim=8, num_heads=2, batch_first=True, dtype=torch.float64)
torch.nn.init.normal_(layer.in_proj_bias)
torch.nn.init.normal_(layer.out_proj.bias)

rng = np.random.default_rng(0)
x = rng.standard_normal((2, 5, 8))
mask = anp.masks.causal(5) & anp.masks.padding([5, 3], m=5, heads=True)  # (2, 1, 5, 5)
forbidden = torch.tensor(np.repeat(~mask[:, 0], 2, axis=0))  # (batch * heads, 5, 5)

x_torch = torch.tensor(x, requires_grad=True)
output_torch, _ = layer(x_torch, x_torch, x_torch, attn_mask=forbidden)
d_output = rng.standard_normal(x.shape)
output_torch.backward(torch.tensor(d_output))

# %% [markdown]
"""
The same in NumPy. In self-attention x is query, key and value at once, so its gradient is the sum of the three.
"""


# %%
def parameters_of(layer: torch.nn.MultiheadAttention, *, gradient: bool = False) -> multi_head.Parameters:
    """The parameters of the layer, or their gradients."""
    arrays = (layer.in_proj_weight, layer.out_proj.weight, layer.in_proj_bias, layer.out_proj.bias)
    return multi_head.Parameters.from_in_proj(*((x.grad if gradient else x.detach()).numpy() for x in arrays))


output, cache = multi_head.forward(x, x, x, parameters_of(layer), num_heads=2, mask=mask)
gradients = multi_head.backward(d_output, cache)

pairs = {"output": (output, output_torch.detach().numpy())}
pairs["gradient of x"] = (gradients.query + gradients.key + gradients.value, x_torch.grad.numpy())
for name, ours, theirs in zip(
    multi_head.Parameters._fields, gradients.parameters, parameters_of(layer, gradient=True), strict=True
):
    if ours is not None:
        pairs[f"gradient of {name}"] = (ours, theirs)

# %% [markdown]
"""
The gradient of the key's bias is zero: a constant added to all keys moves all scores of a query alike, and softmax
does not see that. Both compute zero up to rounding.
"""

# %%
print(f"{'':22} largest entry  largest difference")
for name, (ours, theirs) in pairs.items():
    difference = np.abs(ours - theirs).max()
    print(f"{name:22} {np.abs(theirs).max():13.1e}  {difference:18.1e}")
    assert difference <= 1e-13 * max(1.0, np.abs(theirs).max())
