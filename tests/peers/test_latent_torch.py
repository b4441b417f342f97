"""Latent attention and the indexer against PyTorch's autograd."""

from typing import Any

import numpy as np
import pytest
from helpers import assert_close, normal

from attention_np import chain, indexer, latent, masks
from peers.test_torch_chain import CLOSE, assert_same

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")

H, N, M = 3, 4, 5
SHAPES = {
    "query": (2, H, N, 4),
    "query_rotary": (2, H, N, 2),
    "latent": (2, M, 6),
    "key_rotary": (M, 2),
    "w_key": (H, 6, 4),
    "w_value": (H, 6, 5),
}
SELECTED = masks.selected([[0, 3], [2, 2], [4, 1], [1, -1]], M)


def by_torch(
    query: Any, query_rotary: Any, latent: Any, key_rotary: Any, w_key: Any, w_value: Any, bias: Any, sink: Any
) -> Any:
    """With keys and values of each head, as the papers write it."""
    key, value = torch.einsum("bmr,hrd->bhmd", latent, w_key), torch.einsum("bmr,hrd->bhmd", latent, w_value)
    products = torch.einsum("bhnd,bhmd->bhnm", query, key) + torch.einsum("bhnd,md->bhnm", query_rotary, key_rotary)
    scores = 2 * torch.tanh(products / 6**0.5 / 2) + bias
    scores = scores.masked_fill(~torch.tensor(SELECTED), -torch.inf)
    column = sink[:, None, None].expand(2, H, N, 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1] @ value


@pytest.mark.parametrize("absorbed", [False, True])
def test_latent_attention_with_all_that_it_takes(absorbed: bool) -> None:
    options = {"absorbed": absorbed, "softcap": 2.0, "mask": SELECTED}
    layer = lambda **given: chain.apply(latent, **given, **options)  # noqa: E731
    assert_same(layer, by_torch, SHAPES | {"bias": (N, M), "sink": (H,)})


@pytest.mark.parametrize("absorbed", [False, True])
def test_latent_attention_alone(absorbed: bool) -> None:
    layer = lambda **given: chain.apply(latent, **given, absorbed=absorbed, mask=SELECTED)  # noqa: E731

    def theirs(query: Any, query_rotary: Any, latent: Any, key_rotary: Any, w_key: Any, w_value: Any) -> Any:
        key, value = latent[:, None] @ w_key, latent[:, None] @ w_value
        both = torch.cat([query, query_rotary], -1), torch.cat([key, key_rotary.expand(2, H, M, 2)], -1)
        mask = torch.tensor(SELECTED)
        return torch.nn.functional.scaled_dot_product_attention(*both, value, attn_mask=mask)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # which has second derivatives
        assert_same(layer, theirs, SHAPES)


def test_the_indexer_and_the_divergence_that_trains_it() -> None:
    target = np.abs(normal(9, 2, N, M)) * SELECTED
    mask = torch.tensor(SELECTED)

    def ours(query: Any, key: Any, weights: Any) -> Any:
        scores = chain.apply(indexer, query, key, weights, mask=SELECTED, scale=0.7)
        return chain.where(SELECTED, scores, 0.0)

    def theirs(query: Any, key: Any, weights: Any) -> Any:
        scores = torch.einsum("bhn,bhnm->bnm", weights, torch.relu(0.7 * query @ key[:, None].mT))
        return scores.masked_fill(~mask, 0)

    assert_same(ours, theirs, {"query": (2, H, N, 3), "key": (2, M, 3), "weights": (2, H, N)})

    given = {
        name: normal(k, *shape)
        for k, (name, shape) in enumerate((("q", (2, H, N, 3)), ("k", (2, M, 3)), ("w", (2, H, N))))
    }
    scores, cache = indexer.forward(*given.values(), mask=SELECTED)
    tensors = [torch.tensor(x, requires_grad=True) for x in given.values()]
    theirs_scores = torch.einsum("bhn,bhnm->bnm", tensors[2], torch.relu(tensors[0] @ tensors[1][:, None].mT))
    log_shares = theirs_scores.masked_fill(~mask, -torch.inf).log_softmax(-1)
    p = torch.tensor(target)
    divergence = torch.where(mask, p * (torch.log(p.clamp_min(1e-300)) - log_shares), 0).sum()
    wanted = torch.autograd.grad(divergence, tensors)
    shares = np.where(SELECTED, np.exp(scores), 0)
    d_scores = target.sum(-1, keepdims=True) * shares / shares.sum(-1, keepdims=True) - target
    for found, x in zip(indexer.backward(d_scores, cache), wanted, strict=True):
        assert_close(found, x.numpy(), CLOSE)


def test_the_choice_is_that_of_topk_where_no_scores_are_equal() -> None:
    scores = normal(3, 20, 30)
    np.testing.assert_array_equal(indexer.top_k(scores, 7), torch.topk(torch.tensor(scores), 7).indices.numpy())
