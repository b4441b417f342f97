"""A checkpoint of others, or a damaged one: all of it is looked at before anything is measured or written."""

import io
import json
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from attention_np.gradcheck import Interrupted, Report, check, saving
from attention_np.gradcheck.measuring.numerical import Parts
from attention_np.gradcheck.saving import Checkpoint

from .reports import HOLDS

INPUTS = {"x": np.linspace(0.5, 2.0, 40), "y/z": np.linspace(1.0, 3.0, 6).reshape(2, 3)}


def forward(x, y):
    return np.sin(x).sum() * np.cos(y)


def backward(d, x, y):
    return (d * np.cos(y)).sum() * np.cos(x), -d * np.sin(x).sum() * np.sin(y)


@pytest.fixture
def path(tmp_path):
    """A checkpoint of a whole check."""
    path = tmp_path / "long.npz"
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
NO_SLOPES = [None, True, -1, 10**30, "x", "xxxxx", [], {}, [[]], 1e300, ["x"], [[]] * 5, [0] * 4, [0] * 5, [99] * 5]
NO_SLOPES += [[-1, 1, 2, 3, 4], [0, 1, 2, 3, True], [0, 1, 2, 3, 4.0], [["float64", []]] * 5]


def test_the_checkpoint_that_is_damaged_below_is_fine(path):
    assert list(slopes_in(path)) == sorted([*KEYS, "x/complex-step/16/1"])
    assert check(forward, backward, INPUTS, checkpoint=path).ok


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", NO_SLOPES, ids=repr)
def test_slopes_that_are_none_leave_the_file_as_it_is(path, key, value):
    change(path, lambda slopes, _: slopes.update({key: value}))
    refused_and_left_alone(path, f"is damaged at {key}: remove it$")


@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("dtype", ["int64", "bool", "S8", "U8", "M8[s]", "f8,f8", "V8"])
def test_an_array_of_something_else_leaves_the_file_as_it_is(path, part, dtype):
    def replaced(slopes, arrays):
        arrays[slopes[KEYS[0]][part]] = np.zeros(arrays[slopes[KEYS[0]][part]].shape, dtype)

    change(path, replaced)
    refused_and_left_alone(path, f"is damaged at {KEYS[0]}: remove it$")


@pytest.mark.parametrize("part", range(5))
def test_an_array_of_other_entries_leaves_the_file_as_it_is(path, part):
    def cut(slopes, arrays):
        arrays[slopes[KEYS[0]][part]] = arrays[slopes[KEYS[0]][part]][1:]

    change(path, cut)
    refused_and_left_alone(path, f"is damaged at {KEYS[0]}: remove it$")


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


@pytest.mark.parametrize(
    "content",
    [
        b"PK",
        b"PK\x05\x06" + bytes(18),  # an archive of nothing
        member(None),  # which is compressed
        member(b"no array"),
        member(array_of("(1000000000000000,)")),
        member(array_of("(10,)", "|O")),
        member(array_of("(" * 5000)),
        member(array_of("__import__('os')")),
        member(array_of("(2,)", "|u1") + b"{}"),
    ],
    ids=lambda content: content[:2],
)
def test_an_archive_that_is_no_checkpoint_is_refused_by_name(tmp_path, content):
    path = tmp_path / "long.npz"
    path.write_bytes(content)
    refused_and_left_alone(path, "is not the checkpoint of a gradient check$")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is not a saved gradient report: "):
        Report.load(path)


OLD = Path(__file__).parent / "saved" / "checkpoint.json"
OLD_INPUTS = {"x": np.arange(1.0, 21.0), "y/z": np.arange(20.0, 0.0, -1.0)}


def of_old(path, counted=lambda: None):
    def product(x, y):
        counted()
        return x * y * y

    return check(product, lambda d, x, y: (d * y * y, 2 * d * x * y), OLD_INPUTS, checkpoint=path)


def test_an_interrupted_check_of_an_earlier_version_goes_on_where_it_was(tmp_path):
    path, calls, whole = tmp_path / "long", [], []
    path.write_bytes(OLD.read_bytes())
    assert not Report.load(path).ok
    of_old(None, lambda: whole.append(1))
    report = of_old(path, lambda: calls.append(1))
    assert report.ok
    assert len(calls) <= len(whole) - 39  # of 40 entries, of each of which one slope was kept
    assert Report.load(path) == report
    assert path.read_bytes().startswith(b"PK")


@pytest.mark.parametrize(
    "damage",
    [
        lambda slopes: slopes[:-1],
        lambda _: [],
        lambda _: None,
        lambda _: 7,
        lambda _: [0, 1, 2, 3, 4],
        lambda slopes: [["float64", ["1.0"]], *slopes[1:]],
        lambda slopes: [["float64", ["one", *slopes[0][1][1:]]], *slopes[1:]],
        lambda slopes: [["float64", [1.0, *slopes[0][1][1:]]], *slopes[1:]],
        lambda slopes: [["float64", [None, *slopes[0][1][1:]]], *slopes[1:]],
        lambda slopes: [["int", *slopes[0][1:]], *slopes[1:]],
        lambda slopes: [["no dtype", *slopes[0][1:]], *slopes[1:]],
        lambda slopes: [["S999999999", *slopes[0][1:]], *slopes[1:]],
        lambda slopes: [["O", *slopes[0][1:]], *slopes[1:]],
        lambda slopes: [["(99999,99999)f8", *slopes[0][1:]], *slopes[1:]],
        lambda slopes: [["(" * 5000, *slopes[0][1:]], *slopes[1:]],
        lambda slopes: [[None, *slopes[0][1:]], *slopes[1:]],
        lambda slopes: [["uint8", ["300"] * len(slopes[0][1])], *slopes[1:]],
        lambda slopes: [["float64", "1" * len(slopes[0][1])], *slopes[1:]],
        lambda slopes: [slopes[0][:1], *slopes[1:]],
    ],
)
def test_a_checkpoint_of_an_earlier_version_that_is_damaged_inside_is_refused(tmp_path, damage):
    path, saved = tmp_path / "long.json", json.loads(OLD.read_text())
    key = next(iter(saved["checkpoint"]["slopes"]))
    saved["checkpoint"]["slopes"][key] = damage(saved["checkpoint"]["slopes"][key])
    path.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match=rf"^checkpoint {re.escape(str(path))} is damaged at {key}: remove it$"):
        of_old(path)


def test_slopes_of_other_entries_leave_the_file_as_it_is(path):
    for key, other in (
        ("x/complex-step/16/2", "x/complex-step/16/1"),
        ("x/complex-step/16/0", "y/z/complex-step/16/0"),
    ):
        saved = path.read_bytes()
        change(path, lambda slopes, _, key=key, other=other: slopes.update({key: slopes[other]}))
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
    change(path, lambda slopes, _: slopes.update({key: slopes[KEYS[0]]}))
    refused_and_left_alone(path, r"is damaged at [ -~]{0,100}: remove it$" if key.isascii() else "is damaged at ")


def test_a_name_that_is_there_twice_leaves_the_file_as_it_is(path):
    path.write_text(OLD.read_text().replace('"checkpoint": {', '"checkpoint": {}, "checkpoint": {'))
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


@pytest.mark.parametrize("dtype", ["float32", "float64", "longdouble", "complex64"])
def test_a_number_that_is_kept_comes_back_to_the_last_bit(tmp_path, dtype):
    x = np.array([1 / np.longdouble(3), -7, np.inf]).astype(dtype)
    keep = Checkpoint(tmp_path / "kept", "question", lambda _: [3])
    keep.put("key", [x])
    keep.save([HOLDS])
    for found in (
        Checkpoint(tmp_path / "kept", "question", lambda _: [3]).get("key", [(3,)])[0],
        saving._written_out((x.dtype.name, [str(number) for number in x])),
    ):
        np.testing.assert_array_equal(found, x)
        assert found.dtype == x.dtype


def test_an_interruption_says_where_its_report_is():
    stopped = Interrupted(report=None)
    assert str(stopped) == "the check was interrupted: its report is in the attribute called report"


def test_a_checkpoint_is_written_when_ten_seconds_have_gone_by_and_not_before(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(saving, "SAVE_EVERY", 10.0)
    monkeypatch.setattr(saving.time, "monotonic", lambda: clock[-1])
    path = tmp_path / "kept"
    kept = Checkpoint(path, "question", PARTS.sizes)
    written = []
    for now in (100.0, 110.0, 111.0, 112.0, 120.0, 122.0):
        clock.append(now)
        path.unlink(missing_ok=True)
        kept.put("x/central/16/0", [np.ones(2)])
        written.append(path.exists())
    assert written == [False, False, True, False, False, True]


def test_a_path_that_is_none_is_refused():
    with pytest.raises(TypeError, match=r"^checkpoint must be a path, not 3$"):
        Checkpoint(3, "question", PARTS.sizes)
