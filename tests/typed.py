"""What every public function returns, as type checkers see it, and calls that are errors to them; nothing here is run.

`make types` has two of them read it. A call that should be an error and is none is one to both.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

import attention_np as anp
from attention_np import (
    activation,
    additive,
    biases,
    blockwise,
    cases,
    chain,
    conventions,
    cost,
    cross_entropy,
    deformable,
    derivation,
    dot_product,
    feature_map,
    gradcheck,
    indexer,
    known_answers,
    latent,
    layer_norm,
    linear,
    linear_attention,
    masks,
    multi_head,
    plot,
    pooling,
    positions,
    rms_norm,
    rotary,
    rules,
    short_conv,
    softmax,
    trace,
    weightings,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import assert_type

Array: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]
Forward: TypeAlias = Callable[[Array], Array]
Backward: TypeAlias = Callable[[Array, Array], Array]


def of_scores(x: Array) -> None:
    for by in (
        weightings.sigmoid(),
        weightings.silu(),
        weightings.sparsemax(),
        weightings.entmax(1.5),
        weightings.softpick(),
        weightings.stick_breaking(),
    ):
        assert_type(by, weightings.Weighting)
    weights, cache = weightings.forward(x, weights_by=weightings.entmax(alpha=2), mask=x > 0)
    assert_type(weights, Array)
    assert_type(cache, weightings.Cache)
    assert_type(weightings.backward(x, cache), weightings.Gradients)
    assert_type(weightings.jvp(cache, scores=x), Array)
    assert_type(weightings.double_backward(weightings.backward(x, cache), x, cache), tuple[Array, weightings.Gradients])
    assert_type(weightings.sigmoid().forward(x, mask=None), tuple[Array, weightings.Cache])
    assert_type(weightings.sigmoid().backward(x, cache), Array)
    assert_type(weightings.sigmoid().jvp(cache, x), Array)


def ops(x: Array, p: multi_head.Parameters) -> None:
    weights, of_softmax = softmax.forward(x, axis=-1)
    assert_type(weights, Array)
    assert_type(of_softmax, softmax.Cache)
    assert_type(softmax.backward(x, of_softmax), softmax.Gradients)
    assert_type(softmax.jvp(of_softmax, scores=x), Array)
    assert_type(
        softmax.double_backward(softmax.backward(x, of_softmax), x, of_softmax), tuple[Array, softmax.Gradients]
    )
    assert_type(softmax.jacobian(x), Array)
    assert_type(softmax.logsumexp(x), Array)

    attended, plain = dot_product.forward(x, x, x, bias=biases.alibi([1.0]), is_causal=True)
    assert_type(attended, Array)
    assert_type(plain, dot_product.Cache)
    assert_type(dot_product.backward(x, plain), dot_product.Gradients)
    assert_type(dot_product.backward(x, plain).query, Array)
    assert_type(dot_product.jvp(plain, key=x), Array)
    of_plain = dot_product.double_backward(dot_product.backward(x, plain), x, plain)
    assert_type(of_plain, tuple[Array, dot_product.Gradients])

    attended, tiled = blockwise.forward(x, x, x, mask=rules.causal())
    assert_type(attended, Array)
    assert_type(tiled, blockwise.Cache)
    assert_type(blockwise.backward(x, tiled, d_logsumexp=x), blockwise.Gradients)
    assert_type(blockwise.jvp(tiled, value=x), Array)
    assert_type(blockwise.jvp(tiled, outputs=("output", "logsumexp"), value=x), tuple[Array, ...])
    of_tiled = blockwise.double_backward(blockwise.backward(x, tiled), x, tiled)
    assert_type(of_tiled, tuple[Array, blockwise.Gradients])
    assert_type(blockwise.merge((x, x), (x, x)), blockwise.Partial)
    assert_type(blockwise.merge_backward((x, x), (x, x), (x, x)), tuple[blockwise.Partial, blockwise.Partial])

    attended, added = additive.forward(x, x, x, x, x, x)
    assert_type(attended, Array)
    assert_type(added, additive.Cache)
    assert_type(additive.backward(x, added), additive.Gradients)
    assert_type(additive.jvp(added, w_score=x), Array)
    of_added = additive.double_backward(additive.backward(x, added), x, added)
    assert_type(of_added, tuple[Array, additive.Gradients])

    attended, layered = multi_head.forward(x, x, x, p, num_heads=2)
    assert_type(attended, Array)
    assert_type(layered, multi_head.Cache)
    assert_type(multi_head.backward(x, layered), multi_head.Gradients)
    assert_type(multi_head.backward(x, layered).parameters, multi_head.Parameters)
    assert_type(multi_head.jvp(layered, parameters=p), Array)
    of_layered = multi_head.double_backward(multi_head.backward(x, layered), x, layered)
    assert_type(of_layered, tuple[Array, multi_head.Gradients])
    assert_type(multi_head.combine_heads(multi_head.split_heads(x, 2)), Array)

    linear_attention.forward(x, x, x, probe=x, response=x, bonus=x)
    attended, state = linear_attention.forward(x, x, x, beta=x)
    assert_type(attended, Array)
    assert_type(state, linear_attention.Cache)
    assert_type(linear_attention.backward(x, state, d_final_state=x), linear_attention.Gradients)
    assert_type(linear_attention.jvp(state, beta=x), Array)
    assert_type(linear_attention.jvp(state, outputs=["final_state"], beta=x), tuple[Array, ...])
    of_state = linear_attention.double_backward(linear_attention.backward(x, state), x, state)
    assert_type(of_state, tuple[Array, linear_attention.Gradients])

    mapped_rows, map_cache = linear.forward(x, x, x)
    assert_type(mapped_rows, Array)
    assert_type(map_cache, linear.Cache)
    assert_type(linear.backward(x, map_cache), linear.Gradients)
    assert_type(linear.jvp(map_cache, w=x), Array)
    of_map_cache = linear.double_backward(linear.backward(x, map_cache), x, map_cache)
    assert_type(of_map_cache, tuple[Array, linear.Gradients])

    features, mapped = feature_map.forward(x)
    assert_type(features, Array)
    assert_type(mapped, feature_map.Cache)
    assert_type(feature_map.backward(x, mapped), feature_map.Gradients)
    assert_type(feature_map.jvp(mapped, x=x), Array)
    of_mapped = feature_map.double_backward(feature_map.backward(x, mapped), x, mapped)
    assert_type(of_mapped, tuple[Array, feature_map.Gradients])

    bent, by_slope = activation.forward(x, kind="gelu")
    assert_type(bent, Array)
    assert_type(by_slope, activation.Cache)
    assert_type(activation.backward(x, by_slope), activation.Gradients)
    assert_type(activation.jvp(by_slope, x=x), Array)
    of_by_slope = activation.double_backward(activation.backward(x, by_slope), x, by_slope)
    assert_type(of_by_slope, tuple[Array, activation.Gradients])

    convolved, kernel = short_conv.forward(x, x, segments=[0, 1])
    assert_type(convolved, Array)
    assert_type(kernel, short_conv.Cache)
    assert_type(short_conv.backward(x, kernel, d_final_state=x), short_conv.Gradients)
    assert_type(short_conv.jvp(kernel, x=x), Array)
    assert_type(short_conv.jvp(kernel, outputs=["output", "final_state"], w=x), tuple[Array, ...])
    of_kernel = short_conv.double_backward(short_conv.backward(x, kernel), x, kernel, d_final_state=x)
    assert_type(of_kernel, tuple[Array, short_conv.Gradients])

    normed, by_size = rms_norm.forward(x, x)
    assert_type(normed, Array)
    assert_type(by_size, rms_norm.Cache)
    assert_type(rms_norm.backward(x, by_size), rms_norm.Gradients)
    assert_type(rms_norm.jvp(by_size, gain=x), Array)
    of_size = rms_norm.double_backward(rms_norm.backward(x, by_size), x, by_size)
    assert_type(of_size, tuple[Array, rms_norm.Gradients])

    normed, centred = layer_norm.forward(x, x, x)
    assert_type(normed, Array)
    assert_type(centred, layer_norm.Cache)
    assert_type(layer_norm.backward(x, centred), layer_norm.Gradients)
    assert_type(layer_norm.jvp(centred, b=x), Array)
    of_centred = layer_norm.double_backward(layer_norm.backward(x, centred), x, centred)
    assert_type(of_centred, tuple[Array, layer_norm.Gradients])

    latents, of_latents = latent.forward(x, x, x, None, x, x, absorbed=True, bias=biases.shaw(x), sink=x)
    assert_type(latents, Array)
    assert_type(of_latents, latent.Cache)
    assert_type(latent.backward(latents, of_latents), latent.Gradients)
    assert_type(latent.jvp(of_latents, w_key=x), Array)
    of_latents_twice = latent.double_backward(latent.backward(latents, of_latents), latents, of_latents)
    assert_type(of_latents_twice, tuple[Array, latent.Gradients])

    wanted, of_wanted = indexer.forward(x, x, x, mask=x, scale=0.5)
    assert_type(wanted, Array)
    assert_type(of_wanted, indexer.Cache)
    assert_type(indexer.backward(wanted, of_wanted), indexer.Gradients)
    assert_type(indexer.jvp(of_wanted, weights=x), Array)
    of_wanted_twice = indexer.double_backward(indexer.backward(wanted, of_wanted), wanted, of_wanted)
    assert_type(of_wanted_twice, tuple[Array, indexer.Gradients])
    assert_type(indexer.top_k(wanted, 2), npt.NDArray[np.int64])

    loss, of_loss = cross_entropy.forward(x, x)
    assert_type(loss, Array)
    assert_type(of_loss, cross_entropy.Cache)
    assert_type(cross_entropy.backward(loss, of_loss), cross_entropy.Gradients)
    assert_type(cross_entropy.jvp(of_loss, scores=x), Array)
    curved = cross_entropy.double_backward(cross_entropy.backward(loss, of_loss), loss, of_loss)
    assert_type(curved, tuple[Array, cross_entropy.Gradients])

    pooled, windows = pooling.forward(x, x, width=2, stride=1)
    assert_type(pooled, Array)
    assert_type(windows, pooling.Cache)
    assert_type(pooling.backward(pooled, windows), pooling.Gradients)
    assert_type(pooling.jvp(windows, gate=x), Array)
    of_windows = pooling.double_backward(pooling.backward(pooled, windows), pooled, windows)
    assert_type(of_windows, tuple[Array, pooling.Gradients])

    sampled, points = deformable.forward(x, x, x, shapes=((1, 2),))
    assert_type(sampled, Array)
    assert_type(points, deformable.Cache)
    assert_type(deformable.backward(sampled, points), deformable.Gradients)
    assert_type(deformable.jvp(points, locations=x), Array)
    of_points = deformable.double_backward(deformable.backward(sampled, points), sampled, points)
    assert_type(of_points, tuple[Array, deformable.Gradients])

    turned, turn = rotary.forward(x, scaling=rotary.linear(2), sections=[1, 1], arrangement="runs", restart=True)
    assert_type(turned, Array)
    assert_type(turn, rotary.Cache)
    assert_type(rotary.backward(x, turn), rotary.Gradients)
    assert_type(rotary.jvp(turn, x=x), Array)
    of_turn = rotary.double_backward(rotary.backward(x, turn), x, turn)
    assert_type(of_turn, tuple[Array, rotary.Gradients])
    assert_type(rotary.linear(2), rotary.Scaling)
    assert_type(rotary.dynamic(2, 8, 16), rotary.Scaling)
    assert_type(rotary.llama3(8, 1, 4, 8192), rotary.Scaling)
    assert_type(rotary.longrope(x, x, 8, 16), rotary.Scaling)
    assert_type(rotary.yarn(4, 4096), rotary.Scaling)


def functions(x: Array, p: multi_head.Parameters) -> None:
    assert_type(anp.scaled_dot_product_attention(x, x, x), Array)
    assert_type(anp.additive_attention(x, x, x, x, x, x), Array)
    assert_type(anp.multi_head_attention(x, x, x, p, num_heads=2), Array)
    assert_type(anp.hessian_vector_product(softmax, x, softmax.forward(x)[1], scores=x), Any)  # the op's Gradients
    cache = anp.KeyValueCache(8)
    assert_type(cache, anp.KeyValueCache)
    assert_type(cache.attend(x), Array)
    assert_type(cache.attend_latent(x, None, x, x), Array)
    assert_type(positions.sinusoidal(4, 8), Array)
    assert_type(multi_head.Parameters.random(8, rng=0), multi_head.Parameters)


def visibility(x: Array) -> None:
    assert_type(masks.causal(3), Mask)
    assert_type(masks.padding([1, 2], 3, heads=True), Mask)
    assert_type(masks.padding_from_tokens([1, 0], 0), Mask)
    assert_type(masks.sliding_window(3, left=1), Mask)
    assert_type(masks.block_causal(4, 2), Mask)
    assert_type(masks.multi_level_causal(4), Mask)
    assert_type(masks.packed([0, 0, 1]), Mask)
    assert_type(masks.selected([[0, -1]], 4), Mask)
    assert_type(masks.tree([-1, 0]), Mask)
    assert_type(masks.as_mask(x, true_means="hidden"), Mask)
    assert_type(rules.causal() & rules.whole(x), rules.Rule)
    assert_type(rules.packed([0, 1]), rules.Rule)
    assert_type(rules.padding([2]), rules.Rule)
    assert_type(rules.selected([[0, -1]], block_size=2), rules.Rule)
    assert_type(rules.sliding_window(left=2), rules.Rule)
    assert_type(rules.tree([-1, 0]), rules.Rule)
    assert_type(rules.causal().mask(3, 3), Mask)
    assert_type(biases.alibi(biases.alibi_slopes(8)), biases.Bias)
    assert_type(biases.alibi_slopes(8), Array)
    assert_type(biases.forgetting(x), biases.Bias)
    assert_type(biases.shaw(x), biases.Bias)
    assert_type(biases.t5(x), biases.Bias)
    assert_type(biases.table(x, [[0]]), biases.Bias)
    assert_type(biases.products(x, [[0]], of="key"), biases.Bias)
    biases.check(x, (2, 2), 2)


def checking(f: Forward, g: Backward, x: Array) -> None:
    assert_type(gradcheck.check(f, g, {"x": x}), gradcheck.Report)
    assert_type(gradcheck.check(f, g, {"x": x})["x"], gradcheck.InputReport)
    assert_type(gradcheck.check_op(softmax, {"scores": x}), gradcheck.Report)
    assert_type(gradcheck.check_layer(f, x), gradcheck.Report)
    assert_type(gradcheck.check_hessian(f, f, {"x": x}), gradcheck.Report)
    assert_type(gradcheck.check_low_precision(f, g, {"x": x}, (f, g)), gradcheck.Report)
    assert_type(gradcheck.numerical_gradient(f, {"x": x}, x), dict[str, Array])
    gradcheck.assert_gradients(f, g, {"x": x})
    assert_type(derivation.read_page("page.md"), derivation.Page)
    assert_type(derivation.read_pages(["page.md"]), list[derivation.Page])
    assert_type(derivation.verify([]), derivation.Verification)
    assert_type(derivation.verify_against_op(derivation.read_page("page.md"), softmax), list[derivation.FieldRecord])


def layers(x: Array) -> None:
    output, cache = chain.forward(lambda x: x * x, {"x": x})
    assert_type(cache, chain.Cache)
    assert_type(chain.backward(output, cache), dict[str, Array | None])
    assert_type(chain.double_backward({"x": x}, output, cache)[1], dict[str, Array | None])
    assert_type(chain.concatenate([x, x]), chain.Variable)
    assert_type(chain.where(x > 0, x, x), chain.Variable)


def counting() -> None:
    assert_type(cost.dot_product(cost.Sizes(n=8)), cost.Costs)
    assert_type(cost.blockwise(cost.Sizes(n=8)), cost.Costs)
    assert_type(cost.longest(cost.dot_product, 2.0**30, cost.Sizes(n=8)), int)
    assert_type(cost.chain(lambda x: x, {"x": [1.0]}), cost.Costs)
    assert_type(trace.of("softmax", "a b"), trace.Trace)
    assert_type(trace.chain(lambda x: x, {"x": [1.0]}), trace.Trace)
    assert_type(trace.dot_product("a b"), trace.Trace)
    assert_type(trace.additive("a b"), trace.Trace)
    assert_type(trace.multi_head("a b"), trace.Trace)
    assert_type(cases.all_cases(["softmax"]), list[cases.Case])
    assert_type(cases.drawn("softmax"), cases.Case)
    assert_type(cases.batch(["a b"], 4), cases.Batch)
    assert_type(conventions.identify(dot_product.forward, options=["mask"]), conventions.Profile)
    assert_type(known_answers.write("answers"), int)
    assert_type(known_answers.verify_files("results", "answers"), known_answers.Conformance)
    assert_type(known_answers.load("answers"), Iterator[known_answers.KnownAnswer])
    assert_type(known_answers.verify(known_answers.of_op(dot_product), Path("answers")), known_answers.Conformance)


def drawing(x: Array, report: gradcheck.Report, ax: "Axes") -> None:
    assert_type(plot.weights(x), "Axes")
    assert_type(plot.mask(x, ax=ax), "Axes")
    assert_type(plot.softmax_jacobian(x), "Axes")
    assert_type(plot.query_weights(x), "Axes")
    assert_type(plot.saturation(), "Axes")
    assert_type(plot.cost(), "Axes")
    assert_type(plot.places(report["x"]), "Axes")
    assert_type(plot.heads(x), Array)
    assert_type(plot.points(x, x, x), Array)
    assert_type(plot.top_keys(x, k=2), plot.TopKeys)


def errors(x: Array, cache: dot_product.Cache, of_norm: rms_norm.Cache) -> None:
    dot_product.forward(x, x)  # type: ignore[call-arg]
    dot_product.forward(x, x, x, causal=True)  # type: ignore[call-arg]
    dot_product.backward(cache)  # type: ignore[call-arg]
    dot_product.backward(x, of_norm)  # type: ignore[arg-type]
    dot_product.jvp(cache, keys=x)  # type: ignore[call-arg]
    dot_product.double_backward(x, x, cache)  # type: ignore[arg-type]
    print(dot_product.backward(x, cache).queries)  # type: ignore[attr-defined]
    rms_norm.backward(x)  # type: ignore[call-arg]
    softmax.forward(x, axes=1)  # type: ignore[call-arg]
    multi_head.forward(x, x, x, x, num_heads=2)  # type: ignore[arg-type]
    masks.as_mask(x, true_means="visible")  # type: ignore[arg-type]
    masks.causal(x)  # type: ignore[arg-type]
    gradcheck.check(x, x, {"x": x})  # type: ignore[arg-type]
