"""From every query to every key: projections, norms, turns and gates around `multi_head` and `grouped_query`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_np import chain
from attention_np.atlas import recipes
from attention_np.atlas._interface import eager, filled
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import About, Mirror, UnknownLayer
from attention_np.atlas._parts import Norm, affine, of_conv1d, of_identity, of_linear
from attention_np.atlas.recipes._steps import activated

PLAIN = (of_linear, of_conv1d)
Condition = Callable[[Mirror, Arguments], bool]


class Dense:
    """A reading of projections q, k, v and o around softmax attention.

    `projections`: attributes of the module, "-" for none, or the one that makes q, k and v, and o; `layout`: how that
    one is laid out, a function of the module and its matrix; `size`: the attribute that is the features of a head;
    `heads`: instead the one that is their number; `x`, `memory`, `x_value`, `mask`: arguments; `refused`: those that
    must be None; `turn`: the helper that turns queries and keys, `turn_axis` where cos and sin get an axis; `norms`:
    attributes of norms of queries and keys, `of_all_heads` before these are taken apart, `norm_last` after the turn;
    `norm_value`, `norm_output`: attributes; `added`, `added_key`: positions that are added to what queries and keys are
    made of; `scale`: an attribute, or a number; `gate`: a projection that opens the output, by `gate_kind`, or "query"
    for the second half of each head of queries; `turn_if`, `norm_if`: when; `inline`: that the source has the attention
    itself; `packed`: the argument that says where sequences end; `visible`: a mask of the module's own; `interface`:
    what the source hands on to the attention function, words for attributes.
    """

    def __init__(
        self,
        projections: str = "q_proj k_proj v_proj o_proj",
        *,
        layout: Callable[..., Any] | None = None,
        size: str | Callable[..., Any] = "head_dim",
        heads: str | None = None,
        x: str = "hidden_states",
        memory: str | Callable[..., Any] | None = None,
        x_value: str | None = None,
        mask: str | None = "attention_mask",
        cross_mask: str | None = None,
        turn: str | None = "apply_rotary_pos_emb",
        positions: str | Callable[..., Any] = "position_embeddings",
        norms: str | None = None,
        of_all_heads: bool | Callable[..., Any] = False,
        norm_last: bool = False,
        norm_value: str | None = None,
        norm_output: str | None = None,
        added: str | None = None,
        added_key: str | None = None,
        scale: str | float | Callable[..., Any] | None = "scaling",
        gate: Callable[..., Any] | str | None = None,
        turn_axis: int | None = None,
        turn_if: Condition | None = None,
        norm_if: Condition | None = None,
        inline: bool = False,
        packed: str | None = None,
        refused: str = "",
        visible: Callable[..., Any] | None = None,
        gate_kind: str = "sigmoid",
        clip: str | Callable[..., Any] | None = None,
        value_size: str | None = None,
        value_scale: str | None = None,
        query_factor: Callable[..., Any] | None = None,
        filled: Callable[..., Any] | None = None,
        norm_each: bool = False,
        values_of_keys: bool = False,
        gate_if: str | None = None,
        **interface: Any,
    ) -> None:
        self.projections, self.layout, self.size, self.heads = projections.split(), layout, size, heads
        self.x, self.memory, self.x_value, self.mask, self.cross_mask = x, memory, x_value, mask, cross_mask
        self.turn, self.positions, self.norms, self.of_all_heads = turn, positions, norms, of_all_heads
        self.norm_last, self.norm_value, self.norm_output = norm_last, norm_value, norm_output
        self.added, self.added_key, self.scale, self.gate = added, added_key, scale, gate
        self.turn_axis, self.turn_if, self.norm_if, self.inline, self.packed = (
            turn_axis,
            turn_if,
            norm_if,
            inline,
            packed,
        )
        self.interface, self.refused, self.visible = interface, refused.split(), visible
        self.gate_kind, self.clip, self.value_size, self.value_scale = gate_kind, clip, value_size, value_scale
        self.values_of_keys, self.gate_if = values_of_keys, gate_if
        self.query_factor, self.filled, self.norm_each = query_factor, filled, norm_each
        special = (turn, norms, gate, norm_value, norm_output, clip, value_size, query_factor, interface.get("softcap"))
        self.recipe = recipes.grouped_query if any(special) else recipes.multi_head

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, of the arguments of the module."""
        for name in self.refused:
            if getattr(a, name) is not None:
                raise UnknownLayer(f"{m._about} is not known with {name}")
        x = getattr(a, self.x)
        memory = self.memory(m, a) if callable(self.memory) else getattr(a, self.memory) if self.memory else None
        x_value = getattr(a, self.x_value) if self.x_value else None
        mask = getattr(a, self.cross_mask) if self.cross_mask and memory is not None else None
        if self.mask and not (self.cross_mask and memory is not None):
            mask = getattr(a, self.mask)
        made = self._weights(m)
        made["d"] = self.size(m) if callable(self.size) else None if self.heads else getattr(m, str(self.size))
        if self.heads:
            made["d"] = made["w_query"].shape[-1] // getattr(m, self.heads)
        if self.value_scale and getattr(m, self.value_scale) is not None:
            made["w_value"] = made["w_value"] * getattr(m, self.value_scale)
            made["b_value"] = None if made["b_value"] is None else made["b_value"] * getattr(m, self.value_scale)
        if self.added and getattr(a, self.added) is not None:
            x_value = (x if memory is None else memory) if x_value is None else x_value
            if memory is None:
                memory = x + getattr(a, self.added)
            x = x + getattr(a, self.added)
        if self.added_key and getattr(a, self.added_key) is not None:
            x_value = memory if x_value is None else x_value
            memory = memory + getattr(a, self.added_key)
        n, keys = x.shape[-2], (x if memory is None else memory).shape[-2]
        made |= self._scores(m, a, mask, (n, keys)) | {"memory": memory, "x_value": x_value}
        if self.recipe is recipes.multi_head:
            if made.get("groups", 1) != 1:
                return recipes.grouped_query(x, **made, norm=None)
            return recipes.multi_head(x, **{name: value for name, value in made.items() if name != "groups"})
        made = {"groups": 1, "norm": None} | made
        if self.turn and (self.turn_if is None or self.turn_if(m, a)):
            cos, sin = self.positions(m, a) if callable(self.positions) else getattr(a, self.positions)
            axis = [] if self.turn_axis is None else [self.turn_axis]
            made |= m.function(self.turn)(np.asarray(cos), np.asarray(sin), *axis)
            made |= whole_sequence(made["cos"], made["sin"], n)
        if self.norms and (self.norm_if is None or self.norm_if(m, a)):
            made |= norms(m, x, *self.norms.split())
            if made["norm"] is not None:
                together = self.of_all_heads(m) if callable(self.of_all_heads) else self.of_all_heads
                made |= {"of_all_heads": together, "norm_last": self.norm_last}
        if self.query_factor:  # a factor of each feature of a head, behind the norm or the projection
            factor = self.query_factor(m)
            if made["norm"] is not None:
                made["query_gain"] = made["query_gain"] * factor
            else:
                columns = np.arange(made["w_query"].shape[-1]) % made["d"]
                made["w_query"] = made["w_query"] * factor[columns]
                made["b_query"] = None if made["b_query"] is None else made["b_query"] * factor[columns]
        if self.norm_value:
            made |= {"norm_value": True, "value_gain": options_of(getattr(m, self.norm_value), x)["gain"]}
        limit = self.clip(m) if callable(self.clip) else m.get(self.clip) if self.clip else None
        if limit:
            made["clip"] = limit
        if self.value_size:
            made["d_value"] = getattr(m, self.value_size)
        if self.norm_output and m.has(self.norm_output):
            own = options_of(getattr(m, self.norm_output), x)
            made |= {"norm_output": own["kind"], "output_epsilon": own["epsilon"], "norm_each": self.norm_each}
            made |= {"output_gain": own["gain"], "output_b": own["b"]}
        gated = self.gate is not None and (self.gate_if is None or m.has(self.gate_if))
        if self.gate == "query":
            made["w_query"], made["w_gate"] = half_of_query(m, made["w_query"])
            made["b_query"], made["b_gate"] = half_of_query(m, made["b_query"])
        elif gated:
            of_gate = self.gate(m) if callable(self.gate) else affine(getattr(m, str(self.gate)))
            made["w_gate"], made["b_gate"] = of_gate
        if gated:
            made["gate"] = self.gate_kind
        return self.recipe(x, **made)

    def _weights(self, m: Mirror) -> dict[str, Any]:
        if self.layout is None:
            return weights(m, *(or_key(m).split() if self.values_of_keys else self.projections))
        fused, output = self.projections
        made: dict[str, Any] = {}
        w, b = affine(getattr(m, fused))
        parts = zip(("query", "key", "value"), self.layout(m, w), self.layout(m, b), strict=True)
        for name, of_w, of_b in parts:
            made |= {f"w_{name}": of_w, f"b_{name}": of_b}
        if output != "-":
            made["w_output"], made["b_output"] = affine(getattr(m, output))
        return made

    def _scores(self, m: Mirror, a: Arguments, mask: Any, shape: tuple[int, int]) -> dict[str, Any]:
        given = {name: getattr(m, x) if isinstance(x, str) else x for name, x in self.interface.items()}
        given = {name: x(m, a) if callable(x) else x for name, x in given.items()}
        scale = getattr(m, self.scale) if isinstance(self.scale, str) else self.scale
        scale = scale(m, a) if callable(scale) else scale
        interface = eager(takes=("position_bias",)) if self.inline else m.function("interface")
        made: dict[str, Any] = interface(m, mask, scaling=scale, shape=shape, **given)
        if self.packed and getattr(a, self.packed) is not None:
            ends = np.asarray(getattr(a, self.packed))
            segment = np.searchsorted(ends, np.arange(shape[0]), side="right")
            made["mask"] = segment[:, None] == segment
        if self.filled:
            low = filled(self.filled(m, a), made["scale"], m)
            if made["bias"] is not None and low:
                low["bias"] = [made["bias"], low["bias"]]
            made |= low
        if self.visible:
            made["mask"] = self.visible(m, shape)
        return made

    def check(self, about: About) -> None:
        """Refuse projections and norms of another kind."""
        for name in (*self.projections, *([self.gate] if isinstance(self.gate, str) and self.gate != "query" else [])):
            absent = self.values_of_keys and about.parts.get(name) is None
            if name != "-" and not absent and getattr(about.parts.get(name), "compute", None) not in PLAIN:
                raise UnknownLayer(f"{name} of {about} is no plain projection")
        for name in (*(self.norms or "").split(), *filter(None, [self.norm_value])):
            compute = getattr(about.parts.get(name), "compute", None)
            if not self.norm_if and compute is not of_identity and not isinstance(compute, Norm):
                raise UnknownLayer(f"{name} of {about} is no known norm")

    def absent(self, about: About) -> set[str]:
        """The names of the recipe's options that this class has not."""
        has: dict[str, Any] = {"cos": self.turn, "w_gate": self.gate, "norm": self.norms, "memory": self.memory}
        has |= {"of_all_heads": self.of_all_heads, "norm_last": self.norm_last, "norm_value": self.norm_value}
        has |= {"norm_output": self.norm_output, "w_output": self.projections[-1] != "-"}
        return {name for name, there in has.items() if not there}


def whole_sequence(cos: Any, sin: Any, n: int) -> dict[str, Any]:
    """Angles of the last tokens, before which others are not turned."""
    first = max(n - cos.shape[-2], 0) if cos.shape[-2] > 1 else 0
    widths = [(0, 0)] * (cos.ndim - 2) + [(first, 0), (0, 0)]
    return {"cos": np.pad(cos, widths, constant_values=1.0), "sin": np.pad(sin, widths)}


def weights(m: Mirror, *projections: str) -> dict[str, Any]:
    """Of linear projections q, k, v and o, as recipes name them."""
    made: dict[str, Any] = {}
    for name, attribute in zip(("query", "key", "value", "output"), projections, strict=True):
        if attribute != "-":
            made[f"w_{name}"], made[f"b_{name}"] = affine(getattr(m, attribute))
    return made


def options_of(part: Mirror, x: Any) -> dict[str, Any]:
    """Of a norm: its gain, b, kind and epsilon."""
    compute = part._about.compute
    if not isinstance(compute, Norm):
        raise UnknownLayer(f"{part._about} is no known norm")
    return compute.options(part, x)


def norms(m: Mirror, x: Any, query: str, key: str) -> dict[str, Any]:
    """Of the norms of queries and keys, as recipes name them."""
    if getattr(m, query)._about.compute is of_identity:
        return {"norm": None}
    of_query, of_key = options_of(getattr(m, query), x), options_of(getattr(m, key), x)
    made = {"query_gain": of_query["gain"], "key_gain": of_key["gain"], "query_b": of_query["b"], "key_b": of_key["b"]}
    return made | {"norm": of_query["kind"], "epsilon": of_query["epsilon"]}


def thirds(m: Mirror, w: Any) -> tuple[Any, Any, Any]:
    """Queries, keys and values one behind the other, as wide as each other."""
    if w is None:
        return None, None, None
    d = w.shape[-1] // 3
    return w[..., :d], w[..., d : 2 * d], w[..., 2 * d :]


def of_each_head(size: str = "head_dim", order: tuple[int, int, int] = (0, 1, 2)) -> Callable[[Mirror, Any], Any]:
    """Of each head its query, key and value, in the order of places."""

    def layout(m: Mirror, w: Any) -> Any:
        if w is None:
            return None, None, None
        apart = w.reshape(*w.shape[:-1], -1, 3, getattr(m, size))
        return tuple(apart[..., i, :].reshape(*w.shape[:-1], -1) for i in order)

    return layout


def grouped(heads: Callable[[Mirror], tuple[int, int]]) -> Callable[[Mirror, Any], tuple[Any, Any, Any]]:
    """All queries, then keys and values of fewer heads: the features of each."""

    def layout(m: Mirror, w: Any) -> tuple[Any, Any, Any]:
        if w is None:
            return None, None, None
        first, each = heads(m)
        return w[..., :first], w[..., first : first + each], w[..., first + each :]

    return layout


def half_of_query(m: Mirror, w: Any) -> Any:
    """The rows of each head of a projection that makes d features of its query, then d of its gate: (query, gate)."""
    if w is None:
        return None, None
    apart = w.reshape(*w.shape[:-1], -1, 2, m.head_dim)
    return tuple(apart[..., i, :].reshape(*w.shape[:-1], -1) for i in (0, 1))


def a_head(name: str) -> Callable[[Mirror], tuple[Any, Any]]:
    """A gate of one number a head, for all of its features."""

    def gate(m: Mirror) -> tuple[Any, Any]:
        w, b = affine(getattr(m, name))
        columns = np.repeat(np.arange(w.shape[-1]), m.head_dim)
        return w[..., columns], None if b is None else b[..., columns]

    return gate


def own_causal(m: Mirror, shape: tuple[int, int]) -> Any:
    """The module's buffer of who sees whom, its last rows."""
    n, keys = shape
    return np.asarray(m.bias)[..., keys - n : keys, :keys] != 0


def bigcode(m: Mirror, w: Any) -> Any:
    """GPTBigCode: one head of keys and values behind all of queries, or those of each head together."""
    if m.is_cross_attention:
        raise UnknownLayer(f"{m._about} is not known as cross attention")
    if m.multi_query:
        return grouped(lambda m: (m.embed_dim, m.kv_dim))(m, w)
    return of_each_head()(m, w)


def codegen(m: Mirror, w: Any) -> Any:
    """CodeGen: in parts for machines, of each its queries, values and keys."""
    if w is None:
        return None, None, None
    apart = w.reshape(*w.shape[:-1], m.mp_num, 3, -1)
    return tuple(apart[..., i, :].reshape(*w.shape[:-1], -1) for i in (0, 2, 1))


def beam_gate(m: Mirror) -> tuple[Any, Any]:
    """Beam: each head's gate has a bias of its own."""
    w, b = affine(m.gate_proj)
    of_heads = m.gate_bias[np.repeat(np.arange(m.gate_bias.shape[0]), m.head_dim)]
    return w, of_heads if b is None else b + of_heads


def own_scale(name: str) -> Callable[[Mirror, Arguments], Any]:
    """Scores are also multiplied by an argument, which is per query."""
    return lambda m, a: m.scaling if getattr(a, name) is None else m.scaling * np.asarray(getattr(a, name))


def refuse(m: Mirror, *names: str) -> None:
    """Refuse a module where one of these attributes is set."""
    for name in names:
        if m.get(name):
            raise UnknownLayer(f"{m._about} is not known with {name}")


def refuse_config(m: Mirror, name: str) -> bool:
    """Refuse a module whose configuration asks for what is not known; else False."""
    if m.config.get(name):
        raise UnknownLayer(f"{m._about} is not known with {name}")
    return False


def of_tokens(hidden: Any) -> Any:
    """(b, m) or (b, n, m) as (b, 1, n or 1, m)."""
    return hidden[:, None, None] if hidden.ndim == 2 else hidden[:, None]


def llama4_scale(m: Mirror, a: Arguments) -> Any:
    """Queries far behind grow by the logarithm of their position (Ministral 3)."""
    parameters = m.config.rope_parameters
    beta, length = parameters["llama_4_scaling_beta"], parameters["original_max_position_embeddings"]
    growth = 1 + beta * np.log(1 + np.floor(np.asarray(a.position_ids) / length))
    return m.scaling * growth[:, None, :, None]


def timesfm_factor(m: Mirror) -> Any:
    """TimesFM: softplus of a parameter, so that zeros make 1 / sqrt(d)."""
    return activated(m.scaling, "softplus") * (1.442695041 / m.head_dim**0.5)


def or_key(m: Mirror) -> str:
    """Gemma 4: where there is no projection of values, that of keys makes them."""
    return "q_proj k_proj v_proj o_proj" if m.has("v_proj") else "q_proj k_proj k_proj o_proj"


def not_shared(name: str = "is_kv_shared_layer") -> Condition:
    """Turn, and refuse a layer that takes its keys and values from another."""

    def condition(m: Mirror, a: Arguments) -> bool:
        refuse(m, name)
        return True

    return condition


def given(name: str = "position_embeddings") -> Condition:
    """Where an argument is given."""
    return lambda m, a: getattr(a, name) is not None


BERT = "query key value -"
OUT = "q_proj k_proj v_proj out_proj"
SIZE: dict[str, Any] = {"size": "attention_head_size", "turn": None}
VISION: dict[str, Any] = {"mask": None, "packed": "cu_seqlens", "turn": "apply_rotary_pos_emb_vision"}
DETR: dict[str, Any] = {"turn": None, "added": "position_embeddings"}

READINGS = {
    "63250adb2d 9f4eb9bb0a f37f16b520 b6594dfd91 49a30bd320 bb856258f9": Dense(),  # Llama, Mistral, Qwen2
    "78c0dd7b35 79cfacf8b3 ff1fe6e28c 44f518459c 6d67d3f803": Dense(),  # Mllama, GLM-4V, GLM-ASR, Mimi
    "febe1d6347 c20218ac53 2fe823830e": Dense(turn=None),  # ViT, Jamba
    "e9b486a2aa a613115d47 48ebf23c95": Dense(OUT, memory="key_value_states", turn=None),  # BART, wav2vec 2.0
    "2130e75b58": Dense(OUT, memory="encoder_hidden_states", turn=None),  # SeamlessM4T
    "c23aa7a294": Dense(memory="encoder_hidden_states", turn=None),  # Canary
    "b7ef8d2265": Dense(BERT, memory="encoder_hidden_states", **SIZE),
    "331b94fb41 b748c69ba0": Dense(BERT, **SIZE),
    "ea3c043364": Dense(BERT, memory="encoder_hidden_states", cross_mask="encoder_attention_mask", **SIZE),  # Q-Former
    "7b750488d9": Dense(BERT, inline=True, scale=None, **SIZE),  # FLAVA
    "d8897a6312": Dense(  # BigBird, whole
        BERT, memory="encoder_hidden_states", cross_mask="encoder_attention_mask", inline=True, scale=None, **SIZE
    ),
    "8e397cea22": Dense(OUT, turn=None, scale="scale", is_causal="is_causal"),
    "c92d86bde1 5e5234f6e9": Dense(OUT, turn=None, scale="scale"),  # CLIP, OWL-ViT
    "2fb25d73f2 a032cc2b44": Dense(**DETR),
    "7a5e9c799b": Dense(memory="key_value_states", added_key="encoder_position_embeddings", **DETR),
    "aef315fb0c aaa7ce3efc 11df914c07 0b97017cc7": Dense(norms="q_norm k_norm"),  # Qwen3, Gemma 3
    "b3ac900c12": Dense(norms="q_norm k_norm", norm_if=lambda m, _: m.use_qk_norm),  # GLM-4
    "8b9e182b60": Dense(
        norms="q_norm k_norm", turn_if=lambda m, _: m.sliding_window is None or m.is_sliding
    ),  # EXAONE 4
    "7ffefe853c": Dense(OUT, norms="q_layernorm k_layernorm"),  # LFM2
    "5cf0507ba8": Dense(norms="q_norm k_norm", of_all_heads=True),  # OLMo 2
    "cfa776d14b": Dense(norms="query_layernorm key_layernorm", norm_last=True),  # HunYuan
    "f983a6f780": Dense(softcap="attn_logit_softcapping"),  # Gemma 2
    "a1fef84c93": Dense(turn_if=lambda m, _: m.sliding_window is not None),  # Cohere 2
    "286651543c": Dense(norms="q_norm k_norm", gate="gate_proj", turn_if=lambda m, _: m.is_local_attention),  # AFMoE
    "04f587f7fd": Dense(norm_output="attn_sub_norm"),  # BitNet
    "95c8c861c8": Dense("qkv proj", layout=thirds, heads="num_heads", **VISION),  # Qwen2-VL vision
    "c08139e6ca": Dense(OUT, **VISION),
    "06817728fe": Dense(
        "qkv proj",
        layout=thirds,
        heads="num_heads",
        **VISION,
        norms="q_norm k_norm",
    ),
    "9712ce02eb": Dense("q_proj k_proj v_proj proj", **VISION),
    "a2788d36c4": Dense(OUT, turn=None, mask=None, packed="cu_seqlens"),
    "b619c16d13": Dense(OUT, turn=None, heads="num_heads", mask=None, packed="cu_seqlens"),
    "469c90c01e ab67b02651": Dense(
        "qkv projection", layout=thirds, heads="num_heads", turn=None, mask=None, scale="scale"
    ),  # BLIP-2
    "63243ed152": Dense(
        "qkv projection", layout=thirds, heads="num_heads", turn=None, mask=None, scale="scale", inline=True
    ),
    "4b75344560": Dense(BERT, mask=None, is_causal="is_causal", **SIZE),  # DPT
    "2882bb53c8": Dense(OUT, turn=None),  # Qwen2-Audio: queries are scaled before
    "34e5214b65": Dense(OUT, memory="key_value_states", turn=None),  # Whisper
    "7235e435e2": Dense(
        "query key value out_proj", x="queries", memory="keys", x_value="values", inline=True, scale=None, **SIZE
    ),  # Grounding DINO
    "368e5f2ca0": Dense(x="query", memory="key", x_value="value", turn=None, is_causal="is_causal"),  # SAM 3
    "0d970d36b9": Dense(
        "q_proj k_proj v_proj projection_layer", turn=None, norms="q_norm k_norm", of_all_heads=True, scale="scale"
    ),  # InternVL
    "debfe602d8": Dense(  # Phi-3
        "qkv_proj o_proj",
        layout=grouped(lambda m: (m.config.num_attention_heads * m.head_dim, m.num_key_value_heads * m.head_dim)),
    ),
    "55844d48fd": Dense(BERT, position_bias=lambda m, a: a.position_bias, **SIZE),  # LayoutLMv3
    "c8a051bfe3": Dense(turn_if=lambda m, _: m.sliding_window is not None or m.force_rope),  # Cohere 2 MoE
    "ce20bd8136 c188a7f5bf 8ef3e08b1e": Dense(turn_if=given()),  # Granite
    "9b4a2b12df": Dense(OUT, turn=None, mask=None, packed="cu_seqlens", scale="scale"),
    "cafe922eaf": Dense("Wq Wk Wv dense", x="q", memory="k", x_value="v", turn=None),  # CTRL
    "880fd42563": Dense(memory="cross_attention_states", turn=None),  # Dia
    "9a56ff59d4": Dense("q_lin k_lin v_lin out_lin", **SIZE),  # DistilBERT
    "0d8b253b24": Dense(norms="q_norm k_norm", of_all_heads=True),  # ESM C
    "afe7b8558e": Dense(norms="q_norm k_norm", gate="gate_proj"),  # ESMFold 2 atoms
    "c925d145f3": Dense(mask="attention_bias", turn=None, gate="gate_proj"),  # ESMFold 2 diffusion
    "573668fe86": Dense(
        "qkv proj",
        layout=grouped(lambda m: (m.q_dim, m.kv_dim)),
        **VISION,
    ),
    "814ac11779": Dense(norms="q_norm k_norm", norm_value="v_norm"),  # EmbeddingGemma 2
    "7ba78441cb": Dense(BERT, inline=True, scale=None, **SIZE),  # GIT
    "bb3560e1c8 c3d7663abc": Dense(OUT, turn=None, scale="scale", is_causal="is_causal"),
    "a41589cfde": Dense("qkv proj", layout=thirds, heads="num_heads", turn=None, mask=None, packed="cu_seqlens"),
    "cb6e95dcb2": Dense("query_key_value dense", layout=of_each_head("head_size"), size="head_size"),  # GPT-NeoX
    "d65f066238": Dense(
        "query_key_value dense",
        layout=of_each_head("head_size"),
        size="head_size",
        inline=True,
        scale=lambda m, _: 1.0 / float(m.norm_factor),
    ),
    "c3a5200fac": Dense(),  # GPT-OSS: a sink
    "5af3616c16": Dense(norms="q_norm k_norm", turn_if=lambda m, _: m.sliding_window is not None),  # Flint
    "3088014d13": Dense(OUT),  # GPT-J
    "83229d81e9": Dense("qkv_proj out_proj", layout=codegen),  # CodeGen
    "071d7382f8": Dense(OUT, turn=None, inline=True, scale=1.0, visible=own_causal),  # GPT-Neo
    "8cccb301dc": Dense(OUT, memory="encoder_hidden_states", turn=None, inline=True, scale="scale"),  # GroupViT
    "daa0f96019": Dense(gate="gate_proj"),  # HRM
    "e6f5217f60": Dense(
        "q_proj k_proj v_proj projection_layer",
        turn=None,
        norms="q_norm k_norm",
        scale="scale",
        is_causal="is_causal",
    ),  # Janus
    "e74b13ccd0": Dense(norms="q_norm k_norm"),  # Chameleon
    "acf1c423cd": Dense(OUT, memory="encoder_hidden_states", turn=None, norm_output="inner_attn_ln"),  # Kosmos-2
    "8ce7bf5952": Dense(OUT, memory="encoder_hidden_states", turn=None),
    "af478fa1f4": Dense(  # Laguna
        norms="q_norm k_norm",
        gate=lambda m: a_head("g_proj")(m) if m.gate_per_head else affine(m.g_proj),
        gate_kind="softplus",
    ),
    "6aed5b1b6e": Dense(),  # LASR
    "47952370ab": Dense(
        OUT,
        norms="q_norm k_norm",
        mask=None,
        refused="attention_mask",
        packed="cu_seqlens",
        turn="apply_rotary_pos_emb_vision",
    ),
    "da63ececc4": Dense(
        memory="encoder_hidden_states", cross_mask="encoder_attention_mask", turn_if=given()
    ),  # LightGlue
    "458a09e6f3": Dense(OUT, memory="key_value_states", turn=None, inline=True),  # LED decoder
    "397e4ede17": Dense(scale=lambda m, _: m.scaling * m.key_multiplier),  # Falcon-H1
    "de4b1a5ae8": Dense(
        norms="q_norm k_norm", turn_if=given(), gate=beam_gate, scale=own_scale("attention_scaling")
    ),  # Beam
    "ec1a0e70c6": Dense("c_attn c_proj", layout=bigcode, turn=None),
    "77c6a501aa": Dense(norms="q_norm k_norm", gate="query"),  # Qwen3-Next
    "e30b313791": Dense(
        x="query",
        memory="key",
        x_value="value",
        turn=None,
        mask=None,
        refused="attention_similarity",
        is_causal="is_causal",
    ),  # SAM 2
    "7fff3fbce9": Dense(
        OUT,
        heads="num_attention_heads",
        x="query",
        memory="key",
        x_value="value",
        turn=None,
        mask=None,
        refused="attention_similarity",
        is_causal="is_causal",
    ),  # SAM
    "4e7ff912ad": Dense(BERT, memory="context", inline=True, scale=None, **SIZE),  # LXMERT
    "fdee6b47b8 50226add2b 9ba4f63f8f": Dense(BERT, memory="encoder_hidden_states", inline=True, scale=None, **SIZE),
    "b649796a0c": Dense("qkv proj", layout=thirds, heads="num_heads", turn=None, mask=None, scale="scale", inline=True),
    "0a67cb8e06": Dense("qkv -", layout=thirds, heads="num_heads", turn=None, mask=None, scale="scale", inline=True),
    "757b88c5db": Dense(scale=llama4_scale),  # Ministral 3
    "d7a6a95d92": Dense(OUT, turn="apply_rotary_pos_emb_vision", scale="scale", is_causal="is_causal"),  # MLCD
    "ee7c483ccc": Dense(norms="q_norm k_norm", memory="cross_attention_states", turn=None),  # Mllama
    "64c6d131ad 0997869f42 82877df6ab": Dense(turn=None),  # Mllama vision, Phi-4 audio, Zamba
    "46a7043177": Dense(BERT, inline=True, mask=None, scale=None, **SIZE),  # MobileViT
    "5e730adef4": Dense("Wqkv Wo", layout=thirds, scale=lambda m, _: m.head_dim**-0.5),  # ModernBERT
    "37296f3e2d": Dense("q_proj k_proj v_proj Wo"),
    "6861406660": Dense(
        norms="q_norm k_norm",
        norm_if=lambda m, _: m.qk_norm_type in ("olmo", "qwen3"),
        of_all_heads=lambda m: m.qk_norm_type == "olmo",
    ),  # Molmo 2
    "9546371272": Dense(memory="encoder_hidden_states", turn=None, is_causal="is_causal"),
    "fa510bf34f": Dense(
        "q k v o", inline=True, scale=None, position_bias=lambda m, a: a.position_bias, **SIZE
    ),  # MPNet
    "8a043b6e8a": Dense(
        "Wqkv out_proj",
        layout=thirds,
        heads="n_heads",
        turn=None,
        mask=None,
        clip="clip_qkv",
        inline=True,
        scale="softmax_scale",
        position_bias=lambda m, a: a.position_bias,
        filled=lambda m, a: a.attention_mask,
    ),  # MPT
    "ccc28f751a": Dense(
        norms="qk_norm qk_norm",
        turn_if=given(),
        gate="gate_proj",
        scale=lambda m, _: m.scaling * m.qk_scale_factor,
    ),  # Muse
    "aa55ad10fa": Dense(
        norms="qk_norm qk_norm",
        turn_if=given(),
        gate="gate_proj",
        norm_output="o_norm",
        norm_each=True,
        scale=lambda m, _: m.scaling * m.qk_scale_factor,
    ),
    "a37f769213": Dense(norms="q_norm k_norm", norm_last=True),  # nanochat
    "88d5db1206": Dense(norms="q_norm k_norm"),
    "2d3b198864": Dense(OUT, memory="key_value_states", turn=None),  # NLLB
    "cc382e082b": Dense(clip=lambda m: m.config.clip_qkv),  # OLMo
    "3bbfe08b30": Dense(norms="q_norm k_norm", of_all_heads=True),  # OLMo 3
    "4a456c64a2": Dense(norms="q_norm k_norm", of_all_heads=True, turn_if=given()),
    "fb81369755": Dense(norms="q_norm k_norm", of_all_heads=True, clip=lambda m: m.config.clip_qkv),  # OLMoE
    "52ceee54c5": Dense(scale=lambda m, _: m.scaling**2),
    "04834f8d4c": Dense(OUT, turn=None),  # OPT
    "d29e168732": Dense(norms="q_layernorm k_layernorm", norm_if=lambda m, _: m.qk_layernorm),  # StableLM
    "67bf904712": Dense(OUT, turn=None),
    "614af7727a": Dense("query key value output", size="key_value_proj_dim", turn=None),  # Pix2Struct
    "4a177c013c": Dense("query key value output", turn=None),  # Kosmos-2.5
    "29afec1d95": Dense(turn_axis=0),  # Pixtral
    "2a03076d07": Dense("q k v proj", heads="num_heads", **VISION),
    "d4b5e6b5a7": Dense(turn=None, packed="cu_seqlens"),  # RADIO
    "b9b2293067": Dense(positions=lambda m, a: m.rotary_emb(None, a.position_ids)),  # RecurrentGemma
    "de7473e778": Dense(OUT, memory="key_value_states", turn=None, inline=True, refused="position_bias"),
    "c29b47d402 8e3dd47e6c e8450d8cb9": Dense(),  # Seed-OSS, StarCoder 2
    "af3c3de0e1": Dense(turn_if=lambda m, _: bool(m.use_rope)),  # SmolLM 3
    "39924e61a0": Dense(norms="q_norm k_norm", gate=a_head("g_proj")),  # Step 3
    "653f458cf2": Dense(norms="q_norm k_norm", gate=a_head("g_proj"), gate_if="g_proj"),  # LFM 3
    "99b4d0477c": Dense(OUT, turn="apply_rotary_pos_emb_vision", scale="scale"),
    "920a8a78a3": Dense(
        BERT, memory="encoder_hidden_states", cross_mask="encoder_attention_mask", inline=True, scale=None, **SIZE
    ),  # SuperGlue
    "5b4633c310": Dense(turn=None, scale=1.0, query_factor=timesfm_factor),  # TimesFM
    "9c3e3c02f2": Dense(norms="q_norm k_norm", norm_last=True, scale=1.0, query_factor=timesfm_factor),
    "b59de0317b": Dense(OUT, turn=None, scale="scale", is_causal="is_causal"),
    "0096f43264 9eeceb1906": Dense(OUT, memory="key_value_states", turn=None, inline=True),  # TrOCR, XGLM
    "f94726e82a": Dense(BERT, mask=None, is_causal="is_causal", **SIZE),  # VideoMAE
    "4e17e5446b": Dense(turn=None, softcap="attn_logit_softcapping"),  # VideoPrism
    "3eb7cef300": Dense(
        "q_proj k_proj v_proj -",
        x="queries",
        memory="keys",
        x_value="values",
        turn=None,
        scale="scale",
        is_causal="is_causal",
    ),  # V-JEPA 2
    "8df1919499": Dense(OUT, turn=None, scale="scale", is_causal="is_causal"),
    "e069435d31": Dense(
        "q_proj k_proj v_proj proj", x="queries", memory="keys", x_value="values", turn=None, mask=None, scale="scale"
    ),  # X-CLIP
    "af459c8d13": Dense(turn_if=lambda m, _: refuse_config(m, "use_shared_attention_adapter") or m.config.use_mem_rope),
    "88f150ce09": Dense(),  # DINOv3
    "af86740eb0": Dense(norms="q_norm k_norm"),  # Sapiens 2
    "c8ab0aa67a": Dense("c_attn c_proj", layout=thirds, turn=None, refused="encoder_hidden_states"),  # GPT-2
    "57e08cbe6a": Dense(
        "q_lin k_lin v_lin out_lin",
        heads="n_heads",
        x="input",
        memory="kv",
        mask=None,
        turn=None,
        inline=True,
        scale=None,
        filled=lambda m, a: of_tokens(np.asarray(a.mask) == 0),
    ),  # XLM
    "4126c971b9": Dense(norms="q_norm k_norm", norm_value="v_norm", values_of_keys=True, is_causal="is_causal"),
    "b23c4fe723": Dense(norms="q_norm k_norm", norm_value="v_norm", values_of_keys=True, turn_if=not_shared()),
    "48d12d52b2": Dense(
        BERT,
        size="attention_head_size",
        memory="encoder_hidden_states",
        cross_mask="encoder_attention_mask",
        scale=lambda m, _: m.scaling * m.attention_head_size**-0.5,
        turn_if=lambda m, _: m.position_embedding_type == "rotary",
    ),  # ESM
    "7a32e8405d": Dense(
        x="latents",
        memory=lambda m, a: chain.concatenate([a.context, a.latents], axis=-2),
        turn=None,
        is_causal="is_causal",
    ),  # Idefics 2
    "c2419d1aea": Dense(
        "att_proj out_proj",
        layout=thirds,
        turn=None,
        inline=True,
        scale=None,
        visible=lambda m, shape: own_causal(m, shape) if m.is_causal else None,
    ),  # Bark
}
