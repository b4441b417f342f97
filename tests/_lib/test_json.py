"""JSON of others: by the standard, of the form that is expected, or refused."""

import os

import pytest
from helpers import each

from attention_np._lib import json


@each(
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
)
def test_what_the_standard_leaves_open_is_refused(tmp_path, text, reason):
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError, match=reason):
        json.read(tmp_path / "file")


@each("content", [b"\xff", '"a"'.encode("utf-16"), b"\xef\xbb\xbf1"])
def test_what_is_not_utf_8_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=r"codec|BOM"):
        json.read(tmp_path / "file")


def test_names_are_told_apart_in_time_that_grows_with_their_number(tmp_path):
    names = ", ".join(f'"{k}": 0' for k in range(200_000))  # by pairs it would take hours
    (tmp_path / "file").write_text(f'{{{names}, "7": 0}}')
    with pytest.raises(ValueError, match=r"^'7' is there twice$"):
        json.read(tmp_path / "file")


def test_a_file_is_read_up_to_its_limit_and_no_further(tmp_path):
    path = tmp_path / "file"
    path.write_text("[1]")
    assert json.read(path, 3) == [1]
    os.truncate(path, 2**40)  # sparse: it takes no space
    with pytest.raises(ValueError, match=r"^it is larger than 3 bytes$"):
        json.read(path, 3)


@each("value", [None, True, "1", "Infinity", [], 10**400])
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(ValueError, match=r"^a number is (expected, not|too large)"):
        json.as_finite(value)


def test_a_whole_number_is_a_number(tmp_path):
    path = tmp_path / "file"
    path.write_text("[3, 2.5, -1e-3]")
    assert [json.as_finite(x) for x in json.read(path)] == [3.0, 2.5, -1e-3]


def test_a_number_of_very_many_digits_is_read_as_long_as_that_takes_no_time(tmp_path):
    path = tmp_path / "file"
    path.write_text("9" * 4000)
    assert json.read(path) == 10**4000 - 1


def test_a_folder_is_refused_and_a_file_that_is_missing_is_called_so(tmp_path):
    with pytest.raises(ValueError, match=r"^it is not a file$"):
        json.content_of(tmp_path)
    with pytest.raises(FileNotFoundError, match="missing"):
        json.content_of(tmp_path / "missing")


PAIR = {"name": json.as_text, "sizes": json.as_tuple(json.as_whole)}


@each(
    ("value", "reason"),
    [
        ([], r"^an object is expected, with name, sizes, not \[\]$"),
        ({"name": "a"}, "^sizes is missing$"),
        ({"name": "a", "sizes": [], "more": 1}, "^'more' is unknown$"),
        ({"name": 1, "sizes": []}, "^name: a string is expected, not 1$"),
        ({"name": "a", "sizes": 1}, "^sizes: a list is expected, not 1$"),
        ({"name": "a", "sizes": [1, -1]}, "^sizes: a whole number that is not negative is expected, not -1$"),
    ],
)
def test_an_object_of_another_form_is_refused_with_where_it_differs(value, reason):
    with pytest.raises(ValueError, match=reason):
        json.as_record(value, PAIR)


def test_the_fields_of_an_object_come_in_the_order_in_which_they_are_asked_for():
    assert list(json.as_record({"sizes": [2, 0], "name": "a"}, PAIR).items()) == [("name", "a"), ("sizes", (2, 0))]


@each(
    ("read", "fits", "others"),
    [
        (json.as_text, ["", "1"], [1, None, ["a"]]),
        (json.as_flag, [True, False], [0, 1, None, "true"]),
        (json.as_whole, [0, 1, 2**63 - 1], [True, False, -1, 1.0, "1", None, 2**63]),
        (json.as_finite, [-1.5, 0.0], [True, "1", None]),
        (json.as_shape, [(), (0, 3), (1,) * 32], [[1] * 33, [-1], 3, "12"]),
    ],
)
def test_a_value_is_read_in_the_form_that_is_asked_for_or_refused(read, fits, others):
    for value in fits:
        found = read(list(value) if isinstance(value, tuple) else value)
        assert (found, type(found)) == (value, type(value))
    for value in others:
        with pytest.raises(ValueError, match=r"expected|too large|more than 32 axes"):
            read(value)


def test_what_may_be_left_out_is_null_or_of_its_form():
    read = json.is_optional(json.as_text)
    assert (read(None), read("a")) == (None, "a")
    with pytest.raises(ValueError, match=r"^a string is expected, not False$"):
        read(False)
