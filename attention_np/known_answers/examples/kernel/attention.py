"""Attention of heads: widths, lengths, groups, alignments, windows, and what is added to scores, alone and together."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.known_answers.examples.example import Array, Example
from attention_np.known_answers.examples.kernel.drawn import CoarseDraws, of_attention

__all__ = ["examples"]

LAST = "bottom-right"
LATENT: dict[str, Any] = {  # weights absorbed: heads share one of 576 features, whose first 512 are the values
    "key_heads": 1,
    "d_k": 576,
    "d_v": 512,
    "value": None,
    "value_width": 512,
    "scale": 192**-0.5,
}


def examples() -> list[Example]:
    """Every case of whole sequences."""
    return [*_of_widths(), *_of_lengths(), *_of_groups(), *_of_masks(), *_of_scores(), *_of_statistics()]


def _of_widths() -> list[Example]:
    case = of_attention
    padded = "padded widths"
    return [
        case("kernel-d64", "Two samples, two heads of 64 features, no option.", batch=2, heads=2),
        case("kernel-d128", "Heads of 128 features.", heads=2, d_k=128),
        case("kernel-d256", "Heads of 256 features.", d_k=256),
        case("kernel-d72", "72 features: no multiple of 16.", padded, heads=2, d_k=72),
        case("kernel-d96", "96 features: no power of two.", heads=2, d_k=96),
        case("kernel-d104", "104 features: a multiple of 8 and of no more.", padded, heads=2, d_k=104),
        case("kernel-d192-128", "Keys of 192 features, values of 128, as latent attention trains.", d_k=192, d_v=128),
        case("kernel-d576-512", "Latent attention with its weights absorbed: 4 heads over one of 576 features, whose "
             "first 512 are the values, too. Their gradients add up.", n=6, m=20, heads=4, **LATENT, is_causal=True,
             alignment=LAST),
        case("kernel-all-digits", "Inputs with all their digits: none is exact in a shorter format.", fine=True, n=20),
        case("kernel-all-digits-causal", "The same, causal, in heads of 128.", fine=True, n=40, d_k=128,
             is_causal=True),
        case("kernel-cotangents-along-output",
             "d_output has much in common with the output of each query, which the gradient of softmax takes away.",
             "cotangents along the output", heads=2, n=20, value=lambda x: x + 4, d_output=lambda x: x / 2 + 2),
        case("kernel-full-cotangents", "d_output is of the size of the output, and so the gradients of that of the "
             "inputs: no tolerance of 1e-5 lets zeros pass.", "gradients below the tolerance", n=24, heads=2,
             is_causal=True),
    ]  # fmt: skip


def _of_lengths() -> list[Example]:
    case = of_attention
    return [
        *(
            case(f"kernel-causal-{n}", f"{n} queries and keys, causal: {why}.", n=n, is_causal=True)
            for n, why in (
                (63, "one less than a tile of 64"),
                (64, "one tile of 64"),
                (65, "one more than a tile of 64"),
                (127, "one less than a tile of 128"),
                (128, "one tile of 128"),
                (129, "one more than a tile of 128"),
            )
        ),
        *(
            case(f"kernel-{n}-{m}", f"{n} queries over {m} keys, heads of 32.", n=n, m=m, d_k=32)
            for n, m in ((63, 129), (129, 63), (65, 127), (128, 64))
        ),
        case("kernel-one-query", "One query of each of 8 heads over 129 keys of two, as in decoding.", n=1, m=129,
             heads=8, key_heads=2),
        case("kernel-one-query-long", "One query over 1025 keys.", n=1, m=1025, heads=2, key_heads=1),
        case("kernel-one-query-far-below-zero", "One query over 128 keys with scores near -128: the log-sum-exp is "
             "negative, and its exponential zero in float32.", "large scores", "one query far below zero", n=1, m=128,
             d_k=128, scale=0.125, query=lambda x: np.where(np.arange(128) == 0, 32.0, x),
             key=lambda x: np.where(np.arange(128) == 0, -32.0, x)),
    ]  # fmt: skip


def _of_groups() -> list[Example]:
    case = of_attention
    return [
        case("kernel-groups-of-4",
             "8 heads of queries over 2 of keys and values: those that follow one another share one.", heads=8,
             key_heads=2, is_causal=True),
        case("kernel-one-key-head", "4 heads of queries over one of keys and values.", heads=4, key_heads=1, n=20),
        case("kernel-groups-in-batch", "Two samples, 6 heads over 3, more keys than queries.", batch=2, heads=6,
             key_heads=3, n=5, m=17),
    ]  # fmt: skip


def _of_masks() -> list[Example]:
    case = of_attention
    return [
        case("kernel-causal-more-keys", "17 queries over 33 keys, aligned top-left: the last 16 keys are seen by none.",
             n=17, m=33, is_causal=True),
        case("kernel-causal-bottom-right",
             "17 queries over 33 keys, aligned bottom-right: the last query sees all keys.", n=17, m=33, is_causal=True,
             alignment=LAST),
        case("kernel-causal-bottom-right-more-queries",
             "33 queries over 17 keys, aligned bottom-right: the first 16 queries see none.", "empty row", n=33, m=17,
             is_causal=True, alignment=LAST),
        case("kernel-causal-more-queries", "33 queries over 17 keys, aligned top-left.", n=33, m=17, is_causal=True),
        case("kernel-window", "Each query sees 8 keys before its own, and its own.", "masks of the backward pass", n=33,
             is_causal=True, window=(8, 0)),
        case("kernel-window-both-ways", "5 keys before, 3 behind.", n=33, window=(5, 3)),
        case("kernel-window-of-one", "Each query sees its own key alone.", n=17, window=(0, 0)),
        case("kernel-window-bottom-right", "A window of 6 keys before, counted from the last query and the last key.",
             n=9, m=33, is_causal=True, window=(6, 0), alignment=LAST),
        case("kernel-window-beyond-a-tile",
             "A window of 64 keys before: 129 queries, of which the last see nothing of the first tile.", n=129, d_k=32,
             is_causal=True, window=(64, 0)),
        case("kernel-offset", "A chunk of 12 queries that begins at key 9 of 40.", n=12, m=40, is_causal=True,
             offset=9),
        case("kernel-offset-negative", "A chunk of 12 queries before the keys begin: the first four see none.",
             "empty row", n=12, m=16, is_causal=True, offset=-4),
        case("kernel-key-lengths", "Two samples with 33 and 20 keys; what is behind them is padding, and large.",
             batch=2, heads=2, n=9, m=33, key_lengths=(33, 20), key=_beyond(20, 64.0), value=_beyond(20, 64.0)),
        case("kernel-key-lengths-bottom-right", "The same, causal: the last query of each sample sees its last key.",
             batch=2, n=9, m=33, key_lengths=(33, 20), is_causal=True, key=_beyond(20, 64.0), value=_beyond(20, 64.0),
             alignment=LAST),
        case("kernel-nan-behind-lengths", "The same with NaN in the padding.", "hidden non-finite", batch=2, n=9, m=33,
             key_lengths=(33, 20), key=_beyond(20, np.nan), value=_beyond(20, np.nan)),
        case("kernel-mask", "An arbitrary mask, shared by the heads.", heads=2, n=17, mask=_of_mask(1, 1, 17, 17)),
        case("kernel-mask-of-heads", "An arbitrary mask of each head.", heads=2, n=17, m=20,
             mask=_of_mask(1, 2, 17, 20)),
    ]  # fmt: skip


def _of_scores() -> list[Example]:
    case = of_attention
    sinks = np.array([0.5, -1.0, 2.0, 0.0])
    return [
        case("kernel-scale", "A scale of 0.2.", heads=2, scale=0.2),
        case("kernel-bias", "A bias of each pair and head.", heads=2, n=17, bias=lambda draws: draws(1, 2, 17, 17)),
        case("kernel-bias-in-batch", "One bias for two samples and all heads: its gradient is a sum over them.",
             "broadcast", "gradients of masks and sinks", batch=2, heads=2, bias=lambda draws: draws(1, 1, 16, 16)),
        case("kernel-bias-large", "A bias of up to about 100, causal.", "large scores", heads=2, is_causal=True,
             bias=lambda draws: 32 * draws(1, 2, 16, 16)),
        case("kernel-alibi", "ALiBi slopes of 4 heads, causal.", heads=4, n=17, is_causal=True,
             slopes=np.array([0.5, 0.25, 0.125, 0.0625])),
        case("kernel-softcap", "Scores are 15 tanh(s / 15), as large as the cap and beyond it, causal.",
             "softcap without its bound", "softcap of what is masked", heads=2, n=24, is_causal=True, softcap=15.0,
             query=lambda x: 8 * x),
        case("kernel-softcap-low", "A softcap of 0.5: nearly all scores are at it.", n=24, softcap=0.5),
        case("kernel-sink", "A sink of each of 4 heads over 2.", heads=4, key_heads=2, is_causal=True, sink=sinks),
        case("kernel-sink-large", "Sinks that take from a tenth to all of the weight.", "large scores",
             "sink that is ignored", "gradients of masks and sinks", heads=4, sink=np.array([1.0, 4.0, 16.0, 30.0])),
        case("kernel-sink-and-no-key", "Queries that see no key: the output is zero, the log-sum-exp the sink.",
             heads=2, n=12, m=8, is_causal=True, sink=sinks[:2], alignment=LAST),
        case("kernel-sink-d576-512", "A sink over latents of 576 features, whose first 512 are the values.",
             "sink that is ignored", n=4, m=16, heads=2, **LATENT, sink=np.array([1.0, 3.0])),
        case("kernel-whole-pipeline", "Scale, softcap, bias, window and sink, 8 heads over 2, aligned bottom-right.",
             heads=8, key_heads=2, n=9, m=24, scale=0.25, softcap=8.0, is_causal=True, window=(10, 0),
             bias=lambda draws: draws(1, 8, 9, 24), sink=lambda draws: draws(8), alignment=LAST),
        case("kernel-softcap-window", "Softcap and window, as in Gemma 2, 4 heads over 2.", heads=4, key_heads=2, n=33,
             softcap=4.0, is_causal=True, window=(12, 0), query=lambda x: 4 * x),
        case("kernel-sink-window", "Sink and window, as in gpt-oss, 8 heads over 2.", heads=8, key_heads=2, n=24,
             is_causal=True, window=(7, 0), sink=lambda draws: draws(8)),
        case("kernel-large-scores", "Scores up to about 100.", "large scores", heads=2, n=24, query=lambda x: 16 * x,
             key=lambda x: 2 * x),
        case("kernel-later-keys-larger", "Each key beats nearly all before it: a running maximum moves at every key.",
             "large scores", n=4, m=130, query=np.abs,
             key=lambda x: (np.abs(x) + np.floor(np.arange(130) / 4)[:, None]) / 4),
        case("kernel-outliers",
             "As activations are: two features are large in every token, and the first token draws most of the weight.",
             "large scores", batch=2, n=24, is_causal=True,
             query=lambda x: x + 6 * (np.arange(64) == 3) + 3 * (np.arange(64) == 5),
             key=lambda x: x + 8 * ((np.arange(64) == 3) * (1 + (np.arange(24) == 0))[:, None])),
        case("kernel-dropout", "A quarter of the weights is dropped: those that are not kept.", heads=2, n=17,
             dropout_p=0.25, kept=_kept(1, 2, 17, 17)),
        case("kernel-dropout-causal", "Half of them, causal, in groups.", heads=4, key_heads=2, n=17, dropout_p=0.5,
             is_causal=True, kept=_kept(1, 4, 17, 17, share=0.5)),
    ]  # fmt: skip


def _of_statistics() -> list[Example]:
    case = of_attention
    return [
        case("kernel-logsumexp-gradient",
             "The log-sum-exp has a gradient, for 2 samples, 3 heads and 17 queries: a transposed layout shows.",
             "statistics in another layout", batch=2, heads=3, n=17, d_logsumexp=lambda draws: draws(2, 3, 17)),
        case("kernel-logsumexp-gradient-alone", "d_output is zero: all gradients come through the log-sum-exp.",
             heads=2, n=17, is_causal=True, d_output=lambda x: 0 * x, d_logsumexp=lambda draws: draws(1, 2, 17)),
        case("kernel-logsumexp-gradient-sink",
             "The same with a sink, which is in the log-sum-exp, and so has a share of its gradient.",
             "gradient of the log-sum-exp and the sink", heads=4, key_heads=2, n=17, is_causal=True,
             sink=np.array([0.5, -1.0, 2.0, 4.0]), d_logsumexp=lambda draws: draws(1, 4, 17)),
        case("kernel-logsumexp-gradient-softcap", "Through a softcap and a window.", heads=2, n=24, softcap=2.0,
             window=(5, 5), query=lambda x: 2 * x, d_logsumexp=lambda draws: draws(1, 2, 24)),
    ]  # fmt: skip


def _beyond(length: int, number: float) -> Any:
    """What puts a number behind the keys of the second of two samples."""
    return lambda x: np.where((np.arange(2) == 1)[:, None, None, None] & (np.arange(33) >= length)[:, None], number, x)


def _of_mask(*shape: int) -> Any:
    return lambda draws: draws.mask(*shape)


def _kept(*shape: int, share: float = 0.75) -> Any:
    def kept(draws: CoarseDraws) -> Array:
        some: Array = draws.uniform(*shape) < share
        return some

    return kept
