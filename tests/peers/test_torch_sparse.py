"""The sparse layers of the examples against autograd of implementations from their papers, query by query."""

import runpy
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_close, normal

from attention_np import chain

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")

CLOSE = 1e-11
LENGTHS = [1, 3, 4, 5, 18, 31]


@pytest.fixture(scope="module")
def examples() -> dict[str, dict[str, Any]]:
    folder = Path(__file__).parents[2] / "examples"
    return {name: runpy.run_path(str(folder / f"{name}.py")) for name in ("nsa", "moba")}


def attend(query: Any, key: Any, value: Any, seen: list[int]) -> tuple[Any, Any]:
    """One query over the keys that it sees, counted from one: output and weights; zeros if there are none."""
    if not seen:
        return torch.zeros(value.shape[-1], dtype=value.dtype), None
    rows = [j - 1 for j in seen]
    weights = (key[rows] @ query / query.shape[-1] ** 0.5).softmax(0)
    return weights @ value[rows], weights


def nsa(of: dict[str, Any], x: Any, w_query: Any, w_key: Any, w_value: Any, w_pool: Any, places: Any, **w: Any) -> Any:
    """Equations 5 to 12 of Yuan et al. of one sequence; tokens, windows and blocks are counted from one, as there."""
    heads, d_k, width, stride, block, blocks, left = (
        of[name] for name in ("HEADS", "D_K", "WIDTH", "STRIDE", "BLOCK", "BLOCKS", "LEFT")
    )
    n = len(x)
    query = (x @ w_query).reshape(n, heads, d_k)
    keys, values = (list((x @ y).split(d_k, dim=1)) for y in (w_key, w_value))
    gates = torch.sigmoid(x @ w["w_gate"]).reshape(n, 3, heads)
    windows = max((n - width) // stride + 1, 0)
    pooled = []
    for y in (keys[0], values[0]):
        rows = [slice(i * stride, i * stride + width) for i in range(windows)]
        of_window = [(((x @ w_pool)[row] + places).softmax(0) * y[row]).sum(0) for row in rows]
        pooled.append(torch.stack(of_window) if of_window else y[:0])
    outputs = []
    for t in range(1, n + 1):
        over = [i for i in range(1, windows + 1) if (i - 1) * stride + width <= t]
        compressed, shares = [], torch.zeros(windows + 1, dtype=x.dtype)
        for h in range(heads):
            output, weights = attend(query[t - 1, h], *pooled, over)
            compressed.append(output)
            if over:
                shares[over] += weights.detach()
        important = {}
        for j in range(1, ceil(t / block) + 1):  # equation 9, in which a window that there is not counts nothing
            terms = [(block // stride) * j - a - b for a in range(block // stride) for b in range(width // stride)]
            important[j] = float(sum(shares[i] for i in terms if 1 <= i <= windows))
        always = {1, ceil(t / block)}
        others = sorted(important.keys() - always, key=lambda j: (-important[j], j))
        chosen = {*always, *others[: blocks - len(always)]}
        of_blocks = [s for s in range(1, t + 1) if ceil(s / block) in chosen]
        near = list(range(max(t - left, 1), t + 1))
        branches = [
            compressed,
            [attend(query[t - 1, h], keys[1], values[1], of_blocks)[0] for h in range(heads)],
            [attend(query[t - 1, h], keys[2], values[2], near)[0] for h in range(heads)],
        ]
        outputs.append(torch.cat([sum(gates[t - 1, c, h] * branches[c][h] for c in range(3)) for h in range(heads)]))
    return torch.stack(outputs) @ w["w_output"]


def moba(of: dict[str, Any], x: Any, w_query: Any, w_key: Any, w_value: Any, w_output: Any) -> Any:
    """Equations 2 to 6 of Lu et al., of one sequence, counted from one."""
    heads, d_k, block, blocks = (of[name] for name in ("HEADS", "D_K", "BLOCK", "BLOCKS"))
    n = len(x)
    query, key, value = ((x @ w).reshape(n, heads, d_k) for w in (w_query, w_key, w_value))
    outputs = []
    for t in range(1, n + 1):
        own, of_heads = ceil(t / block), []
        for h in range(heads):
            agreement = {
                j: float((query[t - 1, h] @ key[(j - 1) * block : j * block, h].mean(0)).detach())
                for j in range(1, own)
            }
            others = sorted(agreement, key=lambda j, a=agreement: (-a[j], j))
            seen = [s for s in range(1, t + 1) if ceil(s / block) in {own, *others[: blocks - 1]}]
            of_heads.append(attend(query[t - 1, h], key[:, h], value[:, h], seen)[0])
        outputs.append(torch.cat(of_heads))
    return torch.stack(outputs) @ w_output


PAPERS = {"nsa": nsa, "moba": moba}


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", PAPERS)
def test_the_layer_is_that_of_the_paper(name: str, n: int, examples: dict[str, dict[str, Any]]) -> None:
    example = examples[name]
    shapes = {array: x.shape for array, x in example["inputs"].items()} | {"x": (2, n, example["D"])}
    inputs: dict[str, Array] = {array: normal(k, *shape) for k, (array, shape) in enumerate(shapes.items())}
    output, cache = chain.forward(example["layer"], inputs)
    tensors = {array: torch.tensor(x, requires_grad=True) for array, x in inputs.items()}
    shared = {array: x for array, x in tensors.items() if array != "x"}
    expected = torch.stack([PAPERS[name](example, x, **shared) for x in tensors["x"]])
    assert_close(output, expected.detach().numpy(), CLOSE)
    d_output = normal(20, *output.shape)
    expected.backward(torch.tensor(d_output))
    gradients = chain.backward(d_output, cache)
    for array, tensor in tensors.items():
        of_torch = np.zeros(tensor.shape) if tensor.grad is None else tensor.grad.numpy()
        of_chain = gradients[array]
        assert_close(np.zeros(tensor.shape) if of_chain is None else of_chain, of_torch, CLOSE)
    whole = example["layer"](**inputs)
    assert_close(np.asarray(whole), output, 1e-14)


@pytest.mark.parametrize("name", PAPERS)
def test_no_token_and_no_sequence_give_outputs_of_their_shape(name: str, examples: dict[str, dict[str, Any]]) -> None:
    for batch, n in ((2, 0), (0, 5)):
        inputs = examples[name]["inputs"] | {"x": np.zeros((batch, n, examples[name]["D"]))}
        output, cache = chain.forward(examples[name]["layer"], inputs)
        assert output.shape == inputs["x"].shape
        gradients = chain.backward(output, cache)
        assert all((x is None) or (x.shape == inputs[array].shape and (x == 0).all()) for array, x in gradients.items())
