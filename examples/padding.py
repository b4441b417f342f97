# %% [markdown]
"""
# What padding costs, and what packing saves.

Sentences of different lengths share a batch by being filled up to the longest. Here the waste is counted: for
batches as they come, for batches of similar lengths, and for sentences packed one behind the other into rows of a fixed
length. Then one attention is computed both ways, padded and packed, and is the same; and the mean of a sentence's
outputs, which a classifier reads, is taken over its words alone. Takes a second, and needs NumPy alone.
"""

# %%
import numpy as np

from attention_np import dot_product, masks

# %% [markdown]
"""
## Lengths

A thousand sentences of 3 to 128 words, most of them short.
"""

# %%
LONGEST, BATCH = 128, 16
rng = np.random.default_rng(0)
lengths = np.clip(np.round(rng.lognormal(3.0, 0.7, size=1000)), 3, LONGEST).astype(int)
print(f"{len(lengths)} sentences, {lengths.mean():.1f} words in the mean, {lengths.max()} at most")


def padded(lengths):
    """The share of places that hold no word, in batches of sentences in this order."""
    batches = [lengths[first : first + BATCH] for first in range(0, len(lengths), BATCH)]
    return 1 - lengths.sum() / sum(batch.max() * len(batch) for batch in batches)


def packs(lengths, limit):
    """Lists of sentences that fit into rows of `limit` words: each in the first row with room, the longest first."""
    rows, room = [], []
    for k in np.argsort(-lengths, kind="stable"):
        row = next((row for row, left in enumerate(room) if left >= lengths[k]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(limit)
        rows[row].append(k)
        room[row] -= lengths[k]
    return rows


# %% [markdown]
"""
## The waste

Sorting changes which sentences meet in a batch, so whoever trains shuffles the batches. Packed rows need a mask:
without it most pairs of words would be of two different sentences.
"""

# %%
rows = packs(lengths, LONGEST)
in_packs = 1 - lengths.sum() / (LONGEST * len(rows))
legitimate = (lengths**2).sum() / (LONGEST**2 * len(rows))
one_by_one = 1 - lengths.sum() / (LONGEST * len(lengths))
print(f"all filled up to {LONGEST}: {one_by_one:5.1%} of the places are padding")
print(f"batches as they come:  {padded(lengths):5.1%}")
print(f"batches of a length:   {padded(np.sort(lengths)):5.1%}")
print(f"packed:                {in_packs:5.1%}, and {legitimate:.1%} of the pairs in a row are of one sentence")

# %% [markdown]
"""
## The same attention, padded and packed
"""

# %%
few = np.array([6, 30, 90])  # three sentences in one row
of = np.repeat(np.arange(len(few)), few)  # which sentence a place of the row belongs to
packed = rng.standard_normal((len(of), 8))
output, _ = dot_product.forward(packed, packed, packed, mask=masks.packed(of))

longest = few.max()
x = np.zeros((len(few), longest, 8))
for k in range(len(few)):
    x[k, : few[k]] = packed[of == k]
out_of_padded, _ = dot_product.forward(x, x, x, mask=masks.padding(few, longest))
assert all(np.allclose(out_of_padded[k, : few[k]], output[of == k], rtol=0, atol=1e-12) for k in range(len(few)))

# %% [markdown]
"""
## The mean of a sentence

A classifier reads the mean of the outputs. Over all places of the batch it would count what stands in the padding, and
the same sentence would have another mean beside a longer one.
"""

# %%
is_word = np.arange(longest) < few[:, None]
over_words = np.where(is_word[..., None], out_of_padded, 0).sum(axis=1) / few[:, None]
over_all = out_of_padded.mean(axis=1)
alone = np.stack([dot_product.forward(*[packed[of == k]] * 3)[0].mean(axis=0) for k in range(len(few))])
off, wrong = abs(over_words - alone).max(), abs(over_all - alone).max()
print(f"means of size {abs(alone).mean():.2f}: over the words off by {off:.0e}, over all places by {wrong:.2f}")
assert off < 1e-12 < 1e-2 < wrong
