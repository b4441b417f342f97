"""What must work where there is NumPy and nothing else: a program for an environment with the wheel alone."""

import json
import subprocess
import sys
from importlib.metadata import distributions, version
from pathlib import Path

import numpy as np

import attention_np as anp
from attention_np import gradcheck

TOOLS = {"pip", "setuptools", "wheel"}  # that environments come with


def nothing_else_is_installed():
    others = {found.metadata["Name"].lower().replace("_", "-") for found in distributions()} - TOOLS
    assert others == {"attention-np", "numpy"}, others
    assert version("attention-np") == anp.__version__
    assert Path(anp.__file__).resolve().is_relative_to(Path(sys.prefix).resolve()), "this is the source, not the wheel"
    assert Path(anp.__file__).with_name("py.typed").is_file()


def every_op_goes_forward_and_backward():
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(2, 5, 8)), rng.normal(size=(2, 7, 8)), rng.normal(size=(2, 7, 4))
    mask = anp.masks.padding([7, 3], m=7)
    weights = {"w_query": rng.normal(size=(8, 6)), "w_key": rng.normal(size=(8, 6)), "w_score": rng.normal(size=6)}
    projections = [rng.normal(size=size) for size in ((8, 8), (8, 8), (4, 4), (4, 8))]
    passes = {
        anp.softmax: ((query,), {}),
        anp.dot_product: ((query, key, value), {"mask": mask}),
        anp.blockwise: ((query, key, value), {"mask": mask}),
        anp.additive: ((query, key, value, *weights.values()), {"mask": mask}),
        anp.multi_head: ((query, key, value, anp.multi_head.Parameters(*projections)), {"num_heads": 2}),
        anp.linear: ((query, weights["w_query"]), {}),
        anp.short_conv: ((query, query[0, :4]), {}),
        anp.rms_norm: ((query,), {}),
        anp.layer_norm: ((query,), {}),
        anp.rotary: ((query,), {}),
        anp.latent: ((query, None, key[0], None, rng.normal(size=(2, 8, 8)), rng.normal(size=(2, 8, 4))), {}),
        anp.indexer: ((query, key[0], rng.normal(size=(2, 5))), {}),
        anp.cross_entropy: ((query, np.full((2, 5), 3)), {}),
        anp.pooling: ((query,), {"width": 2}),
        anp.deformable: ((query, rng.random((2, 3, 1, 4, 2)), rng.random((2, 3, 1, 4))), {"shapes": ((1, 5),)}),
    }
    outputs = {}
    for op, (arrays, options) in passes.items():
        outputs[op], cache = op.forward(*arrays, **options)
        gradients = op.backward(np.ones_like(outputs[op]), cache)
        assert np.isfinite(outputs[op]).all()
        assert np.isfinite(gradients[0]).all()
        assert gradients[0].shape == query.shape
    assert np.allclose(outputs[anp.blockwise], outputs[anp.dot_product], rtol=1e-13, atol=1e-13)
    plain = anp.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    assert np.array_equal(plain, outputs[anp.dot_product])


def gradients_are_checked_and_reports_printed(folder):
    inputs = {"x": np.array([0.5, -1.0, 2.0])}
    report = gradcheck.check(np.tanh, lambda d, x: d * (1 - np.tanh(x) ** 2), inputs)
    assert report.ok, str(report)
    assert "complex-step" in str(report)
    report.save(folder / "report.json")
    assert json.loads((folder / "report.json").read_text()) == report.to_dict()
    assert not gradcheck.check(np.tanh, lambda d, _: d, inputs).ok


def what_needs_more_says_so(folder):
    for words, extra in {
        ("check",): "check",
        ("trace", "I love AI"): "check",
        ("known-answers", str(folder / "answers")): "answers",
    }.items():
        refused = command(*words)
        assert refused.returncode == 2, refused
        assert f"pip install 'attention-np[{extra}]'" in refused.stderr, refused.stderr
        assert "Traceback" not in refused.stderr, refused.stderr
    reason = ""
    try:
        gradcheck.check(np.tanh, lambda d, _: d, {"x": np.ones(2)}).plot()
    except ImportError as error:
        reason = str(error)
    assert "pip install 'attention-np[plot]'" in reason, reason


def the_command_line_works():
    for words in (["--help"], ["cost"]):
        printed = command(*words)
        assert printed.returncode == 0, printed.stderr
        assert printed.stdout, words
        assert not printed.stderr, printed.stderr


def command(*arguments):
    words = [sys.executable, "-I", "-W", "error", "-m", "attention_np", *arguments]
    return subprocess.run(words, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    nothing_else_is_installed()
    every_op_goes_forward_and_backward()
    gradients_are_checked_and_reports_printed(Path.cwd())
    what_needs_more_says_so(Path.cwd())
    the_command_line_works()
    print(f"attention_np {anp.__version__} works with NumPy {np.__version__} alone, on Python {sys.version.split()[0]}")
