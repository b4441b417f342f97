# %% [markdown]
"""
# Check your own kernel.

You have written attention yourself, in NumPy, C or CUDA, with a backward pass. Is it right? Two questions: does
forward give the reference's numbers, and is backward the gradient of *your* forward? The checker needs to know
nothing of attention for the second one. Here is a kernel with three mistakes that people make, and what the checker
says of each. NumPy alone is needed.
"""

# %%
from collections.abc import Callable

import numpy as np

import attention_np as anp
from attention_np import gradcheck

Array = np.ndarray


# %%
def weights_of(query: Array, key: Array) -> Array:
    """Softmax of the scaled scores, (..., n, m)."""
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    exponentials = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def forward(query: Array, key: Array, value: Array) -> Array:
    """Your attention."""
    return weights_of(query, key) @ value


# %% [markdown]
"""
First, the numbers of forward against the reference.
"""

# %%
rng = np.random.default_rng(0)
inputs = {name: rng.standard_normal((3, 5, 8)) for name in ("query", "key", "value")}
difference = np.abs(forward(**inputs) - anp.scaled_dot_product_attention(**inputs)).max()
print(f"forward differs from the reference by {difference:.1e}")
assert difference < 1e-14

# %% [markdown]
r"""
Then backward. The three mistakes are written out, each where it is made:

- the gradient of softmax without its sum: $A_{ij} \, dA_{ij}$, where $A_{ij} (dA_{ij} - \sum_l A_{il} \, dA_{il})$
  is right,
- the factor $1/\sqrt{d_k}$ forgotten in the gradient of the key,
- the mean over the batch in the place of the sum.
"""


# %%
def backward(d_output: Array, query: Array, key: Array, value: Array, mistake: str = "") -> tuple[Array, Array, Array]:
    """Your gradients of query, key and value."""
    scale = 1 / np.sqrt(query.shape[-1])
    weights = weights_of(query, key)
    d_value = weights.swapaxes(-1, -2) @ d_output
    d_weights = d_output @ value.swapaxes(-1, -2)
    total = (weights * d_weights).sum(axis=-1, keepdims=True)
    if mistake == "no sum in softmax":
        total = 0.0
    d_scores = weights * (d_weights - total)
    d_query = d_scores @ key * scale
    d_key = d_scores.swapaxes(-1, -2) @ query * scale
    if mistake == "no scale in d_key":
        d_key = d_scores.swapaxes(-1, -2) @ query
    if mistake == "mean over the batch":
        d_value = d_value / len(query)
    return d_query, d_key, d_value


def with_mistake(mistake: str) -> Callable[..., tuple[Array, Array, Array]]:
    """A backward pass that makes a mistake."""
    return lambda *arrays: backward(*arrays, mistake=mistake)


# %%
expected = {
    "no sum in softmax": {"query", "key"},
    "no scale in d_key": {"key"},
    "mean over the batch": {"value"},
}
for mistake, wrong in expected.items():
    report = gradcheck.check(forward, with_mistake(mistake), inputs)
    print(f"\n{mistake}:")
    for name in inputs:
        print(f"  {name:6} {report[name].diagnosis or 'is right'}")
    assert {name for name in inputs if not report[name].ok} == wrong

# %% [markdown]
"""
The full report, of one of them, has the worst entries too, and the method that found them: the complex step, which
has no rounding error to speak of. In a test, `gradcheck.assert_gradients(forward, backward, inputs)` does the same
and fails.
"""

# %%
print(gradcheck.check(forward, with_mistake("no scale in d_key"), inputs))

# %% [markdown]
"""
Without the mistakes, all holds.
"""

# %%
report = gradcheck.check(forward, backward, inputs)
print(report)
report.raise_if_failed()
