"""The parameters of multi-head attention: what they are, and how they must fit the inputs and the heads."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib.arguments import as_flag, as_floating, as_integer, check_vector, check_weight
from attention_np._lib.arrays import Array, is_floating
from attention_np._lib.dropout import Rng, as_generator
from attention_np._multi_head import reading


class Parameters(NamedTuple):
    """What a layer learns: projections that multiply from the right, ``x @ w + b``, gains, and a sink of each head.

    The same type holds their gradients and tangents. `from_in_proj`, `from_c_attn` and `from_layer` read the
    layouts in use, `random` draws them.
    """

    w_query: Array  # (d_query, num_heads * d_k)
    w_key: Array  # (d_key, num_kv_heads * d_k)
    w_value: Array  # (d_value, num_kv_heads * d_v)
    w_output: Array  # (num_heads * d_v, d_output)
    b_query: Array | None = None  # (num_heads * d_k,)
    b_key: Array | None = None  # (num_kv_heads * d_k,)
    b_value: Array | None = None  # (num_kv_heads * d_v,)
    b_output: Array | None = None  # (d_output,)
    query_gain: Array | None = None  # (d_k,): of the normalised queries of every head
    key_gain: Array | None = None  # (d_k,)
    sink: Array | None = None  # (num_heads,): one more logit of each row, without a value

    @classmethod
    def from_in_proj(
        cls,
        in_proj_weight: npt.ArrayLike,
        out_proj_weight: npt.ArrayLike,
        in_proj_bias: npt.ArrayLike | None = None,
        out_proj_bias: npt.ArrayLike | None = None,
    ) -> Parameters:
        """Parameters from the layout of PyTorch's `nn.MultiheadAttention`: stacked, and multiplying from the left.

        Parameters
        ----------
        in_proj_weight : array_like, (3 * d_model, d_model)
            The transposed weights of query, key and value, one below the other.
        out_proj_weight : array_like, (d_model, d_model)
            `out_proj.weight`: the transposed weight of the output.
        in_proj_bias : array_like, (3 * d_model,), optional
        out_proj_bias : array_like, (d_model,), optional

        Returns
        -------
        parameters : Parameters
            Views of the given arrays where they are NumPy arrays.

        Raises
        ------
        TypeError, ValueError
            If an array is not of floating-point numbers, or its shape is not as above.

        Examples
        --------
        >>> import numpy as np
        >>> from attention_np import multi_head
        >>> stacked = np.arange(12.0).reshape(6, 2)  # in_proj_weight of nn.MultiheadAttention(2, num_heads)
        >>> print(multi_head.Parameters.from_in_proj(stacked, np.eye(2)).w_key)
        [[4. 6.]
         [5. 7.]]
        """
        weights, biases = (in_proj_weight, out_proj_weight), (in_proj_bias, out_proj_bias)
        return cls(**reading.of_fused(("in_proj", "out_proj"), weights, biases, is_transposed=True))

    @classmethod
    def from_c_attn(
        cls,
        c_attn_weight: npt.ArrayLike,
        c_proj_weight: npt.ArrayLike,
        c_attn_bias: npt.ArrayLike | None = None,
        c_proj_bias: npt.ArrayLike | None = None,
    ) -> Parameters:
        """Parameters from the layout of GPT-2: columns side by side, weights multiplying from the right.

        The rest is as of `from_in_proj`.

        Parameters
        ----------
        c_attn_weight : array_like, (d_model, 3 * d_model)
            The weights of query, key and value, side by side.
        c_proj_weight : array_like, (d_model, d_model)
        c_attn_bias : array_like, (3 * d_model,), optional
        c_proj_bias : array_like, (d_model,), optional

        Examples
        --------
        >>> import numpy as np
        >>> from attention_np import multi_head
        >>> side_by_side = np.arange(12.0).reshape(2, 6)  # c_attn.weight of a GPT-2 of width 2
        >>> print(multi_head.Parameters.from_c_attn(side_by_side, np.eye(2)).w_key)
        [[2. 3.]
         [8. 9.]]
        """
        weights, biases = (c_attn_weight, c_proj_weight), (c_attn_bias, c_proj_bias)
        return cls(**reading.of_fused(("c_attn", "c_proj"), weights, biases))

    @classmethod
    def from_layer(
        cls, arrays: Mapping[str, npt.ArrayLike], layout: str, *, num_heads: int | None = None
    ) -> Parameters:
        """Parameters from the arrays of an attention layer of Hugging Face's models, by the names that they have there.

        Parameters
        ----------
        arrays : mapping of str to array_like
            Those of the layer's `state_dict`, such as ``"q_proj.weight"``.
        layout : {"llama", "gemma2", "qwen3", "gpt_oss", "bloom", "t5", "bert"}
            Whose names they are. Other models have these, too: Mistral those of Llama.
        num_heads : int, optional
            Needed for "bloom", whose projections stand side by side head by head.

        Returns
        -------
        parameters : Parameters
            Views of the given arrays where they are NumPy arrays. What a layer has besides is for `forward`: T5's
            ``relative_attention_bias.weight`` is the table of a bias, its scale is 1, and so on.

        Raises
        ------
        TypeError
            If an array is not of floating-point numbers.
        ValueError
            If there is no such layout, an array is missing, or there is one that the layout does not have.

        Examples
        --------
        >>> import numpy as np
        >>> from attention_np import multi_head
        >>> layer = {f"{name}_proj.weight": np.ones((2, 4)) for name in "qkv"} | {"o_proj.weight": np.ones((4, 2))}
        >>> multi_head.Parameters.from_layer(layer, "llama").w_query.shape
        (4, 2)
        """
        return cls(**reading.of_layer(arrays, layout, num_heads))

    @classmethod
    def random(
        cls,
        d_model: int,
        *,
        rng: Rng,
        d_key: int | None = None,
        d_value: int | None = None,
        biases: bool = True,
        dtype: npt.DTypeLike = np.float64,
    ) -> Parameters:
        r"""Parameters with the usual scaled initialisation: Glorot's uniform weights and zero biases.

        Parameters
        ----------
        d_model : int
            Features of the query, of all heads together, and of the output.
        rng : int or numpy.random.Generator
            A seed or a generator.
        d_key, d_value : int, optional
            Features of the key and of the value where they differ from `d_model` (PyTorch's `kdim` and `vdim`).
        biases : bool, optional
            With zero biases, or with none.
        dtype : dtype, optional

        Returns
        -------
        parameters : Parameters

        Raises
        ------
        TypeError, ValueError
            If a width is not an integer of at least 1, `rng` neither seed nor generator, or `dtype` not floating.

        Notes
        -----
        Weights of shape (d_in, d_out) are uniform on :math:`\pm\sqrt{6 / (d_{in} + d_{out})}`, so that neither the
        outputs nor the gradients grow or shrink with the width [1]_.

        References
        ----------
        .. [1] X. Glorot, Y. Bengio, "Understanding the difficulty of training deep feedforward neural networks",
           AISTATS 2010.

        Examples
        --------
        >>> from attention_np import multi_head
        >>> parameters = multi_head.Parameters.random(8, rng=0)
        >>> parameters.w_query.shape, parameters.b_query.shape
        ((8, 8), (8,))
        """
        d_model = as_integer("d_model", d_model, least=1)
        d_key = d_model if d_key is None else as_integer("d_key", d_key, least=1)
        d_value = d_model if d_value is None else as_integer("d_value", d_value, least=1)
        if not is_floating(np.dtype(dtype)):
            raise TypeError(f"dtype must hold floating-point numbers, not {np.dtype(dtype)}")
        generator, biases = as_generator(rng), as_flag("biases", biases)
        widths = (d_model, d_key, d_value, d_model)
        weights = []
        for d_in in widths:
            bound = sqrt(6 / (d_in + d_model))
            weights.append(generator.uniform(-bound, bound, (d_in, d_model)).astype(dtype))
        zeros = [np.zeros(d_model, dtype) if biases else None for _ in range(4)]
        return cls(*weights, *zeros)


def as_parameters(
    parameters: Parameters, query: Array, key: Array, value: Array, num_heads: int, num_kv_heads: int | None = None
) -> Parameters:
    """`parameters` as arrays, if they fit the inputs and the heads; of keys and values there are as many if None."""
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if not isinstance(parameters, Parameters):
        raise TypeError(f"parameters must be a multi_head.Parameters, not {type(parameters).__name__}")
    parameters = Parameters._make(
        None if array is None and name in Parameters._field_defaults else as_floating(f"parameters.{name}", array)
        for name, array in parameters._asdict().items()
    )
    check_weight("parameters.w_query", parameters.w_query, "query", query)
    check_weight("parameters.w_key", parameters.w_key, "key", key)
    check_weight("parameters.w_value", parameters.w_value, "value", value)
    d_qk, d_key, d_values = (getattr(parameters, name).shape[1] for name in ("w_query", "w_key", "w_value"))
    if num_kv_heads == num_heads and d_key != d_qk:
        raise ValueError(
            f"w_query and w_key must map to one number of features, not to {d_qk} and {d_key} "
            f"(parameters.w_query.shape={parameters.w_query.shape}, parameters.w_key.shape={parameters.w_key.shape})"
        )
    check_heads("parameters.w_query", d_qk, num_heads, parameters.w_query.shape)
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(f"num_kv_heads={num_kv_heads} must divide num_heads={num_heads}")
    d_k = d_qk // num_heads
    if d_key != num_kv_heads * d_k:
        raise ValueError(
            f"w_key must map to {num_kv_heads} heads of {d_k} features, as w_query does, not to {d_key} features "
            f"(parameters.w_query.shape={parameters.w_query.shape}, parameters.w_key.shape="
            f"{parameters.w_key.shape})"
        )
    kv_heads = "num_heads" if num_kv_heads == num_heads else "num_kv_heads"
    check_heads("parameters.w_value", d_values, num_kv_heads, parameters.w_value.shape, kv_heads)
    d_v = num_heads * (d_values // num_kv_heads)
    if parameters.w_output.ndim != 2 or parameters.w_output.shape[0] != d_v:
        raise ValueError(
            f"w_output must take the {d_v} features that w_value gives (parameters.w_output.shape="
            f"{parameters.w_output.shape}, parameters.w_value.shape={parameters.w_value.shape})"
        )
    widths = {"b_query": d_qk, "b_key": d_key, "b_value": d_values, "b_output": parameters.w_output.shape[1]}
    widths |= {"query_gain": d_k, "key_gain": d_k, "sink": num_heads}
    for name, size in widths.items():
        b = getattr(parameters, name)
        if b is not None:
            check_vector(f"parameters.{name}", b, size)
    return parameters


def check_heads(name: str, features: int, heads: int, shape: tuple[int, ...], called: str = "num_heads") -> None:
    """Refuse a number of heads that does not divide the features of the array called `name`."""
    if heads < 1 or features % heads:
        raise ValueError(f"{called}={heads} must divide the {features} features of {name} ({name}.shape={shape})")
