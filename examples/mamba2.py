# %% [markdown]
r"""
# A Mamba-2 block, written forward only.

A state for each head. A step, above 0, says how much of it is forgotten and how much of the token is written:
`linear_attention` with one decay for all features. Before it stands a short convolution, behind it a norm with a gate.
`chain` makes its gradients of those of the ops. (`tests/peers` holds output and gradients against the layer of
`transformers`. T. Dao and A. Gu, arXiv:2405.21060.)
"""

# %%
import numpy as np

from attention_np import activation, chain, gradcheck, linear_attention, rms_norm, short_conv

D, HEADS, GROUPS, D_STATE, TAPS, N = 6, 4, 2, 3, 4, 5  # each group of heads shares its queries and keys
INNER = 2 * D  # features of the values of all heads
OF_GROUPS = GROUPS * D_STATE  # features of the keys of all groups


def layer(x, w_in, taps, b_taps, b_step, log_rate, skip, gain, w_out):
    """The output, (batch, n, D)."""
    projected = x @ w_in
    gate, mixed, step = projected[..., :INNER], projected[..., INNER:-HEADS], projected[..., -HEADS:]
    mixed = silu(chain.apply(short_conv, mixed, taps, b_taps))  # (batch, n, features of values, keys and queries)
    value = in_heads(mixed[..., :INNER], HEADS // GROUPS)  # (batch, GROUPS, heads of each, n, features)
    key, query = (in_heads(mixed[..., k : k + OF_GROUPS], 1) for k in (INNER, INNER + OF_GROUPS))
    step = in_heads(chain.apply(activation, step + b_step, kind="softplus"), HEADS // GROUPS)
    log_decay = -chain.apply(activation, log_rate, kind="exp").reshape(GROUPS, -1, 1, 1) * step
    options = {"log_decay": log_decay, "scale": 1.0, "chunk_size": 16}
    read = chain.apply(linear_attention, query, key, step * value, **options)
    read = read + skip.reshape(GROUPS, -1, 1, 1) * value
    read = read.swapaxes(2, 3).swapaxes(1, 2).reshape(*gate.shape) * silu(gate)
    normed = chain.apply(rms_norm, read.reshape(*gate.shape[:2], GROUPS, -1), epsilon=1e-5)
    return (normed.reshape(*gate.shape) * gain) @ w_out


def silu(x):
    """Each number times its sigmoid."""
    return chain.apply(activation, x, kind="silu")


def in_heads(x, heads):
    """(batch, n, features) as (batch, GROUPS, heads, n, features of each)."""
    return x.reshape(*x.shape[:2], GROUPS, heads, -1).swapaxes(1, 2).swapaxes(2, 3)


# %% [markdown]
"""
Every parameter, by numerical derivatives of the layer; forward mode and second derivatives as well.
"""

# %%
mixed = INNER + 2 * OF_GROUPS
shapes = {"x": (2, N, D), "w_in": (D, INNER + mixed + HEADS), "taps": (TAPS, mixed), "b_taps": (mixed,)}
shapes |= dict.fromkeys(("b_step", "log_rate", "skip"), (HEADS,)) | {"gain": (INNER,), "w_out": (INNER, D)}
rng = np.random.default_rng(0)
inputs = {name: rng.standard_normal(shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
report = gradcheck.check_op(chain, inputs, layer=layer)
print(report)
report.raise_if_failed()
