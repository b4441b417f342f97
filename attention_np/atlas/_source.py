"""What a class of a model computes, known by a digest of its source.

The source is normalised first, so that one digest stands for every copy of the same mathematics: what only speaks
(annotations, docstrings, messages, logging), the names of local variables, and the branches that no reading takes
(training, a cache of earlier tokens, kernels that need a GPU) are left out. What is left decides the numbers.

A conversion to the dtype of another array is left out as well, as in float64 it changes nothing: a source in which one
to integers was put in would go unseen. What `torch.autograd.Function` a source applies counts by its forward and
backward.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple

CACHES = {"past_key_value", "past_key_values", "cache", "cache_params", "layer_past"}  # None in the full pass
FALSE_CALLS = {"is_flash_attention_requested", "is_torchdynamo_compiling", "is_tracing", "is_compiling", "is_exporting"}
SILENT = {  # decorators that change no number of a call that a reading takes
    "use_kernel_func_from_hub",
    "use_kernelized_func",
    "use_kernel_forward_from_hub",
    "auto_docstring",
    "deprecate_kwarg",
    "can_return_tuple",
    "staticmethod",
    "classmethod",
    "script_if_tracing",
    "script",
    "force_accelerate_hooks",
}


class Source(NamedTuple):
    """A function, with the methods that it calls."""

    digest: str
    text: str  # normalised
    functions: dict[str, Any]  # of transformers, that the text calls by name
    attributes: frozenset[str]  # that the text reads of self, dotted


def normalised(node: ast.FunctionDef) -> str:
    """The source of a function without what does not decide its numbers."""
    node = _Folded().visit(node)
    _remove_unused(node)
    _rename_locals(node)
    return ast.unparse(node)


class _Folded(ast.NodeTransformer):
    """Without annotations, messages, and branches that are never taken."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        names = [ast.unparse(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2] for d in node.decorator_list]
        pairs = zip(node.decorator_list, names, strict=True)
        node.decorator_list = [d for d, name in pairs if name not in SILENT]
        node.returns = None
        for argument in [
            *node.args.posonlyargs,
            *node.args.args,
            *node.args.kwonlyargs,
            node.args.vararg,
            node.args.kwarg,
        ]:
            if argument is not None:
                argument.annotation = None
                argument.arg = _plain(argument.arg)
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_Name(self, node: ast.Name) -> Any:
        node.id = _plain(node.id)
        return node

    def visit_keyword(self, node: ast.keyword) -> Any:
        if node.arg:
            node.arg = _plain(node.arg)
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        self.generic_visit(node)
        return None if node.value is None else ast.Assign(targets=[node.target], value=node.value, lineno=0)

    def visit_Raise(self, node: ast.Raise) -> Any:
        return ast.Raise(exc=None, cause=None)

    def visit_Assert(self, node: ast.Assert) -> Any:
        return None

    def visit_Expr(self, node: ast.Expr) -> Any:
        text = ast.unparse(node.value)
        if isinstance(node.value, ast.Constant) or text.startswith(
            ("logger.", "warnings.warn", "torch._check", "torch_compilable_check")
        ):
            return None
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in FALSE_CALLS:
            return ast.Constant(value=False)
        if name == "contiguous" and isinstance(function, ast.Attribute) and not node.args:
            return function.value
        if isinstance(function, ast.Attribute) and _changes_precision_alone(name, node):
            return function.value
        if name == "view" and isinstance(function, ast.Attribute) and not _is_dtype(node.args):
            function.attr = "reshape"
        if name == "softmax":
            node.keywords = [x for x in node.keywords if x.arg != "dtype" or ast.unparse(x.value) != "torch.float32"]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.generic_visit(node)
        if node.attr == "training" and isinstance(node.value, ast.Name) and node.value.id in ("self", "module"):
            return ast.Constant(value=False)
        return node

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        is_cache = isinstance(node.left, ast.Name) and node.left.id == "cache"
        if is_cache and isinstance(node.ops[0], ast.Is | ast.IsNot) and ast.unparse(node.comparators[0]) == "None":
            return ast.Constant(value=isinstance(node.ops[0], ast.Is))
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        truth = _truth(node.operand)
        return node if truth is None or not isinstance(node.op, ast.Not) else ast.Constant(value=not truth)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        ends = isinstance(node.op, ast.Or)  # what decides the whole: True of `or`, False of `and`
        if any(_truth(value) is ends for value in node.values):
            return ast.Constant(value=ends)
        node.values = [value for value in node.values if _truth(value) is None]
        if len(node.values) > 1:
            return node
        return node.values[0] if node.values else ast.Constant(value=not ends)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        truth = _truth(node.test)
        return node if truth is None else node.body if truth else node.orelse

    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        truth = _truth(node.test)
        if truth is not None:
            return node.body if truth else node.orelse
        if not node.body and not node.orelse:
            return None
        node.body = node.body or [ast.Pass()]
        return node


def _plain(name: str) -> str:
    return "cache" if name in CACHES else name


def _is_dtype(arguments: list[ast.expr]) -> bool:
    """Whether a `view` is one of another dtype: `x.view(torch.complex64)`."""
    return len(arguments) == 1 and "torch." in ast.unparse(arguments[0])


def _changes_precision_alone(name: str, node: ast.Call) -> bool:
    """Whether a method only says how exactly a number is written, or where: in float64 it changes nothing."""
    if name in ("float", "type_as"):
        return len(node.args) == (name == "type_as") and not node.keywords
    values = [ast.unparse(x) for x in (*node.args, *(x.value for x in node.keywords))]
    endings = ("dtype", "_type", "device", "device.type")
    return name == "to" and all(text.endswith(endings) or text in ("torch.float32", "torch.float") for text in values)


def _truth(node: ast.expr) -> bool | None:
    """Of a constant True or False; None of all else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, bool) else None


def _remove_unused(node: ast.FunctionDef) -> None:
    """Assignments to a local variable that nothing reads, of what has no effect of its own."""
    while True:
        read = {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load)}
        remover = _Unused(read)
        remover.visit(node)
        if not remover.removed:
            return


class _Unused(ast.NodeTransformer):
    def __init__(self, read: set[str]) -> None:
        self.read, self.removed = read, False

    def visit_Assign(self, node: ast.Assign) -> Any:
        (target, *others) = node.targets
        calls = any(isinstance(x, ast.Call) and not _is_size(x) for x in ast.walk(node.value))
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        unused = all(isinstance(x, ast.Name) and x.id not in self.read for x in names)
        if others or calls or not unused:
            return node
        self.removed = True
        return None

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        if not node.body and not node.orelse:
            return None
        node.body = node.body or [ast.Pass()]
        return node


def _is_size(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "size"


def _rename_locals(node: ast.FunctionDef) -> None:
    """Local variables by numbers, in the order in which they are first assigned; arguments keep their names."""
    arguments = {x.arg for x in ast.walk(node.args) if isinstance(x, ast.arg)}
    numbers: dict[str, str] = {}
    for x in _in_order(node):
        if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store) and x.id not in arguments:
            numbers.setdefault(x.id, f"v{len(numbers)}")
    for x in ast.walk(node):
        if isinstance(x, ast.Name):
            x.id = numbers.get(x.id, x.id)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


def parsed(text: str) -> ast.FunctionDef:
    """The one function whose source is `text`."""
    (node,) = ast.parse(textwrap.dedent(text)).body
    if not isinstance(node, ast.FunctionDef):
        raise OSError("no function")
    return node


@cache
def _text(code: CodeType) -> str:
    return normalised(parsed(inspect.getsource(code)))


def digest(text: str) -> str:
    """Ten hexadecimal digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def unwrapped(function: Any) -> FunctionType:
    """The function below the decorators of transformers and torch that change no number."""
    while hasattr(function, "__wrapped__"):
        home = (
            getattr(function, "__module__", "")
            if not isinstance(function, FunctionType)
            else function.__globals__["__name__"]
        )
        if not home.startswith(("transformers.", "torch.")):
            break
        function = function.__wrapped__
    if not isinstance(function, FunctionType):
        raise OSError(f"{function!r} is no function of Python")
    return function


def source_of(function: Any, owner: type | None = None, called: Any = ()) -> Source:
    """Of a function, or of a method of `owner` with the methods that it calls, and `called`; OSError without source."""
    texts: dict[str, str] = {}
    functions: dict[str, Any] = {}
    attributes: set[str] = set()
    others = {name: inspect.getattr_static(owner, name, None) for name in called if name}
    waiting: list[tuple[str, Any]] = [("", function)]
    waiting += [(name, unit) for name, unit in others.items() if inspect.isfunction(unit) and is_of_models(unit)]
    while waiting:
        name, unit = waiting.pop()
        if name in texts:
            continue
        if isinstance(unit, str):
            texts[name] = unit
            continue
        unit = unwrapped(unit)
        texts[name] = text = _text(unit.__code__)
        if owner and "super()." in text:
            waiting.append((f"super of {unit.__qualname__}", _inherited(owner, unit)))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name) and node.id != unit.__name__:
                value = unit.__globals__.get(node.id)
                if callable(value) and not inspect.isclass(value) and not _is_trusted(value, node.id):
                    functions[node.id] = value
                if inspect.isclass(value) and hasattr(value, "setup_context"):  # a torch.autograd.Function
                    passes = {x: vars(value).get(x) for x in ("forward", "backward")}
                    waiting += [(f"{node.id}.{x}", unit.__func__) for x, unit in passes.items() if unit is not None]
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("self."):
                attribute = ast.unparse(node)[5:]
                attributes.add(attribute)
                method = inspect.getattr_static(owner, attribute, None) if owner and attribute.isidentifier() else None
                if isinstance(method, property):
                    method = method.fget
                elif isinstance(method, staticmethod | classmethod):
                    method = method.__func__
                if callable(method) and is_of_models(method):
                    waiting.append((attribute, method))
    for helper in functions.values():
        attributes |= _read_of_module(helper)
    text = "\n".join(texts[name] for name in sorted(texts))
    return Source(digest(text), text, functions, frozenset(attributes))


def _read_of_module(helper: Any) -> set[str]:
    """The attributes of the module that a function reads; none without a source, which is refused by its name."""
    try:
        nodes = ast.walk(ast.parse(_text(unwrapped(helper).__code__)))
    except (OSError, TypeError, SyntaxError):
        return set()
    texts = [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)]
    return {text.removeprefix("module.") for text in texts if text.startswith("module.")}


def _inherited(owner: type, method: FunctionType) -> Any:
    """The method that `super()` finds in a method of `owner`; of torch its name."""
    homes = [kind for kind in owner.__mro__ if vars(kind).get(method.__name__) is not None]
    following = [kind for kind in homes if unwrapped(vars(kind)[method.__name__]) is not method]
    after = following[0] if following else object
    return f"{after.__module__}.{after.__name__}" if not is_of_models(after) else vars(after)[method.__name__]


def whole_digest(function: Any) -> str:
    """Of a function with all functions of transformers that it calls, and those that they call."""
    texts: dict[str, str] = {}
    waiting = [("", function)]
    while waiting:
        name, unit = waiting.pop()
        if name not in texts:
            source = source_of(unit)
            texts[name] = source.text
            waiting += source.functions.items()
    return digest("\n".join(texts[name] for name in sorted(texts)))


def is_of_models(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("transformers.")


def _is_trusted(value: Any, name: str) -> bool:
    """Whether a function is one of torch or Python, under its own name."""
    home = str(getattr(value, "__module__", "")).partition(".")[0]
    return home in ("torch", "math", "builtins", "itertools", "None") and getattr(value, "__name__", "") == name
