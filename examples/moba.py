# %% [markdown]
r"""
# A mixture of block attention.

In MoBA (Lu et al., 2025) each query of each head attends to a few blocks of keys: its own, up to itself, and those of
the blocks before it whose mean key agrees with it most. The mean is `pooling` of this package. It chooses, and is not
attended to, so no gradient goes through it: the layer on a `chain`, and its gradients against numerical ones.
(`tests/peers` holds it against autograd.)
"""

# %%
import numpy as np

from attention_np import chain, dot_product, gradcheck, indexer, masks, pooling

D, HEADS, D_K = 6, 2, 4  # features of a token; heads, and features of each
BLOCK, BLOCKS = 4, 2  # tokens of a block, and how many blocks a query attends to


# %%
def layer(x, w_query, w_key, w_value, w_output):
    """The output, (batch, n, D), of tokens (batch, n, D)."""
    query, key, value = (in_heads(x @ w) for w in (w_query, w_key, w_value))  # (batch, HEADS, n, D_K)
    chosen = selection(*(getattr(y, "value", y) for y in (query, key)))
    output = chain.apply(dot_product, query, key, value, mask=chosen)
    return output.swapaxes(1, 2).reshape(*x.shape[:2], HEADS * D_K) @ w_output


def selection(query, key):
    """Which keys each query attends to, (batch, HEADS, n, n)."""
    n = query.shape[-2]
    own, block = np.arange(n)[:, None] // BLOCK, np.arange(-(-n // BLOCK))
    means, _ = pooling.forward(key, width=BLOCK)  # (batch, HEADS, whole blocks, D_K)
    agreement = np.zeros((*query.shape[:-1], len(block)))  # a last block that is not whole is nobody's but its own
    agreement[..., : means.shape[-2]] = (query @ means.swapaxes(-1, -2)).real
    agreement = np.where(block == own, np.inf, np.where(block > own, -np.inf, agreement))
    return masks.selected(indexer.top_k(agreement, BLOCKS), n, block_size=BLOCK) & masks.causal(n)


def in_heads(x):
    """(batch, n, HEADS * D_K) as (batch, HEADS, n, D_K)."""
    return x.reshape(*x.shape[:2], HEADS, D_K).swapaxes(1, 2)


# %%
shapes = {"x": (1, 14, D), **dict.fromkeys(("w_query", "w_key", "w_value"), (D, HEADS * D_K)), "w_output": (8, D)}
inputs = {name: np.random.default_rng(k).standard_normal(shape) / 2 for k, (name, shape) in enumerate(shapes.items())}
report = gradcheck.check_op(chain, inputs, layer=layer)
print(report)
report.raise_if_failed()
