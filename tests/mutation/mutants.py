"""Mutants of a module: mutmut says what they are, and a function of the module that runs is made into one.

Nothing is written to disk and nothing is imported anew: the code object of the one function that differs is replaced.
So a mutant costs milliseconds, and whoever has imported the function from elsewhere runs the mutant too.
"""

from __future__ import annotations

import difflib
import gc
import importlib
import re
from collections.abc import Iterator
from functools import cached_property
from importlib.abc import ExecutionLoader
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, ParentNodeProvider, PositionProvider
from mutmut.mutation.file_mutation import Mutation, create_mutations, deep_replace

from .survivors import one_line

# mutmut leaves decorated functions alone. These are a pass in its shell: within it, they are functions like others.
SHELL = re.compile(r"^( *)@(?=passes\.)", re.MULTILINE)
HIDDEN = re.compile(r"^( *)# @(?=passes\.)", re.MULTILINE)

# Differences that no test can see, wherever they stand.
UNSEEN = (
    re.compile(r"(, *)?\bstrict=(True|False|None)"),  # of `zip`: a guard against our own slips
    re.compile(r"\bcast\((None|\"[^\"]*\"|[\w.\[\], |]*), *"),  # the type is for the type checker
    re.compile(r"\bcast\((?=\w+\))"),  # likewise, with the type dropped
    re.compile(r",\s*(?=\))"),  # a comma that closes a list
    re.compile(r"(?<=\brng\()(\w+(\.\w+)?, )?\"[^\"]*\""),  # what a stream of random numbers is for: any name will do
    re.compile(r"(?<=\bdefault_rng\()(\d+|None)"),  # any seed will do
    re.compile(r"\breplace=(False|None)"),  # NumPy takes the one for the other
    re.compile(r"(?<=\bencoding=\")utf-8", re.IGNORECASE),  # has two spellings
    re.compile(r"(?<=\b_product\()\"\w+\""),  # the name of a piece of memory: any that is not taken will do
)


class Mutant(NamedTuple):
    """One change of one function."""

    module: Module
    number: int
    mutation: Mutation

    @property
    def key(self) -> tuple[str, int]:
        """The path of its module, and its number there."""
        return self.module.path.as_posix(), self.number

    @property
    def name(self) -> str:
        """The function, as `Class.method` or `function`."""
        return self.module.names[self.mutation.contained_by_top_level_function]

    def texts(self) -> tuple[str, str]:
        """The lines that differ, before and after."""
        before, after = self._statements()
        old, new = before.splitlines(), after.splitlines()
        blocks = [block for block in difflib.SequenceMatcher(None, old, new).get_opcodes() if block[0] != "equal"]
        first, last = blocks[0], blocks[-1]
        return one_line(old[first[1] : last[2]]), one_line(new[first[3] : last[4]])

    def spans(self) -> Iterator[range]:
        """The lines of what changes, then of what it is part of, up to the statement."""
        node: cst.CSTNode = self.mutation.original_node
        while True:
            yield self.module.lines(node)
            if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                return
            node = self.module.parents[node]

    def apply(self) -> bool:
        """Make the function into the mutant, in this process. False if no test can tell the two apart."""
        before, after = self._statements()
        if _seen(before) == _seen(after):
            return False
        changed = _load(self.module, HIDDEN.sub(r"\1@", self.module.source.replace(before, after, 1)))
        old, new = _function(self.module.loaded, self.name), _function(changed, self.name)
        if _parts(old) == _parts(new):
            return False
        _change_inner(old.__code__, new.__code__)
        old.__code__, old.__defaults__, old.__kwdefaults__ = new.__code__, new.__defaults__, new.__kwdefaults__
        return True

    def _statements(self) -> tuple[str, str]:
        statement = self.module.statements[self.mutation.contained_by_top_level_function]
        mutated = deep_replace(statement, self.mutation.original_node, self.mutation.mutated_node)
        assert isinstance(mutated, cst.CSTNode)
        return self.module.tree.code_for_node(statement), self.module.tree.code_for_node(mutated)


class Module:
    """A module of the package, with its mutants."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = SHELL.sub(r"\1# @", path.read_text(encoding="utf-8"))
        self.tree, self._mutations, _, _ = create_mutations(str(path), self.source)
        wrapper = MetadataWrapper(self.tree, unsafe_skip_copy=True)
        self.parents = wrapper.resolve(ParentNodeProvider)
        self._positions: Any = wrapper.resolve(PositionProvider)
        self.names: dict[Any, str] = {}
        self.statements: dict[Any, cst.BaseStatement] = {}
        for statement in self.tree.body:
            if isinstance(statement, cst.FunctionDef):
                self.names[statement], self.statements[statement] = statement.name.value, statement
            elif isinstance(statement, cst.ClassDef):
                for method in statement.body.body:
                    if isinstance(method, cst.FunctionDef):
                        self.names[method] = f"{statement.name.value}.{method.name.value}"
                        self.statements[method] = statement

    @cached_property
    def loaded(self) -> ModuleType:
        return importlib.import_module(".".join(self.path.with_suffix("").parts).removesuffix(".__init__"))

    def mutants(self) -> list[Mutant]:
        """All mutants but those of the words of an error."""
        mutants = (Mutant(self, number, mutation) for number, mutation in enumerate(self._mutations))
        return [mutant for mutant in mutants if self._counts(mutant)]

    def lines(self, node: cst.CSTNode) -> range:
        position: CodeRange = self._positions[node]
        return range(position.start.line, position.end.line + 1)

    def _counts(self, mutant: Mutant) -> bool:
        node = mutant.mutation.original_node
        if mutant.mutation.contained_by_top_level_function not in self.names or node not in self._positions:
            return False
        return not (isinstance(node, cst.BaseString) and self._in_raise(node))

    def _in_raise(self, node: cst.CSTNode) -> bool:
        while not isinstance(node, cst.BaseCompoundStatement):
            if isinstance(node, cst.Raise):
                return True
            node = self.parents[node]
        return False


class _Loader(ExecutionLoader):
    """Loads a module from a text in the place of its file."""

    def __init__(self, path: Path, source: str) -> None:
        self._path, self._source = path, source

    def get_filename(self, _: str) -> str:
        return str(self._path.resolve())

    def get_source(self, _: str) -> str:
        return self._source


def _load(module: Module, source: str) -> ModuleType:
    loader = _Loader(module.path, source)
    name = module.loaded.__name__
    spec = ModuleSpec(name, loader, origin=loader.get_filename(name), is_package=module.path.stem == "__init__")
    fresh = module_from_spec(spec)
    loader.exec_module(fresh)
    return fresh


def _function(module: ModuleType, name: str) -> FunctionType:
    found: Any = module
    for part in name.split("."):
        found = vars(found)[part]
    found = getattr(found, "__func__", found)
    found = getattr(found, "mathematics", found)
    assert isinstance(found, FunctionType)
    return found


def _change_inner(old: CodeType, new: CodeType) -> None:
    """Change the functions that this one has made already, as of a reader of lists when its module was imported."""
    before, after = ([c for c in code.co_consts if isinstance(c, CodeType)] for code in (old, new))
    changed = {id(a): b for a, b in zip(before, after, strict=False) if a != b and a.co_freevars == b.co_freevars}
    if not changed:
        return
    gc.unfreeze()  # what is frozen is not listed
    for found in gc.get_objects():
        if type(found) is FunctionType and id(found.__code__) in changed:
            found.__code__ = changed[id(found.__code__)]


def _parts(function: FunctionType) -> Any:
    return _instructions(function.__code__), repr(function.__defaults__), repr(function.__kwdefaults__)


def _instructions(code: CodeType) -> Any:
    constants = tuple(_instructions(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts)
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars


def _seen(text: str) -> str:
    for pattern in UNSEEN:
        text = pattern.sub("", text)
    return text
