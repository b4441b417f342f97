"""Every attention class of the model folders of transformers, held against its own autograd: docs/measured/atlas.json.

``python benchmarks/atlas.py [FOLDER ...]`` makes each class from a tiny configuration (heads of ten features where it
can, an odd number of tokens, one padded sample), and runs `attention_np.atlas.check` on it. ``--write`` stores the
outcome of all folders.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import re
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks._atlas_calls import CALLS, CONSTRUCTORS

STORED = Path(__file__).resolve().parent.parent / "docs/measured/atlas.json"
HEADS, D, N, BATCH = 6, 10, 7, 2
HIDDEN = HEADS * D
# What a source looks like that turns scores, or a state, into outputs; and classes that only choose, measure or pool
ATTENDS = re.compile(
    r"softmax|Softmax\(|attention_interface|scaled_dot_product|eager_attention|delta_rule|selective_scan|chunk_scan|wkv|"
    r"rwkv_linear|multi_head_attention_forward|get_interface|fft\.|sigmoid_attention|kimi_delta|slope_rate"
)
NOT_ATTENTION = re.compile(
    r"Indexer|Compressor|FFN$|(?<!V2)FlashAttention|Scorer|Heads$|Pooling$|"
    r"Router|Matcher|TDNN|Loss|Gate$|Quantizer|HyperConn|Integral|LQE|For[A-Z]|Model$|Pooler$|Detector|MHAttentionMap|"
    r"GRUCell|Vocoder|Predictor$|FeaturesToDepth|TopK|Experts|M[lL][pP]|ISTFT|Head$|Decoder$|Encoder$|(?<!Mamba)Layer$|MoE(?!.*Attention)|Moe$|"
    r"Embeddings?$|Decoding|VectorQuant|Generator|Classif|Matching|Tokenizer$"
)

SIZES: dict[str, Any] = {  # of a configuration, by the names of its fields
    "num_attention_heads": HEADS,
    "num_heads": HEADS,
    "n_head": HEADS,
    "n_heads": HEADS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "num_kv_shared_layers": 0,
    "keep_window_size": 3,
    "swa_head_dim": D,
    "swa_num_attention_heads": HEADS,
    "swa_num_key_value_heads": 2,
    "attention_heads": HEADS,
    "speech_encoder_attention_heads": HEADS,
    "num_encoder_attention_heads": HEADS,
    "num_decoder_attention_heads": HEADS,
    "hidden_size": HIDDEN,
    "d_model": HIDDEN,
    "n_embd": HIDDEN,
    "dim": HIDDEN,
    "embed_dim": HIDDEN,
    "head_dim": D,
    "d_kv": D,
    "kv_channels": D,
    "attention_head_dim": D,
    "attention_head_size": D,
    "hidden_dim": HIDDEN,
    "emb_dim": HIDDEN,
    "encoder_hidden_size": HIDDEN,
    "decoder_hidden_size": HIDDEN,
    "width": HIDDEN,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "num_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "intermediate_size": 16,
    "rotary_dim": 4,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
    "qk_head_dim": 10,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
    "index_n_heads": 12,  # so many that hardly a pair has a score of zero from all: a tie is refused
    "index_head_dim": 8,
    "index_topk": 3,
    "attention_dropout": 0.0,
    "sliding_window": 4,
    "mamba_n_heads": 6,
    "mamba_d_head": 20,
    "mamba_d_ssm": 120,
    "n_mamba_heads": 6,
    "mamba_headdim": 20,
    "mamba_num_heads": 6,
    "mamba_head_dim": 20,
    "state_size": 4,
    "mamba_d_state": 4,
    "ssm_state_size": 4,
    "mamba_n_groups": 2,
    "n_groups": 2,
    "mamba_ngroups": 2,
    "mamba_chunk_size": 4,
    "chunk_size": 4,
    "num_experts": 2,
    "n_routed_experts": 2,
    "rms_norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "encoder_embed_dim": HIDDEN,
    "decoder_embed_dim": HIDDEN,
    "hidden_channels": HIDDEN,
    "cross_attention_hidden_size": HIDDEN,
}
ARGUMENTS: dict[str, Any] = {  # of constructors
    "embed_dim": HIDDEN,
    "hidden_size": HIDDEN,
    "dim": HIDDEN,
    "d_model": HIDDEN,
    "num_heads": HEADS,
    "n_heads": HEADS,
    "num_attention_heads": HEADS,
    "num_attn_heads": HEADS,
    "layer_idx": 0,
    "layer_id": 0,
    "layer_number": 0,
    "layer_index": 0,
    "i": 0,
    "head_dim": D,
    "n_embd": HIDDEN,
    "in_channels": HIDDEN,
    "input_resolution": (6, 6),
    "window_size": 3,
    "n_levels": 2,
    "n_points": 2,
    "embedding_dim": HIDDEN,
    "input_size": (3, 3),
    "encoder_hidden_size": HIDDEN,
    "hidden_dim": HIDDEN,
    "num_key_value_heads": HEADS,
    "kdim": HIDDEN,
    "vdim": HIDDEN,
    "dropout": 0.0,
    "attention_type": "global",
    "is_causal": False,
    "bias": True,
    "block_idx": 0,
    "depth": 0,
    "nx": HIDDEN,
    "n_positions": 16,
}


def main() -> int:
    """Run the folders that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--write", action="store_true", help="store the outcome of all folders")
    parser.add_argument("--out", type=Path, default=STORED)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    folders = options.folders or model_folders()
    with ProcessPoolExecutor(options.processes) as pool:
        outcome = dict(zip(folders, pool.map(of_folder, folders, chunksize=8), strict=True))
    whole = [
        name for name, classes in outcome.items() if classes and all(x["state"] == "whole" for x in classes.values())
    ]
    wrong = [f"{f}.{c}" for f, classes in outcome.items() for c, x in classes.items() if x["state"] == "wrong"]
    if options.write:
        import transformers

        about = {"transformers": transformers.__version__, "folders": outcome}
        options.out.write_text(json.dumps(about, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    for folder in options.folders:
        for name, x in outcome[folder].items():
            print(folder, name, x)
    print(f"{len(whole)} of {len(folders)} folders whole; wrong: {', '.join(wrong) or 'none'}")
    return bool(wrong)


def model_folders() -> list[str]:
    """All folders of transformers with attention of their own."""
    import transformers

    root = Path(transformers.__file__).parent / "models"
    files = root.glob("*/modeling_*.py")
    return sorted({file.parent.name for file in files if ATTENDS.search(file.read_text(encoding="utf-8"))})


def of_folder(folder: str) -> dict[str, dict[str, Any]]:
    """Each attention class of a folder: its state, recipe, error, or what is missing."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import torch
    import transformers

    torch.set_num_threads(1)
    root = Path(transformers.__file__).parent / "models" / folder
    outcome: dict[str, dict[str, Any]] = {}
    for file in sorted(root.glob("modeling_*.py")):
        try:
            module = importlib.import_module(f"transformers.models.{folder}.{file.stem}")
        except Exception as error:  # what a model needs beside torch
            outcome[file.stem] = {"state": "unmade", "why": f"{type(error).__name__}: {error}"[:200]}
            continue
        for name, kind in list(vars(module).items()):
            if is_attention(kind, module.__name__):
                outcome[name] = of_class(kind, module)
    return outcome


def is_attention(kind: Any, home: str) -> bool:
    """Whether a class turns scores, or a state, into outputs by a forward of its own."""
    import torch

    from attention_np.atlas._source import source_of

    if not (inspect.isclass(kind) and issubclass(kind, torch.nn.Module) and kind.__module__ == home):
        return False
    if NOT_ATTENTION.search(kind.__name__) or "forward" not in dir(kind):
        return False
    try:
        return bool(ATTENDS.search(source_of(kind.forward, kind).text))
    except (OSError, TypeError, SyntaxError):
        return False


def of_class(kind: Any, module: Any) -> dict[str, Any]:
    """What `atlas.check` says of a class."""
    from attention_np import atlas
    from attention_np.atlas._source import source_of

    about: dict[str, Any] = {"digest": source_of(kind.forward, kind).digest}
    if about["digest"] not in atlas._door.tables().readings:
        return about | {"state": "unknown", "why": "no reading"}
    failures: list[str] = []
    try:
        for made in instances(kind, module, failures):
            try:
                calls = arguments(made)
            except Exception as error:  # this configuration fits no call: the next may
                failures.insert(0, f"{type(error).__name__}: {error}"[:160])
                continue
            for args in calls:
                about |= {"state": "unknown"}
                report = atlas.check(made, **args)
                about |= {"recipe": str(atlas.read(made)).splitlines()[0].partition(": ")[2]}
                about["error"] = max(report.worst, about.get("error", 0.0))
                if not report.ok:
                    bad = {key: x for key, x in report.errors.items() if x > report.tolerance}
                    return about | {"state": "wrong", "why": str(bad)[:300]}
            return about | {"state": "whole"}
    except atlas.UnknownLayer as error:
        return about | {"state": "unknown", "why": str(error)}
    except Exception as error:
        import traceback

        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        state = "crashed" if "attention_np" in last.filename or "/atlas" in last.filename else "unmade"
        return about | {"state": state, "why": f"{type(error).__name__}: {error} ({where})"[:300]}
    return about | {"state": "unmade", "why": "; ".join(failures)[:300]}


def instances(kind: Any, module: Any, failures: list[str]) -> Any:
    """Modules of a class, made from tiny configurations; the first that can be made."""
    import torch

    for config in configurations(kind, module):
        try:
            torch.manual_seed(0)
            made = kind(**constructor(kind, config))
            for name, parameter in made.named_parameters():
                with torch.no_grad():
                    if (
                        parameter.dim() < 2
                        or name.endswith(("norm.weight", "bias", "A_log"))
                        or not parameter.isfinite().all()
                        or not parameter.any()
                    ):
                        torch.nn.init.normal_(
                            parameter, 1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.3
                        )
            if kind.__name__ == "FalconH1Mixer":  # its model sets them
                made.register_buffer("mup_vector", torch.rand(1, 1, made.in_proj.out_features))
            yield made.eval()
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}"[:120])


def configurations(kind: Any, module: Any) -> list[Any]:
    """Tiny configurations of the classes that the folder has, the likeliest first."""
    from transformers import PretrainedConfig

    found: dict[str, Any] = {}
    annotation = inspect.signature(kind.__init__).parameters.get("config")
    if (
        annotation is not None
        and inspect.isclass(annotation.annotation)
        and issubclass(annotation.annotation, PretrainedConfig)
    ):
        found[annotation.annotation.__name__] = annotation.annotation
    folder = module.__name__.rpartition(".")[0]
    for file in Path(module.__file__).parent.glob("configuration_*.py"):
        configuration = importlib.import_module(f"{folder}.{file.stem}")
        classes = [
            x
            for x in vars(configuration).values()
            if inspect.isclass(x) and issubclass(x, PretrainedConfig) and x.__module__ == configuration.__name__
        ]
        for x in sorted(classes, key=lambda x: -alike(x.__name__, kind.__name__)):
            found.setdefault(x.__name__, x)
    if "config" not in inspect.signature(kind.__init__).parameters:
        return [None, *(shrunk(x) for x in found.values())]
    made = [y for heads in (2, HEADS) for x in found.values() if (y := shrunk(x, heads)) is not None]
    inner = {type(x) for x in (getattr(y, "text_config", None) for y in made)} - {*found.values(), type(None)}
    return made + [shrunk(x) for x in sorted(inner, key=str)]  # of a language model in another folder


def alike(one: str, other: str) -> int:
    """How many letters two names begin with together."""
    return next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))


def shrunk(kind: Any, key_heads: int = 2) -> Any:
    """A tiny configuration; fields that it refuses one after the other keep their defaults."""
    try:
        config = kind()
    except Exception:
        return None
    fields = {
        name: value
        for name, value in SIZES.items()
        if name in vars(config) or name in getattr(config, "attribute_map", {})
    }
    fields |= {"num_key_value_heads": key_heads} if "num_key_value_heads" in fields else {}
    optional = ("head_dim", "num_key_value_heads")
    fields = {name: x for name, x in fields.items() if vars(config).get(name, 0) is not None or name in optional}
    lists = {name: [SIZES[name]] * len(x) for name in fields if isinstance(x := vars(config).get(name), list | tuple)}
    for attempt in (fields | lists, {key: x for key, x in (fields | lists).items() if key != "head_dim"}):
        try:
            config = kind(**attempt)
            break
        except Exception:
            continue
    else:
        for name, value in (fields | lists).items():
            try:
                setattr(config, name, value)
            except Exception:
                continue
    if getattr(config, "expand", None):  # heads of Mamba-2, which share what the layer expands to
        config.head_dim = HIDDEN * config.expand // HEADS
    parameters = getattr(config, "rope_parameters", None)
    if isinstance(parameters, dict) and int(D * parameters.get("partial_rotary_factor", 1.0)) % 2:
        parameters["partial_rotary_factor"] = 0.4  # of an odd number of features none are pairs
    if kind.__name__ == "T5GemmaModuleConfig":  # its decoder sets it
        config.cross_attention_hidden_size = HIDDEN
    if kind.__name__ == "DbrxConfig":  # whose own default cannot be made
        config.attn_config.rope_theta, config.attn_config.clip_qkv = 1e4, 1.0
    config._attn_implementation = "eager"
    return config


def name_of(kind: Any) -> str:
    """Of a class, with that of its folder."""
    return f"{kind.__module__.split('.')[2]}.{kind.__name__}"


def constructor(kind: Any, config: Any) -> dict[str, Any]:
    """The arguments of a constructor, by their names."""
    made: dict[str, Any] = dict(CONSTRUCTORS.get(name_of(kind), {}))
    for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
        if name in made:
            continue
        if name == "config" or (name.endswith("config") and parameter.default is inspect.Parameter.empty):
            made[name] = config
        elif parameter.default is inspect.Parameter.empty and parameter.kind in (1, 3):
            if name not in ARGUMENTS:
                raise KeyError(f"constructor needs {name}")
            made[name] = ARGUMENTS[name]
        elif name in ("is_decoder", "layer_idx") and name in ("layer_idx",):
            made[name] = 0
        elif name == "has_relative_attention_bias":
            made[name] = True
        elif name == "initialize_mixer_weights":  # Falcon-Mamba's parts are not there yet where it would
            made[name] = False
        elif name == "config":
            made[name] = config
    if "config" in inspect.signature(kind.__init__).parameters and config is not None:
        made["config"] = config
    return made


def arguments(made: Any) -> list[dict[str, Any]]:
    """Arguments of the forward, by their names, that the module takes: of each kind of call the first that runs."""
    import torch

    if name_of(type(made)) in CALLS:
        torch.manual_seed(1)
        return CALLS[name_of(type(made))](made, N, BATCH, width_of(made))
    calls, failure = [], None
    points = re.search(r"query.shape\[:2\]", inspect.getsource(type(made).forward))
    for cross in (False, True):
        for padded in (True, False):
            for choice in product(*(CHOICES | ({"rank": ("points",)} if points else {})).values()):
                torch.manual_seed(1)
                chosen = dict(zip(CHOICES, choice, strict=True))
                try:
                    given = call(made, cross, padded, chosen)
                    if given is None:
                        break
                    with torch.no_grad(), warnings.catch_warnings():
                        made(**given)
                except Exception as error:
                    failure = failure or error
                    continue
                calls.append(given)
                break
    if not calls and failure is not None:
        raise failure
    return calls


CHOICES = {  # of what arguments may look like, the likeliest first
    "rank": ("tokens", "packed", "one", "picture", "points", "windows"),
    "rotary": ("full", "half", "tokens", "complex", "heads"),
    "bias": ("batch", "none", "alibi"),
    "mask": ("float", "of tokens", "boolean", "of keys"),
}
QUERIES = (
    "hidden_states",
    "hidden",
    "x",
    "hidden_state",
    "query",
    "queries",
    "query_states",
    "inputs",
    "input",
    "q",
    "latents",
    "from_tensor",
    "hidden_q",
    "query_tensor",
)
KEYS = ("key", "value", "keys", "values", "k", "v", "context", "to_tensor", "hidden_kv", "key_tensor", "value_tensor")
CROSS = ("key_value_states", "encoder_hidden_states", "cross_attention_states", "kv")


def call(made: Any, cross: bool, padded: bool, chosen: dict[str, str]) -> dict[str, Any] | None:
    """One call of a module; None where it takes no such."""
    import torch

    parameters = dict(list(inspect.signature(type(made).forward).parameters.items())[1:])
    needed = {name for name, x in parameters.items() if x.default is inspect.Parameter.empty and x.kind in (0, 1, 3)}
    if cross and not set(CROSS) & set(parameters):
        return None
    width, packed = width_of(made), chosen["rank"] in ("packed", "one")
    if packed != ("cu_seqlens" in parameters):
        raise TypeError(f"{type(made).__name__} takes no {chosen['rank']}")
    shape = {"tokens": (BATCH, N), "packed": (N,), "one": (1, N), "picture": (BATCH, 3, 3), "points": (BATCH, 2, N)}
    shape["windows"] = (2 * BATCH, 9)
    leading = shape[chosen["rank"]]
    keys = N + 2 if cross or set(CROSS) & needed or "context" in parameters else N
    levels = [(2, 3), (3, 2), (1, 2), (2, 2), (1, 1)][: getattr(made, "n_levels", 0)]  # of a picture
    if "spatial_shapes_list" in parameters:
        keys = sum(height * width for height, width in levels)
    given: dict[str, Any] = {}
    for name in parameters:
        if name in QUERIES:
            given[name] = torch.randn(*leading, width)
        elif name == "residual":
            given[name] = torch.randn(*leading, HIDDEN)
        elif name == "merged_attention_mask" and padded:
            given[name] = mask(made, chosen["mask"], N, N + keys)
        elif name in KEYS:
            given[name] = torch.randn(*leading, width_of_keys(made, width))
        elif name in CROSS and (cross or name in needed or levels):
            given[name] = torch.randn(BATCH, keys, width_of_keys(made, width))
        elif name == "spatial_shapes_list":
            given[name] = levels
        elif name == "spatial_shapes":
            given[name] = torch.tensor(levels)
        elif name == "reference_points":
            given[name] = torch.rand(BATCH, N, len(levels), 4 if padded else 2)
        elif name == "cu_seqlens":
            given[name] = torch.tensor([0, 3, N], dtype=torch.int32)
        elif name == "position_embeddings" and levels:
            given[name] = torch.randn(*leading, width)
        elif name == "position_embeddings":
            given[name] = rotary(made, leading, width, chosen["rotary"])
        elif name in ("position_bias", "attention_bias", "alibi") and name in needed:
            shape = {"batch": (1, HEADS, N, keys), "none": (HEADS, N, keys), "alibi": (BATCH * HEADS, 1, keys)}
            given[name] = torch.randn(shape[chosen["bias"]])
        elif name == "shared_kv_states":
            given[name] = {}
        elif name in ("query_position_embeddings", "object_queries", "encoder_position_embeddings"):
            length = keys if name.startswith("encoder") else N
            given[name] = torch.randn(BATCH, length, width)
        elif name == "position_ids":
            given[name] = torch.arange(N)[None].repeat(BATCH, 1)
        elif name in ("height", "width"):
            given[name] = 3
        elif name in ("attention_mask", "mask", "encoder_attention_mask") and padded and not packed:
            if chosen["rank"] == "windows":  # a number for each pair in each window of a sample
                given[name] = torch.where(torch.rand(BATCH, 9, 9) < 0.7, 0.0, -100.0)
            elif levels:  # of pixels
                given[name] = torch.rand(BATCH, keys) < 0.7
            else:
                given[name] = mask(made, chosen["mask"], N, keys)
        elif name in needed:
            given[name] = None
    return given


def mask(made: Any, kind: str, n: int, keys: int) -> Any:
    """A mask that hides the last two keys of the first sample, and what comes later where the module is causal."""
    import torch

    visible = torch.ones(BATCH, 1, n, keys).bool()
    visible[0, :, :, -2:] = False
    if getattr(made, "is_causal", False) and n == keys:
        visible &= torch.ones(n, keys).tril().bool()
    if kind == "float":
        return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    if kind == "boolean":
        return visible
    return visible[:, 0, -1] if kind == "of tokens" else visible[:, :, :1].float().log()


def width_of(made: Any) -> int:
    """The features that the module takes."""
    return next(filter(None, (in_features(made, name) for name in INPUTS)), HIDDEN)


INPUTS = (
    "q_proj",
    "query",
    "qkv",
    "q",
    "c_attn",
    "in_proj_qkv",
    "q_a_proj",
    "query_key_value",
    "in_proj",
    "qkv_proj",
    "wqkv",
    "Wqkv",
    "linear_q",
    "q_lin",
    "Wq",
    "project_q",
    "att_proj",
)


def width_of_keys(made: Any, width: int) -> int:
    """The features of what keys are made of."""
    return next(filter(None, (in_features(made, name) for name in ("k_proj", "key", "k", "k_lin", "Wk"))), width)


def in_features(made: Any, name: str) -> int | None:
    """Of a projection."""
    part = getattr(made, name, None)
    width = getattr(part, "in_features", None) or getattr(part, "nx", None)
    return width if isinstance(width, int) else None


def rotary(made: Any, leading: tuple[int, ...], width: int, kind: str) -> Any:
    """Positions: added ones where they are added, else cosines and sines of angles."""
    import torch

    if "+ position_embeddings" in inspect.getsource(type(made).forward):
        return torch.randn(*leading, width)
    whole, part = ("head_dim", "head_size", "attention_head_size"), ("qk_rope_head_dim", "rotary_dim", "rotary_ndims")
    names = (*part, *whole)
    d = next((x for name in names if isinstance(x := getattr(made, name, None), int)), D)
    parameters = getattr(getattr(made, "config", None), "rope_parameters", None)
    factor = parameters.get("partial_rotary_factor", 1.0) if isinstance(parameters, dict) else 1.0
    if not any(name in vars(made) for name in part) and isinstance(factor, float):
        d = int(d * factor) // 2 * 2
    places = {"tokens": leading[1:], "heads": (1, HEADS)}
    angles = torch.randn(*places.get(kind, leading), d // 2)
    if kind != "half":
        angles = torch.cat([angles, angles], dim=-1)
    if kind == "complex":
        return torch.polar(torch.ones(angles.shape), angles)[..., : d // 2]
    return angles.cos(), angles.sin()


if __name__ == "__main__":
    sys.exit(main())
