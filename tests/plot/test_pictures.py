"""Pictures show the numbers that they are of, with labels that one can read, and leave Matplotlib as it was."""

import builtins
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from attention_np import cost, plot, softmax
from attention_np.gradcheck import plot as gradcheck_plot

from .seen import CAUSAL, CHINESE, CHINESE_FONT, ENGLISH, A, drawn, hatched, image_of, legend_of, normal, ticks

matplotlib = pytest.importorskip("matplotlib", reason="pip install 'attention-np[plot]'")
plt = pytest.importorskip("matplotlib.pyplot", reason="pip install 'attention-np[plot]'")


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


@every_picture
def test_a_picture_goes_where_it_is_asked_to_and_nowhere_else_or_gets_a_figure_of_its_own(
    draw: Callable[..., Any],
) -> None:
    figure, (first, second) = plt.subplots(1, 2, layout="constrained")
    plt.sca(first)
    assert draw(ax=second) is second
    assert plt.gca() is first
    assert plt.get_fignums() == [figure.number]
    assert not first.has_data()
    drawn(second)
    one, two = draw(), draw()
    assert len({figure, one.figure, two.figure}) == 3


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
    ax = plot.weights(A[:3], list("кот"), ENGLISH)
    assert ticks(ax.yaxis) == list("кот")
    assert ticks(ax.xaxis) == ENGLISH
    ax = plot.weights(A[:3], ["a", "b", "c"])
    drawn(ax)
    assert [round(place) for place in ax.get_xticks() if 0 <= place <= 5] == [0, 1, 2, 3, 4, 5]


def test_hidden_pairs_have_no_colour_but_a_hatch() -> None:
    ax = plot.weights(A, ENGLISH, mask=CAUSAL)
    drawn(ax)
    assert np.array_equal(np.isnan(image_of(ax)), ~CAUSAL)
    ((_, cells),) = hatched(ax).items()
    assert np.array_equal(cells, ~CAUSAL)
    assert legend_of(ax.figure.axes[1]) == ["hidden"]
    assert not legend_of(plot.weights(A).figure.axes[1])


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


@pytest.mark.long
@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (3, 3), (6, 3), (7, 3), (8, 4), (12, 4), (16, 4)])
def test_panels_stand_in_rows_without_a_gap_where_that_can_be(count: int, columns: int) -> None:
    axes = plot.heads(np.full((count, 2, 2), 0.5))
    assert axes[0].get_subplotspec().get_gridspec().ncols == columns


def test_a_mask_is_white_where_attending_is_allowed_and_hatched_elsewhere() -> None:
    ax = plot.mask(CAUSAL, ENGLISH)
    drawn(ax)
    assert np.array_equal(np.isnan(image_of(ax)), ~CAUSAL)
    assert ax.images[0].cmap(ax.images[0].norm(0.0)) == (1.0, 1.0, 1.0, 1.0)
    assert legend_of(ax) == ["may attend", "hidden"]
    ax.set_title("a mask")
    drawn(ax)
    assert not ax.get_legend().get_window_extent().overlaps(ax.title.get_window_extent())


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


def test_the_jacobian_of_hidden_keys_is_hatched_and_not_zero() -> None:
    ax = plot.softmax_jacobian(normal(6), ENGLISH, mask=CAUSAL[2])
    drawn(ax)
    seen = np.outer(CAUSAL[2], CAUSAL[2])
    assert np.array_equal(np.isnan(image_of(ax)), ~seen)
    ((_, cells),) = hatched(ax).items()
    assert np.array_equal(cells, ~seen)
    assert len(ax.texts) == 9
    assert legend_of(ax.figure.axes[1]) == ["hidden"]


@pytest.mark.parametrize("name", ["cividis"])
def test_the_colours_grow_lighter_along_with_the_numbers(name: str) -> None:
    ax = plot.weights(A)
    assert ax.images[0].cmap.name == name
    red, green, blue = ax.images[0].cmap(np.linspace(0, 1, 64))[:, :3].T
    assert (np.diff(0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2) > 0).all()


def test_the_bars_are_the_weights_in_the_order_of_the_keys() -> None:
    ax = plot.query_weights(A[3], ENGLISH, query="on", mask=CAUSAL[3])
    drawn(ax)
    middle = {bar: round(bar.get_y() + bar.get_height() / 2) for bar in ax.patches}
    assert {middle[bar]: bar.get_width() for bar in ax.patches if not bar.get_hatch()} == dict(enumerate(A[3, :4]))
    assert [middle[bar] for bar in ax.patches if bar.get_hatch()] == [4, 5]
    assert [text.get_text() for text in ax.texts] == [f"{weight:.3f}" for weight in A[3, :4]]
    assert legend_of(ax) == ["hidden"]
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


def test_places_are_those_of_gradcheck() -> None:
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
        (lambda: plot.saturation([]), ValueError, "widths must hold at least one number"),
        (lambda: plot.saturation(scales=[]), ValueError, "scales must hold at least one number"),
        (lambda: plot.saturation(scales=[0]), ValueError, "each of scales must be finite and above 0, not 0"),
        (lambda: plot.saturation(scales=[np.nan]), ValueError, "each of scales must be finite and above 0, not nan"),
        (lambda: plot.saturation(scales=["a"]), TypeError, "each of scales must be a number, not 'a'"),
        (lambda: plot.saturation([1], scales=[1]), ValueError, "give either widths or scales"),
        (lambda: plot.saturation(scales=[1], d_k=0), ValueError, "d_k must be at least 1, not 0"),
        (lambda: plot.saturation(64), TypeError, "widths must be a list of numbers, not 64"),
        (lambda: plot.cost([]), ValueError, "lengths must hold at least one number"),
        (lambda: plot.cost(memory=-1), ValueError, "memory must be finite and above 0, not -1"),
        (lambda: plot.weights(A, ax=[]), TypeError, "ax must be Axes of Matplotlib, not list"),
        (lambda: plot.heads(A[None], axes=[1]), TypeError, "axes must be Axes of Matplotlib, not int"),
        (lambda: plot.query_weights([]), ValueError, r"weights must be those of one query, .*shape=\(0,\)"),
        (lambda: plot.weights([[]]), ValueError, r"weights must be those of one head, .*shape=\(1, 0\)"),
        (lambda: plot.weights(np.ma.masked_less(A, 0.5)), TypeError, "masked array"),
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
