"""How much longer `import attention_np` takes than `import numpy`, and how much longer all of its ops: CPU time.

Each number is the median over fresh processes, in turn. Also lists what the import of the ops pulls in besides NumPy,
the standard library and the package itself: it should be nothing.
"""

import statistics
import subprocess
import sys

REPEATS = 15
STATEMENTS = ("import numpy", "import numpy, attention_np", "import numpy; from attention_np import *")

FOREIGN = """
import sys
import numpy
before = set(sys.modules)
from attention_np import *
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(tops - set(sys.stdlib_module_names) - {"numpy", "attention_np"}))
"""


def printed(code: str) -> str:
    """What a fresh process prints that runs `code`."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout  # noqa: S603


def milliseconds(statement: str) -> float:
    """The CPU time of a fresh process that runs `statement`."""
    return 1000 * float(printed(f"{statement}\nimport time; print(time.process_time())"))


def main() -> None:
    """Print the medians, how far they are above that of NumPy, and the foreign modules."""
    times: dict[str, list[float]] = {statement: [] for statement in STATEMENTS}
    for _ in range(REPEATS + 1):  # once more to fill the caches
        for statement, measured in times.items():
            measured.append(milliseconds(statement))
    medians = {statement: statistics.median(measured[1:]) for statement, measured in times.items()}
    for statement, median in medians.items():
        print(f"{statement:40} {median:6.1f} ms, {median - medians[STATEMENTS[0]]:5.1f} above NumPy")
    print(f"besides NumPy and the standard library: {printed(FOREIGN).strip() or 'nothing'}")


if __name__ == "__main__":
    main()
