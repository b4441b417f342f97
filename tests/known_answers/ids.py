"""The ids of cases, with a digest of what each means: ``python -m tests.known_answers.ids`` adds those that are new.

An id is the name of a case without its dtype. What it means, its inputs and options, never changes, though the case may
go: another meaning needs another id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from attention_np.known_answers.examples import Example, all_examples
from attention_np.known_answers.examples.kernel import kernel_examples

FILE = Path(__file__).with_name("ids.json")


def digest(example: Example) -> str:
    """Of the options, of the dtypes, and of the inputs with the format of each in every dtype.

    Normal numbers of NumPy are in float32 here: their last bits in float64 are those of a machine's exponential.
    """
    told = hashlib.sha256(json.dumps([example.options, example.dtypes], sort_keys=True).encode())
    exactly = example.name.startswith("kernel-")  # of whole numbers, and of powers of two
    for name, x in sorted(example.inputs.items()):
        formats = [example.format_of(name, dtype) for dtype in example.dtypes]
        kept = x if x.dtype == np.bool_ else x.astype("<f8" if exactly else "<f4")
        told.update(f"{name} {x.shape} {formats}".encode() + np.ascontiguousarray(kept).tobytes())
    return told.hexdigest()[:16]


def every() -> list[Example]:
    """The cases of all sets."""
    return [*all_examples(), *kernel_examples()]


def of(examples: Iterable[Example]) -> dict[str, str]:
    """Of each id its digest."""
    return {f"{example.op}/{example.name}": digest(example) for example in examples}


def stored() -> dict[str, str]:
    """Those of every case that there has been."""
    found: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Add the ids of new cases; refuse another meaning of an old one."""
    known, now = stored() if FILE.exists() else {}, of(every())
    if changed := [name for name, told in now.items() if known.get(name, told) != told]:
        raise SystemExit(f"{', '.join(changed)} mean something else than before: give them other names")
    FILE.write_text(json.dumps(dict(sorted((known | now).items())), indent=0) + "\n", encoding="utf-8")
    print(f"{len(now.keys() - known.keys())} new ids of {len(now)}")


if __name__ == "__main__":
    main()
