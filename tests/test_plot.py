"""Pictures show the numbers that they are of, with labels that one can read, and leave Matplotlib as it was."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from attention_np import cost, dot_product, masks, plot, softmax, trace
from attention_np._columns import cut, padded, width_of
from attention_np.gradcheck import plot as gradcheck_plot
from attention_np.plot import _fonts, _points

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")
font_manager = pytest.importorskip("matplotlib.font_manager")

ENGLISH, CHINESE = ["The", "cat", "sat", "on", "the", "mat"], list("猫坐在垫子上")
A = trace.dot_product("The cat sat on the mat", is_causal=True)["A"].array  # (6, 6)
CAUSAL = masks.causal(6)
CHINESE_FONT = any("CJK" in font.name for font in font_manager.fontManager.ttflist)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


PICTURES: dict[str, Callable[..., Any]] = {  # each on the Axes that it is given
    "weights": lambda ax=None: plot.weights(A, ENGLISH, ax=ax),
    "mask": lambda ax=None: plot.mask(CAUSAL, ENGLISH, ax=ax),
    "softmax_jacobian": lambda ax=None: plot.softmax_jacobian(normal(6), ENGLISH, ax=ax),
    "query_weights": lambda ax=None: plot.query_weights(A[5], ENGLISH, ax=ax),
    "top_keys": lambda ax=None: plot.top_keys(A, ENGLISH).plot(ax=ax),
    "saturation": lambda ax=None: plot.saturation((1, 4), samples=8, ax=ax),
    "cost": lambda ax=None: plot.cost((128, 256), ax=ax),
}
every_picture = pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES.keys())


@pytest.fixture(autouse=True)
def nothing_shown_or_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plt, "show", lambda: pytest.fail("a plot must not be shown by us"))
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before
    plt.close("all")


def drawn(ax: Any) -> None:
    """The whole figure is drawn; a warning would be an error."""
    ax.figure.canvas.draw()


def image_of(ax: Any) -> np.ndarray:
    return np.ma.filled(ax.images[0].get_array().astype(float), np.nan)


def ticks(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


@every_picture
def test_a_picture_goes_where_it_is_asked_to_and_nowhere_else(draw: Callable[..., Any]) -> None:
    figure, (first, second) = plt.subplots(1, 2, layout="constrained")
    plt.sca(first)
    assert draw(ax=second) is second
    assert plt.gca() is first
    assert plt.get_fignums() == [figure.number]
    assert not first.has_data()
    drawn(second)


@every_picture
def test_a_picture_without_a_place_gets_a_figure_of_its_own(draw: Callable[..., Any]) -> None:
    one, two = draw(), draw()
    assert one.figure is not two.figure
    drawn(one)


def test_the_cells_are_the_weights_and_the_tokens_stand_beside_them() -> None:
    ax = plot.weights(A, ENGLISH)
    drawn(ax)
    assert np.array_equal(image_of(ax), A)
    assert ticks(ax.yaxis) == ticks(ax.xaxis) == ENGLISH
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("query", "key")
    assert ax.images[0].get_clim() == (0, 1)
    written = {tuple(text.get_position()): text.get_text() for text in ax.texts}
    assert written[0, 2] == f"{A[2, 0]:.2f}"
    assert len(written) == 36


def test_queries_and_keys_may_be_different_tokens() -> None:
    ax = plot.weights(A[:3], CHINESE[:3], ENGLISH)
    assert ticks(ax.xaxis) == ENGLISH
    ax = plot.weights(A[:3], ["a", "b", "c"])
    drawn(ax)
    assert [round(place) for place in ax.get_xticks() if 0 <= place <= 5] == [0, 1, 2, 3, 4, 5]


def test_hidden_pairs_have_no_colour_but_a_hatch() -> None:
    ax = plot.weights(A, ENGLISH, mask=CAUSAL)
    drawn(ax)
    assert np.array_equal(np.isnan(image_of(ax)), ~CAUSAL)
    (patch,) = ax.patches
    assert patch.get_hatch()
    centres = [(column, row) for row in range(6) for column in range(6)]
    inside = [patch.get_path().contains_point(centre) for centre in centres]
    assert np.array_equal(np.reshape(inside, (6, 6)), ~CAUSAL)


def test_the_scale_ends_at_the_largest_weight_that_is_seen() -> None:
    weights = np.array([[0.3, 0.9], [0.2, 0.1]])
    seen = np.array([[True, False], [True, True]])
    assert plot.weights(weights, mask=seen).images[0].get_clim() == (0, 0.3)


def test_every_head_has_a_panel_in_the_same_colours() -> None:
    weights = np.stack([A / 4, A / 2, A[::-1]])
    axes = plot.heads(weights, ENGLISH)
    drawn(axes[0])
    assert [ax.get_title() for ax in axes] == ["head 0", "head 1", "head 2"]
    assert [np.array_equal(image_of(ax), head) for ax, head in zip(axes, weights, strict=True)] == [True] * 3
    assert {ax.images[0].get_clim() for ax in axes} == {(0, 1)}
    assert [ax.get_ylabel() for ax in axes] == ["query", "", ""]


def test_heads_are_drawn_where_asked_to() -> None:
    figure, places = plt.subplots(1, 2, layout="constrained")
    assert list(plot.heads(np.stack([A, A]), axes=places)) == list(places)
    assert plt.get_fignums() == [figure.number]
    with pytest.raises(ValueError, match="axes must be one for each of the 3 heads, not 2"):
        plot.heads(np.stack([A] * 3), axes=places)


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (3, 3), (6, 3), (7, 3), (8, 4), (12, 4), (16, 4)])
def test_panels_stand_in_rows_without_a_gap_where_that_can_be(count: int, columns: int) -> None:
    axes = plot.heads(np.full((count, 2, 2), 0.5))
    assert axes[0].get_subplotspec().get_gridspec().ncols == columns


def test_a_mask_is_white_where_attending_is_allowed_and_hatched_elsewhere() -> None:
    ax = plot.mask(CAUSAL, ENGLISH)
    drawn(ax)
    assert np.array_equal(np.isnan(image_of(ax)), ~CAUSAL)
    assert ax.images[0].cmap(ax.images[0].norm(0.0)) == (1.0, 1.0, 1.0, 1.0)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["may attend", "hidden"]


def test_the_jacobian_is_that_of_softmax_in_colours_that_put_zero_in_the_middle() -> None:
    scores = 3 * normal(6)  # far apart: some derivatives are nearly zero
    ax = plot.softmax_jacobian(scores, ENGLISH)
    drawn(ax)
    jacobian = softmax.jacobian(scores)
    assert np.array_equal(image_of(ax), jacobian)
    assert ax.images[0].get_clim() == (-jacobian.max(), jacobian.max())
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("weight of", "score of")
    written = {text.get_text() for text in ax.texts}
    assert "0.00" in written
    assert "\N{MINUS SIGN}0.00" not in written
    hidden = plot.softmax_jacobian(scores, mask=CAUSAL[2])
    assert not image_of(hidden)[3:].any()


@pytest.mark.parametrize("name", ["cividis"])
def test_the_colours_grow_lighter_along_with_the_numbers(name: str) -> None:
    ax = plot.weights(A)
    assert ax.images[0].cmap.name == name
    red, green, blue = ax.images[0].cmap(np.linspace(0, 1, 64))[:, :3].T
    assert (np.diff(0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2) > 0).all()


def test_the_bars_are_the_weights_in_the_order_of_the_keys() -> None:
    ax = plot.query_weights(A[3], ENGLISH, query="on", mask=CAUSAL[3])
    drawn(ax)
    bars = {round(bar.get_y() + bar.get_height() / 2): bar.get_width() for bar in ax.patches}
    assert bars == dict(enumerate(A[3, :4]))
    assert [text.get_text() for text in ax.texts][-3:] == [f"{A[3, 3]:.3f}", "hidden", "hidden"]
    assert ax.get_title() == "weights of the query on"
    bottom, top = ax.get_ylim()
    assert bottom > top, "the first key stands above"


def test_the_top_keys_are_those_of_the_largest_weights() -> None:
    found = plot.top_keys(A, ENGLISH, k=2)
    assert found.places.tolist() == [[0, 1], [0, 1], [0, 2], [1, 0], [2, 0], [1, 3]]
    assert np.array_equal(found.weights[5], [A[5, 1], A[5, 3]])
    assert str(found).split("\n") == [
        "query  key 1  weight  key 2  weight",
        "The    The    1.000   -",
        "cat    The    0.924   cat    0.076",
        "sat    The    0.604   sat    0.222",
        "on     cat    0.383   The    0.298",
        "the    sat    0.327   The    0.288",
        "mat    cat    0.467   on     0.250",
    ]
    assert plot.top_keys(A[:1], k=99).places.shape == (1, 6)


def test_the_table_of_top_keys_has_the_same_cells_as_a_picture() -> None:
    found = plot.top_keys(A, CHINESE) if CHINESE_FONT else plot.top_keys(A, ENGLISH)
    ax = found.plot()
    drawn(ax)
    (table,) = ax.tables
    cells = {place: cell.get_text().get_text() for place, cell in table.get_celld().items()}
    assert [[cells[row, column] for column in range(7)] for row in range(7)] == found.rows()


def test_without_the_factor_wide_heads_saturate_and_with_it_they_do_not() -> None:
    ax = plot.saturation((1, 64, 1024))
    drawn(ax)
    curves = {line.get_label(): line.get_ydata() for line in ax.get_lines()[:2]}
    with_factor, without = curves[r"with $1/\sqrt{d_k}$"], curves[r"without $1/\sqrt{d_k}$"]
    assert with_factor[0] == without[0], "of width 1, the factor is 1"
    assert with_factor.min() > 0.8
    assert without[2] < 0.05
    assert len({(line.get_linestyle(), line.get_marker()) for line in ax.get_lines()}) == 3


def test_saturation_is_the_trace_of_the_jacobian() -> None:
    ax = plot.saturation((4,), m=3, samples=1, rng=5)
    generator = np.random.default_rng(5)
    scores = generator.standard_normal((1, 1, 4)) @ generator.standard_normal((1, 3, 4)).swapaxes(-1, -2)
    for line, scale in zip(ax.get_lines(), (0.5, 1.0), strict=False):
        assert line.get_ydata()[0] == pytest.approx(np.trace(softmax.jacobian(scale * scores[0, 0])))


@pytest.mark.parametrize(("quantity", "value", "label"), [("memory", 2**36, "64 GiB"), ("flops", 1e12, "1 Tflop")])
def test_cost_is_that_of_both_algorithms_over_the_length(quantity: Any, value: float, label: str) -> None:
    sizes, lengths = cost.Sizes(n=1, heads=32), (1024, 65536)
    ax = plot.cost(lengths, sizes=sizes, quantity=quantity, memory=2**34)
    drawn(ax)
    lines = {line.get_label(): line.get_ydata() for line in ax.get_lines()}
    for name, algorithm in (("plain", cost.dot_product), ("blockwise", cost.blockwise)):
        for length, number in zip(lengths, lines[name], strict=True):
            found = algorithm(cost.Sizes(n=length, heads=32))
            assert number == (found.memory if quantity == "memory" else found.forward.flops + found.backward.flops)
    assert ax.yaxis.get_major_formatter()(value) == label
    assert ("16 GiB of memory" in lines) == (quantity == "memory")


def test_an_output_is_drawn_among_the_values_and_the_hull_is_around_them() -> None:
    key, value, query = normal(6, 2), normal(6, 2, seed=1), normal(2, seed=2)
    of_keys, of_values = plot.points(query, key, value, ["on"], ENGLISH)
    drawn(of_keys)
    output, cache = dot_product.forward(query[None], key, value)
    star = next(line for line in of_values.get_lines() if line.get_marker() == "*")
    assert star.get_xydata() == pytest.approx(output)
    assert of_keys.collections[0].get_offsets().data == pytest.approx(key)
    assert of_values.collections[0].get_offsets().data == pytest.approx(value)
    areas = of_values.collections[0].get_sizes()
    assert np.array_equal(np.argsort(areas), np.argsort(cache.weights[0]))
    (hull,) = of_values.patches
    outline = hull.get_path()
    for point in value:
        assert any(outline.contains_point(point, radius=radius) for radius in (1e-9, -1e-9)), "on the border or inside"
    assert outline.contains_point(output[0])


@pytest.mark.parametrize("d", [2, 3])
def test_points_are_drawn_in_the_plane_and_in_space(d: int) -> None:
    axes = plot.points(normal(3, d), normal(5, d), normal(5, d, seed=1))
    drawn(axes[0])
    assert [ax.name == "3d" for ax in axes] == [d == 3] * 2
    _, (first, second) = plt.subplots(1, 2, subplot_kw={"projection": "3d" if d == 3 else None})
    assert list(plot.points(normal(d), normal(5, d), normal(5, d), axes=[first, second])) == [first, second]
    with pytest.raises(
        ValueError, match=f"the axes for the keys, which have {5 - d} features, must be {5 - d}-dimension"
    ):
        plot.points(normal(5 - d), normal(5, 5 - d), normal(5, d), axes=[first, second])


def test_the_hull_of_a_square_has_its_four_corners_in_order() -> None:
    square = np.array([[0.0, 0], [1, 1], [0, 1], [0.5, 0.5], [1, 0]])
    (polygon,) = _points._faces(square)
    assert len(polygon) == 4
    assert np.abs(np.diff(polygon, axis=0)).sum(axis=1).tolist() == [1, 1, 1], "each side is one of the square"


def test_the_hull_of_a_cube_has_its_six_sides() -> None:
    cube = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)] + [[0.5, 0.5, 0.5]], float)
    faces = list(_points._faces(cube))
    assert len(faces) == 6
    assert all(face.shape == (4, 3) and np.ptp(face, axis=0).min() == 0 for face in faces)


@pytest.mark.parametrize("value", [np.ones((1, 2)), np.ones((4, 2)), np.outer(np.arange(4.0), [1, 2]), np.ones((2, 3))])
def test_values_on_one_point_or_one_line_are_drawn_as_well(value: np.ndarray) -> None:
    axes = plot.points(normal(2), normal(len(value), 2), value)
    drawn(axes[0])


def test_labels_become_smaller_and_then_fewer_where_there_is_little_room() -> None:
    words = ["token"] * 60
    _, ax = plt.subplots(figsize=(10, 10))
    plot.weights(normal(60, 60) ** 2, words, ax=ax)
    assert len(ticks(ax.xaxis)) == 60
    assert ax.get_yticklabels()[0].get_size() < 10
    _, ax = plt.subplots(figsize=(3, 3))
    plot.weights(normal(60, 60) ** 2, words, ax=ax)
    drawn(ax)
    assert 5 < len(ticks(ax.yaxis)) < 40
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert all(lower.y1 <= upper.y0 + 1 for upper, lower in pairwise(boxes)), "they do not overlap"


def test_long_tokens_are_turned_and_cut_and_short_ones_are_not() -> None:
    _, ax = plt.subplots(figsize=(4, 4))
    plot.weights(A, ["internationalisation", "a", "of", "b", "c", "d"], ax=ax)
    drawn(ax)
    assert ticks(ax.xaxis)[0] == "internationali.."
    assert {label.get_rotation() for label in ax.get_xticklabels()} == {90}
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert all(left.x1 <= right.x0 for left, right in pairwise(boxes))
    assert {label.get_rotation() for label in plot.weights(A, ENGLISH).get_xticklabels()} == {0}


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


def test_letters_that_no_font_has_become_boxes_and_one_warning_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_the_warning_names_a_few_letters_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fonts, "_other_fonts", lambda: iter([]))
    with pytest.warns(UserWarning, match=r"has (\w, ){8}\.\.\., so boxes"):
        _fonts.showing(["我爱自然语言处理很有趣"])


def test_a_damaged_font_is_passed_over(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "damaged.ttf"
    damaged.write_bytes(b"no font")
    whole = font_manager.findfont("DejaVu Sans")
    monkeypatch.setattr(_fonts, "_other_fonts", lambda: iter([("damaged", str(damaged)), ("DejaVu Sans", whole)]))
    with matplotlib.rc_context({"font.family": ["cmr10"]}):
        assert _fonts.showing(["Ж"])[0]["fontfamily"] == ["cmr10", "DejaVu Sans"]


def test_a_dollar_is_a_dollar_and_the_end_of_a_line_does_not_end_the_label() -> None:
    tokens = ["$x^$", "costs", "5$", "$", "\n", "\t"]
    ax = plot.weights(A, tokens)
    drawn(ax)
    assert ticks(ax.xaxis) == ["$x^$", "costs", "5$", "$", r"\n", r"\t"]
    drawn(plot.query_weights(A[0], tokens, query="$x^$"))
    drawn(plot.top_keys(A, tokens).plot())
    drawn(plot.points(normal(2), normal(6, 2), normal(6, 2), ["$x^$"], tokens)[0])
    drawn(plot.points(normal(3), normal(6, 3), normal(6, 3), ["$x^$"], tokens)[0])


def test_numbers_that_are_not_finite_are_drawn_as_what_they_are() -> None:
    weights = np.array([[np.nan, 0.5], [np.inf, 0.25]])
    ax = plot.weights(weights)
    drawn(ax)
    assert [text.get_text() for text in ax.texts] == ["nan", "0.50", "inf", "0.25"]
    assert ax.images[0].get_clim() == (0, 0.5)
    drawn(plot.query_weights(weights[0]))


def test_curves_and_places_are_those_of_gradcheck() -> None:
    assert plot.v_curve is gradcheck_plot.v_curve
    assert plot.places is gradcheck_plot.places


@pytest.mark.parametrize(
    ("draw", "error", "reason"),
    [
        (lambda: plot.weights(A[0]), ValueError, r"weights must be those of one head, .*\(weights.shape=\(6,\)\)"),
        (lambda: plot.weights(A + 1j), TypeError, "weights must hold real numbers, not complex128"),
        (lambda: plot.weights(A, ENGLISH[:5]), ValueError, "query_tokens has 5 tokens for 6 queries"),
        (lambda: plot.weights(A, None, ENGLISH[:5]), ValueError, "key_tokens has 5 tokens for 6 keys"),
        (lambda: plot.weights(A, "The cat"), TypeError, "query_tokens must be a list of tokens, not one string"),
        (lambda: plot.weights(A, mask=CAUSAL[:5]), ValueError, "mask"),
        (lambda: plot.weights(A, mask=CAUSAL.astype(int)), TypeError, "mask"),
        (lambda: plot.heads(A), ValueError, r"weights must be those of all heads of one sample, .*shape=\(6, 6\)"),
        (lambda: plot.mask(CAUSAL[0]), ValueError, r"mask must be that of one head, \(n, m\) \(mask.shape=\(6,\)\)"),
        (lambda: plot.mask(A), TypeError, "mask must be boolean"),
        (lambda: plot.softmax_jacobian(A), ValueError, r"scores must be those of one query, .*shape=\(6, 6\)"),
        (lambda: plot.query_weights(A), ValueError, r"weights must be those of one query, .*shape=\(6, 6\)"),
        (lambda: plot.query_weights(["a"]), TypeError, "weights must hold real numbers"),
        (lambda: plot.top_keys(A, k=0), ValueError, "k must be at least 1, not 0"),
        (lambda: plot.top_keys(A[None]), ValueError, "choose a head, such as"),
        (lambda: plot.saturation((0,)), ValueError, "each of widths must be at least 1, not 0"),
        (lambda: plot.saturation(m=1), ValueError, "m must be at least 2, not 1"),
        (lambda: plot.cost((0,)), ValueError, "each of lengths must be at least 1, not 0"),
        (lambda: plot.cost(quantity="time"), ValueError, "quantity must be 'memory' or 'flops', not 'time'"),
        (
            lambda: plot.points(normal(4), normal(6, 4), normal(6, 2)),
            ValueError,
            "query must be up to 40 points of two",
        ),
        (lambda: plot.points(normal(2), normal(41, 2), normal(41, 2)), ValueError, r"key must be .*shape=\(41, 2\)"),
        (lambda: plot.points(normal(3), normal(6, 2), normal(6, 2)), ValueError, "key has 2 features but query has 3"),
        (lambda: plot.points(normal(2), normal(6, 2), normal(6, 2), axes=[None]), ValueError, "axes must be two"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_there_is_a_figure(
    draw: Callable[[], Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        draw()
    assert not plt.get_fignums()


@every_picture
def test_without_matplotlib_the_message_says_what_to_install(
    draw: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = builtins.__import__

    def without_matplotlib(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(ImportError, match=r"plots need Matplotlib: pip install 'attention-np\[plot\]'"):
        draw()


def test_the_table_of_top_keys_prints_and_everything_imports_with_numpy_alone() -> None:
    script = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "from attention_np import plot\n"
        "assert 'weight' in str(plot.top_keys([[0.25, 0.75]]))\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("text", "width"), [("mat", 3), ("垫子", 4), ("e\N{COMBINING ACUTE ACCENT}", 1), ("", 0)])
def test_text_takes_as_many_columns_as_a_terminal_gives_it(text: str, width: int) -> None:
    assert width_of(text) == width
    assert width_of(padded(text, 8)) == width_of(padded(text, 8, ">")) == 8
    assert padded(text, 8, ">").endswith(text)


def test_text_is_cut_to_its_columns() -> None:
    assert cut("transformer", 11) == "transformer"
    assert cut("transformer", 8) == "transf.."
    assert cut("我爱自然语言", 7) == "我爱.."
