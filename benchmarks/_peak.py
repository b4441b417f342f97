"""A process of its own that takes one forward and backward pass, and prints its times and its peak memory as JSON.

    python -m benchmarks._peak N

N queries and keys of one head of 64 in float32. Run by :mod:`benchmarks.memory`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter

from attention_np import blockwise
from benchmarks._contenders import random_inputs

STATUS = Path("/proc/self/status")
HEAD = 64


def peak() -> int:
    """The largest resident memory of this process so far, in bytes."""
    if STATUS.exists():  # of this program alone; what getrusage says may be that of the process that started it
        line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Measure, and print the numbers."""
    query, key, value, d_output, _ = random_inputs((int(sys.argv[1]), HEAD), "float32")
    before = peak()
    start = perf_counter()
    output, cache = blockwise.forward(query, key, value)
    halfway = perf_counter()
    gradients = blockwise.backward(d_output, cache)
    end = perf_counter()
    results = sum(array.nbytes for array in (output, *gradients[:3]))
    numbers = {
        "seconds_forward": halfway - start,
        "seconds_backward": end - halfway,
        "bytes_above": peak() - before - results,  # above inputs, output and gradients
        "bytes_cache": cache.output.nbytes + cache.logsumexp.nbytes,  # of those, what the cache holds
    }
    print(json.dumps(numbers))


if __name__ == "__main__":
    main()
