"""A page as data: its front matter, its headings, its equations, and where each stands in the file."""

from __future__ import annotations

import re
from bisect import bisect_left as bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from attention_np._lib.text import cut
from attention_np.derivation import limits
from attention_np.derivation.errors import Fault, line_of, show
from attention_np.derivation.header import Header, front_matter, read_header

_TAG = re.compile(r"\\tag\s*\{([^{}]*)\}")
_TAG_FORM = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*\.[1-9][0-9]{0,3}")
_SAME = re.compile(rf"Same as \((?P<tags>{_TAG_FORM.pattern}(?:, ?{_TAG_FORM.pattern})*)\)\.")
MESSAGE = 80  # columns that a marker may take in a message
_MARKER = re.compile(r"\*([^*\n]+)\*\s*(.*)")


@dataclass(frozen=True)
class Equation:
    """A displayed equation.

    ``text`` is what stands between the dollar signs with the tag blanked out, and starts at ``offset`` in the file.
    ``mark`` is "", "refuted", "malformed", "skipped"; ``section`` is the position of its heading; ``same`` are the tags
    of the equations that say the same.
    """

    tag: str
    text: str
    offset: int
    line: int
    mark: str = ""
    reason: str = ""
    text_only: bool = False
    same: tuple[str, ...] = ()
    section: int = -1
    example: int = -1
    fault: Fault | None = None


@dataclass
class Page:
    """A page that was read; ``problems`` are those that belong to no equation."""

    name: str
    path: str
    text: str
    header: Header
    equations: list[Equation]
    problems: list[str]


def read_page(path: Path | str, text: str | None = None) -> Page:
    """Read a page from a file, or from ``text``. Nothing that a page holds raises."""
    path = Path(path)
    page = Page(path.stem.replace("_", "-"), str(path), "", Header(), [], [])
    if text is None:
        try:
            if path.exists() and not path.is_file():
                page.problems.append(f"{path}:1: cannot be read: not a file")
                return page
            with path.open("rb") as stream:
                data = stream.read(4 * limits.PAGE_CHARACTERS + 1)
            if len(data) > 4 * limits.PAGE_CHARACTERS:
                page.problems.append(f"{path}:1: the page is too long")
                return page
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            page.problems.append(f"{path}:{line}: cannot be read: this is not UTF-8 ({error.reason})")
            return page
        except (OSError, ValueError) as error:
            page.problems.append(f"{path}:1: cannot be read: {error}")
            return page
    if len(text) > limits.PAGE_CHARACTERS:
        page.problems.append(f"{path}:1: more than {limits.PAGE_CHARACTERS} characters")
        return page
    page.text = text = text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")
    start = 0
    try:
        front, places, start = front_matter(text)
        page.header = read_header(front, places)
        page.header.names()
    except Fault as fault:
        page.problems.append(show(str(path), text, fault, 0))
    except (ValueError, TypeError, RecursionError) as error:  # none is known; a page must never bring a traceback
        page.problems.append(f"{path}:1: the front matter cannot be read: {error}")
    _equations(page, start)
    return page


def missing(page: Page) -> list[str]:
    """A problem for each part that a page lacks: front matter, an equation, or the names of its op's arrays."""
    if not page.text.strip():
        return [f"{page.path}:1: the page is empty"]
    problems = []
    if not page.text.startswith("---"):
        problems.append(f"{page.path}:1: a page begins with front matter, between two lines ---")
    if not page.equations:
        problems.append(f"{page.path}:1: the page has no displayed equation")
    if page.header.op is not None and not page.header.code:
        place = re.search(r"^[ \t{]*op\b.*$", page.text, re.MULTILINE)
        message = "a page with op also has code: which array is which"
        problems.append(show(page.path, page.text, Fault("page", message, place.span() if place else (0, 3))))
    return problems


def masked(text: str, start: int) -> str:
    """The text with everything that Markdown does not show as mathematics blanked out, positions kept."""
    ends = [match.start() for match in re.finditer("-->", text)]
    blanks = [match.start() for match in re.finditer(r"\n(?=[ \t]*\n)", text)]

    def comment_end(first: int, alone: bool) -> int:
        """Where a comment ends; one that opens inside of a line is none unless it is closed in its paragraph."""
        end, blank = bisect(ends, first), bisect(blanks, first)
        closed = end < len(ends) and (alone or blank == len(blanks) or ends[end] < blanks[blank])
        return ends[end] + 3 if closed else len(text) if alone else first

    out, position = [" " * start], start
    while hidden := _HIDING.search(text, position):
        first = hidden.end()
        if fence := hidden["fence"]:
            closing = re.compile(rf"^ {{0,3}}{fence}{fence[0]}*[ \t]*$", re.MULTILINE).search(text, first)
            stop = closing.end() if closing else len(text)
        elif run := hidden["code"]:  # up to the next run of the same length on its line
            closing = re.compile(rf"[^\n]*?(?<!`)`{{{len(run)}}}(?!`)").match(text, first)
            stop = closing.end() if closing else first
        else:
            stop = comment_end(first, hidden["alone"] is not None) if hidden["comment"] else first
        out += [text[position : hidden.start()], re.sub(r"[^\n]", " ", text[hidden.start() : stop])]
        position = stop
    return "".join([*out, text[position:]])


_HIDING = re.compile(
    r"""
    (?= [`~<\\] | ^[ ]) (?:  # what any of these begins with
    ^[ ]{0,3} (?P<fence> `{3,}(?=[^`\n]*$) | ~{3,})
    | (?P<code> `+)
    | (?P<escaped> \\\$)
    | (?: (?P<alone> ^[ ]{0,3}) | (?<!\\)(?:\\\\)*) (?P<comment> <!--) (?!-?>)  # <!--> and <!---> are whole comments
    )
    """,
    re.MULTILINE | re.VERBOSE,
)


def _equations(page: Page, start: int) -> None:
    text, visible = page.text, masked(page.text, start)
    for match in re.finditer(r"^ {0,3}(```+|~~~+)\s*math\b", text, re.MULTILINE):
        fault = Fault("page", "write displayed equations between dollar signs", match.span())
        page.problems.append(show(page.path, text, fault))
    places = [match.start() for match in re.finditer(r"\$\$", visible)]
    if len(places) % 2:
        fault = Fault("page", "these dollar signs are never closed", (places[-1], places[-1] + 2))
        page.problems.append(show(page.path, text, fault))
        places.pop()
    if len(places) // 2 > limits.EQUATIONS:
        page.problems.append(f"{page.path}:1: more than {limits.EQUATIONS} equations")
        places = places[: 2 * limits.EQUATIONS]
    inside = [(places[k] + 2, places[k + 1]) for k in range(0, len(places), 2)]
    headings = _headings(visible)
    starts = [heading.place for heading in headings]
    for position, (first, last) in enumerate(inside):
        following = inside[position + 1][0] - 2 if position + 1 < len(inside) else len(text)
        section = bisect(starts, first) - 1
        example = headings[section].example if section >= 0 else -1
        page.equations.append(_equation(page, first, last, text[last + 2 : following], section, example))
    seen: dict[str, int] = {}
    for position, equation in enumerate(page.equations):
        if equation.tag in seen and equation.fault is None:
            message = f"the tag {equation.tag} stands twice, first on line {seen[equation.tag]}"
            second = _TAG.search(text, equation.offset)
            place = second and (second.start() - equation.offset, second.end() - equation.offset)
            page.equations[position] = replace(equation, fault=Fault("page", message, place))
        seen.setdefault(equation.tag, equation.line)


class _Heading(NamedTuple):
    """Where a heading stands, and the position of the innermost one around what follows that announces an example."""

    place: int
    example: int  # or -1


def _headings(visible: str) -> list[_Heading]:
    pattern = re.compile(r"^ {0,3}(#{1,6})[ \t]+(.*)$", re.MULTILINE)
    headings: list[_Heading] = []
    around: list[tuple[int, int]] = []  # level and example of the headings that are open
    for position, match in enumerate(pattern.finditer(visible)):
        level = len(match.group(1))
        while around and around[-1][0] >= level:
            around.pop()
        outer = around[-1][1] if around else -1
        around.append((level, position if re.search(r"example", match.group(2), re.IGNORECASE) else outer))
        headings.append(_Heading(match.start(), around[-1][1]))
    return headings


def _equation(page: Page, first: int, last: int, after: str, section: int, example: int) -> Equation:
    body = page.text[first:last]
    line = line_of(page.text, first + len(body) - len(body.lstrip()))
    tags = list(_TAG.finditer(body))
    blanked = _TAG.sub(lambda match: " " * len(match.group()), body)
    tag = tags[0].group(1).strip() if tags else ""
    mark, reason, text_only, same = _marker(after)
    fault = next(chain(_faults(page.name, body, tags), _faults_of_marker(mark, reason, same)), None)
    mark, same = "" if mark == "unknown" else mark, same[: limits.SAME]
    return Equation(tag, blanked, first, line, mark, reason, text_only, same, section, example, fault)


def _faults(name: str, body: str, tags: list[re.Match[str]]) -> Iterator[Fault]:
    """The faults of an equation before it is read."""
    if not _TAG_FORM.fullmatch(f"{name}.1"):
        yield Fault("page", f"no tag can begin with {name!r}: name the file in lower-case letters, digits and hyphens")
    elif not tags:
        shown = body.strip() or "$$"
        before = len(body) - len(body.lstrip()) if body.strip() else -2
        yield Fault("page", f"this equation has no tag: \\tag{{{name}.N}}", (before, before + len(shown)))
    elif len(tags) > 1:
        yield Fault("page", "this equation has two tags", tags[1].span())
    elif not _TAG_FORM.fullmatch(tags[0].group(1).strip()) or tags[0].group(1).strip().rpartition(".")[0] != name:
        yield Fault("page", f"the tag should be {name}.N", tags[0].span())
    if len(body) > limits.EQUATION_CHARACTERS:
        yield Fault("limit", f"an equation of more than {limits.EQUATION_CHARACTERS} characters")
    if "\n\n" in re.sub(r"[ \t]+", "", body.strip()):
        yield Fault("page", "a blank line ends the equation where Markdown is rendered")


def _faults_of_marker(mark: str, reason: str, same: tuple[str, ...]) -> Iterator[Fault]:
    """The faults of the marker behind an equation."""
    if mark == "unknown":
        yield Fault("page", f"the marker *{cut(reason, MESSAGE)}* is not known, or stands here twice")
    if mark == "skipped" and not reason:
        yield Fault("page", "*Not executed:* needs a reason")
    if mark and same:
        yield Fault("page", "only an equation that holds is the same as another")
    if len(same) > limits.SAME:
        yield Fault("limit", f"the same as more than {limits.SAME} equations")
    for position, tag in enumerate(same):
        if tag in same[:position]:
            yield Fault("page", f"the same as ({tag}) is said twice")


def _marker(after: str) -> tuple[str, str, bool, tuple[str, ...]]:
    """The mark of an equation, its reason, and the rest that the paragraph behind it says."""
    paragraph = after.lstrip(" \t\n.,").split("\n\n")[0]
    text_only, same = False, ()
    while True:
        match = _MARKER.match(paragraph)
        if match is None:
            return "", "", text_only, same
        word, rest = match.group(1).strip(), paragraph[match.end(1) + 1 :].strip()
        if word == "Text only." and not text_only:
            text_only, paragraph = True, rest
            continue
        if _SAME.fullmatch(word) and not same:
            same, paragraph = tuple(re.findall(_TAG_FORM, word)), rest
            continue
        if word in ("Refuted:", "Refuted, not well-formed:", "Not executed:"):
            mark = {"Refuted:": "refuted", "Not executed:": "skipped"}.get(word, "malformed")
            return mark, rest, text_only or rest.endswith("*Text only.*"), same
        if re.match(r"(refuted|not executed|text only|same as)", word, re.IGNORECASE):
            return "unknown", word, text_only, same
        return "", "", text_only, same
