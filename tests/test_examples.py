"""Every example runs as it stands, as a script and as a notebook, and shows what it says it shows."""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
AS_NOTEBOOKS = ("sentences", "your_kernel")  # to run each as a script and as a notebook takes minutes
pytestmark = pytest.mark.long
Run = Callable[[str], str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def printed(folder: Path) -> Run:
    """What an example prints, run once, in a folder of its own."""

    @cache
    def run(name: str) -> str:
        if name == "torch_layer":
            pytest.importorskip("torch", reason="the example needs PyTorch: pip install torch")
        script = Path(__file__).parents[1] / "examples" / f"{name}.py"
        command = [sys.executable, "-W", "error", script]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, cwd=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_says_something(example: Path, printed: Run) -> None:
    assert printed(example.stem).strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_is_a_notebook_that_runs(example: Path, tmp_path: Path) -> None:
    reason = "pip install 'attention-np[notebooks]'"
    jupytext = pytest.importorskip("jupytext", reason=reason)
    nbclient = pytest.importorskip("nbclient", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    if example.stem == "torch_layer":
        pytest.importorskip("torch", reason="the example needs PyTorch: pip install torch")
    notebook = jupytext.read(example)
    title, *cells = notebook.cells
    assert title.cell_type == "markdown"
    assert title.source.startswith("# ")
    assert not any('"""' in cell.source for cell in cells if cell.cell_type == "markdown")

    text = example.read_text(encoding="utf-8")
    assert "__file__" not in text  # a notebook has none
    if example.stem not in AS_NOTEBOOKS:
        return
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=str(tmp_path))
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    assert any(output.output_type == "stream" and output.name == "stdout" for output in outputs)
    has_figure = "savefig" in text
    assert any("image/png" in output.get("data", {}) for output in outputs) == has_figure


def test_a_cache_saves_most_of_the_work_and_changes_no_character(printed: Run) -> None:
    saved = [float(share) for share in re.findall(r"saved ([\d.]+)% of the rows\nand ([\d.]+)%", printed("writing"))[0]]
    assert min(saved) > 95
    assert "the hen sat on the hay" in printed("writing")


@pytest.mark.parametrize("name", ["sentences", "dates", "two_heads", "overwriting"])
def test_the_example_saves_its_picture(name: str, printed: Run, folder: Path) -> None:
    printed(name)
    picture = folder / "build" / "examples" / f"{name}.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_higher_score_of_a_word_raises_its_weight_and_lowers_that_of_all_others(printed: Run) -> None:
    rows = re.findall(r"^  (\w+) +weight (\S+) +gradient (\S+)$", printed("sentences"), flags=re.MULTILINE)
    assert len(rows) == 10
    assert [word for word, _, slope in rows if float(slope) > 0] == ["cat"]
    assert abs(sum(float(weight) for _, weight, _ in rows) - 1) < 0.01


def test_leaving_out_a_word_of_large_weight_may_change_little(printed: Run) -> None:
    rows = re.findall(r"^  (\w+) +weight (\S+) +noun (\S+) +alive (\S+)$", printed("sentences"), flags=re.MULTILINE)
    (weight, noun, alive), *_ = [tuple(map(float, numbers)) for word, *numbers in rows if word == "cat"]
    assert abs(noun) < 0.1 < 0.4 < min(weight, abs(alive))


def test_sorting_and_packing_save_padding(printed: Run) -> None:
    shares = [float(x) for x in re.findall(r": +([\d.]+)%", printed("padding"))]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 75
    assert shares[-1] < 2


def test_a_causal_model_fills_a_blank_no_better_than_its_bound(printed: Run) -> None:
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", printed("blank"))]
    causal, both_sides, bound = losses
    assert both_sides < 0.02 < bound <= causal < bound + 0.01


def test_the_alignment_that_is_learned_translates_dates_never_seen(printed: Run) -> None:
    text = printed("dates")
    right = re.search(r"^(\S+)% of 500 days that it never saw are right$", text, flags=re.MULTILINE)
    assert right is not None
    assert float(right[1]) > 95
    assert "21 november 2026 -> 2026-11-21" in text
    units = re.findall(r"^  \d looks at '(.)'", text, flags=re.MULTILINE)
    assert units[2:4] + units[6:] == list("2621")  # the last digits of the year, and those of the day


def test_one_head_reaches_its_lower_bound_and_two_heads_pass_below_it(printed: Run) -> None:
    text = printed("two_heads")
    bound = re.search(r"one head has a loss of (\S+) at least", text)
    assert bound is not None
    losses = {
        int(heads): [float(loss) for loss in row.split(", ")]
        for heads, row in re.findall(r"^(\d) heads?: loss (.*)$", text, flags=re.MULTILINE)
    }
    assert float(bound[1]) == 0.5
    assert all(loss >= 0.5 for loss in losses[1])
    assert min(losses[1]) < 0.5001
    assert min(losses[2]) < 0.0001


def test_the_delta_rule_overwrites_and_a_sum_reaches_its_lower_bound(printed: Run) -> None:
    rows = re.findall(r"^(.*?) +mean squared error (\S+)$", printed("overwriting"), flags=re.MULTILINE)
    errors = {name: float(error) for name, error in rows}
    assert 0.48 <= errors["linear attention"] < 0.56
    assert 0.05 < errors["with a decay"] < 0.4
    assert errors["with the delta rule"] < 0.01


def test_a_layer_with_a_state_has_the_gradients_that_are_numerical_ones_and_is_itself_token_by_token(
    printed: Run,
) -> None:
    rows = re.findall(r"^(\w+) +complex-step +(\w+) +(\S+) ", printed("gated_delta"), flags=re.MULTILINE)
    assert len(rows) == 11  # with the double backward
    assert all(holds == "yes" and float(error) <= 1e-13 for _, holds, error in rows)
    assert re.search(
        r"^token by token: \S+e-1[4-9] from the whole sequence", printed("gated_delta"), flags=re.MULTILINE
    )


@pytest.mark.parametrize(
    ("name", "parameters"), [("nsa", 8), ("moba", 5), ("differential", 10), ("rwkv7", 19), ("mamba2", 9)]
)
def test_a_layer_of_today_takes_forty_lines_and_has_the_gradients_that_are_numerical_ones(
    name: str, parameters: int, printed: Run
) -> None:
    rows = re.findall(r"^(\w+) +(?:complex-step|adjoint) +(\w+) +(\S+) ", printed(name), flags=re.MULTILINE)
    assert len(rows) == parameters + 2  # with forward mode and the double backward
    assert all(holds == "yes" and float(error) <= 1e-13 for _, holds, error in rows)
    source = next(path for path in EXAMPLES if path.stem == name).read_text(encoding="utf-8")
    code = re.sub(r'# %% \[markdown\]\nr?""".*?"""', "", source, flags=re.DOTALL).splitlines()
    assert len([line for line in code if line.strip() and not line.startswith("#")]) <= 40


def test_an_indexer_that_was_trained_selects_nearly_the_keys_of_most_weight(printed: Run) -> None:
    rows = re.findall(r"^([a-z ]+?) +recall (\S+), output off by (\S+)$", printed("selecting"), flags=re.MULTILINE)
    recall, error = ({name: float(row[k]) for name, *row in rows} for k in (0, 1))
    assert recall["untrained"] < recall["random keys"] + 0.05
    assert recall["random keys"] + 0.3 < recall["trained"] < recall["most weight"]
    assert recall["trained"] > 0.9 * recall["most weight"]
    assert error["most weight"] < error["trained"] < 0.6 * error["untrained"]


def test_newton_goes_further_down_than_gradients_alone_in_fewer_passes(printed: Run) -> None:
    rows = re.findall(r"(\d+) passes: loss \S+, gradient (\S+)$", printed("newton"), flags=re.MULTILINE)
    (*others, (passes, gradient)) = [(int(count), float(size)) for count, size in rows]
    assert len(others) == 2
    assert gradient < 1e-13 < min(size for _, size in others)
    assert passes < min(count for count, _ in others) / 2


def test_each_mistake_of_the_kernel_gets_its_diagnosis(printed: Run) -> None:
    text = printed("your_kernel")
    cases = dict(re.findall(r"^(no \w.*|mean .*):\n((?:  .*\n)+)", text, flags=re.MULTILINE))
    softmax = cases["no sum in softmax"]
    assert softmax.count("softmax correction") == 2
    assert "value  is right" in softmax
    assert re.search(r"key +it is 2\.82842712 times .* sqrt\(8\)", cases["no scale in d_key"])
    assert re.search(r"value +it is 0\.333333333 times .* 1/3", cases["mean over the batch"])


def test_a_pytorch_layer_agrees_with_the_reference_to_rounding(printed: Run) -> None:
    rows = re.findall(r"^(output|gradient of \w+) +(\S+) +(\S+)$", printed("torch_layer"), flags=re.MULTILINE)
    assert len(rows) == 10
    assert all(float(difference) <= 1e-13 * max(1.0, float(largest)) for _, largest, difference in rows)


def test_without_pytorch_the_example_says_what_to_install(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "examples" / "torch_layer.py"
    without = "import runpy, sys; sys.modules['torch'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", without, script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert not done.stdout  # the site would take it for a result
    assert done.stderr == "this example compares with PyTorch, which is not installed: pip install torch\n"


def test_a_long_sequence_takes_a_small_part_of_the_memory_of_its_scores(printed: Run) -> None:
    mib = dict(re.findall(r"^(peak memory|scores alone) +(\d+) MiB", printed("long_sequence"), flags=re.MULTILINE))
    assert int(mib["scores alone"]) == 1024
    assert int(mib["peak memory"]) < 128
