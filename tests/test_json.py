"""JSON of others: by the standard, of the form that is expected, or refused."""

import os

import pytest

from attention_np import _json


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "b": 2, "a": 1}', r"^'a' is there twice$"),
        ('[{"x": {"": 1, "": 2}}]', r"^'' is there twice$"),
        ('{"a": 1, "\\u0061": 2}', r"^'a' is there twice$"),
        ("NaN", r"^JSON has no NaN$"),
        ('{"a": -Infinity}', r"^JSON has no -Infinity$"),
        ("1e400", r"^a number is too large$"),
        ("9" * 4001, r"^a number is too large$"),
        ("[" * 100_000, r"^it is nested too deeply$"),
        ('{"a":' * 100_000, r"^it is nested too deeply$"),
        ("{} {}", "^Extra data"),
    ],
    ids=lambda text: text[:20],
)
def test_what_the_standard_leaves_open_is_refused(tmp_path, text, reason):
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError, match=reason):
        _json.read(tmp_path / "file")


@pytest.mark.parametrize("content", [b"\xff", '"a"'.encode("utf-16"), b"\xef\xbb\xbf1"])
def test_what_is_not_utf_8_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=r"codec|BOM"):
        _json.read(tmp_path / "file")


def test_names_are_told_apart_in_time_that_grows_with_their_number(tmp_path):
    names = ", ".join(f'"{k}": 0' for k in range(200_000))  # by pairs it would take hours
    (tmp_path / "file").write_text(f'{{{names}, "7": 0}}')
    with pytest.raises(ValueError, match=r"^'7' is there twice$"):
        _json.read(tmp_path / "file")


def test_a_file_is_read_up_to_its_limit_and_no_further(tmp_path):
    path = tmp_path / "file"
    path.write_text("[1]")
    assert _json.read(path, 3) == [1]
    os.truncate(path, 2**40)  # sparse: it takes no space
    with pytest.raises(ValueError, match=r"^it is larger than 3 bytes$"):
        _json.read(path, 3)


@pytest.mark.parametrize("value", [None, True, "1", "Infinity", [], 10**400])
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(ValueError, match=r"^a number is (expected, not|too large)"):
        _json.as_finite(value)


def test_a_whole_number_is_a_number(tmp_path):
    path = tmp_path / "file"
    path.write_text("[3, 2.5, -1e-3]")
    assert [_json.as_finite(x) for x in _json.read(path)] == [3.0, 2.5, -1e-3]
