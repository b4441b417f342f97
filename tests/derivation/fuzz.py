"""Pages that nobody would write, each verified within bounds of time and memory, and those that break them, kept.

    python -m tests.derivation.fuzz [--seed N] [--pages N]

A page is one of ours with parts of it deleted, exchanged with those of others, or repeated up to thousands of times.
One that takes too much, or brings an exception out of the engine, is written to ``tests/derivation/corpus``, whose
pages the tests verify again.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
from pathlib import Path

from attention_np._lib.pages import PAGES
from attention_np.derivation import limits, read_page, verify
from benchmarks._peak import peak

CORPUS = Path(__file__).with_name("corpus")
SOURCES = sorted(Path(verify.__code__.co_filename).parents[1].glob("*.py"))
SECONDS, MEGABYTES = 40, 600  # more than any page takes: a machine may be slow, and have large pages of memory
LONGEST = 3_000  # characters of a part that is repeated, or comes from elsewhere
MARKERS = "*Same as ({tag}).*|*Same as ({tag}, {tag}).*|*Text only.*|*Refuted:* no.|*Not executed:* a bound."
MARKDOWN = "$$|$|`|<!--|-->|\n\n|# Example\n\n|---\n|\\tag{{{tag}}}"
LATEX = r"{{|}}|\sum_j|\frac{{\partial L}}{{\partial x}}|_{{ij}}|^{{64}}|99999|&|\\|\begin{{cases}}"
PIECES = "|".join((MARKERS, MARKDOWN, LATEX)).split("|")


def made(rng: random.Random, texts: list[str]) -> str:
    """A page that begins as one of `texts`."""
    text = rng.choice(texts)
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(text) + 1)
        until = min(len(text), place + int(LONGEST ** rng.random()))
        what = rng.random()
        if what < 0.25:
            text = text[:place] + text[until:]
        elif what < 0.45:
            other = rng.choice(texts)
            start = rng.randrange(len(other))
            text = text[:place] + other[start : start + int(LONGEST ** rng.random())] + text[until:]
        else:
            tag = f"t.{rng.randint(1, 30)}"
            part = text[place:until] if what < 0.6 else rng.choice(PIECES).format(tag=tag)
            most = limits.PAGE_CHARACTERS // max(len(part), 1)
            text = text[:place] + part * min(most, int(20_000 ** rng.random())) + text[until:]
    return text


def fault_of(text: str) -> str | None:
    """What verifying a page takes too much of, or raises; None if it does neither."""
    started = time.process_time()
    try:
        report = verify([read_page("t.md", text)], sources=SOURCES)
        str(report)
    except Exception as error:
        return f"it raises {type(error).__name__}: {error}"
    last_resort = [record.message for record in report.records if record.kind == "internal"]
    seconds, megabytes = time.process_time() - started, peak() >> 20
    return (
        f"it reaches the last resort: {last_resort[0]}" if last_resort
        else f"it takes {seconds:.0f} s" if seconds > SECONDS
        else f"the process has taken {megabytes} MB" if megabytes > MEGABYTES
        else None
    )  # fmt: skip


def main() -> None:
    """Verify the pages of the corpus, then new ones; the first that breaks a bound is kept, and ends it."""
    parser = argparse.ArgumentParser(prog="fuzz", description="Pages that nobody would write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pages", type=int, default=100)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    texts = [path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.md"))]
    for path in sorted(CORPUS.glob("*.md")):
        if fault := fault_of(path.read_text(encoding="utf-8")):
            sys.exit(f"{path}: {fault}")
    for number in range(arguments.pages):
        text = made(rng, texts).encode(errors="ignore").decode()
        if fault := fault_of(text):
            path = CORPUS / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.md"
            path.write_text(text, encoding="utf-8")
            sys.exit(f"page {number} of seed {arguments.seed}, kept as {path}: {fault}")
    print(f"{arguments.pages} pages within {SECONDS} s and {MEGABYTES} MB")


if __name__ == "__main__":
    main()
