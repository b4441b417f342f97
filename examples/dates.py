# %% [markdown]
"""
# Learn an alignment: dates, by additive attention.

`21 november 2026` becomes `2026-11-21`. Nobody says which letters matter to which digit: additive attention finds
out, by following its gradient, and the picture at the end shows what it found. The gradient is the one derived by
hand in `derivations/additive.md`, given to an ordinary optimiser, `scipy.optimize.minimize`. Needs SciPy and
Matplotlib: `pip install scipy 'attention-np[plot]'`.
"""

# %%
import calendar
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np

try:
    import matplotlib.pyplot as plt
    from scipy.optimize import minimize
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is not installed, and this example needs it: pip install scipy 'attention-np[plot]'")

from attention_np import additive, gradcheck, masks, plot, softmax

# %% [markdown]
"""
## The data

Random days of two centuries, 400 to learn from and 500 to be tested on. A letter is known by what it is and by where
it stands, counted from both ends. That is the *key*; the *value* is only what it is.
"""

# %%
TRAINING, TEST, PAD = 400, 500, 0
HIDDEN, PLACES = 16, 8  # units of the score network; digits of an answer


def written(day: date) -> str:
    """The day as it is given."""
    return f"{day.day} {calendar.month_name[day.month].lower()} {day.year}"


rng = np.random.default_rng(0)
first = date(1900, 1, 1)
days = [first + timedelta(int(count)) for count in rng.choice(73_000, TRAINING + TEST, replace=False)]
LETTERS = ["", *sorted(set("".join(map(written, days))))]  # the first one is padding
LONGEST = max(len(written(day)) for day in days)


def encoded(days: list[date]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, values and mask of some days: (days, m, d_k), (days, m, d_v) and (days, 1, m)."""
    tokens = np.full((len(days), LONGEST), PAD)
    from_end = np.zeros((len(days), LONGEST), int)
    for row, text in enumerate(map(written, days)):
        tokens[row, : len(text)] = [LETTERS.index(letter) for letter in text]
        from_end[row, : len(text)] = range(len(text) - 1, -1, -1)
    value = np.eye(len(LETTERS))[tokens]
    from_start = np.broadcast_to(np.eye(LONGEST), (len(days), LONGEST, LONGEST))
    key = np.concatenate([value, from_start, np.eye(LONGEST)[from_end]], axis=-1)
    return key, value, masks.padding_from_tokens(tokens, pad_id=PAD)


def digits(days: list[date]) -> np.ndarray:
    """The right answers, (days, PLACES)."""
    return np.array([[int(digit) for digit in day.strftime("%Y%m%d")] for day in days])


# %% [markdown]
"""
## The model

Each of the eight places of the answer is a query. Attention returns the mean of the letters that it looks at, and a
linear map for each place reads the digit from it. `scipy.optimize` wants all parameters as one vector.
"""


# %%
class Parameters(NamedTuple):
    """All that is learned; also its gradient."""

    w_query: np.ndarray  # (PLACES, HIDDEN)
    w_key: np.ndarray  # (d_k, HIDDEN)
    w_score: np.ndarray  # (HIDDEN,)
    b: np.ndarray  # (HIDDEN,)
    w_digit: np.ndarray  # (PLACES, d_v, 10)


SHAPES = Parameters(
    (PLACES, HIDDEN), (len(LETTERS) + 2 * LONGEST, HIDDEN), (HIDDEN,), (HIDDEN,), (PLACES, len(LETTERS), 10)
)
SPREAD = Parameters(
    1.0, 0.3, 0.1, 0.1, 0.01
)  # of the first guess: distinct queries, and attention to all letters alike
DECAY = Parameters(5e-6, 5e-6, 1e-4, 5e-6, 5e-6)  # keeps scores small at first, so that no place settles too early


def unpacked(vector: np.ndarray) -> Parameters:
    """The parameters in a vector."""
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])
    return Parameters._make(
        part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), SHAPES, strict=True)
    )


def forward(data: tuple[np.ndarray, ...], parameters: Parameters) -> tuple[np.ndarray, additive.Cache, np.ndarray]:
    """A score for each digit at each place, (days, PLACES, 10); the cache; what attention returned."""
    key, value, mask = data
    seen, cache = additive.forward(np.eye(PLACES), key, value, *parameters[:4], mask=mask)  # (days, PLACES, d_v)
    return np.einsum("npv,pvd->npd", seen, parameters.w_digit), cache, seen


def backward(d_scores: np.ndarray, cache: additive.Cache, seen: np.ndarray, w_digit: np.ndarray) -> Parameters:
    """The gradient of all parameters."""
    d_seen = np.einsum("npd,pvd->npv", d_scores, w_digit)
    found = additive.backward(d_seen, cache)
    d_w_digit = np.einsum("npv,npd->pvd", seen, d_scores)
    return Parameters(found.w_query, found.w_key, found.w_score, found.b, d_w_digit)


# %% [markdown]
"""
## The gradient, before it is used

A wrong gradient often still learns, only worse. So it is checked first, every entry, on three days.
"""

# %%
few = encoded(days[:3])
guess = Parameters._make(spread * rng.standard_normal(shape) for spread, shape in zip(SPREAD, SHAPES, strict=True))


def backward_from_inputs(d_scores: np.ndarray, *arrays: np.ndarray) -> Parameters:
    """The gradient as the checker asks for it."""
    _, cache, seen = forward(few, Parameters(*arrays))
    return backward(d_scores, cache, seen, arrays[-1])


report = gradcheck.check(lambda *arrays: forward(few, Parameters(*arrays))[0], backward_from_inputs, guess._asdict())
print(report)
report.raise_if_failed()

# %% [markdown]
"""
## Learning

The loss is the cross-entropy of the digits, and its gradient by the scores is softmax minus the right answer.
Learning can settle where one place looks at the wrong letter for good; the loss shows it, and then it starts again
from another guess.
"""

# %%
data, answers = encoded(days[:TRAINING]), np.eye(10)[digits(days[:TRAINING])]


def loss(vector: np.ndarray) -> tuple[float, np.ndarray]:
    """The loss of the training days, and its gradient."""
    parameters = unpacked(vector)
    scores, cache, seen = forward(data, parameters)
    surprise = softmax.logsumexp(scores) - (scores * answers).sum(axis=-1)  # (days, PLACES)
    gradient = backward((softmax.forward(scores)[0] - answers) / surprise.size, cache, seen, parameters.w_digit)
    decayed = sum(rate * (x * x).sum() for rate, x in zip(DECAY, parameters, strict=True))
    gradient = [g + 2 * rate * x for g, rate, x in zip(gradient, DECAY, parameters, strict=True)]
    return surprise.mean() + decayed, np.concatenate([g.ravel() for g in gradient])


def accuracy(parameters: Parameters, days: list[date]) -> float:
    """How many days are right in all digits."""
    scores, _, _ = forward(encoded(days), parameters)
    return (scores.argmax(axis=-1) == digits(days)).all(axis=-1).mean()


for start in range(5):
    draws = np.random.default_rng(start)
    vector = np.concatenate(
        [spread * draws.standard_normal(np.prod(shape)) for spread, shape in zip(SPREAD, SHAPES, strict=True)]
    )
    result = minimize(loss, vector, jac=True, method="L-BFGS-B", options={"maxiter": 200, "maxcor": 20})
    learned = unpacked(result.x)
    learnt = accuracy(learned, days[:TRAINING])
    print(f"start {start}: loss {result.fun:.3f} after {result.nit} steps, {learnt:.1%} of the training days are right")
    if learnt > 0.98:
        break

right = accuracy(learned, days[TRAINING:])
print(f"{right:.1%} of {TEST} days that it never saw are right")
assert right > 0.95

# %% [markdown]
"""
## The alignment

Each row is a digit of the answer, each column a letter of what was given. The year is copied from the end, the day from
the start. One digit is enough to tell the century, 19 or 20; the month is told by the few letters that tell months
apart.
"""

# %%
day = date(2026, 11, 21)
scores, cache, _ = forward(encoded([day]), learned)
text, answer = written(day), "".join(map(str, scores[0].argmax(axis=-1)))
print(f"{text} -> {answer[:4]}-{answer[4:6]}-{answer[6:]}")
for digit, row in zip(answer, cache.weights[0], strict=True):
    looked_at = ", ".join(f"{text[j]!r} {row[j]:.2f}" for j in np.argsort(-row)[:3] if row[j] >= 0.05)
    print(f"  {digit} looks at {looked_at}")

ax = plot.weights(cache.weights[0, :, : len(text)], list(answer), list(text.replace(" ", "␣")))
ax.set(xlabel="given", ylabel="answer")
folder = Path("build/examples")
folder.mkdir(parents=True, exist_ok=True)
ax.figure.savefig(folder / "dates.png", dpi=120)
print(f"The picture is {folder / 'dates.png'}; --show opens it in a window.")
if "--show" in sys.argv:
    plt.show()
