"""``attention-np check --show TAG``: one equation, as a formula, in NumPy, in numbers, and in the code."""

from __future__ import annotations

from pathlib import Path

from attention_np.cli import verification
from attention_np.cli.outcome import FAILS, HOLDS, refuse


def show(tag: str, path: Path) -> int:
    """Print the views of the equation of that tag, and return 0 if it holds."""
    from attention_np.cli.tables import say
    from attention_np.derivation import PageCheck, read_pages
    from attention_np.derivation.views import View, views

    tag = tag.strip("()")
    pages = [page for page in read_pages([path]) if page.name == tag.rpartition(".")[0]]
    equations = [equation for page in pages for equation in page.equations if equation.tag == tag]
    if not equations:
        return refuse(f"there is no equation ({tag}) in {path}: give its number, as softmax.32")
    seen: dict[str, View] = {}

    def look(check: PageCheck) -> None:
        seen.update(views(check))

    report = verification.check_pages(path, [Path(pages[0].path).stem], look)
    (record,) = [record for record in report.records if record.tag == tag]
    view = seen.get(tag, View("", ""))
    code = [f"{place}: {_line(place)}" for place in record.cited_by]
    parts = {
        "formula": equations[0].text.strip(),
        "NumPy": view.lines or "(not said in NumPy)",
        "in the worked example": view.numbers,
        "code": "\n".join(code),
        "checked": record.message
        or (f"{record.verdict}, error {record.error:.1e}" if record.error else record.verdict),
    }
    for name, text in parts.items():
        if text:
            for line in (name, *(f"    {line}" for line in text.split("\n"))):
                say(line.rstrip())
    return FAILS if record.verdict == "fails" else HOLDS


def _line(place: str) -> str:
    """The line of code at ``file:line``."""
    file, _, line = place.rpartition(":")
    return (verification.PACKAGE.parent / file).read_text(encoding="utf-8").splitlines()[int(line) - 1].strip()
