"""Whether a layer follows its module, or is refused, when an attribute or a field of the configuration is changed.

``python benchmarks/atlas_changes.py [FOLDER ...]`` makes a module of each class that has a reading, and changes, one by
one, every number, word and flag that it and its parts hold, and every field of the configuration that its source names
and from which it is then made anew. Where the module still runs, `attention_np.atlas.check` must hold, or refuse. A
class of which another folder holds a copy is looked at once.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.atlas import Tiny, arguments, build, called, configurations, is_attention, model_folders, modules_of

PATTERNS = ("silu", "gelu", "relu", "gelu_new", "sigmoid")  # of activations
NOT_CHANGED = {"training", "dtype", "torch_dtype"}  # of which the module is told otherwise


def main() -> int:
    """Change the classes of the folders that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    counts, bad = run(options.folders or model_folders(), options.processes)
    print(", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items())))
    return bool(bad)


def run(folders: list[str], processes: int = 2) -> tuple[Counter[str], list[str]]:
    """How many changes came to what, and the ones that are wrong or crash, a line each."""
    kinds: dict[str, tuple[str, str]] = {}
    for folder in folders:
        for name, digest in known_classes(folder).items():
            kinds.setdefault(digest, (folder, name))
    counts: Counter[str] = Counter()
    bad = []
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for (folder, name), outcome in zip(
            kinds.values(), pool.map(partial(of_class, tiny=Tiny()), kinds.values()), strict=True
        ):
            for change, (state, why) in outcome.items():
                counts[state] += 1
                if state in ("wrong", "crashed"):
                    bad.append(f"{folder}.{name}: {change}: {state}: {why}")
                    print(bad[-1], flush=True)
    return counts, bad


def known_classes(folder: str) -> dict[str, str]:
    """The classes of a folder that have a reading, with the digests of their sources."""
    from attention_np.atlas._door import tables
    from attention_np.atlas._source import source_of

    kinds = {
        name: kind
        for _, module in modules_of(folder)
        if not isinstance(module, Exception)
        for name, kind in vars(module).items()
        if is_attention(kind, module.__name__)
    }
    digests = {name: source_of(kind.forward, kind).digest for name, kind in kinds.items()}
    return {name: digest for name, digest in digests.items() if digest in tables().readings}


def of_class(place: tuple[str, str], tiny: Tiny) -> dict[str, tuple[str, str]]:
    """What came of each change to a module of a class."""
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    module = next(x for _, x in modules_of(place[0]) if hasattr(x, place[1]))
    kind = getattr(module, place[1])
    outcome: dict[str, tuple[str, str]] = {}
    made, calls = next(called(kind, module, tiny, []), (None, []))
    for name, changed in of_attributes(made, words_of(kind)) if made is not None else ():
        outcome[name] = judged(changed, calls[-1])
    for name, changed in of_fields(kind, module, tiny):
        try:
            (given, *_) = reversed(arguments(changed, tiny))
        except Exception:
            outcome[name] = ("not run", "")
            continue
        outcome[name] = judged(changed, given)
    return outcome


def judged(module: Any, given: dict[str, Any]) -> tuple[str, str]:
    """Whether a layer "follows" its module, is "refused", "wrong" or "crashed", or the module itself has "not run"."""
    import torch

    from attention_np import atlas

    try:
        with torch.no_grad():
            output = atlas._checking.first_floating(module(**copy.deepcopy(given)))
        if output is None or not output.isfinite().all():
            return "not run", ""
    except Exception:
        return "not run", ""
    try:
        report = atlas.check(module, **given)
    except atlas.UnknownLayer as error:
        return "refused", str(error)
    except Exception as error:
        return "crashed", f"{type(error).__name__}: {error}"[:200]
    bad = {key: x for key, x in report.errors.items() if x > report.tolerance}
    return ("follows", "") if report.ok else ("wrong", str(bad)[:200])


def of_attributes(made: Any, words: list[str]) -> Iterator[tuple[str, Any]]:
    """Copies of a module, in each of which one attribute of it or of a part has another value."""
    for path, part in made.named_modules():
        for name, value in {**vars(part), **part._buffers}.items():
            if not name.startswith("_") and name not in NOT_CHANGED:
                for other in others(value, words):
                    changed = copy.deepcopy(made)
                    setattr(changed.get_submodule(path), name, other)
                    yield f"{path}.{name} = {shown(other)}".lstrip("."), changed
    config = getattr(made, "config", None)
    for name in sorted(fields_of(type(made).forward)) if config is not None else ():
        for other in others(getattr(config, name, None), words):
            changed = copy.deepcopy(made)
            changed.config = copy.deepcopy(config)
            try:
                setattr(changed.config, name, other)
            except Exception:
                continue
            yield f"config.{name} = {shown(other)}", changed


def of_fields(kind: Any, module: Any, tiny: Tiny) -> Iterator[tuple[str, Any]]:
    """Modules that are made anew from a configuration, one field of which has another value."""
    for config, optional in product(configurations(kind, module, tiny), (False, True)):
        try:
            arguments(build(kind, config, tiny, optional), tiny)
        except Exception:
            continue
        break
    else:
        return
    for name in sorted(fields_of(kind)) if config is not None else ():
        for other in others(getattr(config, name, None), words_of(kind)):
            changed = copy.deepcopy(config)
            try:
                setattr(changed, name, other)
                made = build(kind, changed, tiny, optional)
            except Exception:
                continue
            yield f"made with {name} = {shown(other)}", made


def fields_of(thing: Any) -> set[str]:
    """The fields of a configuration that a source names."""
    return {x for x in re.findall(r"\bconfig\.(\w+)", inspect.getsource(thing)) if not x.startswith("_")}


def words_of(kind: Any) -> list[str]:
    """The words that the source of a class names: what an attribute may be compared with."""
    words = re.findall(r"""(?:==|!=|in|\() *\(?["'](\w+)["']""", inspect.getsource(kind))
    return list(dict.fromkeys(x for x in words if x != "config"))[:6]


def others(value: Any, words: list[str]) -> list[Any]:
    """Other values that an attribute may have."""
    import torch

    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value] if value > 0 else [value + 1]
    if isinstance(value, float):
        return [1.5 * value + 0.125, 0.0]
    if value is None:
        return [True, 2, 0.375]
    if isinstance(value, str):
        return [x for x in (*words, *PATTERNS[:3]) if x != value]
    if isinstance(value, torch.Tensor) and value.is_floating_point() and not isinstance(value, torch.nn.Parameter):
        return [value * 1.25 + 0.0625]
    if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
        return [~value]
    if isinstance(value, list | tuple) and value:
        return [type(value)([x, *value[1:]]) for x in others(value[0], words)] if type(value) in (list, tuple) else []
    if isinstance(value, dict):
        return [value | {key: x} for key, old in value.items() for x in others(old, words)]
    if callable(value) and not isinstance(value, torch.nn.Module):  # an activation
        return [x for x in (torch.nn.functional.relu, torch.nn.functional.silu) if x is not value]
    return []


def shown(value: Any) -> str:
    """A value in a word or two."""
    text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."


if __name__ == "__main__":
    sys.exit(main())
