"""Write the archive of a release: ``python -m docs.known_answers FILE.zip``."""

from __future__ import annotations

import argparse
from pathlib import Path

from attention_np.known_answers.examples import SETS
from docs.known_answers import archive


def main() -> None:
    """Write the archive, and say what it holds."""
    parser = argparse.ArgumentParser(prog="python -m docs.known_answers", description=__doc__)
    parser.add_argument("target", type=Path, metavar="FILE.zip")
    parser.add_argument("--set", choices=SETS, default="standard", help="by default standard")
    parser.add_argument("--op", action="append", help="this op alone; may be repeated")
    parser.add_argument("--dtype", action="append", help="this dtype alone; may be repeated")
    options = parser.parse_args()
    count = archive.make(options.target, options.set, options.op, options.dtype)
    print(f"{options.target}: {count} files, {options.target.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
