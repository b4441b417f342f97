import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attention_np.gradcheck import Report, saving
from attention_np.gradcheck.findings import Details, Entry, Escape

from .reports import EVERYTHING, HOLDS, SAMPLE, WRONG, compared, wrong_in

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


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (3, 0), (2, 3), (2, 1, 3, 2)])
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


def test_saving_puts_the_new_file_in_the_place_of_the_old_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "report.json"
    Report((HOLDS,)).save(str(path))
    Report((WRONG,)).save(path)
    assert Report.load(str(path)) == Report((WRONG,))
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


def test_who_reads_the_old_file_while_the_new_one_is_saved_reads_all_of_the_old(tmp_path):
    path = tmp_path / "report.json"
    Report((HOLDS,)).save(path)
    with path.open() as reader:
        Report((WRONG,)).save(path)
        assert json.load(reader)["inputs"][0]["name"] == HOLDS.name


def test_what_a_link_points_to_is_replaced_and_not_the_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "report")
    Report((HOLDS,)).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Report.load(tmp_path / "report") == Report((HOLDS,))


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
    "no JSON": ("input  method  holds", "Expecting value"),
    "not text": (b"\xff\xfe\x00", "codec"),
    "a number": ("1", 'it has no "format"'),
    "a list": ("[]", 'it has no "format"'),
    "another object": ("{}", 'it has no "format"'),
    "a name twice": (with_input().replace('"version": 1', '"version": 2, "version": 1'), "'version' is there twice"),
    "NaN": (with_input().replace("100000", "NaN"), "JSON has no NaN"),
    "deep nesting": (100_000 * "[", "nested too deeply"),
    "another version": (saved_with(lambda value: value.update(version=2)), "its version is 2, and only 1 can be read"),
    "no inputs": (saved_with(lambda value: value.pop("inputs")), "inputs is missing"),
    "inputs that are no list": (
        saved_with(lambda value: value.update(inputs={})),
        "inputs: a list is expected, not {}",
    ),
    "an input that is none": (saved_with(lambda value: value.update(inputs=[3])), "inputs: an object is expected"),
    "another key": (saved_with(lambda value: value.update(extra=1)), "'extra' is unknown"),
    "an input without its name": (saved_with(lambda value: value["inputs"][0].pop("name")), "inputs: name is missing"),
    "a name that is none": (with_input(name=None), "inputs: name: a string is expected, not None"),
    "an answer that is none": (with_input(ok=1), "inputs: ok: true or false is expected, not 1"),
    "an error that is none": (with_input(max_relative_error="1"), "max_relative_error: a number is expected, not '1'"),
    "a number too large": (with_input(analytic=10**400), "analytic: a number is too large"),
    "a true number": (with_input(analytic=True), "analytic: a number is expected, not True"),
    "a broken size": (with_input(size=1.5), "size: a whole number that is not negative is expected, not 1.5"),
    "a negative size": (with_input(size=-1), "size: a whole number that is not negative is expected, not -1"),
    "a true size": (with_input(size=True), "size: a whole number that is not negative is expected, not True"),
    "an index that is none": (with_input(worst_index=["0"]), "worst_index: a whole number"),
    "an entry that is none": (with_input(worst=[[0, 1, 2]]), "worst: an object is expected, with index"),
    "a sample that is none": (with_input(escape={}), "escape: entries is missing"),
    "a long string for a number": (with_input(floor=1000 * "x"), r"floor: a number is expected, not 'x{39}\.\.\.$"),
    "values of another shape": (with_details("floor", shape=[4, 3]), "details: floor: the values are not nested as"),
    "values too deep": (with_details("floor", shape=[3]), "details: floor: a number is expected"),
    "values that are no numbers": (with_details("analytic", shape=[1], values=["1"]), "a number is expected, not '1'"),
    "an enormous shape": (with_details("analytic", shape=[0, 10**30], values=[]), "details: analytic: "),
    "an infinity in digits": (with_input().replace("100000", "1e999"), "a number is too large"),
    "a number of many digits": (with_input().replace("100000", 10**6 * "9"), "a number is too large"),
    "a size beyond all arrays": (with_input(size=2**63), "size: a number is too large"),
    "more axes than arrays have": (with_details("floor", shape=33 * [1], values=nested(33)), "more than 32 axes"),
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


@pytest.mark.parametrize(("content", "reason"), STRANGE.values(), ids=STRANGE)
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


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "report")
    with pytest.raises(ValueError, match=r"it is not a file$"):
        Report.load(tmp_path / "report")


@pytest.mark.parametrize(
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


def test_a_file_that_is_not_there_is_no_strange_report(tmp_path):
    with pytest.raises(FileNotFoundError):
        Report.load(tmp_path / "report")
