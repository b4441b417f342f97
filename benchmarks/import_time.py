"""How much longer `import attention_np` takes than `import numpy`: the median over fresh processes, in turn.

Also lists what the import pulls in besides NumPy, the standard library and the package itself: it should be nothing.
"""

import statistics
import subprocess
import sys
from time import perf_counter

REPEATS = 15

FOREIGN = """
import sys
import numpy
before = set(sys.modules)
import attention_np
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(tops - set(sys.stdlib_module_names) - {"numpy", "attention_np"}))
"""


def seconds(statement: str) -> float:
    """The wall time of a fresh process that runs `statement`."""
    start = perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)  # noqa: S603
    return perf_counter() - start


def main() -> None:
    """Print the two medians, their difference and the foreign modules."""
    times: dict[str, list[float]] = {"import numpy": [], "import attention_np": []}
    for statement in times:
        seconds(statement)  # once to fill the caches
    for _ in range(REPEATS):
        for statement, measured in times.items():
            measured.append(seconds(statement))
    medians = {statement: 1000 * statistics.median(measured) for statement, measured in times.items()}
    for statement, median in medians.items():
        spread = 1000 * (max(times[statement]) - min(times[statement]))
        print(f"{statement:20}  {median:6.1f} ms  (spread {spread:.1f} ms over {REPEATS} runs)")
    print(f"{'difference':20}  {medians['import attention_np'] - medians['import numpy']:6.1f} ms")
    foreign = subprocess.run([sys.executable, "-c", FOREIGN], check=True, capture_output=True, text=True)  # noqa: S603
    print(f"besides NumPy and the standard library: {foreign.stdout.strip() or 'nothing'}")


if __name__ == "__main__":
    main()
