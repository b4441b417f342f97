"""Known answers are read: every file is what the manifest says, or it is refused."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np._lib.json import content_of
from attention_np.known_answers import files, manifest
from attention_np.known_answers.capabilities import capable
from attention_np.known_answers.formats import OF_CASES, dtype_of


@dataclass(frozen=True, eq=False)
class KnownAnswer:
    """A case in one dtype.

    Attributes
    ----------
    name : str
        Such as "float32/dot_product/causal".
    op, dtype, description : str
    tags : tuple of str
        What is special about it; the manifest says what each means.
    options : mapping of str to object
        Those that are not the default, of `axis`, `scale`, `is_causal` and `num_heads`.
    inputs : mapping of str to ndarray
        What the op takes, the parameters of multi_head by their own names; `d_output`; and in some cases a tangent of
        each input that has a gradient, as `v_query`.
    answers : mapping of str to ndarray
        `output`, `logsumexp`, and for each input that has one its gradient, as `d_query`. With tangents also the
        gradients of the sum of ``v_query * d_query`` and all such products: `d_d_output`, and `hvp_query` and so on.
    bounds : mapping of str to ndarray of float64
        For each answer, how far each entry of a correct implementation may be from it.
    flags : mapping of str to Flag
        Of each tag the `reason`, and the `threads` in which kernels were wrong in just this.
    """

    name: str
    op: str
    dtype: str
    description: str
    tags: tuple[str, ...]
    options: Mapping[str, Any]
    inputs: Mapping[str, Array]
    answers: Mapping[str, Array]
    bounds: Mapping[str, Array]
    flags: Mapping[str, manifest.Flag] = field(default_factory=dict)


def load(
    directory: str | os.PathLike[str],
    *,
    op: str | None = None,
    dtypes: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    capabilities: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> Iterator[KnownAnswer]:
    """The known answers in a directory, one after another.

    Parameters
    ----------
    directory : path
        What :func:`write` has written.
    op : str, optional
        Those of one op; "blockwise" is "dot_product".
    dtypes : iterable of str, optional
        By default those that there are.
    skip : iterable of str, optional
        Tags, or names of cases as "causal", to leave out.
    capabilities : path or mapping, optional
        What a kernel can do, a file of JSON or what such a file holds: other cases are left out. The arrays are as they
        are stored, whatever its layout is.

    Raises
    ------
    FileNotFoundError
        If the directory, or a file of the set, is missing.
    ImportError
        If safetensors, or ml_dtypes for bfloat16 and eight bits, is missing.
    ValueError
        If there is no such case; if a file cannot be read, or is not what the manifest says; if a case lacks what its
        op takes, or has more. Nothing in a file is executed.

    Examples
    --------
    >>> import tempfile
    >>> from attention_np import known_answers
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = known_answers.write(folder, ops=["softmax"], dtypes=["float32"])
    ...     case = next(known_answers.load(folder))
    >>> case.name, sorted(case.inputs), sorted(case.answers), case.inputs["scores"].dtype.name
    ('float32/softmax/rows', ['d_output', 'scores'], ['d_scores', 'logsumexp', 'output'], 'float32')
    """
    files.require()
    folder = Path(directory)
    able = capable(capabilities)
    wanted, left_out = chosen("dtype", dtypes, OF_CASES), {*listed("skip", skip), *able.skip}
    op = "dot_product" if op == "blockwise" else op
    entries, flags = manifest.read(folder)
    entries = [
        entry
        for entry in entries
        if op in (None, entry.op) and entry.dtype in wanted and not left_out & _labels(entry) and able.admits(entry)
    ]
    if not entries:
        of_op = f" of {op}" if op else ""
        in_dtypes = "" if dtypes is None else f" in {', '.join(wanted)}"
        can_run = "" if capabilities is None else " that the kernel can run"
        raise ValueError(f"{folder} holds no known answers{of_op}{in_dtypes}{can_run}")
    for code in sorted({x.dtype for entry in entries for x in entry.tensors.values()} & files.NAMES.keys()):
        dtype_of(files.NAMES[code])
    return (_load(folder, entry, flags) for entry in entries)


def listed(name: str, values: Iterable[str]) -> list[str]:
    """`values`, which must not be one string, as a list."""
    if isinstance(values, str):
        raise TypeError(f"{name} must be a list of names, not the string {values!r}")
    return list(values)


def chosen(what: str, names: Iterable[str] | None, known: Sequence[str]) -> list[str]:
    """Those of the names that are `known`, in that order; by default all."""
    if names is None:
        return list(known)
    wanted = listed(f"{what}s", names)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"there is no {what} called {', '.join(map(str, unknown))}: there are {', '.join(known)}")
    return [name for name in known if name in wanted]


def _labels(entry: manifest.Entry) -> set[str]:
    return {*entry.tags, entry.name, entry.name.rpartition("/")[2]}


def _load(folder: Path, entry: manifest.Entry, flags: Mapping[str, manifest.Flag]) -> KnownAnswer:
    with files.refusing(f"{folder / entry.file} is not the file that the manifest describes"):
        try:
            content = content_of(manifest.resolve(folder, entry), entry.bytes)
        except FileNotFoundError:
            raise FileNotFoundError(f"{folder} lacks a file that its manifest names: {entry.file}") from None
        arrays = _checked(content, entry)
    groups: dict[str, dict[str, Array]] = {"input": {}, "answer": {}, "bound": {}}
    for name, tensor in entry.tensors.items():
        groups[tensor.role][name.removeprefix("bound.") if tensor.role == "bound" else name] = arrays[name]
    about = entry.name, entry.op, entry.dtype, entry.description, entry.tags, entry.options
    of_case = {tag: flags[tag] for tag in entry.tags if tag in flags}
    return KnownAnswer(*about, groups["input"], groups["answer"], groups["bound"], of_case)


def _checked(content: bytes, entry: manifest.Entry) -> dict[str, Array]:
    """The arrays of a file, which are those of the manifest."""
    if len(content) != entry.bytes:
        raise ValueError(f"it has {len(content)} bytes, not {entry.bytes}")
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise ValueError("its SHA-256 is another")
    arrays = files.from_bytes(content)
    if arrays.keys() != entry.tensors.keys():
        odd = sorted(arrays.keys() ^ entry.tensors.keys())
        raise ValueError(f"{', '.join(odd)} is in one of the two only")
    for name, tensor in entry.tensors.items():
        x = arrays[name]
        if x.shape != tensor.shape or files.code_of(x) != tensor.dtype:
            raise ValueError(f"{name} is of {files.code_of(x)} {x.shape}, not of {tensor.dtype} {tensor.shape}")
        if tensor.role == "bound" and not (np.isfinite(x) & (x >= 0)).all():
            raise ValueError(f"{name} holds what is no bound")
    return arrays
