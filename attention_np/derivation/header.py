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
_KEYS = frozenset(
    ["op", "sizes", "indices", "tensors", "output", "cotangent", "code", "options", "names", "cited", "title"]
)
_MODULE = re.compile(r"[a-z][a-z0-9_]{0,40}")
_FIELD = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?")
_TOO_DEEP = "the front matter is nested too deep"
_OPTION = re.compile(r"[a-z][a-z0-9_]*")
_WORD = re.compile(r"\\texttt\{(\w+)\}")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same one, where PyYAML was built with libyaml


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
    places: dict[str, Span] = field(default_factory=dict, repr=False)  # of the declarations

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
    """The YAML between the dashes at the top of a page, the places of its keys, and where the front matter ends."""
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
                raise Fault("limit", _TOO_DEEP, place)
        tree = yaml.compose(source, Loader=_LOADER)
        places: dict[str, Span] = {}
        _unique(tree, offset, places)
        front = {} if tree is None else _LOADER("").construct_document(tree)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = (0, 3) if mark is None else (offset + mark.index, offset + mark.index + 1)
        message = getattr(error, "problem", None) or "it is not YAML"
        if "nesting depth" in message:  # libyaml may find that before we do
            raise Fault("limit", _TOO_DEEP, place) from None
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
    reader = _Reader(front, places)
    try:
        reader.read()
    except Fault as fault:
        raise fault.at(reader.place) from None
    return reader.header


class _Reader:
    """Fills a header, key by key; ``place`` is that of the key that is being read."""

    def __init__(self, front: dict[str, Any], places: dict[str, Span]) -> None:
        self.front, self.places = front, places
        self.header = Header()
        self.place: Span = (0, 3)

    def read(self) -> None:
        header = self.header
        for unknown in sorted(str(key) for key in self.front if key not in _KEYS):
            self.place = self.places.get(unknown, (0, 3))
            raise Fault("page", f"the front matter knows no {unknown!r}")
        header.op = self._value("op")
        if header.op is not None and not (isinstance(header.op, str) and _MODULE.fullmatch(header.op)):
            raise Fault("page", "op is the name of a module")
        self._sizes()
        self._indices()
        self._tensors()
        header.output = self._name("output")
        header.cotangent = self._name("cotangent") or header.cotangent
        self._code()
        self._options()
        header.cited = self._value("cited", True)
        if not isinstance(header.cited, bool):
            raise Fault("page", "cited is true or false")
        if self._value("code") and header.output is None:
            raise Fault("page", "a page with code names its output")

    def _value(self, key: str, otherwise: Any = None) -> Any:
        self.place = self.places.get(key, (0, 3))
        value = self.front.get(key)
        return otherwise if value is None else value

    def _name(self, key: str) -> str | None:
        value = self._value(key)
        return None if value is None else parse_name(str(value))

    def _items(self, name: str) -> Iterator[tuple[str, Any]]:
        value = self._value(name) or {}
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise Fault("page", f"{name} is a mapping of names")
        for key, item in value.items():
            self.place = self.places.get(f"{name} {key}", self.place)
            yield key, item

    def _size(self, value: object, owner: str) -> str:
        key = parse_name(str(value))
        if key not in self.header.sizes:
            raise Fault("page", f"{owner}: {value} is not declared in sizes")
        return key

    def _sizes(self) -> None:
        sizes, header = self._value("sizes", ""), self.header
        words: Any = sizes.split() if isinstance(sizes, str) else sizes
        if not isinstance(words, list) or len(words) > 16:
            raise Fault("page", "sizes are up to 16 names, with spaces between them")
        for word in words:
            name, _, length = str(word).partition("=")
            key = parse_name(name)
            if key in header.sizes:
                raise Fault("page", f"the size {name} is declared twice")
            factors: tuple[str, ...] = ()
            if length.isascii() and length.isdigit():
                if len(length) > 6 or not 1 < int(length) <= limits.SIZE:
                    raise Fault("limit", f"{name} is not between 2 and {limits.SIZE}")
                header.fixed[key] = int(length)
            elif length:
                factors = tuple(self._size(factor, name) for factor in length.split("*"))
            header.sizes[key] = factors
            header.places.setdefault(key, self.place)

    def _indices(self) -> None:
        for letters, size in self._items("indices"):
            axis = self._size(size, f"index {letters}")
            for letter in letters.split():
                key = parse_name(letter)
                self.header.indices[key] = axis
                self.header.places[f"index {key}"] = self.place

    def _tensors(self) -> None:
        for name, words in self._items("tensors"):
            if not isinstance(words, list) or len(words) > limits.AXES + 1:
                raise Fault("page", f"tensor {name}: a list of sizes is needed, [] for a number")
            kind = str(words[-1]) if words and str(words[-1]) in KINDS else None
            axes = tuple(self._size(word, f"tensor {name}") for word in (words[:-1] if kind else words))
            if kind in ("permutation", "orthogonal") and (len(axes) != 2 or axes[0] != axes[1]):
                raise Fault("page", f"tensor {name}: a {kind} matrix is square")
            key = parse_name(name)
            self.header.tensors[key] = Free(axes, kind or "normal")
            self.header.places[f"tensor {key}"] = self.place

    def _code(self) -> None:
        for name, symbol in self._items("code"):
            if not _FIELD.fullmatch(name):
                raise Fault("page", f"code: {name} is not the name of an argument or a field")
            self.header.code[name] = parse_name(str(symbol))

    def _options(self) -> None:
        for name, value in self._items("options"):
            option = _numbers(value)
            if not _OPTION.fullmatch(name):
                raise Fault("page", f"options: {name} is not the name of an option")
            if not isinstance(option, (str, int, float, bool, tuple)):
                said = "a number, true, false, a symbol, a \\texttt{word}, or numbers in square brackets"
                raise Fault("page", f"options: {name} is {said}")
            if isinstance(option, str):
                word = _WORD.fullmatch(option)
                option = parse_name(option) if word is None else Word(word[1])
            self.header.options[name] = option


def _numbers(option: Any) -> Any:
    """`option`, as a tuple where it is a list of whole numbers, or of such lists."""
    if not isinstance(option, list):
        return option
    numbers = tuple(map(_numbers, option))
    return numbers if numbers and all(type(x) in (int, tuple) for x in numbers) else option
