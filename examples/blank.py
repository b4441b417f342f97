# %% [markdown]
r"""
# A blank to fill, from the left and from both sides.

"The cat sat on the ... in the yard": what stands in the blank depends on who sat and on where, and the *where* comes
after it. A causal model, as those that write, cannot know it. One block is trained twice on the same sentences, with a
causal mask and without, as in BERT; and the least loss that the causal one can have is known beforehand. Takes two
seconds, and needs NumPy alone.
"""

# %%
import numpy as np

from attention_np import activation, chain, cross_entropy, multi_head, positions, rms_norm

# %% [markdown]
r"""
## The sentences

Two animals, two places, and a thing to sit on for each pair: mat, rug, hay, log. Knowing the animal alone leaves two
things that are equally likely, so the surprise of whoever reads from the left alone is $\log 2$ at least, in the mean.
"""

# %%
WORDS = ["the", "cat", "hen", "sat", "on", "?", "in", "house", "yard", "mat", "rug", "hay", "log"]
BLANK, WIDTH = 5, 16
number = {word: place for place, word in enumerate(WORDS)}
THING = {("cat", "house"): "rug", ("cat", "yard"): "mat", ("hen", "house"): "hay", ("hen", "yard"): "log"}
sentences = [f"the {animal} sat on the ? in the {place}".split() for animal, place in THING]
tokens = np.array([[number[word] for word in sentence] for sentence in sentences])  # (4, n)
answers = np.array([number[thing] for thing in THING.values()])  # (4,)
where = positions.sinusoidal(tokens.shape[1], WIDTH)
blank = sentences[0].index("?")


def losses(w, is_causal):
    """How surprised the model is by each answer at the blank, (4,): written forward only."""
    x = w["table"][tokens] + where
    y = chain.apply(rms_norm, x)
    heads = multi_head.Parameters(w["query"], w["key"], w["value"], w["out"])
    x = x + chain.apply(multi_head, y, y, y, heads, num_heads=2, is_causal=is_causal)
    y = chain.apply(rms_norm, x)
    x = x + chain.apply(activation, y @ w["up"], kind="relu") @ w["down"]
    return chain.apply(cross_entropy, x[:, blank] @ w["scores"], answers)


# %% [markdown]
"""
## Trained twice
"""

# %%
reached = {}
for name, is_causal in (("causal", True), ("both sides", False)):
    rng, square = np.random.default_rng(0), (WIDTH, WIDTH)
    shapes = {"table": (len(WORDS), WIDTH), "query": square, "key": square, "value": square, "out": square}
    shapes |= {"up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH), "scores": (WIDTH, len(WORDS))}
    w = {key: rng.normal(size=shape) / np.sqrt(WIDTH) for key, shape in shapes.items()}
    for _ in range(400):
        loss, cache = chain.forward(lambda **w: losses(w, is_causal), w)  # noqa: B023 (called here, at once)
        gradients = chain.backward(np.full(loss.shape, 1 / loss.size), cache)
        w = {key: x - 0.1 * gradients[key] for key, x in w.items()}
    reached[name] = losses(w, is_causal).mean()
    print(f"{name:10} loss {reached[name]:.4f}")
print(f"at least   loss {np.log(2):.4f} for whoever sees the left side alone")

assert np.log(2) - 1e-12 <= reached["causal"] < np.log(2) + 0.01
assert reached["both sides"] < 0.02

# %% [markdown]
"""
The causal model comes to its bound and stays there. What it cannot see it can be told: put the blank at the end of the
sentence, or write from the left and let the *place* depend on the thing, which is what a model that writes does.
"""
