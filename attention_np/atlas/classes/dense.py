"""From every query to every key: projections, norms, turns and gates around `multi_head` and `grouped_query`."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.atlas import recipes
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import About, Mirror, UnknownLayer
from attention_np.atlas._parts import Norm, affine, of_conv1d, of_linear

PLAIN = (of_linear, of_conv1d)


class Dense:
    """A reading of projections q, k, v and o around softmax attention.

    `projections`: attributes of the module, "-" for none; `size`: the attribute that is the features of a head; `x`,
    `memory`, `mask`: arguments; `turn`: the helper that turns queries and keys; `norms`: attributes of their norms,
    `of_all_heads` before they are taken apart, `norm_last` after they are turned; `added`: positions that are added to
    what queries and keys are made of; `scale`: an attribute, or a number; `gate`: a projection that opens the output;
    `interface`: what the source hands on to the attention function, words for attributes.
    """

    def __init__(
        self,
        projections: str = "q_proj k_proj v_proj o_proj",
        *,
        size: str = "head_dim",
        x: str = "hidden_states",
        memory: str | None = None,
        mask: str | None = "attention_mask",
        turn: str | None = "apply_rotary_pos_emb",
        norms: str | None = None,
        of_all_heads: bool = False,
        norm_last: bool = False,
        added: str | None = None,
        scale: str | float = "scaling",
        gate: str | None = None,
        **interface: Any,
    ) -> None:
        self.projections, self.size, self.x, self.memory, self.mask = projections.split(), size, x, memory, mask
        self.turn, self.norms, self.of_all_heads, self.norm_last = turn, norms, of_all_heads, norm_last
        self.added, self.scale, self.gate, self.interface = added, scale, gate, interface
        self.recipe = recipes.grouped_query if turn or norms or gate else recipes.multi_head

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, of the arguments of the module."""
        x = getattr(a, self.x)
        memory = getattr(a, self.memory) if self.memory else None
        made = weights(m, *self.projections) | {"d": getattr(m, self.size)}
        n, keys = x.shape[-2], (x if memory is None else memory).shape[-2]
        given = {name: getattr(m, x) if isinstance(x, str) else x for name, x in self.interface.items()}
        scale = getattr(m, self.scale) if isinstance(self.scale, str) else self.scale
        made |= m.function("interface")(m, self.mask and getattr(a, self.mask), scaling=scale, shape=(n, keys), **given)
        if self.recipe is recipes.multi_head:
            if made.pop("groups", 1) != 1:
                return recipes.grouped_query(x, **made, groups=m.num_key_value_groups, memory=memory)
            return recipes.multi_head(x, **made, memory=memory)
        made.setdefault("groups", 1)
        if self.turn:
            made |= m.function(self.turn)(*map(np.asarray, a.position_embeddings))
        if self.norms:
            made |= norms(m, x, *self.norms.split())
            made |= {"of_all_heads": self.of_all_heads, "norm_last": self.norm_last}
        if self.gate:
            made["w_gate"], made["b_gate"] = affine(getattr(m, self.gate))
        return self.recipe(x, **made, memory=memory)

    def check(self, about: About) -> None:
        """Refuse projections and norms of another kind."""
        for name in (*self.projections, *filter(None, [self.gate])):
            if name != "-" and getattr(about.parts.get(name), "compute", None) not in PLAIN:
                raise UnknownLayer(f"{name} of {about} is no plain projection")
        for name in (self.norms or "").split():
            if not isinstance(getattr(about.parts.get(name), "compute", None), Norm):
                raise UnknownLayer(f"{name} of {about} is no known norm")

    def absent(self, about: About) -> set[str]:
        """The names of the recipe's options that this class has not."""
        has: dict[str, Any] = {"cos": self.turn, "w_gate": self.gate, "query_gain": self.norms, "memory": self.memory}
        has |= {"of_all_heads": self.of_all_heads, "norm_last": self.norm_last, "w_output": self.projections[3] != "-"}
        return {name for name, there in has.items() if not there}


def weights(m: Mirror, *projections: str) -> dict[str, Any]:
    """Of linear projections q, k, v and o, as recipes name them: transposed, as torch has (d_out, d_in)."""
    made: dict[str, Any] = {}
    for name, attribute in zip(("query", "key", "value", "output"), projections, strict=True):
        if attribute != "-":
            made[f"w_{name}"], made[f"b_{name}"] = affine(getattr(m, attribute))
    return made


def norms(m: Mirror, x: Any, query: str, key: str) -> dict[str, Any]:
    """Of the norms of queries and keys, as recipes name them."""
    of_query, of_key = ((part := getattr(m, name))._about.compute.options(part, x) for name in (query, key))
    made = {"query_gain": of_query["gain"], "key_gain": of_key["gain"], "query_b": of_query["b"], "key_b": of_key["b"]}
    return made | {"norm": of_query["kind"], "epsilon": of_query["epsilon"]}


BERT = "query key value -"
OUT = "q_proj k_proj v_proj out_proj"

READINGS = {
    "63250adb2d 9f4eb9bb0a f37f16b520 b6594dfd91 49a30bd320 bb856258f9": Dense(),  # Llama, Mistral, Qwen2
    "febe1d6347": Dense(turn=None),  # ViT
    "e9b486a2aa a613115d47 48ebf23c95": Dense(OUT, memory="key_value_states", turn=None),  # BART, wav2vec 2.0
    "b7ef8d2265": Dense(BERT, size="attention_head_size", memory="encoder_hidden_states", turn=None),
    "331b94fb41 b748c69ba0": Dense(BERT, size="attention_head_size", turn=None),
    "8e397cea22": Dense(OUT, turn=None, scale="scale", is_causal="is_causal"),
    "c92d86bde1": Dense(OUT, turn=None, scale="scale"),  # CLIP
    "aef315fb0c": Dense(norms="q_norm k_norm"),  # Qwen3
    "5cf0507ba8": Dense(norms="q_norm k_norm", of_all_heads=True),  # OLMo 2
    "cfa776d14b": Dense(norms="query_layernorm key_layernorm", norm_last=True),  # HunYuan
    "f983a6f780": Dense(softcap="attn_logit_softcapping"),  # Gemma 2
}
