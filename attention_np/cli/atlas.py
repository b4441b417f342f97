"""``attention-np atlas``: the attention of published models, from a stored run."""

from __future__ import annotations

import argparse
import json

from attention_np._lib.pages import MEASURED
from attention_np._lib.text import table
from attention_np.cli.outcome import HOLDS, refuse

NAMES = {"whole": "whole", "unknown": "not known", "unmade": "not tried", "wrong": "wrong", "crashed": "not tried"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="folders of transformers, such as llama; all, if none"
    )


def run(options: argparse.Namespace) -> int:
    """Print the table, and return 0."""
    stored = json.loads((MEASURED / "atlas.json").read_text(encoding="utf-8"))
    folders = stored["folders"]
    missing = [name for name in options.models if name not in folders]
    if missing:
        return refuse(f"transformers {stored['transformers']} has no model {missing[0]!r} with attention of its own")
    rows = [("model", "class", "recipe", "", "worst error")]
    for folder in options.models or folders:
        for name, about in folders[folder].items():
            error = f"{about['error']:.0e}" if about["state"] == "whole" else about.get("why", "")
            rows.append((folder, name, about.get("recipe", ""), NAMES[about["state"]], error))
    whole = sum(bool(x) and all(about["state"] == "whole" for about in x.values()) for x in folders.values())
    print(table(rows, left=5))  # noqa: T201
    print(f"{whole} of {len(folders)} models whole, transformers {stored['transformers']}")  # noqa: T201
    return HOLDS
