# %% [markdown]
r"""
# Writing with a cache of keys and values.

A tiny model learns to continue a text, character by character, and then writes. It writes twice: once with a whole pass
over all that it has written so far for each new character, and once with a cache, where each character is one new row.
Both write the same, and the example counts what the cache saves.

The model is one layer of the kind in use today: a normalisation, then attention in two heads of queries that share one
head of keys and values, with rotary positions, added to what came in; another normalisation, and a matrix that scores
the next character. All gradients are those of the library.
"""

# %%
import numpy as np

from attention_np import KeyValueCache, multi_head, rms_norm, rotary, softmax

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

rng = np.random.default_rng(0)
d_k = WIDTH // HEADS
shapes = ((WIDTH, WIDTH), (WIDTH, d_k), (WIDTH, d_k), (WIDTH, WIDTH))
model = {
    "table": rng.normal(size=(len(letters), WIDTH)),
    "gain": np.ones(WIDTH),
    "last gain": np.ones(WIDTH),
    "scores": rng.normal(size=(WIDTH, len(letters))) / np.sqrt(WIDTH),
    **dict(zip(("query", "key", "value", "output"), (rng.normal(size=s) / np.sqrt(s[0]) for s in shapes), strict=True)),
}


def layer() -> multi_head.Parameters:
    """Return the projections of the layer as they are now."""
    return multi_head.Parameters(*(model[name] for name in ("query", "key", "value", "output")))


OPTIONS = {"num_heads": HEADS, "num_kv_heads": 1, "rotary": ROTARY, "is_causal": True}


def loss_and_gradients(tokens: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
    """Of predicting each next character of sequences, (batch, SPAN + 1)."""
    given, wanted = tokens[:, :-1], tokens[:, 1:]
    x = model["table"][given]
    normed, of_norm = rms_norm.forward(x, model["gain"])
    attended, of_layer = multi_head.forward(normed, normed, normed, layer(), **OPTIONS)
    last, of_last = rms_norm.forward(x + attended, model["last gain"])
    scores = last @ model["scores"]
    chances, _ = softmax.forward(scores)
    picked = np.take_along_axis(chances, wanted[..., None], axis=-1)

    # the gradient of the mean of -log(chance of the right one) is the chances, less one at the right one
    d_scores = (chances - (np.arange(len(letters)) == wanted[..., None])) / wanted.size
    of_x = rms_norm.backward(d_scores @ model["scores"].T, of_last)
    inner = multi_head.backward(of_x.x, of_layer)
    of_normed = rms_norm.backward(inner.query + inner.key + inner.value, of_norm)
    d_table = np.zeros_like(model["table"])
    np.add.at(d_table, given, of_x.x + of_normed.x)
    w = inner.parameters
    gradients = {
        "table": d_table,
        "gain": of_normed.gain,
        "last gain": of_x.gain,
        "scores": np.einsum("bnd,bnl->dl", last, d_scores),
        **dict(zip(("query", "key", "value", "output"), w[:4], strict=True)),
    }
    return -np.log(picked).mean(), gradients


# %% [markdown]
"""
## Learning, in seconds

Adam: each number moves by its gradient over the root of what its square has been lately.
"""

# %%
first, second = ({name: np.zeros_like(x) for name, x in model.items()} for _ in range(2))
for step in range(1, 401):
    starts = rng.integers(len(codes) - SPAN - 1, size=8)
    loss, gradients = loss_and_gradients(np.stack([codes[i : i + SPAN + 1] for i in starts]))
    for name, gradient in gradients.items():
        first[name] = 0.9 * first[name] + 0.1 * gradient
        second[name] = 0.99 * second[name] + 0.01 * gradient**2
        size = np.sqrt(second[name] / (1 - 0.99**step)) + 1e-8
        model[name] -= 0.02 * first[name] / (1 - 0.9**step) / size
    if step in (1, 100, 200, 400):
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


def next_code(x: np.ndarray, attended: np.ndarray) -> int:
    """Return the likeliest character behind one whose row this is."""
    last, _ = rms_norm.forward(x + attended, model["last gain"])
    return int((last @ model["scores"]).argmax())


def without_a_cache(written: list[int]) -> int:
    """Run the layer over all characters for the next one."""
    x = model["table"][written]
    normed, _ = rms_norm.forward(x, model["gain"])
    attended, _ = multi_head.forward(normed, normed, normed, layer(), **OPTIONS)
    rows["without a cache"] += len(written)
    scored["without a cache"] += HEADS * len(written) ** 2
    return next_code(x[-1], attended[-1])


cache = KeyValueCache(capacity=LENGTH, page_size=16)


def with_a_cache(written: list[int]) -> int:
    """Run the layer over the characters that the cache does not know."""
    new = written[cache.length :]  # first the whole prompt, then one character
    places = np.arange(cache.length, len(written))
    x = model["table"][new]
    normed, _ = rms_norm.forward(x, model["gain"])
    query = multi_head.split_heads(normed @ model["query"], HEADS)  # (HEADS, t, d_k)
    key = multi_head.split_heads(normed @ model["key"], 1)  # (1, t, d_k)
    value = multi_head.split_heads(normed @ model["value"], 1)
    query, key = (rotary.forward(y, places, **ROTARY)[0] for y in (query, key))
    cache.append(key, value)
    attended = multi_head.combine_heads(cache.attend(query)) @ model["output"]
    rows["with a cache"] += len(new)
    scored["with a cache"] += HEADS * len(new) * len(written)
    return next_code(x[-1], attended[-1])


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
