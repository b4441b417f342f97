"""Layers with a state: the gated delta rules of Qwen3-Next and Kimi, Mamba, Mamba-2, MiniMax and RWKV."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import chain
from attention_np.atlas import recipes
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas._parts import affine, of_activation

KINDS = {name: name for name in ("silu", "relu", "sigmoid", "tanh", "gelu", "quick_gelu")}  # of `ACT2FN`
KINDS |= {"swish": "silu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu2": "relu_squared"}


def kind_of(name: Any) -> str:
    """The kind of `activation` that a configuration names."""
    if name not in KINDS:
        raise UnknownLayer(f"the activation {name!r} is not known")
    return KINDS[name]


def kind_of_part(part: Any) -> str:
    """The kind of `activation` that a module is."""
    return kind_of(part if isinstance(part, str) else ACTIVATIONS.get(part._about.kind))


ACTIVATIONS = {"SiLUActivation": "silu", "SiLU": "silu", "GELUActivation": "gelu", "ReLU": "relu"}


def visible_of(a: Arguments) -> Any:
    """The mask of `apply_mask_to_padding_states`, (b, n, 1), or None."""
    return None if a.attention_mask is None else np.asarray(a.attention_mask)[:, :, None].astype(float)


def masked(a: Arguments) -> Any:
    """The tokens, zero where there are none."""
    visible = visible_of(a)
    return a.hidden_states if visible is None else a.hidden_states * visible


def conv_of(m: Mirror) -> dict[str, Any]:
    """The taps (width, features) and b of a `Conv1d` for each feature by itself."""
    conv = m.conv1d
    if conv.weight.shape[1] != 1 or conv.groups != conv.weight.shape[0]:
        raise UnknownLayer(f"{conv._about} mixes features")
    return {"taps": conv.weight[:, 0, :].swapaxes(0, 1), "b_taps": conv.bias, "kind": kind_of(m.activation)}


class GatedDelta:
    """A reading of the gated delta rule; `projections` of queries with keys and values, and of the gate's four."""

    recipe = staticmethod(recipes.gated_delta)

    def __init__(self, mixed: str, gates: str, norm: str = "norm", output: str = "out_proj") -> None:
        self.mixed, self.gates, self.norm, self.output = mixed.split(), gates.split(), norm, output

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, of the arguments of the module."""
        weights = [plain_weight(m, name) for name in self.mixed]
        w_mixed = weights[0] if len(weights) == 1 else chain.concatenate(weights, axis=1)
        w_gate, w_beta, w_step = (plain_weight(m, name) for name in self.gates)
        return self.of(m, a, w_mixed, w_gate, w_beta, w_step)

    def of(self, m: Mirror, a: Arguments, w_mixed: Any, w_gate: Any, w_beta: Any, w_step: Any) -> Any:
        """The same of weights that are taken apart."""
        norm = getattr(m, self.norm)
        options = norm._about.compute.options(norm)
        return recipes.gated_delta(
            masked(a), w_mixed, w_beta=w_beta, w_step=w_step, b_step=m.dt_bias, log_rate=m.A_log, w_gate=w_gate,
            w_output=plain_weight(m, self.output), heads=m.key_dim // m.head_k_dim, d=m.head_k_dim,
            most=2.0 if m.get("allow_neg_eigval") else 1.0, **conv_of(m), **options,
        )  # fmt: skip


class FusedGatedDelta(GatedDelta):
    """The one of Qwen3-Next: two projections, whose features are taken apart head by head."""

    def __init__(self) -> None:
        super().__init__("", "")

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, of the arguments of the module."""
        groups = m.num_v_heads // m.num_k_heads
        w, w_gates = plain_weight(m, "in_proj_qkvz"), plain_weight(m, "in_proj_ba")
        d, d_v = m.head_k_dim, groups * m.head_v_dim
        places = np.arange(w.shape[1]).reshape(m.num_k_heads, -1)
        query, key, value, gate = np.split(places, np.cumsum([d, d, d_v]), axis=1)
        beta, step = np.split(np.arange(w_gates.shape[1]).reshape(m.num_k_heads, -1), 2, axis=1)
        mixed = np.concatenate([query.ravel(), key.ravel(), value.ravel()])
        return self.of(m, a, w[:, mixed], w[:, gate.ravel()], w_gates[:, beta.ravel()], w_gates[:, step.ravel()])


class Mamba2:
    """A reading of Mamba-2's block, with multipliers of features in FalconH1."""

    recipe = staticmethod(recipes.mamba2)

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, of the arguments of the module."""
        x, (w_in, b_in), (w_output, b_output) = masked(a), affine(m.in_proj), affine(m.out_proj)
        if m.has("ssm_in_multiplier"):
            features = np.asarray(m.mup_vector).reshape(-1)
            x, w_in = x * m.ssm_in_multiplier, w_in * features
            b_in = None if b_in is None else b_in * features
        norm = {}
        if m.get("mamba_rms_norm", True):
            norm = m.norm._about.compute.options(m.norm)
        least, most = m.time_step_limit
        return recipes.mamba2(
            x, w_in, log_rate=m.A_log, b_step=m.dt_bias, skip=m.D, w_output=w_output, b_in=b_in, b_output=b_output,
            groups=m.n_groups, visible=visible_of(a), least=float(least), most=float(most), **conv_of(m), **norm,
        )  # fmt: skip


class Mamba:
    """A reading of Mamba's block, with norms of Falcon-Mamba and Jamba."""

    recipe = staticmethod(recipes.mamba)

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, of the arguments of the module."""
        (w_in, b_in), (w_output, b_output) = affine(m.in_proj), affine(m.out_proj)
        w_mixed, none = affine(m.x_proj)
        w_step, b_step = affine(m.dt_proj)
        norms: dict[str, Any] = {}
        if m.has("dt_layernorm"):
            if m.config.get("_is_quantized") is not None:
                raise UnknownLayer(f"{m._about} is quantized")
            made = {
                name: norm_options(part)
                for name, part in zip(NORMED, (m.dt_layernorm, m.b_layernorm, m.c_layernorm), strict=True)
            }
            (norms["epsilon"],) = {options["epsilon"] for options in made.values()}
            norms |= {name: options["gain"] for name, options in made.items()}
        if none is not None or b_step is None:
            raise UnknownLayer(f"{m._about} has a b where no Mamba has one")
        return recipes.mamba(
            masked(a), w_in, w_mixed=w_mixed, w_step=w_step, b_step=b_step, log_rate=m.A_log, skip=m.D,
            w_output=w_output, b_in=b_in, b_output=b_output, visible=visible_of(a), **conv_of(m), **norms,
        )  # fmt: skip


class KimiDelta:
    """A reading of Kimi's delta rule: each of `gates`, from the tokens to the gate, and to the decay, in its steps."""

    recipe = staticmethod(recipes.kimi_delta)

    def __init__(self, gate: str, decay: str) -> None:
        self.gate, self.decay = gate.split(), decay.split()

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, of the arguments of the module."""
        forget, (w_gate, b_gate) = m.forget_gate, in_steps(m, self.gate)
        w_decay, none = in_steps(forget, self.decay)
        if none is not None:
            raise UnknownLayer(f"{forget._about} adds something twice")
        w_mixed = chain.concatenate([plain_weight(m, name) for name in ("q_proj", "k_proj", "v_proj")], axis=1)
        norm = m.o_norm._about.compute.options(m.o_norm)
        return recipes.kimi_delta(
            masked(a), w_mixed, w_beta=plain_weight(m, "b_proj"), w_decay=w_decay, b_decay=forget.dt_bias,
            log_rate=forget.A_log.reshape(-1), w_gate=w_gate, b_gate=b_gate, w_output=plain_weight(m, "o_proj"),
            least=forget._about.compute(forget), **conv_of(m), **norm,
        )  # fmt: skip


def in_steps(m: Mirror, projections: list[str]) -> tuple[Any, Any]:
    """The matrix and b of projections one after the other, of which only the last may add something."""
    *first, last = projections
    w, b = affine(getattr(m, last))
    for name in reversed(first):
        w = plain_weight(m, name) @ w
    return w, b


def lightning(m: Mirror, a: Arguments) -> Any:
    """MiniMax's lightning attention: the decay of each pair is made of what the module keeps of it in blocks."""
    n, size = a.hidden_states.shape[-2], m.block_size
    decay = np.zeros((m.num_attention_heads, n, n))
    between = np.exp(-m.slope_rate * size)
    for start in range(0, n, size):
        stop = min(start + size, n)
        decay[:, start:stop, start:stop] = m.diagonal_decay[0, :, : stop - start, : stop - start]
        for earlier in range(0, start, size):
            passed = between ** ((start - earlier) // size - 1)
            pairs = m.query_decay[:, : stop - start] * passed * m.key_decay[:, -size:].swapaxes(-2, -1)
            decay[:, start:stop, earlier : earlier + size] = pairs
    return recipes.lightning(
        a.hidden_states, plain_weight(m, "qkv_proj"), plain_weight(m, "output_gate"), m.norm.weight,
        plain_weight(m, "out_proj"), heads=m.num_attention_heads, decay=decay, visible=visible_of(a),
        kind=kind_of_part(m.act_fn), epsilon=norm_options(m.norm)["epsilon"],
    )  # fmt: skip


def rwkv(m: Mirror, a: Arguments) -> Any:
    """The time mixing of RWKV-4."""
    if tuple(m.time_shift.padding) != (0, 0, 1, -1) or m.time_shift.value != 0:
        raise UnknownLayer(f"{m._about} shifts by {m.time_shift.padding}")
    if a.state is not None or a.use_cache:
        raise UnknownLayer("the layer is the full pass: it takes no state of earlier tokens")
    shares = {f"share_{name}": getattr(m, f"time_mix_{x}").reshape(-1) for name, x in MIXED.items()}
    weights = {f"w_{name}": plain_weight(m, x) for name, x in MIXED.items()}
    return recipes.rwkv(
        a.hidden, **shares, **weights, log_rate=m.time_decay, first=m.time_first, w_output=plain_weight(m, "output")
    )


MIXED = {"key": "key", "value": "value", "gate": "receptance"}


NORMED = ("step_gain", "key_gain", "query_gain")


def norm_options(part: Mirror) -> dict[str, Any]:
    """The gain and epsilon of a norm; one without a gain has ones."""
    compute = part._about.compute
    return {
        "gain": part.weight if "weight" in part._about.parameters else None,
        "epsilon": getattr(part, compute.epsilon),
    }


def plain_weight(m: Mirror, name: str) -> Any:
    """The matrix (d_in, d_out) of a projection that adds nothing."""
    w, b = affine(getattr(m, name))
    if b is not None:
        raise UnknownLayer(f"{m._about} adds something in {name}")
    return w


class GatedNorm:
    """A norm that takes a gate: over groups of features, before the gate or after it."""

    def __call__(self, m: Mirror, *_: Any) -> Any:
        """Refuse: the recipe takes its options."""
        raise UnknownLayer(f"{m._about} stands alone")

    def options(self, m: Mirror) -> dict[str, Any]:
        """Its gain and epsilon, and what the recipe says else."""
        made = {"gain": m.weight, "epsilon": m.variance_epsilon}
        if m.has("group_size"):
            return made | {"norm_groups": m.weight.shape[0] // m.group_size}
        if m.has("n_groups"):
            return made | {"norm_groups": m.n_groups, "norm_last": not m.norm_before_gate}
        return made | {"gate": kind_of(m.get("activation", "silu"))}


QWEN = "in_proj_z in_proj_b in_proj_a"

READINGS = {
    "9f9a3cb69a": GatedDelta("in_proj_qkv", QWEN),  # Qwen3.5
    "5fb45f4fca": FusedGatedDelta(),  # Qwen3-Next
    "c90dbbe67f": GatedDelta("q_proj k_proj v_proj", "g_proj b_proj a_proj", "o_norm", "o_proj"),  # OLMo Hybrid
    "e9e6b9cb83 16f509cddb": Mamba2(),  # Mamba-2, Bamba; Falcon-H1
    "84ec9465b0 f3d33a8069": Mamba(),  # Mamba; Falcon-Mamba, Jamba
    "75ce5b0e3c": KimiDelta("g_a_proj g_b_proj", "f_a_proj f_b_proj"),  # Kimi Linear
    "f7e93c8984": KimiDelta("g_proj", "f_proj"),  # Bailing
    "252658fb07": lightning,  # MiniMax
    "0e01640a9b": rwkv,
}
PARTS = {
    "e730f54291": of_activation("silu"),
    "473e4ab39c f15beccf2e 83adfa9658 f6cceacbf1": GatedNorm(),
    "aee7ff6af8": lambda m: None,  # how the decays of Kimi Linear, GLM-5 and Bailing are bounded
    "e3e48e8edb": lambda m: m.safe_gate_lower_bound,
    "b4747ec08e": lambda m: m.lower_bound if m.safe_gate else None,
}
FUNCTIONS = {
    "ca30853ed0": masked,  # apply_mask_to_padding_states
    "932f5ecfb2": "causal_conv1d_fn",
    "5b28ffbc2a": "torch_chunk_gated_delta_rule",
    "738a2e853b": "chunk_kimi_delta_attention",
    "a776f40ee4": "rwkv_linear_attention",
    "0699d22981": "mamba2_chunk_scan",
    "5a7369e995": "mamba_selective_scan",
    "3befe45fd6 753a86e36e 6d3d4d6331 adbc8fa010 ba0d19d9f4": None,  # for one token after others
}
