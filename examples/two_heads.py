# %% [markdown]
r"""
# What two heads can do and one cannot.

A ring of six places, at each a token, +1 or -1. Every place must say two things: the token on its left and the token
on its right. This is self-attention: a place knows where it is, and attends to the others.

One head cannot do it, however wide it is, and this is why. Queries and keys come from the places, so the weights
$a_{ij}$ of a place are fixed numbers, and what it says is a linear function of the tokens. All that a head knows of
the tokens is one average of them, $\sum_j a_{ij} x_j$, which a matrix then turns into the output: the coefficient of
token j in output c is $a_{ij} w_c$, a matrix of rank 1. The task needs the coefficients (1, 0) for the left token and
(0, 1) for the right one, a matrix of rank 2. Two heads add up to rank 2.

Needs SciPy and Matplotlib: `pip install scipy 'attention-np[plot]'`.
"""

# %%
import itertools
import sys
from pathlib import Path

import numpy as np

try:
    import matplotlib.pyplot as plt
    from scipy.optimize import minimize
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is not installed, and this example needs it: pip install scipy 'attention-np[plot]'")

from attention_np import multi_head, plot

# %% [markdown]
"""
## The task

All 64 rings, so that nothing is left to chance: the tokens are exactly uncorrelated, and each has mean 0 and variance
1.
"""

# %%
PLACES, WIDTH = 6, 8
angles = 2 * np.pi * np.arange(PLACES) / PLACES
place = np.stack([np.cos(angles), np.sin(angles)], axis=-1)  # (PLACES, 2)
tokens = np.array(list(itertools.product([-1.0, 1.0], repeat=PLACES)))  # (64, PLACES)
target = np.stack([np.roll(tokens, 1, axis=1), np.roll(tokens, -1, axis=1)], axis=-1)  # (64, PLACES, 2)

# %% [markdown]
"""
## The least loss of one head

As the tokens are uncorrelated, with variance 1, the mean squared error of a linear function of them is the squared
distance of its coefficients from the right ones. By the theorem of Eckart and Young, the matrix of rank 1 that is
nearest to a matrix misses all of its singular values but the largest. They are computed here; the right coefficients
come from least squares. (An output that does not depend on the tokens would only add to the error.)
"""

# %%
coefficients = np.linalg.lstsq(tokens, target.reshape(len(tokens), -1), rcond=None)[0]
coefficients = coefficients.reshape(PLACES, PLACES, 2).swapaxes(0, 1)  # (place, token, output)
singular = np.linalg.svd(coefficients, compute_uv=False)  # (place, 2)
bound = (singular[:, 1:] ** 2).sum(axis=-1).mean() / 2  # the mean over places and over the two outputs
print(f"singular values at each place: {singular[0].round(6)}, so one head has a loss of {bound:.6f} at least")

# %% [markdown]
"""
## Learning

The parameters are the same arrays for one head and for two: two heads of width 4, or one of width 8. The gradient is
the one derived by hand in `derivations/multi_head.md`.
"""

# %%
SHAPES = ((2, WIDTH), (2, WIDTH), (1, WIDTH), (WIDTH, 2))  # of w_query, w_key, w_value, w_output
ENDS = np.cumsum([np.prod(shape) for shape in SHAPES])


def forward(vector: np.ndarray, num_heads: int) -> tuple[np.ndarray, multi_head.Cache]:
    """What each place says, (64, PLACES, 2)."""
    arrays = [part.reshape(shape) for part, shape in zip(np.split(vector, ENDS[:-1]), SHAPES, strict=True)]
    return multi_head.forward(place, place, tokens[..., None], multi_head.Parameters(*arrays), num_heads=num_heads)


def loss(vector: np.ndarray, num_heads: int) -> tuple[float, np.ndarray]:
    """The mean squared error, and its gradient."""
    output, cache = forward(vector, num_heads)
    error = output - target
    gradient = multi_head.backward(2 * error / error.size, cache).parameters
    return (error**2).mean(), np.concatenate([part.ravel() for part in gradient[:4]])


def learned(num_heads: int, seed: int) -> tuple[float, np.ndarray]:
    """The loss that is reached from a random start, and the parameters there."""
    start = 0.5 * np.random.default_rng(seed).standard_normal(ENDS[-1])
    result = minimize(loss, start, args=(num_heads,), jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return result.fun, result.x


losses = {num_heads: [learned(num_heads, seed)[0] for seed in range(5)] for num_heads in (1, 2)}
for num_heads, reached in losses.items():
    print(f"{num_heads} head{'s' * (num_heads > 1)}: loss " + ", ".join(f"{loss:.6f}" for loss in reached))

assert np.isclose(bound, 0.5)
assert min(losses[1]) >= bound - 1e-12, "the bound is a theorem"
assert min(losses[1]) <= bound + 1e-4, "and it is reached"
assert min(losses[2]) <= 1e-4

# %% [markdown]
"""
## What the heads look at

One of the two heads has found the left neighbour and the other the right one.
"""

# %%
best = int(np.argmin(losses[2]))
_, cache = forward(learned(2, best)[1], num_heads=2)
weights = cache.weights  # (heads, PLACES, PLACES): they do not depend on the tokens, so all rings share them
neighbours = {tuple((head.argmax(axis=-1) - np.arange(PLACES)) % PLACES) for head in weights}
assert neighbours == {(1,) * PLACES, (PLACES - 1,) * PLACES}

axes = plot.heads(weights)
folder = Path("build/examples")
folder.mkdir(parents=True, exist_ok=True)
axes[0].figure.savefig(folder / "two_heads.png", dpi=120)
print(f"The picture is {folder / 'two_heads.png'}; --show opens it in a window.")
if "--show" in sys.argv:
    plt.show()
