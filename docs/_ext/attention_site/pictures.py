"""Pictures that can be enlarged: each leads to its own file, and a wide one scrolls where it would be too small."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from docutils import nodes
from sphinx.util.images import get_image_size

from attention_site.figures import FOLDER

__all__ = ["let_enlarge"]

WIDE = 500  # pixels; on a phone the letters of a wider one would be too small to read


def let_enlarge(doctree: nodes.document, page: str, root: Path, site: Path) -> None:
    """Put each picture of a page into a link to its file."""
    for image in list(doctree.findall(nodes.image)):
        if isinstance(image.parent, nodes.reference) or ":" in image["uri"]:
            continue
        name = PurePosixPath(image["uri"]).name
        file = root / image["uri"]
        width, _ = get_image_size(file if file.is_file() else site / FOLDER / name) or (0, 0)
        link = nodes.reference("", "", internal=True, refuri=f"{'../' * page.count('/')}{FOLDER}/{name}")
        link["classes"] = ["enlarge", *(["wide"] if width > WIDE else [])]
        image.replace_self(link)
        link += image
