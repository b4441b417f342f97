"""Random combinations of the score pipeline beside PyTorch's autograd: output, log-sum-exp and every gradient."""

from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_close, normal

from attention_np import biases, blockwise, dot_product

from .pipeline import scores_of

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")

DOUBLE = 1e-12
N, M, D_K, D_V, HEADS = 6, 9, 4, 3, 2
KINDS = ("none", "array", "alibi", "t5", "shaw", "forgetting")
NAMES = {"array": "bias", "alibi": "slopes", "t5": "table", "shaw": "embedding", "forgetting": "log_f"}  # of its array


def drawn(seed: int) -> tuple[str, dict[str, Any], dict[str, Array]]:
    """A combination, and its arrays."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    arrays = {
        "query": normal(1, 2, HEADS, N, D_K),
        "key": normal(2, 2, HEADS, M, D_K),
        "value": normal(3, 2, HEADS, M, D_V),
    }
    arrays["query"] *= rng.choice([1.0, 10.0])
    shapes = {
        "array": (HEADS, N, M),
        "alibi": (HEADS,),
        "t5": (8, HEADS),
        "shaw": (5, D_K),
        "forgetting": (2, HEADS, M),
    }
    if kind != "none":
        arrays["bias"] = rng.standard_normal(shapes[kind])
    if rng.random() < 0.7:
        arrays["sink"] = rng.standard_normal(HEADS) * rng.choice([1.0, 10.0])
    mask = rng.random((N, M)) < 0.6
    mask[:, 0] = True  # to PyTorch, a query without a key is NaN
    options = {"scale": rng.choice([0.5, -1.3]), "softcap": rng.choice([None, 2.0, 50.0]), "mask": mask}
    return kind, options, arrays


def ours(kind: str, array: Array | None) -> Any:
    if kind == "t5":
        return biases.t5(array, max_distance=7)
    return getattr(biases, kind)(array) if kind in ("alibi", "shaw", "forgetting") else array


@pytest.mark.parametrize("seed", range(48))
def test_output_log_sum_exp_and_gradients_are_those_of_autograd(seed: int) -> None:
    kind, options, arrays = drawn(seed)
    given = {name: x for name, x in arrays.items() if name != "bias"} | {"bias": ours(kind, arrays.get("bias"))}
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in arrays.items()}
    beside = {NAMES[kind] if name == "bias" else name: x for name, x in tensors.items()}
    theirs = {"scale": options["scale"], "softcap": options["softcap"], "max_distance": 7}
    scores = scores_of(tensors["query"], tensors["key"], beside, torch.tensor(options["mask"]), theirs)
    expected, logsumexp = torch.softmax(scores, -1)[..., :M] @ tensors["value"], torch.logsumexp(scores, -1)
    d_output, d_logsumexp = normal(8, *expected.shape), normal(9, *logsumexp.shape)
    (expected * torch.tensor(d_output)).sum().backward(retain_graph=True)
    gradients = {name: x.grad.numpy().copy() for name, x in tensors.items()}

    output, cache = dot_product.forward(**given, **options)
    assert_close(output, expected.detach().numpy(), DOUBLE)
    found = dot_product.backward(d_output, cache)
    for name, gradient in gradients.items():
        assert_close(getattr(found, name), gradient, DOUBLE)

    (logsumexp * torch.tensor(d_logsumexp)).sum().backward()
    output, its_cache = blockwise.forward(**given, **options, block_size=(4, 3))
    assert_close(output, expected.detach().numpy(), DOUBLE)
    assert_close(its_cache.logsumexp, logsumexp.detach().numpy(), DOUBLE)
    found = blockwise.backward(d_output, its_cache, d_logsumexp=d_logsumexp)
    for name, tensor in tensors.items():
        if name != "value":  # of which the log-sum-exp does not depend
            assert_close(getattr(found, name), tensor.grad.numpy(), DOUBLE)
