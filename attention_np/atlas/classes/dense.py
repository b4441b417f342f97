"""Softmax attention from every query to every key: what stands around it, for the families that have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_np.atlas import recipes
from attention_np.atlas._interface import eager, filled
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import About, Mirror, UnknownLayer
from attention_np.atlas._parts import Norm, affine, of_conv1d, of_identity, of_linear

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
    what the source hands on to the attention function, words for attributes; `turn_value`: whether values are turned,
    too; `norm_sum`: the norm of the sum of tokens and output.
    """

    def __init__(
        self, projections: str = "q_proj k_proj v_proj o_proj",
        *, layout: Callable[..., Any] | None = None, size: str | Callable[..., Any] = "head_dim",
        heads: str | None = None, x: str = "hidden_states", memory: str | Callable[..., Any] | None = None,
        x_value: str | None = None, mask: str | None = "attention_mask", cross_mask: str | None = None,
        turn: str | Callable[..., Any] | None = "apply_rotary_pos_emb",
        positions: str | Callable[..., Any] = "position_embeddings", norms: str | None = None,
        of_all_heads: bool | Callable[..., Any] = False, norm_last: bool = False, norm_value: str | None = None,
        norm_output: str | None = None, added: str | None = None, added_key: str | None = None,
        scale: str | float | Callable[..., Any] | None = "scaling", gate: Callable[..., Any] | str | None = None,
        turn_axis: int | None = None, turn_if: Condition | None = None, norm_if: Condition | None = None,
        inline: bool = False, packed: str | None = None, refused: str = "", visible: Callable[..., Any] | None = None,
        gate_kind: str = "sigmoid", clip: str | Callable[..., Any] | None = None, value_size: str | None = None,
        value_scale: str | None = None, query_factor: Callable[..., Any] | None = None,
        filled: Callable[..., Any] | None = None, norm_each: bool = False, values_of_keys: bool = False,
        gate_if: str | None = None, turn_value: Callable[[Mirror], bool] | None = None, norm_sum: str | None = None,
        **interface: Any,
    ) -> None:  # fmt: skip
        self.projections, self.layout, self.size, self.heads = projections.split(), layout, size, heads
        self.x, self.memory, self.x_value, self.mask, self.cross_mask = x, memory, x_value, mask, cross_mask
        self.turn, self.positions, self.norms, self.of_all_heads = turn, positions, norms, of_all_heads
        self.norm_last, self.norm_value, self.norm_output = norm_last, norm_value, norm_output
        self.added, self.added_key, self.scale, self.gate = added, added_key, scale, gate
        self.turn_axis, self.turn_if, self.norm_if, self.inline = turn_axis, turn_if, norm_if, inline
        self.packed, self.interface, self.refused, self.visible = packed, interface, refused.split(), visible
        self.gate_kind, self.clip, self.value_size, self.value_scale = gate_kind, clip, value_size, value_scale
        self.values_of_keys, self.gate_if = values_of_keys, gate_if
        self.query_factor, self.filled, self.norm_each = query_factor, filled, norm_each
        special = (turn, norms, gate, norm_value, norm_output, clip, value_size, query_factor, interface.get("softcap"))
        self.turn_value, self.norm_sum = turn_value, norm_sum
        self.recipe: Any = recipes.grouped_query if any(special) else recipes.multi_head
        self.recipe = recipes.post_norm if norm_sum else self.recipe

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
        for name in {"num_heads", "num_attention_heads"} & m._about.source.attributes if m._about.source else ():
            if isinstance(m.get(name), int) and m.get(name) * made["d"] != made["w_query"].shape[-1]:
                raise UnknownLayer(f"{m._about} has {m.get(name)} heads of {made['d']} features, not as its projection")
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
        if self.norm_sum:
            own = options_of(getattr(m, self.norm_sum), x)
            made |= {"gain": own["gain"], "b": own["b"], "epsilon": own["epsilon"]}
        if self.recipe is not recipes.grouped_query:
            if made.get("groups", 1) != 1:
                return recipes.grouped_query(x, **made, norm=None)
            return self.recipe(x, **{name: value for name, value in made.items() if name != "groups"})
        made = {"groups": 1, "norm": None} | made
        if self.turn and (self.turn_if is None or self.turn_if(m, a)):
            cos, sin = self.positions(m, a) if callable(self.positions) else getattr(a, self.positions)
            axis = [] if self.turn_axis is None else [self.turn_axis]
            turn = self.turn if callable(self.turn) else m.function(self.turn)
            made |= turn(np.asarray(cos), np.asarray(sin), *axis)
            made["turn_value"] = self.turn_value is not None and self.turn_value(m)
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
        if limit == 0:
            raise UnknownLayer(f"{m._about} clips at zero")
        if limit is not None:
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
        made[f"w_{name}"], made[f"b_{name}"] = (None, None) if attribute == "-" else affine(getattr(m, attribute))
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
    if any(of_query[name] != of_key[name] for name in ("kind", "epsilon")):
        raise UnknownLayer(f"{m._about} has norms of queries and keys that are not alike")
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


def given(name: str = "position_embeddings") -> Condition:
    """Where an argument is given."""
    return lambda m, a: getattr(a, name) is not None


def own_causal(m: Mirror, shape: tuple[int, int]) -> Any:
    """The module's buffer of who sees whom, its last rows."""
    n, keys = shape
    return np.asarray(m.bias)[..., keys - n : keys, :keys] != 0


def or_key(m: Mirror) -> str:
    """Gemma 4: where there is no projection of values, that of keys makes them."""
    return "q_proj k_proj v_proj o_proj" if m.has("v_proj") else "q_proj k_proj k_proj o_proj"


def not_shared(name: str = "is_kv_shared_layer") -> Condition:
    """Turn, and refuse a layer that takes its keys and values from another."""

    def condition(m: Mirror, a: Arguments) -> bool:
        refuse(m, name)
        return True

    return condition


BERT = "query key value -"
OUT = "q_proj k_proj v_proj out_proj"
SIZE: dict[str, Any] = {"size": "attention_head_size", "turn": None}
VISION: dict[str, Any] = {"mask": None, "packed": "cu_seqlens", "turn": "apply_rotary_pos_emb_vision"}
DETR: dict[str, Any] = {"turn": None, "added": "position_embeddings"}
