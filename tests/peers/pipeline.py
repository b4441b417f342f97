"""The score pipeline in PyTorch's own functions: what its attention has no options for."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")


def biases_of(query: Any, key: Any, scale: Any, tensors: dict[str, Any], options: dict[str, Any]) -> list[Any]:
    """Arrays, ALiBi, T5 or a table by index, Shaw or products by index, forgetting gates: by the arrays' names."""
    m, wide = key.shape[-2], {name: x.to(query.dtype) for name, x in tensors.items()}
    i, j = torch.arange(query.shape[-2])[:, None], torch.arange(m)
    index = tensors["index"].long() if "index" in tensors else None
    found = [wide["bias"]] if "bias" in wide else []
    if "slopes" in wide:
        found.append(-wide["slopes"][:, None, None] * (i - j).abs())
    if "table" in wide:
        given = {name: options[name] for name in ("bidirectional", "max_distance") if name in options}
        rows = wide["table"][buckets(j - i, len(wide["table"]), **given) if index is None else index]
        found.append(rows.permute(2, 0, 1) if rows.ndim > 2 else rows)
    if "embedding" in wide:
        far = wide["embedding"].shape[-2] // 2
        vectors = wide["embedding"][..., (j - i).clamp(-far, far) + far if index is None else index, :]
        of_keys = options.get("of") == "key"
        met = torch.einsum("...ja,...ija->...ij", key, vectors) if of_keys else (query[..., None, :] * vectors).sum(-1)
        found.append(scale * met)
    if "log_f" in wide:
        sums = wide["log_f"].cumsum(-1)
        found.append(sums[..., : query.shape[-2], None] - sums[..., None, :m])
    return found


def buckets(distances: Any, size: int, bidirectional: bool = True, max_distance: int = 128) -> Any:
    """As T5's authors compute them, from a key position less a query position."""
    half = size // 2 if bidirectional else size
    behind, exact = distances.abs() if bidirectional else (-distances).clamp(min=0), half // 2
    far = torch.log(behind.clamp(min=exact).double() / exact) / np.log(max_distance / exact) * (half - exact)
    bucket = torch.where(behind < exact, behind, (exact + far.long()).clamp(max=half - 1))
    return bucket + half * (bidirectional & (distances > 0))


def scores_of(query: Any, key: Any, tensors: dict[str, Any], mask: Any, options: dict[str, Any]) -> Any:
    """Scale, softcap, bias, mask, window, and the sink as one more column."""
    n, m = query.shape[-2], key.shape[-2]
    scale = tensors["scale"].to(query.dtype) if "scale" in tensors else options.get("scale", query.shape[-1] ** -0.5)
    scores = query @ key.mT * scale
    if options.get("softcap") is not None:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    scores = sum(biases_of(query, key, scale, tensors, options), scores)
    distances = torch.arange(m) - torch.arange(n)[:, None]
    left, right = options.get("window", (n, m))
    right = 0 if options.get("is_causal") else right
    seen = (distances >= -left) & (distances <= right)
    scores = scores.masked_fill(~(seen if mask is None else seen & mask), -torch.inf)
    if "sink" in tensors:
        column = tensors["sink"].to(query.dtype)[..., None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], dim=-1)
    return scores
