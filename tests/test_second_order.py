"""Second derivatives of every op: double backward, and the Hessian-vector product."""

from inspect import signature
from typing import Any

import numpy as np
import pytest
from helpers import (
    SOME_HIDDEN,
    Array,
    Case,
    assert_alike,
    assert_close,
    assert_same_bits,
    each,
    leaves,
    map_arrays,
    normal,
    peak_of,
    plain_case,
    plain_cases,
    some_of,
    tangents_of,
)
from test_ops import CASES as OF_ATTENTIONS

import attention_np as anp
from attention_np import cases
from attention_np._lib import passes
from attention_np._lib.wide import widened

STEP = 1e-30  # squared, nothing beside one
OF_SOFTMAX = {
    f"softmax, axis {axis}": Case(
        anp.softmax, {"scores": normal(0, 3, 4)}, {"axis": axis, "mask": normal(1, 3, 4) > -1}
    )
    for axis in (0, 1)
}
OF_ROWS = {op: case for op, case in plain_cases(batch=(2,)).items() if "x" in case.inputs}
OF_TOKENS = {
    f"linear_attention, {chunk_size} at once": case._replace(
        options={"chunk_size": chunk_size, "mask": np.array([True, False, True, True])}
    )
    for chunk_size in (None, 3)
    for case in [plain_case("linear_attention", batch=(2,))]
}


def with_an_idle_head(case: Case) -> Case:
    """The gradient of what the first head puts out is zero, and yet moves."""
    parameters = case.inputs["parameters"]
    w_output = np.where(np.arange(8)[:, None] < 4, 0, parameters.w_output)
    return case._replace(inputs={**case.inputs, "parameters": parameters._replace(w_output=w_output)})


IDLE = {"multi_head, an idle head": with_an_idle_head(plain_case("multi_head"))}
CASES = OF_ATTENTIONS | OF_SOFTMAX | OF_ROWS | OF_TOKENS | IDLE
LONG = some_of(OF_ATTENTIONS, 2)[1]
every_case = each("name", [name for name in CASES if name not in LONG], long=LONG)
OF_OPS = plain_cases() | {"softmax": OF_SOFTMAX["softmax, axis 1"]}
every_op = each("case", [case for case in OF_OPS.values() if hasattr(case.op, "double_backward")])


def as_gradients(case: Case, along: Any) -> Any:
    """The tangents of some inputs as what comes back to the gradients."""
    kind = case.op.Gradients
    return kind(**{name: along.get(name) for name in kind._fields})


def hessian_times(case: Case, along: Any, d_output: Array) -> dict[str, Array]:
    product = anp.hessian_vector_product(case.op, d_output, case.forward()[1], **along)
    return dict(leaves(product))


@every_case
def test_double_backward_is_forward_mode_over_backward(name: str) -> None:
    case = CASES[name]
    output, cache = case.forward()
    along, d_output = tangents_of(case), normal(9, *output.shape)
    d_d_output, gradients = case.op.double_backward(as_gradients(case, along), d_output, cache)
    moving, names = dict(leaves(along)), iter(name for name, _ in leaves(case.inputs))
    output, moved = case.map(lambda x: x + 1j * STEP * moving[next(names)]).forward()
    expected = {name: x.imag / STEP for name, x in leaves(case.op.backward(d_output.astype(complex), moved))}
    assert_close(d_d_output, case.op.jvp(cache, **along), 1e-14)
    assert_close(d_d_output, output.imag / STEP, 1e-13)
    found = dict(leaves(gradients))
    assert set(found) == set(expected)
    largest = max(np.abs(x).max(initial=0) for x in (d_output, *expected.values()))
    for name, x in expected.items():  # one that is zero, as a shift of all scores has it, is so but for rounding
        assert found[name].shape == x.shape
        assert np.abs(found[name] - x).max(initial=0) <= 1e-13 * np.abs(x).max(initial=0) + 2e-15 * largest, name


def test_what_a_page_derives_by_hand_is_what_dual_numbers_give() -> None:
    op = anp.dot_product
    by_duals = passes.second_derivative(op.attend, op.backward)
    for case in cases.all_cases(["dot_product"]):
        output, cache = op.forward(**case.inputs, **case.options)
        d_output = normal(9, *output.shape)
        gradients = op.backward(d_output, cache)
        if not isinstance(gradients.bias, list):
            along = map_arrays(lambda x: normal(8, *x.shape), gradients)
            by_hand, expected = (
                dict(leaves(dict(zip(("d_output", "gradients"), double_backward(along, d_output, cache), strict=True))))
                for double_backward in (op.double_backward, by_duals)
            )
            assert by_hand.keys() == expected.keys() >= {"d_output", "gradients.query"}
            for name, x in expected.items():
                assert_alike(by_hand[name], x, 1e-14, f"{case.name}, {name}")


def further_outputs(case: Case) -> list[str]:
    """The names of the outputs of an op whose gradients its `backward` takes beside that of the first."""
    fields = case.op.Cache._fields
    given = (name.removeprefix("d_") for name in list(signature(case.op.backward).parameters)[2:])
    there = case.options.get("weights_by") is None or case.op is not anp.blockwise  # its log-sum-exp is softmax's
    return [name for name in given if name in fields and there]


OF_FURTHER = {name: case for name, case in CASES.items() if further_outputs(case)}


@each("name", *some_of(OF_FURTHER, 4))
def test_further_outputs_have_tangents_and_a_part_in_second_derivatives(name: str) -> None:
    case = OF_FURTHER[name]
    (further,) = further_outputs(case)
    output, cache = case.forward()
    along, d_output, first = tangents_of(case), normal(9, *output.shape), getattr(cache, further)
    d_further = {f"d_{further}": normal(8, *first.shape)}
    moving, names = dict(leaves(along)), iter(name for name, _ in leaves(case.inputs))
    moved_output, moved = case.map(lambda x: x + 1j * STEP * moving[next(names)]).forward()
    tangent, of_output, again = case.op.jvp(cache, outputs=(further, "output", further), **along)
    exists = np.isfinite(first)
    assert_close(np.where(exists, tangent, 0), np.where(exists, getattr(moved, further).imag / STEP, 0), 1e-13)
    assert tangent.shape == first.shape
    assert_same_bits(of_output, case.op.jvp(cache, **along))
    assert_same_bits(again, tangent)
    d_d_output, gradients = case.op.double_backward(as_gradients(case, along), d_output, cache, **d_further)
    assert_close(d_d_output, moved_output.imag / STEP, 1e-13)
    d_further = {key: x.astype(complex) for key, x in d_further.items()}
    of_backward = dict(leaves(case.op.backward(d_output.astype(complex), moved, **d_further)))
    largest = max(np.abs(x.imag).max(initial=0) / STEP for x in of_backward.values())
    for key, x in leaves(gradients):
        assert np.abs(x - of_backward[key].imag / STEP).max(initial=0) <= 2e-14 * max(largest, 1), key


def test_outputs_that_an_op_does_not_have_are_refused() -> None:
    for case, known in ((OF_OPS["linear_attention"], "final_state"), (OF_OPS["blockwise"], "logsumexp")):
        op, (_, cache) = case.op.__name__.rpartition(".")[2], case.forward()
        assert case.op.jvp(cache, outputs=()) == ()
        with pytest.raises(ValueError, match=rf"^{op} has no output 'state': it has output, {known}$"):
            case.op.jvp(cache, outputs=("output", "state"))
        with pytest.raises(TypeError, match=f"^outputs must be a tuple of names of outputs, not '{known}'$"):
            case.op.jvp(cache, outputs=known)
    with pytest.raises(TypeError, match=r"^jvp\(\) got an unexpected keyword argument 'outputs'$"):
        anp.dot_product.jvp(OF_OPS["dot_product"].forward()[1], outputs=("output",))  # type: ignore[call-arg]


@pytest.mark.long  # forward mode over backward says it, too
@every_case
def test_the_hessian_is_symmetric(name: str) -> None:
    case = CASES[name]
    d_output = normal(9, *case.forward()[0].shape)
    u, v = (dict(leaves(tangents_of(case, seed))) for seed in (1, 2))
    of_u, of_v = (hessian_times(case, tangents_of(case, seed), d_output) for seed in (1, 2))
    one, other = ([(x * of[name]) for name, x in by.items()] for by, of in ((u, of_v), (v, of_u)))
    size = sum(np.abs(x).sum() for x in one)
    assert abs(sum(x.sum() for x in one) - sum(x.sum() for x in other)) <= 1e-13 * size


@every_op
def test_what_is_left_out_is_zero_and_parts_add_up(case: Case) -> None:
    along, d_output = tangents_of(case), normal(9, *case.forward()[0].shape)
    whole = hessian_times(case, along, d_output)
    parts = [hessian_times(case, {name: x}, d_output) for name, x in along.items()]
    nothing = hessian_times(case, {}, d_output)
    for name, x in whole.items():
        assert (nothing[name] == 0).all()
        assert np.abs(sum(part[name] for part in parts) - x).max() <= 1e-13 * max(np.abs(x).max(), 1)


@every_op
@each("dtype", [np.float32, np.float16])
def test_dtypes_are_those_of_the_arrays(case: Case, dtype: Any) -> None:
    case, exact = case.map(lambda x: x.astype(dtype)), case.map(lambda x: x.astype(dtype).astype(float))
    d_output = normal(9, *case.forward()[0].shape).astype(dtype)
    along = tangents_of(case)
    d_d_output, gradients = case.op.double_backward(as_gradients(case, along), d_output, case.forward()[1])
    assert d_d_output.dtype == dtype
    expected = hessian_times(exact, tangents_of(exact), d_output.astype(float))
    for name, x in leaves(gradients):
        assert x.dtype == dtype
        assert np.abs(x - expected[name]).max() <= 32 * np.finfo(dtype).eps * max(np.abs(expected[name]).max(), 1)


@each("op", ["dot_product", "blockwise", "additive", "multi_head"])
def test_what_is_masked_out_and_a_query_without_a_gradient_add_nothing_whatever_they_hold(op: str) -> None:
    case = plain_case(op)._replace()
    mask = SOME_HIDDEN & (np.arange(5) != 2)
    case = case._replace(options={**case.options, "mask": mask})
    along, d_output = tangents_of(case), normal(9, *case.forward()[0].shape)
    d_output[3] = 0
    expected = hessian_times(case, along, d_output)
    for name, row in (("query", 3), ("key", 2), ("value", 2)):
        spoiled = {**case.inputs, name: case.inputs[name].copy()}
        spoiled[name][row] = np.nan
        found = hessian_times(case._replace(inputs=spoiled), along, d_output)
        for other, x in found.items():
            assert_close(x, expected[other], 1e-13) if "b_key" not in other else None
    assert (expected["query"][3] == 0).all()
    assert op == "multi_head" or (expected["key"][2] == 0).all()


@pytest.mark.parametrize("op", ["dot_product", "blockwise", "additive", "multi_head"])
def test_the_second_look_is_taken_of_what_hardly_fits_alone(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    for module in ("attention_np._lib.passes", "attention_np.blockwise"):
        monkeypatch.setattr(f"{module}.widened", lambda x: looks.append(x) or widened(x))
    case = plain_case(op, n=6, m=7).map(lambda x: x.astype(np.float32))
    along, d_output = tangents_of(case), normal(9, *case.forward()[0].shape).astype(np.float32)
    expected = hessian_times(case, along, d_output)
    assert not looks
    found = hessian_times(case, map_arrays(lambda x: np.float32(1e-34) * x, along), np.float32(1e-2) * d_output)
    assert looks
    largest = max(np.abs(x).max() for x in expected.values())
    for name, x in expected.items():
        assert np.abs(found[name].astype(float) / 1e-36 - x).max() <= 1e-4 * largest


def test_arithmetic_that_leaves_the_range_is_worked_out_again() -> None:
    arrays = {"query": 1e-160 * normal(0, 4, 3), "key": 1e160 * normal(1, 5, 3), "value": normal(2, 5, 3)}
    plain = {"query": normal(0, 4, 3), "key": normal(1, 5, 3), "value": arrays["value"]}
    units = {"query": 1e160, "key": 1e-160, "value": 1.0}
    for op in (anp.dot_product, anp.blockwise):
        case, same = Case(op, arrays, {}), Case(op, plain, {})
        d_output, along = normal(9, 4, 3), tangents_of(same)
        found = hessian_times(case, {name: x / units[name] for name, x in along.items()}, d_output)
        for name, x in hessian_times(same, along, d_output).items():
            assert_close(found[name] / units[name], x, 1e-13)


@each("op", ["additive", "multi_head"])
def test_memory_is_at_most_that_of_three_backward_passes(op: str) -> None:
    case = plain_case(op, n=128, m=128)
    output, cache = case.forward()
    gradients = case.op.backward(output, cache)
    first = peak_of(lambda: case.op.backward(output, cache))
    assert peak_of(lambda: case.op.double_backward(gradients, output, cache)) < 3 * first


@every_op
def test_bad_input_is_refused(case: Case) -> None:
    output, cache = case.forward()
    name, op = next(iter(case.inputs)), case.op.__name__.rpartition(".")[2]
    kind = case.op.Gradients
    nothing = as_gradients(case, {})
    with pytest.raises(TypeError, match=rf"d_gradients must be {op}.Gradients, not tuple"):
        case.op.double_backward(tuple(nothing), output, cache)
    with pytest.raises(ValueError, match=rf"the tangent of {name} must have the shape .* of what it belongs to"):
        case.op.double_backward(kind(**{**nothing._asdict(), name: np.ones(7)}), output, cache)
    with pytest.raises(ValueError, match=r"must have the shape .* of what it belongs to"):
        case.op.double_backward(nothing, np.ones(7), cache)
    with pytest.raises(TypeError, match=rf"cache must be the one that {op}.forward returned"):
        case.op.double_backward(nothing, output, None)
    with pytest.raises(TypeError, match=rf"{op} has no array 'nothing': it has {name}"):
        anp.hessian_vector_product(case.op, output, cache, nothing=output)
