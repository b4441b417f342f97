# %% [markdown]
r"""
# Writing with a cache of keys and values.

A tiny model learns to continue a text, character by character, and then writes. It writes twice: once with a whole pass
over all that it has written so far for each new character, and once with a cache, where each character is one new row.
Both write the same, and the example counts what the cache saves.

The model is one block of the kind in use today: a normalisation, then attention in two heads of queries that share one
head of keys and values, with rotary positions, added to what came in; then a normalisation and a feed-forward network,
added as well; and a matrix that scores the next character. It is written forward only. `chain` gives its gradients from
those of the ops.
"""

# %%
import numpy as np

from attention_np import KeyValueCache, activation, chain, cross_entropy, multi_head, rms_norm, rotary

# %% [markdown]
"""
## A text, and a model

Eight lines that repeat and vary, so that there is something to learn in seconds.
"""

# %%
TEXT = """the cat sat on the mat.
the dog sat on the log.
the cat saw the dog on the log.
the dog saw the cat on the mat.
the hen sat on the hay.
the dog saw the hen on the hay.
the hen saw the cat on the mat.
the cat saw the hen on the log.
"""
letters = sorted(set(TEXT))
codes = np.array([letters.index(letter) for letter in TEXT])
HEADS, WIDTH, SPAN = 2, 24, 64  # heads of queries, features of a character, characters of a sequence
ROTARY = {"base": 100.0}

OPTIONS = {"num_heads": HEADS, "num_kv_heads": 1, "rotary": ROTARY, "is_causal": True}

rng = np.random.default_rng(0)
D_K = WIDTH // HEADS
shapes = {"query": (WIDTH, WIDTH), "key": (WIDTH, D_K), "value": (WIDTH, D_K), "output": (WIDTH, WIDTH)}
shapes |= {"up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH), "scores": (WIDTH, len(letters))}
weights = {name: rng.normal(size=shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
weights |= {"table": rng.normal(size=(len(letters), WIDTH)), "gain": np.ones(WIDTH), "last_gain": np.ones(WIDTH)}

# %% [markdown]
"""
## The block, and its gradient

Variables of a chain stand for arrays. An op is applied to them, and they are added and multiplied as arrays are.
"""


# %%
def feed_forward(x, w):
    """What each position does by itself, added to what came in: scores of the next character."""
    hidden = chain.apply(activation, chain.apply(rms_norm, x, w["last_gain"]) @ w["up"], kind="silu")
    return (x + hidden @ w["down"]) @ w["scores"]


def block(x, w):
    """Attention, then the feed-forward network, each behind a normalisation and added to what came in."""
    normed = chain.apply(rms_norm, x, w["gain"])
    projections = multi_head.Parameters(w["query"], w["key"], w["value"], w["output"])
    return feed_forward(x + chain.apply(multi_head, normed, normed, normed, projections, **OPTIONS), w)


def loss_and_gradients(tokens):
    """Of predicting each next character of sequences, (batch, SPAN + 1)."""
    given, wanted = tokens[:, :-1], tokens[:, 1:]

    def mean_loss(**w):
        return chain.apply(cross_entropy, block(w["table"][given], w), wanted).sum() / wanted.size

    loss, cache = chain.forward(mean_loss, weights)
    return float(loss), chain.backward(np.ones(()), cache)


# %% [markdown]
"""
## Learning, in seconds

Adam: each number moves by its gradient over the root of what its square has been lately.
"""

# %%
first, second = ({name: np.zeros_like(x) for name, x in weights.items()} for _ in range(2))
for step in range(1, 201):
    starts = rng.integers(len(codes) - SPAN - 1, size=8)
    loss, gradients = loss_and_gradients(np.stack([codes[i : i + SPAN + 1] for i in starts]))
    for name, gradient in gradients.items():
        first[name] = 0.9 * first[name] + 0.1 * gradient
        second[name] = 0.99 * second[name] + 0.01 * gradient**2
        size = np.sqrt(second[name] / (1 - 0.99**step)) + 1e-8
        weights[name] -= 0.02 * first[name] / (1 - 0.9**step) / size
    if step in (1, 50, 100, 200):
        print(f"step {step}: a loss of {loss:.2f} for each character")

# %% [markdown]
"""
## Writing, twice

Always the likeliest character. Without a cache the whole layer runs over all characters so far. With one, the new
character alone is projected, its key is turned to its position and kept, and its query attends to all keys that there
are: the query has two heads, and the keys, which have one, are shared by broadcasting.
"""

# %%
LENGTH, PROMPT = 96, "the dog s"
rows = {"without a cache": 0, "with a cache": 0}  # of characters that went through the projections
scored = dict.fromkeys(rows, 0)  # scores of a query with a key, of each head


def next_code(scores):
    """Return the likeliest character behind the last."""
    return int(scores[-1].argmax())


def without_a_cache(written):
    """Run the block over all characters for the next one."""
    rows["without a cache"] += len(written)
    scored["without a cache"] += HEADS * len(written) ** 2
    return next_code(block(weights["table"][written], weights))


cache = KeyValueCache(capacity=LENGTH, page_size=16)


def with_a_cache(written):
    """Run the block over the characters that the cache does not know."""
    new = written[cache.length :]  # first the whole prompt, then one character
    places = np.arange(cache.length, len(written))
    x = weights["table"][new]
    normed, _ = rms_norm.forward(x, weights["gain"])
    query = multi_head.split_heads(normed @ weights["query"], HEADS)  # (HEADS, t, d_k)
    key = multi_head.split_heads(normed @ weights["key"], 1)  # (1, t, d_k)
    value = multi_head.split_heads(normed @ weights["value"], 1)
    query, key = (rotary.forward(y, places, **ROTARY)[0] for y in (query, key))
    cache.append(key, value)
    attended = multi_head.combine_heads(cache.attend(query)) @ weights["output"]
    rows["with a cache"] += len(new)
    scored["with a cache"] += HEADS * len(new) * len(written)
    return next_code(feed_forward(x + attended, weights))


texts = []
for step in (without_a_cache, with_a_cache):
    written = [letters.index(letter) for letter in PROMPT]
    while len(written) < LENGTH:
        written.append(step(written))
    texts.append("".join(letters[code] for code in written))
print(texts[1])
assert texts[0] == texts[1], "the cache changes what is written"

# %% [markdown]
"""
## What it saved
"""

# %%
for name in rows:
    print(f"{name}: {rows[name]} rows projected, {scored[name]} scores")
print(f"the cache saved {1 - rows['with a cache'] / rows['without a cache']:.1%} of the rows")
print(f"and {1 - scored['with a cache'] / scored['without a cache']:.1%} of the scores")
