# %% [markdown]
r"""
# Sparse attention that learns what to look at, as in DeepSeek-V3.2.

Each query attends to 8 of up to 64 keys. An indexer, smaller than the attention, scores all keys, and the best are
selected. No gradient goes through that choice, so the loss of a model teaches the indexer nothing (the page
`derivations/indexer.md` says what is lost). What does is how far its scores diverge from the weights of attention. It
is trained for 300 steps; the attention stays as it is. *Recall* is how much of the weight that attention to all keys
has falls on the keys selected, on sequences that no step has seen.
"""

# %%
import numpy as np

from attention_np import chain, cross_entropy, indexer, latent, masks

rng = np.random.default_rng(0)
N, D, HEADS, WIDTH, SELECTED = 64, 16, 4, 8, 8  # tokens, features; heads of the indexer, and their features; keys
PAST = masks.causal(N)
w_query, w_key, w_value = (rng.standard_normal((2, *shape)) / 4 for shape in ((D, 16), (WIDTH, 16), (WIDTH, 16)))
w_latent = rng.standard_normal((D, WIDTH)) / 4

# %% [markdown]
"""
## Attention to latents, and the indexer

The attention has fixed weights. The indexer has its own projections of the tokens, of which the first feature is 1.
"""


# %%
def draw(batch):
    """Tokens, (batch, N, D)."""
    x = rng.standard_normal((batch, N, D))
    return np.where(np.arange(D) == 0, 1, x)


def attend(x, mask):
    """The output of attention, (batch, 2, N, 16), and its weights, (batch, 2, N, N)."""
    output, cache = latent.forward(3 * x[:, None] @ w_query, None, x @ w_latent, None, w_key, w_value, mask=mask)
    return output, cache.weights


def score(x, of_query, of_key, of_weights):
    """What the indexer thinks of each key for each query, (batch, N, N)."""
    query, weights = (x @ of_query).reshape(*x.shape[:2], HEADS, WIDTH).swapaxes(1, 2), (x @ of_weights).swapaxes(1, 2)
    return chain.apply(indexer, query, x @ of_key, weights, mask=PAST)


# %% [markdown]
r"""
## Trained by the divergence

The target is the mean of the weights over the heads of attention. Its entropy does not move, so the cross-entropy has
the gradient of the divergence, $\mathrm{softmax}(I) - p$. Each step is of one length in every entry, and they shrink.
"""

# %%
widths = {"of_query": HEADS * WIDTH, "of_key": WIDTH, "of_weights": HEADS}
untrained = parameters = {name: rng.standard_normal((D, width)) / 4 for name, width in widths.items()}
for step in range(300):
    x = draw(4)
    target = attend(x, PAST)[1].mean(axis=1)
    layer = lambda x=x, target=target, **w: chain.apply(cross_entropy, score(x, **w), target, mask=PAST)  # noqa: E731
    loss, cache = chain.forward(layer, parameters)
    d_parameters = chain.backward(np.full(loss.shape, 1 / loss.size), cache)
    parameters = {name: w - 0.03 * 0.99**step * np.sign(d_parameters[name]) for name, w in parameters.items()}

# %% [markdown]
"""
## What it selects

Beside keys at random, and beside those that have the most weight: more than these no choice can reach.
"""

# %%
x = draw(16)
full, weights = attend(x, PAST)
wanted = {"random keys": rng.random((16, N, N)), "untrained": score(x, **untrained), "trained": score(x, **parameters)}
for name, scores in {**wanted, "most weight": weights.mean(axis=1)}.items():
    mask = masks.selected(indexer.top_k(np.where(PAST, scores, -np.inf), SELECTED), N)
    recall = (weights.mean(axis=1) * mask)[:, SELECTED:].sum(axis=-1).mean()  # of queries that have to choose
    error = np.linalg.norm(attend(x, mask[:, None])[0] - full) / np.linalg.norm(full)
    print(f"{name:12} recall {recall:.3f}, output off by {error:.3f}")
