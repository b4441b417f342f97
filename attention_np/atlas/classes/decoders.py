"""Decoders of language whose attention has a turn of its own: Falcon, BLOOM, Llama 4, Moshi, Zamba and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_np import chain
from attention_np.atlas import recipes
from attention_np.atlas._interface import eager, sdpa
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import About, Mirror, UnknownLayer
from attention_np.atlas._parts import affine, of_linear, rotation
from attention_np.atlas.classes.compressed import angles
from attention_np.atlas.classes.dense import Dense, given, grouped, not_shared, of_each_head, own_causal, refuse, thirds
from attention_np.atlas.classes.states import conv_of, masked, visible_of


class Own(Dense):
    """A reading with `scores` of the module's own lines, of which `before` changes arguments and `after` the output."""

    def __init__(
        self,
        projections: str,
        *,
        scores: Callable[..., dict[str, Any]] | None = None,
        before: Callable[..., dict[str, Any]] | None = None,
        after: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(projections, **options)
        self.scores, self.before, self.after = scores, before, after

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, of the arguments of the module."""
        output = super().__call__(m, Arguments(a._given | self.before(m, a)) if self.before else a)
        return output if self.after is None else self.after(m, a, output)

    def _scores(self, m: Mirror, a: Arguments, mask: Any, shape: tuple[int, int]) -> dict[str, Any]:
        return self.scores(m, a, mask, shape) if self.scores else super()._scores(m, a, mask, shape)


BIASED = eager(takes=("position_bias",))


def bloom(m: Mirror, a: Arguments, mask: Any, shape: tuple[int, int]) -> dict[str, Any]:
    """BLOOM: ALiBi of all heads of all samples is (b * h, 1 or n, m); projections in slices are refused."""
    if m.pretraining_tp > 1 and m.slow_but_exact:
        raise UnknownLayer(f"{m._about} is not known with slow_but_exact")
    alibi = np.asarray(a.alibi).reshape(-1, m.num_heads, *a.alibi.shape[1:]) * m.beta
    return BIASED(m, mask, scaling=m.inv_norm_factor, position_bias=alibi)


def falcon(m: Mirror, a: Arguments, mask: Any, shape: tuple[int, int]) -> dict[str, Any]:
    """Falcon: without sdpa ALiBi is scaled as the products are; with it, the mask holds ALiBi."""
    own = {"groups": m.num_heads // m.num_kv_heads}
    if m.config._attn_implementation == "sdpa" and not a.output_attentions:
        return sdpa(m, mask, scaling=m.head_dim**-0.5, shape=shape) | own
    alibi = None if a.alibi is None else a.alibi.reshape(-1, m.num_heads, 1, shape[1]) * m.inv_norm_factor
    return BIASED(m, mask, scaling=m.head_dim**-0.5, position_bias=alibi) | own


def of_falcon(m: Mirror, w: Any) -> Any:
    """Of each head of keys its queries, its key and its value; or all queries, and one key and value."""
    if w is None:
        return None, None, None
    heads = m.num_kv_heads if m.new_decoder_architecture else 1 if m.multi_query else m.num_heads
    apart = w.reshape(*w.shape[:-1], heads, -1, m.head_dim)
    return tuple(x.reshape(*w.shape[:-1], -1) for x in (apart[..., :-2, :], apart[..., -2, :], apart[..., -1, :]))


def gpt(m: Mirror, a: Arguments, mask: Any, shape: tuple[int, int]) -> dict[str, Any]:
    """GPT: scores of later tokens are -10000, even weights where the mask hides all others. In ImageGPT they are lower.

    ImageGPT's scale may be left out, and fall with the number of the layer.
    """
    refuse(m, "is_cross_attention")
    d = m.split_size // m.get("n_head", m.get("num_heads"))
    scale = d**-0.5 if m.get("scale", m.get("scale_attn_weights")) else 1.0
    scale = scale / (m.layer_idx + 1) if m.get("scale_attn_by_inverse_layer_idx") else scale
    visible = own_causal(m, shape)
    added = np.asarray(0.0 if mask is None else mask)
    shown = added > -1e3
    if (~shown & (added > -1e30)).any():  # which would compete with the -10000 of later tokens
        raise UnknownLayer(f"{m._about} is known with masks of more than -1000, or of a dtype's lowest number")
    alone = ~(visible & shown).any(axis=-1, keepdims=True)
    if alone.any():
        visible, scale = np.where(alone, shown, visible), np.where(alone, 0.0, scale)
        if not visible.any(axis=-1).all() or m.get("n_head") is None:
            raise UnknownLayer(f"{m._about} is not known where the mask hides all keys that a query may see")
    return eager()(m, mask, scaling=scale) | {"mask": visible}


def cpmant(m: Mirror, a: Arguments, mask: Any, shape: tuple[int, int]) -> dict[str, Any]:
    """CPM-Ant: a query that sees nothing has the output of zeros."""
    if m.softmax.dim != -1:
        raise UnknownLayer(f"{m._about} is a softmax over another axis than the keys")
    visible = np.asarray(mask).reshape(-1, 1, *shape) != 0
    return BIASED(m, None, position_bias=np.asarray(a.position_bias)) | {"mask": visible}


def before_blt(m: Mirror, a: Arguments) -> dict[str, Any]:
    """BLT: tokens and memory are normalised before they are projected."""
    memory = m.k_norm(a.cross_attention_states)
    return {"hidden_states": m.q_norm(a.hidden_states), "cross_attention_states": memory}


def llama4_factor(m: Mirror, a: Arguments) -> Any:
    """Llama 4: without a turn, queries grow with the logarithm of their position."""
    if m.use_rope or not m.attn_temperature_tuning:
        return m.scaling
    positions = np.floor((np.arange(a.hidden_states.shape[1]) + 1.0) / m.floor_scale)
    return m.scaling * (np.log1p(positions) * m.attn_scale + 1.0)[:, None]


class Moshi(Dense):
    """A reading of Moshi: the projections of its depth decoder have a matrix for each token."""

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, of the arguments of the module."""
        if m.q_proj.use_flexible_linear and a.codebook_idx is not None:
            chosen = {f"{name}.linear.weight": np.asarray(a.codebook_idx) for name in self.projections}
            m = Mirror(m._about, {key: x[chosen[key]] if key in chosen else x for key, x in m._values.items()})
        return super().__call__(m, a)

    def _weights(self, m: Mirror) -> dict[str, Any]:
        names = zip(("query", "key", "value", "output"), self.projections, strict=True)
        return {f"w_{name}": getattr(m, part).linear.weight.swapaxes(-1, -2) for name, part in names}

    def check(self, about: About) -> None:
        """Its projections hold one each."""


def merged_angles(m: Mirror, a: Arguments) -> tuple[Any, Any]:
    """T5Gemma 2: what comes from the encoder, behind the tokens, is not turned."""
    n, more = a.hidden_states.shape[-2], a.encoder_hidden_states.shape[-2]
    cos, sin = (np.broadcast_to(x, (*np.shape(x)[:-2], n, np.shape(x)[-1])) for x in a.position_embeddings)
    widths = [(0, 0)] * (cos.ndim - 2) + [(0, more), (0, 0)]
    return np.pad(cos, widths, constant_values=1.0), np.pad(sin, widths)


def glimmer(m: Mirror, a: Arguments) -> dict[str, Any]:
    """Muse Glimmer's assistant: queries are the last tokens of the keys; here keys begin with these."""
    n, mask = a.hidden_states.shape[-2], a.attention_mask
    if mask is None and m.get("is_causal") and m.config._attn_implementation == "sdpa":
        raise UnknownLayer(f"{m._about} with is_causal needs a mask: its keys stand in another order here")
    angles = tuple(np.roll(x, n, axis=-2) for x in a.position_embeddings)
    return {"attention_mask": None if mask is None else np.roll(mask, n, axis=-1), "position_embeddings": angles}


def zamba(m: Mirror, a: Arguments) -> Any:
    """Zamba: several Mambas side by side, whose features are every other of one projection."""
    (w_in, b_in), (w_output, b_output), conv = affine(m.in_proj), affine(m.out_proj), conv_of(m)
    d, output = m.mamba_head_dim, None if b_output is None else b_output
    for head in range(m.n_mamba_heads):
        own = slice(head * d, (head + 1) * d)
        places = np.concatenate([2 * np.arange(own.start, own.stop), 2 * np.arange(own.start, own.stop) + 1])
        of_head = {name: x if x is None or name == "kind" else x[..., own] for name, x in conv.items()}
        made = recipes.mamba(
            masked(a), w_in[:, places], w_mixed=m.x_proj_weight[head].swapaxes(0, 1),
            w_step=m.dt_proj_weight[head].swapaxes(0, 1), b_step=m.dt_proj_bias[head], log_rate=m.A_log[head],
            skip=m.D[head], w_output=w_output[own], b_in=None if b_in is None else b_in[places],
            visible=visible_of(a), **of_head
        )  # fmt: skip
        output = made if output is None else made + output
    return output


NORMS: dict[str, Any] = {"norms": "q_layernorm k_layernorm", "norm_if": lambda m, _: m.qk_layernorm}
QKVO, FUSED = "q_proj k_proj v_proj o_proj", "query_key_value dense"
READINGS = {
    "5baf358535": Dense("q_proj k_proj v_proj dense", **NORMS),  # Phi
    "1ce62033c6": Dense(FUSED, layout=of_each_head(), **NORMS),  # Persimmon
    "6c96dd434d": Dense(  # DBRX
        "Wqkv out_proj", layout=grouped(lambda m: (m.hidden_size, m.num_key_value_heads * m.head_dim)), clip="clip_qkv"
    ),
    "25cb6db14d": Dense(memory="encoder_hidden_states", turn=None, softcap="attn_logit_softcapping"),  # T5Gemma
    "02530e1f89": Dense(
        memory=lambda m, a: chain.concatenate([a.hidden_states, a.encoder_hidden_states], axis=-2),
        mask="merged_attention_mask", positions=merged_angles, norms="q_norm k_norm"
    ),  # T5Gemma 2
    "8186741568": Own(
        QKVO, memory=lambda m, a: chain.concatenate([a.hidden_states, a.context_hidden_states], axis=-2),
        norms="q_norm k_norm", before=glimmer
    ),
    "98dcb6d079": Dense(  # Gemma 3n
        size=lambda m: m.config.head_dim, norms="q_norm k_norm", norm_value="v_norm", turn_if=not_shared()
    ),
    "3d83725e8f": Dense(turn_axis=2),  # NeuCodec, X-Codec 2: a turn for each head
    "eeefc349d7": Dense(value_size="v_head_dim", value_scale="v_scale"),  # MiMo
    "b40c1772f7": Dense(norms="q_norm k_norm", turn_if=given()),  # Lara
    "435150cb46": Dense(
        memory="key_value_states", positions=lambda m, a: m.rotary_emb(None, a.position_ids),
        turn_if=lambda m, a: a.key_value_states is None, norms="q_layer_norm k_layer_norm",
        norm_if=lambda m, _: m.qk_layer_norms, norm_last=True
    ),  # Idefics
    "c226134228": Dense(
        memory="key_value_states", turn_if=lambda m, a: a.key_value_states is None,
        is_causal=lambda m, a: m.is_causal and a.attention_mask is None
    ),  # Moonshine
    "8b53e7c4bf": Own(  # BLT
        QKVO, memory="cross_attention_states", turn=None, before=before_blt, after=lambda m, a, x: x + a.hidden_states
    ),
    "7ba4d5ded7": Own(
        FUSED, layout=of_each_head(), turn=None, scores=bloom, after=lambda m, a, output: a.residual + output
    ),
    "ddba70cfa8": Own(FUSED, layout=of_falcon, turn_if=lambda m, a: a.alibi is None, scores=falcon),
    "09031667ab": Own("c_attn c_proj", layout=thirds, heads="n_head", x="x", turn=None, scores=gpt),
    "184e46e964": Own("c_attn c_proj", layout=thirds, turn=None, scores=gpt, refused="encoder_hidden_states"),
    "b430082e55": Own(
        "project_q project_k project_v attention_out", size="dim_head", x="hidden_q", memory="hidden_kv", turn=None,
        scores=cpmant
    ),
    "1556363789": Dense(
        turn="apply_rotary_emb", positions=lambda m, a: angles(a.position_embeddings),
        turn_if=lambda m, _: bool(m.use_rope), norms="qk_norm qk_norm", norm_if=lambda m, _: m.has("qk_norm"),
        norm_last=True, scale=llama4_factor
    ),  # Llama 4
    "d5c8651dcd": Moshi(
        positions=lambda m, a: m.rotary_emb(None, a.position_ids), turn_if=lambda m, _: m.has("rotary_emb")
    ),
    "139413874e": zamba,
}  # fmt: skip
PARTS = {
    "1c4dae7211": of_linear,  # Falcon
    "fcf3cc7e9d 2c90bbe607": lambda m: None,  # what holds a projection of Moshi, and one for each codebook
}
FUNCTIONS = {
    "4ea66fa04d 32f3cad018": None,  # BLOOM's sum; ImageGPT's number
    "701a0eeae5": rotation(),  # Muse Glimmer's assistant
    "5f12dc73aa": rotation("neighbours", half=True),  # Llama 4
}
