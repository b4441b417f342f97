"""The attention of published models: each a function of a few lines on `chain`, forward only.

Arrays are under the names of the field: tokens x (batch, n, features), w_query (features, heads * d), a gain. The heads
of a projection stand one after the other in its features. ``print(inspect.getsource(recipe))`` is what to read.
"""

from attention_np.atlas.recipes._registry import RECIPES
from attention_np.atlas.recipes.compressed import multi_head_latent
from attention_np.atlas.recipes.dense import (
    compressed_convolutional,
    differential,
    grouped_query,
    mixture,
    multi_head,
    post_norm,
)
from attention_np.atlas.recipes.encoders import (
    crossed_heads,
    entity_aware,
    gated_distances,
    gated_features,
    global_tokens,
    pre_norm,
    with_boxes,
    with_layout,
    with_memory,
    with_places,
)
from attention_np.atlas.recipes.pictures import cosine_windowed, decomposed_places
from attention_np.atlas.recipes.points import sampled
from attention_np.atlas.recipes.reductions import (
    assigned,
    convolved,
    efficient_additive,
    learned_tokens,
    of_channels,
    of_distances,
    of_pixels,
    pooled_queries,
    separable,
    spatially_reduced,
)
from attention_np.atlas.recipes.relative import disentangled, relative_positions
from attention_np.atlas.recipes.states import gated_delta, kimi_delta, lightning, mamba, mamba2, rwkv

__all__ = [
    "RECIPES", "assigned", "compressed_convolutional", "convolved", "cosine_windowed", "crossed_heads",
    "decomposed_places", "differential", "disentangled", "efficient_additive", "entity_aware", "gated_delta",
    "gated_distances", "gated_features", "global_tokens", "grouped_query", "kimi_delta", "learned_tokens", "lightning",
    "mamba", "mamba2", "mixture", "multi_head", "multi_head_latent", "of_channels", "of_distances", "of_pixels",
    "pooled_queries", "post_norm", "pre_norm", "relative_positions", "rwkv", "sampled", "separable",
    "spatially_reduced", "with_boxes", "with_layout", "with_memory", "with_places",
]  # fmt: skip
