"""Pages in, records out: the front door of the engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from attention_np._lib.text import legible
from attention_np.derivation.check import PageCheck
from attention_np.derivation.citations import citations
from attention_np.derivation.draws import DRAWS
from attention_np.derivation.environment import Definitions
from attention_np.derivation.errors import Fault
from attention_np.derivation.operators import FieldRecord, check_operator
from attention_np.derivation.page import Page, missing, read_page
from attention_np.derivation.record import Record


@dataclass
class Verification:
    """The verdicts on a set of pages.

    Attributes
    ----------
    records : list of Record
        One for each displayed equation, in the order of the pages.
    fields : list of FieldRecord
        One for each output, cache field and gradient that was compared with an op.
    problems : list of str
        All other errors: front matter, citations.
    definitions : dict
        What each page defines, by the name of the page.
    """

    records: list[Record] = field(default_factory=list)
    fields: list[FieldRecord] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    definitions: dict[str, Definitions] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """Whether nothing at all is wrong."""
        return (
            not self.problems
            and all(record.verdict != "fails" for record in self.records)
            and all(item.ok for item in self.fields)
        )

    def count(self, verdict: str) -> int:
        """How many equations have that verdict."""
        return sum(record.verdict == verdict for record in self.records)

    def suspects(self, item: FieldRecord) -> list[Record]:
        """The equations of which one must be carried out wrongly where a gradient of an op differs from its page.

        They are those that the code cites and that are about the gradient of that argument, or of anything on the way
        from it to the loss, in the order of the lines that cite them. For anything but a gradient there are none.
        """
        definitions = self.definitions.get(item.page)
        if definitions is None or not item.gradient:
            return []
        suspects = [
            record
            for record in self.records
            if record.page == item.page
            and record.cited_by
            and not record.same
            and any(key == item.symbol or item.symbol in definitions.needs(key) for key in record.of)
        ]
        return sorted(suspects, key=lambda record: min(map(_cited_line, record.cited_by)))

    def as_json(self) -> list[dict[str, Any]]:
        """The records as they stand in the JSON report."""
        return [record.as_json() for record in self.records]

    def __str__(self) -> str:
        lines = []
        for record in self.records:
            error = "" if record.error is None else f"{record.error:.1e}"
            cited = f"  <- {', '.join(record.cited_by)}" if record.cited_by else ""
            lines.append(f"{record.tag or '(no tag)':24} {record.verdict:13} {error:8}{cited}")
            if record.verdict == "fails":
                lines.append(record.message)
        lines += [
            f"{item.page + ' ' + item.name:38} {'agrees' if item.ok else 'DIFFERS'}  {item.describe()}"
            for item in self.fields
        ]
        lines += self.problems
        executed = len(self.records) - self.count("not executed")
        lines.append(
            f"{executed} of {len(self.records)} equations executed: {self.count('holds')} hold, "
            f"{self.count('refuted')} refuted as marked, {self.count('fails')} fail; "
            f"{self.count('not executed')} not executed, with a reason"
        )
        return legible("\n".join(lines))


def _cited_line(place: str) -> tuple[str, int]:
    """The file and the number of the line in ``file:line``."""
    file, _, line = place.rpartition(":")
    return file, int(line)


def read_pages(paths: Iterable[Path | str]) -> list[Page]:
    """Read pages; a directory stands for its Markdown files, in alphabetical order."""
    pages = []
    for path in map(Path, paths):
        files = sorted(path.glob("*.md")) if path.is_dir() else [path]
        pages += [read_page(file) for file in files]
    return pages


def verify(
    pages: Sequence[Page],
    *,
    sources: Iterable[Path | str] | None = None,
    operators: dict[str, Any] | None = None,
    root: Path | str | None = None,
    only: Collection[str] | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    look: Callable[[PageCheck], object] | None = None,
) -> Verification:
    """Check every equation of every page.

    Parameters
    ----------
    pages : sequence of Page
        From :func:`read_pages`.
    sources : iterable of path, optional
        Python files whose comments cite equations. Without them nothing is said about citations.
    operators : dict, optional
        Op modules by the name that pages have in ``op:``. Without them the pages are checked against
        mathematics alone.
    root : path, optional
        Places in the code are given relative to it.
    only : collection of str, optional
        The names of the pages to check. The others are there to be cited, and are not executed.
    seed, draws : int
        Of the random tensors and sizes.
    look : callable, optional
        Is called with the check of each page when its equations are judged: what one page needs is not kept.

    Returns
    -------
    Verification
        Nothing that is written in a page raises.
    """
    report = Verification()
    elsewhere = {equation.tag: equation for page in pages for equation in page.equations}
    names: dict[str, str] = {}
    for page in pages:
        report.problems += page.problems or missing(page)
        if page.name in names:
            report.problems.append(f"{page.path}:1: a second page of the name {page.name}, after {names[page.name]}")
        names.setdefault(page.name, page.path)
        if only is not None and page.name not in only:
            continue
        try:
            check = PageCheck(page, seed, draws, elsewhere)
        except Fault as fault:
            report.problems.append(f"{page.path}:1: {fault.message}")
            report.records += [Record(item.tag, page.name, item.line, "fails") for item in page.equations]
            continue
        report.records += check.run()
        report.definitions[page.name] = check.scope.definitions
        if look is not None:
            look(check)
        if operators is not None and page.header.op is not None and page.header.code:
            if page.header.op not in operators:
                report.problems.append(
                    f"{page.path}:1: there is no op {page.header.op}: without the line op, a page stands alone"
                )
            else:
                report.fields += check_operator(check, operators[page.header.op])
    if sources is not None:
        _trace(report, pages, sources, root)
    return report


def verify_against_op(page: Page, op: Any, *, seed: int = 0, draws: int = DRAWS) -> list[FieldRecord]:
    """Hold the definitions of a page, and the derivatives of these, against an op module.

    Parameters
    ----------
    page : Page
        With ``code:`` in its front matter.
    op : module
        With ``forward(*arrays, **options) -> (output, cache)`` and ``backward(d_output, cache)``, the
        latter two NamedTuples.
    """
    check = PageCheck(page, seed, draws)
    check.run()
    return check_operator(check, op)


def _trace(report: Verification, pages: Sequence[Page], sources: Iterable[Path | str], root: Path | str | None) -> None:
    cited, problems = citations(sources, root)
    report.problems += problems
    known = {equation.tag for page in pages for equation in page.equations}
    for tag, places in sorted(cited.items()):
        if tag not in known:
            report.problems += [f"{place}: cites ({tag}), which stands in no page" for place in places]
    named = {page.name: page for page in pages}
    same = {equation.tag: equation.same for page in pages for equation in page.equations}
    for tag, places in sorted(cited.items()):
        for place in places:
            own = Path(place.rpartition(":")[0]).stem.replace("_", "-")
            if own in named and tag in known and tag.rpartition(".")[0] != own:
                report.problems.append(
                    f"{place}: cites ({tag}), but this module cites its own page, {own}: "
                    f"write *Same as ({own}.N).* behind ({tag})"
                )
    for record in report.records:
        page = named[record.page]
        tags = [(tag, *same.get(tag, ())) for tag in record.same]
        record.tags = (record.tag, *chain(*tags))
        record.cited_by = list(dict.fromkeys(place for tag in record.tags for place in cited.get(tag, [])))
        report.problems += [
            f"{page.path}:{record.line}: the same as ({tag}), which no code cites"
            for tag, *others in tags
            if tag in known and not any(cited.get(other) for other in (tag, *others))
        ]
        wants = record.gradient and record.verdict == "holds" and not record.text_only and page.header.cited
        if wants and not record.cited_by:
            report.problems.append(
                f"{page.path}:{record.line}: ({record.tag}) is about a gradient and no code cites it: "
                "cite it, or write *Same as (...).* or *Text only.* behind it"
            )
