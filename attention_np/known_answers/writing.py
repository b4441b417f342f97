"""A set of known answers is written: whole, or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.known_answers import bounds, files, manifest
from attention_np.known_answers.examples import OF_KERNELS, OPS, SETS, Example, all_examples
from attention_np.known_answers.formats import FORMATS, OF_CASES, dtype_of, to_format
from attention_np.known_answers.reading import chosen, listed

Job = tuple[Example, str]


def write(
    directory: str | os.PathLike[str],
    *,
    ops: Iterable[str] | None = None,
    dtypes: Iterable[str] | None = None,
    cases: str = "standard",
    progress: Callable[[Sequence[Job]], Iterable[Job]] = iter,
) -> int:
    """Write the known answers into a directory.

    Parameters
    ----------
    directory : path
        Made if it is not there. An empty one, or one that holds an earlier set and nothing else, is replaced.
    ops : iterable of str, optional
        Those of `attention_np.OPS` that have answers, by default all. "blockwise" stands for dot_product, whose answers
        are its own.
    dtypes : iterable of str, optional
        Of "float64", "float32", "float16", "bfloat16", "float8_e4m3fn" (which only cases of kernels have), by default
        all that the cases have.
    cases : str, optional
        "standard", small cases of everything; "kernel", in shapes that kernels are written for, which takes some
        minutes; "first", forty of those.
    progress : callable, optional
        Takes the sequence of what is to be done and gives the same back, as ``rich.progress.track`` does.

    Returns
    -------
    int
        The number of files, besides the manifest.

    Raises
    ------
    ImportError
        If mpmath, safetensors, or ml_dtypes for bfloat16 and eight bits, is missing.
    FileExistsError
        If the directory holds something else.
    FileNotFoundError
        If the folder that it is to be made in is not there.
    ValueError
        If there is no such op, dtype or set of cases, or no case of these.

    Notes
    -----
    It takes about half a minute. The files are made beside the directory, and put in its place when all are there.

    Examples
    --------
    >>> import tempfile
    >>> from attention_np import known_answers
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     known_answers.write(folder, ops=["softmax"], dtypes=["float32"])
    17
    """
    wanted = ops_of(ops)
    (chosen_set,) = chosen("set of cases", [cases], tuple(SETS))
    formats = chosen("dtype", dtypes, OF_CASES)
    _require(formats)
    target = Path(directory).resolve()
    _check_target(target)
    made = all_examples if chosen_set == "standard" else SETS[chosen_set]
    examples = [example for example in made() if example.op in wanted]
    # All dtypes of a case follow one another: where they have the same inputs, they have the same answers.
    jobs = [(example, dtype) for example in examples for dtype in formats if dtype in example.dtypes]
    if not jobs:
        raise ValueError(f"there is no case of {', '.join(wanted)} in {', '.join(formats)}")
    with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        fresh, former = Path(scratch, "new"), Path(scratch, "former")
        fresh.mkdir()
        entries = [_write_case(fresh, example, dtype) for example, dtype in progress(jobs)]
        entries.sort(key=lambda entry: formats.index(entry.dtype))
        text = json.dumps(manifest.as_json(entries), indent=1, allow_nan=False)
        text = re.sub(r"\[[\d,\s]+\]", lambda shape: "".join(shape[0].split()).replace(",", ", "), text)
        (fresh / manifest.MANIFEST).write_text(text + "\n", encoding="utf-8")
        _check_target(target)
        try:
            if target.exists():
                fresh.chmod(target.stat().st_mode & 0o7777)
                target.rename(former)
            fresh.rename(target)
        except BaseException:
            if former.exists() and not target.exists():
                former.rename(target)
            raise
    return len(entries)


def ops_of(ops: Iterable[str] | None) -> list[str]:
    """The ops that have answers of their own, of those given; by default all."""
    names = None if ops is None else ["dot_product" if op == "blockwise" else op for op in listed("ops", ops)]
    return chosen("op", names, (*OPS, *OF_KERNELS))


def _require(formats: Sequence[str]) -> None:
    files.require()
    for name in formats:
        dtype_of(name)
    try:
        import mpmath  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: F401
    except ImportError as error:
        raise ImportError("known answers are computed by mpmath: pip install 'attention-np[answers]'") from error


def _check_target(target: Path) -> None:
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: there is no folder {target.parent}")
    if not target.exists():
        return
    if not target.is_dir():
        raise FileExistsError(f"cannot write {target}: it is a file")
    if any(target.iterdir()) and not manifest.is_ours(target):
        raise FileExistsError(f"cannot write {target}: it holds something else than an earlier set of known answers")


def _write_case(folder: Path, example: Example, dtype: str) -> manifest.Entry:
    from attention_np.known_answers.settling import settled_answers

    inputs = {name: _rounded(x, example.format_of(name, dtype)) for name, x in example.inputs.items()}
    errors = bounds.bounds(example.op, FORMATS[dtype], inputs, example.options)
    exact = settled_answers(example.op, inputs, example.options, errors)
    formats = {name: example.format_of(name, dtype) for name in exact}
    answers = {name: to_format(x, formats[name]) for name, x in exact.items()}
    limits = {name: bounds.with_rounding(errors[name], x, FORMATS[formats[name]]) for name, x in answers.items()}
    arrays = {**inputs, **answers, **{f"bound.{name}": x for name, x in limits.items()}}
    name = f"{dtype}/{example.op}/{example.name}"
    # In the file, too, for programs that read no manifest.
    options = json.dumps(example.options, sort_keys=True, separators=(",", ":"))
    content = files.to_bytes(arrays, f"{name}: {example.description} options={options}")
    file = f"{name}.safetensors"
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    tensors = {
        array: manifest.Tensor(role, files.code_of(x), x.shape)
        for role, group in (
            ("input", inputs),
            ("answer", answers),
            ("bound", {f"bound.{a}": limits[a] for a in answers}),
        )
        for array, x in group.items()
    }
    return manifest.Entry(
        name,
        example.op,
        dtype,
        example.description,
        example.tags,
        example.options,
        file,
        len(content),
        hashlib.sha256(content).hexdigest(),
        {array: _relative(limits[array], answers[array]) for array in answers},
        tensors,
    )


def _rounded(x: Array, dtype: str) -> Array:
    if x.dtype == np.bool_:
        return x
    rounded: Array = x.astype(dtype_of(dtype))
    return rounded


def _relative(limit: Array, answer: Array) -> float:
    """The largest bound over the largest magnitude, or by itself if the answer is zero."""
    sizes = np.abs(answer.astype(np.float64))
    scale = np.where(np.isfinite(sizes), sizes, 0).max(initial=0)
    return float(limit.max(initial=0) / (scale if scale > 0 else 1))
