"""NaN is seen as NaN, nothing is refused in one sentence, and Axes come as Matplotlib gives them."""

from typing import Any

import numpy as np
import pytest

from attention_np import plot

from .seen import CAUSAL, A, drawn, hatched, image_of, legend_of, normal, overlap, ticks

plt = pytest.importorskip("matplotlib.pyplot", reason="pip install 'attention-np[plot]'")

nan, inf = np.nan, np.inf


def written(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_a_weight_of_nan_has_a_hatch_and_a_word_of_its_own() -> None:
    weights = A.copy()
    weights[2, 1] = nan
    ax = plot.weights(weights, mask=CAUSAL)
    drawn(ax)
    found = hatched(ax)
    assert len(found) == 2
    assert np.array_equal(found["////"], ~CAUSAL)
    assert np.argwhere(found["xxxx"]).tolist() == [[2, 1]]
    assert written(ax).count("NaN") == 1
    assert legend_of(ax.figure.axes[1]) == ["hidden", "NaN"]


def test_nan_shows_where_cells_are_too_small_for_numbers() -> None:
    ax = plot.weights(np.full((12, 12), nan))
    drawn(ax)
    assert hatched(ax)["xxxx"].all()
    assert legend_of(ax.figure.axes[1]) == ["NaN"]


def test_what_hides_nan_is_drawn_as_hidden() -> None:
    weights = np.where(CAUSAL, A, nan)
    ax = plot.weights(weights, mask=CAUSAL)
    assert list(hatched(ax)) == ["////"]
    assert legend_of(ax.figure.axes[1]) == ["hidden"]


def test_nan_in_any_head_is_in_the_legend_of_all() -> None:
    weights = np.stack([A, A, A])
    weights[0, 0, 0] = nan
    axes = plot.heads(weights)
    drawn(axes[0])
    assert legend_of(axes[0].figure.axes[-1]) == ["NaN"]


def test_infinity_has_the_colour_beyond_the_end_of_the_bar() -> None:
    ax = plot.weights([[nan, 0.5], [inf, 0.25]])
    drawn(ax)
    assert written(ax) == ["NaN", "0.50", "inf", "0.25"]
    assert ax.images[0].get_clim() == (0, 0.5)
    assert image_of(ax)[1, 0] > 0.5
    assert ax.images[0].colorbar.extend == "max"
    assert plot.weights([[-inf, 0.5]]).images[0].colorbar.extend == "min"
    assert plot.weights([[-0.1, 0.5]]).images[0].colorbar.extend == "min", "the scale begins at zero"
    assert plot.weights([[0.5]]).images[0].colorbar.extend == "neither"


def test_the_jacobian_at_nan_is_nan() -> None:
    ax = plot.softmax_jacobian([1.0, nan, 2.0])
    drawn(ax)
    assert written(ax) == ["NaN"] * 9
    assert ax.images[0].get_clim() == (-1, 1)


def test_a_bar_of_nan_is_a_hatch_and_an_infinite_one_reaches_the_edge() -> None:
    ax = plot.query_weights([nan, 0.5, inf])
    drawn(ax)
    bars = {round(bar.get_y() + bar.get_height() / 2): bar for bar in ax.patches}
    assert bars[0].get_hatch() == "xxxx"
    assert bars[0].get_window_extent().width == pytest.approx(ax.bbox.width)
    assert bars[1].get_width() == 0.5
    assert bars[2].get_width() == ax.get_xlim()[1] > 0.5
    assert written(ax) == ["0.500", "inf"]
    assert legend_of(ax) == ["NaN"]
    for text in ax.texts:
        assert text.get_window_extent().x1 <= ax.bbox.x1 + 1


def test_a_negative_bar_goes_to_the_left_of_zero() -> None:
    ax = plot.query_weights([-0.5, 0.5, -inf])
    drawn(ax)
    low, high = ax.get_xlim()
    assert low < -0.5 < 0.5 < high
    assert [bar.get_width() for bar in ax.patches] == [-0.5, 0.5, low]
    assert written(ax) == ["\N{MINUS SIGN}0.500", "0.500", "\N{MINUS SIGN}inf"]
    for text in ax.texts:
        assert ax.bbox.x0 - 1 <= text.get_window_extent().x0
    assert plot.query_weights([0.5]).get_xlim()[0] == 0


def test_hidden_keys_show_among_many_bars() -> None:
    ax = plot.query_weights(normal(60) ** 2, mask=np.arange(60) != 7)
    drawn(ax)
    assert [bar.get_y() + bar.get_height() / 2 for bar in ax.patches if bar.get_hatch()] == [7]
    assert legend_of(ax) == ["hidden"]


def test_keys_whose_weight_is_nan_come_first_and_are_called_nan() -> None:
    found = plot.top_keys([[nan, 1.0], [0.25, nan], [inf, 0.0]], k=2)
    assert found.places.tolist() == [[0, 1], [1, 0], [0, 1]]
    assert [row[1:] for row in found.rows()[1:]] == [
        ["0", "NaN", "1", "1.000"],
        ["1", "NaN", "0", "0.250"],
        ["0", "inf", "-", ""],
    ]


def test_a_negative_weight_is_shown_and_only_zero_is_not() -> None:
    found = plot.top_keys([[-0.5, 0.0, 0.5]])
    assert found.rows()[1] == ["0", "2", "0.500", "-", "", "0", "-0.500"]


@pytest.mark.long
def test_heads_go_onto_a_grid_of_axes() -> None:
    figure, grid = plt.subplots(2, 2, layout="constrained")
    assert list(plot.heads(np.stack([A] * 4), axes=grid)) == list(grid.ravel())
    drawn(grid[0, 0])
    assert plt.get_fignums() == [figure.number]


def test_one_head_goes_onto_axes_that_stand_alone() -> None:
    _, ax = plt.subplots()
    assert list(plot.heads(A[None], axes=ax)) == [ax]
    drawn(ax)


def test_curves_go_from_the_smallest_width_to_the_largest() -> None:
    for ax in (plot.saturation([64, 1, 512], samples=4), plot.cost([64, 1, 512])):
        for line in ax.get_lines()[:2]:
            assert list(line.get_xdata()) == [1, 64, 512]


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "widths", [[64], *(pytest.param(x, marks=LONG) for x in (range(1, 40), [1000, 1001, 1002, 65536], [1, 2]))]
)
def test_numbers_along_an_axis_leave_each_other_room(widths: Any) -> None:
    for ax in (plot.saturation(widths, samples=4), plot.cost(widths), plot.cost(widths, quantity="flops")):
        drawn(ax)
        assert overlap(ax.get_xticklabels()) == []
        assert ticks(ax.xaxis)[0] == str(widths[0])
        low, high = ax.get_xlim()
        assert low < widths[0] <= widths[-1] < high
        lower, upper = ax.get_ylim()
        assert len([place for place in ax.get_yticks() if lower <= place <= upper]) >= 2


def test_the_factor_shifts_saturation_to_scores_that_are_larger_by_the_root_of_the_width() -> None:
    ax = plot.saturation(scales=[1, 8, 64], d_k=64, samples=16)
    drawn(ax)
    curves = {line.get_label(): line.get_ydata() for line in ax.get_lines()}
    with_factor, without = curves[r"with $1/\sqrt{d_k}$"], curves[r"without $1/\sqrt{d_k}$"]
    assert with_factor[1:] == pytest.approx(without[:2])
    assert without[0] > without[1] > without[2]
    normal_ones = plot.saturation([64], samples=16)
    assert [line.get_ydata()[0] for line in normal_ones.get_lines()[:2]] == pytest.approx([with_factor[1], without[1]])
    assert curves.keys() >= {"standard normal queries and keys"}
    assert "64" in ax.get_xlabel()


def test_a_table_shows_on_a_dark_ground() -> None:
    with plt.style.context("dark_background"):
        ax = plot.top_keys(A).plot()
        (table,) = ax.tables
        assert table[1, 0].get_text().get_color() == "white"
        assert table[1, 0].get_facecolor()[3] == 0
