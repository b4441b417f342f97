"""Multi-head latent attention of DeepSeek and its kin, also over the tokens that an indexer chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_np import indexer, masks
from attention_np.atlas import recipes
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas._parts import affine, rotation
from attention_np.atlas.classes.dense import options_of, refuse
from attention_np.atlas.classes.llama import growth
from attention_np.atlas.recipes._steps import turned


class Compressed:
    """A reading of latent attention: `turn` chooses the helper, `gate` a projection of one number a head, or of all.

    `query_scale`, `latent_scale`: attributes that queries and latents are multiplied by; `query_factor`: a factor of
    each query; `chosen`: whether an indexer chooses the tokens that are looked at.
    """

    recipe = staticmethod(recipes.multi_head_latent)

    def __init__(
        self, turn: Callable[[Mirror], str | None] | str | None = None,
        *, gate: str | None = None, query_scale: str | None = None, latent_scale: str | None = None,
        rotary_norm: str | None = None, query_factor: Callable[..., Any] | None = None, chosen: bool = False,
    ) -> None:  # fmt: skip
        self.turn, self.gate, self.query_scale, self.latent_scale = turn, gate, query_scale, latent_scale
        self.rotary_norm, self.query_factor, self.chosen = rotary_norm, query_factor, chosen

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, of the arguments of the module."""
        x = a.hidden_states
        made: dict[str, Any] = {}
        refuse(m, "is_kv_shared_layer")
        if m.has("q_proj"):
            made["w_query"], made["b_query"] = affine(m.q_proj)
        else:
            made["w_query_down"], made["b_query_down"] = affine(m.q_a_proj)
            made["query_gain"] = options_of(m.q_a_layernorm, x)["gain"]
            if m.has("q_gate_proj"):
                made |= self._with_gate(m)
            else:
                made["w_query"], made["b_query"] = affine(m.q_b_proj)
        made["w_latent"], made["b_latent"] = affine(m.kv_a_proj_with_mqa)
        own = options_of(m.kv_a_layernorm, x)
        made |= {"latent_gain": own["gain"], "epsilon": own["epsilon"]}
        if "query_gain" in made and options_of(m.q_a_layernorm, x)["epsilon"] != own["epsilon"]:
            raise UnknownLayer(f"{m._about} has norms of different epsilon")
        made["w_key"], made["w_value"] = self._heads(m)
        made["w_output"], made["b_output"] = affine(m.o_proj)
        scale = m.scaling if self.query_scale is None else m.scaling * getattr(m, self.query_scale)
        made["query_factor"] = None if self.query_factor is None else self.query_factor(m, a)
        made["latent_factor"] = 1.0 if self.latent_scale is None else getattr(m, self.latent_scale)
        mask = a.attention_mask
        if self.chosen and (m.has("indexer") or a.prev_topk_indices is not None):
            mask = self._selected(m, a)
        n = x.shape[-2]
        own = m.function("interface")(m, mask, scaling=scale, shape=(n, n))
        if own.pop("groups", 1) != 1:
            raise UnknownLayer(f"{m._about} has groups of latent heads")
        made |= own
        turn = self.turn(m) if callable(self.turn) else self.turn
        if turn:
            made |= m.function(turn)(*angles(a.position_embeddings))
        if self.rotary_norm:
            norm = options_of(getattr(m, self.rotary_norm), x)
            made |= {"rotary_gain": norm["gain"], "rotary_epsilon": norm["epsilon"]}
        if self.gate:
            w, b = affine(getattr(m, self.gate))
            columns = np.repeat(np.arange(w.shape[-1]), made["w_output"].shape[-2] // w.shape[-1])
            made |= {"w_gate": w[..., columns], "b_gate": None if b is None else b[..., columns]}
        return recipes.multi_head_latent(x, **made)

    def _heads(self, m: Mirror) -> tuple[Any, Any]:
        """What makes keys and values of each head of a latent, (h, rank, d)."""
        w, b = affine(m.kv_b_proj)
        if b is not None:
            raise UnknownLayer(f"{m._about} adds a bias to keys that are made of latents")
        d, d_value = m.qk_nope_head_dim, m.v_head_dim
        of_heads = w.reshape(w.shape[0], -1, d + d_value).swapaxes(0, 1)  # (h, rank, d + d_v)
        return of_heads[..., :d], of_heads[..., d:]

    def _with_gate(self, m: Mirror) -> dict[str, Any]:
        """Of a projection that makes the query and the gate of each head."""
        w, b = affine(m.q_gate_proj)
        if b is not None:
            raise UnknownLayer(f"{m._about} adds a bias to queries")
        apart = w.reshape(w.shape[0], -1, m.qk_head_dim + m.v_head_dim)
        w_query, w_gate = apart[..., : m.qk_head_dim], apart[..., m.qk_head_dim :]
        made = {"w_query": w_query.reshape(w.shape[0], -1), "w_gate": w_gate.reshape(w.shape[0], -1)}
        return made | {"query_both": True}

    def _selected(self, m: Mirror, a: Arguments) -> Any:
        """The mask, with all hidden that the indexer does not choose."""
        mask = np.asarray(a.attention_mask)
        if m.has("indexer"):
            x = a.hidden_states
            residual = plain(m.q_a_layernorm(m.q_a_proj(x)) if m.has("q_a_proj") else m.indexer.q_input_norm(x))
            if self.query_scale:
                residual = residual * getattr(m, self.query_scale)
            chosen = m.indexer(plain(x), residual, a.position_embeddings, mask[:, 0], a.position_ids)
        else:
            chosen = np.asarray(a.prev_topk_indices)
        if mask.dtype.kind == "f" and chosen.shape[-1] < mask.shape[-1]:
            sees_none = (mask.max(axis=-1) <= HIDDEN).any()
            if sees_none and mask.min() > np.finfo(a.hidden_states.dtype).min:  # else all its keys have even weights
                raise UnknownLayer(f"{m._about} chooses between the hidden keys of a query that sees none")
        selected = masks.selected(chosen, mask.shape[-1])[:, None]
        if mask.dtype.kind == "b":
            return mask & selected
        return np.where(selected, mask, np.finfo(a.hidden_states.dtype).min)


def plain(x: Any) -> Any:
    """The array of a variable: no gradient goes through a choice."""
    return getattr(x, "value", x)


def angles(positions: Any) -> tuple[Any, Any]:
    """Cos and sin, of a pair of them or of complex numbers."""
    if isinstance(positions, tuple | list):
        return np.asarray(positions[0]), np.asarray(positions[1])
    return np.asarray(positions).real, np.asarray(positions).imag


def indexed(turn: str, *, last: bool = False) -> Any:
    """An indexer: the tokens whose scores are the largest; `last`: that the last features are turned."""

    def choose(m: Mirror, x: Any, residual: Any, positions: Any, mask: Any, places: Any) -> Any:
        d, turning = m.head_dim, m.qk_rope_head_dim
        query = plain(m.wq_b(residual)).reshape(*x.shape[:2], m.n_heads, d).swapaxes(1, 2)  # (b, h, n, d)
        key = plain(m.k_norm(m.wk(x)))[:, None]  # (b, 1, n, d)
        if m.has("softmax_scaling"):
            query = query * plain(log_growth(m.softmax_scaling, places))
        if m.get("use_rope", True):
            how = m.function(turn)(*angles(positions))
            query, key = (
                np.concatenate([y[..., : d - turning], turned(y[..., d - turning :], **how)], axis=-1)
                if last
                else np.concatenate([turned(y[..., :turning], **how), y[..., turning:]], axis=-1)
                for y in (query, key)
            )
        weights = plain(m.weights_proj(x)).swapaxes(1, 2) * m.n_heads**-0.5 * m.softmax_scale
        scores, _ = indexer.forward(query, key[:, 0], weights)
        scores = np.where(mask, scores, -np.inf) if mask.dtype.kind == "b" else scores + mask
        check_choice(m, np.where(mask if mask.dtype.kind == "b" else mask > HIDDEN, scores, -np.inf), m.index_topk)
        return indexer.top_k(scores, min(m.index_topk, scores.shape[-1]))

    return choose


HIDDEN = float(np.finfo(np.float16).min)  # a mask that adds so little, or less, hides


def check_choice(m: Mirror, scores: Any, k: int) -> None:
    """Refuse a tie at the border of the k largest scores, as relu makes it: nothing says which key torch takes.

    Scores of hidden keys are minus infinity: of these any may be chosen.
    """
    if k >= scores.shape[-1]:
        return
    last, following = (np.partition(scores, -place, axis=-1)[..., -place] for place in (k, k + 1))
    both = following > -np.inf
    largest = np.abs(scores, where=scores > -np.inf, out=np.zeros(scores.shape)).max(initial=0)
    if (last[both] - following[both] <= 64 * np.finfo(scores.dtype).eps * largest).any():  # or rounding decides
        raise UnknownLayer(f"{m._about} chooses between keys of equal scores: nothing says which")


def log_growth(m: Mirror, position_ids: Any) -> Any:
    """A factor of each query that grows with the logarithm of its position, (b, h, n, 1), as each head learns it."""
    return (m.scale[:, None] * np.log(np.asarray(position_ids) + 1.0)[:, None] + m.bias[:, None])[..., None]


def by_configuration(m: Mirror) -> str:
    """Which features are pairs."""
    return "apply_rotary_pos_emb_interleave" if m.config.rope_interleave else "apply_rotary_pos_emb"


NEIGHBOURS = "apply_rotary_pos_emb_interleave"

READINGS = {
    "4247257946 b0e4363c0c": Compressed(by_configuration),  # DeepSeek-V3, AXK1
    "30e5b1cfb7": Compressed(NEIGHBOURS, gate="g_proj"),  # Bailing
    "ac09e0b5b5": Compressed(NEIGHBOURS, chosen=True),  # AXK2
    "978b595673": Compressed(
        lambda m: NEIGHBOURS if m.use_rope else None,
        query_factor=lambda m, a: log_growth(m.softmax_scaling, a.position_ids), chosen=True
    ),  # Mistral Large 4
    "5825045ec4": Compressed(by_configuration, query_factor=growth),  # Mistral 4
    "b0b6715796": Compressed("apply_rotary_emb"),  # DeepSeek-V2
    "68e331e9da": Compressed(),  # Kimi Linear
    "ae140dad72": Compressed("apply_rotary_pos_emb"),  # MiniCPM 3
    "ce2b69062a": Compressed(NEIGHBOURS, query_scale="mla_scale_q_lora", latent_scale="mla_scale_kv_lora"),  # LongCat
    "0a75a123c3 115a2e8756": Compressed(NEIGHBOURS, chosen=True),  # DeepSeek-V3.2, GLM-5
    "88396ee6e9": Compressed(
        NEIGHBOURS, gate="g_proj", query_scale="q_lora_scale", latent_scale="kv_lora_scale",
        rotary_norm="k_rope_only_layernorm", chosen=True
    ),  # dots
    "adf9a74cdb": Compressed("apply_rotary_pos_emb", gate="gate_proj", chosen=True),  # HY 4
}  # fmt: skip

PARTS = {
    "bba16bed76": indexed("apply_rotary_pos_emb"),
    "6373b467d2 02e83b5fd0": indexed(NEIGHBOURS),
    "4351514dcd": lambda m: None,  # log_growth
    "c785c58f21": indexed("apply_rotary_pos_emb", last=True),
}

FUNCTIONS = {
    "85e1115cac bbad469d04": rotation("neighbours", doubled=True),
    "71ea2487cf": rotation("neighbours", half=True),
}
