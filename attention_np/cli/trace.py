"""``attention-np trace``: attention on a sentence, every step forward and backward, as on paper."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from attention_np import cases, trace
from attention_np.cli.outcome import HOLDS, refuse

NARROWEST, WIDEST = 44, 100  # columns: a telephone, and a page of paper


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("sentence", nargs="+", metavar="SENTENCE", help="in any language; Chinese goes by characters")
    parser.add_argument("--op", choices=cases.OPS, default="dot_product", help="by default dot_product")
    parser.add_argument("--causal", action="store_true", help="no token attends to those after it")
    parser.add_argument("--d", type=int, default=4, help="features of a token, by default 4")
    parser.add_argument("--heads", type=int, help="of multi_head, by default 2")
    parser.add_argument("--hidden", type=int, help="units of additive attention, by default 3")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other numbers")


def run(options: argparse.Namespace) -> int:
    """Trace, print, and return 0."""
    keywords: dict[str, Any] = {"d": options.d, "is_causal": options.causal, "seed": options.seed}
    for op, name, argument in (("multi_head", "heads", "num_heads"), ("additive", "hidden", "hidden")):
        value = getattr(options, name)
        if value is not None and options.op != op:
            return refuse(f"--{name} is an option of {op}, not of {options.op}")
        if value is not None:
            keywords[argument] = value
    by_name: dict[str, Callable[..., trace.Trace]] = {"additive": trace.additive, "multi_head": trace.multi_head}
    traced = by_name.get(options.op, partial(trace.of, options.op))
    try:
        steps = traced(" ".join(options.sentence), **keywords)
    except (ImportError, ValueError) as error:
        return refuse(str(error))
    width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
    encoding = sys.stdout.encoding or "utf-8"
    text = steps.text(width).encode(encoding, "replace").decode(encoding)  # a terminal may lack some letters
    print(text, end="")  # noqa: T201
    return HOLDS
