"""Every attention class of the model folders of transformers, held against its own autograd: docs/measured/atlas.json.

``python benchmarks/atlas.py [FOLDER ...]`` makes each class from a tiny configuration (heads of ten features where it
can, an odd number of tokens, one padded sample), and runs `attention_np.atlas.check` on it: called as its signature
says, or, where that does not say enough, as a tiny model of its folder calls it. ``--write`` stores the outcome of all
folders; ``--heads``, ``--features``, ``--tokens`` and ``--seed`` ask for others than the stored ones.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import inspect
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial, reduce
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks._atlas_calls import CALLS, CONSTRUCTORS
from benchmarks._atlas_facts import facts
from benchmarks._atlas_missing import reason

STORED = Path(__file__).resolve().parent.parent / "docs/measured/atlas.json"
# What a source looks like that turns scores, or a state, into outputs; and classes that only choose, measure or pool
ATTENDS = re.compile(
    r"(?i:softmax)|attention_interface|scaled_dot_product|eager_attention|delta_rule|selective_scan|chunk_scan|wkv|"
    r"rwkv_linear|multi_head_attention_forward|get_interface|fft\.|sigmoid_attention|kimi_delta|slope_rate|logsumexp|"
    r"mra2_attention|LSHCumulation|mlstm_backend"
)
NOT_ATTENTION = re.compile(
    r"^(?!\w*Attention$).*(Indexer|Compressor|FFN$|Scorer|Heads$|Pooling$|"
    r"Router|Matcher|TDNN|Loss|Gate$|Quantizer|HyperConn|Integral|LQE|For[A-Z]|Model$|Pooler$|Detector|MHAttentionMap|"
    r"Vocoder|Predictor$|FeaturesToDepth|TopK|Experts|M[lL][pP]|ISTFT|Head$|Decoder$|Encoder$|(?<!Mamba)(?<!xLSTM)Layer$|MoE|Moe$|"
    r"Embeddings?$|Decoding|VectorQuant|Generator|Classif|Matching|Tokenizer$|FlashAttention)"
)

FIELDS: dict[str, dict[str, Any]] = {  # of configurations whose defaults make no module, or a plain one
    "DbrxAttention": {"attn_config.rope_theta": 1e4, "attn_config.clip_qkv": 1.0},
    "Qwen4ExpTextAttention": {
        "indexer_n_heads": 12,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 12,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "MiniMaxM3VLAttention": {"layer_types": ["minimax_m3_sparse"] * 2},
    "GraniteSpeechConformerAttention": {"context_size": 4, "max_pos_emb": 5},
    "GraniteSpeechPlusConformerAttention": {"context_size": 4, "max_pos_emb": 5},
    "GraniteSpeech5EncoderAttention": {"context_size": 4, "max_position_embeddings": 5},
    "LongformerSelfAttention": {"attention_window": [4, 4]},
    "LEDEncoderSelfAttention": {"attention_window": [4, 4]},
    "DisentangledSelfAttention": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "Wav2Vec2ConformerSelfAttention": {"position_embeddings_type": "relative"},
    "T5GemmaCrossAttention": {"cross_attention_hidden_size": 70},
    "DFineMultiscaleDeformableAttention": {"num_feature_levels": 3, "decoder_n_points": [2, 3, 1]},
    "LwDetrMultiscaleDeformableAttention": {"num_feature_levels": 2},
}
DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers")
LARGE = 60_000_000  # parameters of a model that is not made
PREFIX = re.compile(r"^(encoder|decoder|text|vision|audio|speech)_")


class Tiny(NamedTuple):
    """The sizes that modules are made with."""

    heads: int = 6
    d: int = 10  # features of a head
    n: int = 7  # tokens
    batch: int = 2
    seed: int = 0

    @property
    def hidden(self) -> int:
        """Features of a token."""
        return self.heads * self.d

    @property
    def key_heads(self) -> int:
        """Heads of keys, where several of queries share one."""
        return max(x for x in (1, 2) if self.heads % x == 0)


def sizes(tiny: Tiny) -> dict[str, Any]:
    """Of a configuration, by the names of its fields."""
    return {
        "num_attention_heads": tiny.heads,
        "num_heads": tiny.heads,
        "n_head": tiny.heads,
        "n_heads": tiny.heads,
        "encoder_attention_heads": tiny.heads,
        "decoder_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.key_heads,
        "num_kv_shared_layers": 0,
        "keep_window_size": 3,
        "index_block_size": 2,
        "index_topk_blocks": 2,
        "swa_head_dim": tiny.d,
        "swa_num_attention_heads": tiny.heads,
        "swa_num_key_value_heads": tiny.key_heads,
        "attention_heads": tiny.heads,
        "channel_shrink_ratio": 2,
        "num_encoder_attention_heads": tiny.heads,
        "num_decoder_attention_heads": tiny.heads,
        "hidden_size": tiny.hidden,
        "d_model": tiny.hidden,
        "n_embd": tiny.hidden,
        "dim": tiny.hidden,
        "embed_dim": tiny.hidden,
        "head_dim": tiny.d,
        "d_kv": tiny.d,
        "kv_channels": tiny.d,
        "attention_head_dim": tiny.d,
        "attention_head_size": tiny.d,
        "hidden_dim": tiny.hidden,
        "emb_dim": tiny.hidden,
        "encoder_hidden_size": tiny.hidden,
        "decoder_hidden_size": tiny.hidden,
        "width": tiny.hidden,
        "num_hidden_layers": 2,
        "n_layer": 2,
        "num_layers": 2,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "intermediate_size": 16,
        "rotary_dim": 4,
        "encoder_ffn_dim": 2 * tiny.hidden,
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
        "mamba_n_heads": tiny.heads,
        "mamba_d_head": 2 * tiny.d,
        "mamba_d_ssm": 2 * tiny.hidden,
        "n_mamba_heads": tiny.heads,
        "mamba_headdim": 2 * tiny.d,
        "mamba_num_heads": tiny.heads,
        "mamba_head_dim": 2 * tiny.d,
        "state_size": 4,
        "mamba_d_state": 4,
        "ssm_state_size": 4,
        "mamba_n_groups": tiny.key_heads,
        "n_groups": tiny.key_heads,
        "mamba_ngroups": tiny.key_heads,
        "mamba_chunk_size": 4,
        "chunk_size": 4,
        "num_experts": 2,
        "n_routed_experts": 2,
        "rms_norm_eps": 1e-5,
        "layer_norm_eps": 1e-5,
        "encoder_embed_dim": tiny.hidden,
        "decoder_embed_dim": tiny.hidden,
        "hidden_channels": tiny.hidden,
        "cross_attention_hidden_size": tiny.hidden,
    }


def constructor_sizes(tiny: Tiny) -> dict[str, Any]:
    """Arguments of constructors."""
    return {
        "embed_dim": tiny.hidden,
        "hidden_size": tiny.hidden,
        "dim": tiny.hidden,
        "d_model": tiny.hidden,
        "num_heads": tiny.heads,
        "n_heads": tiny.heads,
        "num_attention_heads": tiny.heads,
        "num_attn_heads": tiny.heads,
        "layer_idx": 0,
        "layer_id": 0,
        "layer_number": 0,
        "layer_index": 0,
        "i": 0,
        "head_dim": tiny.d,
        "n_embd": tiny.hidden,
        "in_channels": tiny.hidden,
        "input_resolution": (6, 6),
        "window_size": 3,
        "n_levels": 2,
        "n_points": 2,
        "embedding_dim": tiny.hidden,
        "input_size": (3, 3),
        "encoder_hidden_size": tiny.hidden,
        "hidden_dim": tiny.hidden,
        "num_key_value_heads": tiny.heads,
        "kdim": tiny.hidden,
        "vdim": tiny.hidden,
        "dropout": 0.0,
        "attention_type": "global",
        "is_causal": False,
        "bias": True,
        "block_idx": 0,
        "depth": 0,
        "nx": tiny.hidden,
        "n_positions": 16,
        "c_q": tiny.hidden,
        "c_k": tiny.hidden,
        "c_v": tiny.hidden,
        "c_hidden": tiny.d,
        "no_heads": tiny.heads,
        "head_width": tiny.d,
        "kv_in_dim": tiny.hidden,
        "kernel_size": 3,
        "dilation": 1,
    }


def main() -> int:
    """Run the folders that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--write", action="store_true", help="store the outcome of all folders")
    parser.add_argument("--out", type=Path, default=STORED)
    parser.add_argument("--processes", type=int, default=2)
    for name, default, short in (
        ("heads", Tiny().heads, ""),
        ("features", Tiny().d, " of a head"),
        ("tokens", Tiny().n, ""),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"how many{short}")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tiny = Tiny(options.heads, options.features, options.tokens, seed=options.seed)
    outcome = run(options.folders or model_folders(), tiny, options.processes)
    whole = [
        name for name, classes in outcome.items() if classes and all(x["state"] == "whole" for x in classes.values())
    ]
    wrong = [f"{f}.{c}" for f, classes in outcome.items() for c, x in classes.items() if x["state"] == "wrong"]
    if options.write:
        import transformers

        about = {"transformers": transformers.__version__, "folders": outcome}
        options.out.write_text(json.dumps(about, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    for folder, classes in outcome.items():
        for name, x in classes.items():
            if options.folders:
                print(folder, name, x)
    print(f"{len(whole)} of {len(outcome)} folders whole; wrong: {', '.join(wrong) or 'none'}")
    return bool(wrong)


def run(folders: list[str], tiny: Tiny, processes: int = 2) -> dict[str, dict[str, dict[str, Any]]]:
    """The outcome of each folder that has attention of its own."""
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:  # threads do not survive a fork
        outcome = {}
        for folder, classes in zip(folders, pool.map(partial(of_folder, tiny=tiny), folders), strict=True):
            outcome |= {folder: classes} if classes else {}
            for name, x in classes.items():
                if x["state"] in ("wrong", "crashed", "unmade"):
                    print(folder, name, x, flush=True)
    return outcome


def model_folders() -> list[str]:
    """All folders of transformers with attention of their own."""
    import transformers

    root = Path(transformers.__file__).parent / "models"
    files = root.glob("*/modeling_*.py")
    return sorted({file.parent.name for file in files if ATTENDS.search(file.read_text(encoding="utf-8"))})


def of_folder(folder: str, tiny: Tiny) -> dict[str, dict[str, Any]]:
    """Each attention class of a folder: its state, recipe, error, or what is missing."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import torch

    torch.set_num_threads(1)
    outcome: dict[str, dict[str, Any]] = {}
    for name, module in modules_of(folder):
        if isinstance(module, Exception):
            outcome[name] = {"state": "unmade", "why": f"{type(module).__name__}: {module}"[:200]}
            continue
        for name, kind in list(vars(module).items()):
            if is_attention(kind, module.__name__):
                outcome[name] = of_class(kind, module, tiny)
    return outcome


def modules_of(folder: str) -> Iterator[tuple[str, Any]]:
    """The files of a folder that define models, each as a module; or why not: what it needs beside torch."""
    import transformers

    for file in sorted((Path(transformers.__file__).parent / "models" / folder).glob("modeling_*.py")):
        try:
            yield file.stem, importlib.import_module(f"transformers.models.{folder}.{file.stem}")
        except Exception as error:
            yield file.stem, error


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


def of_class(kind: Any, module: Any, tiny: Tiny) -> dict[str, Any]:
    """What `atlas.check` says of a class."""
    from attention_np import atlas
    from attention_np.atlas._source import source_of

    about: dict[str, Any] = {"digest": source_of(kind.forward, kind).digest}
    if about["digest"] not in atlas._door.tables().readings:
        return about | {"state": "unknown", "why": reason(kind.__module__.split(".")[2], kind.__name__)}
    failures: list[str] = []
    try:
        for made, calls in called(kind, module, tiny, failures):
            about |= {"state": "unknown"}
            layer = atlas.read(made)
            for given in calls:
                report = atlas.check(made, **given)
                about["recipe"] = str(layer).splitlines()[0].partition(": ")[2]
                about["error"] = max(report.worst, about.get("error", 0.0))
                if not report.ok:
                    bad = {key: x for key, x in report.errors.items() if x > report.tolerance}
                    return about | {"state": "wrong", "why": str(bad)[:300]}
            if other := dtypes(layer, calls[0]) - {"float32"}:
                return about | {
                    "state": "wrong",
                    "why": f"of a layer in float32 some numbers are in {', '.join(other)}",
                }
            of_default = partial(constructor, tiny=tiny, optional=False)
            return about | {"state": "whole"} | facts(made, layer, calls[0], of_default)
    except atlas.UnknownLayer as error:
        return about | {"state": "unknown", "why": str(error)}
    except Exception as error:
        import traceback

        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        state = "crashed" if "attention_np" in last.filename or "/atlas" in last.filename else "unmade"
        return about | {"state": state, "why": f"{type(error).__name__}: {error} ({where})"[:300]}
    return about | {"state": "unmade", "why": "; ".join(failures)[:300]}


def dtypes(layer: Any, given: dict[str, Any]) -> set[str]:
    """Those of the output and the gradients of a layer."""
    from attention_np.atlas._layer import plain

    output, cache = layer.forward(**plain(given))
    return {output.dtype.name, *(x.dtype.name for x in layer.backward(output, cache).values() if x is not None)}


def called(kind: Any, module: Any, tiny: Tiny, failures: list[str]) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """A module of a class with arguments of calls that it takes: such as its signature says, else a model's own."""
    tried = (tiny, tiny._replace(heads=8, d=8))  # the other for those who want powers of two
    for shapes in tried:
        for made in instances(kind, module, shapes, failures):
            try:
                yield made, arguments(made, shapes)
            except Exception as error:  # this configuration fits no call: the next may
                failures.insert(0, f"{type(error).__name__}: {error}"[:160])
    for shapes in (*tried, None):
        yield from recorded(kind, module, shapes, failures)


def instances(kind: Any, module: Any, tiny: Tiny, failures: list[str]) -> Iterator[Any]:
    """Modules of a class, made from tiny configurations."""
    for config, optional in product(configurations(kind, module, tiny), (False, True)):
        try:
            made = build(kind, config, tiny, optional)
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}"[:120])
            continue
        yield made


def build(kind: Any, config: Any, tiny: Tiny, optional: bool = False) -> Any:
    """A module of a class; with `optional` also those arguments of its constructor that are None."""
    import torch

    torch.manual_seed(tiny.seed)
    made = kind(**constructor(kind, config, tiny, optional))
    if kind.__name__ == "FalconH1Mixer":  # its model sets them
        made.register_buffer("mup_vector", torch.rand(1, 1, made.in_proj.out_features))
    return randomised(made)


def randomised(made: Any) -> Any:
    """The module with parameters that no gradient hides behind: none zero, one, or not finite."""
    import torch

    for name, parameter in made.named_parameters():
        plain = parameter.dim() < 2 or name.endswith(("norm.weight", "bias", "A_log"))
        if plain or not parameter.isfinite().all() or not parameter.any():
            with torch.no_grad():
                torch.nn.init.normal_(parameter, 1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.3)
    made.eval()  # which LeViT's does not return
    return made


def recorded(
    kind: Any, module: Any, tiny: Tiny | None, failures: list[str]
) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """Modules of a class inside of models of its folder, with the arguments that these call them with.

    The models are tiny, or, without sizes, of two layers and else as published, where that is not large.
    """
    import torch
    from transformers import PreTrainedModel

    models = [x for x in vars(module).values() if inspect.isclass(x) and issubclass(x, PreTrainedModel)]
    models = [x for x in models if x.__module__ == module.__name__ and "PreTrainedModel" not in x.__name__]
    for model in sorted(models, key=lambda x: ("For" in x.__name__, not x.__name__.endswith("Model"))):
        try:
            config = of_model(model, tiny)
            with torch.device("meta"):
                large = tiny is None and sum(x.numel() for x in model(config).parameters()) > LARGE
            if large:
                continue
            torch.manual_seed(0 if tiny is None else tiny.seed)
            made = model(config).eval()
        except Exception as error:
            failures.append(f"{model.__name__}: {type(error).__name__}: {error}"[:120])
            continue
        parts = [x for x in made.modules() if type(x) is kind]
        for inputs in of_modalities(made, tiny or Tiny()) if parts else ():
            calls: dict[int, tuple[Any, dict[str, Any]]] = {}

            def keep(part: Any, args: Any, kwargs: Any, calls: Any = calls) -> None:
                calls.setdefault(id(part), (part, by_names(part, args, kwargs)))

            hooks = [part.register_forward_pre_hook(keep, with_kwargs=True) for part in parts]
            try:
                with torch.no_grad(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    made(**inputs)
            except Exception as error:
                failures.append(f"{model.__name__} of {', '.join(inputs)}: {type(error).__name__}: {error}"[:160])
            for hook in hooks:
                hook.remove()
            for part, given in calls.values():
                yield randomised(part), [given]


def by_names(part: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by their names, without caches."""
    from attention_np.atlas._source import CACHES

    signature = inspect.signature(type(part).forward)
    given = dict(signature.bind(part, *args, **kwargs).arguments)
    given.pop(next(iter(signature.parameters)))
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given |= given.pop(name, {})
    return {name: copy.deepcopy(x) for name, x in given.items() if name not in CACHES}


def of_model(model: Any, tiny: Tiny | None) -> Any:
    """A tiny configuration of a model, and of the models inside of it."""
    from transformers import PretrainedConfig

    config = shrunk(model.config_class, tiny)
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            setattr(config, name, shrunk(type(value), tiny) or value)
    config._attn_implementation = "eager"
    return config


def of_modalities(made: Any, tiny: Tiny) -> Iterator[dict[str, Any]]:
    """Inputs of a model, of what it may be of the kind of: tokens, pictures, sound, or their states."""
    import torch

    takes = inspect.signature(made.forward).parameters
    config = made.config
    size = next((x for name in ("image_size", "input_size") if (x := getattr(config, name, None))), 32)
    size = tuple(size) if isinstance(size, list | tuple) else (size, size)
    channels = getattr(config, "num_channels", 3)
    tokens = torch.randint(3, 40, (tiny.batch, tiny.n))
    visible = torch.ones(tiny.batch, tiny.n).long()
    visible[0, -2:] = 0
    states = torch.randn(tiny.batch, tiny.n, getattr(config, "hidden_size", tiny.hidden))
    made_of = {
        "input_ids": tokens,
        "pixel_values": torch.randn(tiny.batch, channels if isinstance(channels, int) else 3, *size),
        "input_features": torch.randn(tiny.batch, 64, getattr(config, "num_mel_bins", None) or 80),
        "input_values": torch.randn(tiny.batch, 4000),
        "inputs_embeds": states,
        "hidden_states": states,
    }
    beside = {"attention_mask": visible, "decoder_input_ids": tokens, "bbox": torch.randint(0, 50, (*tokens.shape, 4))}
    beside = {name: x for name, x in beside.items() if name in takes}
    for name, x in made_of.items():
        if name in takes:
            yield {name: x} | {key: y for key, y in beside.items() if key != "attention_mask" or "input_i" in name}
            yield {name: x}
    if {"input_ids", "pixel_values"} <= set(takes):
        yield {"input_ids": tokens, "pixel_values": made_of["pixel_values"]}


def configurations(kind: Any, module: Any, tiny: Tiny) -> list[Any]:
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
    for x in list(found.values()):  # and those inside of them
        try:
            for part in vars(x()).values():
                if isinstance(part, PretrainedConfig):
                    found.setdefault(type(part).__name__, type(part))
        except Exception:
            continue
    if "config" not in inspect.signature(kind.__init__).parameters:
        return [None, *(shrunk(x, tiny) for x in found.values())]
    groups = (tiny.key_heads, tiny.heads)
    made = [y for heads in groups for x in found.values() if (y := shrunk(x, tiny, heads)) is not None]
    for config, (path, value) in product(made, FIELDS.get(kind.__name__, {}).items()):
        *homes, name = path.split(".")
        setattr(reduce(lambda home, part: getattr(home, part, home), homes, config), name, value)
    return made


def alike(one: str, other: str) -> int:
    """How many letters two names begin with together."""
    return next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))


def shrunk(kind: Any, tiny: Tiny | None, key_heads: int = 0) -> Any:
    """A tiny configuration; fields that it refuses one after the other keep their defaults."""
    try:
        config = kind()
    except Exception:
        return None
    wanted = sizes(tiny or Tiny())
    wanted = {name: wanted[name] for name in DEPTHS} if tiny is None else wanted
    if "num_key_value_heads" in wanted and key_heads:
        wanted["num_key_value_heads"] = key_heads
    names = [*vars(config), *getattr(config, "attribute_map", {})]
    fields = {name: x for name in names if (x := wanted.get(name, wanted.get(PREFIX.sub("", name)))) is not None}
    fields = {
        name: x
        for name, x in fields.items()
        if vars(config).get(name, 0) is not None or name == "head_dim" or name.endswith("heads")
    }
    lists = {name: [fields[name]] * len(x) for name in fields if isinstance(x := vars(config).get(name), list | tuple)}
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
    if tiny is not None and getattr(config, "expand", None):  # heads of Mamba-2, which share what the layer expands to
        config.head_dim = tiny.hidden * config.expand // tiny.heads
    parameters = getattr(config, "rope_parameters", None)
    if tiny is not None and isinstance(parameters, dict):  # of an odd number of features none are pairs
        turned = int(tiny.d * parameters.get("partial_rotary_factor", 1.0))
        parameters |= {"partial_rotary_factor": (turned - 1) / tiny.d} if turned % 2 else {}
    config._attn_implementation = "eager"
    return config


def name_of(kind: Any) -> str:
    """Of a class, with that of its folder."""
    return f"{kind.__module__.split('.')[2]}.{kind.__name__}"


def constructor(kind: Any, config: Any, tiny: Tiny, optional: bool) -> dict[str, Any]:
    """The arguments of a constructor, by their names."""
    wanted = constructor_sizes(tiny)
    if hasattr(config, "num_key_value_heads"):
        wanted["num_key_value_heads"] = config.num_key_value_heads
    made: dict[str, Any] = dict(CONSTRUCTORS.get(name_of(kind), {}))
    for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
        if name in made:
            continue
        if name == "config" or (name.endswith("config") and parameter.default is inspect.Parameter.empty):
            made[name] = config
        elif (parameter.default is inspect.Parameter.empty and parameter.kind in (1, 3)) or (
            optional and parameter.default is None and name in wanted
        ):
            if name not in wanted:
                raise KeyError(f"constructor needs {name}")
            made[name] = wanted[name]
        elif name == "layer_idx":
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


def arguments(made: Any, tiny: Tiny) -> list[dict[str, Any]]:
    """Arguments of the forward, by their names, that the module takes: of each kind of call the first that runs."""
    import torch

    if name_of(type(made)) in CALLS:
        torch.manual_seed(tiny.seed + 1)
        calls = CALLS[name_of(type(made))](made, tiny.n, tiny.batch, width_of(made) or tiny.hidden)
        with torch.no_grad():
            for given in calls:
                made(**given)
        return calls
    calls, failure = [], None
    points = re.search(r"query.shape\[:2\]", inspect.getsource(type(made).forward))
    names = inspect.signature(type(made).forward).parameters
    choices = {key: x if re.search(TAKEN[key], " ".join(names)) else x[:1] for key, x in CHOICES.items()}
    choices |= {"rank": ("points",)} if points else {}
    for cross in (False, True):
        for padded in (True, False):
            for choice in product(*choices.values()):
                torch.manual_seed(tiny.seed + 1)
                chosen = dict(zip(choices, choice, strict=True))
                try:
                    given = call(made, cross, padded, chosen, tiny)
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
    "rotary": ("full", "half", "tokens", "complex", "heads", "added", "relative", "distances"),
    "bias": ("batch", "none", "alibi"),
    "mask": ("float", "of tokens", "boolean", "of keys"),
}
TAKEN = {"rank": "", "rotary": "position_embeddings", "bias": "bias|alibi|reference", "mask": "mask"}  # arguments
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
KEYS = (
    "key",
    "value",
    "keys",
    "values",
    "k",
    "v",
    "context",
    "to_tensor",
    "hidden_kv",
    "key_tensor",
    "value_tensor",
    "key_states",
    "value_states",
    "key_hidden_states",
    "value_hidden_states",
)
CROSS = ("key_value_states", "encoder_hidden_states", "cross_attention_states", "kv")


def call(made: Any, cross: bool, padded: bool, chosen: dict[str, str], tiny: Tiny) -> dict[str, Any] | None:
    """One call of a module; None where it takes no such."""
    import torch

    n, batch = tiny.n, tiny.batch
    parameters = dict(list(inspect.signature(type(made).forward).parameters.items())[1:])
    needed = {name for name, x in parameters.items() if x.default is inspect.Parameter.empty and x.kind in (0, 1, 3)}
    if cross and not set(CROSS) & set(parameters):
        return None
    width, packed = width_of(made) or tiny.hidden, chosen["rank"] in ("packed", "one")
    if packed != ("cu_seqlens" in parameters):
        raise TypeError(f"{type(made).__name__} takes no {chosen['rank']}")
    shape = {"tokens": (batch, n), "packed": (n,), "one": (1, n), "picture": (batch, 3, 3), "points": (batch, 2, n)}
    shape["windows"] = (2 * batch, 9)
    leading = shape[chosen["rank"]]
    keys = n + 2 if cross or set(CROSS) & needed or "context" in parameters else n
    levels = [(2, 3), (3, 2), (1, 2), (2, 2), (1, 1)][: getattr(made, "n_levels", 0)]  # of a picture
    if "spatial_shapes_list" in parameters:
        keys = sum(height * width for height, width in levels)
    given: dict[str, Any] = {}
    for name in parameters:
        if name in QUERIES:
            given[name] = torch.randn(*leading, width)
        elif name == "residual":
            given[name] = torch.randn(*leading, tiny.hidden)
        elif name == "merged_attention_mask" and padded:
            given[name] = mask(made, chosen["mask"], n, n + keys, batch)
        elif name in KEYS:
            given[name] = torch.randn(*leading, width_of_keys(made, width))
        elif name in CROSS and (cross or name in needed or levels):
            given[name] = torch.randn(batch, keys, width_of_keys(made, width))
        elif name == "spatial_shapes_list":
            given[name] = levels
        elif name == "spatial_shapes":
            given[name] = torch.tensor(levels)
        elif name == "reference_points":
            given[name] = torch.rand(batch, n, 1 if chosen["bias"] == "none" else len(levels), 4 if padded else 2)
        elif name == "cu_seqlens":
            given[name] = torch.tensor([0, 3, n], dtype=torch.int32)
        elif name == "position_embeddings" and levels:
            given[name] = torch.randn(*leading, width)
        elif name == "position_embeddings":
            given[name] = rotary(made, leading, width, chosen["rotary"], tiny.d)
        elif name in ("position_bias", "attention_bias", "alibi") and name in needed:
            of_bias = {
                "batch": (1, tiny.heads, n, keys),
                "none": (tiny.heads, n, keys),
                "alibi": (batch * tiny.heads, 1, keys),
            }
            given[name] = torch.randn(of_bias[chosen["bias"]])
        elif name in ("rel_pos", "rel_2d_pos"):
            given[name] = torch.randn(batch, tiny.heads, n, keys)
        elif name in ("relative_distance", "attention_dists"):
            given[name] = distances(made, n)
        elif name == "shared_kv_states":
            given[name] = {}
        elif name in ("query_position_embeddings", "object_queries", "encoder_position_embeddings", "query_sine_embed"):
            length = keys if name.startswith("encoder") else n
            given[name] = torch.randn(batch, length, width)
        elif name == "position_ids":
            given[name] = torch.arange(n)[None].repeat(batch, 1)
        elif name in ("height", "width"):
            given[name] = 3
        elif name in ("attention_mask", "mask", "encoder_attention_mask") and padded and not packed:
            if chosen["rank"] == "windows":  # a number for each pair in each window of a sample
                given[name] = torch.where(torch.rand(batch, 9, 9) < 0.7, 0.0, -100.0)
            elif levels:  # of pixels
                given[name] = torch.rand(batch, keys) < 0.7
            else:
                given[name] = mask(made, chosen["mask"], n, keys, batch)
        elif name in needed:
            given[name] = None
    return given


def mask(made: Any, kind: str, n: int, keys: int, batch: int) -> Any:
    """A mask that hides the last two keys of the first sample, and what comes later where the module is causal."""
    import torch

    visible = torch.ones(batch, 1, n, keys).bool()
    visible[0, :, :, -2:] = False
    if getattr(made, "is_causal", False) and n == keys:
        visible &= torch.ones(n, keys).tril().bool()
    if kind == "float":
        return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    if kind == "boolean":
        return visible
    return visible[:, 0, -1] if kind == "of tokens" else visible[:, :, :1].float().log()


def distances(made: Any, n: int) -> Any:
    """From each query to each key; or as rows of a table, where the module has one, that begins with the farthest."""
    import torch

    places = torch.arange(n)
    table = getattr(made, "rel_pos_emb", None)
    return places[:, None] - places + (0 if table is None else table.num_embeddings // 2)


def width_of(made: Any) -> int | None:
    """The features that the module takes."""
    return next(filter(None, (in_features(made, name) for name in INPUTS)), None)


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


def rotary(made: Any, leading: tuple[int, ...], width: int, kind: str, d: int) -> Any:
    """Positions: added ones where they are added, else cosines and sines of angles."""
    import torch

    if kind == "added" or "+ position_embeddings" in inspect.getsource(type(made).forward):
        return torch.randn(*leading, width)
    if kind == "relative":
        return torch.randn(1, 2 * leading[-1] - 1, width)
    if kind == "distances":
        return distances(made, leading[-1])
    whole, part = ("head_dim", "head_size", "attention_head_size"), ("qk_rope_head_dim", "rotary_dim", "rotary_ndims")
    names = (*part, *whole)
    d = next((x for name in names if isinstance(x := getattr(made, name, None), int)), d)
    parameters = getattr(getattr(made, "config", None), "rope_parameters", None)
    factor = parameters.get("partial_rotary_factor", 1.0) if isinstance(parameters, dict) else 1.0
    if not any(name in vars(made) for name in part) and isinstance(factor, float):
        d = int(d * factor) // 2 * 2
    if kind == "heads":
        leading = (leading[0], width // d)
    angles = torch.randn(*(leading[1:] if kind == "tokens" else leading), d // 2)
    if kind != "half":
        angles = torch.cat([angles, angles], dim=-1)
    if kind == "complex":
        return torch.polar(torch.ones(angles.shape), angles)[..., : d // 2]
    return angles.cos(), angles.sin()


if __name__ == "__main__":
    sys.exit(main())
