"""Arrays as hostile as NumPy allows, calls of every op on them, and what is true of the results whatever goes in."""

import os
import tempfile
from collections.abc import Callable
from inspect import signature
from typing import Any

import ml_dtypes
import numpy as np
from helpers import OPS, WIDTHS, Array, Case, Shape, drawn, leaves, map_arrays, takes, weightings_of
from hypothesis import settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("HOSTILE_EXAMPLES", 2 * settings().max_examples))
# As many as that, the same in every run; or, if a number is asked for, others each time.
hostile = settings(max_examples=EXAMPLES, derandomize="HOSTILE_EXAMPLES" not in os.environ)

REAL = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.longdouble)
COMPLEX = (np.complex64, np.complex128)
SIZES = st.sampled_from([2, 1, 3, 0, 5, 4])


class Rude(np.ndarray):
    """A subclass with which no arithmetic can be done."""

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("arithmetic on a subclass")

    def __array_function__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a function of NumPy on a subclass")


class Convertible:
    """Not an array, but it says how to make one of it."""

    def __init__(self, x: Array) -> None:
        self.x = x

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.array(self.x, dtype)


def spaced(x: Array) -> Array:
    wide = np.ones([3 * size for size in x.shape], x.dtype)
    view = wide[(..., *(slice(1, None, 3) for _ in x.shape))]
    view[...] = x
    return view


def backwards(x: Array) -> Array:
    flip = (..., *(slice(None, None, -1) for _ in x.shape))
    return np.array(x[flip])[flip]


def read_only(x: Array) -> Array:
    x = np.array(x)
    x.flags.writeable = False
    return x


def unaligned(x: Array) -> Array:
    view = np.ndarray(x.shape, x.dtype, np.zeros(x.nbytes + 1, np.uint8).data, 1)
    view[...] = x
    return view


def swapped(x: Array) -> Array:
    return x if x.dtype.kind == "V" else x.astype(x.dtype.newbyteorder())  # bfloat16 has one order


def mapped(x: Array) -> Array:
    if not x.size or x.dtype.kind == "V":
        return x
    with tempfile.TemporaryFile() as file:
        view = np.memmap(file, x.dtype, "w+", shape=x.shape)
        view[...] = x
        return view


def matrix(x: Array) -> Array:
    return x.view(np.matrix) if x.ndim == 2 else x


DRESSES: tuple[Callable[[Array], Any], ...] = (
    np.copy,
    lambda x: np.array(x, order="F"),
    spaced,
    backwards,
    read_only,
    unaligned,
    swapped,
    mapped,
    matrix,
    lambda x: x.view(Rude),
    Convertible,
    lambda x: tuple(x.tolist()) if x.dtype == np.float64 and x.size and x.ndim else x,  # a list may be one of biases
)


def numbers(rng: np.random.Generator, shape: Shape, dtype: Any, size: float = 1.0) -> Array:
    x = rng.standard_normal(shape) * size
    if np.dtype(dtype).kind == "c":
        x = x + 0.3j * rng.standard_normal(shape) * size
    return np.asarray(x, dtype)


BATCHED = ("query", "key", "value", "scores", "x", "weights", "query_rotary", "latent", "key_rotary")


@st.composite
def cases(draw: Any, ops: tuple[str, ...] = OPS, dtypes: tuple[Any, ...] = REAL) -> Case:
    """A call of an op: its sizes, leading axes that broadcast, dtypes, mask and other options."""
    name = draw(st.sampled_from(ops))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    widths = {width: draw(SIZES) for width in WIDTHS}
    single, m = takes(name, "query", "value") and draw(st.integers(0, 5)) == 0, draw(SIZES)
    n, heads = 1 if single else draw(SIZES), draw(st.integers(1, 3))
    batch = draw(st.sampled_from([(), (1,), (2,), (0,), (2, 3), (1, 2)]))
    made = drawn(name, n=n, m=m, H=heads, w=draw(st.integers(1, 4)), **widths)

    common, mixed = draw(st.sampled_from(dtypes)), draw(st.booleans())

    def array(*shape: int) -> Array:
        kind = draw(st.sampled_from(dtypes)) if mixed and draw(st.booleans()) else common
        if draw(st.integers(0, 5)) == 0:  # one number everywhere, with strides of zero
            return np.broadcast_to(numbers(rng, (), kind), shape)
        return numbers(rng, shape, kind)

    def some_of(axes: Shape) -> Shape:
        """Axes that broadcast to `axes`."""
        kept = axes[draw(st.integers(0, len(axes))) :]
        return tuple(1 if draw(st.booleans()) else size for size in kept)

    def mask_for(shape: Shape) -> dict[str, Any]:
        kind = draw(st.sampled_from(["none", "random", "all", "nothing"]))
        if kind == "none":
            return {}
        p = {"random": 0.5, "all": 1.1, "nothing": -1}[kind]
        return {"mask": np.asarray(rng.random(some_of(shape)) < p)}

    inputs: dict[str, Any] = {}
    leading_of: dict[str, Shape] = {}  # axes that the page does not have
    defaults = {argument: taken.default for argument, taken in signature(made.op.forward).parameters.items()}
    for argument, x in made.inputs.items():
        if defaults[argument] is not None or draw(st.booleans()):
            leading = leading_of[argument] = some_of(batch) if argument in BATCHED else ()
            inputs[argument] = map_arrays(lambda x, leading=leading: array(*leading, *x.shape), x)
    if name == "pooling" and "gate" not in inputs:
        inputs.pop("b", None)  # it is added to gates
    if single:
        inputs["query"], leading_of["query"] = array(inputs["query"].shape[-1]), ()
    leading_of.pop("value", None)
    of_heads = (heads,) if takes(name, "num_heads") else (inputs["query"].shape[-3],) if name == "latent" else ()
    scores = (*np.broadcast_shapes(*leading_of.values()), *of_heads, n, m)
    scores = scores[:-1] if name == "linear_attention" else scores  # whose mask is of tokens
    if "bias" in inputs:
        inputs["bias"] = array(*some_of(scores))
    if "parameters" in inputs:
        optional = inputs["parameters"]._field_defaults
        inputs["parameters"] = inputs["parameters"]._replace(**{b: None for b in optional if draw(st.booleans())})

    options = {option: x for option, x in made.options.items() if option != "block_size" or draw(st.booleans())}
    often, seldom = st.booleans(), st.integers(0, 3).map(lambda k: k == 0)
    for option, is_given, more in (
        ("workers", st.just(True), {"workers": 1}),
        ("axis", st.just(True), {"axis": draw(st.integers(-len(scores), len(scores) - 1))}),
        ("is_causal", often, {"is_causal": True}),
        ("dropout_p", seldom, {"dropout_p": 0.5, "rng": 7}),
        ("scale", seldom, {"scale": draw(st.sampled_from([0.0, -1.0, 0.3, 3]))}),
        ("mask", st.just(True), mask_for(scores)),
        ("weights_by", often, {"weights_by": draw(st.sampled_from(weightings_of(name) or [None]))}),
    ):
        if option in defaults and draw(is_given):
            options |= more
    return Case(made.op, inputs, options)


def dressed(case: Case, data: Any) -> Case:
    """`case` with each of its arrays in a dress of its own, and its mask."""

    def put_on(x: Array) -> Any:
        return data.draw(st.sampled_from(DRESSES))(x)

    options = {name: put_on(value) if name == "mask" else value for name, value in case.options.items()}
    return case.map(put_on)._replace(options=options)


class Everything:
    """What an op gives for a case: output, gradients, forward mode, for numbers that are drawn with `seed`."""

    def __init__(self, case: Case, like: Case | None = None, seed: int = 0, dress: Callable[[Array], Any] = np.copy):
        like = like or case
        rng = np.random.default_rng(seed)
        self.output, self.cache = case.forward()
        d_output = numbers(rng, self.output.shape, self.output.dtype)
        self.tangents = map_arrays(lambda x: numbers(rng, x.shape, x.dtype), like.inputs)
        self.d_output = dress(d_output)
        self.gradients = dict(leaves(case.op.backward(self.d_output, self.cache)))
        self.jvp = case.op.jvp(self.cache, **map_arrays(dress, self.tangents))

    @property
    def results(self) -> dict[str, Array]:
        return {"output": self.output, "jvp": self.jvp, **{f"d_{name}": x for name, x in self.gradients.items()}}
