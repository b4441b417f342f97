# %% [markdown]
r"""
# How training changes the weights.

One block of a transformer learns a task that it can only do by looking back: at each word of a sentence, to name the
animal that came last. Nobody tells it where to look. The example keeps its weights before, during and after training,
counts how many words each row effectively looks at, and draws them beside the loss at each position.
"""

# %%
import sys
from pathlib import Path

import numpy as np

try:
    import matplotlib.pyplot as plt
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is not installed, and this example draws: pip install 'attention-np[plot]'")

from attention_np import activation, chain, cross_entropy, multi_head, positions, rms_norm

# %% [markdown]
"""
## Sentences, and the animal that came last

Twelve words at random out of eight, of which the first is an animal.
"""

# %%
WORDS = ["the", "saw", "and", "it", "cat", "dog", "hen", "fox"]  # from the fifth on they are animals
LENGTH, WIDTH = 12, 16
rng = np.random.default_rng(0)


def sentences(count):
    """Draw tokens and answers, (count, LENGTH) each."""
    tokens = rng.integers(len(WORDS), size=(count, LENGTH))
    tokens[:, 0] = rng.integers(4, len(WORDS), size=count)
    last = np.maximum.accumulate(np.where(tokens >= 4, np.arange(LENGTH), 0), axis=1)
    return tokens, np.take_along_axis(tokens, last, axis=1)


# %% [markdown]
"""
## The model: a block between a table of words and scores of words
"""

# %%
square = (WIDTH, WIDTH)
shapes = {"table": (len(WORDS), WIDTH), "query": square, "key": square, "value": square, "out": square}
shapes |= {"up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH), "scores": (WIDTH, len(WORDS))}
w = {name: rng.normal(size=shape) / np.sqrt(WIDTH) for name, shape in shapes.items()}
where = positions.sinusoidal(LENGTH, WIDTH)
OPTIONS = {"num_heads": 1, "is_causal": True}


def losses(tokens, answers, w):
    """How surprised the model is by each answer: as a chain, written forward only."""
    x = w["table"][tokens] + where
    y = chain.apply(rms_norm, x)
    heads = multi_head.Parameters(w["query"], w["key"], w["value"], w["out"])
    x = x + chain.apply(multi_head, y, y, y, heads, **OPTIONS)
    y = chain.apply(rms_norm, x)
    x = x + chain.apply(activation, y @ w["up"], kind="relu") @ w["down"]
    return chain.apply(cross_entropy, x @ w["scores"], answers)


def attention_weights(tokens, w):
    """Who looks at whom, (LENGTH, LENGTH)."""
    y, _ = rms_norm.forward(w["table"][tokens] + where)
    heads = multi_head.Parameters(w["query"], w["key"], w["value"], w["out"])
    return multi_head.forward(y, y, y, heads, **OPTIONS)[1].weights[0]


def effective_words(weights):
    """Of each row, the exponential of its entropy: 1 if it looks at one word, n for an even look at n."""
    logarithms = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return np.exp(-(weights * logarithms).sum(axis=-1))


# %% [markdown]
"""
## Learning by plain gradient descent
"""

# %%
STEPS, SHOWN = 200, (0, 30, 200)
words = ["cat", "saw", "dog", "and", "it", "the", "it", "saw", "hen", "and", "the", "it"]
sentence = [WORDS.index(word) for word in words]
pictures, looked_at, reached = [], [], []
for step in range(STEPS + 1):
    weights = attention_weights(sentence, w)
    looked_at.append(effective_words(weights)[1:])
    if step in SHOWN:
        tokens, answers = sentences(1000)
        reached.append(losses(tokens, answers, w).mean(axis=0))
        pictures.append(weights)
        print(f"step {step:3}: loss {reached[-1].mean():.3f}, {looked_at[-1].mean():.2f} words looked at", end=", ")
        print(f"{reached[-1][0]:.3f} at the first position and {reached[-1][-1]:.3f} at the last")
    tokens, answers = sentences(32)
    loss, cache = chain.forward(lambda **w: losses(tokens, answers, w), w)  # noqa: B023 (called here, at once)
    gradients = chain.backward(np.full(loss.shape, 1 / loss.size), cache)
    w = {name: x - 0.2 * gradients[name] for name, x in w.items()}

hen = WORDS.index("hen")
assert pictures[-1][-1, sentence.index(hen)] > 0.8, "the last word looks at the hen, the animal that came last"
assert reached[-1].mean() < 0.05 < 1 < reached[0].mean()

# %% [markdown]
"""
## What it has learned to look at
"""

# %%
figure, axes = plt.subplot_mosaic([[*SHOWN], ["rows", "rows", "positions"]], figsize=(9, 6.2), layout="constrained")
for step, weights in zip(SHOWN, pictures, strict=True):
    ax = axes[step]
    ax.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    ax.set_title(f"weights, step {step}")
    ax.set_xticks(range(LENGTH), words, rotation=90)
    ax.set_yticks(range(LENGTH), words)
axes["rows"].plot(looked_at)
axes["rows"].set(xlabel="step", ylabel="words looked at", title="how many words each row looks at")
for step, of_positions in zip(SHOWN, reached, strict=True):
    axes["positions"].plot(range(1, LENGTH + 1), of_positions, marker="o", ms=3, label=f"step {step}")
axes["positions"].set(xlabel="position", ylabel="loss", title="loss by position")
axes["positions"].legend()
axes["positions"].set_xticks(range(1, LENGTH + 1))

folder = Path("build/examples")
folder.mkdir(parents=True, exist_ok=True)
figure.savefig(folder / "learning.png", dpi=120)
print(f"The picture is {folder / 'learning.png'}; --show opens it in a window.")
if "--show" in sys.argv:
    plt.show()
