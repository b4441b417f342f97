# %% [markdown]
r"""
# A layer with a state, as in Qwen3-Next.

Three of four layers of Qwen3-Next have no softmax. They keep a state for each head, which a gate lets decay, and
which the delta rule corrects. Around that recurrence, `linear_attention` of this package, stand a short convolution,
norms and gates. Here is the whole layer, written forward only: `chain` makes its gradients of those of the ops. They
are held against numerical ones, and the whole sequence against the same layer token by token, as it writes text.
(`tests/peers` holds output and gradients against the layer of `transformers`.)
"""

# %%
import numpy as np

from attention_np import activation, chain, gradcheck, linear_attention, rms_norm, short_conv

rng = np.random.default_rng(0)
N, D = 6, 8  # tokens, and features of each
KEY_HEADS, VALUE_HEADS, D_K, D_V, TAPS = 2, 4, 3, 5, 4  # each head of queries and keys serves two of values
OF_KEYS, OF_VALUES = KEY_HEADS * D_K, VALUE_HEADS * D_V  # features of all heads

# %% [markdown]
r"""
## The layer

Each feature of queries, keys and values is mixed with itself of the three tokens before, and goes through
$\mathrm{silu}(y) = y / (1 + e^{-y})$. Queries and keys are brought to length one: that is `rms_norm` with a gain of
$1/\sqrt{d}$. The gates are $\beta = 1 / (1 + e^{-b})$, and the decay $e^{-e^a \log(1 + e^z)}$. Keys have one head in
each group of value heads, and broadcast to them.

`last` and `state` are what the layer remembers of a sequence: three tokens before the convolution, and the state.
"""


# %%
def layer(x, w_mixed, taps, w_beta, w_step, b_step, log_rate, w_gate, gain, w_output, last=None, state=None):
    """The output, (batch, n, D), and what is remembered; of variables of a chain, or of arrays."""
    mixed, last = chain.apply(short_conv, x @ w_mixed, taps, initial_state=last, outputs=("output", "final_state"))
    mixed = chain.apply(activation, mixed, kind="silu")  # (batch, n, features of queries, keys and values)
    query = unit(in_heads(mixed[..., :OF_KEYS], KEY_HEADS, 1))  # (batch, KEY_HEADS, 1, n, D_K)
    key = unit(in_heads(mixed[..., OF_KEYS : 2 * OF_KEYS], KEY_HEADS, 1))
    value = in_heads(mixed[..., 2 * OF_KEYS :], *GROUPS)  # (batch, KEY_HEADS, 2, n, D_V)
    beta = in_heads(chain.apply(activation, x @ w_beta, kind="sigmoid"), *GROUPS)[..., 0]
    step = chain.apply(activation, x @ w_step + b_step, kind="softplus")  # (batch, n, VALUE_HEADS)
    log_decay = in_heads(-chain.apply(activation, log_rate, kind="exp") * step, *GROUPS)
    gates = {"log_decay": log_decay, "beta": beta, "initial_state": state, "chunk_size": 64}
    output, state = chain.apply(linear_attention, query, key, value, **gates, outputs=("output", "final_state"))
    gate = chain.apply(activation, in_heads(x @ w_gate, *GROUPS), kind="silu")
    gated = chain.apply(rms_norm, output, gain) * gate
    return joined(gated) @ w_output, last, state


GROUPS = KEY_HEADS, VALUE_HEADS // KEY_HEADS


def unit(x):
    """Rows of length one."""
    d = x.shape[-1]
    return chain.apply(rms_norm, x, np.full(d, d**-0.5), epsilon=1e-6 / d)


def in_heads(x, *heads):
    """(batch, n, features) as (batch, *heads, n, features of each)."""
    return x.reshape(*x.shape[:2], *heads, -1).swapaxes(1, 2).swapaxes(2, 3)


def joined(x):
    """What `in_heads` took apart."""
    x = x.swapaxes(2, 3).swapaxes(1, 2)
    return x.reshape(*x.shape[:2], -1)


# %% [markdown]
"""
## Its gradients

Every parameter, by numerical derivatives of the layer; forward mode and second derivatives as well.
"""

# %%
shapes = {"w_mixed": (D, 2 * OF_KEYS + OF_VALUES), "taps": (TAPS, 2 * OF_KEYS + OF_VALUES), "w_beta": (D, VALUE_HEADS)}
shapes |= {"w_step": (D, VALUE_HEADS), "b_step": (VALUE_HEADS,), "log_rate": (VALUE_HEADS,), "w_gate": (D, OF_VALUES)}
shapes |= {"gain": (D_V,), "w_output": (OF_VALUES, D)}
parameters = {name: rng.standard_normal(shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
x = rng.standard_normal((2, N, D))

report = gradcheck.check_op(chain, {"x": x, **parameters}, layer=lambda **arrays: layer(**arrays)[0])
print(report)
report.raise_if_failed()

# %% [markdown]
"""
## Token by token

A model that writes has one token at a time. What it remembers does not grow with the text: three tokens and a state.
"""

# %%
whole, _, _ = layer(x, **parameters)
last, state, outputs = None, None, []
for t in range(N):
    output, last, state = layer(x[:, t : t + 1], **parameters, last=last, state=state)
    outputs.append(output)
difference = np.abs(np.concatenate(outputs, axis=1) - whole).max()
print(f"token by token: {difference:.1e} from the whole sequence; remembered: {last.size + state.size} numbers")
assert difference < 1e-14
