"""What all pages of the site share: the outcome of the check, and where things are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx.util import logging

from attention_np.cli.verification import check_pages
from attention_np.derivation import PageCheck, Record, read_pages
from attention_np.derivation.header import Header
from attention_np.derivation.views import View, views
from docs.translations import FOLDER, translation_of

if TYPE_CHECKING:
    from sphinx.builders import Builder

__all__ = ["EXPLAINED", "FOLDERS", "Site"]

FOLDERS = "derivations", "docs/course"  # of the pages whose equations are executed
EXPLAINED = "docs/verdicts"  # the page that says what verdicts mean
_TAG = re.compile(r"\\tag\s*\{([^{}]*)\}")

log = logging.getLogger(__name__)


class Site:
    """The outcome of checking all pages, by the tags of their equations.

    Attributes
    ----------
    root : Path
        The folder of the repository, to which places in the code are relative.
    records : dict of str to Record
        What the check said about each equation.
    reasons : dict of str to str
        Why an equation is not executed.
    views : dict of str to View
        Each equation in NumPy, and its numbers in a worked example.
    formulas : dict of str to str
        The LaTeX of each equation.
    headers : dict of str to Header
        What the front matter of each page declares, by the document of the page.
    """

    def __init__(self, root: Path, builder: Builder) -> None:
        self.root = root
        self.records: dict[str, Record] = {}
        self.reasons: dict[str, str] = {}
        self.views: dict[str, View] = {}
        self.formulas: dict[str, str] = {}
        self.headers: dict[str, Header] = {}
        self._builder = builder
        self._pages: dict[str, str] = {}  # the document of each derivation, by the name that tags begin with

    def check(self) -> None:
        """Run the check that ``make check`` runs on the pages; what does not hold is a warning of the build."""
        for folder in FOLDERS:
            report = check_pages(self.root / folder, look=self._look)
            self.records |= {record.tag: record for record in report.records if record.tag}
            for page in read_pages([self.root / folder]):
                self._pages[page.name] = f"{folder}/{Path(page.path).stem}"
                self.headers[self._pages[page.name]] = page.header
                self.formulas |= {item.tag: item.text.strip() for item in page.equations}
                self.reasons |= {item.tag: item.reason for item in page.equations if item.mark == "skipped"}
            for problem in report.problems:
                log.warning("%s", problem)
            for record in report.records:
                if record.verdict == "fails":
                    log.warning("(%s) fails the check: %s", record.tag, record.message)

    def _look(self, check: PageCheck) -> None:
        self.views |= views(check)

    def tag_of(self, latex: str) -> str | None:
        """The tag of a displayed equation that was checked."""
        match = _TAG.search(latex)
        return match[1] if match is not None and match[1] in self.records else None

    @staticmethod
    def without_tag(latex: str) -> str:
        """A displayed equation less its tag, which takes room that a narrow screen does not have."""
        return _TAG.sub("", latex)

    def address(self, target: str, page: str) -> str:
        """The address of the page `target` as a link on `page`."""
        return self._builder.get_relative_uri(page, target)

    def equation(self, tag: str, page: str) -> str | None:
        """The address of an equation as a link on `page`; None if there is no such equation."""
        if tag not in self.records:
            return None
        return f"{self.address(self.in_language_of(page, self._pages[self.records[tag].page]), page)}#{tag}"

    def in_language_of(self, page: str, target: str) -> str:
        """The page `target`, or its translation if `page` is a translation itself."""
        is_translation = (self.root / f"{page}.md").is_relative_to(FOLDER)
        file = translation_of(self.root / f"{target}.md") if is_translation else None
        return target if file is None else file.relative_to(self.root).as_posix().removesuffix(".md")
