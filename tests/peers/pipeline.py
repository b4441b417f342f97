"""The score pipeline in PyTorch's own functions: what its attention has no options for."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")


def bias_by_position(query: Any, m: int, scale: float, tensors: dict[str, Any], options: dict[str, Any]) -> Any:
    """ALiBi, T5, Shaw or forgetting gates, by the names of their arrays; zero if there is none."""
    i, j = torch.arange(query.shape[-2])[:, None], torch.arange(m)
    if "slopes" in tensors:
        return -tensors["slopes"].to(query.dtype)[:, None, None] * (i - j).abs()
    if "table" in tensors:
        table = tensors["table"].to(query.dtype)
        given = {name: options[name] for name in ("bidirectional", "max_distance") if name in options}
        return table[buckets(j - i, len(table), **given)].permute(2, 0, 1)
    if "embedding" in tensors:
        embedding = tensors["embedding"].to(query.dtype)
        far = len(embedding) // 2
        return scale * torch.einsum("...ia,ija->...ij", query, embedding[(j - i).clamp(-far, far) + far])
    if "log_f" in tensors:
        sums = tensors["log_f"].to(query.dtype).cumsum(-1)
        return sums[..., : query.shape[-2], None] - sums[..., None, :m]
    return torch.zeros((), dtype=query.dtype)


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
    scale = options.get("scale", query.shape[-1] ** -0.5)
    scores = query @ key.mT * scale
    if options.get("softcap") is not None:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    scores = scores + tensors.get("bias", bias_by_position(query, m, scale, tensors, options))
    distances = torch.arange(m) - torch.arange(n)[:, None]
    left, right = options.get("window", (n, m))
    right = 0 if options.get("is_causal") else right
    seen = (distances >= -left) & (distances <= right)
    scores = scores.masked_fill(~(seen if mask is None else seen & mask), -torch.inf)
    if "sink" in tensors:
        column = tensors["sink"].to(query.dtype)[..., None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], dim=-1)
    return scores
