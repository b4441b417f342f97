"""Text for people: bytes, and columns of a terminal."""

import pytest
from helpers import each

from attention_np._lib import text
from attention_np._lib.text import cut, padded, width_of

GIB = 2**30


@each(
    ("number", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1536, "1.50 KiB"),
        (20 * GIB, "20.0 GiB"),
        (2**40 - 1, "1.00 TiB"),
    ],
)
def test_bytes_are_printed_with_three_digits(number: int, expected: str) -> None:
    assert text.in_bytes(number) == expected


@pytest.mark.parametrize(("text", "width"), [("mat", 3), ("垫子", 4), ("e\N{COMBINING ACUTE ACCENT}", 1), ("", 0)])
def test_text_takes_as_many_columns_as_a_terminal_gives_it(text: str, width: int) -> None:
    assert width_of(text) == width
    assert width_of(padded(text, 8)) == width_of(padded(text, 8, ">")) == 8
    assert padded(text, 8, ">").endswith(text)


def test_text_is_cut_to_its_columns() -> None:
    assert cut("transformer", 11) == "transformer"
    assert cut("transformer", 8) == "transf.."
    assert cut("我爱自然语言", 7) == "我爱.."
