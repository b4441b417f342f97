"""Keys, queries, values and outputs in the plane and in space."""

from typing import Any

import numpy as np
import pytest
from helpers import each

from attention_np import dot_product, plot
from attention_np.plot import _hull, _points

from .seen import ENGLISH, drawn, legend_of, normal, overlap

matplotlib = pytest.importorskip("matplotlib", reason="pip install 'attention-np[plot]'")
plt = pytest.importorskip("matplotlib.pyplot", reason="pip install 'attention-np[plot]'")


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


@pytest.mark.long
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
    (polygon,) = _hull.faces(square)
    assert len(polygon) == 4
    assert np.abs(np.diff(polygon, axis=0)).sum(axis=1).tolist() == [1, 1, 1], "each side is one of the square"


def test_the_hull_of_a_cube_has_its_six_sides() -> None:
    cube = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)] + [[0.5, 0.5, 0.5]], float)
    faces = list(_hull.faces(cube))
    assert len(faces) == 6
    assert all(face.shape == (4, 3) and np.ptp(face, axis=0).min() == 0 for face in faces)


@pytest.mark.long
@pytest.mark.parametrize("value", [np.ones((1, 2)), np.ones((4, 2)), np.outer(np.arange(4.0), [1, 2]), np.ones((2, 3))])
def test_values_on_one_point_or_one_line_are_drawn_as_well(value: np.ndarray) -> None:
    axes = plot.points(normal(2), normal(len(value), 2), value)
    drawn(axes[0])


def texts_of(ax: Any) -> list[Any]:
    """What stands beside the sides of a box: their labels and the numbers within their limits."""
    sides = [(ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim()), (ax.zaxis, ax.get_zlim())]
    ticks = [tick for axis, (low, high) in sides for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [tick.label1 for tick in ticks] + [axis.label for axis, _ in sides]


SPACES = {
    "plain": np.ones(3),
    "in a plane": np.array([1.0, 1.0, 0.0]),
    "in another plane": np.array([0.0, 1.0, 1.0]),
    "on a line": np.array([0.0, 1.0, 0.0]),
    "of one long feature": np.array([1.0, 1.0, 100.0]),
    "of one short feature": np.array([0.01, 1.0, 1.0]),
    "of three scales": np.array([100.0, 1.0, 0.01]),
}


@pytest.mark.long
@pytest.mark.parametrize("scales", SPACES.values(), ids=SPACES.keys())
def test_no_side_of_a_box_is_so_short_that_its_numbers_lie_on_each_other(scales: np.ndarray) -> None:
    for ax in plot.points(normal(3, seed=5), normal(6, 3) * scales, normal(6, 3, seed=1) * scales):
        drawn(ax)
        assert overlap(texts_of(ax)) == []
        assert min(ax._box_aspect) >= 0.49 * max(ax._box_aspect)


def test_sides_of_about_the_same_length_are_as_long_as_they_are() -> None:
    corners = np.array([[0.0, 0, 0], [3, 0, 0], [0, 2, 0], [0, 0, 4]])
    _, ax = plot.points(normal(3), normal(4, 3), corners)
    lengths = [high - low for low, high in (ax.get_xlim(), ax.get_ylim(), ax.get_zlim())]
    assert max(lengths) / min(lengths) == pytest.approx(2)
    assert ax._box_aspect / lengths == pytest.approx([(ax._box_aspect / lengths)[0]] * 3)


def test_a_long_query_is_within_the_picture() -> None:
    for query in (np.array([30.0, 0, 0]), np.array([30.0, 0])):
        ax, _ = plot.points(query, normal(4, len(query)), normal(4, 2))
        assert ax.get_xlim()[1] >= 30


def test_the_label_of_a_side_is_not_covered_by_the_next_panel() -> None:
    _, right = plot.points(normal(3), normal(6, 3), normal(6, 3))
    assert not right.patch.get_visible()


def test_names_of_points_stay_off_the_title() -> None:
    value = np.array([[0.0, 0], [0, 2], [1, 1]])
    _, ax = plot.points(normal(2), normal(3, 2), value, None, ["low", "high", "right"])
    drawn(ax)
    for name in ax.texts:
        assert not name.get_window_extent().overlaps(ax.title.get_window_extent())
        assert ax.bbox.contains(*name.get_window_extent().min), name.get_text()
        assert ax.bbox.contains(*name.get_window_extent().max), name.get_text()


@pytest.mark.long
@each(("scale", "aspect"), [(1.0, 1.0), (3.0, 1.0), (100.0, pytest.approx(100 / 8, rel=0.01))])
def test_a_unit_is_as_long_either_way_unless_one_would_see_a_line(scale: Any, aspect: Any) -> None:
    value = np.array([[0.0, 0], [scale, 1], [scale, 0], [0, 1]])
    _, ax = plot.points(normal(2), normal(4, 2), value)
    assert ax.get_aspect() == aspect
    drawn(ax)
    extent = ax.transData.transform([scale, 1]) - ax.transData.transform([0, 0])
    assert extent[1] / extent[0] == pytest.approx(aspect if scale == 1 else max(1 / scale, 1 / 8), rel=0.01)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named_and_the_hull_is_that_of_the_others(bad: float) -> None:
    value = normal(6, 2)
    value[3, 1] = bad
    _, ax = plot.points(normal(2), normal(6, 2), value, ["it"], ENGLISH)
    drawn(ax)
    assert {"value on: NaN or infinite", "output it: NaN or infinite"} <= set(legend_of(ax))
    (hull,) = ax.patches
    assert np.isfinite(hull.get_path().vertices).all()
    assert len(ax.collections[0].get_offsets()) == 5
    assert "on" not in [text.get_text() for text in ax.texts]


def test_a_value_that_is_hidden_leaves_the_output_where_it_is() -> None:
    value = normal(6, 2)
    value[3] = np.nan
    _, ax = plot.points(normal(2), normal(6, 2), value, mask=np.arange(6) != 3)
    drawn(ax)
    assert legend_of(ax)[-1] == "value 3: NaN or infinite"
    star = next(line for line in ax.get_lines() if line.get_marker() == "*")
    assert np.isfinite(star.get_xydata()).all()


def test_keys_and_values_of_a_query_of_nan_are_dots_without_a_weight() -> None:
    for ax in plot.points(np.array([np.nan, 0.0]), normal(4, 2), normal(4, 2)):
        assert set(ax.collections[0].get_sizes()) == {_points.SMALLEST}


@pytest.mark.parametrize("d", [2, 3])
def test_a_query_of_nan_is_named_beside_the_others(d: int) -> None:
    query = normal(3, d)
    query[1, 0] = np.nan
    of_keys, of_values = plot.points(query, normal(4, d), normal(4, d))
    drawn(of_keys)
    assert legend_of(of_keys)[-1] == "query 1: NaN or infinite"
    assert legend_of(of_values)[-1] == "output 1: NaN or infinite"
    assert [text.get_text().strip() for text in of_keys.texts] == ["0", "1", "2", "3", "0", "2"]


@pytest.mark.long
def test_nothing_but_nan_is_drawn_as_axes_with_a_legend() -> None:
    for d in (2, 3):
        for ax in plot.points(np.full(d, np.nan), np.full((5, d), np.nan), np.full((5, d), np.nan)):
            drawn(ax)
            assert any(text.endswith("0, 1, 2, ...: NaN or infinite") for text in legend_of(ax))


def test_grids_of_axes_are_taken_as_plt_subplots_gives_them() -> None:
    _, column = plt.subplots(2, 1, squeeze=False)
    assert list(plot.points(normal(2), normal(4, 2), normal(4, 2), axes=column)) == list(column.ravel())


def test_names_have_the_colour_of_text_and_show_on_a_dark_ground() -> None:
    with plt.style.context("dark_background"):
        ax, _ = plot.points(normal(2), normal(4, 2), normal(4, 2))
        assert ax.texts[0].get_color() == "white"


def test_points_hold_real_numbers() -> None:
    with pytest.raises(TypeError, match="query must hold real numbers, not complex128"):
        plot.points(normal(2) + 1j, normal(4, 2), normal(4, 2))
    assert len(plot.points([1, 0], [[1, 0], [0, 1]], [[1, 0], [0, 1]])) == 2, "integers are real numbers"
