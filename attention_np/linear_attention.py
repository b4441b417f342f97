r"""Linear attention and its family: a state that forgets, is corrected, is written to, and is read by each query.

.. math::

    S_t = \mathrm{diag}(e^{g_t}) S_{t-1} + k_t u_t^\top, \qquad u_t = v_t
    \quad\text{or}\quad u_t = \beta_t \left(v_t - S_{t-1}^\top \mathrm{diag}(e^{g_t}) k_t\right), \qquad
    o_t = \text{scale} \cdot S_t^\top q_t

    \frac{\partial L}{\partial S_{t-1}} = \mathrm{diag}(e^{g_t})
    \left(\frac{\partial L}{\partial S_t} - \beta_t k_t k_t^\top \frac{\partial L}{\partial S_t}\right)
    + \text{scale} \cdot q_{t-1} \frac{\partial L}{\partial o_{t-1}}^{\!\top}

Which of the two arrays are there says which rule it is:

================ ================================== ========================= =====================================
`log_decay`      without `beta`                     with `beta`               in words
================ ================================== ========================= =====================================
none             linear attention                   DeltaNet                  forgets nothing
(..., n, 1)      RetNet, Mamba-2 (SSD)              gated DeltaNet            forgets all features alike
(..., n, d_k)    gated linear attention (GLA)       Kimi delta attention      forgets each feature at its own rate
================ ================================== ========================= =====================================

More general is a step with a `probe` and a `response`, which are any vectors, where the delta rule has its key twice:

.. math::

    S_t = \mathrm{diag}(e^{g_t}) S_{t-1} + b_t (a_t^\top S_{t-1}) + k_t v_t^\top

(RWKV-7, Comba, state-space models with a diagonal and a matrix of rank one). With a `bonus` a query reads before its
token decays and writes, and finds the token's own value by a weight of its own (RWKV-6):

.. math::

    o_t = \text{scale} \cdot \left(S_{t-1} + \mathrm{diag}(w) k_t v_t^\top\right)^\top q_t

The derivation is ``derivations/linear_attention.md`` of the package. Here is the recurrence, token by token; the same
in chunks, by products of matrices, is in ``attention_np/_linear_attention``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib import passes
from attention_np._lib.arguments import (
    as_attended,
    as_integer,
    as_mask,
    as_optional,
    as_scale,
    broadcast_axes,
    check_features,
)
from attention_np._lib.arrays import Array, is_finite, precision, transposed, with_query_axis
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_product, backward_times
from attention_np._linear_attention import chunks
from attention_np._linear_attention.tokens import Tokens, as_tokens, hidden_as_zero

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jvp"]

OP = passes.Op(queries="query", factors=("scale",))


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`, of its shape and dtype."""

    query: Array
    key: Array
    value: Array
    log_decay: Array | None
    beta: Array | None
    initial_state: Array | None
    probe: Array | None = None
    response: Array | None = None
    bonus: Array | None = None


VECTORIZED = Gradients._fields  # all may carry any leading axes: for gradcheck


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp`, the next part of a sequence, and the reader.

    The inputs are as they were given.
    """

    query: Array  # (..., n, d_k)
    key: Array  # (..., n, d_k)
    value: Array  # (..., n, d_v)
    log_decay: Array | None  # (..., n, 1) or (..., n, d_k)
    beta: Array | None  # (..., n)
    initial_state: Array | None  # (..., d_k, d_v)
    probe: Array | None  # (..., n, d_k)
    response: Array | None  # (..., n, d_k)
    bonus: Array | None  # (..., d_k)
    mask: Array | None  # (..., n), False where a token is padding
    scale: Any  # a real scalar of the precision computed in
    chunk_size: int | None
    states: Array  # (..., parts, d_k, d_v): before each part, of `chunk_size` tokens or of about the root of n
    final_state: Array  # (..., d_k, d_v), in the precision computed in
    output_shape: tuple[int, ...]

    @property
    def leading(self) -> tuple[int, ...]:
        """The leading axes of all arrays together."""
        return self.final_state.shape[:-2]

    @property
    def tokens(self) -> Tokens:
        """The arrays of the tokens, with zeros where they are padding."""
        arrays = self.query, self.key, self.value, self.log_decay, self.beta
        return as_tokens(*arrays, self.probe, self.response, self.bonus, self.mask)


def forward(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    log_decay: npt.ArrayLike | None = None,
    beta: npt.ArrayLike | None = None,
    initial_state: npt.ArrayLike | None = None,
    probe: npt.ArrayLike | None = None,
    response: npt.ArrayLike | None = None,
    bonus: npt.ArrayLike | None = None,
    mask: npt.ArrayLike | None = None,
    scale: float | None = None,
    chunk_size: int | None = None,
) -> tuple[Array, Cache]:
    r"""Attention of n tokens through a state, of which each token sees what the tokens up to it have written.

    Parameters
    ----------
    query : array_like of float, (..., n, d_k)
        The leading axes of all arrays broadcast together. Or (d_k,): of a single token, without its axis.
    key : array_like of float, (..., n, d_k)
    value : array_like of float, (..., n, d_v)
    log_decay : array_like of float, optional
        The logarithm of what is left of the state when a token comes: (..., n, 1) for all features alike, or
        (..., n, d_k) for each its own. Minus infinity: none of it. By default all of it.
    beta : array_like of float, (..., n), optional
        With it a token writes as the delta rule says: `beta` times what its value lacks in what the state, after the
        decay, says for its key. By default it adds its value.
    initial_state : array_like of float, (..., d_k, d_v), optional
        The state before the first token, such as ``final_state`` of the sequence before; by default zero.
    probe, response : array_like of float, (..., n, d_k), optional
        Both or none, and not with `beta`. What the state says for the probe, before the token decays it, is written
        under the response, beside the value under the key. With `key` k, a decay d and a step b, the delta rule is the
        probe ``d * k``, the response ``-b * k`` and the value ``b * value``.
    bonus : array_like of float, (d_k,) or (..., d_k), optional
        Not with `beta`. With it a query reads the state before its token decays it and writes, and of the token itself
        its value, by the product of the query, the bonus and the key. The leading axes are those of the other arrays.
    mask : array_like of bool, optional
        False where a token is padding, which neither decays nor writes; broadcasts to (..., n).
    scale : float, optional
        What the output is multiplied by, by default ``1 / sqrt(d_k)``.
    chunk_size : int, optional
        How many tokens are worked on together, by products of matrices, with the same numbers. By default each by
        itself.

    Returns
    -------
    output : ndarray, (..., n, d_v)
        Or (..., d_v) for a single token. Zero for padding.
    cache : Cache
        With ``final_state``, the state behind the last token. Refers to the inputs, without a copy.

    Raises
    ------
    TypeError
        If an array is not of floating-point numbers, or is a masked array, `mask` is not boolean, or an option is not
        of its type.
    ValueError
        If shapes do not fit together; if `probe` is given without `response`, or the other way, or one of them or
        `bonus` with `beta`; if `scale` is not finite; if `chunk_size` is less than 1.

    Notes
    -----
    A padded token contributes nothing, even where its arrays hold NaN or infinity, and so does what is behind a decay
    of minus infinity. Keys and queries are taken as they are: a feature map, or dividing by their norm, comes first.
    With the delta rule the state stays bounded for ``0 <= beta * sum(key**2) <= 2``. With a probe and a response, which
    models learn, nothing bounds it; RWKV-7 [5]_ takes the probe of length one, and the response minus that, times an
    in-context rate between 0 and 1, times what is left of each feature or less.

    What is kept for the backward pass is one state for each part of the sequence: of `chunk_size` tokens, or of about
    the root of n, so that memory is that of the arrays and of few states; those within a part are worked out again.
    The heads of large chunked problems are worked on in parallel where threadpoolctl is installed, to the same bits.
    Where something is not finite, chunks are worked on token by token; so is forward mode, always. A state that does
    not fit the dtype is infinite.

    References
    ----------
    .. [1] A. Katharopoulos et al., "Transformers are RNNs: fast autoregressive transformers with linear attention",
       ICML 2020.
    .. [2] I. Schlag, K. Irie, J. Schmidhuber, "Linear transformers are secretly fast weight programmers", ICML 2021.
    .. [3] S. Yang et al., "Gated linear attention transformers with hardware-efficient training", ICML 2024.
    .. [4] S. Yang, J. Kautz, A. Hatamizadeh, "Gated delta networks: improving Mamba2 with delta rule", ICLR 2025.
    .. [5] B. Peng et al., "RWKV-7 Goose with expressive dynamic state evolution", arXiv:2503.14456, 2025.
    .. [6] B. Peng et al., "Eagle and Finch: RWKV with matrix-valued states and dynamic recurrence", arXiv:2404.05892,
       2024.

    Examples
    --------
    One key, written to twice. Plain linear attention adds the values up; the delta rule replaces the first.

    >>> import numpy as np
    >>> from attention_np import linear_attention
    >>> key, value = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[10.0], [3.0]])
    >>> output, _ = linear_attention.forward(key, key, value, scale=1.0)
    >>> print(output.T)
    [[10. 13.]]
    >>> output, cache = linear_attention.forward(key, key, value, beta=np.ones(2), scale=1.0)
    >>> print(output.T, cache.final_state.T)
    [[10.  3.]] [[3. 0.]]
    >>> print(linear_attention.backward(np.array([[0.0], [1.0]]), cache).value.T)
    [[0. 1.]]
    >>> print(linear_attention.jvp(cache, beta=np.array([0.0, 1.0])).T)
    [[ 0. -7.]]

    A token that moves what the state says for one key to another, and writes nothing else:

    >>> no, one, other = np.zeros((1, 2)), np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    >>> state = np.array([[5.0], [0.0]])
    >>> _, cache = linear_attention.forward(
    ...     no, no, np.zeros((1, 1)), initial_state=state, probe=one, response=other - one
    ... )
    >>> print(cache.final_state.T)
    [[0. 5.]]
    """
    query, key, value, _ = as_attended(query, key, value, None)
    optional: dict[str, Any] = {"log_decay": log_decay, "beta": beta, "initial_state": initial_state}
    optional |= {"probe": probe, "response": response, "bonus": bonus}
    optional = {name: as_optional(name, x) for name, x in optional.items()}
    shape = tokens_shape(query, key, value, *optional.values())
    if mask is not None:
        mask = as_mask(mask, shape, "the tokens")
        mask = np.broadcast_to(mask, (*mask.shape[:-1], shape[-1]))
    scale = as_scale(scale, key.shape[-1], precision(query, key, value, *optional.values()).compute)
    chunk_size = None if chunk_size is None else as_integer("chunk_size", chunk_size, least=1)
    options: Any = {"mask": mask, "scale": scale, "chunk_size": chunk_size, "leading": shape[:-1]}
    return attend(query, key, value, *optional.values(), **options)


@passes.forward
def attend(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    beta: Array | None,
    initial_state: Array | None,
    probe: Array | None,
    response: Array | None,
    bonus: Array | None,
    mask: Array | None,
    scale: Any,
    chunk_size: int | None,
    leading: tuple[int, ...],
) -> tuple[Array, Cache]:
    """What :func:`forward` computes, of arguments that it has checked."""
    tokens = as_tokens(query, key, value, log_decay, beta, probe, response, bonus, mask)
    shape = (*leading, key.shape[-1], value.shape[-1])
    before = np.zeros((), query.dtype) if initial_state is None else initial_state
    before = np.broadcast_to(before, shape)
    of_chunks = in_chunks(chunks.forward, chunk_size, tokens, before, scale)
    output, states, final_state = of_chunks or step_by_step(tokens, before, scale, chunk_size)
    inputs = query, key, value, log_decay, beta, initial_state, probe, response, bonus
    return output, Cache(*inputs, mask, scale, chunk_size, states, final_state, output.shape)


class Step(NamedTuple):
    """The state behind a token, and what is on the way to it."""

    before: Array  # (..., d_k, d_v)
    decayed: Array  # (..., d_k, d_v)
    missing: Array  # (..., d_v): of the value, what the state does not say yet; without `beta` all of it
    written: Array  # (..., d_v)
    said: Any  # (..., d_v): for the probe; None without
    state: Array  # (..., d_k, d_v)


def step(token: Tokens, state: Array) -> Step:
    """What a token makes of the state before it."""
    decayed, missing, said = state, token.value, None
    if token.log_decay is not None:  # where it is zero, nothing is left, not even NaN
        decayed = backward_times(token.decay, state)  # (..., d_k, d_v) (linear-attention.6)
    if token.beta is not None:
        missing = token.value - _read(decayed, token.key)  # (..., d_v) (linear-attention.7)
    written = missing if token.beta is None else token.beta * missing  # (..., d_v) (linear-attention.8)
    behind = decayed + token.key[..., :, None] * written[..., None, :]  # (..., d_k, d_v) (linear-attention.9)
    if token.probe is not None:
        said = _read(state, token.probe)  # (..., d_v) (linear-attention.48)
        behind = behind + token.response[..., :, None] * said[..., None, :]  # (..., d_k, d_v) (linear-attention.49)
    return Step(state, decayed, missing, written, said, _unless_hidden(token, behind, state))


def read_out(token: Tokens, now: Step) -> Array:
    """What the query of a token reads, (..., d_v), before the scale."""
    if token.bonus is None:
        return _read(now.state, token.query)  # (linear-attention.10)
    own = (token.query * (token.bonus * token.key)).sum(axis=-1, keepdims=True)  # (..., 1)
    read: Array = _read(now.before, token.query) + own * token.value  # (linear-attention.61)
    return read


def step_by_step(tokens: Tokens, state: Array, scale: Any, chunk_size: int | None) -> tuple[Array, Array, Array]:
    """The outputs, (..., n, d_v), the states before each part, (..., parts, d_k, d_v), and the last one."""
    outputs, states = [], []
    for part in _parts(tokens, chunk_size):
        states.append(state)
        for t in part:
            token = tokens.at(t)
            now = step(token, state)
            state = now.state
            outputs.append(scale * read_out(token, now))  # (..., d_v) (linear-attention.10, linear-attention.61)
    output = hidden_as_zero(_stacked(outputs, state.sum(axis=-2), -2), tokens.mask)
    return output, _stacked(states, state, -3), state.copy()  # (linear-attention.11)


@passes.backward
def backward(d_output: Tangent, cache: Cache, *, d_final_state: Tangent = None) -> Gradients:
    """The gradient of a loss with respect to every array of :func:`forward`, from that of the output, (..., n, d_v)."""
    tokens = cache.tokens
    d_output = hidden_as_zero(d_output, tokens.mask)
    d_state = np.zeros_like(cache.final_state) if d_final_state is None else d_final_state.copy()
    of_chunks = in_chunks(chunks.backward, cache.chunk_size, tokens, d_output, d_state, cache.states, cache.scale)
    d_tokens, d_state = of_chunks or step_by_step_backward(d_output, d_state, tokens, cache)
    return _gradients(d_tokens, d_state, tokens)


def step_by_step_backward(d_output: Array, d_state: Array, tokens: Tokens, cache: Cache) -> tuple[Tokens, Array]:
    """The gradients of the tokens and of the first state, from those of the outputs and of the last state."""
    d_tokens = []
    for number, part in reversed(list(enumerate(_parts(tokens, cache.chunk_size)))):
        state, steps = cache.states[..., number, :, :], []
        for t in part:
            steps.append(step(tokens.at(t), state))
            state = steps[-1].state
        for t, now in reversed(list(zip(part, steps, strict=True))):
            d_token, d_state = step_backward(d_output[..., t, :], d_state, tokens.at(t), now, cache.scale)
            d_tokens.append(d_token)
    return _joined(d_tokens, tokens), d_state


def step_backward(d_output: Array, d_state: Array, token: Tokens, now: Step, scale: Any) -> tuple[Tokens, Array]:
    """The gradients of a token and of the state before it, from those of its output and of the state behind it.

    The latter is what the tokens behind it have made of theirs.
    """
    # forward was output = scale * state^T @ query; with a bonus the state before
    source = now.state if token.bonus is None else now.before
    d_query = scale * _row_times(d_output, transposed(source))  # (..., d_k) (linear-attention.15, linear-attention.63)
    d_source = scale * _outer(token.query, d_output)  # (..., d_k, d_v)
    if token.bonus is None:
        d_state = d_state + d_source  # (linear-attention.17, linear-attention.20, linear-attention.29)

    # forward was state = decayed + key @ written^T
    d_written = _times_column(transposed(d_state), token.key)  # (..., d_v) (linear-attention.18)
    d_key = _times_column(d_state, now.written)  # (..., d_k) (linear-attention.25)
    d_value, d_decayed = d_written, d_state
    d_beta = d_log_decay = d_probe = d_response = d_bonus = None

    if token.beta is not None:
        # forward was written = beta * missing, missing = value - decayed^T @ key
        d_beta = backward_times(d_written, now.missing).sum(axis=-1, keepdims=True)  # (..., 1) (linear-attention.24)
        d_value = backward_times(d_written, token.beta)  # (..., d_v) (linear-attention.23)
        d_key = d_key - _row_times(d_value, transposed(now.decayed))  # (linear-attention.25)
        d_decayed = d_state - _outer(token.key, d_value)  # (..., d_k, d_v) (linear-attention.19)

    d_before = d_decayed
    if token.log_decay is not None:
        # forward was decayed = exp(log_decay) * state before
        d_log_decay = _of_decays(backward_times(d_decayed, now.decayed), token)
        # (..., d_k, d_v) (linear-attention.20, linear-attention.21)
        d_before = backward_times(d_decayed, token.decay)

    if token.probe is not None:
        # forward was state += response @ said^T, said = (state before)^T @ probe
        d_said = _times_column(transposed(d_state), token.response)  # (..., d_v) (linear-attention.53)
        d_response = _times_column(d_state, now.said)  # (..., d_k) (linear-attention.56)
        d_probe = _row_times(d_said, transposed(now.before))  # (..., d_k) (linear-attention.57)
        d_before = d_before + _outer(token.probe, d_said)  # (..., d_k, d_v) (linear-attention.54)

    if token.bonus is not None:
        # forward was output = scale * ((state before)^T @ query + sum(query * bonus * key) * value)
        d_own = scale * backward_times(d_output, token.value).sum(axis=-1, keepdims=True)  # (..., 1)
        own = (token.query * (token.bonus * token.key)).sum(axis=-1, keepdims=True)  # (..., 1)
        d_query = d_query + backward_times(d_own, token.bonus * token.key)  # (linear-attention.63)
        d_key = d_key + backward_times(d_own, token.bonus * token.query)  # (linear-attention.64)
        d_value = d_value + scale * backward_times(d_output, own)  # (linear-attention.65)
        d_bonus = backward_times(d_own, token.query * token.key)  # (..., d_k) (linear-attention.66)
        d_before = d_before + d_source  # (linear-attention.62)
    return Tokens(d_query, d_key, d_value, d_log_decay, d_beta, d_probe, d_response, d_bonus), d_before


def _gradients(d_tokens: Tokens, d_state: Array, tokens: Tokens) -> Gradients:
    """Of the arrays as the op takes them."""
    d = d_tokens.each(lambda x: hidden_as_zero(x, tokens.mask))
    d_beta = None if d.beta is None else d.beta[..., 0]
    d_bonus = None if d.bonus is None else d.bonus.sum(axis=-2)  # (linear-attention.66)
    return Gradients(d.query, d.key, d.value, d.log_decay, d_beta, d_state, d.probe, d.response, d_bonus)


@passes.jvp
def jvp(
    cache: Cache,
    *,
    query: Tangent = None,
    key: Tangent = None,
    value: Tangent = None,
    log_decay: Tangent = None,
    beta: Tangent = None,
    initial_state: Tangent = None,
    probe: Tangent = None,
    response: Tangent = None,
    bonus: Tangent = None,
) -> dict[str, Array]:
    """Forward mode: the tangents of the output, (..., n, d_v), and of the last state, from those of the inputs."""
    tokens, d_tokens = cache.tokens, as_tokens(query, key, value, log_decay, beta, probe, response, bonus, cache.mask)
    state, d_state = (_first_state(x, cache) for x in (cache.initial_state, initial_state))
    d_outputs = []
    for t in range(tokens.n):
        token, d_token = tokens.at(t), d_tokens.at(t)
        now, d_before = step(token, state), d_state
        state, d_state = now.state, step_tangent(token, d_token, now, d_before)
        d_read = read_out_tangent(token, d_token, now, d_before, d_state)
        d_outputs.append(cache.scale * d_read)  # (..., d_v) (linear-attention.34)
    output = hidden_as_zero(_stacked(d_outputs, d_state.sum(axis=-2), -2), tokens.mask)
    return {"output": output, "final_state": d_state.copy()}


def step_tangent(token: Tokens, d_token: Tokens, now: Step, d_before: Array) -> Array:
    """The tangent of the state behind a token, from those of the token and of the state before it."""
    d_decayed, d_written = d_before, d_token.value
    if token.log_decay is not None:
        # (..., d_k, d_v) (linear-attention.31)
        d_decayed = backward_times(token.decay, d_before + d_token.log_decay[..., None] * now.before)
    if token.beta is not None:
        # (..., d_v) (linear-attention.32)
        d_missing = d_token.value - _read(d_decayed, token.key) - _read(now.decayed, d_token.key)
        d_written = d_token.beta * now.missing + token.beta * d_missing  # (..., d_v) (linear-attention.32)
    of_key = d_token.key[..., :, None] * now.written[..., None, :]  # (..., d_k, d_v)
    # (..., d_k, d_v) (linear-attention.30, linear-attention.33)
    d_behind = d_decayed + of_key + token.key[..., :, None] * d_written[..., None, :]
    if token.probe is not None:
        d_said = _read(d_before, token.probe) + _read(now.before, d_token.probe)  # (..., d_v) (linear-attention.59)
        of_response = d_token.response[..., :, None] * now.said[..., None, :]  # (..., d_k, d_v)
        # (..., d_k, d_v) (linear-attention.60)
        d_behind = d_behind + of_response + token.response[..., :, None] * d_said[..., None, :]
    return _unless_hidden(token, d_behind, d_before)


def read_out_tangent(token: Tokens, d_token: Tokens, now: Step, d_before: Array, d_state: Array) -> Array:
    """The tangent of what the query of a token reads, (..., d_v), before the scale."""
    if token.bonus is None:
        return _read(d_state, token.query) + _read(now.state, d_token.query)  # (linear-attention.34)
    of_key, d_of_key = token.bonus * token.key, token.bonus * d_token.key + d_token.bonus * token.key  # (..., d_k)
    own = (token.query * of_key).sum(axis=-1, keepdims=True)  # (..., 1)
    d_own = (token.query * d_of_key + d_token.query * of_key).sum(axis=-1, keepdims=True)  # (..., 1)
    d_own_value: Array = own * d_token.value + d_own * token.value  # (..., d_v)
    return _read(d_before, token.query) + _read(now.before, d_token.query) + d_own_value  # (linear-attention.67)


double_backward = passes.second_derivative(attend, backward)


def in_chunks(function: Callable[..., tuple[Any, ...]], chunk_size: int | None, tokens: Tokens, *others: Any) -> Any:
    """What a `function` of chunks gives, as the one here gives it step by step; None without chunks.

    And where something is not finite: what takes no part in a sum would spoil a product of matrices.
    """
    if chunk_size is None or not tokens.n:
        return None
    results = function(tokens, *others, min(chunk_size, tokens.n))
    arrays = chain.from_iterable(x if isinstance(x, Tokens) else (x,) for x in results)
    return results if all(is_finite(x) for x in arrays if x is not None) else None


def _first_state(state: Array | None, cache: Cache) -> Array:
    """The state before the first token, or its tangent, for all heads."""
    first = np.zeros((), cache.final_state.dtype) if state is None else state
    return np.broadcast_to(first, cache.final_state.shape)


def _parts(tokens: Tokens, chunk_size: int | None) -> list[range]:
    """The places of the tokens, in parts before each of which the state is kept: those within are worked out again."""
    n = tokens.n
    size = max(isqrt(n), 1) if chunk_size is None else min(chunk_size, max(n, 1))
    return [range(start, min(start + size, n)) for start in range(0, n, size)]


def _unless_hidden(token: Tokens, behind: Array, before: Array) -> Array:
    """The state behind a token: that before it, whatever it holds, if the token is padding."""
    return behind if token.mask is None else np.where(token.mask[..., None], behind, before)


def _read(state: Array, key: Array) -> Array:
    """What a state says for a key."""
    said: Array = key[..., None, :] @ state
    return said[..., 0, :]


def _outer(column: Array, d_row: Array) -> Array:
    """A column times a gradient, of which an entry that is zero takes no part."""
    return backward_times(d_row[..., None, :], column[..., :, None])


def _of_decays(of_state: Array, token: Tokens) -> Array:
    """Sums over each row of the state, (..., d_k), or over all of it, (..., 1), if its features decay alike."""
    of_rows: Array = of_state.sum(axis=-1)  # (linear-attention.26)
    return of_rows.sum(axis=-1, keepdims=True) if token.log_decay.shape[-1] == 1 else of_rows  # (linear-attention.27)


def _joined(d_tokens: list[Tokens], tokens: Tokens) -> Tokens:
    """The gradients of tokens, from the last to the first, as arrays of all of them."""
    if not d_tokens:
        return tokens.each(np.zeros_like)
    columns = zip(*reversed(d_tokens), strict=True)
    return Tokens._make(None if x[0] is None else np.stack(x, axis=-2) for x in columns)


def _row_times(d_row: Array, matrix: Array) -> Array:
    """A gradient times a matrix, where an entry of the gradient that is zero takes no part."""
    return backward_product(d_row[..., None, :], matrix)[..., 0, :]


def _times_column(d_matrix: Array, column: Array) -> Array:
    """A matrix that is a gradient, times a column, where an entry of the gradient that is zero takes no part."""
    return backward_product(d_matrix, column[..., None])[..., 0]


def _stacked(arrays: list[Array], like: Array, axis: int) -> Array:
    """`arrays` beside each other along a new axis, of which there may be none."""
    return np.stack(arrays, axis) if arrays else np.expand_dims(like, axis).take([], axis)


def tokens_shape(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    beta: Array | None = None,
    initial_state: Array | None = None,
    probe: Array | None = None,
    response: Array | None = None,
    bonus: Array | None = None,
) -> tuple[int, ...]:
    """(..., n) of the tokens, if the arrays are of as many tokens, and of as many features, and fit together."""
    if query.ndim < 1:
        raise ValueError(f"query must have at least two axes, (..., n, d_k) (query.shape={query.shape})")
    for name, x in (("key", key), ("value", value)):
        if x.ndim < 2:
            raise ValueError(f"{name} must have at least two axes, (..., n, features) ({name}.shape={x.shape})")
    queries = with_query_axis(query, query)
    n, d_k, d_v = queries.shape[-2], key.shape[-1], value.shape[-1]
    for name, x in (("key", key), ("value", value)):
        if x.shape[-2] != n:
            raise ValueError(
                f"query and {name} must be of one length: there are {n} queries and {x.shape[-2]} {name}s "
                f"(query.shape={query.shape}, {name}.shape={x.shape})"
            )
    check_features(query, key)
    if (probe is None) != (response is None):
        one, other = ("probe", "response") if response is None else ("response", "probe")
        raise ValueError(f"{one} is given without {other}: a token has both or none")
    for name, array in (("probe", probe), ("bonus", bonus)):
        if array is not None and beta is not None:
            raise ValueError(f"{name} and beta are both given: beta has the delta rule, whose probe is the key itself")
    leading = {"query": queries.shape[:-2], "key": key.shape[:-2], "value": value.shape[:-2]}
    optional: dict[str, tuple[Array | None, list[tuple[int, ...]]]] = {
        "log_decay": (log_decay, [(n, 1), (n, d_k)]),
        "beta": (beta, [(n,)]),
        "initial_state": (initial_state, [(d_k, d_v)]),
        "probe": (probe, [(n, d_k)]),
        "response": (response, [(n, d_k)]),
        "bonus": (bonus, [(d_k,)]),
    }
    for name, (array, ends) in optional.items():
        if array is None:
            continue
        if array.shape[-len(ends[0]) :] not in ends:
            shapes = " or ".join(f"(..., {', '.join(map(str, end))})" for end in ends)
            raise ValueError(f"{name} must have the shape {shapes} ({name}.shape={array.shape})")
        leading[name] = array.shape[: -len(ends[0])]
    return (*broadcast_axes(leading), n)
