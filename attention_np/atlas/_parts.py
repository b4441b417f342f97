"""The parts that many modules have: those of torch by their names, norms and helpers of transformers by digests."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.atlas._interface import eager, sdpa
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas.recipes._steps import activated, linear, normed


def of_linear(m: Mirror, x: Any) -> Any:
    """`torch.nn.Linear`: its weight is (d_out, d_in)."""
    return linear(x, m.weight.swapaxes(0, 1), m.bias)


def of_conv1d(m: Mirror, x: Any) -> Any:
    """`Conv1D` of transformers: its weight is (d_in, d_out)."""
    return linear(x, m.weight, m.bias)


def affine(m: Mirror) -> tuple[Any, Any]:
    """The matrix (d_in, d_out) and b of a projection, of either layout."""
    if not isinstance(m, Mirror):
        raise UnknownLayer(f"a projection is {m!r}")
    if m._about.compute is of_linear:
        return m.weight.swapaxes(0, 1), m.bias
    if m._about.compute is of_conv1d:
        return m.weight, m.bias
    raise UnknownLayer(f"{m._about} is no plain projection")


def of_sequence(m: Mirror, x: Any) -> Any:
    """`torch.nn.Sequential`."""
    for index in range(len(m)):
        x = m[index](x)
    return x


class Norm:
    """A norm over the last axis: its kind, the attribute or number that is its epsilon, how its gain is stored."""

    def __init__(self, kind: str = "rms", epsilon: str | float = "variance_epsilon", *, less_one: bool = False) -> None:
        self.kind, self.epsilon, self.less_one = kind, epsilon, less_one

    def __call__(self, m: Mirror, x: Any) -> Any:
        options = self.options(m, x)
        return normed(x, options["gain"], options["b"], kind=self.kind, epsilon=options["epsilon"])

    def options(self, m: Mirror, x: Any) -> dict[str, Any]:
        """Its gain, b, kind and epsilon, for the rows of x."""
        source = m._about.source
        by_torch = source is None or "super().forward" in source.text  # else what its own source reads
        gain, b = (
            getattr(m, name) if m.has(name) and (by_torch or name in source.attributes) else None
            for name in ("weight", "bias")
        )
        if len(m.get("normalized_shape", (1,))) != 1 or m.get("with_scale", True) not in (True, gain is not None):
            raise UnknownLayer(f"{m._about} is a norm over several axes")
        if m.get("group_size") is not None:
            raise UnknownLayer(f"{m._about} is a norm over groups of features")
        gain = 1.0 + gain if self.less_one and gain is not None else gain
        epsilon = getattr(m, self.epsilon) if isinstance(self.epsilon, str) else self.epsilon
        if epsilon is None:
            epsilon = float(np.finfo(x.dtype).eps)
        return {"gain": gain, "b": b, "kind": self.kind, "epsilon": epsilon}


def of_identity(m: Mirror, x: Any) -> Any:
    """Of a dropout that drops nothing, and of what hands its input on."""
    return x


def of_activation(kind: str) -> Any:
    """A module that is a function of each number."""
    return lambda m, x: activated(x, kind)


def of_gelu(m: Mirror, x: Any) -> Any:
    """`torch.nn.GELU`."""
    return activated(x, "gelu" if m.approximate == "none" else "gelu_tanh")


def of_embedding(m: Mirror, index: Any) -> Any:
    """Rows of a table."""
    if any(m.get(name) for name in ("max_norm", "scale_grad_by_freq", "sparse")) or m.get("padding_idx") is not None:
        raise UnknownLayer(f"{m._about} is an embedding with norms or gradients of its own")
    return m.weight[index if isinstance(index, slice) else np.asarray(index)]


TORCH = {
    "torch.nn.modules.linear.Linear": of_linear,
    "torch.nn.modules.linear.NonDynamicallyQuantizableLinear": of_linear,
    "torch.nn.modules.linear.Identity": of_identity,
    "torch.nn.modules.dropout.Dropout": of_identity,
    "torch.nn.modules.normalization.LayerNorm": Norm("layer", "eps"),
    "torch.nn.modules.normalization.RMSNorm": Norm("rms", "eps"),
    "torch.nn.modules.sparse.Embedding": of_embedding,
    "torch.nn.modules.activation.SiLU": of_activation("silu"),
    "torch.nn.modules.activation.ReLU": of_activation("relu"),
    "torch.nn.modules.activation.Sigmoid": of_activation("sigmoid"),
    "torch.nn.modules.activation.Tanh": of_activation("tanh"),
    "torch.nn.modules.activation.GELU": of_gelu,
    "torch.nn.modules.activation.Softmax": None,
    "torch.nn.modules.container.ModuleList": None,
    "torch.nn.modules.container.ParameterList": None,
    "torch.nn.modules.container.Sequential": of_sequence,
    "torch.nn.modules.conv.Conv1d": None,
    "torch.nn.modules.conv.Conv2d": None,
    "torch.nn.modules.activation.Hardswish": None,
    "torch.nn.modules.batchnorm.BatchNorm2d": None,
    "torch.nn.modules.batchnorm.BatchNorm1d": None,
    "torch.nn.modules.normalization.GroupNorm": None,
    "torch.nn.modules.padding.ZeroPad2d": None,
    "torch.nn.modules.padding.ConstantPad1d": None,
}


def of_rotary(m: Mirror, x: Any, position_ids: Any) -> tuple[Any, Any]:
    """A rotary embedding, as cos and sin (b, n, r); its frequencies do not depend on the length."""
    if m.rope_type not in ("default", "linear", "llama3", "yarn"):
        raise UnknownLayer(f"{m._about} is not known with rope_type {m.rope_type!r}")
    angles = np.asarray(position_ids)[..., None] * np.asarray(m.inv_freq, dtype=float)
    angles = np.concatenate([angles, angles], axis=-1)
    return np.cos(angles) * m.attention_scaling, np.sin(angles) * m.attention_scaling


PARTS: dict[str, Any] = {  # modules, by the digests of what they compute
    "b06865a6c0": of_conv1d,
    "fe597ca23b": of_rotary,
    "0630618bbe 2566935b35 9663ecb974": Norm(),  # RMSNorm of Llama, LayerNorm of T5
    "479a9c51cc": Norm(epsilon="eps", less_one=True),  # Gemma
    "3a8df49b30 97c2970d14 6e2a63070c 9e6be1960b 1464b0dd47 d171d813a4 7d2b0160d8": Norm(epsilon="eps"),
    "a2e2267fa4 0e1ce51358": Norm("layer"),  # Cohere, DeBERTa
    "65efd37028 593550022e": Norm("layer", 1e-5),  # OLMo, Chameleon
    "e17c28b7ba 1bb6122f33": Norm("layer", "eps"),
}


def rotation(
    pairs: str = "halves",
    *,
    doubled: bool = False,
    half: bool = False,
    sin_first: bool = False,
    back: bool = False,
    axis: int = 1,
) -> Any:
    """`apply_rotary_pos_emb`, as a function of cos and sin (b, n, r) that says how (b, h, n, d) are turned.

    `doubled` tells that only the first half of them counts, and holds for each pair of neighbours; `half`, that there
    is one for each pair; `back`, that it turns the other way.
    """

    def options(cos: Any, sin: Any, axis: int = axis) -> dict[str, Any]:
        cos, sin = np.expand_dims(cos, axis), np.expand_dims(sin, axis)
        cos, sin = (sin, cos) if sin_first else (cos, sin)
        if half:
            joined = np.concatenate if pairs == "halves" else np.stack
            cos, sin = (joined([x, x], axis=-1).reshape(*x.shape[:-1], -1) for x in (cos, sin))
        if doubled:
            cos, sin = (np.repeat(x[..., : x.shape[-1] // 2], 2, axis=-1) for x in (cos, sin))
        return {"cos": cos, "sin": -sin if back else sin, "pairs": pairs}

    return options


FUNCTIONS: dict[str, Any] = {  # helpers, by the digests of all that they compute
    # eager_attention_forward
    "f01d86a0f7": eager(groups=True),
    "e9013eda56 46eebd534e cbb8ba92f2 b0a252c158 3297f10163 385e9fe3f1": eager(),
    "3a6fa1b324 82a7d059ff": eager(groups=None),
    "dc8fbaf6a7": eager(takes=("position_bias",)),
    "d5e0d4e07b": eager(groups=True, takes=("softcap",)),
    "c4df38a46a 972d2b9b44 4611543777 fc86c58051 f35e17417e": eager(groups=True, sinks="sinks"),
    "8222c7ec3f": eager(groups=None),
    "2ec610e155": sdpa,
    # apply_rotary_pos_emb
    "68aacc1e15 6f95536654 6486a2470f 9eca854677 2fc11cde1a b720713790": rotation(),
    "67bc9f2b23": rotation(axis=-3),
    "4da30c50af c0fbe30f20 6330d7d45d 3f1d3b819c": rotation("neighbours"),
    "d43ace195e 3d6b8aa812": rotation("neighbours", doubled=True),
    "7a4ceb5e26": rotation(half=True),
    "3a9cc72f33": rotation("neighbours", half=True),
    "b7211415a7": rotation("neighbours", half=True, sin_first=True),
    "793c78d5d7": rotation(back=True),  # nanochat
    "d4eacf8a4d": rotation(axis=-3),  # DINOv3: of the last tokens
    "3644e5d1ce": rotation(),
    "b97ee7c3be": eager(masked=False),
    "2c12295436": eager(),
    "2711523d84 602d80effd": None,  # dynamic_rope_update
    "5774dcb24e": None,  # the scale of Llama 4, in classes/llama.py
    "bdbfa78573": None,  # maybe_autocast
    # helpers of these, and what is never called in the full pass
    "735ee30753": None,
}
