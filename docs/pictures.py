"""Draw the pictures of the README again: ``python -m docs.pictures``, which needs SciPy and Matplotlib."""

from __future__ import annotations

import os
import runpy
import tempfile
from pathlib import Path

__all__ = ["IMAGES", "PICTURES", "draw"]

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
PICTURES = {"alignment.png": "dates"}  # and the example that draws it


def draw() -> None:
    """Run the examples elsewhere, and take what they drew."""
    here = Path.cwd()
    for picture, example in PICTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                runpy.run_path(str(ROOT / "examples" / f"{example}.py"))
                drawn = Path("build", "examples", f"{example}.png").read_bytes()
            finally:
                os.chdir(here)
        IMAGES.mkdir(exist_ok=True)
        (IMAGES / picture).write_bytes(drawn)


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    draw()
