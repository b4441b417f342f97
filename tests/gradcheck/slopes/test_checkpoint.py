"""A check that is interrupted goes on from its checkpoint, and what is none is refused and left as it is."""

import re

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import check
from attention_np.gradcheck.slopes import checkpoint
from attention_np.gradcheck.slopes.checkpoint import Checkpoint, fingerprint

from ..programs import bilinear, bilinear_backward, square_inputs, wrong_backward

WIDE = square_inputs(8)


class Interrupting:
    """A function that something stops after so many calls."""

    def __init__(self, after=10**9, stop=KeyboardInterrupt):
        self.stop, self.calls, self.after = stop, 0, after

    def __call__(self, *arrays):
        self.calls += 1
        if self.calls > self.after:
            raise self.stop
        return bilinear(*arrays)


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory):
    """What is in the file that an interrupted check has left, and how many calls the whole check takes."""
    path, whole = tmp_path_factory.mktemp("left") / "long.npz", Interrupting()
    check(whole, wrong_backward, WIDE)
    with pytest.raises(KeyboardInterrupt):
        check(Interrupting(int(0.7 * whole.calls)), wrong_backward, WIDE, checkpoint=path)
    return path.read_bytes(), whole.calls


@pytest.fixture
def path(tmp_path, left_behind):
    """The same as a file of its own."""
    path = tmp_path / "long.npz"
    path.write_bytes(left_behind[0])
    return path


def refused_and_left_alone(path, reason, **other):
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"^checkpoint {re.escape(str(path))} {reason}"):
        check(**{"forward": bilinear, "backward": wrong_backward, "inputs": WIDE} | other, checkpoint=path)
    assert path.read_bytes() == before
    return True


@each(("method", "stop"), [("complex-step", KeyboardInterrupt), ("central", MemoryError)])
@each("share", [0.5], long=[0.05, 0.95])
def test_a_check_that_was_interrupted_anywhere_goes_on_where_it_was_and_reports_the_same(tmp_path, method, stop, share):
    path, (whole, rest, again) = tmp_path / "long.npz", (Interrupting() for _ in range(3))
    report = check(whole, wrong_backward, WIDE, method=method)
    with pytest.raises(stop):
        check(Interrupting(int(share * whole.calls), stop), wrong_backward, WIDE, method=method, checkpoint=path)
    assert [file.name for file in tmp_path.iterdir()] == ["long.npz"]
    for function in (rest, again):
        assert check(function, wrong_backward, WIDE, method=method, checkpoint=path) == report
    assert again.calls <= rest.calls <= whole.calls + 1  # which tells the question from others
    assert again.calls <= whole.calls + 1 - 2 * WIDE["x"].size
    assert share == 0.05 or rest.calls <= whole.calls - WIDE["x"].size
    path.unlink()


@each(
    "other",
    [
        {"inputs": WIDE | {"y": 2 * WIDE["y"]}},
        {"inputs": {"x": WIDE["x"], "z": WIDE["y"]}},
        {"rng": 1},
        {"method": "central"},
        {"rtol": 1e-9},
        {"vectorized": ["x"], "forward": lambda x, y: np.tanh(x @ y) + np.sin(y)},
        {"forward": lambda x, y: bilinear(x, y) + 1},
        {"forward": lambda x, y: bilinear(x, y) + (x - WIDE["x"]).sum()},  # the same at the point
    ],
)
def test_the_checkpoint_of_another_question_is_refused_and_left_alone(path, other):
    said = "belongs to another check, with other inputs, outputs, seed or options: remove it, or name another file$"
    assert refused_and_left_alone(path, said, **other)


def in_archive(path, change):
    with np.load(path) as archive:
        kept = dict(archive)
    change(kept)
    with path.open("wb") as file:
        np.savez(file, **kept)


@each(
    "numbers",
    [np.zeros((3, 6)), np.zeros((16, 5)), np.zeros((16, 6), int), np.full((16, 6), "x"), np.array(0.0), np.zeros(96)],
)
def test_slopes_of_another_form_are_refused_by_their_place(path, left_behind, numbers):
    path.write_bytes(left_behind[0])
    in_archive(path, lambda kept: kept.update({"x/complex-step/16/1": numbers}))
    assert refused_and_left_alone(path, "is damaged at 'x/complex-step/16/1': remove it$")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # np.load leaves such a file open
def test_a_file_that_is_no_checkpoint_or_cut_short_is_refused_and_left_alone(tmp_path, path):
    whole = path.read_bytes()
    contents = [b"", b"{", b"PK\x05\x06" + bytes(18), *(whole[: int(part * len(whole))] for part in (0.1, 0.5, 0.99))]
    in_archive(path, lambda kept: kept.pop("question"))
    contents += [path.read_bytes()]
    in_archive(path, lambda kept: kept.update(question=np.array([None])))  # pickled
    for content in (*contents, path.read_bytes()):
        path.write_bytes(content)
        assert refused_and_left_alone(path, "is not the checkpoint of a gradient check: ")
    with pytest.raises(ValueError, match="is not the checkpoint of a gradient check: "):
        Checkpoint(tmp_path, "a folder")


def test_a_path_that_is_none_and_a_folder_that_is_not_there_are_told_before_anything_is_measured(tmp_path):
    path, few = tmp_path / "nowhere" / "long.npz", Interrupting(after=10)
    with pytest.raises(ValueError, match=rf"^checkpoint {re.escape(str(path))}: there is no folder {path.parent}$"):
        check(few, bilinear_backward, WIDE, checkpoint=path)
    with pytest.raises(TypeError, match=r"^checkpoint must be a path, not 3$"):
        check(few, bilinear_backward, WIDE, checkpoint=3)


@each("dtype", ["float32", "float64", "longdouble"])
def test_what_is_kept_comes_back_to_the_last_bit_ten_seconds_after_it_was_written_last(tmp_path, monkeypatch, dtype):
    clock, path, written = [100.0], tmp_path / dtype, []
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: clock[-1])
    kept, x = Checkpoint(path, "question"), np.array([1 / np.longdouble(3), -7, np.inf]).astype(dtype)
    for now in (100.0, 110.0, 111.0, 112.0, 121.0, 122.0):
        clock.append(now)
        path.unlink(missing_ok=True)
        kept.put(f"at {now}", x)
        written.append(path.exists())
    assert written == [False, False, True, False, False, True]
    again = Checkpoint(path, "question")
    np.testing.assert_array_equal(again.get("at 100.0", (3,)), x, strict=True)
    assert again.get("at 123.0", (3,)) is None


@each("dtype", ["float32", "float64", "longdouble"])
def test_a_question_with_another_last_digit_shape_order_or_dtype_is_another_question(dtype):
    x = np.array([1.0, 2.0], dtype)
    questions = [[x], [np.nextafter(x, 3)], [x.reshape(2, 1)], [x[::-1]], [x, x], [x.astype("float16")], [1.0, 2.0]]
    assert len({fingerprint(question) for question in [*questions, ["1.0", 2.0]]}) == len(questions) + 1
    assert fingerprint([x]) == fingerprint([x.copy()])
    if dtype == "longdouble" and np.finfo(dtype).nmant == 63:  # of 16 bytes it uses 10
        other = x.copy()
        other.view(np.uint8).reshape(2, -1)[:, 10:] ^= 0xFF
        assert x.tobytes() != other.tobytes()
        assert fingerprint([x]) == fingerprint([other])
