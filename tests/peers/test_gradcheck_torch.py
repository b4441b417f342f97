"""PyTorch's gradients checked with one call: those that are right hold, and planted errors are found and named."""

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import normal

from attention_np import gradcheck
from attention_np.gradcheck.torch import check

from .adapted import LIBRARIES

torch = pytest.importorskip("torch", reason="the adapter for PyTorch needs torch: pip install attention-np[peers]")


def tensor(seed: int, *shape: int, dtype: Any = torch.float64) -> Any:
    return torch.tensor(normal(seed, *shape), dtype=dtype)


class Forgetful(torch.autograd.Function):
    """A product of which one gradient is missing."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(y)
        return x * y

    @staticmethod
    def backward(ctx: Any, d_output: Any) -> Any:
        return d_output * ctx.saved_tensors[0], None


@pytest.mark.parametrize("training", [True, False])
def test_the_module_of_multi_head_attention_holds_with_its_parameters(training: bool) -> None:
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(4, 2, dtype=torch.float64, batch_first=True).train(training)
    state = copy.deepcopy(module.state_dict())
    hidden = torch.tensor([[False, False, True]])
    inputs = {"query": tensor(0, 1, 2, 4), "key": tensor(1, 1, 3, 4), "value": tensor(2, 1, 3, 4)}
    report = check(module, {**inputs, "key_padding_mask": hidden})
    assert report.ok, report
    assert [entry.name for entry in report] == [
        *inputs,
        *(f"parameters.{name}" for name, _ in module.named_parameters()),
    ]
    assert all(torch.equal(state[name], x) for name, x in module.state_dict().items())
    assert all(x.grad is None for x in module.parameters())


class Scale(torch.nn.Module):
    """Multiplies by a weight, which it shares with PyTorch's autograd only if it `is_honest`."""

    def __init__(self, is_honest: bool) -> None:
        super().__init__()
        self.is_honest = is_honest
        self.weight = torch.nn.Parameter(tensor(5, 3))
        self.frozen = torch.nn.Parameter(tensor(6, 3), requires_grad=False)
        self.register_buffer("calls", torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        weight = self.weight if self.is_honest else self.weight.detach()
        return x * weight * self.frozen.detach()


def test_an_error_in_the_gradient_of_a_parameter_is_named() -> None:
    module = Scale(is_honest=False)
    report = check(module, tensor(0, 2, 3))
    assert [entry.name for entry in report] == ["x", "parameters.weight"]
    assert report["x"].ok
    assert not report["parameters.weight"].ok
    assert check(Scale(is_honest=True), tensor(0, 2, 3)).ok


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_module_keeps_its_buffers(dtype: Any) -> None:
    module = Scale(is_honest=True)
    module.weight.data = module.weight.data.to(dtype)
    assert check(module, tensor(0, 2, 3, dtype=dtype)).ok
    assert not module.calls.any()


def test_a_module_in_single_precision_is_evaluated_in_double() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)).eval()
    report = check(module, tensor(0, 4, 3, dtype=torch.float32))
    assert report.ok
    assert report["input"].floor < 1e-5
    assert module[0].running_mean.dtype == torch.float32


class Slow(torch.nn.Linear):
    """Gives other threads time to interfere."""

    def forward(self, x: Any) -> Any:
        time.sleep(1e-3)
        return super().forward(x)


def test_threads_do_not_see_each_others_parameters() -> None:
    with ThreadPoolExecutor(4) as executor:
        check(Slow(9, 9, dtype=torch.float64), tensor(0, 5, 9), executor=executor).raise_if_failed()


def test_shared_parameters_are_one() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3, dtype=torch.float64), torch.nn.Linear(3, 3, dtype=torch.float64))
    module[1].weight = module[0].weight
    report = check(module, tensor(0, 2, 3))
    assert [entry.name for entry in report] == [
        "input",
        *(f"parameters.{name}" for name in ("0.weight", "0.bias", "1.bias")),
    ]
    assert report.ok


def test_a_missing_gradient_is_found_where_it_matters_and_zero_where_it_does_not() -> None:
    report = check(Forgetful, (tensor(0, 3), tensor(1, 3)))
    assert report["x"].ok
    assert not report["y"].ok
    assert check(lambda x: torch.ones(2), tensor(0, 3)).ok
    assert not check(lambda x: 2 * x.detach(), tensor(0, 3)).ok


class Pair(NamedTuple):
    first: Any
    rest: Any


def test_all_floating_outputs_count_nested_ones_too() -> None:
    def function(x: Any, wrong: bool) -> Any:
        square = x**2
        rest = {"square": square.detach() if wrong else square, "where": x.argmax(), "nothing": None}
        return x.sum(), Pair(x.float() * 3, [rest])

    assert check(function, (tensor(0, 3), False)).ok
    assert not check(function, (tensor(0, 3), True)).ok


def test_a_mapping_is_passed_by_name_if_the_names_are_those_of_the_parameters() -> None:
    inputs = {"y": tensor(0, 3), "x": tensor(1, 3)}
    by_name = check(lambda x, y: x**3 + 0 * y, inputs)
    assert by_name["y"].analytic == 0 != by_name["x"].analytic
    in_order = check(lambda a, b: a**3 + 0 * b, inputs)
    assert in_order["x"].analytic == 0 != in_order["y"].analytic
    assert check(lambda *arguments, **options: torch.mul(*arguments, **options), inputs).ok
    assert check(lambda x, *, y: x * y, inputs).ok
    assert check(lambda **named: named["x"] * named["y"], inputs).ok
    assert check(torch.mul, inputs).ok


def test_no_gradient_need_be_required_and_none_is_left_behind() -> None:
    x, y = tensor(0, 3), tensor(1, 3).requires_grad_()
    assert check(lambda x, y: x * y, [x, y]).ok
    assert not x.requires_grad
    assert y.requires_grad
    assert y.grad is None


def test_a_function_may_overwrite_its_arguments() -> None:
    x = tensor(0, 3)
    before = x.clone()
    assert check(lambda x: x.mul_(2).sin_(), x).ok
    assert torch.equal(x, before)


def test_tensors_keep_their_order_in_memory() -> None:
    strides = set()

    def function(x: Any) -> Any:
        strides.add(x.stride())
        return x * 2

    assert check(function, tensor(0, 2, 3).T).ok
    assert strides == {(1, 3)}


def test_arrays_of_numpy_are_as_good_as_tensors() -> None:
    report = check(torch.mul, (normal(0, 3), tensor(1, 3)))
    assert [entry.name for entry in report] == ["input 0", "input 1"]
    assert report.ok


def test_a_gradient_that_is_sparse_is_checked() -> None:
    module = torch.nn.Embedding(4, 3, sparse=True, dtype=torch.float64)
    check(module, torch.tensor([1, 1, 3])).raise_if_failed()


@pytest.mark.parametrize(("dtype", "wrong_by"), [(torch.float32, 1e-4), (torch.float16, 0.2)], ids=["single", "half"])
def test_narrow_types_are_judged_by_what_they_hold(dtype: Any, wrong_by: float) -> None:
    x = tensor(0, 5, dtype=dtype)
    assert check(torch.tanh, x).ok
    assert not check(LIBRARIES["torch"]().scaled(wrong_by), (x, 0.5)).ok


def test_types_that_numpy_does_not_have_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^x \(torch.bfloat16\) cannot be turned into an array of NumPy: "):
        check(lambda x: x, torch.ones(3, dtype=torch.bfloat16))


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(TypeError, match="function must be callable, not Tensor"):
        check(tensor(0, 3), tensor(0, 3))
    with pytest.raises(ValueError, match=r"two arrays that would both be called x\.a\.b"):
        check(lambda x: x, {"x": {"a": {"b": tensor(0, 3)}, "a.b": tensor(0, 3)}})


@pytest.mark.parametrize("method", ["complex-step", "central"])
def test_many_moves_of_a_vectorized_input_are_evaluated_at_once(method: str) -> None:
    shapes = []

    def function(x: Any, y: Any) -> Any:
        shapes.append(tuple(x.shape))
        return (x @ y).sin()

    inputs = {"x": tensor(0, 4, 3), "y": tensor(1, 3, 3)}
    check(function, inputs, vectorized=["x"], method=method).raise_if_failed()
    assert {len(shape) for shape in shapes} == {2, 3}


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_check_does_not_depend_on_what_is_recorded_around_it(mode: str) -> None:
    layer = torch.nn.Linear(4, 3, dtype=torch.float64)
    with getattr(torch, mode)():
        right = gradcheck.torch.check(torch.sin, torch.linspace(-1, 1, 5, dtype=torch.float64))
        module = gradcheck.torch.check(layer, torch.ones(2, 4, dtype=torch.float64))
    assert right.ok, str(right)
    assert module.ok, str(module)
    assert not right[right.inputs[0].name].undecidable


def test_what_numpy_cannot_hold_and_what_cannot_be_moved_is_refused_with_the_reason() -> None:
    sparse = torch.eye(3, dtype=torch.float64).to_sparse()
    with pytest.raises(TypeError, match=r"^x \(torch.float64\) cannot be turned into an array of NumPy: can't"):
        gradcheck.torch.check(lambda x: x, {"x": sparse})
    with pytest.raises(ValueError, match=r"there is nothing to differentiate by in x \(torch.int64\), _ \(float\)$"):
        gradcheck.torch.check(lambda x, _: x, {"x": torch.arange(3), "_": 1.0})
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        scripted = torch.jit.script(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"^function must not be a scripted module"):
        gradcheck.torch.check(scripted, torch.ones(2))


@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
@pytest.mark.parametrize("scale", [1, 5, 10, 20])
def test_saturated_functions_of_torch_hold_or_cannot_be_decided(name: str, scale: float) -> None:
    for seed in range(8):
        x = torch.from_numpy(scale * np.random.default_rng(seed).standard_normal(12))
        report = gradcheck.torch.check(getattr(torch, name), {"x": x})
        assert report.ok, f"{x}\n{report}"


def test_a_slight_error_of_a_function_in_double_precision_is_no_rounding() -> None:
    class Almost(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return torch.sin(x)

        @staticmethod
        def backward(ctx: Any, d_output: Any) -> Any:  # type: ignore[override]
            return d_output * torch.cos(ctx.saved_tensors[0]) * (1 + 1e-8)

    assert gradcheck.torch.check(Almost, {"x": torch.linspace(0.1, 1, 6, dtype=torch.float64)})["x"].wrong == 6


@pytest.mark.parametrize("seed", range(12))
def test_what_autograd_loses_of_large_logits_is_rounding(seed: int) -> None:
    x = torch.from_numpy(300 + 30 * np.random.default_rng(seed).standard_normal((4, 5)))
    for function in (lambda x: torch.logsumexp(x, 1), lambda x: x - torch.logsumexp(x, 0, keepdim=True)):
        report = gradcheck.torch.check(function, [x])
        assert report.ok, str(report)


def test_a_point_that_torch_refuses_is_not_used() -> None:
    x, q = tensor(0, 5), torch.tensor([0.23, 0.9999], dtype=torch.float64)
    assert gradcheck.torch.check(lambda q: torch.quantile(x, q), [q]).ok
    calls = []

    def forgetful(x: Any) -> Any:
        calls.append(x)
        if len(calls) > 4:
            raise torch.OutOfMemoryError("no more memory")
        return torch.sin(x)

    with pytest.raises(torch.OutOfMemoryError, match="no more memory"):
        gradcheck.torch.check(forgetful, [x])


def test_labels_of_float_that_are_compared_are_said_to_be_so() -> None:
    y = torch.tensor([1.0, -1, 1], dtype=torch.float64)
    report = gradcheck.torch.check(torch.nn.functional.hinge_embedding_loss, {"x": tensor(0, 3), "y": y})
    assert report["x"].ok
    assert "forward is not continuous at [0]: the loss jumps by " in str(report["y"].diagnosis)


def test_a_function_that_writes_to_the_gradient_that_it_is_given_is_told_of() -> None:
    class Relu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx: Any, d_output: Any) -> Any:
            d_output[ctx.saved_tensors[0] < 0] = 0
            return d_output

    found = gradcheck.torch.check(Relu, torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64))["x"]
    assert found.diagnosis == "backward writes to the gradient of the output that it is given"


def test_what_is_kept_from_the_first_call_is_wrong_where_the_others_move() -> None:
    class Stale(torch.autograd.Function):
        first: Any = None

        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            Stale.first = x.detach().clone() if Stale.first is None else Stale.first
            ctx.save_for_backward(w)
            return x @ w

        @staticmethod
        def backward(ctx: Any, d_output: Any) -> Any:  # type: ignore[override]
            return d_output @ ctx.saved_tensors[0].T, Stale.first.T @ d_output

    report = gradcheck.torch.check(Stale, {"x": tensor(0, 3, 4), "w": tensor(1, 4, 2)})
    assert [entry.name for entry in report if not entry.ok] == ["w"]
