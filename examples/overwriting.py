# %% [markdown]
r"""
# What the delta rule recalls and a sum cannot.

Eight names get a number each, in any order, and then every name gets another number. What is the number of each name
*now*? A dictionary overwrites. Linear attention keeps the sum $\sum_j k_j v_j^\top$ of all keys and values, and this is
why it cannot do the task, whatever its keys are: both tokens of a name have one key, so what is recalled for it has the
old number $a$ and the new one $b$ with the same factor $c$. If the numbers are independent, with mean 0 and variance 1,
the mean squared error is at least that of $c (a + b)$, which is $(1 - c)^2 + c^2$, and that is a half at best.

A decay makes what is old weigh less, but also what is new and has to be kept for a while. The delta rule reads before
it writes. Here all three learn the task, by the gradients of `derivations/linear_attention.md`. Needs Matplotlib:
`pip install 'attention-np[plot]'`.
"""

# %%
import sys
from pathlib import Path

import numpy as np

try:
    import matplotlib.pyplot as plt
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is not installed, and this example draws: pip install 'attention-np[plot]'")

from attention_np import linear_attention, rms_norm

# %% [markdown]
"""
## The task

A token that writes has a name and a number; behind them, each name is asked for once. A token that asks writes nothing:
its value and its `beta` are zero.
"""

# %%
NAMES, BATCH, STEPS = 8, 32, 200
WRITES = 2 * NAMES


def sequences(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Names of all tokens, (count, 3 NAMES), the numbers that are written, (count, WRITES), and those asked for."""
    rounds = [np.argsort(rng.random((count, NAMES)), axis=1) for _ in range(2)]
    asked = np.broadcast_to(np.arange(NAMES), (count, NAMES))
    old, new = rng.standard_normal((2, count, NAMES))  # of each name
    written = [np.take_along_axis(x, order, axis=1) for x, order in zip((old, new), rounds, strict=True)]
    return np.concatenate([*rounds, asked], axis=1), np.concatenate(written, axis=1), new


# %% [markdown]
"""
## Learning

What is learned are the keys of the names, brought to length one, their queries, and two numbers: how much is left when
a token writes, and `beta`.
"""

# %%
FREE = {"linear attention": (), "with a decay": ("decay",), "with the delta rule": ("beta",)}


def unit(x: np.ndarray) -> tuple[np.ndarray, rms_norm.Cache]:
    """Rows of length one."""
    return rms_norm.forward(x, np.full(x.shape[-1], x.shape[-1] ** -0.5))


def loss(p: dict[str, np.ndarray], free: tuple[str, ...], names: np.ndarray, numbers: np.ndarray, asked: np.ndarray):
    """The mean squared error of what is recalled, and its gradient."""
    (count, n), (keys, of_keys) = names.shape, unit(p["keys"])
    writes = np.arange(n) < WRITES
    value = np.zeros((count, n, 1))
    value[:, :WRITES, 0] = numbers
    left, beta = (1 / (1 + np.exp(-p[name])) for name in ("decay", "beta"))  # between 0 and 1
    given = {}
    if "decay" in free:
        given["log_decay"] = np.where(writes, np.log(left), 0.0)[:, None]
    if "beta" in free:
        given["beta"] = np.where(writes, beta, 0.0)
    output, cache = linear_attention.forward(p["queries"][names], keys[names], value, chunk_size=n, **given)
    error = output[:, WRITES:, 0] - asked  # (count, NAMES)

    d_output = np.zeros_like(output)
    d_output[:, WRITES:, 0] = 2 * error / error.size
    found = linear_attention.backward(d_output, cache)
    gradient = {name: np.zeros_like(x) for name, x in p.items()}
    np.add.at(gradient["queries"], names, found.query)
    np.add.at(gradient["keys"], names, found.key)
    gradient["keys"] = rms_norm.backward(gradient["keys"], of_keys).x
    if "decay" in free:
        gradient["decay"] = found.log_decay[writes].sum() * (1 - left)
    if "beta" in free:
        gradient["beta"] = found.beta[writes].sum() * beta * (1 - beta)
    return (error**2).mean(), gradient


def learned(free: tuple[str, ...]) -> float:
    """The error on sequences that were never seen, after some steps of Adam."""
    rng = np.random.default_rng(0)
    p = {"keys": rng.standard_normal((NAMES, NAMES)), "queries": rng.standard_normal((NAMES, NAMES))}
    p |= {"decay": np.array(2.0), "beta": np.array(0.0)}
    mean, square = ({name: np.zeros_like(x) for name, x in p.items()} for _ in range(2))
    for step in range(1, STEPS + 1):
        _, gradient = loss(p, free, *sequences(rng, BATCH))
        for name, g in gradient.items():
            mean[name] = 0.9 * mean[name] + 0.1 * g
            square[name] = 0.99 * square[name] + 0.01 * g * g
            rate = 0.1 * np.sqrt(1 - 0.99**step) / (1 - 0.9**step)
            p[name] = p[name] - rate * mean[name] / (np.sqrt(square[name]) + 1e-8)
    return loss(p, free, *sequences(rng, 2000))[0]


errors = {name: learned(free) for name, free in FREE.items()}
for name, error in errors.items():
    print(f"{name:20} mean squared error {error:.3f}")

assert errors["linear attention"] >= 0.48, "half is the bound, and 16000 numbers are a sample"
assert errors["with the delta rule"] <= 0.01

# %% [markdown]
"""
## What the state looks like

Four keys, one for each row, and four values, one for each column. Three keys are written to, and then the first two
again. A sum holds both values; a decay forgets everything alike; the delta rule puts the new in the place of the old.
"""

# %%
order, values = [0, 1, 2, 0, 1], [0, 1, 2, 3, 0]
key, value = np.eye(4)[order], np.eye(4)[values]
rules = {
    "a sum": {},
    "a decay of 0.7": {"log_decay": np.full((5, 1), np.log(0.7))},
    "the delta rule": {"beta": np.ones(5)},
}
figure, axes = plt.subplots(3, 5, figsize=(7.5, 5), sharex=True, sharey=True)
for row, (title, options) in zip(axes, rules.items(), strict=True):
    _, cache = linear_attention.forward(key, key, value, chunk_size=1, **options)
    states = [*cache.states[1:], cache.final_state]  # behind each token
    for t, (ax, state) in enumerate(zip(row, states, strict=True)):
        ax.imshow(state, cmap="Blues", vmin=0, vmax=1.3)
        ax.set_xticks([])
        ax.set_yticks([])
        if ax is row[0]:
            ax.set_ylabel(title)
        if row is axes[0]:
            ax.set_title(f"key {order[t] + 1}: value {values[t] + 1}", fontsize="small")
figure.supxlabel("values")
figure.suptitle("The state behind each token: a row for each key", fontsize="medium")
figure.tight_layout()
folder = Path("build/examples")
folder.mkdir(parents=True, exist_ok=True)
figure.savefig(folder / "overwriting.png", dpi=120)
print(f"The picture is {folder / 'overwriting.png'}; --show opens it in a window.")
if "--show" in sys.argv:
    plt.show()
