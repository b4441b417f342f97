# %% [markdown]
r"""
# A layer with a state, as in Qwen3-Next.

Three of four layers of Qwen3-Next have no softmax. They keep a state for each head, which a gate lets decay, and
which the delta rule corrects. Around that recurrence, `linear_attention` of this package, stand a short convolution,
norms and gates. Here is the whole layer from plain arrays, forward and backward. Its gradients are held against
numerical ones, and the whole sequence against the same layer token by token, as it writes text. (`tests/peers` holds
output and gradients against the layer of `transformers`.)
"""

# %%
import numpy as np

from attention_np import gradcheck, linear_attention, rms_norm

rng = np.random.default_rng(0)
N, D = 6, 8  # tokens, and features of each
KEY_HEADS, VALUE_HEADS, D_K, D_V, TAPS = 2, 4, 3, 5, 4  # each head of queries and keys serves two of values
PARTS = np.cumsum([KEY_HEADS * D_K, KEY_HEADS * D_K])  # where keys begin, and values

# %% [markdown]
r"""
## The pieces

Each feature of queries, keys and values is mixed with itself of the three tokens before, $y_t = \sum_j w_j x_{t-j}$,
then goes through $\mathrm{silu}(y) = y / (1 + e^{-y})$. Queries and keys are brought to length one: that is `rms_norm`
with a gain of $1/\sqrt{d}$. The gates are $\beta = 1 / (1 + e^{-b})$, and the decay $e^{-e^a \log(1 + e^z)}$.
"""


# %%
def sigmoid(x):
    """Between zero and one."""
    return 1 / (1 + np.exp(-x))


def silu(x):
    """Itself, where it is large, and hardly anything below zero."""
    return x * sigmoid(x)


def silu_slope(x):
    """The derivative of silu."""
    return sigmoid(x) * (1 + x * (1 - sigmoid(x)))


def convolution(x, taps, before):
    """Each feature of x, (batch, n, c), with its own taps, (c, TAPS), the last of which is for the token itself."""
    x = np.concatenate([before, x], axis=1)  # (batch, TAPS - 1 + n, c)
    n = x.shape[1] - TAPS + 1
    return sum(x[:, j : j + n] * taps[:, j] for j in range(TAPS))


def convolution_backward(d_y, x, taps):
    """Of sequences before which there is nothing."""
    n = x.shape[1]
    later = np.pad(d_y, ((0, 0), (0, TAPS - 1), (0, 0)))
    d_x = sum(later[:, TAPS - 1 - j :][:, :n] * taps[:, j] for j in range(TAPS))
    x = np.pad(x, ((0, 0), (TAPS - 1, 0), (0, 0)))
    return d_x, np.stack([(x[:, j : j + n] * d_y).sum(axis=(0, 1)) for j in range(TAPS)], axis=-1)


def unit(x):
    """Rows of length one."""
    d = x.shape[-1]
    return rms_norm.forward(x, np.full(d, d**-0.5), epsilon=1e-6 / d)


def in_heads(x, *heads):
    """(batch, n, features) as (batch, *heads, n, features of each)."""
    batch, n = x.shape[:2]
    return np.moveaxis(x.reshape(batch, n, *heads, -1), 1, -2)


def joined(x):
    """What `in_heads` took apart."""
    x = np.moveaxis(x, -2, 1)
    return x.reshape(*x.shape[:2], -1)


GROUPS = (
    KEY_HEADS,
    VALUE_HEADS // KEY_HEADS,
)  # keys have one head in each group: their axes broadcast to those of values

# %% [markdown]
"""
## The layer

`before` is what the layer remembers of a sequence: the last three tokens before the convolution, and the state.
"""


# %%
def forward(x, p, before=None):
    """The output, (batch, n, D), what is remembered, and what `backward` needs."""
    mixed = x @ p["w_mixed"]  # (batch, n, features of queries, keys and values)
    last, state = (np.zeros((len(x), TAPS - 1, mixed.shape[-1])), None) if before is None else before
    convolved = convolution(mixed, p["taps"], last)
    query, key, value = np.split(silu(convolved), PARTS, axis=-1)
    query, of_query = unit(in_heads(query, KEY_HEADS, 1))  # (batch, KEY_HEADS, 1, n, D_K)
    key, of_key = unit(in_heads(key, KEY_HEADS, 1))
    beta = in_heads(sigmoid(x @ p["w_beta"]), *GROUPS)[..., 0]  # (batch, KEY_HEADS, 2, n)
    step = np.log1p(np.exp(x @ p["w_step"] + p["b_step"]))  # (batch, n, VALUE_HEADS)
    log_decay = in_heads(-np.exp(p["log_rate"]) * step, *GROUPS)
    output, of_state = linear_attention.forward(
        query, key, in_heads(value, *GROUPS), log_decay=log_decay, beta=beta, initial_state=state, chunk_size=64
    )
    normed, of_norm = rms_norm.forward(output, p["gain"])
    gate = in_heads(x @ p["w_gate"], *GROUPS)
    gated = joined(normed * silu(gate))
    last = np.concatenate([last, mixed], axis=1)[:, 1 - TAPS :]
    saved = x, mixed, convolved, of_query, of_key, step, beta, of_state, normed, of_norm, gate, gated
    return gated @ p["w_output"], (last, of_state.final_state), saved


def backward(d_y, p, saved):
    """The gradients of x and of each parameter, of a sequence before which there was nothing."""
    x, mixed, convolved, of_query, of_key, step, beta, of_state, normed, of_norm, gate, gated = saved
    d_gated = in_heads(d_y @ p["w_output"].T, *GROUPS)
    d = {"w_output": outer(gated, d_y)}
    d_gate = joined(d_gated * normed * silu_slope(gate))

    of_output = rms_norm.backward(d_gated * silu(gate), of_norm)
    d["gain"] = of_output.gain
    found = linear_attention.backward(of_output.x, of_state)
    d_query, d_key = rms_norm.backward(found.query, of_query).x, rms_norm.backward(found.key, of_key).x

    # forward was log_decay = -exp(log_rate) * step, step = log(1 + exp(...)), whose slope is 1 - exp(-step)
    d_log_decay = joined(found.log_decay)  # (batch, n, VALUE_HEADS)
    d["log_rate"] = (-np.exp(p["log_rate"]) * d_log_decay * step).sum(axis=(0, 1))
    d_step = -np.exp(p["log_rate"]) * d_log_decay * -np.expm1(-step)
    d["b_step"] = d_step.sum(axis=(0, 1))
    d_beta = joined((found.beta * beta * (1 - beta))[..., None])

    d_convolved = np.concatenate([joined(d_query), joined(d_key), joined(found.value)], axis=-1)
    d_mixed, d["taps"] = convolution_backward(d_convolved * silu_slope(convolved), mixed, p["taps"])
    d_x = 0
    for name, d_projected in {"w_mixed": d_mixed, "w_gate": d_gate, "w_step": d_step, "w_beta": d_beta}.items():
        d[name] = outer(x, d_projected)
        d_x = d_x + d_projected @ p[name].T
    return {"x": d_x, **{name: d[name] for name in p}}


def outer(x, d_y):
    """The gradient of the matrix that x was multiplied by."""
    return np.einsum("bni,bnj->ij", x, d_y)


# %% [markdown]
"""
## Its gradients

Every parameter, by numerical derivatives of the layer.
"""

# %%
of_keys, of_values = KEY_HEADS * D_K, VALUE_HEADS * D_V
shapes = {"w_mixed": (D, 2 * of_keys + of_values), "taps": (2 * of_keys + of_values, TAPS), "w_gate": (D, of_values)}
shapes |= {"w_step": (D, VALUE_HEADS), "b_step": (VALUE_HEADS,), "log_rate": (VALUE_HEADS,), "w_beta": (D, VALUE_HEADS)}
shapes |= {"gain": (D_V,), "w_output": (of_values, D)}
parameters = {name: rng.standard_normal(shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
x = rng.standard_normal((2, N, D))


def of_arrays(*arrays):
    """The input and the parameters."""
    return arrays[0], dict(zip(parameters, arrays[1:], strict=True))


report = gradcheck.check(
    lambda *arrays: forward(*of_arrays(*arrays))[0],
    lambda d_y, *arrays: list(backward(d_y, of_arrays(*arrays)[1], forward(*of_arrays(*arrays))[2]).values()),
    {"x": x, **parameters},
)
print(report)
report.raise_if_failed()

# %% [markdown]
"""
## Token by token

A model that writes has one token at a time. What it remembers does not grow with the text: three tokens and a state.
"""

# %%
whole, _, _ = forward(x, parameters)
before, outputs = None, []
for t in range(N):
    output, before, _ = forward(x[:, t : t + 1], parameters, before)
    outputs.append(output)
difference = np.abs(np.concatenate(outputs, axis=1) - whole).max()
print(f"token by token: {difference:.1e} from the whole sequence; remembered: {sum(a.size for a in before)} numbers")
assert difference < 1e-14
