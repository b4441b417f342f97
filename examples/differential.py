# %% [markdown]
r"""
# Differential attention: a difference of two softmaxes.

What two heads of attention have in common is mostly noise: a little weight on every key, since softmax leaves none out.
The differential transformer (Ye et al., 2025) takes a second softmax from the first, and what both give to a key
cancels. That is a layer of a few lines on `chain`, written forward only. The page
[weightings](../derivations/weightings.md#a-difference-of-two-differential-attention) derives its gradients; here they
are held against numerical ones. (`tests/peers` holds them against PyTorch's autograd.)
"""

# %%
import numpy as np

from attention_np import activation, chain, dot_product, gradcheck, rms_norm

rng = np.random.default_rng(0)
N, D, HEADS, D_K = 7, 8, 2, 3  # tokens, features of each; heads, and features that each of its two softmaxes compares

# %% [markdown]
r"""
## The layer

A head has two pairs of queries and keys, and one set of values of twice the width. How much the second softmax counts
is learned, one number for all heads: $\lambda = e^{a \cdot b} - e^{c \cdot d} + \lambda_0$. The constant $\lambda_0$ is
larger the deeper the layer stands. Each head is brought to one size by `rms_norm`, which does not see a factor of all
its weights; so the factor $1 - \lambda_0$ stands behind it.
"""


# %%
def layer(x, w_query, w_key, w_value, w_output, a, b, c, d, gain, depth=0):
    """The output, (batch, n, D), of variables of a chain; `depth` counts the layers from 0."""
    start = 0.8 - 0.6 * np.exp(-0.3 * depth)
    exponents = chain.concatenate([(a * b).sum(0, keepdims=True), (c * d).sum(0, keepdims=True)])
    first, second = (chain.apply(activation, exponents, kind="exp")[k] for k in (0, 1))
    share = first - second + start  # lambda
    query, key = in_heads(x @ w_query, 2 * HEADS), in_heads(x @ w_key, 2 * HEADS)  # (batch, 2 HEADS, n, D_K)
    value = in_heads(x @ w_value, HEADS)  # (batch, HEADS, n, 2 D_K)
    one, other = (
        chain.apply(dot_product, query[:, k::2], key[:, k::2], value, is_causal=True) for k in (0, 1)
    )  # a head's two pairs stand side by side
    heads = chain.apply(rms_norm, one - share * other, gain, epsilon=1e-5) * (1 - start)
    return joined(heads) @ w_output


def in_heads(x, heads):
    """(batch, n, features) as (batch, heads, n, features of each)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def joined(x):
    """What `in_heads` took apart."""
    x = x.swapaxes(1, 2)
    return x.reshape(*x.shape[:2], -1)


# %% [markdown]
"""
## Its gradients

Every parameter, by numerical derivatives of the layer; forward mode and second derivatives as well.
"""

# %%
WIDTH = 2 * HEADS * D_K
shapes = {"w_query": (D, WIDTH), "w_key": (D, WIDTH), "w_value": (D, WIDTH), "w_output": (WIDTH, D)}
shapes |= {"a": (D_K,), "b": (D_K,), "c": (D_K,), "d": (D_K,), "gain": (2 * D_K,)}
parameters = {name: rng.standard_normal(shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
x = rng.standard_normal((2, N, D))

report = gradcheck.check_op(chain, {"x": x, **parameters}, layer=layer)
print(report)
report.raise_if_failed()

# %% [markdown]
r"""
## What cancels

Ten keys, of which one has what the query asks for. Both softmaxes look at it, the first a little more. What the first
gives to the nine others, the second gives them too, and takes it away.
"""

# %%
scores = np.zeros((2, 10))
scores[:, 3] = 2.5, 1.0
one, other = (np.exp(s) / np.exp(s).sum() for s in scores)
share = other[0] ** -1 * one[0]  # what makes the noise zero
difference = one - share * other
of_all = difference[3] / difference.sum()
print(f"softmax gives {one[3]:.0%} to the key that counts, and the difference {of_all:.0%} of all that it gives")
assert np.abs(np.delete(difference, 3)).max() < 1e-16
