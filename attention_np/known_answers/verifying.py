"""A function is run over known answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from attention_np._lib.arrays import Array
from attention_np._lib.json import content_of
from attention_np.known_answers import files
from attention_np.known_answers.capabilities import capable
from attention_np.known_answers.comparing import compare, failed
from attention_np.known_answers.formats import FORMATS
from attention_np.known_answers.reading import KnownAnswer, load
from attention_np.known_answers.report import Comparison, Conformance

Function = Callable[[dict[str, Array], dict[str, Any]], Mapping[str, Any]]
Source: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | None"  # of capabilities


def verify(
    function: Function,
    directory: str | os.PathLike[str],
    *,
    op: str = "dot_product",
    dtypes: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    fused: bool = False,
    capabilities: Source = None,
) -> Conformance:
    """Hold a function against the known answers of an op.

    Parameters
    ----------
    function : callable
        ``function(inputs, options)``. `inputs` is a dictionary of arrays: those that the op takes, such as `query`,
        `key`, `value`, `mask` and `bias` (the parameters of multi_head by their own names, `w_query` and so on), and
        `d_output`, the gradient of the output; of linear_attention also `d_final_state`, and where a case has the tag
        "tangents" `v_query` and so on. `options` are those that are not the default, by the op's own names. It returns
        a dictionary: `output`, and what it has of `logsumexp`, or `final_state`, of the gradients, `d_query` and so on,
        and of the products of second order, `d_d_output` and `hvp_query` and so on; one that is None or left out is
        not compared. A NotImplementedError skips the case.
    directory : path
        What :func:`write` has written.
    op : str, optional
        "softmax", "dot_product" (or "blockwise", which is the same), "additive", "multi_head" or "linear_attention".
    dtypes : iterable of str, optional
        By default all that there are.
    skip : iterable of str, optional
        Tags, or names of cases, to leave out: such as "empty row", if yours has another convention for it.
    fused : bool, optional
        Query, key and value are views of one array, side by side as a fused projection gives them, wherever their
        shapes let it: their rows do not follow one another in memory.
    capabilities : path or mapping, optional
        What the function can do, a file of JSON or what such a file holds: it is called with those cases alone, in the
        layout that is said there.

    Returns
    -------
    Conformance
        ``report.ok`` says whether all that was returned is within the bounds, ``print(report)`` what is not, and
        ``report.verdict`` in one sentence why, where one cause explains all that fails. The function is asked for its
        conventions first (:func:`attention_np.conventions.identify`).

    Raises
    ------
    TypeError, ValueError
        If what the function returns is no dictionary of arrays with the names of answers, or if nothing was compared.
        Where the function itself raises anything but a NotImplementedError, the case has failed, and the others go on.
    FileNotFoundError, ImportError, ValueError
        As :func:`load`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from attention_np import known_answers
    >>> def mean_of_others(inputs, options):  # softmax without a mask, whose gradient is wrong
    ...     if "mask" in inputs or options:
    ...         raise NotImplementedError
    ...     e = np.exp(inputs["scores"] - inputs["scores"].max(axis=-1, keepdims=True))
    ...     weights = e / e.sum(axis=-1, keepdims=True)
    ...     return {"output": weights, "d_scores": weights * inputs["d_output"]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = known_answers.write(folder, ops=["softmax"], dtypes=["float64"])
    ...     report = known_answers.verify(mean_of_others, folder, op="softmax", skip=["infinite scores"])
    >>> report.ok, report["rows", "output"].ok, report["rows", "d_scores"].ok
    (False, True, False)
    """
    able = capable(capabilities)

    def in_our_layout(inputs: dict[str, Array], options: dict[str, Any]) -> Any:
        found = function(able.laid_out(inputs), options)
        return able.laid_out(found) if isinstance(found, Mapping) else found

    def returned(case: KnownAnswer) -> Any:
        return in_our_layout(_side_by_side(case.inputs) if fused else dict(case.inputs), dict(case.options))

    cases = load(directory, op=op, dtypes=dtypes, skip=skip, capabilities=capabilities)
    report, _ = _held_against(cases, returned, in_our_layout)
    return report


def verify_files(
    directory: str | os.PathLike[str],
    answers: str | os.PathLike[str],
    *,
    dtypes: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    capabilities: Source = None,
) -> Conformance:
    """Hold results in files against known answers, as ``attention-np verify DIR --answers OTHER`` does.

    Parameters
    ----------
    directory : path
        A file for each case, by the same name as in the set, such as ``float32/dot_product/causal.safetensors``, with
        arrays by the names of the answers. A case without a file is skipped, and so is an answer without an array.
    answers : path
        What :func:`write` has written.
    dtypes, skip, capabilities
        As for :func:`verify`; the layout is that of the results.

    Returns
    -------
    Conformance

    Raises
    ------
    ValueError
        If there is a result for none of the cases, or if a file cannot be read or holds other arrays.
    FileNotFoundError, ImportError
        As :func:`load`.

    Examples
    --------
    >>> import tempfile
    >>> from attention_np import known_answers
    >>> with tempfile.TemporaryDirectory() as folder:  # a set is right, held against itself
    ...     written = known_answers.write(folder, ops=["softmax"], dtypes=["float32"])
    ...     known_answers.verify_files(folder, folder).ok
    True
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    able = capable(capabilities)
    cases: dict[str, list[KnownAnswer]] = {}
    for case in load(answers, dtypes=dtypes, skip=skip, capabilities=capabilities):
        cases.setdefault(case.op, []).append(case)

    def returned(case: KnownAnswer) -> Mapping[str, Any]:
        file = folder / f"{case.name}.safetensors"
        if not file.is_file():
            raise NotImplementedError
        with files.refusing("its file cannot be read"):
            arrays = files.from_bytes(content_of(file))
        return able.laid_out({name: x for name, x in arrays.items() if name in case.answers})

    comparisons: list[Comparison] = []
    skipped: list[str] = []
    verdicts = []
    for of_op in cases.values():
        report, left_out = _held_against(of_op, returned, None)
        comparisons, skipped = [*comparisons, *report.comparisons], [*skipped, *left_out]
        verdicts += [report.verdict] if report.verdict else []
    if not comparisons:
        raise ValueError(f"{folder} has a result for none of the {len(skipped)} cases of {answers}")
    return Conformance(tuple(comparisons), tuple(skipped), " ".join(verdicts) or None)


def _held_against(
    cases: Iterable[KnownAnswer], returned_for: Callable[[KnownAnswer], Mapping[str, Any]], function: Function | None
) -> tuple[Conformance, list[str]]:
    """The report on some cases of one op, and those that were skipped."""
    from attention_np.known_answers.verdict import verdict_of

    comparisons: list[Comparison] = []
    skipped: list[str] = []
    raised: list[str] = []
    compared: list[tuple[KnownAnswer, dict[str, Array]]] = []
    for case in cases:
        try:
            returned = returned_for(case)
        except NotImplementedError:
            skipped.append(case.name)
            continue
        except Exception as error:  # whatever a kernel does: the case has failed, and the others go on
            comparisons.append(failed(case, error))
            raised.append(type(error).__name__)
            continue
        arrays = _arrays(case, returned)
        comparisons += [compare(case, name, x) for name, x in arrays.items()]
        compared.append((case, arrays))
    if not comparisons and function is not None:
        raise ValueError(f"nothing was compared: the function skipped all {len(skipped)} cases")
    names = {case.name for case, _ in compared}
    wrong = [(x.case, x.array) for x in comparisons if not x.ok and x.case in names]
    verdicts = [verdict_of(compared, wrong, function) if wrong else None, _raised(raised)]
    verdict = " ".join(filter(None, verdicts)) if verdicts[0] or not wrong else None
    return Conformance(tuple(comparisons), tuple(skipped), verdict or None), skipped


def _raised(names: Sequence[str]) -> str | None:
    """How often which exceptions were raised."""
    counts = [f"{name} in {_cases(names.count(name))}" for name in dict.fromkeys(names)]
    return f"It raised {', '.join(counts)}." if counts else None


def _cases(count: int) -> str:
    return f"{count} case{'' if count == 1 else 's'}"


def _side_by_side(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs, with query, key and value as views of one array if they can be."""
    names = [name for name in ("query", "key", "value") if name in inputs]
    parts = [inputs[name] for name in names]
    if len({x.shape[:-1] for x in parts}) != 1:
        return dict(inputs)
    ends = np.cumsum([x.shape[-1] for x in parts])[:-1]
    return {**inputs, **dict(zip(names, np.split(np.concatenate(parts, axis=-1), ends, axis=-1), strict=True))}


def _arrays(case: KnownAnswer, returned: Any) -> dict[str, Array]:
    if not isinstance(returned, Mapping):
        raise TypeError(
            "the function must return a dictionary of arrays, such as {'output': output, 'd_query': d_query}, "
            f"not {type(returned).__name__} ({case.name})"
        )
    given = {name: x for name, x in returned.items() if x is not None}
    unknown = [str(name) for name in given if name not in case.answers]
    if unknown:
        raise ValueError(
            f"the function returned {', '.join(unknown)}, which {case.name} has no answer for: "
            f"there are {', '.join(case.answers)}"
        )
    if not given:
        raise ValueError(f"the function returned no array for {case.name}")
    return {name: _array(case, name, x) for name, x in given.items()}


def _array(case: KnownAnswer, name: str, x: Any) -> Array:
    array = np.asarray(x)
    if array.dtype.kind not in "fiu" and array.dtype.name not in FORMATS:
        raise TypeError(f"{name} must be an array of real numbers, not of {array.dtype} ({case.name})")
    return array


def of_op(op: ModuleType) -> Function:
    """The function that :func:`verify` takes, of a module with `forward` and `backward` as those of this package.

    Where a case has tangents, and the module `double_backward`, that is verified as well.

    Examples
    --------
    >>> import tempfile
    >>> from attention_np import known_answers, softmax
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = known_answers.write(folder, ops=["softmax"], dtypes=["float32"])
    ...     known_answers.verify(known_answers.of_op(softmax), folder, op="softmax").ok
    True
    """
    from attention_np import blockwise
    from attention_np.known_answers.signatures import (
        OF_BIASES,
        OF_INDEX,
        biases_in,
        made_bias,
        made_rotary,
        made_weighting,
    )

    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Any]:
        arrays: dict[str, Any] = dict(inputs)
        d_output = arrays.pop("d_output")
        tangents = {name[2:]: arrays.pop(name) for name in inputs if name.startswith("v_")}
        mask = {"mask": arrays.pop("mask")} if "mask" in arrays else {}
        if "num_heads" in options:
            arrays, tangents = with_parameters(arrays), with_parameters(tangents)
        if "latent" in arrays:  # whose rotary parts have no default
            arrays = {"query_rotary": None, "key_rotary": None, **arrays}
        of_bias = biases_in(arrays)
        if of_bias:
            bias = made_bias(inputs, options)
            arrays = {name: x for name, x in arrays.items() if name not in (*of_bias, "index")} | {"bias": bias}
        options = {name: x for name, x in made_rotary(options).items() if name not in (*OF_BIASES, *OF_INDEX)}
        if "rotary" in options:
            options["rotary"] = made_rotary(options["rotary"])
        if "weights_by" in options:
            by = options["weights_by"] = made_weighting(options["weights_by"])
            if op is blockwise and not by.is_of_each:
                raise NotImplementedError
        of_state = {"d_final_state": arrays.pop("d_final_state")} if "d_final_state" in arrays else {}
        output, cache = op.forward(**arrays, **mask, **options)
        gradients = without_parameters(op.backward(d_output, cache, **of_state))
        if of_bias:
            d_bias = gradients.pop("bias")
            gradients |= dict(zip(of_bias, d_bias if len(of_bias) > 1 else [d_bias], strict=True))
        found = {f"d_{name}": x for name, x in gradients.items()}
        if tangents and hasattr(op, "double_backward"):
            along = op.Gradients(**dict.fromkeys(op.Gradients._fields) | tangents)
            d_d_output, products = op.double_backward(along, d_output, cache)
            found["d_d_output"] = d_d_output
            found |= {f"hvp_{name}": x for name, x in without_parameters(products).items()}
        beside = {"final_state": cache.final_state} if of_state else {"logsumexp": _logsumexp(cache)}
        return {"output": output, **{name: x for name, x in beside.items() if x is not None}, **found}

    return function


def with_parameters(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of multi_head by the names of its arguments, of which one holds the parameters."""
    from attention_np.multi_head import Parameters

    parameters = {name: arrays[name] for name in Parameters._fields if name in arrays}
    others = {name: x for name, x in arrays.items() if name not in parameters}
    return others | ({"parameters": Parameters(**parameters)} if parameters else {})


def without_parameters(gradients: Any) -> dict[str, Any]:
    """The gradients of an op by the names of arrays, those of parameters too."""
    found: dict[str, Any] = gradients._asdict()
    if "parameters" in found:
        found |= found.pop("parameters")._asdict()
    return found


def _logsumexp(cache: Any) -> Array | None:
    """The log-sum-exp that a cache holds: its own, that of its softmax, or that of its attention; or none."""
    holder = getattr(cache, "attention", cache)
    if getattr(holder, "weights_by", None) is not None:
        return None
    holder = getattr(holder, "softmax", holder)
    if not hasattr(holder, "logsumexp"):
        return None
    logsumexp: Array = holder.logsumexp
    return np.squeeze(logsumexp, axis=holder.axis) if hasattr(holder, "axis") else logsumexp
