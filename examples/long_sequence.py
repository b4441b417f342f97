# %% [markdown]
"""
# A long sequence in bounded memory.

The scores of 16384 queries and 16384 keys take a gigabyte in single precision, and plain attention holds several
arrays of that size at once. `blockwise` computes the same output and the same gradients block by block; the arrays
may lie in files, of which only the parts at work are read. Here the memory that NumPy takes is measured. NumPy alone
is needed; with threadpoolctl (`pip install 'attention-np[fast]'`) it uses all cores.
"""

# %%
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np

from attention_np import blockwise, cost, dot_product

LENGTH, FEATURES, MIB = 16_384, 64, 2**20

# %% [markdown]
"""
Query, key and value are written to files piece by piece, as a program would that never has them whole.
"""

# %%
folder = tempfile.TemporaryDirectory()
rng = np.random.default_rng(0)


def in_a_file(name: str) -> np.ndarray:
    """Random numbers in a file that is mapped into memory, (LENGTH, FEATURES)."""
    array = np.lib.format.open_memmap(Path(folder.name, name), "w+", np.float32, (LENGTH, FEATURES))
    for start in range(0, LENGTH, 1024):
        array[start : start + 1024] = rng.standard_normal((1024, FEATURES), np.float32)
    array.flush()
    return np.load(Path(folder.name, name), mmap_mode="r")


query, key, value = map(in_a_file, ("query.npy", "key.npy", "value.npy"))

# %%
tracemalloc.start()
started = time.perf_counter()
output, cache = blockwise.forward(query, key, value, is_causal=True)
gradients = blockwise.backward(output, cache)  # of the loss |output|^2 / 2
seconds = time.perf_counter() - started
peak = tracemalloc.get_traced_memory()[1]
tracemalloc.stop()

scores = 4 * LENGTH**2
print(f"{LENGTH} queries and keys, causal, forward and backward: {seconds:.1f} s")
print(f"peak memory   {peak / MIB:7.0f} MiB, of which output and gradients are {4 * output.nbytes / MIB:.0f} MiB")
print(f"scores alone  {scores / MIB:7.0f} MiB")
print(f"dot_product   {cost.dot_product(cost.Sizes(n=LENGTH, d_k=FEATURES)).memory / MIB:7.0f} MiB by its formulas")
assert peak < scores / 8

# %% [markdown]
"""
The numbers are those of plain attention. That is shown on the last three queries, for which plain attention fits in
memory: the last query attends to all keys.
"""

# %%
rows = np.arange(LENGTH - 3, LENGTH)
mask = np.arange(LENGTH) <= rows[:, None]  # (3, LENGTH)
expected, plain = dot_product.forward(query[rows], key, value, mask=mask)
d_query = dot_product.backward(output[rows], plain).query
for name, found, right in (("output", output[rows], expected), ("gradient of query", gradients.query[rows], d_query)):
    error = np.abs(found - right).max() / np.abs(right).max()
    print(f"{name} differs from plain attention by {error:.1e} of its largest entry")
    assert error < 1e-5

# %%
del query, key, value, cache, plain  # the files are in use as long as these are there
folder.cleanup()
