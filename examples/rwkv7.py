# %% [markdown]
r"""
# RWKV-7's time mixing, written forward only.

A token removes from the state what stands under one key, at a rate that each feature learns, and writes under another:
a probe and a response of `linear_attention`. Around it stand a shift by one token (a convolution with two taps that sum
to one), gates of low rank, a norm for each head, and a term for the token's own value. `chain` makes its gradients of
those of the ops. (`tests/peers` holds them against autograd through a loop. B. Peng et al., arXiv:2503.14456.)
"""

# %%
import numpy as np

from attention_np import activation, chain, gradcheck, layer_norm, linear_attention, rms_norm, short_conv

D, HEADS, RANK, N = 6, 2, 3, 5  # features of a token, heads, rank of the gates, tokens


def layer(x, mu, w_r, w_k, w_v, w_o, w0, w1, w2, a0, a1, a2, g1, g2, k_k, k_a, r_k, gain, b):
    """The output, (batch, n, D), of a first layer."""
    r, w, k, v, a, g = (shifted(x, mu[i : i + 1]) for i in range(6))
    r, k, v = r @ w_r, k @ w_k, v @ w_v
    log_decay = -np.exp(-0.5) * sigmoid(chain.apply(activation, w @ w1, kind="tanh") @ w2 + w0)  # at least -0.61
    rate, gate = sigmoid(a @ a1 @ a2 + a0), sigmoid(g @ g1) @ g2
    removed = chain.apply(rms_norm, in_heads(k * k_k), np.full(D // HEADS, (D / HEADS) ** -0.5), epsilon=0.0)
    k = k * ((rate - 1) * k_a + 1)
    arrays = {"log_decay": in_heads(log_decay), "probe": removed, "response": -in_heads(rate) * removed}
    read = chain.apply(linear_attention, *map(in_heads, (r, k, v)), **arrays, scale=1.0, chunk_size=16)
    normed = joined(chain.apply(layer_norm, read, epsilon=64e-5)) * gain + b
    own = in_heads(r * k * r_k).sum(axis=-1, keepdims=True) * in_heads(v)
    return ((normed + joined(own)) * gate) @ w_o


def shifted(x, mu):
    """A mixture of each token and the one before it: of mu and 1 - mu."""
    return chain.apply(short_conv, x, chain.concatenate([mu, 1 - mu], axis=0))


def sigmoid(x):
    """Between 0 and 1."""
    return chain.apply(activation, x, kind="sigmoid")


def in_heads(x):
    """(batch, n, D) as (batch, HEADS, n, features of each)."""
    return x.reshape(*x.shape[:2], HEADS, D // HEADS).swapaxes(1, 2)


def joined(x):
    """What `in_heads` took apart."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], D)


# %% [markdown]
"""
Every parameter, by numerical derivatives of the layer; forward mode and second derivatives as well.
"""

# %%
shapes = {"x": (2, N, D), "mu": (6, D)} | dict.fromkeys(("w_r", "w_k", "w_v", "w_o"), (D, D))
shapes |= {x: [(D,), (D, RANK), (RANK, D)][int(x[1])] for x in ("w0", "w1", "w2", "a0", "a1", "a2", "g1", "g2")}
shapes |= dict.fromkeys(("k_k", "k_a", "r_k", "gain", "b"), (D,))
rng = np.random.default_rng(0)
inputs = {name: rng.standard_normal(shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
report = gradcheck.check_op(chain, inputs, layer=layer)
print(report)
report.raise_if_failed()
