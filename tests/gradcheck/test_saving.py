"""What is kept in files: reports, checkpoints of checks, and what is none or damaged."""

import io
import json
import os
import re
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import each, some_of

from attention_np.gradcheck import METHODS, GradientError, Report, check, saving
from attention_np.gradcheck.findings import Details, Entry, Escape
from attention_np.gradcheck.saving import Checkpoint

from .programs import bilinear, bilinear_backward, normal, square_inputs, wrong_backward
from .reports import EVERYTHING, HOLDS, SAMPLE, WRONG, compared, equal_to_the_bit, wrong_in

SAVED = Path(__file__).parent / "saved"


def test_a_report_that_is_saved_and_loaded_is_the_same(tmp_path):
    path = tmp_path / "report.json"
    EVERYTHING.save(path)
    loaded = Report.load(path)
    assert loaded == EVERYTHING
    assert str(loaded) == str(EVERYTHING)
    assert all(entry.details is None for entry in loaded)
    assert isinstance(loaded["x"].worst[0], Entry)
    assert isinstance(loaded["x"].escape, Escape)
    assert isinstance(loaded["x"].worst_index, tuple)
    assert hash(loaded) == hash(EVERYTHING)


@each("shape", [(), (1,), (0,), (0, 3), (3, 0), (2, 3), (2, 1, 3, 2)])
def test_arrays_that_are_saved_are_loaded_bit_for_bit(tmp_path, shape):
    rng = np.random.default_rng(0)
    analytic, numerical = rng.standard_normal((2, *shape)) * 10.0 ** rng.integers(-300, 300, (2, *shape))
    numerical.flat[:1] = -0.0
    analytic.flat[1:4] = np.nan, np.inf, -np.inf
    report = compared("x", analytic, numerical, np.abs(rng.standard_normal(shape)), looked_at=rng.random(shape) > 0.2)
    Report((report,)).save(tmp_path / "report", details=True)
    loaded = Report.load(tmp_path / "report")["x"].details
    assert isinstance(loaded, Details)
    for before, after in zip(report.details, loaded, strict=True):
        assert after.shape == shape
        assert after.dtype.kind == before.dtype.kind
        assert np.array_equal(after, before, equal_nan=True)
        assert np.array_equal(np.signbit(after), np.signbit(before))


def test_arrays_of_single_precision_are_loaded_with_the_same_values(tmp_path):
    report = compared("x", np.ones(3), np.ones(3))
    single = report.details._replace(analytic=np.array([0.1, 0.2, 0.3], np.float32))
    Report((replace(report, details=single),)).save(tmp_path / "report", details=True)
    loaded = Report.load(tmp_path / "report")["x"].details
    assert (loaded.analytic == single.analytic).all()


def test_a_report_of_an_earlier_version_is_read():
    assert Report.load(SAVED / "report.json") == EVERYTHING
    x, y = Report.load(SAVED / "details.json")
    np.testing.assert_array_equal(x.details.analytic, [[1, np.nan], [np.inf, 0]])
    np.testing.assert_array_equal(x.details.numerical, [[1, 2], [-np.inf, np.nan]])
    np.testing.assert_array_equal(x.details.verdict, [[0, 0], [1, 3]])
    assert np.signbit(x.details.analytic[1, 1])
    assert y.escape == SAMPLE
    assert y.details.floor.shape == (3, 4)


def test_saving_puts_the_new_file_whole_in_the_place_of_the_old_also_behind_a_link_and_leaves_nothing_else(tmp_path):
    path, link = tmp_path / "report.json", tmp_path / "link"
    Report((HOLDS,)).save(str(path))
    link.symlink_to(path)
    with path.open() as reader:
        Report((WRONG,)).save(link)
        assert json.load(reader)["inputs"][0]["name"] == HOLDS.name  # who reads the old one reads all of it
    assert Report.load(str(path)) == Report((WRONG,))
    assert link.is_symlink()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link", "report.json"]


def test_a_report_that_cannot_be_saved_leaves_the_old_one_as_it_was(tmp_path):
    path = tmp_path / "report.json"
    Report((HOLDS,)).save(path)
    with pytest.raises(TypeError):
        Report((replace(HOLDS, note=object()),)).save(path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        Report((HOLDS,)).save(tmp_path / "folder")
    assert Report.load(path) == Report((HOLDS,))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "report.json"]


def saved_with(change):
    """The JSON of a report, changed."""
    report = Report((replace(wrong_in((1, 2)), escape=SAMPLE),))
    value = json.loads(json.dumps({**saving.HEADER, **report.to_dict(details=True)}))
    change(value)
    return json.dumps(value)


def with_input(**values):
    return saved_with(lambda value: value["inputs"][0].update(values))


def with_details(part, **values):
    return saved_with(lambda value: value["inputs"][0]["details"][part].update(values))


def with_escape(**values):
    return saved_with(lambda value: value["inputs"][0]["escape"].update(values))


def nested(depth):
    return [nested(depth - 1)] if depth else 1


STRANGE = {
    "nothing": ("", "Expecting value"),
    "not text": (b"\xff\xfe\x00", "codec"),
    "a number": ("1", 'it has no "format"'),
    "another version": (saved_with(lambda value: value.update(version=2)), "its version is 2, and only 1 can be read"),
    "no inputs": (saved_with(lambda value: value.pop("inputs")), "inputs is missing"),
    "inputs that are no list": (
        saved_with(lambda value: value.update(inputs={})),
        "inputs: a list is expected, not {}",
    ),
    "an input that is none": (saved_with(lambda value: value.update(inputs=[3])), "inputs: an object is expected"),
    "nothing reported": (saved_with(lambda value: value.update(inputs=[])), "it reports on no input$"),
    "another key": (saved_with(lambda value: value.update(extra=1)), "'extra' is unknown"),
    "an input without its name": (saved_with(lambda value: value["inputs"][0].pop("name")), "inputs: name is missing"),
    "a name that is none": (with_input(name=None), "inputs: name: a string is expected, not None"),
    "an answer that is none": (with_input(ok=1), "inputs: ok: true or false is expected, not 1"),
    "an error that is none": (with_input(max_relative_error="1"), "max_relative_error: a number is expected, not '1'"),
    "a number too large": (with_input(analytic=10**400), "analytic: a number is too large"),
    "a broken size": (with_input(size=1.5), "size: a whole number that is not negative is expected, not 1.5"),
    "an index that is none": (with_input(worst_index=["0"]), "worst_index: a whole number"),
    "an entry that is none": (with_input(worst=[[0, 1, 2]]), "worst: an object is expected, with index"),
    "a sample that is none": (with_input(escape={}), "escape: entries is missing"),
    "a long string for a number": (with_input(floor=1000 * "x"), r"floor: a number is expected, not 'x{39}\.\.\.$"),
    "values of another shape": (with_details("floor", shape=[4, 3]), "floor: .* as the shape says, with 4 along"),
    "values too deep": (with_details("floor", shape=[3]), "details: floor: a number is expected"),
    "values that are no numbers": (with_details("analytic", shape=[1], values=["1"]), "a number is expected, not '1'"),
    "an enormous shape": (with_details("analytic", shape=[0, 10**30], values=[]), "details: analytic: "),
    "axes without end": (with_details("floor", shape=900 * [1], values=nested(900)), "more than 32 axes"),
    "an endless name": (with_input(name=2000 * "x"), "name: a name of more than 1000 characters"),
    "a sample of nothing": (with_escape(entries=0, size=0), "escape: 0 entries cannot have been looked at of 0"),
    "a sample larger than all": (with_escape(entries=3, size=2), "escape: 3 entries cannot have been looked at of 2"),
    "arrays of two shapes": (with_details("floor", shape=[1], values=[0]), "details: the arrays have different shapes"),
    "a version of another form": (
        saved_with(lambda value: value.update(version=nested(900))),
        r"version is \[{40}\.\.\.,",
    ),
    "a verdict that is none": (with_details("verdict", shape=[1], values=[4]), "verdict: 4 is no verdict"),
}


@each(("content", "reason"), STRANGE.values())
def test_a_file_that_is_no_report_is_refused_by_its_path_with_the_reason(tmp_path, content, reason):
    path = tmp_path / "a file.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=reason) as raised:
        Report.load(path)
    assert str(raised.value).startswith(f"{path} is not a saved gradient report: ")
    assert type(raised.value) is ValueError


def test_the_report_that_the_strange_ones_are_made_from_is_fine(tmp_path):
    (tmp_path / "report").write_text(with_input())
    assert Report.load(tmp_path / "report")["x"].details is not None


@each(
    "sample",
    [
        {"entries": 10**12, "size": 10**13, "directions": 0},
        {"entries": 10**15, "size": 2**63 - 1, "directions": 2**62},
        {"threshold": None, "norm": None},
        {"threshold": -1.0, "norm": -1.0},
        {"threshold": "Infinity", "norm": "Infinity"},
        {"threshold": 1e308, "norm": 1e-308},
    ],
)
def test_a_report_that_can_be_loaded_can_be_printed_at_once(tmp_path, sample):
    path = tmp_path / "report"
    path.write_text(with_escape(**sample))
    started = time.process_time()
    report = Report.load(path)
    assert "looked at" in str(report)
    assert "looked at" in report._repr_html_()
    assert time.process_time() - started < 1.0


def test_a_report_gives_no_orders_to_a_terminal_or_a_browser(tmp_path):
    path = tmp_path / "report"
    path.write_text(with_input(name="\x1b[2J<script>", note="\ud800\u202e", diagnosis="\x1b]0;title\x07<img src=x>"))
    report = Report.load(path)
    assert str(report).replace("\n", "").isprintable()
    assert r"\x1b[2J<script>" in str(report)
    assert "<script>" not in report._repr_html_()
    assert "<img" not in report._repr_html_()


INPUTS = {"x": np.linspace(0.5, 2.0, 40), "y/z": np.linspace(1.0, 3.0, 6).reshape(2, 3)}


def forward(x, y):
    return np.sin(x).sum() * np.cos(y)


def backward(d, x, y):
    return (d * np.cos(y)).sum() * np.cos(x), -d * np.sin(x).sum() * np.sin(y)


@pytest.fixture(scope="module")
def of_a_whole_check(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "long.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "SAVE_EVERY", 0.0)
        check(forward, backward, INPUTS, checkpoint=path)
    return path.read_bytes()


@pytest.fixture
def path(tmp_path, written_at_once, of_a_whole_check):  # noqa: ARG001
    """A checkpoint of a whole check."""
    path = tmp_path / "long.npz"
    path.write_bytes(of_a_whole_check)
    return path


@pytest.fixture
def written_at_once(monkeypatch):
    monkeypatch.setattr(saving, "SAVE_EVERY", 0.0)


def refused_and_left_alone(path, message):
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message) as caught:
        check(forward, backward, INPUTS, checkpoint=path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def change(path, function):
    """Let a function change the numbers by which the header refers to arrays, and the arrays."""
    with np.load(path) as archive:
        header, *arrays = (archive[f"arr_{k}"] for k in range(len(archive.files)))
    saved = json.loads(header.tobytes())
    function(saved["checkpoint"]["slopes"], arrays)
    with path.open("wb") as file:
        np.savez(file, np.frombuffer(json.dumps(saved).encode(), np.uint8), *arrays)


def slopes_in(path):
    """The arrays that are kept under each key, as lists."""
    found = {}
    change(
        path, lambda slopes, arrays: found.update({key: [arrays[k].tolist() for k in slopes[key]] for key in slopes})
    )
    return found


KEYS = ["x/complex-step/16/0", "x/complex-step/16/2", "y/z/complex-step/16/0"]

NO_SLOPES = [None, True, -1, 10**30, "x", [], [[]], [0] * 3, [0] * 4, [99] * 4, [0, 1, 2, 4.0], [["float64", []]] * 4]


def test_the_checkpoint_that_is_damaged_below_is_fine(path):
    assert list(slopes_in(path)) == sorted([*KEYS, "x/complex-step/16/1"])
    assert check(forward, backward, INPUTS, checkpoint=path).ok


def with_slopes(key, value):
    return lambda slopes, _: slopes.update({key: value})


def with_slopes_of(key, other):
    return lambda slopes, _: slopes.update({key: slopes[other]})


def with_array(part, change):
    def replaced(slopes, arrays):
        place = slopes[KEYS[0]][part]
        arrays[place] = change(arrays[place])

    return replaced


SOMETHING_ELSE = ["int64", "bool", "S8", "U8", "M8[s]", "f8,f8", "V8"]

INSIDE = [
    *((key, with_slopes(key, value)) for key in KEYS for value in NO_SLOPES),
    *((KEYS[0], with_array(0, lambda x, dtype=d: np.zeros(x.shape, dtype))) for d in SOMETHING_ELSE),
    *((KEYS[0], with_array(part, lambda x: x[1:])) for part in range(4)),
    (KEYS[1], with_slopes_of(KEYS[1], "x/complex-step/16/1")),
]


@each(("key", "damage"), INSIDE)
def test_a_checkpoint_that_is_damaged_inside_is_refused_by_the_place_and_left_as_it_is(
    path, of_a_whole_check, key, damage
):
    path.write_bytes(of_a_whole_check)
    change(path, damage)
    refused_and_left_alone(path, rf"^checkpoint {re.escape(str(path))} is damaged at {key}: remove it$")


def member(content):
    """An archive with one member, as it is, and the header of a report."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if content is None else zipfile.ZIP_STORED) as archive:
        for name, inside in (("arr_0.npy", b"{}" if content is None else content), ("arr_1.npy", bytes(10**6))):
            archive.writestr(name, inside)
    return file.getvalue()


def array_of(shape, dtype="<f8"):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


def test_a_file_that_cannot_be_read_is_refused_before_anything_is_measured(tmp_path):
    loop, pipe, folder = tmp_path / "loop", tmp_path / "pipe", tmp_path / "folder"
    loop.symlink_to("loop")
    os.mkfifo(pipe)
    folder.mkdir()
    for path, reason in (
        (loop, "cannot be read: Too many levels of symbolic links"),
        (pipe, "is not the checkpoint of a gradient check"),
        (folder, "is a folder, not a file"),
        (tmp_path / ("x" * 300), "cannot be read: File name too long"),
        (tmp_path / "a\0b", "is not the checkpoint of a gradient check"),
    ):
        with pytest.raises(ValueError, match=rf"^checkpoint {re.escape(str(path))} {reason}$"):
            check(forward, backward, INPUTS, checkpoint=path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "loop", "pipe"]


def test_slopes_in_batches_of_other_sizes_are_kept_as_they_are(path):
    before = slopes_in(path)
    assert check(forward, backward, INPUTS, checkpoint=path, memory=5000).ok
    after = slopes_in(path)
    assert {key: after[key] for key in before} == before
    assert check(forward, backward, INPUTS, checkpoint=path).ok


def test_the_bytes_that_extended_precision_does_not_use_are_no_part_of_the_question():
    x = np.array([1.0, -2.0], np.longdouble)
    other = x.copy()
    if np.finfo(np.longdouble).nmant != 63:
        pytest.skip("this machine has no extended precision of 80 bits")
    other.view(np.uint8).reshape(2, -1)[:, 10:] ^= 0xFF
    assert x.tobytes() != other.tobytes()
    np.testing.assert_array_equal(x, other)
    assert saving.fingerprint([x]) == saving.fingerprint([other])
    assert saving.fingerprint([x]) != saving.fingerprint([-x])


@each("dtype", ["float32", "float64", "longdouble", "complex64"])
def test_a_number_that_is_kept_comes_back_to_the_last_bit(tmp_path, dtype):
    x = np.array([1 / np.longdouble(3), -7, np.inf]).astype(dtype)
    keep = Checkpoint(tmp_path / dtype, "question")
    keep.put("key", [x])
    keep.save([HOLDS])
    (found,) = Checkpoint(tmp_path / dtype, "question").get("key", [(3,)])
    np.testing.assert_array_equal(found, x, strict=True)


def test_a_checkpoint_is_written_when_ten_seconds_have_gone_by_and_not_before(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(saving, "SAVE_EVERY", 10.0)
    monkeypatch.setattr(saving.time, "monotonic", lambda: clock[-1])
    path = tmp_path / "kept"
    kept = Checkpoint(path, "question")
    written = []
    for now in (100.0, 110.0, 111.0, 112.0, 120.0, 122.0):
        clock.append(now)
        path.unlink(missing_ok=True)
        kept.put("x/central/16/0", [np.ones(2)])
        written.append(path.exists())
    assert written == [False, False, True, False, False, True]


class Interrupting:
    """A function that something stops after so many calls."""

    def __init__(self, function=bilinear, after=10**9, stop=KeyboardInterrupt):
        self.function, self.stop = function, stop
        self.calls, self.after = 0, after

    def __call__(self, *arrays):
        self.calls += 1
        if self.calls > self.after:
            raise self.stop
        return self.function(*arrays)


WIDE = square_inputs(8)


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory):
    """What is in the file that an interrupted check has left, and how many calls the whole check takes."""
    path, whole = tmp_path_factory.mktemp("left") / "long.json", Interrupting()
    check(whole, wrong_backward, WIDE)
    with pytest.raises(KeyboardInterrupt):
        check(Interrupting(after=int(0.7 * whole.calls)), wrong_backward, WIDE, checkpoint=path)
    return path.read_bytes(), whole.calls


@pytest.fixture
def interrupted(tmp_path, left_behind):
    """The same as a file of its own."""
    content, calls = left_behind
    path = tmp_path / "long.json"
    path.write_bytes(content)
    return path, calls


@pytest.mark.parametrize("method", METHODS)
@each("share", *some_of([0.5, 0.1, 0.99], 3))
def test_a_check_that_was_interrupted_anywhere_goes_on_where_it_was_and_reports_the_same(tmp_path, method, share):
    inputs, path, whole, rest, again = square_inputs(6), tmp_path / "long.json", *(Interrupting() for _ in range(3))
    report = check(whole, wrong_backward, inputs, method=method)
    with pytest.raises(KeyboardInterrupt):
        check(Interrupting(after=int(share * whole.calls)), wrong_backward, inputs, method=method, checkpoint=path)
    assert [file.name for file in tmp_path.iterdir()] == ["long.json"]
    for function in (rest, again):
        equal_to_the_bit(check(function, wrong_backward, inputs, method=method, checkpoint=path), report)
    assert again.calls <= rest.calls <= whole.calls + 1  # which tells the question from others
    assert all(entry.details is None for entry in Report.load(path))
    assert share < 0.5 or rest.calls <= whole.calls - inputs["x"].size  # the entries that had been looked at
    assert Report.load(path) == report
    path.unlink()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
def test_the_file_of_a_check_that_stops_before_anything_is_measured_is_no_report_of_success(tmp_path, stop):
    path, inputs = tmp_path / "long.json", {"x": normal(50)}
    with pytest.raises(stop) as raised:  # in the midst of the probes
        check(Interrupting(np.sin, 9, stop), lambda d, x: d * np.cos(x), inputs, checkpoint=path)
    report = Report.load(path)
    assert report["x"].verdict == "unfinished"
    with pytest.raises(GradientError):
        report.raise_if_failed()
    if stop is KeyboardInterrupt:
        assert str(raised.value) == "the check was interrupted: its report is in the attribute called report"
        assert raised.value.report == report
    assert check(np.sin, lambda d, x: d * np.cos(x), inputs, checkpoint=path).ok


def test_what_is_done_outlasts_an_error_of_the_function(tmp_path):
    whole, rest = Interrupting(), Interrupting()
    check(whole, bilinear_backward, WIDE)
    with pytest.raises(MemoryError):
        check(
            Interrupting(after=whole.calls - 20, stop=MemoryError),
            bilinear_backward,
            WIDE,
            checkpoint=tmp_path / "long",
        )
    check(rest, bilinear_backward, WIDE, checkpoint=tmp_path / "long")
    assert rest.calls < 0.75 * whole.calls


def test_a_check_goes_on_with_another_executor_and_another_memory_limit(interrupted):
    path, _ = interrupted
    report, copy = check(bilinear, wrong_backward, WIDE), path.read_bytes()
    with ThreadPoolExecutor(2) as pool:
        for options in ({"executor": pool}, {"memory": 50_000}):
            path.write_bytes(copy)
            assert check(bilinear, wrong_backward, WIDE, checkpoint=path, **options) == report


@each(
    "other",
    [
        {"inputs": WIDE | {"y": 2 * WIDE["y"]}},
        {"inputs": {"x": WIDE["x"], "z": WIDE["y"]}},
        {"rng": 1},
        {"method": "central"},
        {"max_entries": 50},
        {"vectorized": ["x"]},
        {"forward": lambda x, y: bilinear(x, y) + 1},
    ],
)
def test_the_checkpoint_of_another_question_is_refused_and_left_alone(interrupted, other):
    path, _ = interrupted
    before = path.read_bytes()
    said = "belongs to another check, with other inputs, outputs, seed or options: remove it, or name another file"
    with pytest.raises(ValueError, match=rf"^checkpoint {re.escape(str(path))} {said}$"):
        check(**{"forward": bilinear, "backward": wrong_backward, "inputs": WIDE} | other, checkpoint=path)
    assert path.read_bytes() == before


NO_ARCHIVES = [b"", b"{", b"[]", b"3", b'"x"', b"\xff\xfe\x00", b'{"format": "another"}', b"input  method\nx yes\n"]

NO_ARCHIVES += [b"null", b"PK", b"PK\x05\x06" + bytes(18), member(None), member(b"no array")]  # of nothing; compressed

NO_ARCHIVES += [member(array_of(shape)) for shape in ("(1000000000000000,)", "(" * 5000, "__import__('os')")]

NO_ARCHIVES += [member(array_of("(10,)", "|O")), member(array_of("(2,)", "|u1") + b"{}")]


@each("content", NO_ARCHIVES)
def test_a_file_that_is_neither_a_checkpoint_nor_a_report_is_refused_by_name_and_left_alone(tmp_path, content):
    path = tmp_path / "long.npz"
    path.write_bytes(content)
    refused_and_left_alone(path, "is not the checkpoint of a gradient check$")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is not a saved gradient report: "):
        Report.load(path)


def test_a_saved_report_and_a_file_cut_short_are_no_checkpoints(path):
    whole = path.read_bytes()
    Report((HOLDS,)).save(path)
    for content in (path.read_bytes(), *(whole[: int(part * len(whole))] for part in (0.1, 0.5, 0.99))):
        path.write_bytes(content)
        refused_and_left_alone(path, "is not the checkpoint of a gradient check$")


def test_a_path_that_is_none_and_a_folder_that_is_not_there_are_told_before_anything_is_measured(tmp_path):
    path, counted = tmp_path / "nowhere" / "long.json", Interrupting(after=10)
    with pytest.raises(ValueError, match=rf"^checkpoint {re.escape(str(path))}: there is no folder {path.parent}$"):
        check(counted, bilinear_backward, WIDE, checkpoint=path)
    with pytest.raises(TypeError, match=r"^checkpoint must be a path, not 3$"):
        Checkpoint(3, "question")


def test_a_checkpoint_is_never_half_written(interrupted, monkeypatch):
    path, calls = interrupted
    before = path.read_bytes()

    def full(self, content):
        with self.open("wb") as file:
            file.write(content[:100])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space left"):
        check(bilinear, wrong_backward, WIDE, checkpoint=path)
    monkeypatch.undo()
    assert [file.name for file in path.parent.iterdir()] == ["long.json"]
    assert path.read_bytes() == before
    rest = Interrupting()
    check(rest, wrong_backward, WIDE, checkpoint=path)
    assert rest.calls < calls


@each("dtype", ["float32", "float64", "longdouble"])
def test_a_question_with_another_last_digit_shape_order_or_dtype_is_another_question(dtype):
    x = np.array([1.0, 2.0], dtype)
    assert saving.fingerprint([x]) == saving.fingerprint([x.copy()])
    questions = [[x], [np.nextafter(x, 3)], [x.reshape(2, 1)], [x[::-1]], [x, x], [x.astype("float16")], [1.0, 2.0]]
    assert len({saving.fingerprint(question) for question in [*questions, ["1.0", 2.0]]}) == len(questions) + 1


@each("changes", [{"name": 1000 * "x"}, *({"escape": (k, n)} for k, n in ((1, 1), (5, 5), (2, 5)))])
def test_a_report_with_the_longest_name_or_the_largest_sample_is_read_again(tmp_path, changes):
    if "escape" in changes:
        changes = {"escape": Escape(*changes["escape"], 8, 1e-12, 1.0)}
    report = Report((replace(HOLDS, **changes),))
    report.save(tmp_path / "report")
    assert Report.load(tmp_path / "report") == report
