# %% [markdown]
r"""
# Native sparse attention.

Native sparse attention (Yuan et al., 2025) looks at a long text three times: at windows of it, each pooled to one key
and one value; at the few blocks whose windows have the most weight, token by token; and at the last tokens. Gates add
the three up. Which block gets the weight of which window is derived in `derivations/pooling.md`. Here is the layer on
a `chain`, written forward only, and its gradients against numerical ones. (`tests/peers` holds it against autograd.)
"""

# %%
import numpy as np

from attention_np import activation, chain, dot_product, gradcheck, indexer, masks, pooling, softmax

D, HEADS, D_K = 6, 2, 4  # features of a token; heads of queries, and features of each: keys and values have one head
WIDTH, STRIDE, BLOCK, BLOCKS, LEFT = 4, 2, 4, 3, 3  # of windows; of blocks, and how many; tokens seen before one's own


# %% [markdown]
r"""
## The layer

The choice of blocks is made of plain numbers, so no gradient goes through it. All heads choose together; the first
block and the query's own are always among those chosen, the latter up to the query itself.
"""


# %%
def layer(x, w_query, w_key, w_value, w_pool, places, w_gate, w_output):
    """The output, (batch, n, D), of tokens (batch, n, D)."""
    n, query = x.shape[1], apart(x @ w_query, HEADS)  # (batch, HEADS, n, D_K)
    keys, values = apart(x @ w_key, 3), apart(x @ w_value, 3)  # (batch, 3, n, D_K), of each branch its own
    how = {"gate": apart(x @ w_pool, 1), "b": places, "width": WIDTH, "stride": STRIDE}
    key, value = (chain.apply(pooling, y[:, :1], **how) for y in (keys, values))  # (batch, 1, windows, D_K)
    over = masks.causal(n, max(n - WIDTH + 1, 0), offset=1 - WIDTH)[:, ::STRIDE]  # (n, windows)
    compressed = chain.apply(dot_product, query, key, value, mask=over)  # (batch, HEADS, n, D_K)
    chosen = selection(*(getattr(y, "value", y) for y in (query, key)), over)
    selected = chain.apply(dot_product, query, keys[:, 1:2], values[:, 1:2], mask=chosen)
    near = chain.apply(dot_product, query, keys[:, 2:], values[:, 2:], mask=masks.sliding_window(n, left=LEFT))
    gates = apart(chain.apply(activation, x @ w_gate, kind="sigmoid"), 3 * HEADS)  # (batch, 3 * HEADS, n, 1)
    branches = chain.concatenate([compressed, selected, near], axis=1) * gates
    output = branches[:, :HEADS] + branches[:, HEADS : 2 * HEADS] + branches[:, 2 * HEADS :]
    return output.swapaxes(1, 2).reshape(*x.shape[:2], HEADS * D_K) @ w_output


def selection(query, key, over):
    """Which tokens each query looks at one by one, (batch, 1, n, n)."""
    t, first, start = np.arange(len(over))[:, None], np.arange(0, len(over), BLOCK), STRIDE * np.arange(over.shape[1])
    weights, _ = softmax.forward(query @ key.swapaxes(-1, -2) / np.sqrt(D_K), mask=over)
    common = np.minimum(start[:, None] + WIDTH, first + BLOCK) - np.maximum(start[:, None], first)  # tokens
    importance = weights.real.sum(axis=1, keepdims=True) @ np.maximum(common, 0)  # (batch, 1, n, blocks)
    importance = np.where((first == 0) | (first == t - t % BLOCK), np.inf, np.where(first > t, -np.inf, importance))
    chosen = indexer.top_k(importance, BLOCKS)  # (batch, 1, n, BLOCKS)
    return masks.selected(chosen, len(over), block_size=BLOCK) & masks.causal(len(over))


def apart(x, parts):
    """(batch, n, parts * features) as (batch, parts, n, features)."""
    return x.reshape(*x.shape[:2], parts, x.shape[2] // parts).swapaxes(1, 2)


# %% [markdown]
"""
## Its gradients

Of every parameter, forward mode and second derivatives too. A small step does not change the choice.
"""

# %%
shapes = {"w_query": (D, HEADS * D_K), "w_key": (D, 3 * D_K), "w_value": (D, 3 * D_K), "w_pool": (D, D_K)}
shapes |= {"places": (WIDTH, D_K), "w_gate": (D, 3 * HEADS), "w_output": (HEADS * D_K, D), "x": (1, 18, D)}
inputs = {name: np.random.default_rng(len(name)).standard_normal(shape) / 2 for name, shape in shapes.items()}
report = gradcheck.check_op(chain, inputs, layer=layer)
print(report)
report.raise_if_failed()
