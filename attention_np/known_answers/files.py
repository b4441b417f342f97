"""Arrays in files of the safetensors format: a length, a header of JSON, and the bytes of the arrays.

https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from attention_np._lib.arrays import Array
from attention_np._lib.text import legible
from attention_np.known_answers.formats import FORMATS, dtype_of

BOOLEAN = "BOOL"
LARGEST_HEADER = 2**18  # bytes; to read those of a header takes up to thirty times their number
NAMES = {form.code: name for name, form in FORMATS.items()}


def require() -> None:
    """Raise ImportError if the package that reads and writes the files is missing."""
    try:
        import safetensors.numpy  # noqa: F401
    except ImportError as error:
        raise ImportError("known answers need safetensors: pip install 'attention-np[answers]'") from error


@contextmanager
def refusing(verdict: str) -> Iterator[None]:
    """Whatever goes wrong in reading a file is a ValueError that begins with the verdict; a missing file is missing."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, OverflowError, RuntimeError, ValueError) as error:  # RuntimeError is what pathlib says of loops
        why = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{verdict}: {legible(why, several_lines=False)}") from None


def code_of(array: Array) -> str:
    """How the format calls the dtype of an array."""
    return BOOLEAN if array.dtype == np.bool_ else FORMATS[array.dtype.name].code


def to_bytes(arrays: Mapping[str, Array], about: str) -> bytes:
    """The content of a file that holds `arrays`, and a line of text: always the same bytes for the same arrays."""
    from safetensors.numpy import save

    return save({name: np.ascontiguousarray(x).reshape(x.shape) for name, x in arrays.items()}, {"about": about})


def from_bytes(content: bytes) -> dict[str, Array]:
    """The arrays that a file holds; each a copy, in the byte order of this machine.

    Raises
    ------
    ValueError
        If the content is not that of a file of this format, or has arrays of another dtype. Nothing in it is executed.
    """
    from safetensors import SafetensorError, deserialize

    if int.from_bytes(content[:8], "little") > LARGEST_HEADER:
        raise ValueError("it is no safetensors file of a case: its header is too large")
    try:
        tensors = deserialize(content)  # type: ignore[no-untyped-call,unused-ignore]
    except SafetensorError as error:
        raise ValueError(f"it is no safetensors file: {error}") from None
    return {name: _array(name, tensor["dtype"], tuple(tensor["shape"]), tensor["data"]) for name, tensor in tensors}


def _array(name: str, code: str, shape: tuple[int, ...], data: bytes) -> Array:
    if code != BOOLEAN and code not in NAMES:
        raise ValueError(f"{name} is of the type {code}, which no answer has")
    dtype = np.dtype(np.bool_) if code == BOOLEAN else dtype_of(NAMES[code])
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"{name} has {len(data)} bytes, which are not those of the shape {shape}")
    raw = np.frombuffer(data, np.dtype(f"u{dtype.itemsize}").newbyteorder("<"))
    if code == BOOLEAN and (raw > 1).any():
        raise ValueError(f"{name} is boolean and holds numbers other than 0 and 1")
    native = raw.astype(raw.dtype.newbyteorder(sys.byteorder))
    array: Array = native.view(dtype).reshape(shape)
    return array
