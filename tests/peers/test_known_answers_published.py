"""What is published for others is what they compute: references in PyTorch, node tests of ONNX, tests to vendor."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_answers.sets import written

from attention_np import known_answers
from attention_np.known_answers.comparing import compare
from attention_np.known_answers.examples import all_examples
from attention_np.known_answers.examples.kernel import first_examples
from docs.known_answers import archive, definitions, negative, onnx_nodes

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'attention-np[peers]'")
onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'attention-np[peers]'")

ROUNDINGS = 8  # theirs are computed in the dtype throughout, and are off by so many of its last bits
LAST_BIT = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of the ops that others have, and its negative vectors."""
    ops = ("dot_product", "attention", "linear_attention", "short_conv")
    every, dtypes = [*all_examples(), *first_examples()], ["float32", "float16", "bfloat16"]
    target = written(tmp_path_factory.mktemp("published"), lambda x: x.op in ops, dtypes, lambda: every)
    for name, content in negative.files(known_answers.load(target)).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
    return target


@pytest.fixture(scope="module")
def cases(folder: Path) -> dict[str, known_answers.KnownAnswer]:
    return {case.name: case for case in known_answers.load(folder)}


def test_every_reference_gives_the_answers_of_every_workload(cases: dict[str, known_answers.KnownAnswer]) -> None:
    found = definitions.files(cases.values())
    run = 0
    for path, text in found.items():
        if not path.startswith("definitions/"):
            continue
        definition, scope = json.loads(text), dict[str, Any]()
        exec(definition["reference"], scope)  # noqa: S102
        workloads = found[path.replace("definitions/", "workloads/").replace(".json", ".jsonl")]
        for line in workloads.splitlines():
            inputs = json.loads(line)["workload"]["inputs"]
            (name,) = {x["path"].removesuffix(".safetensors") for x in inputs.values() if x["type"] == "safetensors"}
            case = cases[name]
            given = [x["value"] if x["type"] == "scalar" else tensor(case, x["tensor_key"]) for x in inputs.values()]
            for array, x in zip(definition["outputs"], scope["run"](*given), strict=True):
                assert x.dtype == getattr(torch, definition["outputs"][array]["dtype"])
                assert compare(case, array, x.float().numpy()).ok, (path, name, array)
                run += 1
    assert run >= 200


def tensor(case: known_answers.KnownAnswer, name: str) -> Any:
    return torch.from_numpy(case.inputs[name].astype(np.float32)).to(getattr(torch, case.dtype))


def test_every_node_test_is_valid_and_holds_by_the_evaluator_of_onnx(
    cases: dict[str, known_answers.KnownAnswer],
) -> None:
    from onnx.reference import ReferenceEvaluator

    seen: dict[str, int] = {}
    for case in cases.values():
        found = onnx_nodes.files([case])
        if not found:
            continue
        (folder,) = {path.partition("/model")[0] for path in found if path.endswith("model.onnx")}
        model = onnx.load_from_string(found[f"{folder}/model.onnx"])
        onnx.checker.check_model(model)
        (node,) = model.graph.node
        seen[node.op_type] = seen.get(node.op_type, 0) + 1
        if "lowest" in case.name or (case.dtype != "float32" and "large scores" in case.tags):
            continue  # scores that lose their digits where all is rounded to the dtype
        data = {name: array(content) for name, content in found.items() if name.endswith(".pb")}
        inputs = {x.name: data[f"{folder}/test_data_set_0/input_{i}.pb"] for i, x in enumerate(model.graph.input)}
        for i, x in enumerate(ReferenceEvaluator(model).run(None, inputs)):
            expected = data[f"{folder}/test_data_set_0/output_{i}.pb"].astype(np.float64)
            bound = case.bounds["final_state" if i else "output"].max()
            allowed = max(ROUNDINGS * LAST_BIT[case.dtype] * np.abs(expected).max(), bound)
            assert np.abs(x.astype(np.float64) - expected).max() <= allowed, case.name
    assert seen.keys() == onnx_nodes.OPSETS.keys()
    assert min(seen.values()) >= 12


def array(content: bytes) -> Any:
    held = onnx.TensorProto()
    held.ParseFromString(content)
    return onnx.numpy_helper.to_array(held)


def test_the_tests_to_vendor_pass_for_pytorch_and_fail_for_a_kernel_that_is_wrong(folder: Path, tmp_path: Path) -> None:
    text = archive.readers()["test_known_answers.py"]
    (tmp_path / "test_known_answers.py").write_text(text, encoding="utf-8")
    wrong = text.replace("attn_mask=mask", "attn_mask=None")
    assert wrong != text
    (tmp_path / "test_wrong.py").write_text(wrong, encoding="utf-8")
    settings = os.environ | {"KNOWN_ANSWERS": str(folder), "PYTEST_ADDOPTS": ""}
    for file, code in (("test_known_answers.py", 0), ("test_wrong.py", 1)):
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, env=settings)
        assert done.returncode == code, done.stdout
        assert "passed" in done.stdout
