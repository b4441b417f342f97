"""The pages of the source files, and the ways from the API reference and from the prose to them."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Collection, Iterator
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any

from docutils import nodes
from sphinx import addnodes

from attention_site.listings import source_html, source_page
from attention_site.site import Site

__all__ = [
    "adapt_docstring",
    "adapt_signature",
    "link_files",
    "link_named_pages",
    "link_signatures",
    "number_citations",
    "source_pages",
]

PACKAGE = "attention_np"


def source_pages(site: Site) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file of the package."""
    for path in sorted((site.root / PACKAGE).rglob("*.py")):
        file = path.relative_to(site.root).as_posix()
        page = source_page(file)
        code = source_html(path.read_text(encoding="utf-8"), lambda tag, page=page: site.equation(tag, page))  # type: ignore[misc]
        body = f"<section><h1><code>{escape(file)}</code></h1>{code}</section>"
        yield page, {"title": file, "body": body}, "page.html"


def link_files(site: Site, doctree: nodes.document, page: str) -> None:
    """Let a link to a Python file of the package lead to its page, rather than to a copy of it."""
    for link in list(doctree.findall(addnodes.pending_xref)):
        file = f"{link['reftarget']}.py"
        if link.get("refdomain") == "doc" and file.startswith(f"{PACKAGE}/") and (site.root / file).is_file():
            target = site.address(source_page(file), page)
            link.replace_self(nodes.reference("", "", *link.children, internal=True, refuri=target))


def link_signatures(site: Site, doctree: nodes.document, page: str) -> None:
    """Add to each documented object of the package the way to its source."""
    for signature in doctree.findall(addnodes.desc_signature):
        place = _place(signature.get("module") or "", signature.get("fullname") or "", site.root)
        if place is not None:
            file, line = place
            link = nodes.reference("", "", internal=True, refuri=f"{site.address(source_page(file), page)}#L{line}")
            link += nodes.inline("", "[source]", classes=["viewcode-link"])
            signature += link


def _place(module: str, name: str, root: Path) -> tuple[str, int] | None:
    """The file and the line of an object that is defined in the package; None for what has no line of its own."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        found = inspect.unwrap(found)
        path = Path(inspect.getsourcefile(found) or "")
        _, line = inspect.getsourcelines(found)
    except (ImportError, AttributeError, TypeError, OSError, ValueError):
        return None
    if not path.is_relative_to(root / PACKAGE):
        return None
    return PurePosixPath(path.relative_to(root)).as_posix(), line


def number_citations(doctree: nodes.document) -> None:
    """Show [1] where numpydoc has made the citations of all docstrings distinct."""
    for text in list(doctree.findall(nodes.Text)):
        match = re.fullmatch(r"\[R[0-9a-f]+-(\d+)\]", str(text))
        if match and text.parent is not None:
            text.parent.replace(text, nodes.Text(f"[{match[1]}]"))


def link_named_pages(site: Site, doctree: nodes.document, page: str, documents: Collection[str]) -> None:
    """Let the name of a page, such as ``derivations/softmax.md``, lead to it."""
    for literal in list(doctree.findall(nodes.literal)):
        name = literal.astext().removesuffix(".md")
        if literal.astext().endswith(".md") and name in documents and not isinstance(literal.parent, nodes.reference):
            link = nodes.reference("", "", internal=True, refuri=site.address(name, page))
            literal.replace_self(link)
            link += literal


def adapt_docstring(_app: object, what: str, name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Say what the comment of a NamedTuple's field says; show the code of a module, and no sections of it."""
    if lines and lines[0].startswith("Alias for field number"):
        comment = _comment(name)
        lines[:] = [re.sub(r"([\\*_`|])", r"\\\1", comment), ""] if comment else []
    text = re.sub(r"^(\.\. \[\d+\] )(?=[A-Z]\. )", r"\1\\", "\n".join(lines), flags=re.MULTILINE)  # no list A., B.
    if what == "module":
        text = re.sub(r"^(\S.*[^:])\n\n(?=    \S)", r"\1\n\n.. code-block:: python\n\n", text, flags=re.MULTILINE)
        text = re.sub(r"^(\w.*)\n-{3,}$", r".. rubric:: \1\n", text, flags=re.MULTILINE)
    lines[:] = text.split("\n")


def adapt_signature(
    _app: object,
    _what: object,
    _name: object,
    _object: object,
    _options: object,
    arguments: str | None,
    returned: str | None,
) -> tuple[str, str | None] | None:
    """Write types as the source does, where autodoc writes what Python shows of them."""
    if arguments is None:
        return None
    return _as_in_the_source(arguments), returned and _as_in_the_source(returned)


def _as_in_the_source(types: str) -> str:
    return re.sub(r"(?:TypeAlias)?ForwardRef\('([^']+)'(?:, module='[\w.]+')?\)|<class '([\w.]+)'>", r"\1\2", types)


def _comment(name: str) -> str:
    """The comment behind a field, given by its full name."""
    owner, _, field = name.rpartition(".")
    module, _, kind = owner.rpartition(".")
    source = inspect.getsource(getattr(importlib.import_module(module), kind))
    match = re.search(rf"^\s+{re.escape(field)}\s*:[^#\n]*#\s*(.*)$", source, re.MULTILINE)
    return match[1] if match else ""
