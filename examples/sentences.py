# %% [markdown]
"""
# Who attends to whom in a sentence.

Attention asks, for every word, which other words matter to it. Here the questions and the answers are written by
hand, so that every weight can be understood: a *key* says what a word is, a *query* what it looks for. Then the
gradient says how the weights would move. The picture needs Matplotlib: `pip install 'attention-np[plot]'`.
"""

# %%
import sys
from pathlib import Path

import numpy as np

try:
    import matplotlib.pyplot as plt
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is not installed, and this example draws: pip install 'attention-np[plot]'")

import attention_np as anp
from attention_np import cases, plot

# %% [markdown]
"""
A word has three features: is it a noun, does it live, is it an article. A query is larger than a key, so that the
weights are clear: a product of 4 more means a weight that is e⁴ ≈ 55 times as large.
"""

# %%
SENTENCE = "The cat sat on the mat because it was tired"
IS = {"cat": (1, 1, 0), "mat": (1, 0, 0), "the": (0, 0, 1)}
LOOKS_FOR = {
    "the": (4, 0, 0),
    "sat": (2, 2, 0),
    "on": (4, -4, 0),
    "it": (2, 2, 0),
    "tired": (2, 2, 0),
    "cat": (0, 0, 4),
}

words = cases.tokenise(SENTENCE)
key = np.array([IS.get(word, (0, 0, 0)) for word in words], float)  # (n, 3)
query = np.array([LOOKS_FOR.get(word, (0, 0, 0)) for word in words], float)  # (n, 3)
value = np.eye(len(words))  # a value that names its word: the output of a word is the row of its weights
bias = np.zeros((len(words), len(words)))  # added to the scores, so that its gradient is theirs

output, cache = anp.dot_product.forward(query, key, value, bias=bias, scale=1.0)
weights = cache.weights  # (n, n)

# %% [markdown]
"""
*It* finds the cat, *on* finds the mat, and *the* finds both nouns alike: nothing here says where a word stands, so
both articles have the same row. Words that look for nothing, such as *because*, attend to all words equally.
"""

# %%
ax = plot.weights(weights, words)
folder = Path("build/examples")
folder.mkdir(parents=True, exist_ok=True)
ax.figure.savefig(folder / "sentences.png", dpi=120)
print(f"The picture is {folder / 'sentences.png'}; --show opens it in a window.")
if "--show" in sys.argv:
    plt.show()

it, cat, mat = words.index("it"), words.index("cat"), words.index("mat")
first, second = (place for place, word in enumerate(words) if word == "the")
assert weights[it].argmax() == cat
assert weights[words.index("on")].argmax() == mat
assert np.array_equal(weights[first], weights[second])

# %% [markdown]
r"""
Is *it* the cat or the mat? Let $L$ be the weight that *it* gives to *cat*, less the one that it gives to *mat*, and
ask what each score of *it* does to $L$. The weights always add up to one, so a score that rises takes from *all* other
weights. It moves every one of them, and through each of them it moves $L$: that is why the gradient of softmax has a
sum over all weights. What is left of that sum is the mean of the incoming gradient $G$ over the row,
$r = \sum_l A_l G_l$, here with two terms, and the gradient of score $j$ is $A_j (G_j - r)$. *Sat* has no part in $L$,
so its $G_j$ is zero, and yet a higher score of *sat* lowers $L$, by $-A_j r$.
"""

# %%
d_output = np.zeros_like(output)
d_output[it, cat], d_output[it, mat] = 1.0, -1.0
d_scores = anp.dot_product.backward(d_output, cache).bias[it]
mean = weights[it] @ d_output[it]  # r; as the values are the identity matrix, G is d_output

print(f"r = {weights[it, cat]:.4f} * 1 + {weights[it, mat]:.4f} * (-1) = {mean:.4f}")
print("What 'it' attends to, and how 'cat' less 'mat' moves with each score:")
for word, weight, slope in zip(words, weights[it], d_scores, strict=True):
    print(f"  {word:8} weight {weight:.3f}   gradient {slope:+.3f}")
print(f"  sum             {weights[it].sum():.3f}            {abs(d_scores.sum()):.3f}")
assert d_scores[cat] > 0 > np.delete(d_scores, cat).max()
assert np.allclose(d_scores, weights[it] * (d_output[it] - mean))

# %% [markdown]
"""
Does a large weight mean that a word matters? Let values say what a word is (a noun, alive, an article), leave one word
out at a time, and see how what *the* has found changes. It looks at both nouns alike. Without the cat it still finds a
noun, since the mat says the same; but it finds nothing that lives any more. One weight, and two answers: a weight says
where the mean is taken, and not what depends on it.
"""

# %%
output, cache = anp.dot_product.forward(query[first], key, key, scale=1.0)
print(f'"the" finds: noun {output[0]:.3f}, alive {output[1]:.3f}. And with one word left out:')
changes = {}
for place in (cat, mat, words.index("tired")):
    others = np.arange(len(words)) != place
    without, _ = anp.dot_product.forward(query[first], key, key, scale=1.0, mask=others)
    changes[words[place]] = without - output
    row = f"noun {changes[words[place]][0]:+.3f}   alive {changes[words[place]][1]:+.3f}"
    print(f"  {words[place]:8} weight {cache.weights[..., place].item():.3f}   {row}")
assert abs(changes["cat"][0]) < 0.07 < 0.45 < abs(changes["cat"][1])

# %% [markdown]
"""
Sentences of different lengths, in any language, share a batch: the shorter ones are padded, and a mask hides the
padding. These embeddings are random; what is shown is that padding receives no weight and no gradient, exactly.
"""

# %%
SENTENCES = ("The cat sat on the mat", "我爱自然语言处理", "I love AI")

batch = cases.batch(SENTENCES, features=16)
mask = anp.masks.padding_from_tokens(batch.tokens, pad_id=cases.PAD)  # (3, 1, longest)
x = batch.embedded  # (3, longest, 16)
output, cache = anp.dot_product.forward(x, x, x, mask=mask)
gradients = anp.dot_product.backward(np.ones_like(output), cache)

for sentence, row, d_key in zip(SENTENCES, cache.weights, gradients.key, strict=True):
    length = len(cases.tokenise(sentence))
    print(f"{sentence}: {length} words, {len(row) - length} of padding")
    print(f"  first word attends {row[0].round(2)}")
    assert not row[:, length:].any(), "nothing attends to padding"
    assert not d_key[length:].any(), "no gradient reaches padding"
