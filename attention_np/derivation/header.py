"""The front matter of a page: a few lines of YAML from strangers, checked word by word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from attention_np.derivation import limits
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.names import Names, Symbol, parse_name

KINDS = ("normal", "positive", "uniform", "boolean", "boolean_any", "permutation", "orthogonal", "probability")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same one, where PyYAML was built with libyaml
_KEYS = frozenset(
    ["op", "sizes", "indices", "tensors", "output", "cotangent", "code", "options", "names", "cited", "title"]
)


@dataclass(frozen=True)
class Free:
    """A free tensor: the ranges of its axes and how it is drawn."""

    axes: tuple[str, ...]
    kind: str = "normal"


class Word(str):
    """An option that is a word, and no name of the page."""


@dataclass
class Header:
    """The front matter, checked. All names are keys (see :mod:`.names`)."""

    op: str | None = None
    sizes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the factors of a derived size, else ()
    fixed: dict[str, int] = field(default_factory=dict)
    indices: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, Free] = field(default_factory=dict)
    output: str | None = None
    cotangent: str = "\\mathrm{d}L/\\mathrm{d}output"
    code: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    cited: bool = True
    places: dict[str, Span] = field(default_factory=dict, repr=False)  # of what is declared
    place: Span = (0, 3)  # of what is being read

    def names(self) -> Names:
        """The names that are known before the first equation."""
        names = Names()
        for key in self.sizes:
            names.add(Symbol(key, "size"), self.places.get(key))
        for key, axis in self.indices.items():
            names.add(Symbol(key, "index", (axis,)), self.places.get(f"index {key}"))
        for key, free in self.tensors.items():
            names.add(Symbol(key, "tensor", free.axes), self.places.get(f"tensor {key}"))
        return names


def front_matter(text: str) -> tuple[dict[str, Any], dict[str, Span], int]:
    """What stands between the dashes at the top of a page, the places of its keys, and where it ends."""
    match = re.match(r"---[ \t]*\n(.*?)^---[ \t]*$", text, re.DOTALL | re.MULTILINE)
    if match is None:
        if text.startswith("---"):
            raise Fault("page", "the front matter is never closed", (0, 3))
        return {}, {}, 0
    source, offset = match.group(1), match.start(1)
    if len(source) > limits.FRONT_MATTER_CHARACTERS:
        raise Fault("limit", f"front matter of more than {limits.FRONT_MATTER_CHARACTERS} characters", (0, 3))
    try:
        depth = 0
        for token in yaml.scan(source, Loader=_LOADER):
            place = (offset + token.start_mark.index, offset + token.end_mark.index)
            if isinstance(token, (yaml.AnchorToken, yaml.AliasToken, yaml.TagToken)):
                raise Fault("page", "front matter has no anchors, aliases or tags", place)
            if isinstance(token, _OPENS):
                depth += 1
            elif isinstance(token, _CLOSES):
                depth -= 1
            if depth > limits.FRONT_MATTER_DEPTH:
                raise Fault("limit", "the front matter is nested too deep", place)
        tree = yaml.compose(source, Loader=_LOADER)
        places: dict[str, Span] = {}
        _unique(tree, offset, places)
        front = {} if tree is None else _LOADER("").construct_document(tree)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = (0, 3) if mark is None else (offset + mark.index, offset + mark.index + 1)
        message = getattr(error, "problem", None) or "it is not YAML"
        raise Fault("page", f"the front matter cannot be read: {message}", place) from None
    except (ValueError, RecursionError) as error:
        raise Fault("page", f"the front matter cannot be read: {error}", (0, 3)) from None
    if not isinstance(front, dict):
        raise Fault("page", "the front matter is not a mapping", (0, 3))
    return front, places, match.end()


_OPENS = (
    yaml.FlowMappingStartToken,
    yaml.FlowSequenceStartToken,
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
)
_CLOSES = (yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken, yaml.BlockEndToken)


def _unique(node: yaml.Node | None, offset: int, places: dict[str, Span], under: str = "") -> None:
    """Refuse keys that stand twice; write down where each stands."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            place = (offset + key.start_mark.index, offset + key.end_mark.index)
            if not isinstance(key, yaml.ScalarNode):
                raise Fault("page", "a key of the front matter is a plain word", place)
            if key.value == "<<":
                raise Fault("page", "front matter has no merge keys", place)
            if key.value in seen:
                raise Fault("page", f"{key.value} stands twice in the front matter", place)
            seen.add(key.value)
            places[under + key.value] = place
            _unique(value, offset, places, f"{under}{key.value} ")
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _unique(item, offset, places, under + "- ")


def read_header(front: dict[str, Any], places: dict[str, Span]) -> Header:
    """The front matter, checked; ``places`` are those of its keys, and of the keys below them."""
    header = Header()
    try:
        _fill(header, front, places)
    except Fault as fault:
        raise fault.at(header.place) from None
    return header


def _fill(header: Header, front: dict[str, Any], places: dict[str, Span]) -> None:
    unknown = sorted(str(key) for key in front if key not in _KEYS)
    if unknown:
        header.place = places.get(unknown[0], (0, 3))
        raise Fault("page", f"the front matter knows no {unknown[0]!r}", header.place)

    def look(name: str) -> Any:
        header.place = places.get(name, (0, 3))
        return front.get(name)

    def mapping(name: str) -> Iterator[tuple[str, Any]]:
        value = look(name) or {}
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise Fault("page", f"{name} is a mapping of names", header.place)
        for key, item in value.items():
            header.place = places.get(f"{name} {key}", header.place)
            yield key, item

    def a_size(value: object, owner: str) -> str:
        key = parse_name(str(value))
        if key not in header.sizes:
            raise Fault("page", f"{owner}: {value} is not declared in sizes", header.place)
        return key

    op = look("op")
    if op is not None and not (isinstance(op, str) and re.fullmatch(r"[a-z][a-z0-9_]{0,40}", op)):
        raise Fault("page", "op is the name of a module", header.place)
    header.op = op
    sizes = look("sizes") or ""
    words: Any = sizes.split() if isinstance(sizes, str) else sizes
    if not isinstance(words, list) or len(words) > 16:
        raise Fault("page", "sizes are up to 16 names, with spaces between them", header.place)
    for word in words:
        name, _, value = str(word).partition("=")
        key = parse_name(name)
        if key in header.sizes:
            raise Fault("page", f"the size {name} is declared twice", header.place)
        factors: tuple[str, ...] = ()
        if value.isascii() and value.isdigit():
            if len(value) > 6 or not 1 < int(value) <= limits.SIZE:
                raise Fault("limit", f"{name} is not between 2 and {limits.SIZE}", header.place)
            header.fixed[key] = int(value)
        elif value:
            factors = tuple(a_size(part, name) for part in value.split("*"))
        header.sizes[key] = factors
        header.places.setdefault(key, header.place)
    for name, value in mapping("indices"):
        axis = a_size(value, f"index {name}")
        for letter in name.split():
            key = parse_name(letter)
            header.indices[key] = axis
            header.places[f"index {key}"] = header.place
    for name, listed in mapping("tensors"):
        if not isinstance(listed, list) or len(listed) > limits.AXES + 1:
            raise Fault("page", f"tensor {name}: a list of sizes is needed, [] for a number", header.place)
        kind = "normal"
        if listed and str(listed[-1]) in KINDS:
            kind, listed = str(listed[-1]), listed[:-1]
        axes = tuple(a_size(item, f"tensor {name}") for item in listed)
        if kind in ("permutation", "orthogonal") and (len(axes) != 2 or axes[0] != axes[1]):
            raise Fault("page", f"tensor {name}: a {kind} matrix is square", header.place)
        key = parse_name(name)
        header.tensors[key] = Free(axes, kind)
        header.places[f"tensor {key}"] = header.place
    for field_name in ("output", "cotangent"):
        value = look(field_name)
        if value is not None:
            setattr(header, field_name, parse_name(str(value)))
    for name, value in mapping("code"):
        if not re.fullmatch(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?", name):
            raise Fault("page", f"code: {name} is not the name of an argument or a field", header.place)
        header.code[name] = parse_name(str(value))
    for name, value in mapping("options"):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise Fault("page", f"options: {name} is not the name of an option", header.place)
        if not isinstance(value, (str, int, float, bool)):
            raise Fault(
                "page", f"options: {name} is a number, true, false, a symbol or a \\texttt{{word}}", header.place
            )
        if isinstance(value, str):
            word = re.fullmatch(r"\\texttt\{(\w+)\}", value)
            value = parse_name(value) if word is None else Word(word[1])
        header.options[name] = value
    cited = look("cited")
    cited = True if cited is None else cited
    if not isinstance(cited, bool):
        raise Fault("page", "cited is true or false", header.place)
    header.cited = cited
    if header.code and header.output is None:
        look("code")
        raise Fault("page", "a page with code names its output", header.place)
