"""What went wrong in public: tags of cases that would have shown it, each with a sentence and its threads on GitHub."""

from __future__ import annotations

__all__ = ["WENT_WRONG"]

WENT_WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    "selected keys in common": (
        "gradients of selected keys are added up over all queries that have them in common",
        ("NVIDIA/cudnn-frontend#385",),
    ),
    "scatter at -1": (
        "an index of -1 is no key: nothing is written at the row before the first, or at the last",
        ("Dao-AILab/flash-attention#2755",),
    ),
    "loss that is clipped": (
        "the gradient of the loss of an indexer tends to the target's share where its weight underflows, not to zero",
        ("NVIDIA/cudnn-frontend#1136",),
    ),
    "one query far below zero": (
        "gradients of keys and values are finite where the exponential of the log-sum-exp underflows",
        ("NVIDIA/cudnn-frontend#1072",),
    ),
    "statistics in another layout": (
        "the log-sum-exp and its gradient are read as they lie, (batch, heads, queries)",
        ("NVIDIA/cudnn-frontend#304",),
    ),
    "gradient of the log-sum-exp and the sink": (
        "the gradient of the log-sum-exp reaches queries, keys and the sink, and is not dropped",
        ("NVIDIA/cudnn-frontend#554",),
    ),
    "padded widths": (
        "widths of 72 and 104 are padded alike in all passes, and what is padded does not reach the gradient",
        ("Dao-AILab/flash-attention#2896",),
    ),
    "softcap without its bound": (
        "a softcap is c tanh(s / c), not s / c tanh(s / c)",
        ("Dao-AILab/flash-attention#2402",),
    ),
    "softcap of what is masked": (
        "the slope of a softcap is that of the scores before they are masked: the square of what a mask puts there "
        "overflows",
        ("openxla/tokamax#1121",),
    ),
    "sink that is ignored": (
        "a sink is large enough to be seen in output and gradients: a kernel that drops it fails",
        ("NVIDIA/TransformerEngine#3551", "NVIDIA/cudnn-frontend#421"),
    ),
    "gradients of masks and sinks": (
        "what is added to scores, and a sink, have gradients, which are not zero",
        ("ml-explore/mlx#2909", "ISEEKYAN/Megatron-LM#205"),
    ),
    "gradient of a strong decay": (
        "the gradient of a strong decay is a small difference, which no half format holds",
        ("QwenLM/FlashQLA#28",),
    ),
    "decay of another head": (
        "each head and sample has decays of its own, also where the gradient of the last state comes in",
        ("fla-org/flash-linear-attention#1115",),
    ),
    "convolution of few tokens": (
        "fewer tokens than the state has: the rest of it is what came before, with its gradient",
        ("fla-org/flash-linear-attention#1140",),
    ),
    "decay that overflows": (
        "decays of 1e-12 and zero: no inverse of a product of decays is taken",
        ("pytorch/executorch#21417",),
    ),
    "masks of the backward pass": (
        "causal masks and windows hide the same pairs in the backward pass as in the forward pass",
        ("meta-pytorch/MSLK#263",),
    ),
    "statistics of a part": (
        "the gradients of a part of the keys are by the output and the log-sum-exp of all keys",
        ("tenstorrent/tt-metal#53216",),
    ),
    "cotangents along the output": (
        "gradients are right for any d_output, not only where it is orthogonal to the output, as in mlstm_kernels",
        (),
    ),
    "gradients below the tolerance": (
        "gradients are of the size of the inputs, so that a tolerance cannot let anything pass",
        ("aqlaboratory/openfold-3#258",),
    ),
}
