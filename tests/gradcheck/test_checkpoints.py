"""A checkpoint of others, or a damaged one: all of it is looked at before anything is measured or written."""

import json
import os
import re

import numpy as np
import pytest

from attention_np.gradcheck import Interrupted, check, saving
from attention_np.gradcheck.measuring.numerical import Parts

INPUTS = {"x": np.linspace(0.5, 2.0, 40), "y/z": np.linspace(1.0, 3.0, 6).reshape(2, 3)}


def forward(x, y):
    return np.sin(x).sum() * np.cos(y)


def backward(d, x, y):
    return (d * np.cos(y)).sum() * np.cos(x), -d * np.sin(x).sum() * np.sin(y)


@pytest.fixture
def path(tmp_path):
    """A checkpoint of a whole check."""
    path = tmp_path / "long.json"
    check(forward, backward, INPUTS, checkpoint=path)
    return path


@pytest.fixture(autouse=True)
def written_at_once(monkeypatch):
    monkeypatch.setattr(saving, "SAVE_EVERY", 0.0)


def refused_and_left_alone(path, message):
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message) as caught:
        check(forward, backward, INPUTS, checkpoint=path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def change(path, function):
    saved = json.loads(path.read_text())
    function(saved["checkpoint"]["slopes"])
    path.write_text(json.dumps(saved))


KEYS = ["x/complex-step/16/0", "x/complex-step/16/2", "y/z/complex-step/16/0"]
NO_SLOPES = [None, True, -1, 10**30, "x", "xxxxx", [], {}, [[]], 1e300, ["x"], [[]] * 5, [["float64", []]] * 5]


def test_the_checkpoint_that_is_damaged_below_is_fine(path):
    assert list(json.loads(path.read_text())["checkpoint"]["slopes"]) == sorted([*KEYS, "x/complex-step/16/1"])
    assert check(forward, backward, INPUTS, checkpoint=path).ok


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", NO_SLOPES, ids=repr)
def test_slopes_that_are_none_leave_the_file_as_it_is(path, key, value):
    change(path, lambda slopes: slopes.update({key: value}))
    refused_and_left_alone(path, f"is damaged at {key}: remove it$")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("number", [1, None, True, [], ["1.0"], "one", ""], ids=repr)
def test_a_number_that_is_none_leaves_the_file_as_it_is(path, key, part, number):
    change(path, lambda slopes: slopes[key][part][1].__setitem__(-1, number))
    refused_and_left_alone(path, f"is damaged at {key}: remove it$")


def test_slopes_of_other_entries_leave_the_file_as_it_is(path):
    for key, other in (
        ("x/complex-step/16/2", "x/complex-step/16/1"),
        ("x/complex-step/16/0", "y/z/complex-step/16/0"),
    ):
        saved = path.read_bytes()
        change(path, lambda slopes, key=key, other=other: slopes.update({key: slopes[other]}))
        refused_and_left_alone(path, f"is damaged at {key}: remove it$")
        path.write_bytes(saved)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "x",
        "x/complex-step/16/3",
        "x/complex-step/16/-1",
        "x/complex-step/0/0",
        "x/complex-step/-1/0",
        "x/complex-step/16/00",
        "x/complex-step/ 16/0",
        "x/complex-step/16/0/",
        "x/complex-step/١٦/0",
        "x/complex-step/16/" + "9" * 5000,
        "x/auto/16/0",
        "w/complex-step/16/0",
        "\x1b[2J/complex-step/16/0",
    ],
)
def test_slopes_of_nothing_that_is_measured_leave_the_file_as_it_is(path, key):
    change(path, lambda slopes: slopes.update({key: slopes[KEYS[0]]}))
    refused_and_left_alone(path, r"is damaged at [ -~]{0,100}: remove it$" if key.isascii() else "is damaged at ")


def test_a_name_that_is_there_twice_leaves_the_file_as_it_is(path):
    path.write_text(path.read_text().replace('"checkpoint": {', '"checkpoint": {}, "checkpoint": {'))
    refused_and_left_alone(path, "is not the checkpoint of a gradient check$")


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
    before = json.loads(path.read_text())["checkpoint"]["slopes"]
    assert check(forward, backward, INPUTS, checkpoint=path, memory=5000).ok
    after = json.loads(path.read_text())["checkpoint"]["slopes"]
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


def test_a_question_of_the_same_numbers_in_another_order_or_dtype_is_another():
    x = np.array([1.0, 2.0])
    questions = [[x], [x[::-1]], [x, x], [x.astype(np.float32)], [x.astype(np.longdouble)], [1.0, 2.0], ["1.0", 2.0]]
    assert len({saving.fingerprint(question) for question in questions}) == len(questions)


PARTS = Parts({"x": 40, "y/z": 6}, ("complex-step", "central"), 3)


@pytest.mark.parametrize(
    ("key", "sizes"),
    [
        ("x/central/16/0", (48, 16, 16, 16, 16)),
        ("x/central/16/2", (24, 8, 8, 8, 8)),
        ("y/z/complex-step/16/0", (18, 6, 6, 6, 6)),
        ("x/central/39/1", (3, 1, 1, 1, 1)),
    ],
)
def test_a_part_has_a_slope_for_each_entry_and_cotangent_and_four_numbers_more_for_each_entry(key, sizes):
    assert PARTS.sizes(key) == sizes


@pytest.mark.parametrize(
    "key", ["x/central/16/3", "x/central/16/-1", "x/auto/16/0", "w/central/1/0", "x/central/016/0"]
)
def test_of_a_part_that_there_is_not_it_is_said_so(key):
    with pytest.raises(ValueError, match=r"^there is no such part$"):
        PARTS.sizes(key)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ((3, ["1.0"]), "it is of no dtype of numbers"),
        (("int64", ["1.0"]), "it is of no dtype of numbers"),
        (("float64", "1"), "there is no number for each entry"),
        (("float64", ["1.0", "2.0"]), "there is no number for each entry"),
        (("float64", [1.0]), "there is no number for each entry"),
    ],
)
def test_what_is_kept_of_an_array_is_its_dtype_and_a_word_for_each_number(kept, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        saving._array(kept, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "longdouble", "complex64"])
def test_a_number_that_is_kept_comes_back_to_the_last_bit(dtype):
    x = np.array([1 / np.longdouble(3), -7, np.inf]).astype(dtype)
    kept = saving._array((x.dtype.name, [str(number) for number in x]), 3)
    np.testing.assert_array_equal(kept, x)
    assert kept.dtype == x.dtype


def test_an_interruption_says_where_its_report_is():
    stopped = Interrupted(report=None)
    assert str(stopped) == "the check was interrupted: its report is in the attribute called report"


def test_a_checkpoint_is_written_when_ten_seconds_have_gone_by_and_not_before(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(saving, "SAVE_EVERY", 10.0)
    monkeypatch.setattr(saving.time, "monotonic", lambda: clock[-1])
    path = tmp_path / "kept"
    kept = saving.Checkpoint(path, "question", PARTS.sizes)
    written = []
    for now in (100.0, 110.0, 111.0, 112.0, 120.0, 122.0):
        clock.append(now)
        path.unlink(missing_ok=True)
        kept.put("x/central/16/0", [np.ones(2)])
        written.append(path.exists())
    assert written == [False, False, True, False, False, True]


def test_a_path_that_is_none_is_refused():
    with pytest.raises(TypeError, match=r"^checkpoint must be a path, not 3$"):
        saving.Checkpoint(3, "question", PARTS.sizes)
