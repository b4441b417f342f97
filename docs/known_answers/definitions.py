"""Cases in the form of flashinfer-trace: definitions, forward and backward, with a reference in PyTorch, and workloads.

The form is that of definition.md and workload.md in docs/flashinfer_trace of
https://github.com/flashinfer-ai/flashinfer-bench.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from attention_np.known_answers import KnownAnswer

ATTENTIONS = ("dot_product", "attention")
DTYPES = ("float32", "float16", "bfloat16")  # float64 is none of theirs
WITHOUT = {"hidden non-finite", "infinite scores", "zero d_output", "tangents", "eight bits"}
OPTIONAL = ("log_decay", "beta", "initial_state")
ATTENTION = """\
import math

import torch


def attend(query, key, value, scale):
    group = query.shape[-3] // key.shape[-3]
    key, value = (x.float().repeat_interleave(group, dim=-3) for x in (key, value))
    scores = query.float() @ key.transpose(-1, -2) * scale
{causal}    return key, value, scores


"""
CAUSAL = """\
    n, m = scores.shape[-2:]
    hidden = torch.ones(n, m, dtype=torch.bool, device=scores.device).triu(1)
    scores = scores.masked_fill(hidden, -math.inf)
"""
ATTENTION_FORWARD = """\
def run({names}):
    _, values, scores = attend(query, key, value, scale)
    logsumexp = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - logsumexp[..., None])
    return (weights @ values).to(query.dtype), logsumexp.to(torch.{statistic})
"""
ATTENTION_BACKWARD = """\
def run({names}):
    keys, values, scores = attend(query, key, value, scale)
    weights = torch.softmax(scores, dim=-1)
    d_output = d_output.float()
    d_weights = d_output @ values.transpose(-1, -2)
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdim=True))
    d_query = d_scores @ keys * scale
    d_keys = d_scores.transpose(-1, -2) @ query.float() * scale
    d_values = weights.transpose(-1, -2) @ d_output
    group = query.shape[-3] // key.shape[-3]
    d_key, d_value = (x.unflatten(-3, (-1, group)).sum(-3).to(query.dtype) for x in (d_keys, d_values))
    return d_query.to(query.dtype), d_key, d_value
"""
LINEAR = """\
import torch


def states(query, key, value, log_decay, beta, initial_state):
    query, key, value = query.float(), key.float(), value.float()
    *leading, n, d_k = key.shape
    log_decay = torch.zeros(*leading, n, 1, device=key.device) if log_decay is None else log_decay.float()
    state = torch.zeros(*leading, d_k, value.shape[-1], device=key.device)
    state = state if initial_state is None else initial_state.float()
    after, faded, written = [], [], []
    for t in range(n):
        state = log_decay[..., t, :].exp()[..., None] * state  # decay first, then the delta rule
        faded.append(state)
        u = value[..., t, :]
        if beta is not None:
            read = (key[..., t, None, :] @ state)[..., 0, :]
            u = beta.float()[..., t, None] * (u - read)
        written.append(u)
        state = state + key[..., t, :, None] * u[..., None, :]
        after.append(state)
    return query, key, value, log_decay, after, faded, written


"""
LINEAR_FORWARD = """\
def run({names}):
    {missing}q, _, _, _, after, _, _ = states(query, key, value, log_decay, beta, initial_state)
    output = [(q[..., t, None, :] @ state)[..., 0, :] * scale for t, state in enumerate(after)]
    return torch.stack(output, dim=-2).to(query.dtype), after[-1].to(torch.{statistic})
"""
LINEAR_BACKWARD = """\
def run({names}):
    {missing}q, k, v, decay, after, faded, written = states(query, key, value, log_decay, beta, initial_state)
    d_output, d_state = d_output.float(), d_final_state.float()
    d_q, d_k, d_v, d_beta, d_decay = [], [], [], [], []
    for t in reversed(range(q.shape[-2])):
        q_t, k_t, d_o = q[..., t, :], k[..., t, :], d_output[..., t, :] * scale
        d_q.append((after[t] @ d_o[..., None])[..., 0])
        d_state = d_state + q_t[..., None] * d_o[..., None, :]
        d_u = (k_t[..., None, :] @ d_state)[..., 0, :]
        d_key_t = (d_state @ written[t][..., None])[..., 0]
        if beta is not None:
            b = beta.float()[..., t, None]
            lacking = v[..., t, :] - (k_t[..., None, :] @ faded[t])[..., 0, :]
            d_beta.append((d_u * lacking).sum(-1))
            d_read, d_u = -b * d_u, b * d_u
            d_key_t = d_key_t + (faded[t] @ d_read[..., None])[..., 0]
            d_state = d_state + k_t[..., None] * d_read[..., None, :]
        d_v.append(d_u)
        d_k.append(d_key_t)
        of_features = (d_state * faded[t]).sum(-1)
        d_decay.append(of_features if decay.shape[-1] > 1 else of_features.sum(-1, keepdim=True))
        d_state = decay[..., t, :].exp()[..., None] * d_state
    found = dict(query=d_q, key=d_k, value=d_v, log_decay=d_decay)
    found = {{name: torch.stack(x[::-1], dim=-2) for name, x in found.items()}}
    found["beta"] = torch.stack(d_beta[::-1], dim=-1) if d_beta else None
    found = {{name: x if x is None else x.to(query.dtype) for name, x in found.items()}}
    found["initial_state"] = d_state.to(torch.{statistic})
    return tuple(found[name] for name in {gradients})
"""


class Direction(NamedTuple):
    """A pass of a case: what it takes and gives, and how it is computed."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reference: str


def files(cases: Iterable[KnownAnswer]) -> dict[str, str]:
    """Definitions and workloads, by their paths."""
    found: dict[str, str] = {}
    for case in cases:
        for direction in directions(case):
            definition = definition_of(case, direction)
            name, op_type = definition["name"], definition["op_type"]
            found[f"definitions/{op_type}/{name}.json"] = json.dumps(definition, indent=2) + "\n"
            path = f"workloads/{op_type}/{name}.jsonl"
            found[path] = found.get(path, "") + json.dumps(workload_of(case, definition)) + "\n"
    return found


def directions(case: KnownAnswer) -> list[Direction]:
    """Both passes of a case, or none where the references cannot compute it."""
    if case.dtype not in DTYPES or WITHOUT & {*case.tags}:
        return []
    if case.op in ATTENTIONS:
        return _attention(case)
    return _linear(case) if case.op == "linear_attention" else []


def _attention(case: KnownAnswer) -> list[Direction]:
    query, key = case.inputs["query"], case.inputs["key"]
    plain = case.inputs.keys() == {"query", "key", "value", "d_output"} and case.options.keys() <= {
        "scale",
        "is_causal",
    }
    if not plain or query.ndim != 4 or key.ndim != 4 or len(query) != len(key) or query.shape[1] % key.shape[1]:
        return []
    shared = ATTENTION.format(causal=CAUSAL if case.options.get("is_causal") else "")
    names = ("query", "key", "value", "scale")
    gradients = ("d_query", "d_key", "d_value")
    return [
        _direction(case, "forward", names, ("output", "logsumexp"), shared + ATTENTION_FORWARD),
        _direction(case, "backward", ("d_output", *names), gradients, shared + ATTENTION_BACKWARD),
    ]


def _linear(case: KnownAnswer) -> list[Direction]:
    given = [name for name in OPTIONAL if name in case.inputs]
    needed = {"query", "key", "value", "d_output", "d_final_state"}
    one_shape = len({case.inputs[name].shape[:-2] for name in ("query", "key", "value")}) == 1
    if case.inputs.keys() != {*needed, *given} or case.options.keys() - {"scale"} or not one_shape:
        return []
    names = ("query", "key", "value", *given, "scale")
    gradients = tuple(f"d_{name}" for name in names if name != "scale")
    return [
        _direction(case, "forward", names, ("output", "final_state"), LINEAR + LINEAR_FORWARD),
        _direction(case, "backward", ("d_output", "d_final_state", *names), gradients, LINEAR + LINEAR_BACKWARD),
    ]


def _direction(case: KnownAnswer, name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], text: str) -> Direction:
    missing = " = ".join(x for x in OPTIONAL if x not in inputs)
    gradients = tuple(x.removeprefix("d_") for x in outputs)
    shared, run = text.split("def run(")
    reference = f"{shared}def run({run}".replace("{names}", ", ".join(inputs))
    reference = reference.replace("{missing}", f"{missing} = None\n    " if missing else "")
    reference = reference.replace("{statistic}", _statistic(case))
    return Direction(
        name, inputs, outputs, reference.replace("{gradients}", repr(gradients)).replace("{{", "{").replace("}}", "}")
    )


def _statistic(case: KnownAnswer) -> str:
    """The dtype of a log-sum-exp or a state, which may be float32 where the rest is shorter."""
    return next(case.answers[x].dtype.name for x in ("logsumexp", "final_state") if x in case.answers)


def definition_of(case: KnownAnswer, direction: Direction) -> dict[str, Any]:
    """The definition that a case is a workload of."""
    axes, shapes = _axes(case, direction)
    constant = {"heads": "h", "few": "kv", "d_k": "d", "d_v": "v"}
    sizes = [f"{letter}{axes[axis]['value']}" for axis, letter in constant.items() if axis in axes]
    kind = [x for x in ("log_decay", "beta", "initial_state") if x in direction.inputs]
    props = ["causal"] * bool(case.options.get("is_causal")) + [x.replace("_", "") for x in kind]
    if "decays" in axes and axes["decays"]["value"] > 1:
        props.append("perfeature")
    if _statistic(case) != case.dtype:
        props.append(f"{_statistic(case)}statistics")
    op_type = "attention" if case.op in ATTENTIONS else case.op
    name = "_".join([op_type, direction.name, *props, *sizes, case.dtype])

    def tensor(array: str) -> dict[str, Any]:
        x = {**case.inputs, **case.answers}.get(array)
        return {"shape": shapes[array], "dtype": "float32" if x is None else x.dtype.name}

    return {
        "name": name,
        "description": f"The {direction.name} pass of {op_type}; its workloads are known answers.",
        "op_type": op_type,
        "tags": ["status:verified", f"stage:{direction.name}"],
        "axes": axes,
        "inputs": {array: tensor(array) for array in direction.inputs},
        "outputs": {array: tensor(array) for array in direction.outputs},
        "reference": direction.reference,
    }


def _axes(case: KnownAnswer, direction: Direction) -> tuple[dict[str, Any], dict[str, list[str] | None]]:
    """The axes of a definition, and of each array their names."""
    inputs = case.inputs
    leading = ["batch", "heads"][: inputs["query"].ndim - 2]
    of_keys = "m" if case.op in ATTENTIONS else "n"
    few = [*leading[:-1], "few"] if case.op in ATTENTIONS else leading
    decays = ["decays"] if "log_decay" in inputs else []
    shapes: dict[str, list[str] | None] = {
        "query": [*leading, "n", "d_k"],
        "key": [*few, of_keys, "d_k"],
        "value": [*few, of_keys, "d_v"],
        "output": [*leading, "n", "d_v"],
        "logsumexp": [*leading, "n"],
        "log_decay": [*leading, "n", *decays],
        "beta": [*leading, "n"],
        "initial_state": [*leading, "d_k", "d_v"],
        "final_state": [*leading, "d_k", "d_v"],
        "scale": None,
    }
    shapes |= {f"d_{name}": shape for name, shape in shapes.items()}
    used = [name for name in (*direction.inputs, *direction.outputs) if shapes[name] is not None]
    arrays: Mapping[str, Any] = {**inputs, **case.answers}
    sizes = {axis: size for name in used for axis, size in zip(shapes[name] or [], arrays[name].shape, strict=True)}
    variable = ("batch", "n", "m")
    axes = {
        axis: {"type": "var"} if axis in variable else {"type": "const", "value": int(size)}
        for axis, size in sizes.items()
    }
    return axes, shapes


def workload_of(case: KnownAnswer, definition: Mapping[str, Any]) -> dict[str, Any]:
    """A case as a workload of its definition."""
    scale = case.options.get("scale", case.inputs["query"].shape[-1] ** -0.5)
    sizes = {
        axis: int(size)
        for name, tensor in definition["inputs"].items()
        if tensor["shape"]
        for axis, size in zip(tensor["shape"], case.inputs[name].shape, strict=True)
    }
    inputs = {
        name: {"type": "scalar", "value": scale}
        if name == "scale"
        else {"type": "safetensors", "path": f"{case.name}.safetensors", "tensor_key": name}
        for name in definition["inputs"]
    }
    return {
        "definition": definition["name"],
        "workload": {
            "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{definition['name']}/{case.name}")),
            "axes": {axis: sizes[axis] for axis, about in definition["axes"].items() if about["type"] == "var"},
            "inputs": inputs,
        },
        "solution": None,
        "evaluation": None,
    }
