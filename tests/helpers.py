"""What several test files need: cases of every op, all that an op gives for one, and how results are compared."""

from __future__ import annotations

import functools
import os
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import signature
from types import ModuleType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings

from attention_np import OPS, blockwise, cases, masks
from attention_np.known_answers import truth
from attention_np.multi_head import Parameters
from attention_np.weightings import Weighting

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Patch, Printed = pytest.MonkeyPatch, pytest.CaptureFixture[str]
COMPLEX_STEP, CENTRAL = 1e-13, 1e-7


ALL = settings().max_examples > 8  # as many are in the profile of conftest.py that leaves out what is long


def each(names: str | tuple[str, ...], values: Iterable[Any], long: Iterable[Any] = ()) -> Callable[[Any], Any]:
    """As ``pytest.mark.parametrize``, but in one test, since of thousands pytest's own work would be most.

    Its failure says of which value. Those of `long` are left out where long tests are. All share the fixtures of the
    one test, and must leave nothing behind in them. A value that is skipped skips no other: that is told at the end.
    """
    names, values = ((names,) if isinstance(names, str) else names), [*values, *(long if ALL else ())]

    def decorate(test: Any) -> Any:
        @functools.wraps(test)
        def in_turn(**others: Any) -> None:
            skipped = []
            for value in values:
                chosen = dict(zip(names, (value,) if len(names) == 1 else value, strict=True))
                try:
                    test(**chosen, **others)
                except (Exception, pytest.skip.Exception, pytest.fail.Exception) as error:
                    told = f"of {', '.join(f'{name}={x!r}' for name, x in chosen.items())}: {error}"
                    if not isinstance(error, pytest.skip.Exception):
                        raise AssertionError(told) from error
                    skipped.append(told)
            if skipped:
                pytest.skip("; ".join(skipped))

        taken = signature(test)
        others = [x for name, x in taken.parameters.items() if name not in names]
        in_turn.__signature__ = taken.replace(parameters=others)  # type: ignore[attr-defined]
        return pytest.mark.again(in_turn) if long else in_turn

    return decorate


def some_of(values: Iterable[Any], step: int) -> tuple[list[Any], list[Any]]:
    """One in `step` of them, and the others, which are long: what `each` takes."""
    values = list(values)
    return values[::step], [x for k, x in enumerate(values) if k % step]


class Case(NamedTuple):
    """An op with the arrays that it is differentiated by and its other options."""

    op: ModuleType
    inputs: dict[str, Any]
    options: dict[str, Any]

    def forward(self, **changed: Any) -> tuple[Array, Any]:
        return self.op.forward(**{**self.inputs, **self.options, **changed})

    def map(self, function: Callable[[Array], Array]) -> Case:
        """The same case, with `function` applied to each of its arrays."""
        return self._replace(inputs=map_arrays(function, self.inputs))


def map_arrays(function: Callable[[Array], Array], value: Any) -> Any:
    """`value`, a nest of mappings and tuples, with `function` applied to each array in it."""
    if isinstance(value, Mapping):
        return {name: map_arrays(function, inner) for name, inner in value.items()}
    if hasattr(value, "_asdict"):
        return type(value)(*(map_arrays(function, inner) for inner in value))
    return value if value is None else function(value)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Array]]:
    """The arrays in a nest of mappings, named tuples and plain tuples, with dotted names."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, np.ndarray | np.generic):
        yield name, np.asarray(value)


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def random_parameters(
    seed: int, d_query: int = 4, d_key: int = 4, d_value: int = 4, d_qk: int = 4, d_v: int = 4, d_output: int = 4
) -> Parameters:
    """Parameters of any widths, with biases that are not zero."""
    rng = np.random.default_rng(seed)
    shapes = ((d_query, d_qk), (d_key, d_qk), (d_value, d_v), (d_v, d_output))
    weights = [rng.standard_normal(shape) / np.sqrt(max(shape[0], 1)) for shape in shapes]
    return Parameters(*weights, *(rng.standard_normal(shape[1]) for shape in shapes))


SOME_HIDDEN = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 0, 0]], bool)  # (4, 5)

# What an attention may be given: the shapes of query, key and value but for their features.
SHAPES: dict[str, tuple[Shape, ...]] = {
    "four queries, five keys": ((4,), (5,), (5,)),
    "one query": ((1,), (5,), (5,)),
    "one key": ((4,), (1,), (1,)),
    "one of each": ((1,), (1,), (1,)),
    "a query without an axis": ((), (5,), (5,)),
    "a query without an axis, keys in a batch": ((), (2, 5), (2, 5)),
    "a batch": ((2, 4), (2, 5), (2, 5)),
    "queries broadcast": ((4,), (2, 5), (2, 5)),
    "keys broadcast": ((2, 4), (5,), (2, 5)),
    "values broadcast": ((2, 4), (2, 5), (5,)),
    "values with axes of their own": ((4,), (5,), (2, 5)),
    "values with axes of their own before a batch": ((2, 4), (5,), (3, 1, 5)),
    "each has its own leading axis": ((3, 1, 1, 2), (2, 1, 3), (2, 3)),
}
BIAS_SHAPES: list[Shape] = [(), (1,), (5,), (1, 5), (4, 1), (4, 5), (1, 1, 1), (2, 1, 1), (2, 1, 5), (2, 4, 5)]
MASKS: dict[str, dict[str, Any]] = {
    "mask of pairs": {"mask": SOME_HIDDEN},
    "mask of keys": {"mask": SOME_HIDDEN[0]},
    "mask of queries": {"mask": np.array([[True], [False], [True], [True]])},
    "mask of all": {"mask": np.array(False)},
    "mask of nothing": {"mask": np.array(True)},
    "mask of a batch": {"mask": masks.padding([5, 2], 5)},
    "a padding of everything": {"mask": masks.padding([3, 0], 5)},
}
OPTIONS: dict[str, dict[str, Any]] = MASKS | {
    "causal": {"is_causal": True},
    "causal with a mask": {"is_causal": True, "mask": SOME_HIDDEN},
    "scale": {"scale": 0.3},
    "negative scale": {"scale": -2.0},
    "no scale": {"scale": 0.0},
    "dropout": {"dropout_p": 0.4, "rng": 3},
    "hardly any dropout": {"dropout_p": 1e-9, "rng": 3},
    "much dropout": {"dropout_p": 0.9, "rng": 3},
    "everything": {"mask": SOME_HIDDEN, "is_causal": True, "scale": 0.7, "dropout_p": 0.3, "rng": 5},
}


# All widths of the arrays, by the names that the pages give them; multi-head attention has two heads of its own.
WIDTHS = dict.fromkeys(("d_q", "d_k", "d_v", "d_x", "d_y", "d_z", "d_o"), 4) | {"h": 3}


def takes(op: str, *arguments: str) -> bool:
    return {*arguments} <= signature(cases.OPS[op].forward).parameters.keys()


ATTENTIONS = tuple(  # of n queries over m keys and their values
    op for op in OPS if takes(op, "query", "key", "value") and op != "linear_attention"
)


def as_taken(op: str, mask: Array) -> Array:
    """A mask of pairs, (n, m), as an op takes it: of the tokens alone, where queries do not choose among keys."""
    return mask.any(axis=-1) if op == "linear_attention" else mask


FIRST = {op: next(iter(signature(cases.OPS[op].forward).parameters)) for op in OPS} | {
    "deformable": "locations"
}  # whose rows are those of the output
BY_ROW = tuple(
    op for op in OPS if op not in ("short_conv", "pooling", "deformable")
)  # of which a row has a part in that row of the output alone


def of_rows(op: str, rows: Any) -> tuple[Any, ...]:
    """Where `rows` are in the output of an op, of which some have a number for each."""
    return (..., rows) if op == "cross_entropy" else (..., rows, slice(None))


BIASED = tuple(op for op in ATTENTIONS if takes(op, "bias"))


def weightings_of(op: str) -> list[Weighting]:
    """The kinds of `weights_by` that an op takes."""
    return [kind for kind in cases.WEIGHTINGS if takes(op, "weights_by") and (op != "blockwise" or kind.is_of_each)]


def drawn(op: str, **how: Any) -> Case:
    """A case of an op with every array that it takes."""
    made = cases.drawn(op, **{**WIDTHS, **how})
    return Case(made.module, made.inputs, made.options)


def attentions(shapes: tuple[Shape, ...], seed: int = 0, **sizes: int) -> dict[str, Case]:
    """One case of each attention, for arrays of these shapes but for their features, without a bias."""
    found = {}
    for op in ATTENTIONS:
        case, rng = drawn(op, seed=seed, **sizes), np.random.default_rng(seed)
        inputs = {name: x for name, x in case.inputs.items() if name != "bias"}
        for name, shape in zip(("query", "key", "value"), shapes, strict=True):
            inputs[name] = rng.standard_normal((*shape, inputs[name].shape[-1]))
        found[op] = case._replace(inputs=inputs)
    return found


def plain_case(op: str, n: int = 4, m: int = 5, batch: Shape = (), seed: int = 0) -> Case:
    return drawn(op, leading=batch, seed=seed, n=n, m=m, w=max(m // 2, 1))


def plain_cases(n: int = 4, m: int = 5, batch: Shape = (), seed: int = 0) -> dict[str, Case]:
    """One case of each op."""
    return {op: plain_case(op, n, m, batch, seed) for op in OPS}


def tangents_of(case: Case, seed: int = 1) -> dict[str, Any]:
    """A random tangent of each array of a case."""
    rng = np.random.default_rng(seed)
    return map_arrays(lambda x: rng.standard_normal(x.shape).astype(x.dtype), case.inputs)


class Results(NamedTuple):
    """All that an op gives."""

    output: Array
    gradients: dict[str, Array]
    jvp: Array
    cache: Any
    case: Case

    def items(self) -> Iterator[tuple[str, Array]]:
        yield from {"output": self.output, "jvp": self.jvp, **self.gradients}.items()

    @property
    def weights(self) -> Array:
        """The weights; where an op never has all of them at once, what it gives for values that are all different."""
        if hasattr(self.cache, "weights") and "weights" not in self.case.inputs:
            return np.asarray(self.cache.weights)
        if "value" not in self.case.inputs:
            return self.output
        value = np.eye(self.case.inputs["key"].shape[-2], dtype=self.output.dtype)
        return self.case.forward(value=value)[0]


def run(case: Case, d_output: Array | None = None, tangents: dict[str, Any] | None = None) -> Results:
    """All that an op gives, for a random cotangent and random tangents unless they are given."""
    output, cache = case.forward()
    if d_output is None:
        d_output = np.random.default_rng(2).standard_normal(output.shape).astype(output.dtype)
    gradients = case.op.backward(d_output, cache)
    moved = case.op.jvp(cache, **(tangents_of(case) if tangents is None else tangents))
    return Results(output, dict(leaves(gradients)), moved, cache, case)


def relative_error(actual: Array, expected: Array) -> float:
    """The largest difference over the largest magnitude; where `expected` is NaN or infinite, `actual` must be too."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(actual), finite)
    np.testing.assert_array_equal(actual[~finite], expected[~finite])
    scale = np.abs(expected[finite]).max(initial=0)
    difference = np.abs(actual[finite] - expected[finite]).max(initial=0)
    return float(difference / scale if scale else difference)


def assert_close(actual: Array, expected: Array, rtol: float) -> None:
    """Assert normwise agreement, NaN where NaN is expected included."""
    error = relative_error(actual, expected)
    assert error <= rtol, f"the relative error is {error:.1e}, not {rtol:.0e}"


def assert_gradients_close(actual: Mapping[str, Array], expected: Mapping[str, Array], rtol: float) -> None:
    """Assert that the gradients agree; one that is zero but for rounding is held to an absolute `rtol`."""
    assert set(actual) == set(expected)
    for name, gradient in expected.items():
        if np.abs(gradient).max(initial=0) > 1e-14 or np.isnan(gradient).any():
            assert_close(actual[name], gradient, rtol)
        else:
            assert actual[name].shape == gradient.shape
            assert np.abs(actual[name]).max(initial=0) <= rtol


def assert_same_bits(actual: Array, expected: Array) -> None:
    """Assert equality to the last bit, where zero has no sign."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(actual, expected, strict=True)


def reference(case: Case, d_output: Array) -> tuple[Array, dict[str, Array]]:
    """The output and the gradients of an attention in 50 digits, which share no code with the ops."""
    name = "dot_product" if case.op is blockwise else case.op.__name__.rpartition(".")[2]
    if name not in truth.OPS:
        pytest.skip(f"known answers have no truth of {name}")
    inputs = {path.rpartition(".")[2]: x for path, x in leaves(case.inputs)} | {"d_output": d_output}
    single = inputs["query"].ndim == 1
    if single:
        inputs |= {"query": inputs["query"][None], "d_output": d_output[..., None, :]}
    options = {option: x for option, x in case.options.items() if option not in ("mask", "block_size")}
    if "weights_by" in options:
        options["weights_by"] = {"kind": options["weights_by"].name, **vars(options["weights_by"])}
    if "bias" in inputs:
        inputs["bias"] = np.atleast_1d(inputs["bias"])
    if case.options.get("mask") is not None:
        inputs["mask"] = np.asarray(case.options["mask"])
    with np.errstate(invalid="ignore"):  # NumPy 1 warns of a NaN that is cast
        found = {answer: x.astype(float) for answer, x in truth.answers(name, inputs, options).items()}
    gradients = {path: found[f"d_{path.rpartition('.')[2]}"].reshape(x.shape) for path, x in leaves(case.inputs)}
    return found["output"][..., 0, :] if single else found["output"], gradients


def assert_same(case: Case, actual: Array, expected: Array) -> None:
    """To the last bit; in blockwise attention to rounding, since it takes another way where numbers are not finite."""
    if case.op is blockwise:
        assert_alike(actual, expected, 50 * float(ml_dtypes.finfo(expected.dtype).eps))
    else:
        assert_same_bits(actual, expected)


def assert_alike(actual: Array, expected: Array, tolerance: float, name: str = "") -> None:
    """Agreement relative to the largest entry, or to one where the entries are what is left of terms that cancel."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), name
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(actual), finite, err_msg=name)
    if actual.dtype.kind != "c":
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected), err_msg=name)
    scale = max(np.abs(expected[finite]).max(initial=0), 1)
    error = np.abs(actual[finite] - expected[finite]).max(initial=0)
    assert error <= tolerance * scale, f"{name} differs by {error / scale:.1e}"


def peak_of(call: Callable[[], Any]) -> int:
    """The most memory that a call takes, in bytes."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def in_child(look: Callable[[], int]) -> int:
    """What `look` gives in a process that is forked here."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, bytes([look()]))
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        return pipe.read()[0]


def forks(test: Any) -> Any:
    warned = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")(test)
    warned = pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")(warned)  # of JAX, if another test imported it
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")(warned)
