# %% [markdown]
r"""
# A translator, with one vector and with attention.

What attention was invented for. A recurrent network reads an English sentence word by word; a second one writes the
French. Once all that the writer gets is the reader's last state, one vector for the whole sentence, however long it is.
Once it looks back, for each word that it writes, at the states behind all words that were read. Both learn from the
same sentences for as many steps, with gradients that `chain` makes of those of the ops.

The languages are small, and have what makes translating more than replacing: adjectives change sides, and *saw* becomes
two words, *a vu*, of which each depends on it. A word is found by the state behind it, its key; what it hands over, its
value, is its own vector.
"""

# %%
import sys
from pathlib import Path

import numpy as np

try:
    import matplotlib.pyplot as plt
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is not installed, and this example draws: pip install 'attention-np[plot]'")

from attention_np import activation, chain, cross_entropy, dot_product

# %% [markdown]
"""
## Sentences
"""

# %%
NOUNS = {"cat": "chat", "dog": "chien", "fox": "renard", "bear": "ours"}
ADJECTIVES = {"black": "noir", "white": "blanc", "old": "vieux", "young": "jeune"}
VERBS = {"saw": "a vu", "heard": "a entendu", "likes": "aime"}
ENGLISH = ["", "the", "and", *NOUNS, *ADJECTIVES, *VERBS]  # the first is padding
FRENCH = ["", "<begin>", "le", "et", *NOUNS.values(), *ADJECTIVES.values(), "a", "vu", "entendu", "aime"]
rng = np.random.default_rng(0)


def thing():
    """A noun with or without an adjective, in both languages."""
    noun, adjective = rng.choice(list(NOUNS)), rng.choice(["", *ADJECTIVES])
    return f"the {adjective} {noun}".split(), f"le {NOUNS[noun]} {ADJECTIVES.get(adjective, '')}".split()


def pair(clauses):
    """A sentence of so many clauses, in both languages."""
    english, french = [], []
    for clause in range(clauses):
        (one, un), (other, autre), verb = thing(), thing(), rng.choice(list(VERBS))
        english += [*["and"][: clause > 0], *one, verb, *other]
        french += [*["et"][: clause > 0], *un, *VERBS[verb].split(), *autre]
    return english, french


def batch(pairs):
    """Arrays of codes: the English filled up in front, the French, which begins with a mark, behind."""
    source = np.zeros((len(pairs), max(len(english) for english, _ in pairs)), int)
    target = np.zeros((len(pairs), max(len(french) for _, french in pairs) + 2), int)
    for row, (english, french) in enumerate(pairs):
        source[row, source.shape[1] - len(english) :] = [ENGLISH.index(word) for word in english]
        target[row, : len(french) + 1] = [FRENCH.index(word) for word in ["<begin>", *french]]
    return source, target


# %% [markdown]
"""
## Reader and writer
"""

# %%
WIDTH = 32


def step(word, state, w):
    """One step of a recurrent network."""
    return chain.apply(activation, word + state @ w, kind="tanh")


def together(states):
    """States of one position each as one array, (batch, positions, WIDTH)."""
    return chain.concatenate([state.reshape(state.shape[0], 1, WIDTH) for state in states], axis=1)


def read(source, w):
    """The states behind all words, and the last one."""
    state, states = np.zeros((len(source), WIDTH)), []
    for t in range(source.shape[1]):
        is_word = (source[:, t] > 0)[:, None]
        state = chain.where(is_word, step(w["english"][source[:, t]], state, w["reads"]), state)
        states.append(state)
    return together(states), state


def write(source, target, w, attends):
    """Scores of the next word behind each word of the target; and the queries, and the keys."""
    states, state = read(source, w)
    written = []
    for t in range(target.shape[1] - 1):  # each word is told the right one before it
        state = step(w["french"][target[:, t]], state, w["writes"])
        written.append(state)
    query, key = together(written), states @ w["key"]
    if not attends:
        return query @ w["scores"], query, key
    found = chain.apply(dot_product, query, key, w["english"][source], mask=(source > 0)[:, None])
    return step(found @ w["found"], query, w["own"]) @ w["scores"], query, key


def losses(source, target, w, attends):
    """How surprised it is by each word and by the end, and which places these are."""
    of_words = chain.apply(cross_entropy, write(source, target, w, attends)[0], target[:, 1:])
    return of_words, target[:, :-1] > 0


# %% [markdown]
"""
## Learning, twice
"""

# %%
STEPS, CLAUSES = 300, (1, 2, 3)
square = dict.fromkeys(["reads", "writes", "key", "own", "found"], (WIDTH, WIDTH))
shapes = {"english": (len(ENGLISH), WIDTH), "french": (len(FRENCH), WIDTH), **square, "scores": (WIDTH, len(FRENCH))}


def learned(attends):
    """The parameters after all steps of Adam."""
    w = {name: rng.normal(size=shape) / np.sqrt(WIDTH) for name, shape in shapes.items()}
    first, second = ({name: np.zeros_like(x) for name, x in w.items()} for _ in range(2))
    for number in range(1, STEPS + 1):
        source, target = batch([pair(rng.choice(CLAUSES)) for _ in range(32)])

        def mean_loss(source=source, target=target, **w):
            of_words, counts = losses(source, target, w, attends)
            return (of_words * counts).sum() / counts.sum()

        loss, cache = chain.forward(mean_loss, w)
        for name, gradient in chain.backward(np.ones_like(loss), cache).items():
            if gradient is not None:  # without attention three matrices have nothing to do
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.99 * second[name] + 0.01 * gradient**2
                size = np.sqrt(second[name] / (1 - 0.99**number)) + 1e-8
                w[name] = w[name] - 0.01 * first[name] / (1 - 0.9**number) / size
    return w


names = {False: "one vector", True: "attention"}
models = {}
for attends in names:
    rng = np.random.default_rng(0)  # the same sentences for both
    models[attends] = learned(attends)

# %% [markdown]
"""
## What a longer sentence costs
"""

# %%
lengths, surprise = [], {attends: [] for attends in names}
for clauses in CLAUSES:
    source, target = batch([pair(clauses) for _ in range(200)])
    lengths.append((source > 0).sum() / len(source))
    for attends, w in models.items():
        of_words, counts = losses(source, target, w, attends)
        surprise[attends].append((of_words * counts).sum() / counts.sum())
print("words read:          " + ", ".join(f"{length:5.1f}" for length in lengths))
for attends, name in names.items():
    print(f"loss with {name:10} " + ", ".join(f"{loss:5.3f}" for loss in surprise[attends]))
assert max(surprise[True]) < 0.3 < 0.5 < min(surprise[False])

# %% [markdown]
"""
## Where the writer looks

The rows are the words that are written. *a* and *vu* both look at *saw*, and the adjectives cross over.
"""

# %%
english = "the black cat saw the fox and the old bear likes the dog".split()  # noqa: SIM905
french = "le chat noir a vu le renard et le ours vieux aime le chien".split()  # noqa: SIM905
source, target = batch([(english, french)])
_, query, key = write(source, target, models[True], attends=True)
weights = dot_product.forward(query, key, key)[1].weights[0][: len(french)]
for word in ("a", "vu", "noir"):
    seen = english[int(weights[french.index(word)].argmax())]
    print(f"writing {word!r}, it looks most at {seen!r}")

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained", width_ratios=(3, 2))
left.imshow(weights, cmap="Blues", vmin=0, vmax=1)
left.set_xticks(range(len(english)), english, rotation=90)
left.set_yticks(range(len(french)), french)
for attends, name in names.items():
    right.plot(lengths, surprise[attends], marker="o", label=name)
right.set(xlabel="words of the source", ylabel="loss for each word written", yscale="log")
right.legend()

folder = Path("build/examples")
folder.mkdir(parents=True, exist_ok=True)
figure.savefig(folder / "translation.png", dpi=120)
print(f"The picture is {folder / 'translation.png'}; --show opens it in a window.")
if "--show" in sys.argv:
    plt.show()
