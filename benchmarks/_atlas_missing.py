"""Why a class has no reading, in a sentence that a user can read: by its folder, or its folder and name."""

from __future__ import annotations

MISSING = {
    "autoformer": "weights by autocorrelation are not attention of queries and keys",
    "convbert": "no recipe has the dynamic convolution beside the heads",
    "deepseek_v4": "no recipe has its compressed keys, nor the output that is turned back",
    "dinat": "natten, which computes its neighbourhoods, is not at hand to hold a reading against",
    "esm.EsmFoldAttention": "grouped_query would serve; its list of biases, which are added in place, has no reading",
    "esm.EsmFoldSelfAttention": "grouped_query would serve; its bias of pairs, with heads last, has no reading",
    "esm.EsmFoldInvariantPointAttention": "attention between points of frames is not asked for",
    "esmfold2": "its weights come from a state of pairs alone",
    "evolla.EvollaSequenceAlignerCrossAttention": "a feed-forward network and gates in it, keys of three sources",
    "evolla.EvollaSequenceCompressorAttention": "no recipe has latents behind the keys that they read",
    "gemma3n.Gemma3nAudioAttention": "a softcap over content and distance together: dot_product adds a bias behind it",
    "gemma4.Gemma4AudioAttention": "a softcap over content and distance together: dot_product adds a bias behind it",
    "ibert": "quantised",
    "informer": "it samples the keys by which it chooses queries",
    "inkling2": "queries and keys of clipped length, and a convolution whose taps depend on the token",
    "inkling2_loop": "queries and keys of clipped length, and a convolution whose taps depend on the token",
    "longt5": "keys that are sums of blocks, and padding that counts where there is no mask",
    "mra": "approximated by several resolutions",
    "nystromformer": "approximated by landmarks",
    "prophetnet": "no recipe has the predicting streams beside the main one",
    "reformer": "keys are chosen by hashing, or within chunks",
    "slanet": "additive attention inside of a recurrent cell, whose state is its query",
    "slanext": "additive attention inside of a recurrent cell, whose state is its query",
    "vits": "vectors of distances are added to values, which no bias can say",
    "wavtokenizer": "no recipe has a norm of groups before its one head",
    "xlstm": "its state has exponential input gates and a normaliser with a running maximum, which no op has",
    "yoso": "weights by hashing",
}


def reason(folder: str, name: str) -> str:
    """Why the class `name` of a folder has no reading."""
    return MISSING.get(f"{folder}.{name}") or MISSING.get(folder) or "no reading"
