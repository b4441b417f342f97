"""Tokens of any script show as letters, or a warning says what to install."""

from typing import Any

import pytest
from helpers import Patch

from attention_np import plot
from attention_np.plot import _fonts

from .seen import CHINESE, CHINESE_FONT, ENGLISH, A, drawn, normal, ticks

matplotlib = pytest.importorskip("matplotlib", reason="pip install 'attention-np[plot]'")
plt = pytest.importorskip("matplotlib.pyplot", reason="pip install 'attention-np[plot]'")
font_manager = pytest.importorskip("matplotlib.font_manager", reason="pip install 'attention-np[plot]'")


@pytest.mark.skipif(not CHINESE_FONT, reason="this machine has no font with Chinese letters")
def test_chinese_tokens_show_as_letters_and_stay_upright() -> None:
    ax = plot.weights(A, ["transformer", *CHINESE[1:]])
    drawn(ax)  # a letter that a font lacks would be a warning
    assert ticks(ax.xaxis) == ["transformer", *CHINESE[1:]]
    assert [label.get_rotation() for label in ax.get_xticklabels()] == [90, 0, 0, 0, 0, 0]
    chosen = ax.get_xticklabels()[1].get_fontfamily()
    assert chosen[:-1] == matplotlib.rcParams["font.family"], "the default comes first"
    assert ax.xaxis.label.get_fontfamily() == matplotlib.rcParams["font.family"], "other texts are left alone"
    drawn(plot.query_weights(A[0], CHINESE, query="猫"))
    drawn(plot.points(normal(3), normal(6, 3), normal(6, 3), ["猫"], CHINESE)[0])


def test_a_letter_that_the_default_font_lacks_is_taken_from_another() -> None:
    with matplotlib.rc_context({"font.family": ["cmr10"]}):
        properties, texts = _fonts.showing(["Ж", "cat"])
        families = properties["fontfamily"]
        assert families[0] == "cmr10"
        assert len(families) == 2
        assert texts == ["Ж", "cat"]
        text = plt.figure().text(0, 0, "Ж", fontfamily=families)
        drawn(text)
    assert _fonts.showing(["Ж"])[0]["fontfamily"] == matplotlib.rcParams["font.family"]


def test_letters_that_no_font_has_become_boxes_and_one_warning_says_what_to_install(monkeypatch: Patch) -> None:
    monkeypatch.setattr(_fonts, "_other_fonts", lambda: iter([("DejaVu Serif", font_manager.findfont("DejaVu Serif"))]))
    with pytest.warns(UserWarning, match="no font on this machine has") as caught:
        ax = plot.top_keys(A, ["猫", *ENGLISH[1:]]).plot()
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "has 猫, so boxes are shown: install Noto Sans CJK" in message
    assert "fonts-noto-cjk" in message
    assert matplotlib.get_cachedir() in message
    drawn(ax)  # Matplotlib has nothing more to warn of
    (table,) = ax.tables
    assert table[1, 0].get_text().get_text() == "\N{WHITE SQUARE}"
    with pytest.warns(UserWarning, match="has \U0001e900, so boxes are shown: install one of the Noto fonts"):
        _fonts.showing(["\U0001e900"])  # a letter of the Adlam script


def test_the_warning_names_a_few_letters_only(monkeypatch: Patch) -> None:
    monkeypatch.setattr(_fonts, "_other_fonts", lambda: iter([]))
    with pytest.warns(UserWarning, match=r"has (\w, ){8}\.\.\., so boxes"):
        _fonts.showing(["我爱自然语言处理很有趣"])


def test_a_damaged_font_is_passed_over(tmp_path: Any, monkeypatch: Patch) -> None:
    damaged = tmp_path / "damaged.ttf"
    damaged.write_bytes(b"no font")
    whole = font_manager.findfont("DejaVu Sans")
    monkeypatch.setattr(_fonts, "_other_fonts", lambda: iter([("damaged", str(damaged)), ("DejaVu Sans", whole)]))
    with matplotlib.rc_context({"font.family": ["cmr10"]}):
        assert _fonts.showing(["Ж"])[0]["fontfamily"] == ["cmr10", "DejaVu Sans"]


@pytest.mark.long
def test_a_dollar_is_a_dollar_and_the_end_of_a_line_does_not_end_the_label() -> None:
    tokens = ["$x^$", "costs", "5$", "$", "\n", "\t"]
    ax = plot.weights(A, tokens)
    drawn(ax)
    assert ticks(ax.xaxis) == ["$x^$", "costs", "5$", "$", r"\n", r"\t"]
    drawn(plot.query_weights(A[0], tokens, query="$x^$"))
    drawn(plot.top_keys(A, tokens).plot())
    drawn(plot.points(normal(2), normal(6, 2), normal(6, 2), ["$x^$"], tokens)[0])
    drawn(plot.points(normal(3), normal(6, 3), normal(6, 3), ["$x^$"], tokens)[0])


@pytest.fixture
def no_other_font(monkeypatch: Patch) -> None:
    monkeypatch.setattr(_fonts, "_other_fonts", lambda: iter([]))


BLOCKS = [
    ("猫", "Noto Sans CJK"),
    ("カ", "Noto Sans CJK"),
    ("한", "Noto Sans CJK"),
    ("。", "Noto Sans CJK"),
    ("，", "Noto Sans CJK"),  # noqa: RUF001
    ("\N{ROCKET}", "Symbola"),
    ("\N{THINKING FACE}", "Symbola"),
    ("\N{REGIONAL INDICATOR SYMBOL LETTER D}", "Symbola"),
    ("\N{ADLAM CAPITAL LETTER ALIF}", "one of the Noto fonts"),
    ("\N{DEVANAGARI LETTER A}", "one of the Noto fonts"),
]


@pytest.mark.usefixtures("no_other_font")
@pytest.mark.parametrize(("letter", "fonts"), BLOCKS)
def test_the_font_to_install_is_one_for_the_block_of_the_letter(letter: str, fonts: str) -> None:
    with pytest.warns(UserWarning, match=f"so boxes are shown: install {fonts}") as caught:
        _fonts.showing([letter])
    message = str(caught[0].message)
    assert [name for name in ("CJK", "Symbola", "one of") if name in message] == [
        name for name in ("CJK", "Symbola", "one of") if name in fonts
    ]


@pytest.mark.usefixtures("no_other_font")
def test_letters_of_two_blocks_need_two_fonts_which_are_named_once_each() -> None:
    with pytest.warns(UserWarning, match="no font") as caught:
        _fonts.showing(["猫狗", "\N{ROCKET}"])
    message = str(caught[0].message)
    assert message.count("Noto Sans CJK") == message.count("Symbola") == 1


@pytest.mark.usefixtures("no_other_font")
@pytest.mark.parametrize(
    "draw",
    [
        lambda: plot.weights(A, list("猫坐在垫子上")),
        lambda: plot.heads(A[None], list("猫坐在垫子上")),
        lambda: plot.query_weights(A[0], list("猫坐在垫子上")),
        lambda: plot.top_keys(A, list("猫坐在垫子上")).plot(),
        lambda: plot.points(normal(2), normal(6, 2), normal(6, 2), ["猫"], list("猫坐在垫子上")),
    ],
)
def test_the_warning_points_to_the_line_of_the_caller(draw: Any) -> None:
    with pytest.warns(UserWarning, match="no font") as caught:
        draw()
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.usefixtures("no_other_font")
def test_points_warn_once_of_all_their_names() -> None:
    with pytest.warns(UserWarning, match="no font") as caught:
        plot.points(normal(2), normal(6, 2), normal(6, 2), ["猫"], list("猫坐在垫子上"))
    assert len(caught) == 1


def test_the_selector_behind_an_emoji_is_no_letter() -> None:
    properties, texts = _fonts.showing(["\N{SNOWMAN}\N{VARIATION SELECTOR-16}"])
    assert texts == ["\N{SNOWMAN}"]
    drawn(plt.figure().text(0, 0, texts[0], **properties))


def test_an_emoji_font_with_outlines_is_used_and_one_of_colour_bitmaps_is_not(monkeypatch: Patch) -> None:
    class Entry:
        def __init__(self, name: str) -> None:
            self.name = name

    names = ["Noto Color Emoji", "Noto Emoji", "Symbola", "Noto Emoji Bold"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [Entry(name) for name in names])
    monkeypatch.setattr(font_manager, "findfont", lambda name: name)
    assert [name for name, _ in _fonts._other_fonts()] == ["Noto Emoji", "Symbola"]
